"""What must hold in every run, checked as it happens by somebody who trusts nobody.

1. A round of a session closes once, not before its deadline unless everybody has
   answered, and holds one message of each sender.
2. What a server answers follows from what is on its disk at that moment.
3. A client says nothing that its disk does not know, and never two different things
   for one round.
4. A session number is used once.
5. An input leaves only when it is charged; a task is never charged more often than its
   budget covers, neither at a client nor at the servers; a client sees no more rings
   than were counted; no released sum holds an input whose charge was given back.
6. A released sum is exact over the clients that its receipt names, and the same
   whoever is told it, however often.
7. An honest client is never called anything worse than late.
8. Nothing escapes that is no typed error.
9. A task that is paused or stopped begins no session; an aggregator that is drained
   begins none either.  What an operator was told is what every view shows.
10. Receipts hold, name the sets that are on the disk, and say that a quorum has agreed
    only where it has signed (`receipts`).
11. Noise is given back as the ladder allows and no further: what is left suffices.
12. What was acknowledged of an upload is asked for by no aggregator again, and sent by
    no client that has heard so.
13. What a client sends whose certificate was taken back is not stored any more once
    aggregators had a minute to notice.

The knowledge ledger judges beside all this what server and corrupt clients could
compute (`secagg.testing.knowledge`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np

from secagg.client.client import Contribution
from secagg.descriptor import SessionDescriptor
from secagg.errors import ErrorCode, SecAggError
from secagg.messages import (
    Aborted,
    EdgesPublished,
    Envelope,
    Message,
    Released,
    Roster,
    Round,
    Survivors,
    Upload,
)
from secagg.protocol.events import InputBound, Received, RoundClosed, SumComputed
from secagg.protocol.rounds import rounds_of
from secagg.server.certificate_watch import LOOK_EVERY_SECONDS
from secagg.server.server import ReleasedSum
from secagg.storage.change import Change, NewSession, Role
from secagg.storage.charges import ChargeState, settled
from secagg.storage.journal import decode_client_event, decode_server_event
from secagg.storage.stored import Task, TaskState
from secagg.testing.knowledge import Facts, check
from secagg.testing.observed_connection import TaskObserver
from secagg.testing.world.inputs import Inputs
from secagg.testing.world.journals import Journal
from secagg.testing.world.loop import Process, own_process
from secagg.testing.world.machines import Disk
from secagg.testing.world.receipts import complaints
from secagg.testing.world.tasks import WorldTask, prepared_of
from secagg.wire.calls import (
    AdvertiseKeys,
    ChooseEdges,
    Reference,
    Request,
    RevealShares,
    SendMessage,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    UploadStatus,
)

__all__ = ["Witness"]

# Clocks of books count milliseconds.
_TOLERANCE: Final = 0.002
# What was asked for before an aggregator knew better may take so long to be stored:
# some calls of threads, at their slowest.
_UNDER_WAY_SECONDS: Final = 30.0
_BEGUN, _BOUND, _ANSWERED, _ENDED = "begun", "bound", "answered", "ended"
_SPENT = "spent"
# What must be on a client's disk before it says something.
_BEFORE: Final[Mapping[type[Request[Any]], object]] = {
    AdvertiseKeys: _BEGUN,
    ChooseEdges: Roster,
    ShareKeys: Roster,
    UploadChunk: _BOUND,
    SignConsistency: Survivors,
    RevealShares: _ANSWERED,
}
# What an honest client may be told when the world is not as it thought.
_BEARABLE: Final = frozenset(
    {
        ErrorCode.DEADLINE,
        ErrorCode.NOT_INVITED,
        ErrorCode.OVERLOADED,
        ErrorCode.ROSTER_TOO_LARGE,
        ErrorCode.SESSION_OVER,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.STORAGE_FAILED,
        ErrorCode.TASK_OVER,
        ErrorCode.UNEXPECTED_MESSAGE,
        ErrorCode.UNKNOWN_SESSION,
        ErrorCode.UPLOAD_CORRUPT,
    }
)


@dataclass(slots=True)
class _Watched:
    """What is known of one task.

    Attributes:
        task: The task.
        observer: Tells the knowledge ledger.
        rounds: Of every session.
        highest: The highest session number on the disk.
        words: What the disk has had of an operator's words.
        spent: Sessions for which U3 was fixed.
    """

    task: WorldTask
    observer: TaskObserver
    rounds: tuple[Round, ...]
    highest: int = 0
    words: list[TaskState] = field(default_factory=list)
    spent: set[bytes] = field(default_factory=set)

    @property
    def state(self) -> TaskState | None:
        """What the disk has of an operator's word; None before any."""
        return self.words[-1] if self.words else None


