"""Wakes all who wait for the same: when it has come, and now and then otherwise.

Rule 1: whoever listened before it rang has heard it, whatever was done meanwhile.
Rule 2: there is one timer for all, and none while nobody waits: a thousand who wait
        cost a wake-up each, and no timers.
"""

import asyncio
from typing import Final

from secagg.runtime.clock import Clock


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
