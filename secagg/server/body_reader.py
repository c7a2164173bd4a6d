"""Receives the messages of calls, a limited number at once.

Rule 1: a message is asked for when it is its turn; until then HTTP/2's flow control
        holds it at its sender.  So memory is bounded whoever calls, and how often.
Rule 2: whoever stalls loses its turn.
"""

import asyncio
from collections.abc import AsyncIterator

from secagg.errors import ErrorCode, ServiceError
from secagg.server.interceptors import CallLimits
from secagg.wire.codec import refuse

__all__ = ["BodyReader"]


class BodyReader:
    """Receives the messages of calls that were let in.

    Args:
        limits: How many at once, and for how long.
    """

    def __init__(self, limits: CallLimits) -> None:
        # First come, first served.
        self._slots = asyncio.Semaphore(limits.bodies_at_once)
        self._seconds = limits.body_seconds

    async def read(self, bodies: AsyncIterator[bytes]) -> bytes:
        """Return the one message of a call.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the call has none.
            ServiceError: OVERLOADED; it did not arrive in time.
        """
        async with self._slots:
            try:
                async with asyncio.timeout(self._seconds):
                    async for body in bodies:
                        return body
            except TimeoutError:
                raise ServiceError(
                    f"the message did not arrive within {self._seconds:g} s",
                    code=ErrorCode.OVERLOADED,
                    next_step="Call again, over a faster link.",
                    retry_after_seconds=1.0,
                ) from None
        raise refuse("the call has no message")
