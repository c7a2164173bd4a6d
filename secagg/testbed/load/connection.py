"""One client's connection to several aggregators that share a store, one at a time.

In service, a name with several addresses, or a balancer of connections, does the same.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from secagg.advanced import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope
from secagg.wire.calls import Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")

# A busy aggregator may fail one call, so one failure is not enough.
_FAILURES_OF_ONE: Final = 3
_MAY_BE_GONE: Final = frozenset({ErrorCode.UNREACHABLE, ErrorCode.SHUTTING_DOWN})


class SpreadConnection:
    """An `AggregatorConnection` that changes its aggregator when that fails.

    The caller repeats a failed call: this class only directs the next attempt to
    another aggregator.

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
        """The caller of all calls."""
        return self.ways[self._at].identity

    @property
    def aggregator(self) -> str:
        """The name that all aggregators share."""
        return self.ways[self._at].aggregator

    async def meet(self) -> str:
        """Return the aggregator that answers now."""
        try:
            return await self.ways[self._at].meet()
        except ServiceError as error:
            self._note_failure(error)
            raise

    @property
    def trust_domain(self) -> str | None:
        """Of all of them, which have one authority."""
        return self.ways[self._at].trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Pass the call to the present aggregator."""
        try:
            answer = await self.ways[self._at].call(request)
        except ServiceError as error:
            self._note_failure(error)
            raise
        self._failures = 0
        return answer

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of the present aggregator."""
        try:
            async for update in self.ways[self._at].watch(request):
                self._failures = 0
                yield update
        except ServiceError as error:
            self._note_failure(error)
            raise

    def _note_failure(self, error: ServiceError) -> None:
        """Change to the next aggregator when this one fails repeatedly."""
        if error.code not in _MAY_BE_GONE:
            return
        self._failures += 1
        if self._failures >= _FAILURES_OF_ONE:
            self._failures = 0
            self._at = (self._at + 1) % len(self.ways)
