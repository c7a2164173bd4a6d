"""What clients of one session may read: updates, whole or in pieces.

Rule 1: the roster is readable from round 3, a client's own delivery from round 4, a
        quorum from round 6, all to the end of the session: a client that lost what it
        had read goes on.
Rule 2: at the end everything is let go of.  Sealed bundles are most of a session's
        memory.
Rule 3: an update is put together and hashed once, not for every piece of it.  Who asks
        for a delivery byte by byte makes no work but its own bytes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.messages import Delivery, Envelope, Message, Quorum, Roster
from secagg.protocol import server
from secagg.wire.calls import Blob, BlobChunk, FetchChunk
from secagg.wire.codec import refuse

__all__ = ["Readable", "piece_of", "session_is_over"]

# Clients fetch pieces side by side.  The largest delivery, of 65 535 clients on the
# complete graph, has 6.3 MB.
KEPT_DELIVERIES: Final = 8

_OBJECTS: Final[Mapping[Blob, type[Message]]] = {
    Blob.ROSTER: Roster,
    Blob.DELIVERY: Delivery,
    Blob.QUORUM: Quorum,
}


class Readable:
    """The large updates of one session."""

    def __init__(self) -> None:
        self._opened_by: dict[Blob, server.ServerState] = {}
        self._deliveries: OrderedDict[str, Envelope] = OrderedDict()

    def enter(self, state: server.ServerState) -> None:
        """Keep what a state opens for readers."""
        match state:
            case server.ShareKeys():
                self._opened_by[Blob.ROSTER] = state
            case server.MaskedInputCollection():
                self._opened_by[Blob.DELIVERY] = state
            case server.Unmasking():
                self._opened_by[Blob.QUORUM] = state
        if server.is_over(state):
            self._opened_by.clear()
            self._deliveries.clear()

    def update_for(self, state: server.ServerState, identity: str) -> Envelope | None:
        """Return what `server.update_for` returns, without making it again."""
        # All other updates are made once for everybody, or are of a few bytes.
        if isinstance(state, server.MaskedInputCollection):
            return self._delivery(state, identity)
        return server.update_for(state, identity)

    def _delivery(
        self, state: server.MaskedInputCollection, identity: str
    ) -> Envelope | None:
        # What is delivered to whom is fixed when round 4 opens.
        update = self._deliveries.pop(identity, None)
        if update is None:
            update = server.update_for(state, identity)
            if update is None or update.kind is not Delivery:
                return update
            if len(self._deliveries) >= KEPT_DELIVERIES:
                self._deliveries.popitem(last=False)  # asked for longest ago
        self._deliveries[identity] = update
        return update

    def piece(
        self, state: server.ServerState, identity: str, request: FetchChunk
    ) -> BlobChunk:
        """Return a piece of the roster, of the client's own delivery, or of the quorum.

        Args:
            state: The session, as clients may see it.
            identity: Who reads.
            request: Which piece, of one of these three.

        Raises:
            RemoteProtocolError: UNEXPECTED_MESSAGE before the round that the object
                opens; SESSION_OVER for a client that is not in it, and after the end;
                BAD_ENCODING beyond the object's end.
        """
        if server.is_over(state):
            raise session_is_over(identity)
        opened_by = self._opened_by.get(request.blob)
        # What was entered but is not durable yet does not exist for clients.
        if opened_by is None or state.ROUND < opened_by.ROUND:
            raise RemoteProtocolError(
                "the round that this object opens is not open yet",
                code=ErrorCode.UNEXPECTED_MESSAGE,
                sender=identity,
                next_step="Ask for the present update.",
            )
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


def session_is_over(identity: str) -> RemoteProtocolError:
    """Return the refusal that leads a client to the next session."""
    return RemoteProtocolError(
        f"the session is over, or goes on without {identity!r}",
        code=ErrorCode.SESSION_OVER,
        sender=identity,
        next_step="Fetch the session's last update, then ask for the next offer.",
    )
