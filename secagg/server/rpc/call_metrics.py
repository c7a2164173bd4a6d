"""One call, as every aggregator measures it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from secagg.runtime import metrics
from secagg.runtime.clock import Clock
from secagg.runtime.metrics import Meter
from secagg.wire.calls import GetOffer, GetUpdate, Request


@contextmanager
def measured_call(meter: Meter, clock: Clock, request: Request[Any]) -> Iterator[None]:
    """Count a call that is answered in the block, and how long it took.

    Args:
        meter: Who takes the measurements.
        clock: Time.
        request: What was asked.
    """
    method, began = type(request).__name__, clock.now()
    meter.add(metrics.CALLS, method=method)
    try:
        yield
    finally:
        # A question that waits says nothing of how fast answers are.
        if not (isinstance(request, GetOffer | GetUpdate) and request.wait_ms):
            meter.observe(metrics.CALL_SECONDS, clock.now() - began, method=method)
