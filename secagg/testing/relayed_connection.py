"""A connection that passes every call on: the base of links that misbehave.

A subclass overrides `relay` and `relay_stream` and decides there what happens to a
call; it never has to know the calls.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from secagg.messages import ServerUpdate
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.connection import (
    AggregatorConnection,
    Blob,
    BlobChunk,
    UploadStatus,
    Wait,
)

__all__ = ["RelayedConnection"]

_Result = TypeVar("_Result")


class RelayedConnection:
    """An `AggregatorConnection` in front of another one.

    Args:
        find: Returns the connection behind; called for every call anew.
    """

    def __init__(self, find: Callable[[], AggregatorConnection]) -> None:
        self._find = find

    async def relay(
        self, method: str, call: Callable[[], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        """Make a call; `method` names it."""
        del method
        return await call()

    async def relay_stream(
        self, method: str, open_stream: Callable[[], AsyncIterator[ServerUpdate]]
    ) -> AsyncIterator[ServerUpdate]:
        """Open a stream; `method` names it."""
        del method
        async for update in open_stream():
            yield update

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """See `AggregatorConnection.offer`."""
        return await self.relay(
            "offer", lambda: self._find().offer(task_id, after_session=after_session)
        )

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """See `AggregatorConnection.advertise`."""
        await self.relay(
            "advertise", lambda: self._find().advertise(session_id, advert)
        )

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """See `AggregatorConnection.share`."""
        await self.relay("share", lambda: self._find().share(session_id, bundles))

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """See `AggregatorConnection.upload_status`."""
        return await self.relay(
            "upload_status", lambda: self._find().upload_status(session_id)
        )

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
        return await self.relay(
            "upload_chunk",
            lambda: self._find().upload_chunk(
                session_id,
                offset=offset,
                total_size=total_size,
                digest=digest,
                data=data,
            ),
        )

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """See `AggregatorConnection.reveal`."""
        await self.relay("reveal", lambda: self._find().reveal(session_id, shares))

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """See `AggregatorConnection.update`."""
        return await self.relay(
            "update", lambda: self._find().update(session_id, after=after)
        )

    async def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """See `AggregatorConnection.watch`."""
        async for update in self.relay_stream(
            "watch", lambda: self._find().watch(session_id, after=after)
        ):
            yield update

    async def fetch(
        self, session_id: bytes, *, blob: Blob, offset: int, max_bytes: int
    ) -> BlobChunk:
        """See `AggregatorConnection.fetch`."""
        return await self.relay(
            "fetch",
            lambda: self._find().fetch(
                session_id, blob=blob, offset=offset, max_bytes=max_bytes
            ),
        )
