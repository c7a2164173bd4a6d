"""A connection that stops for ever before one message: a client that is to drop out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope
from secagg.runtime.connection import AggregatorConnection
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

# The calls before which a client can stop, by the name of the message.
PAUSES: Final[dict[str, type[Request[Any]]]] = {
    "choose": ChooseEdges,
    "share": ShareKeys,
    "upload": UploadChunk,
    "sign": SignConsistency,
    "reveal": RevealShares,
}


class PausingConnection:
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
        self._connection = connection
        self._session_number = session_number
        self._before = before
        self._on_pause = on_pause
        self._current = 0
        self.identity: Final = connection.identity

    @property
    def aggregator(self) -> str:
        """Return the aggregator of the connection."""
        return self._connection.aggregator

    async def meet(self) -> str:
        """Return the aggregator that answers now."""
        return await self._connection.meet()

    @property
    def trust_domain(self) -> str | None:
        """Return the trust domain of the connection."""
        return self._connection.trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Record the session, and stop at the chosen call."""
        is_chosen = isinstance(request, PAUSES[self._before])
        if is_chosen and self._current == self._session_number:
            self._on_pause()
            await asyncio.Event().wait()
        answer = await self._connection.call(request)
        if isinstance(answer, SessionDescriptor):
            self._current = answer.session_number
        return answer

    def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of the connection."""
        return self._connection.watch(request)
