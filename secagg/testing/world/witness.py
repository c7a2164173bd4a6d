"""What must hold in every run, checked as it happens by somebody who trusts nobody.

1. A round of a session closes once, not before its deadline unless everybody has
   answered, and holds one message of each sender.
2. What a server answers follows from what is on its disk at that moment.
3. A client says nothing that its disk does not know, and never two different things
   for one round.
4. A session number is used once.
5. An input leaves only when it is charged; a task is never charged more often than its
   budget covers; no released sum holds an input whose charge was given back.
6. A released sum is exact over the clients that its receipt names, and the same
   whoever is told it, however often.
7. An honest client is never called anything worse than late.
8. Nothing escapes that is no typed error.

The knowledge ledger judges beside all this what server and corrupt clients could
compute (`secagg.testing.knowledge`).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

import numpy as np

from secagg.client.client import Contribution
from secagg.descriptor import SessionDescriptor
from secagg.errors import ErrorCode, SecAggError
from secagg.messages import (
    Aborted,
    Envelope,
    Message,
    Released,
    Roster,
    Round,
    Survivors,
    Upload,
)
from secagg.parameters import ProtocolParameters
from secagg.primitives.modular import UnsignedArray, zeros
from secagg.protocol.events import InputBound, Received, RoundClosed, SumComputed
from secagg.protocol.rounds import rounds_of
from secagg.server.server import ReleasedSum
from secagg.storage.change import Change, Role
from secagg.storage.charges import ChargeState, settled
from secagg.storage.journal import decode_client_event, decode_server_event
from secagg.testing.observed_connection import TaskObserver
from secagg.testing.world.loop import Process
from secagg.testing.world.machines import Disk
from secagg.wire.calls import (
    AdvertiseKeys,
    Reference,
    Request,
    RevealShares,
    SendMessage,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    UploadStatus,
)

__all__ = ["Witness", "one_hot_of"]

# Clocks of books count milliseconds.
_TOLERANCE: Final = 0.002
_BEGUN, _BOUND, _ANSWERED, _ENDED = "begun", "bound", "answered", "ended"
# What must be on a client's disk before it says something.
_BEFORE: Final[Mapping[type[Request[Any]], object]] = {
    AdvertiseKeys: _BEGUN,
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


def one_hot_of(number: int, parameters: ProtocolParameters) -> UnsignedArray:
    """Return m - 1 at the client's own coordinate and 0 elsewhere."""
    vector = zeros(parameters.dimension, parameters.modulus)
    vector[number] = parameters.modulus - 1
    return vector


