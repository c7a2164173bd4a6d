"""A malicious server: answers of an honest one, changed in transit."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar, cast

from secagg.protocol.messages import Envelope
from secagg.testbed.connections import ConnectionAround
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")
Lie = Callable[[Any], Any]


class LyingConnection(ConnectionAround):
    """An `AggregatorConnection` that changes answers.

    Args:
        inner: The honest one.
        lies: Changes the answers to a class of requests; for a stream,
            each update.
    """

    def __init__(
        self, inner: AggregatorConnection, lies: Mapping[type[Request[Any]], Lie]
    ) -> None:
        super().__init__(inner)
        self._lies = lies

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Make the call, and change the answer."""
        answer = await self._inner.call(request)
        lie = self._lies.get(type(request))
        return answer if lie is None else cast("_Answer", lie(answer))

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Watch, and change every update."""
        lie = self._lies.get(WatchSession)
        async for update in self._inner.watch(request):
            yield update if lie is None else lie(update)


def instead(kind: type, lie: Lie) -> Lie:
    """Change one kind of answer only.

    Args:
        kind: Class of the answer, or of the message in it.
        lie: Given the answer or message, returns another one; for a message perhaps
            an `Envelope`, to send what cannot be encoded, or a `Reference`.
    """

    def told(answer: object) -> object:
        if isinstance(answer, Envelope) and answer.kind is kind:
            lied = lie(answer.open())
            if isinstance(lied, Envelope | Reference):
                return lied
            return Envelope.of(lied)
        return lie(answer) if isinstance(answer, kind) else answer

    return told
