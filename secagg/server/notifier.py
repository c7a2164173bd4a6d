"""Waits that many callers share: notifications and refreshes.

Rule 1: a waiter that subscribed before a notification receives it, whatever happened in
        between.
Rule 2: all waiters share one timer, and none runs while no call waits. A thousand
        waiters cost one wake-up each.
Rule 3: a refresh that began before a request does not answer that request.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from secagg.runtime.clock import Clock

# How long a refresh collects the requests that share it. A client that is refused again
# and again costs the store at most one refresh in this time.
LOOK_SECONDS = 0.05


class Notifier:
    """Wakes all its waiters at once.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._ringing = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._rings_at = 0.0

    def listen(self) -> asyncio.Event:
        """Return the event that the next notification sets."""
        return self._ringing

    def ring(self) -> None:
        """Wake all waiters."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        rung, self._ringing = self._ringing, asyncio.Event()
        rung.set()

    async def heard(self, ringing: asyncio.Event, seconds: float) -> None:
        """Wait for the notification.

        Args:
            ringing: The event that `listen` returned.
            seconds: The longest wait; after it, all waiters are woken.
        """
        if not ringing.is_set():
            self._ring_within(seconds)
            await ringing.wait()

    def _ring_within(self, seconds: float) -> None:
        """Start the shared timer, unless one ends sooner."""
        rings_at = self._clock.now() + seconds
        if self._timer is not None:
            if self._rings_at <= rings_at:
                return
            self._timer.cancel()
        self._rings_at = rings_at
        self._timer = asyncio.create_task(self._ring_at(rings_at))

    async def _ring_at(self, instant: float) -> None:
        await self._clock.sleep_until(instant)
        self._timer = None  # this task is the timer
        self.ring()


class SingleFlight:
    """Runs one refresh for all callers that ask while it is pending.

    A caller never gets a refresh that began before it asked.

    Args:
        look: The refresh.
        clock: Time.
    """

    def __init__(self, look: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._turn = asyncio.Lock()
        self._coming: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Run the refresh, or wait for the pending one.

        Raises:
            Exception: The exception that the refresh raised.
        """
        if self._coming is None:
            self._coming = asyncio.create_task(self._run())
            self._coming.add_done_callback(_seen)
        # A caller that is cancelled does not cancel the refresh of the others.
        await asyncio.shield(self._coming)

    async def _run(self) -> None:
        await self._clock.sleep_until(self._clock.now() + LOOK_SECONDS)
        async with self._turn:
            self._coming = None  # later callers need another one
            await self._look()


def _seen(look: "asyncio.Task[None]") -> None:
    if not look.cancelled():
        look.exception()  # its callers may have been cancelled
