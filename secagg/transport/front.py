"""What stands behind every transport: the aggregator, told who is calling.

The methods are those of `secagg.runtime.connection.AggregatorConnection` with one
argument more, the identity that the transport has authenticated.  They may raise
anything of `secagg.errors`; whatever else escapes is a fault of ours and reaches the
client as INTERNAL, without its text.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from secagg.messages import ServerUpdate
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.connection import Blob, BlobChunk, UploadStatus, Wait

__all__ = ["AggregatorFront"]


class AggregatorFront(Protocol):
    """What a transport hands authenticated calls to; `Aggregator` is one."""

    async def offer(
        self, identity: str, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """Answer `AggregatorConnection.offer`."""
        ...

    async def advertise(self, identity: str, session_id: bytes, advert: bytes) -> None:
        """Answer `AggregatorConnection.advertise`."""
        ...

    async def share(self, identity: str, session_id: bytes, bundles: bytes) -> None:
        """Answer `AggregatorConnection.share`."""
        ...

    async def upload_status(self, identity: str, session_id: bytes) -> UploadStatus:
        """Answer `AggregatorConnection.upload_status`."""
        ...

    async def upload_chunk(  # noqa: PLR0913 - one argument per field of the chunk
        self,
        identity: str,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """Answer `AggregatorConnection.upload_chunk`."""
        ...

    async def reveal(self, identity: str, session_id: bytes, shares: bytes) -> None:
        """Answer `AggregatorConnection.reveal`."""
        ...

    async def update(
        self, identity: str, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """Answer `AggregatorConnection.update`."""
        ...

    def watch(
        self, identity: str, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """Answer `AggregatorConnection.watch`."""
        ...

    async def fetch(
        self,
        identity: str,
        session_id: bytes,
        *,
        blob: Blob,
        offset: int,
        max_bytes: int,
    ) -> BlobChunk:
        """Answer `AggregatorConnection.fetch`."""
        ...
