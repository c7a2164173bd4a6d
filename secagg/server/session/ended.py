"""A session that is over, as another process left it."""

from typing import Final

from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope, Round
from secagg.protocol.server.machine import ending_for
from secagg.server.session.receipt import SessionReceipt
from secagg.server.session.updates import session_is_over
from secagg.wire.calls import BlobChunk, FetchChunk, Wait


class EndedSession:
    """What clients may still ask about a session that is over.

    Args:
        receipt: What was stored of it.

    Attributes:
        receipt: The same.
    """

    def __init__(self, receipt: SessionReceipt) -> None:
        self.receipt: Final = receipt
        self._told: set[str] = set()

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it was offered."""
        return self.receipt.descriptor

    def update_for(self, identity: str, after: Round | None) -> Envelope | None:
        """Return how the session ended, as this client is told."""
        if after is Round.FINISHED:
            return None
        self.tell(identity)
        survivors = frozenset(self.receipt.survivors)
        if self.receipt.was_restored:
            # Nobody knows whose input was summed: whoever asks counts as a survivor.
            survivors |= {identity}
        return Envelope.of(ending_for(self.receipt.outcome, survivors, identity))

    def wait_of(self, _identity: str, retry_after_seconds: float) -> Wait:
        """Return what a client is told that knows the end already."""
        return Wait(retry_after_seconds)

    def is_member(self, identity: str) -> bool:
        """Whether a client was in the roster."""
        return identity in self.receipt.members

    def read(self, identity: str, _: FetchChunk) -> BlobChunk:
        """Refuse to give pieces of what the session needed while it ran.

        Raises:
            RemoteProtocolError: SESSION_OVER.
        """
        raise session_is_over(identity)

    def tell(self, identity: str) -> None:
        """Note that a client knows how the session ended."""
        if identity in self.receipt.finishers:
            self._told.add(identity)

    def untold(self) -> frozenset[str]:
        """Return who took part to the end and was not told by this process."""
        return frozenset(self.receipt.finishers) - self._told
