"""When sessions of a task open: one after the other, or one in each slot of time.

Rule 1: slots are counted from 1970 in UTC, so that every restart and every machine
        agrees on them: `every 1h` begins at the full hour, `every 1d` at midnight UTC.
Rule 2: a slot whose window has passed is missed, and missed slots are not made up for.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from secagg.errors import ErrorCode

CONTINUOUS: Final = "continuous"
_EVERY: Final = "every "
_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Shorter slots are `continuous`; longer ones serve no task.
_SHORTEST: Final = 1
_LONGEST: Final = 366 * 86_400


def seconds_of(text: str, key: str) -> int:
    """Return a duration such as 30m in seconds.

    Args:
        text: A whole number and s, m, h or d; one second to 366 days.
        key: The setting that holds it, for the message.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{key} is no duration from one second to 366 days: {text!r}",
            fix="Write a whole number and s, m, h or d, such as 30m.",
        )
    return seconds


@dataclass(frozen=True, slots=True)
class Slot:
    """A stretch of time in which one session of a task opens.

    Attributes:
        start: When, in Unix seconds.
        closes: Until when a session may open and take adverts, in Unix seconds.
        next_start: Of the slot after it.
    """

    start: float
    closes: float
    next_start: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Slots of time, or none.

    Attributes:
        period: Length of a slot in seconds; None for sessions one after the other.
        window: For how long of it adverts are taken, in seconds.
    """

    period: int | None = None
    window: int | None = None

    @classmethod
    def parse(cls, schedule: str, window: str | None) -> Self:
        """Read `task.schedule` and `task.window`.

        Raises:
            ServiceError: BAD_SETTINGS; the message names the setting.
        """
        if schedule == CONTINUOUS:
            if window is not None:
                raise ErrorCode.BAD_SETTINGS.error(
                    "task.window needs a schedule: sessions that follow one another "
                    "wait for clients as long as it takes",
                    fix='Set schedule = "every 1h", or remove the window.',
                )
            return cls()
        if not schedule.startswith(_EVERY):
            raise ErrorCode.BAD_SETTINGS.error(
                f"task.schedule is neither continuous nor every: {schedule!r}",
                fix='Write "continuous", or "every 1h" with s, m, h or d.',
            )
        period = seconds_of(schedule.removeprefix(_EVERY), "task.schedule")
        if window is None:
            return cls(period, period)
        open_for = seconds_of(window, "task.window")
        if open_for > period:
            raise ErrorCode.BAD_SETTINGS.error(
                f"task.window is longer than the schedule's {period} seconds",
                fix="Choose a shorter window, or a longer schedule.",
            )
        return cls(period, open_for)

    def slot(self, moment: float) -> Slot | None:
        """Return the slot that a moment, in Unix seconds, lies in; None without any."""
        if self.period is None or self.window is None:
            return None
        start = moment // self.period * self.period
        return Slot(start, start + self.window, start + self.period)
