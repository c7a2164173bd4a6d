"""What a client may ask of an aggregator, apart from any transport.

Two interfaces say the same thing from its two ends: `AggregatorConnection` is what
a client holds, `AggregatorFront` is what stands behind a transport and is told, as
`identity`, whom that transport has authenticated.  `secagg.transport` joins them.

Rule 1: every call is idempotent.  Repeating one with the same bytes is a no-op with
        the same answer; other bytes are a contradiction and are refused.
Rule 2: no call waits for other clients.  Whoever must wait gets `Wait`, or watches.
Rule 3: errors are those of `secagg.errors` and keep their class and number on the
        way through any transport.

It moves no bytes and knows no gRPC.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Protocol

from secagg.messages import ServerUpdate
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round

__all__ = [
    "AggregatorConnection",
    "AggregatorFront",
    "Blob",
    "BlobChunk",
    "UploadStatus",
    "Wait",
]


@unique
class Blob(IntEnum):
    """Which large object of a session is read.  Numbers are those on the wire."""

    PAYLOAD = 1
    SUM = 2


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing yet.

    Attributes:
        retry_after_seconds: When asking again may help; more than 0.
    """

    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class UploadStatus:
    """How far an upload has come.

    Attributes:
        next_offset: Bytes that lie durably at the aggregator; send from here on.
        complete: Whether the whole upload was received, verified and recorded.
    """

    next_offset: int
    complete: bool


@dataclass(frozen=True, slots=True)
class BlobChunk:
    """A piece of a large object.

    Attributes:
        data: The bytes from the offset asked for; b"" exactly at the end.
        total_size: Bytes of the whole object.
    """

    data: bytes = field(repr=False)
    total_size: int


class AggregatorConnection(Protocol):
    """An authenticated client's connection to one aggregator.

    Every method raises `ServiceError` for the machinery in between (UNREACHABLE and
    OVERLOADED are worth another try), `RemoteProtocolError` when the aggregator
    refused the message or answered against the protocol, `SessionAbortedError` when
    the session is over.
    """

    @property
    def identity(self) -> str:
        """The name under which the aggregator knows this client."""

    async def offer(self, task_id: str, after_session: int) -> SessionDescriptor | Wait:
        """Ask for a session of a task with a number above `after_session` (0: any)."""

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """Round 0: send the canonical advert."""

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """Round 1: send the sealed bundles, one per neighbour."""

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """Round 4: send the revealed shares."""

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """Ask from where to send, before the first chunk and after every break."""

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
            session_id: 32 bytes.
            offset: Where `data` belongs; at most the `next_offset` last returned.
            total_size: Bytes of the whole packed vector; the same in every chunk.
            digest: SHA-256 of the whole packed vector; the same in every chunk.
            data: At most 1 MiB.
        """

    async def update(
        self, session_id: bytes, after: Round | None
    ) -> ServerUpdate | Wait:
        """Fetch what opens the first round after `after` that concerns this client.

        None asks for the first update of all.
        """

    def watch(
        self, session_id: bytes, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """Receive the same updates as `update`, as they come, to the session's end."""

    async def fetch(
        self, session_id: bytes, what: Blob, *, offset: int, max_bytes: int
    ) -> BlobChunk:
        """Read at most `max_bytes` (at most 1 MiB) of a large object."""

    async def close(self) -> None:
        """Release the connection; harmless when repeated."""


class AggregatorFront(Protocol):
    """What a transport hands authenticated calls to; `Aggregator` is one.

    The methods are those of `AggregatorConnection`, told who is calling.  They may
    raise anything of `secagg.errors`; whatever else escapes is a fault of ours and
    reaches the client as INTERNAL, without its text.
    """

    async def offer(
        self, identity: str, task_id: str, after_session: int
    ) -> SessionDescriptor | Wait:
        """See `AggregatorConnection.offer`."""

    async def advertise(self, identity: str, session_id: bytes, advert: bytes) -> None:
        """See `AggregatorConnection.advertise`."""

    async def share(self, identity: str, session_id: bytes, bundles: bytes) -> None:
        """See `AggregatorConnection.share`."""

    async def reveal(self, identity: str, session_id: bytes, shares: bytes) -> None:
        """See `AggregatorConnection.reveal`."""

    async def upload_status(self, identity: str, session_id: bytes) -> UploadStatus:
        """See `AggregatorConnection.upload_status`."""

    async def upload_chunk(
        self,
        identity: str,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """See `AggregatorConnection.upload_chunk`."""

    async def update(
        self, identity: str, session_id: bytes, after: Round | None
    ) -> ServerUpdate | Wait:
        """See `AggregatorConnection.update`."""

    def watch(
        self, identity: str, session_id: bytes, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """See `AggregatorConnection.watch`."""

    async def fetch(
        self,
        identity: str,
        session_id: bytes,
        what: Blob,
        *,
        offset: int,
        max_bytes: int,
    ) -> BlobChunk:
        """See `AggregatorConnection.fetch`."""
