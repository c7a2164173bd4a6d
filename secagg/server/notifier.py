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
REFRESH_SECONDS = 0.05


class Notifier:
    """Wakes all its waiters at once.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._notified = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._ends_at = 0.0

    def subscribe(self) -> asyncio.Event:
        """Return the event that the next notification sets."""
        return self._notified

    def notify_all(self) -> None:
        """Wake all waiters."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        notified, self._notified = self._notified, asyncio.Event()
        notified.set()

    async def wait(self, notified: asyncio.Event, seconds: float) -> None:
        """Wait for the notification.

        Args:
            notified: The event that `subscribe` returned.
            seconds: The longest wait; after it, all waiters are woken.
        """
        if not notified.is_set():
            self._notify_within(seconds)
            await notified.wait()

    def _notify_within(self, seconds: float) -> None:
        """Start the shared timer, unless it ends sooner."""
        ends_at = self._clock.now() + seconds
        if self._timer is not None:
            if self._ends_at <= ends_at:
                return
            self._timer.cancel()
        self._ends_at = ends_at
        self._timer = asyncio.create_task(self._notify_at(ends_at))

    async def _notify_at(self, instant: float) -> None:
        await self._clock.sleep_until(instant)
        self._timer = None  # this task is the timer
        self.notify_all()


class SingleFlight:
    """Runs one refresh for all callers that ask while it is pending.

    A caller never gets a refresh that began before it asked.

    Args:
        refresh: The refresh.
        clock: Time.
    """

    def __init__(self, refresh: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._refresh = refresh
        self._clock = clock
        self._turn = asyncio.Lock()
        self._pending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run the refresh, or wait for the pending one.

        Raises:
            Exception: The exception that the refresh raised.
        """
        if self._pending is None:
            self._pending = asyncio.create_task(self._run_once())
            self._pending.add_done_callback(_retrieve_exception)
        # A caller that is cancelled does not cancel the refresh of the others.
        await asyncio.shield(self._pending)

    async def _run_once(self) -> None:
        """Collect requests for a moment, then refresh for all of them."""
        await self._clock.sleep_until(self._clock.now() + REFRESH_SECONDS)
        async with self._turn:
            self._pending = None  # later callers need another one
            await self._refresh()


def _retrieve_exception(refresh: "asyncio.Task[None]") -> None:
    if not refresh.cancelled():
        refresh.exception()  # its callers may have been cancelled
