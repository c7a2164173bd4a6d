"""A link that loses, repeats and records what a client sends.

Rule 1: what is lost is decided by a script, never by chance: a failing test fails
        again.
Rule 2: every message that leaves a client is recorded, also when it is lost later;
        `distinct_messages` is what an adversary at the other end could have seen.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto
from typing import Any, Final, TypeVar

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import (
    Reference,
    Request,
    SendMessage,
    UploadChunk,
    Wait,
    WatchSession,
)

_Answer = TypeVar("_Answer")
_Calls = type[Request[Any]]


class Fault(Enum):
    """What happens to one call."""

    NONE = auto()
    LOSE_REQUEST = auto()
    LOSE_ANSWER = auto()
    REPEAT = auto()


class LossyConnection:
    """An `AggregatorConnection` over a link with scripted faults.

    Args:
        identity: As whom the calls are made.
        find: Returns the connection to use, or None while no server listens.
        fault_of: Returns the fault of the n-th call (from 0) of a class of requests.
    """

    def __init__(
        self,
        identity: str,
        find: Callable[[], AggregatorConnection | None],
        fault_of: Callable[[_Calls, int], Fault] = lambda _call, _number: Fault.NONE,
    ) -> None:
        self.identity: Final = identity
        self._find = find
        self._fault_of = fault_of
        self._calls: dict[_Calls, int] = defaultdict(int)
        self._messages: dict[tuple[bytes, _Calls], set[bytes]] = defaultdict(set)

    def distinct_messages(self) -> dict[tuple[bytes, _Calls], int]:
        """Return how many different messages left, by session and call."""
        return {key: len(contents) for key, contents in self._messages.items()}

    @property
    def aggregator(self) -> str:
        """See `AggregatorConnection.aggregator`."""
        return self._reached().aggregator

    async def probe(self) -> str:
        """See `AggregatorConnection.probe`."""
        return await self._reached().probe()

    @property
    def trust_domain(self) -> str | None:
        """See `AggregatorConnection.trust_domain`; none while nothing listens."""
        found = self._find()
        return None if found is None else found.trust_domain

    @property
    def is_direct(self) -> bool:
        """See `AggregatorConnection.is_direct`; True while nothing listens."""
        found = self._find()
        return found is None or found.is_direct

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Record and send, as scripted."""
        if isinstance(request, SendMessage):
            self._messages[request.session_id, type(request)].add(request.message)
        if isinstance(request, UploadChunk):
            self._messages[request.session_id, UploadChunk].add(request.digest)
        fault = self._next_fault(request)
        if fault is Fault.LOSE_REQUEST:
            raise _unreachable()
        if fault is Fault.REPEAT:
            await self._reached().call(request)
        answer = await self._reached().call(request)
        if fault is Fault.LOSE_ANSWER:
            raise _unreachable()
        return answer

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Open the stream as scripted; a lost answer breaks it."""
        fault = self._next_fault(request)
        if fault is Fault.LOSE_REQUEST:
            raise _unreachable()
        async for update in self._reached().watch(request):
            if fault is Fault.LOSE_ANSWER:
                raise _unreachable()
            yield update

    def _next_fault(self, request: Request[Any]) -> Fault:
        number = self._calls[type(request)]
        self._calls[type(request)] += 1
        return self._fault_of(type(request), number)

    def _reached(self) -> AggregatorConnection:
        connection = self._find()
        if connection is None:
            raise _unreachable()
        return connection


def _unreachable() -> ServiceError:
    return ServiceError(
        "the aggregator cannot be reached",
        code=ErrorCode.UNREACHABLE,
        next_step="Check address and network.",
    )
