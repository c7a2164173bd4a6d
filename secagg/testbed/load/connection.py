"""One client's way to several aggregators of one book: to one until that is gone.

What a name with several addresses, or a balancer of connections, does in service.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from secagg.advanced import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope
from secagg.wire.calls import Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")

# One call that fails may be one too many for an aggregator that is busy.
_FAILURES_OF_ONE: Final = 3
_MAY_BE_GONE: Final = frozenset({ErrorCode.UNREACHABLE, ErrorCode.SHUTTING_DOWN})


class SpreadConnection:
    """An `AggregatorConnection` that changes its aggregator when that fails.

    Whoever calls repeats what has failed: this only sees to it that the next attempt
    goes elsewhere.

    Args:
        ways: A connection to each aggregator.
        first: Index of the one to begin with.

    Attributes:
        ways: As given.
    """

    def __init__(self, ways: Sequence[GrpcConnection], first: int) -> None:
        self.ways: Final = tuple(ways)
        self._at = first
        self._failures = 0

    @property
    def identity(self) -> str:
        """As whom the calls are made."""
        return self.ways[self._at].identity

    @property
    def aggregator(self) -> str:
        """Who answers them: all of them have one name."""
        return self.ways[self._at].aggregator

    async def meet(self) -> str:
        """See `AggregatorConnection.meet`."""
        try:
            return await self.ways[self._at].meet()
        except ServiceError as error:
            self._judge(error)
            raise

    @property
    def trust_domain(self) -> str | None:
        """Of all of them, which have one authority."""
        return self.ways[self._at].trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """See `AggregatorConnection.call`."""
        try:
            answer = await self.ways[self._at].call(request)
        except ServiceError as error:
            self._judge(error)
            raise
        self._failures = 0
        return answer

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """See `AggregatorConnection.watch`."""
        try:
            async for update in self.ways[self._at].watch(request):
                self._failures = 0
                yield update
        except ServiceError as error:
            self._judge(error)
            raise

    def _judge(self, error: ServiceError) -> None:
        """Turn to the next aggregator when this one fails again and again."""
        if error.code not in _MAY_BE_GONE:
            return
        self._failures += 1
        if self._failures >= _FAILURES_OF_ONE:
            self._failures = 0
            self._at = (self._at + 1) % len(self.ways)
