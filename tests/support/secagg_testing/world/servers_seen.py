"""Checks of the servers of one run, and of the disk that they share."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import Received, RoundClosed, SumComputed
from secagg.protocol.messages import (
    Aborted,
    Envelope,
    Message,
    Released,
    Roster,
    Round,
    Upload,
)
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.server.session.runner import MOST_ATTEMPTS
from secagg.server.task.outputs import ReleasedSum
from secagg.storage.change import Change, NewSession
from secagg.storage.journal import RefusalNoted, SumAttempt, decode_server_event
from secagg.storage.rows import TaskState
from secagg.wire.calls import Reference, Request, SendMessage, UploadStatus
from secagg_testing.world.clients_seen import received
from secagg_testing.world.inputs import Inputs
from secagg_testing.world.journals import Journal
from secagg_testing.world.loop import Process, own_process
from secagg_testing.world.machines import Disk
from secagg_testing.world.notes import Notes, short
from secagg_testing.world.receipts import complaints
from secagg_testing.world.tasks import prepared_of
from secagg_testing.world.uptime import Uptime
from secagg_testing.world.watched import Watched

# Clocks of stores count milliseconds.
_TOLERANCE: Final = 0.002
# What was asked for before an aggregator knew better may take so long to be stored:
# some calls of threads, at their slowest.
_UNDER_WAY_SECONDS: Final = 30.0
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


class ServersSeen:
    """What servers store, answer and reject.

    Args:
        notes: What did not hold goes there.
        tasks: All tasks, by name.
        inputs: What clients have given.

    Attributes:
        journals: What the disk has, or has had, of each session.
        sums: What the operator was given, by task and session number.
        has_forgotten: The disk was restored.
        poisoned: How many processes the sum of a session has ended.
        uptime: Intervals in which a server ran.
    """

    def __init__(
        self, notes: Notes, tasks: Mapping[str, Watched], inputs: Inputs
    ) -> None:
        self.journals: Final[dict[bytes, Journal]] = {}
        self.sums: Final[dict[tuple[str, int], ReleasedSum]] = {}
        self.has_forgotten = False
        self.uptime: Final = Uptime(notes.now)
        self.poisoned: Final[Counter[bytes]] = Counter()
        self._notes = notes
        self._tasks = tasks
        self._inputs = inputs
        # How much was acknowledged of uploads, by name and session.
        self._uploaded: dict[tuple[str, bytes], int] = defaultdict(int)
        # Whose certificate was taken back, and which processes were drained: since
        # when.
        self._revoked: dict[str, float] = {}
        self._drained: dict[Process, float] = {}

    def ends_by(self, process: Process, session_id: bytes) -> None:
        """Record that a sum kills each server that computes it."""
        self.poisoned[session_id] += 1
        ended = self.poisoned[session_id]
        self._notes.write(process.name, f"ends by the sum of {short(session_id)}")
        self._notes.must(
            ended <= MOST_ATTEMPTS or self.has_forgotten,
            f"a sum is begun that has ended {ended - 1} servers",
        )

    def revoked(self, name: str) -> None:
        """Record that a client's certificate was revoked."""
        self._revoked.setdefault(name, self._notes.now())

    def is_revoked(self, name: str) -> bool:
        """Whether a client's certificate was revoked."""
        return name in self._revoked

    def drained(self, process: Process) -> None:
        """Record that an aggregator is drained."""
        self._drained.setdefault(process, self._notes.now())

    def restore(self) -> None:
        """Record that the servers' disk was restored: lost sessions have ended."""
        self.has_forgotten = True
        for journal in self.journals.values():
            journal.is_over = True

    def dropped(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Record the objects that a kill dropped from the spool: chunks to be resent.

        Nothing that the store names may be among it.

        Returns:
            Clients whose partial uploads may have lost chunks, by name and session.
        """
        for session_id, journal in self.journals.items():
            lost = [each for each in names if each.startswith(session_id.hex())]
            if not lost or journal.is_over:
                continue
            taken = [
                Upload.decode(data).digest.hex()
                for (kind, _), data in journal.taken.items()
                if kind is Upload and not journal.has_sum
            ]
            named = [
                each
                for each in lost
                if "/uploads/" not in each or any(digest in each for digest in taken)
            ]
            self._notes.must(not named, f"a kill has lost {named}, which was taken")
            for name, of in self._uploaded:
                if of == session_id and (Upload, name) not in journal.taken:
                    self._uploaded[name, of] = 0
                    yield name, of

    def committed(self, session_id: bytes, change: Change, disk: Disk) -> None:
        """Check a commit on their disk."""
        if change.create is not None:
            self._begun(session_id, change.create)
        journal = self.journals[session_id]
        if change.spend:
            self._spent(self._tasks[journal.task], session_id)
        for record in change.records:
            match decode_server_event(record):
                case Received(envelope, sender):
                    key = (envelope.kind, sender)
                    self._notes.must(
                        key not in journal.taken,
                        f"two messages {envelope.kind.__name__} of {sender} are taken",
                    )
                    journal.taken[key] = envelope.data
                    self._check_welcome(sender)
                case RoundClosed(closed):
                    self._notes.must(
                        closed not in journal.closed, f"{closed.name} is closed twice"
                    )
                    self._notes.must(
                        not disk.is_shared  # a single server goes by its own clock
                        or self._is_full(journal, closed)
                        or self._has_passed(journal),
                        f"{closed.name} is closed while a client has time to answer",
                    )
                    journal.closed.add(closed)
                case SumComputed():
                    self._notes.must(not journal.has_sum, "a session has two sums")
                    journal.has_sum = True
                case SumAttempt() | RefusalNoted():
                    pass
                case _:
                    journal.is_over = True
        journal.is_over |= change.end is not None
        if change.deadline_seconds is not None:
            journal.since = self._notes.now()
            journal.deadline = journal.since + change.deadline_seconds

    def _has_passed(self, journal: Journal) -> bool:
        """Whether a round's time is up, not counting time without any server."""
        silent = self.uptime.downtime_since(journal.since)
        return self._notes.now() >= journal.deadline + silent - _TOLERANCE

    def _is_full(self, journal: Journal, closed: Round) -> bool:
        """Whether all clients that can answer in a round have."""
        answered = journal.senders(closed)
        before = self._before(journal, closed)
        if not before:
            return True  # its deadline moves, and the session's end may come first
        return answered >= journal.senders(before[-1])

    def _begun(self, session_id: bytes, new: NewSession) -> None:
        watched, process = self._tasks[new.task], own_process()
        self._notes.must(
            new.number > watched.highest and session_id not in self.journals,
            f"session number {new.number} is used twice",
        )
        self._notes.must(
            watched.state in {None, TaskState.RUNNING},
            f"a session of {new.task} begins, and it is {watched.state}",
        )
        if process in self._drained:
            awake = process.awake_since(self._drained[process])
            self._notes.must(
                awake < _UNDER_WAY_SECONDS,
                f"{process.name} was drained, and begins a session",
            )
        watched.highest = new.number
        self.journals[session_id] = Journal(new.task, new.number)

    def _spent(self, watched: Watched, session_id: bytes) -> None:
        watched.spent.add(session_id)
        noised = prepared_of(watched.task.kind).noised
        self._notes.must(
            noised is None
            or self.has_forgotten
            or len(watched.spent) <= noised.budget.max_sessions(watched.task.sums),
            f"{watched.task.name} runs more sessions than its budget covers",
        )

    def _check_welcome(self, sender: str) -> None:
        """Check that no message of a revoked client is accepted."""
        since, process = self._revoked.get(sender), own_process()
        if since is None or process is None:
            return
        awake = process.awake_since(since)
        self._notes.must(
            awake < LOOK_EVERY_SECONDS + _UNDER_WAY_SECONDS,
            f"{process.name} takes what {sender} sends, whose certificate was taken "
            f"back {awake:.0f} s ago",
        )

    def _before(self, journal: Journal, which: Round) -> list[Round]:
        """Return the rounds before one."""
        return [each for each in self._tasks[journal.task].rounds if each < which]

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
        """Check an answer of a server when it is sent.

        Args:
            process: Which one's.
            name: The client.
            request: Its request.
            answer: The answer.
            uploaded: As `uploaded` has said.
        """
        if process.is_gone:
            return
        session_id: bytes = getattr(request, "session_id", b"")
        self._notes.write(
            process.name, f"answers {name} {type(request).__name__}: {_shown(answer)}"
        )
        self._notes.step()
        if isinstance(answer, SessionDescriptor):
            session_id = answer.session_id
            self._notes.must(
                session_id in self.journals, "an offer is made of no session"
            )
        journal = self.journals.get(session_id)
        if journal is None:
            return
        if isinstance(request, SendMessage):
            self._notes.must(
                journal.taken.get((request.KIND, name)) == request.message,
                f"{request.KIND.__name__} of {name} is answered before it is stored",
            )
        if isinstance(answer, UploadStatus) and answer.complete:
            self._notes.must(
                (Upload, name) in journal.taken,
                f"the upload of {name} is answered before it is stored",
            )
        if isinstance(answer, UploadStatus):
            key = (name, session_id)
            self._notes.must(
                journal.is_over or answer.next_offset >= uploaded,
                f"{name} is asked for byte {answer.next_offset} of an upload of which "
                f"{uploaded} were acknowledged",
            )
            self._uploaded[key] = max(self._uploaded[key], received(answer))
        if isinstance(answer, Envelope | Reference):
            self._check_update(journal, answer.kind)

    def _check_update(self, journal: Journal, kind: type[Message]) -> None:
        """Check that an update opens only rounds that are open on the disk."""
        if kind is Released:
            self._notes.must(journal.has_sum, "a sum is announced before it is stored")
        elif kind is Aborted:
            self._notes.must(
                journal.is_over or bool(journal.closed),
                "an end is announced before it is stored",
            )
        else:
            rounds = self._tasks[journal.task].rounds
            # The roster opens what comes next in its profile.
            opened = rounds[1] if kind is Roster else kind.ROUND
            before = [each for each in rounds if each < opened]
            self._notes.must(
                bool(before) and before[-1] in journal.closed,
                f"{kind.__name__} is shown before its round is opened on the disk",
            )

    def refused(
        self, process: Process, name: str, request: Request[Any], error: SecAggError
    ) -> None:
        """Check a refusal of a server."""
        if process.is_gone:
            return
        self._notes.write(
            process.name,
            f"refuses {name} {type(request).__name__}: {error.code.name}, {error}",
        )
        self._notes.step()
        self._notes.must(
            error.code in _BEARABLE
            or (error.code is ErrorCode.UNAUTHENTICATED and name in self._revoked),
            f"{name}, who is honest, is refused as {error.code.name}: {error}",
        )
        journal = self.journals.get(getattr(request, "session_id", b""))
        if journal is None or journal.is_over:
            return
        self._notes.must(
            error.code is not ErrorCode.UNKNOWN_SESSION,
            f"{name} is told that a session that runs is unknown",
        )
        if isinstance(request, SendMessage):
            self._notes.must(
                error.code is not ErrorCode.UNEXPECTED_MESSAGE
                or not self._is_due(journal, name, request.KIND),
                f"{request.KIND.__name__} of {name} is refused as unexpected, and its "
                "round is open",
            )

    def _is_due(self, journal: Journal, name: str, kind: type[Message]) -> bool:
        """Whether a client's message is awaited according to the disk."""
        before = self._before(journal, kind.ROUND)
        return (
            bool(before)
            and before[-1] in journal.closed
            and name in journal.senders(before[-1])
            and kind.ROUND not in journal.closed
            and name not in journal.senders(kind.ROUND)
        )

    def record_sum(self, total: ReleasedSum) -> None:
        """Check a sum delivered to the operator."""
        session = total.receipt.descriptor
        self._notes.write("operator", f"has the sum of session {total.session_number}")
        before = self.sums.setdefault((session.task_id, session.session_number), total)
        which = f"session {session.session_number} of {session.task_id}"
        self._notes.must(
            np.array_equal(before.residues, total.residues)
            and before.receipt.survivors == total.receipt.survivors,
            f"{which} has two sums",
        )
        journal = self.journals[session.session_id]
        survivors = total.receipt.survivors
        expected, certificate = self._inputs.expected(
            session,
            clients=len(journal.senders(Round.ADVERTISE_KEYS)),
            share_holders=len(journal.senders(Round.SHARE_KEYS)),
            survivors=survivors,
            answered=journal.senders(Round.UNMASKING),
        )
        self._notes.must(
            len(survivors) == total.inputs and np.array_equal(expected, total.residues),
            f"the sum of {which} is not that of {survivors}",
        )
        self._notes.must(
            certificate is None or certificate.is_sufficient,
            f"the sum of {which} has too little noise",
        )
        for complaint in complaints(total.audit, journal):
            self._notes.fault(f"the receipt of {which}: {complaint}")


def _shown(answer: object) -> str:
    match answer:
        case Envelope() | Reference():
            return f"{answer.kind.__name__} {answer.digest[:3].hex()}"
        case SessionDescriptor():
            return f"session {answer.session_number} {short(answer.session_id)}"
        case None:
            return "taken"
    return str(answer)[:80]
