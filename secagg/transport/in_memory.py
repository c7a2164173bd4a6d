"""A client's connection to an aggregator in the same process.

Rule 1: it behaves like the wire: calls come from one identity, and errors arrive as
        over gRPC, so that programs tested here work there.

It copies and serialises nothing.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from secagg.errors import SecAggError
from secagg.protocol.messages import Envelope
from secagg.runtime.connection import UNCERTIFIED_AGGREGATOR, AggregatorService
from secagg.wire.calls import Reference, Request, Wait, WatchSession
from secagg.wire.errors import seen_by_peer

_Answer = TypeVar("_Answer")


class InMemoryConnection:
    """An `AggregatorConnection` without sockets.

    Attributes:
        identity: The caller of all calls.
        aggregator: The party that answers; by default one without a certificate.
        trust_domain: Of both ends; None without one.
    """

    def __init__(
        self,
        service: AggregatorService,
        identity: str,
        *,
        aggregator: str = UNCERTIFIED_AGGREGATOR,
        trust_domain: str | None = None,
    ) -> None:
        self._service = service
        self.identity: Final = identity
        self.aggregator: Final = aggregator
        self.trust_domain: Final = trust_domain

    async def meet(self) -> str:
        """Return the name of the aggregator."""
        return self.aggregator

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Pass a call to the service and return its answer."""
        with self._across():
            return await self._service.answer(self.identity, request)

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of the service."""
        with self._across():
            async for update in self._service.watch(self.identity, request):
                yield update

    async def close(self) -> None:
        """Do nothing; there is nothing to release."""

    @contextmanager
    def _across(self) -> Iterator[None]:
        """Raise errors as a peer would see them."""
        try:
            yield
        except SecAggError as error:
            self._service.note_refusal(error.code)
            # The cause stays attached: both ends are in this process, for debugging.
            raise seen_by_peer(error) from error
