"""A session that is over, as an earlier process left it."""

from dataclasses import dataclass

from secagg.errors import ErrorCode
from secagg.messages import ServerUpdate, SessionAborted, SumReleased
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.receipt import SessionReceipt

__all__ = ["EndedSession"]


@dataclass(frozen=True, slots=True)
class EndedSession:
    """What clients may still ask about a session that is over.

    Attributes:
        stored: Its receipt.
    """

    stored: SessionReceipt

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it was offered."""
        return self.stored.descriptor

    def update_for(self, identity: str, after: Round | None) -> ServerUpdate | None:
        """Return how the session ended, for those who took part."""
        if after is Round.FINISHED:
            return None
        outcome = self.stored.outcome
        if isinstance(outcome, SumReleased) and identity not in self.stored.members:
            return SessionAborted(
                ErrorCode.SESSION_OVER, "the roster was fixed without this client"
            )
        return outcome

    def untold(self) -> frozenset[str]:
        """Return nobody: who has been told is not stored."""
        return frozenset()
