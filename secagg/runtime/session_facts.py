"""The public facts of one session on the server: who came how far, and how fast.

States of the core keep only what their round needs; what an operator and a receipt
want to know besides is gathered here while the session goes on.
"""

from secagg.messages import SessionAborted, SumReleased
from secagg.parameters import SessionDescriptor
from secagg.primitives.transcript import encode_set
from secagg.protocol import context, server
from secagg.protocol.events import (
    BundlesSent,
    InputUploaded,
    KeysAdvertised,
    ServerEvent,
    SharesRevealed,
)
from secagg.protocol.outputs import DropClient, ServerOutput
from secagg.protocol.rounds import Round
from secagg.protocol.server_states import Rostered
from secagg.runtime.progress import Dropped, SessionPhase, SessionProgress
from secagg.runtime.receipt import SessionReceipt

__all__ = ["ClientMessage", "SessionFacts"]

ClientMessage = KeysAdvertised | BundlesSent | InputUploaded | SharesRevealed

_ROUND_OF: dict[type[ServerEvent], Round] = {
    KeysAdvertised: Round.ADVERTISE_KEYS,
    BundlesSent: Round.SHARE_KEYS,
    InputUploaded: Round.MASKED_INPUT_COLLECTION,
    SharesRevealed: Round.UNMASKING,
}


class SessionFacts:
    """Gathers the facts of one session.

    Args:
        descriptor: The session.
    """

    def __init__(self, descriptor: SessionDescriptor) -> None:
        self._descriptor = descriptor
        self._session_id = descriptor.session_id
        self._accepted: dict[Round, set[str]] = {r: set() for r in Round}
        self._contexts: dict[str, bytes] = {}
        self._seconds: dict[str, float] = {}
        self._told: set[str] = set()
        self._members: tuple[str, ...] = ()
        self._sharers = 0
        self.dropped: list[Dropped] = []

    def is_new(self, event: ClientMessage) -> bool:
        """Whether nothing of this kind was accepted from the sender before."""
        return event.sender not in self._accepted[_ROUND_OF[type(event)]]

    def has_uploaded(self, identity: str) -> bool:
        """Whether a client's masked input is part of the session."""
        return identity in self._accepted[Round.MASKED_INPUT_COLLECTION]

    def accept(self, event: ClientMessage) -> None:
        """Note that a client's message was accepted."""
        self._accepted[_ROUND_OF[type(event)]].add(event.sender)

    def enter(
        self,
        before: server.ServerState,
        state: server.ServerState,
        outputs: tuple[ServerOutput, ...],
        *,
        seconds: float,
    ) -> tuple[Dropped, ...]:
        """Note a change of state; return who was lost by it.

        Args:
            before: The state that was left.
            state: The state that was entered.
            outputs: What the state machine put out on the way.
            seconds: How long the round was open.
        """
        closed = server.round_of(before)
        name = "SUMMING" if isinstance(before, server.Summing) else closed.name
        self._seconds[name] = round(seconds, 3)
        if isinstance(state, Rostered):
            self._members = tuple(a.identity for a in state.roster.adverts)
            self._contexts["ctx1"] = state.ctx1
        if isinstance(state, server.MaskedInputCollection):
            self._sharers = len(state.sharers)
            self._contexts["ctx2"] = state.ctx2
        if isinstance(state, server.Unmasking):
            survivors = encode_set(state.survivors, len(state.roster))
            suite = self._descriptor.parameters.suite
            self._contexts["ctx3"] = context.unmask_context(
                state.ctx2, survivors, suite
            )
        lost = tuple(
            Dropped(output.identity, closed, output.reason.value)
            for output in outputs
            if isinstance(output, DropClient)
        )
        self.dropped.extend(lost)
        return lost

    def tell(self, identity: str) -> None:
        """Note that a client has been told how the session ended."""
        if identity in self._accepted[Round.ADVERTISE_KEYS]:
            self._told.add(identity)

    def untold(self) -> frozenset[str]:
        """Return who took part to the end and does not know yet how it ended."""
        return self._finishers() - self._told

    def _finishers(self) -> frozenset[str]:
        last = max((r for r in Round if self._accepted[r]), default=None)
        return frozenset() if last is None else frozenset(self._accepted[last])

    def progress(
        self, state: server.ServerState, *, upload_bytes: int
    ) -> SessionProgress:
        """Return where the session stands."""
        now = server.progress(state)
        phase, reason = SessionPhase.COLLECTING, ""
        if isinstance(state, server.Summing):
            phase = SessionPhase.SUMMING
        elif isinstance(state, server.Completed):
            phase = SessionPhase.COMPLETED
            reason = f"sum of {state.released.survivors} inputs released"
        elif isinstance(state, server.Aborted):
            phase, reason = SessionPhase.ABORTED, state.reason
        return SessionProgress(
            session_id=self._session_id,
            task_id=self._descriptor.task_id,
            session_number=self._descriptor.session_number,
            phase=phase,
            round=now.round,
            joined=len(self._accepted[Round.ADVERTISE_KEYS]),
            answered=now.answered,
            expected=now.expected,
            needed=now.needed,
            dropped=tuple(self.dropped),
            upload_bytes=upload_bytes,
            reason=reason,
        )

    def receipt(self, outcome: SumReleased | SessionAborted) -> SessionReceipt:
        """Return what is left of the session."""
        ctx0 = context.session_context(self._descriptor)
        return SessionReceipt(
            descriptor=self._descriptor,
            outcome=outcome,
            members=self._members,
            advertised=len(self._accepted[Round.ADVERTISE_KEYS]),
            shared=self._sharers,
            uploaded=len(self._accepted[Round.MASKED_INPUT_COLLECTION]),
            revealed=len(self._accepted[Round.UNMASKING]),
            finishers=tuple(sorted(self._finishers())),
            contexts=(ctx0, *self._contexts.values()),
            seconds=tuple(sorted(self._seconds.items())),
        )
