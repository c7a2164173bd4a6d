"""What must hold of the clients of one run, and of the disk of each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from secagg.client.contribution import Contribution
from secagg.protocol.events import InputBound, Received
from secagg.protocol.messages import EdgesPublished, Roster, Round, Survivors
from secagg.server.task.outputs import ReleasedSum
from secagg.storage.budget_ledger import ChargeState, settled
from secagg.storage.change import Change
from secagg.storage.journal import decode_client_event
from secagg.wire.calls import (
    AdvertiseKeys,
    ChooseEdges,
    Request,
    RevealShares,
    SendMessage,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    UploadStatus,
)
from secagg_testing.world.journals import Journal
from secagg_testing.world.notes import Notes, short
from secagg_testing.world.tasks import prepared_of
from secagg_testing.world.watched import Watched

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


class ClientsSeen:
    """What clients store, send and receive.

    Args:
        notes: What did not hold goes there.
        tasks: The task of each, by the client's name.
        journals: What the servers' disk has, or has had, of each session.

    Attributes:
        told: The results that they received for their inputs.
    """

    def __init__(
        self,
        notes: Notes,
        tasks: Mapping[str, Watched],
        journals: Mapping[bytes, Journal],
    ) -> None:
        self.told: Final[list[tuple[str, Contribution]]] = []
        self._notes = notes
        self._task_of = tasks
        self._journals = journals
        # By name and session.
        self._known: dict[tuple[str, bytes], set[object]] = defaultdict(set)
        self._charged: dict[tuple[str, bytes], ChargeState] = {}
        self._said: dict[tuple[str, bytes, object], bytes] = {}
        # How far a process of the client has heard that its uploads have come.
        self._heard: dict[tuple[str, bytes], int] = defaultdict(int)

    def committed(self, name: str, session_id: bytes, change: Change) -> None:
        """Check a commit of one client."""
        known = self._known[name, session_id]
        if change.create is not None:
            self._notes.must(not known, f"{name} begins a session twice")
            known.add(_BEGUN)
        for record in change.records:
            match decode_client_event(record):
                case Received(envelope):
                    known.add(envelope.kind)
                case InputBound(digest):
                    self._report(name, session_id, "input", digest)
                    known.add(_BOUND)
        if change.reseal is not None:
            known.add(_ANSWERED)
        if change.spend:
            known.add(_SPENT)
            self._check_rosters(name)
        if change.charge is not None:
            self._charged.setdefault((name, session_id), ChargeState.BOUND)
            self._notes.must(
                self.charged(name) <= change.charge.allowed,
                f"{name} is charged beyond its budget",
            )
        if change.end is not None:
            known.add(_ENDED)
        key = (name, session_id)
        if change.settle is not None and key in self._charged:
            self._charged[key] = settled(self._charged[key], change.settle.state)

    def _check_rosters(self, name: str) -> None:
        """Check that a client joined no more rings than its delta counts."""
        noised = prepared_of(self._task_of[name].task.kind).noised
        most = None if noised is None else noised.max_rosters
        seen = sum(
            _SPENT in known for (who, _), known in self._known.items() if who == name
        )
        self._notes.must(
            most is None or seen <= most,
            f"{name} has seen {seen} rings, and its delta counts {most}",
        )

    def charged(self, name: str) -> int:
        """Return how many sessions a client has paid for."""
        return sum(
            state is not ChargeState.VOID
            for (who, _), state in self._charged.items()
            if who == name
        )

    def on_sent(self, name: str, request: Request[Any]) -> None:
        """Check a message that a client sends."""
        self._task_of[name].observer.on_request(name, request)
        session_id: bytes = getattr(request, "session_id", b"")
        kind = type(request)
        self._notes.write(name, f"asks {kind.__name__} {short(session_id)}")
        self._notes.step()
        if not isinstance(request, SendMessage | UploadChunk):
            return
        known = self._known[name, session_id]
        needed = _BEFORE.get(kind, _BEGUN)
        if kind is ShareKeys and Round.CHOOSE_EDGES in self._task_of[name].rounds:
            needed = EdgesPublished
        self._notes.must(
            needed in known and _ENDED not in known,
            f"{name} sends {kind.__name__}, and its disk knows only "
            f"{sorted(map(str, known))}",
        )
        if isinstance(request, SendMessage):
            self._report(name, session_id, kind, request.message)
            return
        self._report(name, session_id, kind, request.digest)
        journal = self._journals.get(session_id)
        # What has arrived goes with its session, whose end it may not have seen.
        self._notes.must(
            (journal is not None and journal.is_over)
            or request.offset >= self._heard[name, session_id],
            f"{name} sends again what it knows to be there: from byte {request.offset} "
            f"of {self._heard[name, session_id]}",
        )
        if self._task_of[name].task.parameters.noise_block:
            self._notes.must(
                self._charged.get((name, session_id)) is ChargeState.BOUND,
                f"an input of {name} leaves without a charge",
            )

    def on_received(self, name: str, request: Request[Any], answer: object) -> None:
        """Check a message that a client receives."""
        if isinstance(answer, UploadStatus):
            key = (name, getattr(request, "session_id", b""))
            self._heard[key] = max(self._heard[key], received(answer))
        self._task_of[name].observer.on_update(name, request, answer)

    def must_repeat(self, name: str, session_id: bytes) -> None:
        """Record that a partial upload was lost."""
        self._heard[name, session_id] = 0

    def contributed(self, name: str, given: Contribution) -> None:
        """Check the result that a client received for its input."""
        self._notes.write(name, f"has the sum of session {given.session_number}")
        self._notes.must(
            given.noise is None or given.noise.is_sufficient,
            f"{name} takes a sum with too little noise",
        )
        self.told.append((name, given))

    def _report(self, name: str, session_id: bytes, what: object, said: bytes) -> None:
        before = self._said.setdefault((name, session_id, what), said)
        self._notes.must(
            before == said, f"{name} says two different things for {what} of a session"
        )

    def check_charges(
        self,
        name: str,
        charges: Mapping[bytes, ChargeState],
        sums: Iterable[ReleasedSum],
    ) -> None:
        """Compare a client's own ledger with its messages and the released sums."""
        for who, session_id, what in self._said:
            if who == name and what is UploadChunk:
                self._notes.must(
                    session_id in charges, f"{name} has no charge for what has left it"
                )
        for total in sums:
            if name in total.receipt.survivors:
                state = charges.get(total.receipt.descriptor.session_id)
                self._notes.must(
                    state in {ChargeState.BOUND, ChargeState.KEPT},
                    f"{name} is in the sum of session {total.session_number}, and "
                    f"its charge is {state}",
                )

    def has_answered(self, name: str, session_id: bytes) -> bool:
        """Whether a client has vouched for a session's sets."""
        return _ANSWERED in self._known[name, session_id]


def received(status: UploadStatus) -> int:
    """Return how much of an upload has arrived, as reported to the client.

    Of one that is complete the last byte may be asked for again, by an aggregator that
    has yet to hear that another one took it: only a chunk sets the check off.
    """
    return status.next_offset - status.complete
