"""Connections of clients in a run: one that stops for ever, one of several aggregators.

They stand between the product's own client and its own connection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import (
    ChooseEdges,
    Reference,
    Request,
    RevealShares,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    Wait,
    WatchSession,
)

_Answer = TypeVar("_Answer")
Updates = AsyncIterator[Envelope | Reference | Wait]


class ConnectionAround:
    """An `AggregatorConnection` that adds something to another one.

    Args:
        inner: Where calls go.
    """

    def __init__(self, inner: AggregatorConnection) -> None:
        self._inner = inner

    @property
    def identity(self) -> str:
        """Return the caller of all calls."""
        return self._inner.identity

    @property
    def aggregator(self) -> str:
        """Return the aggregator of the connection."""
        return self._inner.aggregator

    @property
    def trust_domain(self) -> str | None:
        """Return the trust domain of the connection."""
        return self._inner.trust_domain

    @property
    def is_direct(self) -> bool:
        """Whether the connection has no proxy that ends TLS."""
        return self._inner.is_direct

    async def probe(self) -> str:
        """Return the aggregator that answers now."""
        return await self._inner.probe()

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Pass the call on."""
        return await self._inner.call(request)

    def watch(self, request: WatchSession) -> Updates:
        """Yield the updates of the connection."""
        return self._inner.watch(request)


PAUSES: Final[dict[str, type[Request[Any]]]] = {
    "choose": ChooseEdges,
    "share": ShareKeys,
    "upload": UploadChunk,
    "sign": SignConsistency,
    "reveal": RevealShares,
}
"""The calls before which a client can stop, by the name of the message."""


class PausingConnection(ConnectionAround):
    """Stops for ever before one kind of message of one session.

    Args:
        connection: Where calls go.
        session_number: In which session to stop; 0 for never.
        before: One of `PAUSES`.
        on_pause: Called once it has stopped.
    """

    def __init__(
        self,
        connection: AggregatorConnection,
        *,
        session_number: int,
        before: str,
        on_pause: Callable[[], None],
    ) -> None:
        super().__init__(connection)
        self._session_number = session_number
        self._paused_call = PAUSES[before]
        self._on_pause = on_pause
        self._current = 0

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Record the session, and stop at the chosen call."""
        is_chosen = isinstance(request, self._paused_call)
        if is_chosen and self._current == self._session_number:
            self._on_pause()
            await asyncio.Event().wait()
        answer = await super().call(request)
        if isinstance(answer, SessionDescriptor):
            self._current = answer.session_number
        return answer


# A busy aggregator may fail one call, so one failure is not enough.
_FAILURES_OF_ONE: Final = 3
_MAY_BE_GONE: Final = frozenset({ErrorCode.UNREACHABLE, ErrorCode.SHUTTING_DOWN})


class SpreadConnection(ConnectionAround):
    """Changes its aggregator when that fails.

    The caller repeats a failed call: this class only directs the next attempt to
    another aggregator.

    Args:
        ways: A connection to each aggregator.
        first: Index of the one to begin with.

    Attributes:
        ways: As given.
    """

    def __init__(self, ways: Sequence[GrpcConnection], first: int) -> None:
        super().__init__(ways[first])
        self.connections: Final = tuple(ways)
        self._failures = 0

    async def probe(self) -> str:
        """Return the aggregator that answers now."""
        with self._counting_failures():
            return await super().probe()

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Pass the call to the present aggregator."""
        with self._counting_failures():
            answer = await super().call(request)
        self._failures = 0
        return answer

    async def watch(self, request: WatchSession) -> Updates:
        """Yield the updates of the present aggregator."""
        with self._counting_failures():
            async for update in super().watch(request):
                self._failures = 0
                yield update

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        """Change to the next aggregator when this one fails repeatedly."""
        try:
            yield
        except ServiceError as error:
            self._failures += error.code in _MAY_BE_GONE
            if self._failures >= _FAILURES_OF_ONE:
                self._failures = 0
                following = self.connections.index(self._inner) + 1
                self._inner = self.connections[following % len(self.connections)]
            raise