class _Journal:
    """What a server's disk holds, or has held, of one session."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.taken: dict[tuple[type[Message], str], bytes] = {}
        self.closed: set[Round] = set()
        self.deadline = 0.0
        self.has_sum = False
        self.is_over = False


class Witness:
    """Sees everything of one run.

    Args:
        parameters: Of every session.
        names: The clients' names, by number.
        now: The time, in seconds since the world began.
        on_step: Told of every step of the run, by its number.
        keep_trace: Whether the lines of the trace are kept.

    Attributes:
        faults: What did not hold.
        trace: One line for each thing that happened.
        steps: How many steps there were.
        sums: What the operator was given, by session number.
        observer: Tells the knowledge ledger.
        on_fault: Told when something does not hold.
    """

    def __init__(
        self,
        parameters: ProtocolParameters,
        names: tuple[str, ...],
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
        self.sums: dict[int, ReleasedSum] = {}
        self.observer: Final = TaskObserver()
        self._parameters = parameters
        self._rounds = rounds_of(parameters.profile)
        self._names = names
        self._now = now
        self._on_step = on_step
        self._keep_trace = keep_trace
        self._digest = sha256()
        # Of servers: sessions by id, and the highest number on each disk.
        self._journals: dict[bytes, _Journal] = {}
        self._highest = 0
        # Of clients, by name and session.
        self._known: dict[tuple[str, bytes], set[object]] = defaultdict(set)
        self._charged: dict[tuple[str, bytes], ChargeState] = {}
        self._said: dict[tuple[str, bytes, object], bytes] = {}
        self._told: list[tuple[str, Contribution]] = []

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

    def committed(self, disk: Disk, change: Change) -> None:
        """See what is on a disk."""
        session_id = bytes.fromhex(change.key.rpartition("/")[2])
        self.note(disk.owner, f"disk: {_shown_change(change)} {_short(session_id)}")
        if change.key.startswith(f"{Role.SERVER}/"):
            self._committed_at_server(session_id, change, disk)
        else:
            self._committed_at_client(disk.owner, session_id, change)

    def put_back(self) -> None:
        """Hear that the servers' disk was put back: what it has forgotten is over."""
        self._has_forgotten = True
        for journal in self._journals.values():
            journal.is_over = True

    def _committed_at_server(
        self, session_id: bytes, change: Change, disk: Disk
    ) -> None:
        if change.create is not None:
            number = change.create.number
            self._must(
                number > self._highest and session_id not in self._journals,
                f"session number {number} is used twice",
            )
            self._highest = number
            self._journals[session_id] = _Journal(number)
        journal = self._journals[session_id]
        for record in change.records:
            match decode_server_event(record):
                case Received(envelope, sender):
                    key = (envelope.kind, sender)
                    self._must(
                        key not in journal.taken,
                        f"two messages {envelope.kind.__name__} of {sender} are taken",
                    )
                    journal.taken[key] = envelope.data
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

    def _is_full(self, journal: _Journal, closed: Round) -> bool:
        """Whether everybody who can answer in a round has."""
        answered = _senders(journal, closed)
        before = [each for each in self._rounds if each < closed]
        if not before:
            return True  # its deadline moves, and the session's end may come first
        return answered >= _senders(journal, before[-1])

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
        self.observer.heard(name, request)
        session_id: bytes = getattr(request, "session_id", b"")
        kind = type(request)
        self.note(name, f"asks {kind.__name__} {_short(session_id)}")
        self.step()
        if not isinstance(request, SendMessage | UploadChunk):
            return
        known = self._known[name, session_id]
        needed = _BEFORE.get(kind, _BEGUN)
        self._must(
            needed in known and _ENDED not in known,
            f"{name} sends {kind.__name__}, and its disk knows only "
            f"{sorted(map(str, known))}",
        )
        if isinstance(request, SendMessage):
            self._say(name, session_id, kind, request.message)
            return
        self._say(name, session_id, kind, request.digest)
        if self._parameters.noise_block:
            self._must(
                self._charged.get((name, session_id)) is ChargeState.BOUND,
                f"an input of {name} leaves without a charge",
            )

    def heard(self, name: str, request: Request[Any], answer: object) -> None:
        """See what a client is told."""
        self.observer.said(name, request, answer)

    def contributed(self, name: str, given: Contribution) -> None:
        """See what a client has got for its input."""
        self.note(name, f"has the sum of session {given.session_number}")
        self._told.append((name, given))

    def _say(self, name: str, session_id: bytes, what: object, said: bytes) -> None:
        before = self._said.setdefault((name, session_id, what), said)
        self._must(
            before == said, f"{name} says two different things for {what} of a session"
        )

    # --- servers ----------------------------------------------------------------------

    def answered(
        self, process: Process, name: str, request: Request[Any], answer: object
    ) -> None:
        """See what a server answers, at the moment at which it does."""
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
        if isinstance(answer, Envelope | Reference):
            self._check_update(journal, answer.kind)

    def _check_update(self, journal: _Journal, kind: type[Message]) -> None:
        """Check that an update opens nothing that is not open on the disk."""
        if kind is Released:
            self._must(journal.has_sum, "a sum is announced before it is stored")
        elif kind is Aborted:
            self._must(
                journal.is_over or bool(journal.closed),
                "an end is announced before it is stored",
            )
        else:
            before = [each for each in self._rounds if each < kind.ROUND]
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
            error.code in _BEARABLE,
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

    def _is_due(self, journal: _Journal, name: str, kind: type[Message]) -> bool:
        """Whether a client's message is awaited, by what is on the disk."""
        before = [each for each in self._rounds if each < kind.ROUND]
        return (
            bool(before)
            and before[-1] in journal.closed
            and name in _senders(journal, before[-1])
            and kind.ROUND not in journal.closed
            and name not in _senders(journal, kind.ROUND)
        )

    def given(self, total: ReleasedSum) -> None:
        """See a sum as the operator is given it."""
        self.note("operator", f"has the sum of session {total.session_number}")
        before = self.sums.setdefault(total.session_number, total)
        self._must(
            np.array_equal(before.residues, total.residues)
            and before.receipt.survivors == total.receipt.survivors,
            f"session {total.session_number} has two sums",
        )
        survivors = total.receipt.survivors
        expected = zeros(self._parameters.dimension, self._parameters.modulus)
        for name in survivors:
            number = self._names.index(name)
            expected[number] = self._parameters.modulus - 1
        self._must(
            len(survivors) == total.inputs and np.array_equal(expected, total.residues),
            f"the sum of session {total.session_number} is not that of {survivors}",
        )

    # --- at the end -------------------------------------------------------------------

    def check_charges(self, name: str, charges: Mapping[bytes, ChargeState]) -> None:
        """Compare a client's own ledger with what has left it and what was released."""
        for who, session_id, what in self._said:
            if who == name and what is UploadChunk:
                self._must(
                    session_id in charges, f"{name} has no charge for what has left it"
                )
        for total in self.sums.values():
            if name in total.receipt.survivors:
                state = charges.get(total.receipt.descriptor.session_id)
                self._must(
                    state in {ChargeState.BOUND, ChargeState.KEPT},
                    f"{name} is in the sum of session {total.session_number}, and its "
                    f"charge is {state}",
                )

    def check_contributions(self, *, everybody: bool) -> None:
        """Compare what clients were told with what the operator was given.

        Args:
            everybody: Every client is in every sum, and has it.
        """
        if everybody:
            told = {(name, given.session_number) for name, given in self._told}
            for number in self.sums:
                without = {name for name in self._names if (name, number) not in told}
                self._must(not without, f"{without} have no sum of session {number}")
        for name, given in self._told:
            total = self.sums.get(given.session_number)
            if total is None and self._has_forgotten:
                continue  # clients were told, and the operator was about to be
            self._must(
                total is not None
                and total.inputs == given.inputs
                and name in total.receipt.survivors
                and given.values is not None
                and np.array_equal(total.values, given.values),
                f"{name} was told another sum of session {given.session_number}",
            )


def _senders(journal: _Journal, which: Round) -> set[str]:
    """Return who has answered in a round."""
    return {sender for of, sender in journal.taken if of.ROUND is which}


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
