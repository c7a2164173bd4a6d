"""Receives the messages of calls, a limited number at once.

Rule 1: a message is asked for when it is its turn; until then HTTP/2's flow control
        holds it at its sender.  So memory is bounded, whatever callers do.
Rule 2: a caller that stalls loses its turn.
Rule 3: a chunk of an upload keeps its turn until it is answered, so that none is
        received before there is room to write it, and none twice.
Rule 4: one caller has few turns, so that a few who stall do not have all of them, and
        one who stalls takes little memory.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Final, cast

from secagg.errors import ErrorCode, SecAggError
from secagg.wire.codec import refuse

# A caller that is turned away comes back when many of those before it are done.
_LONG_SECONDS: Final = 5.0
# Turns that one caller may hold or wait for: a client sends its chunks one after the
# other, and may have left a call behind on a broken connection.
UPLOADS_OF_ONE_CALLER: Final = 2
# Likewise of other messages, which a client of several tasks may have under way at the
# same time: 16 MiB at most.
MESSAGES_OF_ONE_CALLER: Final = 4


class BodyReader:
    """Receives the messages of calls that were let in.

    Args:
        at_once: How many at once.
        seconds: How long receiving one may take.
        waiting: How many may wait for their turn; the next one is told to come back.
    """

    def __init__(
        self, at_once: int, seconds: float, *, waiting: int | None = None
    ) -> None:
        # First come, first served.
        self._slots = asyncio.Semaphore(at_once)
        self._seconds = seconds
        self._room = waiting
        self._calls_of: Counter[str] = Counter()

    async def read(self, bodies: AsyncIterator[bytes], *, caller: str = "") -> bytes:
        """Return the one message of a call; the turn is over with it.

        Args:
            bodies: Its message.
            caller: Whose call it is; empty where callers have no names.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the call has none.
            ServiceError: OVERLOADED; it did not arrive in time, too many wait, or too
                many are this caller's.
        """
        with self._counted(caller, MESSAGES_OF_ONE_CALLER):
            await self._take_turn()
            try:
                return await self._received(bodies)
            finally:
                self._slots.release()

    @asynccontextmanager
    async def held(
        self, caller: str, bodies: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the one message of a call, whose turn lasts as long as the block.

        Args:
            caller: Whose call it is.
            bodies: Its message.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the call has none.
            ServiceError: OVERLOADED; it did not arrive in time, too many wait, or too
                many are this caller's.
        """
        with self._counted(caller, UPLOADS_OF_ONE_CALLER):
            await self._take_turn()
            try:
                yield await self._received(bodies)
            finally:
                self._slots.release()

    @contextmanager
    def _counted(self, caller: str, most: int) -> Iterator[None]:
        if caller and self._calls_of[caller] >= most:
            raise _come_back("this caller has other messages under way", 1.0)
        self._calls_of[caller] += 1
        try:
            yield
        finally:
            self._calls_of[caller] -= 1
            if not self._calls_of[caller]:
                del self._calls_of[caller]

    async def _take_turn(self) -> None:
        if self._room is None or not self._slots.locked():
            await self._slots.acquire()
            return
        if not self._room:
            raise _come_back("too many messages wait for their turn", _LONG_SECONDS)
        self._room -= 1
        try:
            await self._slots.acquire()
        finally:
            self._room += 1

    async def _received(self, bodies: AsyncIterator[bytes]) -> bytes:
        # Ended at once.  Suspended behind its message, gRPC's generator would keep that
        # and the call alive, in a cycle, until the collector searches for garbage.
        messages = cast("AsyncGenerator[bytes]", aiter(bodies))
        try:
            async with asyncio.timeout(self._seconds), aclosing(messages):
                async for body in messages:
                    return body
        except TimeoutError:
            raise ErrorCode.OVERLOADED.error(
                f"the message did not arrive within {self._seconds:g} s",
                fix="Call again, over a faster link.",
                retry_after_seconds=1.0,
            ) from None
        raise refuse("the call has no message")


def _come_back(complaint: str, seconds: float) -> SecAggError:
    return ErrorCode.OVERLOADED.error(
        complaint,
        fix="Send this one again a little later.",
        retry_after_seconds=seconds,
    )
