"""Waits that many share: a wake-up for all who wait, a look for all who ask.

Rule 1: whoever listened before it rang has heard it, whatever was done meanwhile.
Rule 2: there is one timer for all, and none while no call waits: a thousand that wait
        cost a wake-up each, and no timers.
Rule 3: a look that was begun before the question is no answer to it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from secagg.runtime.clock import Clock

# How long a look gathers those who want one: a client that is refused again and again
# costs the book so many looks and no more.
LOOK_SECONDS = 0.05


class Notifier:
    """Rings for everybody at once.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._ringing = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._rings_at = 0.0

    def listen(self) -> asyncio.Event:
        """Return what is set when it rings the next time."""
        return self._ringing

    def ring(self) -> None:
        """Wake everybody."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        rung, self._ringing = self._ringing, asyncio.Event()
        rung.set()

    async def heard(self, ringing: asyncio.Event, seconds: float) -> None:
        """Wait until it has rung.

        Args:
            ringing: From `listen`.
            seconds: After which it rings in any case.
        """
        if not ringing.is_set():
            self._ring_within(seconds)
            await ringing.wait()

    def _ring_within(self, seconds: float) -> None:
        rings_at = self._clock.now() + seconds
        if self._timer is not None:
            if self._rings_at <= rings_at:
                return
            self._timer.cancel()
        self._rings_at = rings_at
        self._timer = asyncio.create_task(self._ring_at(rings_at))

    async def _ring_at(self, instant: float) -> None:
        await self._clock.sleep_until(instant)
        self._timer = None  # it rings already
        self.ring()


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
