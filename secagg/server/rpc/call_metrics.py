"""Counts calls: each as it is answered, and those refused in the last hour.

Rule 1: refusals are counted by code only. A refused caller leaves no name and uses no
        memory, however often it calls.
"""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from secagg.errors import ErrorCode
from secagg.runtime import metrics
from secagg.runtime.clock import Clock
from secagg.runtime.metrics import Meter
from secagg.wire.calls import GetOffer, GetUpdate, Request

_SLICE_SECONDS: Final = 60.0
_SLICES: Final = 60


@contextmanager
def measured_call(meter: Meter, clock: Clock, request: Request[Any]) -> Iterator[None]:
    """Count a call that is answered in the block, and measure its time.

    Args:
        meter: Receives the measurements.
        clock: Time.
        request: The request.
    """
    method, began = type(request).__name__, clock.now()
    meter.add(metrics.CALLS, method=method)
    try:
        yield
    finally:
        # The time of a held request says nothing about the speed of answers.
        if not (isinstance(request, GetOffer | GetUpdate) and request.wait_ms):
            meter.observe(metrics.CALL_SECONDS, clock.now() - began, method=method)


class RefusalCounts:
    """Counts refusals by the minute, for an hour.

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
