"""What clients of one session may read: updates, whole or in pieces, and its end.

Rule 1: what is fixed stays readable to the end of the session. This holds for the
        roster, a client's own neighbourhood on a ring, its part of drawn neighbours,
        its delivery and a quorum. A client that lost what it had read can continue.
Rule 2: all updates are deleted at the end.  Sealed bundles are most of a session's
        memory.
Rule 3: an update is encoded and hashed once, not for every piece.  A client that reads
        its delivery byte by byte causes no other work.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
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
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.handlers import check_view
from secagg.protocol.server.machine import ending_for
from secagg.server.session.report import SessionReceipt
from secagg.wire.calls import Blob, BlobChunk, FetchChunk, Wait, refuse

# Clients fetch pieces concurrently.  The largest delivery, of 65 535 clients on the
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
    """Keeps the large updates of one session."""

    def __init__(self) -> None:
        self._opened_by: dict[Blob, server.ServerState] = {}
        self._kept: OrderedDict[tuple[Round, str], Envelope] = OrderedDict()

    def enter(self, state: server.ServerState) -> None:
        """Keep what a state makes readable."""
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
        if server_machine.is_over(state):
            self._opened_by.clear()
            self._kept.clear()

    def update_for(
        self, state: server.ServerState, identity: str, after: Round | None = None
    ) -> Envelope | None:
        """Return the result of `machine.update_for`, without encoding it again."""
        # All other updates are encoded once for all clients, or have a few bytes.
        if not isinstance(state, server.ShareKeys | server.MaskedInputCollection):
            return server_machine.update_for(state, identity, after)
        # The content for each client is fixed when the round opens.
        key = state.ROUND, identity
        update = self._kept.pop(key, None)
        if update is None:
            update = server_machine.update_for(state, identity)
            if update is None or update.kind is Aborted:
                return update
            if len(self._kept) >= KEPT_UPDATES:
                self._kept.popitem(last=False)  # the least recently read one
        self._kept[key] = update
        return update

    def piece(
        self, state: server.ServerState, identity: str, request: FetchChunk
    ) -> BlobChunk:
        """Return a piece of the roster, or of a client's own object.

        Args:
            state: The session, as clients may see it.
            identity: The client.
            request: The object and the piece.

        Raises:
            RemoteProtocolError: UNEXPECTED_MESSAGE before the round that the object
                opens; SESSION_OVER for a client that is not in it, and after the end;
                BAD_ENCODING beyond the object's end, and for an object that no session
                of this release has.
        """
        if server_machine.is_over(state):
            raise session_is_over(identity)
        opened_by = self._opened_by.get(request.blob)
        # A state that is not durable yet does not exist for clients.
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
    """Return the requested piece.

    Raises:
        RemoteProtocolError: BAD_ENCODING; the piece begins beyond the end.
    """
    if request.offset > len(whole):
        raise refuse(f"byte {request.offset} exceeds the object's {len(whole)} bytes")
    end = request.offset + request.max_bytes
    return BlobChunk(whole[request.offset : end], len(whole))


def check_uploader(state: server.ServerState, identity: str, view: bytes) -> None:
    """Refuse a client that cannot send an input now, before any byte is read (R5.3-14).

    Args:
        state: The session's state.
        identity: Name of the client.
        view: 32 bytes, as the client has sent them.

    Raises:
        RemoteProtocolError: VIEW_DIFFERS, of this client alone.  DEADLINE or
            UNEXPECTED_MESSAGE: no input of it is accepted now.
    """
    if isinstance(state, server.MaskedInputCollection):
        index = state.cohort.index_of.get(identity)
        if index is not None and index in state.share_holders:
            check_view(state, identity, view)
            return
    is_late = state.ROUND > Round.MASKED_INPUT_COLLECTION
    raise (ErrorCode.DEADLINE if is_late else ErrorCode.UNEXPECTED_MESSAGE).error(
        f"{identity!r} cannot send an input to this session now",
        kind=RemoteProtocolError,
        sender=identity,
        fix="Fetch the session's current update first.",
    )


def session_is_over(identity: str) -> SecAggError:
    """Return the refusal that leads a client to the next session."""
    return ErrorCode.SESSION_OVER.error(
        f"the session is over, or continues without {identity!r}",
        sender=identity,
        fix="Fetch the session's last update, then ask for the next offer.",
    )


class EndedSession:
    """Answers clients about a session that is over.

    Args:
        receipt: The stored receipt.

    Attributes:
        receipt: The stored receipt.
    """

    def __init__(self, receipt: SessionReceipt) -> None:
        self.receipt: Final = receipt
        self._notified: set[str] = set()

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it was offered."""
        return self.receipt.descriptor

    def update_for(self, identity: str, after: Round | None) -> Envelope | None:
        """Return how the session ended, for this client."""
        if after is Round.FINISHED:
            return None
        self.record_notified(identity)
        survivors = frozenset(self.receipt.survivors)
        if self.receipt.was_restored:
            # It is unknown whose input was summed: each client counts as a survivor.
            survivors |= {identity}
        return Envelope.of(ending_for(self.receipt.outcome, survivors, identity))

    def wait_answer(self, _identity: str, retry_after_seconds: float) -> Wait:
        """Return the answer for a client that knows the end already."""
        return Wait(retry_after_seconds)

    def is_member(self, identity: str) -> bool:
        """Whether a client was in the roster."""
        return identity in self.receipt.members

    def read(self, identity: str, _: FetchChunk) -> BlobChunk:
        """Refuse to read what the session needed while it ran.

        Raises:
            RemoteProtocolError: SESSION_OVER.
        """
        raise session_is_over(identity)

    def record_notified(self, identity: str) -> None:
        """Record that a client knows how the session ended."""
        if identity in self.receipt.finishers:
            self._notified.add(identity)

    def unacknowledged(self) -> frozenset[str]:
        """Return the participants of the last round that this process has not told."""
        return frozenset(self.receipt.finishers) - self._notified
