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
from secagg.runtime.connection import AggregatorConnection, UploadStatus
from secagg.testing.relayed_connection import RelayedConnection

__all__ = ["Fault", "LossyConnection"]

_Result = TypeVar("_Result")


class Fault(Enum):
    """What happens to one call."""

    NONE = auto()
    LOSE_REQUEST = auto()
    LOSE_ANSWER = auto()
    REPEAT = auto()


class LossyConnection(RelayedConnection):
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
        def reach() -> AggregatorConnection:
            connection = find()
            if connection is None:
                raise _unreachable()
            return connection

        super().__init__(reach)
        self._fault_of = fault_of
        self._calls: dict[str, int] = defaultdict(int)
        self._messages: dict[tuple[bytes, str], set[bytes]] = defaultdict(set)

    def distinct_messages(self) -> dict[tuple[bytes, str], int]:
        """Return how many different messages left, by session and method."""
        return {key: len(contents) for key, contents in self._messages.items()}

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """Note and send."""
        self._messages[session_id, "advertise"].add(advert)
        await super().advertise(session_id, advert)

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """Note and send."""
        self._messages[session_id, "share"].add(bundles)
        await super().share(session_id, bundles)

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """Note and send."""
        self._messages[session_id, "reveal"].add(shares)
        await super().reveal(session_id, shares)

    async def upload_chunk(
        self,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """Note and send."""
        self._messages[session_id, "upload"].add(digest)
        return await super().upload_chunk(
            session_id, offset=offset, total_size=total_size, digest=digest, data=data
        )

    async def relay(
        self, method: str, call: Callable[[], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        """Make the call as the script says."""
        fault = self._next_fault(method)
        if fault is Fault.LOSE_REQUEST:
            raise _unreachable()
        if fault is Fault.REPEAT:
            await call()
        answer = await call()
        if fault is Fault.LOSE_ANSWER:
            raise _unreachable()
        return answer

    async def relay_stream(
        self, method: str, open_stream: Callable[[], AsyncIterator[ServerUpdate]]
    ) -> AsyncIterator[ServerUpdate]:
        """Open the stream as the script says; a lost answer breaks it."""
        fault = self._next_fault(method)
        if fault is Fault.LOSE_REQUEST:
            raise _unreachable()
        async for update in open_stream():
            if fault is Fault.LOSE_ANSWER:
                raise _unreachable()
            yield update

    def _next_fault(self, method: str) -> Fault:
        number = self._calls[method]
        self._calls[method] += 1
        return self._fault_of(method, number)


def _unreachable() -> ServiceError:
    return ServiceError(
        "the aggregator cannot be reached",
        code=ErrorCode.UNREACHABLE,
        next_step="Check address and network.",
    )
