"""A connection that judges every offer before the client sees it.

Rule 1: what a policy of plain numbers cannot judge (the epsilon of a mechanism, the
        length of an input) is judged here, before a key is made.
Rule 2: every other call passes through unchanged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from secagg.errors import ServiceError
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

__all__ = ["ForwardingConnection", "OfferCheckingConnection"]


class ForwardingConnection:
    """Passes every call on; a base for connections that change one of them."""

    def __init__(self, connection: AggregatorConnection) -> None:
        self._connection = connection

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """See `AggregatorConnection.offer`."""
        return await self._connection.offer(task_id, after_session=after_session)

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """See `AggregatorConnection.advertise`."""
        await self._connection.advertise(session_id, advert)

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """See `AggregatorConnection.share`."""
        await self._connection.share(session_id, bundles)

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """See `AggregatorConnection.reveal`."""
        await self._connection.reveal(session_id, shares)

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """See `AggregatorConnection.upload_status`."""
        return await self._connection.upload_status(session_id)

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
        return await self._connection.upload_chunk(
            session_id, offset=offset, total_size=total_size, digest=digest, data=data
        )

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """See `AggregatorConnection.update`."""
        return await self._connection.update(session_id, after=after)

    def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """See `AggregatorConnection.watch`."""
        return self._connection.watch(session_id, after=after)

    async def fetch(
        self, session_id: bytes, *, blob: Blob, offset: int, max_bytes: int
    ) -> BlobChunk:
        """See `AggregatorConnection.fetch`."""
        return await self._connection.fetch(
            session_id, blob=blob, offset=offset, max_bytes=max_bytes
        )


class OfferCheckingConnection(ForwardingConnection):
    """Judges offers.

    Args:
        connection: Where calls go.
        check: Raises an error of `secagg.errors` for an offer that is not acceptable;
            called on a thread.

    Attributes:
        has_answered: Whether the aggregator has answered any question for an offer.
        failure: Why the last question for an offer was not answered; None when it was.
        session_id: The session that the client last asked about; b"" before.
    """

    def __init__(
        self,
        connection: AggregatorConnection,
        check: Callable[[SessionDescriptor], None],
    ) -> None:
        super().__init__(connection)
        self._check = check
        self.has_answered = False
        self.failure: ServiceError | None = None
        self.session_id = b""

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """Return an offer only if it is acceptable."""
        try:
            offered = await super().offer(task_id, after_session=after_session)
        except ServiceError as error:
            self.failure = error
            raise
        self.has_answered, self.failure = True, None
        if isinstance(offered, SessionDescriptor):
            offered.parameters.validate()
            await asyncio.to_thread(self._check, offered)
        return offered

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """Take note of the session."""
        self.session_id = session_id
        return await super().update(session_id, after=after)

    def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """Take note of the session."""
        self.session_id = session_id
        return super().watch(session_id, after=after)
