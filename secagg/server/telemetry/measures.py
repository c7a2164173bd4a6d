"""What an aggregator of any kind measures: calls, refusals, commits, rounds, sums.

Rule 1: refusals are counted by code only. A refused caller leaves no name and uses no
        memory, however often it calls.
Rule 2: Prometheus (extra `metrics`) reads them from `PrometheusMeter`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Round
from secagg.runtime import metrics
from secagg.runtime.clock import Clock
from secagg.runtime.metrics import METRICS, OTHER, BoundedTasks, Kind, Meter, Metric
from secagg.wire.calls import GetOffer, GetUpdate, Request

_SLICE_SECONDS: Final = 60.0
_SLICES: Final = 60


@dataclass(frozen=True, slots=True)
class Measures:
    """Reports durations to a meter.

    Attributes:
        meter: Receives the measurements.
        clock: Time.
    """

    meter: Meter
    clock: Clock

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Measure a commit of the store, and count a refusal."""
        began = self.clock.now()
        try:
            yield
        except ServiceError:
            self.meter.add(metrics.STORE_ERRORS)
            raise
        self.meter.observe(metrics.STORE_COMMIT_SECONDS, self.clock.now() - began)

    @contextmanager
    def sum(self) -> Iterator[None]:
        """Measure how long the sum takes, with its noise."""
        began = self.clock.now()
        yield
        self.summed(self.clock.now() - began)

    def summed(self, seconds: float) -> None:
        """Record how long the sum took."""
        self.meter.observe(metrics.SUM_SECONDS, seconds)

    def closed(self, round_: Round, seconds: float, *, is_full: bool) -> None:
        """Record that a round is over.

        Args:
            round_: The round.
            seconds: How long it was open.
            is_full: Whether each client that could answer has.
        """
        self.meter.observe(
            metrics.ROUND_SECONDS,
            seconds,
            round=round_.name,
            closed_by="full" if is_full else "deadline",
        )


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

    def count(self, code: ErrorCode) -> None:
        """Count one refusal."""
        minute = self._clock.now() // _SLICE_SECONDS
        if not self._slices or self._slices[-1][0] != minute:
            self._slices.append((minute, Counter()))
        self._slices[-1][1][code] += 1
        self._drop_old()

    def of_last_hour(self) -> dict[str, int]:
        """Return the counts by name of the code, the most frequent first."""
        self._drop_old()
        total: Counter[ErrorCode] = Counter()
        for _, counts in self._slices:
            total.update(counts)
        return {code.name: count for code, count in total.most_common()}

    def _drop_old(self) -> None:
        oldest = self._clock.now() // _SLICE_SECONDS - _SLICES
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# A gauge, its value and its labels.
GaugeSample = tuple[Metric, float, Mapping[str, str]]


class PrometheusMeter:
    """Keeps measurements in a registry of its own.

    Raises:
        ServiceError: MISSING_EXTRA if prometheus-client is not installed.
    """

    def __init__(self) -> None:
        try:
            library: Any = import_module("prometheus_client")
        except ImportError:
            raise ErrorCode.MISSING_EXTRA.error(
                "server.metrics_listen needs prometheus-client",
                fix="pip install 'secagg[metrics]'",
            ) from None
        # The creation time is a second series for each metric, which no dashboard
        # shows.
        library.disable_created_metrics()
        self._write = library.generate_latest
        self._registry = library.CollectorRegistry()
        library.ProcessCollector(registry=self._registry)
        self._tasks = BoundedTasks()
        kinds = {
            Kind.COUNTER: library.Counter,
            Kind.GAUGE: library.Gauge,
            Kind.HISTOGRAM: library.Histogram,
        }
        self._series: dict[str, Any] = {
            metric.name: kinds[metric.kind](
                metric.name,
                metric.help,
                metric.labels,
                registry=self._registry,
                **({"buckets": metric.buckets} if metric.buckets else {}),
            )
            for metric in METRICS
        }

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._child(metric, labels).inc(amount)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._child(metric, labels).observe(value)

    def scraped(self, readings: Iterable[GaugeSample]) -> bytes:
        """Return all metrics as text.

        Args:
            readings: All present gauges; those of tasks without a label of their own
                are not included, since their sum has no meaning.
        """
        for metric in METRICS:
            if metric.kind is Kind.GAUGE and metric.labels:
                self._series[metric.name].clear()
        for metric, value, labels in readings:
            if self._tasks.bounded(labels).get("task") != OTHER:
                self._child(metric, labels).set(value)
        written: bytes = self._write(self._registry)
        return written

    def _child(self, metric: Metric, labels: Mapping[str, str]) -> Any:  # noqa: ANN401 - of a library without types
        series = self._series[metric.name]
        return series.labels(**self._tasks.bounded(labels)) if metric.labels else series
