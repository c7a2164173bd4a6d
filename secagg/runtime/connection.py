"""What a client may ask of an aggregator: the seam between runtime and transport.

Rule 1: every call is unary, idempotent and safe to repeat.  A lost answer is asked
        for again; nothing happens twice.
Rule 2: the transport knows who calls.  No method takes the caller's name, so that
        nobody can speak for somebody else.
Rule 3: whatever fails arrives as one of the classes of `secagg.errors`, with its code:
        `RemoteProtocolError` for a refused message, `SessionAbortedError` when the
        session is over, `ServiceError` for everything around the protocol.

Messages are the canonical bytes of `secagg.messages`; nothing here parses them.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Final, Protocol

from secagg.messages import (
    RosterPublished,
    ServerUpdate,
    SessionAborted,
    SharesDelivered,
    SumReleased,
    UnmaskRequested,
)
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round

__all__ = [
    "MAX_CHUNK_BYTES",
    "AggregatorConnection",
    "Blob",
    "BlobChunk",
    "UploadStatus",
    "Wait",
    "opened_round",
]

# Below 64 KiB the cost per message dominates; above, one slow link holds much memory.
MAX_CHUNK_BYTES: Final = 1 << 20


@unique
class Blob(IntEnum):
    """Large bytes that a client fetches in chunks.  Numbers are those on the wire."""

    PAYLOAD = 1
    SUM = 2


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing for this client yet.

    Attributes:
        retry_after_seconds: When asking again makes sense.
    """

    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class UploadStatus:
    """How far the upload of one client has come.

    Attributes:
        next_offset: The byte that the next chunk must start with.
        complete: Whether the upload is stored, checked and part of the session.
    """

    next_offset: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class BlobChunk:
    """A piece of a blob.

    Attributes:
        data: The bytes from the offset that was asked for; empty behind the end.
        total_size: Bytes of the whole blob.
    """

    data: bytes = field(repr=False)
    total_size: int


class AggregatorConnection(Protocol):
    """One authenticated client's way to one aggregator."""

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """Ask for a session of a task that this client may still join.

        Args:
            task_id: The task.
            after_session: Highest session number that this client has seen; 0 for
                none.  Sessions up to this number are not offered.
        """
        ...

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """Round 0: send the canonical bytes of an `Advert`."""
        ...

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """Round 1: send the sealed bundles for all neighbours."""
        ...

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """Round 2: ask where the upload goes on."""
        ...

    async def upload_chunk(
        self,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """Round 2: send one chunk of the packed masked input.

        Args:
            session_id: The session.
            offset: Position of the chunk's first byte.
            total_size: Bytes of the whole packed vector.
            digest: SHA-256 of the whole packed vector; the same in every chunk.
            data: At most `MAX_CHUNK_BYTES` bytes.

        Returns:
            Where the next chunk starts, or that the upload is complete.
        """
        ...

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """Round 4: send one share per dealer."""
        ...

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """Ask for the message that opens the first round after `after`."""
        ...

    def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """Receive all further updates as they come; ends with the session."""
        ...

    async def fetch(
        self, session_id: bytes, *, blob: Blob, offset: int, max_bytes: int
    ) -> BlobChunk:
        """Read a piece of the session's payload or of its released sum."""
        ...


_OPENS: Final[dict[type[ServerUpdate], Round]] = {
    RosterPublished: Round.SHARE_KEYS,
    SharesDelivered: Round.MASKED_INPUT_COLLECTION,
    UnmaskRequested: Round.UNMASKING,
    SumReleased: Round.FINISHED,
    SessionAborted: Round.FINISHED,
}


def opened_round(update: ServerUpdate) -> Round:
    """Return the round that an update opens."""
    return _OPENS[type(update)]
