"""Exports measurements for Prometheus (extra `metrics`)."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from secagg.errors import ErrorCode
from secagg.runtime.metrics import METRICS, OTHER, BoundedTasks, Kind, Metric

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
