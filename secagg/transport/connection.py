"""The connection between a client and an aggregator: both ends, and one in memory.

Rule 1: every call is unary, idempotent and safe to repeat.  A lost answer is requested
        again; nothing happens twice.
Rule 2: the transport authenticates the caller.  No request names its sender, so that no
        client can act for another one.
Rule 3: every failure arrives as one of the classes of `secagg.errors`, with its code:
        `RemoteProtocolError` for a refused message, `SessionAbortedError` when the
        session is over, `ServiceError` for everything around the protocol.

`secagg.wire.calls` has the table of requests and answers.

An aggregator in the same process is reached without sockets.

Rule 4: this connection behaves like the wire: calls come from one identity, and errors
        arrive as over gRPC, so that programs tested here work there.  It copies and
        serialises nothing.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.messages import Envelope
from secagg.wire.calls import CALLS, Deadline, Reference, Request, Wait, WatchSession
from secagg.wire.errors import as_seen_by_peer

# The name of an aggregator without a certificate: in memory, or plaintext for tests.
UNCERTIFIED_AGGREGATOR: Final = "aggregator"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDeadlines:
    """How long a client waits for the answer to one call, in seconds.

    Attributes:
        small: Calls of a few hundred bytes either way.
        large: Calls with up to 4 MiB: at 0.5 Mbit/s, a poor mobile link, 64 s.  Three
            times what the aggregator may let a question for a session wait.
        stream: One stream of `watch`; it is opened again until the session ends.
    """

    small: float = 15.0
    large: float = 90.0
    stream: float = 900.0

    def of(self, call: type[Request[object]]) -> float:
        """Return the seconds of a call."""
        match CALLS[call].deadline:
            case Deadline.SMALL:
                return self.small
            case Deadline.LARGE:
                return self.large
            case Deadline.STREAM:
                return self.stream


class AggregatorConnection(Protocol):
    """An authenticated client's connection to one aggregator."""

    @property
    def identity(self) -> str:
        """The caller of all calls."""

    @property
    def aggregator(self) -> str:
        """The aggregator, as the transport has proven it.

        Known once `probe` has returned or a call was answered.
        """

    async def probe(self) -> str:
        """Return the aggregator that answers now, before anything of a session is sent.

        Only the transport's own handshake is sent.  The first call fixes the
        aggregator; before that, each `probe` probes again unless the settings name one.

        Raises:
            ServiceError: UNREACHABLE, or BAD_CERTIFICATE for a peer that proves not to
                be an aggregator of the client.
        """

    @property
    def trust_domain(self) -> str | None:
        """The trust domain of both ends, as the transport has proven it, or None."""

    @property
    def is_direct(self) -> bool:
        """Whether no proxy that ends TLS can read what is sent (R10.3-4)."""

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Send a request, and return the answer."""

    def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Receive all further updates as they arrive; ends with the session.

        A `Wait` in between shows that the other end is available, and states until when
        the next message follows.
        """


class AggregatorService(Protocol):
    """The receiver of authenticated calls; `Aggregator` is one.

    It may raise any class of `secagg.errors`.  Any other exception is a defect and
    reaches the client as INTERNAL, without its text.
    """

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer a call of `identity`, as the transport has authenticated it."""

    def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield updates as they arrive, and at intervals a `Wait`."""

    def record_refusal(self, code: ErrorCode) -> None:
        """Count a call that was refused, by the service or before it was reached.

        The transport reports each call once, whatever was wrong with it.
        """


class InMemoryConnection:
    """An `AggregatorConnection` without sockets.

    Attributes:
        identity: The caller of all calls.
        aggregator: The party that answers; by default one without a certificate.
        trust_domain: Of both ends; None without one.
        is_direct: True: both ends are in one process.
    """

    is_direct: Final = True

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

    async def probe(self) -> str:
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
            self._service.record_refusal(error.code)
            # The cause stays attached: both ends are in this process, for debugging.
            raise as_seen_by_peer(error) from error
