"""What clients of one session may read: updates, whole or in pieces, and its end.

Rule 1: the roster is readable as soon as it is fixed, a client's own neighbourhood on
        a ring too, what it is shown of drawn neighbours when all lists are, its
        delivery when U2 is, and a quorum when there is one; all of them to the end of
        the session: a client that lost what it had read goes on.
Rule 2: at the end everything is let go of.  Sealed bundles are most of a session's
        memory.
Rule 3: an update is put together and hashed once, not for every piece of it.  Who asks
        for a delivery byte by byte makes no work but its own bytes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import (
    Aborted,
    Delivery,
    EdgesPublished,
    Envelope,
    Message,
    Quorum,
    Roster,
    Round,
)
from secagg.protocol.server import machine as server
from secagg.protocol.server.machine import ending_for
from secagg.server.session.report import SessionReceipt
from secagg.wire.calls import Blob, BlobChunk, FetchChunk, Wait
from secagg.wire.codec import refuse

# Clients fetch pieces side by side.  The largest delivery, of 65 535 clients on the
# complete graph, has 6.3 MB.
KEPT_UPDATES: Final = 8

_OBJECTS: Final[Mapping[Blob, type[Message]]] = {
    Blob.ROSTER: Roster,
    Blob.NEIGHBOURHOOD: Roster,
    Blob.EDGES: EdgesPublished,
    Blob.DELIVERY: Delivery,
    Blob.QUORUM: Quorum,
}


class ReadableUpdates:
    """The large updates of one session."""

    def __init__(self) -> None:
        self._opened_by: dict[Blob, server.ServerState] = {}
        self._kept: OrderedDict[tuple[Round, str], Envelope] = OrderedDict()

    def enter(self, state: server.ServerState) -> None:
        """Keep what a state opens for readers."""
        match state:
            case server.ChooseEdges():
                self._opened_by[Blob.ROSTER] = state
            case server.ShareKeys() if state.cohort.edges is not None:
                self._opened_by[Blob.EDGES] = state
            case server.ShareKeys():
                self._opened_by[Blob.ROSTER] = state
                self._opened_by[Blob.NEIGHBOURHOOD] = state
            case server.MaskedInputCollection():
                self._opened_by[Blob.DELIVERY] = state
            case server.Unmasking():
                self._opened_by[Blob.QUORUM] = state
        if server.is_over(state):
            self._opened_by.clear()
            self._kept.clear()

    def update_for(
        self, state: server.ServerState, identity: str, after: Round | None = None
    ) -> Envelope | None:
        """Return what `server.update_for` returns, without making it again."""
        # All other updates are made once for everybody, or are of a few bytes.
        if not isinstance(state, server.ShareKeys | server.MaskedInputCollection):
            return server.update_for(state, identity, after)
        # What is shown or delivered to whom is fixed when the round opens.
        key = state.ROUND, identity
        update = self._kept.pop(key, None)
        if update is None:
            update = server.update_for(state, identity)
            if update is None or update.kind is Aborted:
                return update
            if len(self._kept) >= KEPT_UPDATES:
                self._kept.popitem(last=False)  # asked for longest ago
        self._kept[key] = update
        return update

    def piece(
        self, state: server.ServerState, identity: str, request: FetchChunk
    ) -> BlobChunk:
        """Return a piece of the roster, or of what this client alone is shown.

        Args:
            state: The session, as clients may see it.
            identity: Who reads.
            request: Which piece, of which of these.

        Raises:
            RemoteProtocolError: UNEXPECTED_MESSAGE before the round that the object
                opens; SESSION_OVER for a client that is not in it, and after the end;
                BAD_ENCODING beyond the object's end, and for an object that no session
                of this release has.
        """
        if server.is_over(state):
            raise session_is_over(identity)
        opened_by = self._opened_by.get(request.blob)
        # What was entered but is not durable yet does not exist for clients.
        if opened_by is None or state.ROUND < opened_by.ROUND:
            raise ErrorCode.UNEXPECTED_MESSAGE.error(
                "the round that this object opens is not open yet",
                sender=identity,
                fix="Ask for the present update.",
            )
        if request.blob is Blob.ROSTER:
            whole = opened_by
            if not isinstance(
                whole, server.ChooseEdges | server.ShareKeys
            ) or not whole.cohort.has(identity):
                raise session_is_over(identity)
            return piece_of(whole.opening.data, request)
        update = self.update_for(opened_by, identity)
        if update is None or update.kind is not _OBJECTS[request.blob]:
            raise session_is_over(identity)
        return piece_of(update.data, request)


def piece_of(whole: bytes, request: FetchChunk) -> BlobChunk:
    """Cut the piece that was asked for.

    Raises:
        RemoteProtocolError: BAD_ENCODING; it begins beyond the end.
    """
    if request.offset > len(whole):
        raise refuse(f"byte {request.offset} is beyond the object's {len(whole)}")
    end = request.offset + request.max_bytes
    return BlobChunk(whole[request.offset : end], len(whole))


def session_is_over(identity: str) -> SecAggError:
    """Return the refusal that leads a client to the next session."""
    return ErrorCode.SESSION_OVER.error(
        f"the session is over, or goes on without {identity!r}",
        sender=identity,
        fix="Fetch the session's last update, then ask for the next offer.",
    )


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
