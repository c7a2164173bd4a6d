"""When the next session of a task may open: its schedule and its operator's actions.

Rule 1: in each slot of a schedule at most one session releases a sum.  A failed session
        is followed by another while the window lasts.
Rule 2: a paused task opens and offers no session; sessions that have their cohort
        continue.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from secagg.config.task import Schedule
from secagg.runtime.clock import Clock

# Machines sleep and dates are corrected, so the date is read at this interval, in
# seconds.
_LOOK_EVERY: Final = 60.0


class TaskSchedule:
    """Decides when sessions of one task open.

    Args:
        schedule: The slots; none by default.
        opened: When the latest session opened, in Unix seconds; None for none.
        paused: Whether the task starts paused.
        ended: Why no session may open any more, in words for the clients, for a task
            that was stopped while a session had its cohort.

    Attributes:
        ended: The reason, as above; None for a task that is not stopped.
        version: Version of the task's row that was last applied here; None for a task
            without a row.
        opened_under: The version under which a session was allowed to open. Any action
            that is stored before the session takes precedence.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        *,
        opened: float | None = None,
        paused: bool = False,
        ended: str | None = None,
    ) -> None:
        self._schedule = schedule or Schedule()
        self._opened = opened
        # It is unknown whether a session of an earlier process failed: its slot is
        # used.
        self._used = None if opened is None else self._start_of(opened)
        self._is_paused = paused
        self.ended = ended
        self.version: int | None = None
        self.opened_under: int | None = None
        self._changed = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        """Whether the task offers no session for now."""
        return self._is_paused

    def pause(self) -> None:
        """Open no session from now on."""
        self._is_paused = True
        self.wake()

    def resume(self) -> None:
        """Open sessions again."""
        self._is_paused = False
        self.wake()

    def wake(self) -> None:
        """Wake all waiters, which check again whether a session is wanted."""
        self._changed.set()

    def record_opened(self, date: float) -> None:
        """Record that another process has opened a session.

        Args:
            date: The opening, in Unix seconds.
        """
        self._opened = date

    def record_sum(self) -> None:
        """Record that the latest session has released its sum."""
        if self._opened is not None:
            self._used = self._start_of(self._opened)

    def next_opening(self, date: float) -> float | None:
        """Return when a session may open, in Unix seconds; None while paused.

        Args:
            date: This moment, in Unix seconds.
        """
        if self._is_paused:
            return None
        slot = self._schedule.slot(date)
        if slot is None or (slot.start != self._used and date < slot.closes):
            return date
        return slot.next_start

    async def wait(self, clock: Clock, *, is_futile: Callable[[], bool]) -> bool:
        """Wait until a session may open.

        Args:
            clock: Time.
            is_futile: Returns whether no session is wanted any more; called again after
                `wake`.

        Returns:
            Whether a session may open; False when none is wanted any more.
        """
        while not is_futile():
            self._changed.clear()
            date = clock.date()
            opening = self.next_opening(date)
            if opening is not None and opening <= date:
                self._opened, self.opened_under = date, self.version
                return True
            ends: set[asyncio.Future[Any]] = {
                asyncio.ensure_future(self._changed.wait())
            }
            if opening is not None:
                left = min(opening - date, _LOOK_EVERY)
                ends.add(asyncio.ensure_future(_sleep(clock, left)))
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
        return False

    def closes_in(self, date: float) -> float | None:
        """Return for how many seconds clients may join the latest session.

        Args:
            date: This moment, in Unix seconds.

        Returns:
            Negative when the window has closed; None for a task without slots, and
            before its first session.
        """
        slot = None if self._opened is None else self._schedule.slot(self._opened)
        return None if slot is None else slot.closes - date

    async def window_closes(self, clock: Clock) -> None:
        """Return when clients may no longer join the latest session, if ever."""
        while (left := self.closes_in(clock.date())) is not None and left > 0:
            await _sleep(clock, min(left, _LOOK_EVERY))
        if left is None:
            await asyncio.Event().wait()  # until the caller cancels it

    def _start_of(self, moment: float) -> float | None:
        """Return when the slot of a moment began; None without slots."""
        slot = self._schedule.slot(moment)
        return None if slot is None else slot.start


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep_until(clock.now() + seconds)
