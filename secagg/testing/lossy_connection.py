"""A link that loses, repeats and records what a client sends.

Rule 1: what is lost is decided by a script, never by chance: a failing test fails
        again.
Rule 2: every message that leaves a client is noted, also when it is lost on the way;
        `distinct_messages` is what an adversary at the other end could have seen.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import Enum, auto
from typing import Any, TypeVar

from secagg.errors import ErrorCode, ServiceError
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

__all__ = ["Fault", "LossyConnection"]

_Result = TypeVar("_Result")
_Call = Callable[[], Coroutine[Any, Any, _Result]]


class Fault(Enum):
    """What happens to one call."""

    NONE = auto()
    LOSE_REQUEST = auto()
    LOSE_ANSWER = auto()
    REPEAT = auto()


class LossyConnection:
    """An `AggregatorConnection` over a link with scripted faults.

    Args:
        find: Returns the connection to use, or None while nobody listens.
        fault_of: Says what happens to the n-th call (from 0) of a method.
    """

    def __init__(
        self,
        find: Callable[[], AggregatorConnection | None],
        fault_of: Callable[[str, int], Fault] = lambda _method, _number: Fault.NONE,
    ) -> None:
        self._find = find
        self._fault_of = fault_of
        self._calls: dict[str, int] = defaultdict(int)
        self._messages: dict[tuple[bytes, str], set[bytes]] = defaultdict(set)

    def distinct_messages(self) -> dict[tuple[bytes, str], int]:
        """Return how many different messages left, by session and method."""
        return {key: len(contents) for key, contents in self._messages.items()}

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """See `AggregatorConnection.offer`."""
        return await self._call(
            "offer",
            lambda: self._there().offer(task_id, after_session=after_session),
        )

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """See `AggregatorConnection.advertise`."""
        self._messages[session_id, "advertise"].add(advert)
        await self._call(
            "advertise", lambda: self._there().advertise(session_id, advert)
        )

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """See `AggregatorConnection.share`."""
        self._messages[session_id, "share"].add(bundles)
        await self._call("share", lambda: self._there().share(session_id, bundles))

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """See `AggregatorConnection.upload_status`."""
        return await self._call(
            "upload_status", lambda: self._there().upload_status(session_id)
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
        self._messages[session_id, "upload"].add(digest)
        return await self._call(
            "upload_chunk",
            lambda: self._there().upload_chunk(
                session_id,
                offset=offset,
                total_size=total_size,
                digest=digest,
                data=data,
            ),
        )

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """See `AggregatorConnection.reveal`."""
        self._messages[session_id, "reveal"].add(shares)
        await self._call("reveal", lambda: self._there().reveal(session_id, shares))

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """See `AggregatorConnection.update`."""
        return await self._call(
            "update", lambda: self._there().update(session_id, after=after)
        )

    async def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """See `AggregatorConnection.watch`; a lost answer breaks the stream."""
        fault = self._next_fault("watch")
        if fault is Fault.LOSE_REQUEST:
            raise _unreachable()
        async for update in self._there().watch(session_id, after=after):
            if fault is Fault.LOSE_ANSWER:
                raise _unreachable()
            yield update

    async def fetch(
        self, session_id: bytes, *, blob: Blob, offset: int, max_bytes: int
    ) -> BlobChunk:
        """See `AggregatorConnection.fetch`."""
        return await self._call(
            "fetch",
            lambda: self._there().fetch(
                session_id, blob=blob, offset=offset, max_bytes=max_bytes
            ),
        )

    def _there(self) -> AggregatorConnection:
        connection = self._find()
        if connection is None:
            raise _unreachable()
        return connection

    def _next_fault(self, method: str) -> Fault:
        number = self._calls[method]
        self._calls[method] += 1
        return self._fault_of(method, number)

    async def _call(self, method: str, call: _Call[_Result]) -> _Result:
        fault = self._next_fault(method)
        if fault is Fault.LOSE_REQUEST:
            raise _unreachable()
        if fault is Fault.REPEAT:
            await call()
        answer = await call()
        if fault is Fault.LOSE_ANSWER:
            raise _unreachable()
        return answer


def _unreachable() -> ServiceError:
    return ServiceError(
        "the aggregator cannot be reached",
        code=ErrorCode.UNREACHABLE,
        next_step="Check address and network.",
    )
