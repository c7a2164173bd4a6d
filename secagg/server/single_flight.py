"""A look at the book that many ask for: done once for all who ask in time."""

import asyncio
from collections.abc import Awaitable, Callable

from secagg.runtime.clock import Clock

# How long a look gathers those who want one: a client that is refused again and again
# costs the book so many looks and no more.
LOOK_SECONDS = 0.05


class SingleFlight:
    """Looks, and has whoever asks meanwhile share the next look.

    Nobody is given one that began before it was asked for.

    Args:
        look: What is done.
        clock: How to wait.
    """

    def __init__(self, look: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._turn = asyncio.Lock()
        self._coming: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Look, or wait for somebody else's look.

        Raises:
            Exception: That of the look.
        """
        if self._coming is None:
            self._coming = asyncio.create_task(self._run())
            self._coming.add_done_callback(_seen)
        # Whoever goes away takes nobody else's look with it.
        await asyncio.shield(self._coming)

    async def _run(self) -> None:
        await self._clock.sleep_until(self._clock.now() + LOOK_SECONDS)
        async with self._turn:
            self._coming = None  # whoever asks from now on needs another one
            await self._look()


def _seen(look: "asyncio.Task[None]") -> None:
    if not look.cancelled():
        look.exception()  # whoever asked for it may have gone away
