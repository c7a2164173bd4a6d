"""A client's connection to an aggregator in the same process.

Rule 1: it has the manners of the wire: calls come from one identity, and errors
        arrive as they would over gRPC, so that programs tested here work there.

It copies and serialises nothing and limits no sizes: that is the wire's business.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from secagg.errors import SecAggError
from secagg.messages import ServerUpdate
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.connection import Blob, BlobChunk, UploadStatus, Wait
from secagg.transport.front import AggregatorFront
from secagg.wire.status import seen_by_peer

__all__ = ["InMemoryConnection"]


@contextmanager
def _across() -> Iterator[None]:
    """Let errors through as a peer would see them."""
    try:
        yield
    except SecAggError as error:
        # The cause stays attached: both ends are ours, and a person debugs this.
        raise seen_by_peer(error) from error


class InMemoryConnection:
    """An `AggregatorConnection` without sockets.

    Attributes:
        identity: As whom the calls are made.
    """

    def __init__(self, front: AggregatorFront, identity: str) -> None:
        self._front = front
        self.identity: Final = identity

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """See `AggregatorConnection.offer`."""
        with _across():
            return await self._front.offer(
                self.identity, task_id, after_session=after_session
            )

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """See `AggregatorConnection.advertise`."""
        with _across():
            await self._front.advertise(self.identity, session_id, advert)

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """See `AggregatorConnection.share`."""
        with _across():
            await self._front.share(self.identity, session_id, bundles)

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """See `AggregatorConnection.upload_status`."""
        with _across():
            return await self._front.upload_status(self.identity, session_id)

    async def upload_chunk(
        self,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """See `AggregatorConnection.upload_chunk`."""
        with _across():
            return await self._front.upload_chunk(
                self.identity,
                session_id,
                offset=offset,
                total_size=total_size,
                digest=digest,
                data=data,
            )

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """See `AggregatorConnection.reveal`."""
        with _across():
            await self._front.reveal(self.identity, session_id, shares)

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """See `AggregatorConnection.update`."""
        with _across():
            return await self._front.update(self.identity, session_id, after=after)

    async def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """See `AggregatorConnection.watch`."""
        with _across():
            async for update in self._front.watch(
                self.identity, session_id, after=after
            ):
                yield update

    async def fetch(
        self, session_id: bytes, *, blob: Blob, offset: int, max_bytes: int
    ) -> BlobChunk:
        """See `AggregatorConnection.fetch`."""
        with _across():
            return await self._front.fetch(
                self.identity,
                session_id,
                blob=blob,
                offset=offset,
                max_bytes=max_bytes,
            )

    async def close(self) -> None:
        """Do nothing; there is nothing to release."""