class Witness:
    """Sees everything of one run.

    Args:
        tasks: All tasks.
        now: The time, in seconds since the world began.
        on_step: Told of every step of the run, by its number.
        keep_trace: Whether the lines of the trace are kept.

    Attributes:
        faults: What did not hold.
        trace: One line for each thing that happened.
        steps: How many steps there were.
        sums: What the operator was given, by task and session number.
        inputs: What clients have given.
        on_fault: Told when something does not hold.
    """

    def __init__(
        self,
        tasks: Sequence[WorldTask],
        *,
        now: Callable[[], float],
        on_step: Callable[[int], None],
        keep_trace: bool,
    ) -> None:
        self.faults: list[str] = []
        self.trace: list[str] = []
        self.steps = 0
        self._has_forgotten = False
        self.on_fault: Callable[[], object] = lambda: None
        self.sums: dict[tuple[str, int], ReleasedSum] = {}
        self.inputs: Final = Inputs()
        self._tasks: Final = {
            task.name: _Watched(
                task, TaskObserver(), rounds_of(task.parameters.profile)
            )
            for task in tasks
        }
        self._task_of: Final = {
            name: self._tasks[task.name] for task in tasks for name in task.clients
        }
        self._now = now
        self._on_step = on_step
        self._keep_trace = keep_trace
        self._digest = sha256()
        self._journals: dict[bytes, Journal] = {}
        # Of clients, by name and session.
        self._known: dict[tuple[str, bytes], set[object]] = defaultdict(set)
        self._charged: dict[tuple[str, bytes], ChargeState] = {}
        self._said: dict[tuple[str, bytes, object], bytes] = {}
        self._told: list[tuple[str, Contribution]] = []
        # How far uploads have come, by name and session: what was acknowledged, and
        # what a process of the client has heard of that.
        self._uploaded: dict[tuple[str, bytes], int] = defaultdict(int)
        self._heard: dict[tuple[str, bytes], int] = defaultdict(int)
        # Whose certificate was taken back, and which processes were drained: since
        # when.
        self._revoked: dict[str, float] = {}
        self._drained: dict[Process, float] = {}

    # --- the trace --------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """Names the whole run: two runs with one digest were the same."""
        return self._digest.hexdigest()

    def step(self) -> None:
        """Count one more thing that a crash may come before."""
        self.steps += 1
        self._on_step(self.steps)

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        line = f"{self._now():12.6f}  {who:12}  {what}"
        self._digest.update(line.encode())
        if self._keep_trace:
            self.trace.append(line)

    def fault(self, complaint: str) -> None:
        """Note that something did not hold; it is the end of the run."""
        self.note("FAULT", complaint)
        self.faults.append(complaint)
        self.on_fault()

    def _must(self, holds: bool, complaint: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            self.fault(complaint)

    # --- disks ------------------------------------------------------------------------

    def committed(self, disk: Disk, change: Change | Task) -> None:
        """See what is on a disk."""
        if isinstance(change, Task):
            self.note(disk.owner, f"disk: {change.task_id} is {change.state}")
            self._tasks[change.task_id].words.append(change.state)
            return
        session_id = bytes.fromhex(change.key.rpartition("/")[2])
        self.note(disk.owner, f"disk: {_shown_change(change)} {_short(session_id)}")
        if change.key.startswith(f"{Role.SERVER}/"):
            self._committed_at_server(session_id, change, disk)
        else:
            self._committed_at_client(disk.owner, session_id, change)

    def words_of(self, task: str) -> Sequence[TaskState]:
        """Return what the disk has had of words about a task, in order."""
        return self._tasks[task].words

    def revoked(self, name: str) -> None:
        """Hear that a client's certificate was taken back."""
        self._revoked.setdefault(name, self._now())

    def is_revoked(self, name: str) -> bool:
        """Whether a client's certificate was taken back."""
        return name in self._revoked

    def drained(self, process: Process) -> None:
        """Hear that an aggregator is to begin nothing."""
        self._drained.setdefault(process, self._now())

    def put_back(self) -> None:
        """Hear that the servers' disk was put back: what it has forgotten is over."""
        self._has_forgotten = True
        for journal in self._journals.values():
            journal.is_over = True

    def _committed_at_server(
        self, session_id: bytes, change: Change, disk: Disk
    ) -> None:
        if change.create is not None:
            self._begun_at_server(session_id, change.create)
        journal = self._journals[session_id]
        if change.spend:
            self._spent_at_server(self._tasks[journal.task], session_id)
        for record in change.records:
            match decode_server_event(record):
                case Received(envelope, sender):
                    key = (envelope.kind, sender)
                    self._must(
                        key not in journal.taken,
                        f"two messages {envelope.kind.__name__} of {sender} are taken",
                    )
                    journal.taken[key] = envelope.data
                    self._check_welcome(sender)
                case RoundClosed(closed):
                    self._must(
                        closed not in journal.closed, f"{closed.name} is closed twice"
                    )
                    self._must(
                        not disk.is_shared  # whoever is alone goes by its own clock
                        or self._is_full(journal, closed)
                        or self._now() >= journal.deadline - _TOLERANCE,
                        f"{closed.name} is closed while somebody has time to answer",
                    )
                    journal.closed.add(closed)
                case SumComputed():
                    self._must(not journal.has_sum, "a session has two sums")
                    journal.has_sum = True
                case _:
                    journal.is_over = True
        journal.is_over |= change.end is not None
        if change.deadline_seconds is not None:
            journal.deadline = self._now() + change.deadline_seconds

    def _is_full(self, journal: Journal, closed: Round) -> bool:
        """Whether everybody who can answer in a round has."""
        answered = journal.senders(closed)
        before = self._before(journal, closed)
        if not before:
            return True  # its deadline moves, and the session's end may come first
        return answered >= journal.senders(before[-1])

    def _begun_at_server(self, session_id: bytes, new: NewSession) -> None:
        watched, process = self._tasks[new.task], own_process()
        self._must(
            new.number > watched.highest and session_id not in self._journals,
            f"session number {new.number} is used twice",
        )
        self._must(
            watched.state in {None, TaskState.RUNNING},
            f"a session of {new.task} begins, and it is {watched.state}",
        )
        if process in self._drained:
            awake = process.awake_since(self._drained[process])
            self._must(
                awake < _UNDER_WAY_SECONDS,
                f"{process.name} was drained, and begins a session",
            )
        watched.highest = new.number
        self._journals[session_id] = Journal(new.task, new.number)

    def _spent_at_server(self, watched: _Watched, session_id: bytes) -> None:
        watched.spent.add(session_id)
        noised = prepared_of(watched.task.kind).noised
        self._must(
            noised is None
            or self._has_forgotten
            or len(watched.spent) <= noised.budget.sessions,
            f"{watched.task.name} runs more sessions than its budget covers",
        )

    def _check_welcome(self, sender: str) -> None:
        """Check that nobody is heard whose certificate was taken back."""
        since, process = self._revoked.get(sender), own_process()
        if since is None or process is None:
            return
        awake = process.awake_since(since)
        self._must(
            awake < LOOK_EVERY_SECONDS + _UNDER_WAY_SECONDS,
            f"{process.name} takes what {sender} sends, whose certificate was taken "
            f"back {awake:.0f} s ago",
        )

    def _before(self, journal: Journal, which: Round) -> list[Round]:
        """Return the rounds before one."""
        return [each for each in self._tasks[journal.task].rounds if each < which]

    def _committed_at_client(
        self, name: str, session_id: bytes, change: Change
    ) -> None:
        known = self._known[name, session_id]
        if change.create is not None:
            self._must(not known, f"{name} begins a session twice")
            known.add(_BEGUN)
        for record in change.records:
            match decode_client_event(record):
                case Received(envelope):
                    known.add(envelope.kind)
                case InputBound(digest):
                    self._say(name, session_id, "input", digest)
                    known.add(_BOUND)
        if change.reseal is not None:
            known.add(_ANSWERED)
        if change.spend:
            known.add(_SPENT)
            self._check_rosters(name)
        if change.charge is not None:
            self._charged.setdefault((name, session_id), ChargeState.BOUND)
            self._must(
                self.charged(name) <= change.charge.allowed,
                f"{name} is charged beyond its budget",
            )
        if change.end is not None:
            known.add(_ENDED)
        key = (name, session_id)
        if change.settle is not None and key in self._charged:
            self._charged[key] = settled(self._charged[key], change.settle.state)

    def _check_rosters(self, name: str) -> None:
        """Check that a client has seen no more rings than its delta counts."""
        noised = prepared_of(self._task_of[name].task.kind).noised
        most = None if noised is None else noised.max_rosters
        seen = sum(
            _SPENT in known for (who, _), known in self._known.items() if who == name
        )
        self._must(
            most is None or seen <= most,
            f"{name} has seen {seen} rings, and its delta counts {most}",
        )

    # --- clients ----------------------------------------------------------------------

    def charged(self, name: str) -> int:
        """Return how many sessions a client has paid for."""
        return sum(
            state is not ChargeState.VOID
            for (who, _), state in self._charged.items()
            if who == name
        )

    def left(self, name: str, request: Request[Any]) -> None:
        """See what leaves a client."""
        self._task_of[name].observer.heard(name, request)
        session_id: bytes = getattr(request, "session_id", b"")
        kind = type(request)
        self.note(name, f"asks {kind.__name__} {_short(session_id)}")
        self.step()
        if not isinstance(request, SendMessage | UploadChunk):
            return
        known = self._known[name, session_id]
        needed = _BEFORE.get(kind, _BEGUN)
        if kind is ShareKeys and Round.CHOOSE_EDGES in self._task_of[name].rounds:
            needed = EdgesPublished
        self._must(
            needed in known and _ENDED not in known,
            f"{name} sends {kind.__name__}, and its disk knows only "
            f"{sorted(map(str, known))}",
        )
        if isinstance(request, SendMessage):
            self._say(name, session_id, kind, request.message)
            return
        self._say(name, session_id, kind, request.digest)
        journal = self._journals.get(session_id)
        # What has arrived goes with its session, whose end it may not have heard of.
        self._must(
            (journal is not None and journal.is_over)
            or request.offset >= self._heard[name, session_id],
            f"{name} sends again what it knows to be there: from byte {request.offset} "
            f"of {self._heard[name, session_id]}",
        )
        if self._task_of[name].task.parameters.noise_block:
            self._must(
                self._charged.get((name, session_id)) is ChargeState.BOUND,
                f"an input of {name} leaves without a charge",
            )

    def heard(self, name: str, request: Request[Any], answer: object) -> None:
        """See what a client is told."""
        if isinstance(answer, UploadStatus):
            key = (name, getattr(request, "session_id", b""))
            self._heard[key] = max(self._heard[key], _received(answer))
        self._task_of[name].observer.said(name, request, answer)

    def contributed(self, name: str, given: Contribution) -> None:
        """See what a client has got for its input."""
        self.note(name, f"has the sum of session {given.session_number}")
        self._must(
            given.noise is None or given.noise.suffices,
            f"{name} takes a sum with too little noise",
        )
        self._told.append((name, given))

    def _say(self, name: str, session_id: bytes, what: object, said: bytes) -> None:
        before = self._said.setdefault((name, session_id, what), said)
        self._must(
            before == said, f"{name} says two different things for {what} of a session"
        )

    # --- servers ----------------------------------------------------------------------

    def uploaded(self, name: str, request: Request[Any]) -> int:
        """Return how much of an upload was acknowledged when a request about it came.

        Answers may come in another order.
        """
        return self._uploaded[name, getattr(request, "session_id", b"")]

    def answered(
        self,
        process: Process,
        name: str,
        request: Request[Any],
        answer: object,
        *,
        uploaded: int = 0,
    ) -> None:
        """See what a server answers, at the moment at which it does.

        Args:
            process: Which one's.
            name: The client.
            request: What it has asked.
            answer: What it is told.
            uploaded: As `uploaded` has said.
        """
        if process.is_gone:
            return
        session_id: bytes = getattr(request, "session_id", b"")
        self.note(
            process.name, f"answers {name} {type(request).__name__}: {_shown(answer)}"
        )
        self.step()
        if isinstance(answer, SessionDescriptor):
            session_id = answer.session_id
            self._must(session_id in self._journals, "an offer is made of no session")
        journal = self._journals.get(session_id)
        if journal is None:
            return
        if isinstance(request, SendMessage):
            self._must(
                journal.taken.get((request.KIND, name)) == request.message,
                f"{request.KIND.__name__} of {name} is answered before it is stored",
            )
        if isinstance(answer, UploadStatus) and answer.complete:
            self._must(
                (Upload, name) in journal.taken,
                f"the upload of {name} is answered before it is stored",
            )
        if isinstance(answer, UploadStatus):
            key = (name, session_id)
            self._must(
                journal.is_over or answer.next_offset >= uploaded,
                f"{name} is asked for byte {answer.next_offset} of an upload of which "
                f"{uploaded} were acknowledged",
            )
            self._uploaded[key] = max(self._uploaded[key], _received(answer))
        if isinstance(answer, Envelope | Reference):
            self._check_update(journal, answer.kind)

    def _check_update(self, journal: Journal, kind: type[Message]) -> None:
        """Check that an update opens nothing that is not open on the disk."""
        if kind is Released:
            self._must(journal.has_sum, "a sum is announced before it is stored")
        elif kind is Aborted:
            self._must(
                journal.is_over or bool(journal.closed),
                "an end is announced before it is stored",
            )
        else:
            rounds = self._tasks[journal.task].rounds
            # The roster opens what comes next in its profile.
            opened = rounds[1] if kind is Roster else kind.ROUND
            before = [each for each in rounds if each < opened]
            self._must(
                bool(before) and before[-1] in journal.closed,
                f"{kind.__name__} is shown before its round is opened on the disk",
            )

    def refused(
        self, process: Process, name: str, request: Request[Any], error: SecAggError
    ) -> None:
        """See what a server refuses."""
        if process.is_gone:
            return
        self.note(
            process.name,
            f"refuses {name} {type(request).__name__}: {error.code.name}, {error}",
        )
        self.step()
        self._must(
            error.code in _BEARABLE
            or (error.code is ErrorCode.UNAUTHENTICATED and name in self._revoked),
            f"{name}, who is honest, is refused as {error.code.name}: {error}",
        )
        journal = self._journals.get(getattr(request, "session_id", b""))
        if journal is None or journal.is_over:
            return
        self._must(
            error.code is not ErrorCode.UNKNOWN_SESSION,
            f"{name} is told that a session that runs is unknown",
        )
        if isinstance(request, SendMessage):
            self._must(
                error.code is not ErrorCode.UNEXPECTED_MESSAGE
                or not self._is_due(journal, name, request.KIND),
                f"{request.KIND.__name__} of {name} is refused as unexpected, and its "
                "round is open",
            )

    def _is_due(self, journal: Journal, name: str, kind: type[Message]) -> bool:
        """Whether a client's message is awaited, by what is on the disk."""
        before = self._before(journal, kind.ROUND)
        return (
            bool(before)
            and before[-1] in journal.closed
            and name in journal.senders(before[-1])
            and kind.ROUND not in journal.closed
            and name not in journal.senders(kind.ROUND)
        )

    def given(self, total: ReleasedSum) -> None:
        """See a sum as the operator is given it."""
        session = total.receipt.descriptor
        self.note("operator", f"has the sum of session {total.session_number}")
        before = self.sums.setdefault((session.task_id, session.session_number), total)
        which = f"session {session.session_number} of {session.task_id}"
        self._must(
            np.array_equal(before.residues, total.residues)
            and before.receipt.survivors == total.receipt.survivors,
            f"{which} has two sums",
        )
        journal = self._journals[session.session_id]
        survivors = total.receipt.survivors
        expected, certificate = self.inputs.expected(
            session,
            clients=len(journal.senders(Round.ADVERTISE_KEYS)),
            sharers=len(journal.senders(Round.SHARE_KEYS)),
            survivors=survivors,
            answered=journal.senders(Round.UNMASKING),
        )
        self._must(
            len(survivors) == total.inputs and np.array_equal(expected, total.residues),
            f"the sum of {which} is not that of {survivors}",
        )
        self._must(
            certificate is None or certificate.suffices,
            f"the sum of {which} has too little noise",
        )
        for complaint in complaints(total.audit, journal):
            self.fault(f"the receipt of {which}: {complaint}")

    # --- at the end -------------------------------------------------------------------

    def check_charges(self, name: str, charges: Mapping[bytes, ChargeState]) -> None:
        """Compare a client's own ledger with what has left it and what was released."""
        for who, session_id, what in self._said:
            if who == name and what is UploadChunk:
                self._must(
                    session_id in charges, f"{name} has no charge for what has left it"
                )
        for (_, number), total in self.sums.items():
            if name in total.receipt.survivors:
                state = charges.get(total.receipt.descriptor.session_id)
                self._must(
                    state in {ChargeState.BOUND, ChargeState.KEPT},
                    f"{name} is in the sum of session {number}, and its charge is "
                    f"{state}",
                )

    def check_contributions(self, *, everybody: bool) -> None:
        """Compare what clients were told with what the operator was given.

        Args:
            everybody: Nobody was kept from anything: all clients of a task without an
                operator are in every sum, and whoever is in one has it.
        """
        if everybody:
            told = {(name, given.session_number) for name, given in self._told}
            for (task, number), total in self.sums.items():
                who = self._tasks[task].task.clients
                if self._tasks[task].words:  # it may begin before all are there
                    who = total.receipt.survivors
                without = {name for name in who if (name, number) not in told}
                self._must(not without, f"{without} have no sum of session {number}")
        for name, given in self._told:
            found = self.sums.get((self._task_of[name].task.name, given.session_number))
            if found is not None:
                self._check_contribution(name, given, found)
            elif not self._has_forgotten:  # else the operator was about to be told
                self.fault(f"{name} has a sum that the operator has not")

    def _check_contribution(
        self, name: str, given: Contribution, total: ReleasedSum
    ) -> None:
        self._must(
            total.inputs == given.inputs
            and name in total.receipt.survivors
            and given.values is not None
            and np.array_equal(total.values, given.values),
            f"{name} was told another sum of session {given.session_number}",
        )
        session_id = total.receipt.descriptor.session_id
        if _ANSWERED in self._known[name, session_id]:  # else it vouches for nothing
            for complaint in complaints(given.audit, self._journals[session_id]):
                self.fault(f"the receipt of {name}: {complaint}")

    def check_views(self, views: Iterable[Mapping[str, Any]]) -> None:
        """Compare what an operator is shown of tasks with what has happened.

        Args:
            views: As `secagg tasks list` has them.
        """
        shown = {view["task"]: view for view in views}
        known = {name for name, each in self._tasks.items() if each.state is not None}
        self._must(shown.keys() == known, f"the operator is shown {sorted(shown)}")
        for name in known & shown.keys():
            view, watched = shown[name], self._tasks[name]
            sums = sum(task == name for task, _ in self.sums)
            stored = sum(
                each.task == name and each.has_sum for each in self._journals.values()
            )
            is_done = sums >= watched.task.sums
            state = "done" if is_done else str(watched.state)
            if watched.state is TaskState.STOPPED:
                state = "stopped"
            self._must(
                (view["sums"], view["state"]) == (sums, state) and sums == stored,
                f"of {name} the operator is shown {view['sums']} sums, {view['state']};"
                f" there are {sums}, {stored} stored, and it is {state}",
            )

    def check_knowledge(self, task: WorldTask, charges: Mapping[str, int]) -> None:
        """Have the ledger judge what servers and corrupt clients could compute.

        Args:
            task: Which.
            charges: How many sessions clients have paid for by their own ledgers; of
                those without one, what has left them counts.

        Raises:
            ForbiddenKnowledgeError: More than was promised.
        """
        observer = self._tasks[task.name].observer
        charged = {name: len(known) for name, known in observer.masked.items()}
        check(observer.facts, charged=charged | dict(charges))

    def facts_of(self, name: str) -> Facts:
        """Return what the adversary sees of a client's task."""
        return self._task_of[name].observer.facts


def _received(status: UploadStatus) -> int:
    """Return how much of an upload has arrived, by what a client is told.

    Of one that is complete the last byte may be asked for again, by an aggregator that
    has yet to hear that another one took it: only a chunk sets the check off.
    """
    return status.next_offset - status.complete


def _short(session_id: bytes) -> str:
    return session_id[:3].hex()


def _shown(answer: object) -> str:
    match answer:
        case Envelope() | Reference():
            return f"{answer.kind.__name__} {answer.digest[:3].hex()}"
        case SessionDescriptor():
            return f"session {answer.session_number} {_short(answer.session_id)}"
        case None:
            return "taken"
    return str(answer)[:80]


def _shown_change(change: Change) -> str:
    parts = []
    if change.create is not None:
        parts.append(f"session {change.create.number} of {change.create.task}")
    for record in change.records:
        sender = "" if record.sender is None else f" of {record.sender}"
        digest = sha256(record.body).hexdigest()[:6]
        parts.append(f"record {record.kind}{sender} {digest}")
    for name in ("round", "deadline_seconds", "charge", "settle"):
        value = getattr(change, name)
        if value is not None and name in {"charge", "settle"}:
            parts.append(name)
        elif value is not None:
            parts.append(f"{name} {value:g}")
    if change.reseal is not None:
        parts.append("answered")
    if change.end is not None:
        parts.append("end")
    return ", ".join(parts)
