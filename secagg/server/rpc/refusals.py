"""How many calls were refused in the last hour, by code, for whoever operates.

Rule 1: numbers by code only: a caller that is refused leaves no name and takes no
        room, however often it comes.
"""

from collections import Counter, deque
from typing import Final

from secagg.errors import ErrorCode
from secagg.runtime.clock import Clock

_SLICE_SECONDS: Final = 60.0
_SLICES: Final = 60


class RefusalCounts:
    """Refusals by the minute, for an hour.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slices: deque[tuple[float, Counter[ErrorCode]]] = deque()

    def note(self, code: ErrorCode) -> None:
        """Count one refusal."""
        minute = self._clock.now() // _SLICE_SECONDS
        if not self._slices or self._slices[-1][0] != minute:
            self._slices.append((minute, Counter()))
        self._slices[-1][1][code] += 1
        self._forget()

    def of_last_hour(self) -> dict[str, int]:
        """Return the counts by name of the code, the most frequent first."""
        self._forget()
        total: Counter[ErrorCode] = Counter()
        for _, counts in self._slices:
            total.update(counts)
        return {code.name: count for code, count in total.most_common()}

    def _forget(self) -> None:
        oldest = self._clock.now() // _SLICE_SECONDS - _SLICES
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()
