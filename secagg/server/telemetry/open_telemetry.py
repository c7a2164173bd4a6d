"""Exports measurements and sessions by OTLP (extra `otel`).

Rule 1: counters and histograms are rows of `secagg.runtime.metrics` under the same
        names. A trace consists of the log events of one session.
Rule 2: only the facts of `_SHOWN` are exported of an event.  Names of clients, reasons
        and all that a peer chose stay in the log of this machine.
Rule 3: what cannot be sent is lost; no session waits for it, and none ends by it.

Gauges change only when they are scraped (`server.metrics_listen`).
"""

import asyncio
import logging
from importlib import import_module, metadata
from typing import Any, Final, Self

from secagg.errors import ErrorCode
from secagg.runtime import log_events as telemetry
from secagg.runtime.metrics import METRICS, BoundedTasks, Kind, Metric

# Facts of events that a trace may carry: numbers, and words of fixed lists.
_SHOWN: Final = frozenset(
    {"answered", "code", "expected", "number", "round", "session", "task"}
)
_OPENS: Final = frozenset({telemetry.SESSION_OPENED, telemetry.SESSION_RESUMED})
_ENDS: Final = frozenset(
    {
        telemetry.SESSION_COMPLETED,
        telemetry.SESSION_ABORTED,
        telemetry.SESSION_ENDED_BY_REPLICA,
    }
)
_WITHIN: Final = frozenset({telemetry.CLIENT_DROPPED, telemetry.DUPLICATE_RECORD})
# No sound aggregator has more open; the oldest one is dropped.
_OPEN_AT_MOST: Final = 4096
_NANOSECONDS: Final = 1_000_000_000
_SEND_SECONDS: Final = 5


class OpenTelemetry(logging.Handler):
    """Exports measurements and events; use it as an asynchronous context manager.

    Args:
        traces: A tracer provider of the OpenTelemetry SDK.
        measurements: A meter provider of it; both are shut down at the end.
    """

    def __init__(self, traces: Any, measurements: Any) -> None:  # noqa: ANN401 - of a library that is an extra
        super().__init__(logging.INFO)
        trace: Any = import_module("opentelemetry.trace")
        self._in_span = trace.set_span_in_context
        self._failed = trace.StatusCode.ERROR
        self._providers = (traces, measurements)
        self._tracer = traces.get_tracer("secagg")
        self._open: dict[tuple[object, object], Any] = {}
        self._tasks = BoundedTasks()
        meter = measurements.get_meter("secagg")
        self._counters = {
            each.name: meter.create_counter(each.name, description=each.help)
            for each in METRICS
            if each.kind is Kind.COUNTER
        }
        self._histograms = {
            each.name: meter.create_histogram(
                each.name,
                unit="s",
                description=each.help,
                explicit_bucket_boundaries_advisory=each.buckets,
            )
            for each in METRICS
            if each.kind is Kind.HISTOGRAM
        }

    @staticmethod
    def packages() -> list[Any]:
        """Return the modules of the SDK and its exporter.

        Raises:
            ServiceError: MISSING_EXTRA; one is not installed.
        """
        sdk, sent = "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"
        names = ("resources", "trace", "trace.export", "metrics", "metrics.export")
        try:
            return [import_module(f"{sdk}.{name}") for name in names] + [
                import_module(f"{sent}.{name}")
                for name in ("trace_exporter", "metric_exporter")
            ]
        except ImportError:
            raise ErrorCode.MISSING_EXTRA.error(
                "server.otlp needs OpenTelemetry's SDK and its exporter",
                fix="pip install 'secagg[otel]'",
            ) from None

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Return an exporter to a collector.

        Args:
            endpoint: Endpoint of OTLP over HTTP, such as `http://127.0.0.1:4318`.

        Raises:
            ServiceError: MISSING_EXTRA; the SDK or its exporter is not installed.
        """
        resources, traces, batches, measured, readers, spans, points = cls.packages()
        resource = resources.Resource.create(
            {"service.name": "secagg", "service.version": metadata.version("secagg")}
        )
        where = endpoint.rstrip("/")
        provider = traces.TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(
            batches.BatchSpanProcessor(
                spans.OTLPSpanExporter(f"{where}/v1/traces", timeout=_SEND_SECONDS)
            )
        )
        exporter = points.OTLPMetricExporter(
            f"{where}/v1/metrics", timeout=_SEND_SECONDS
        )
        measurements = measured.MeterProvider(
            [readers.PeriodicExportingMetricReader(exporter)],
            resource=resource,
            shutdown_on_exit=False,
        )
        return cls(provider, measurements)

    async def __aenter__(self) -> Self:
        """Listen to the server's events, whatever the log level is."""
        logger = logging.getLogger(telemetry.SERVER_LOGGER)
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send what is left, for a limited time, and stop."""
        logging.getLogger(telemetry.SERVER_LOGGER).removeHandler(self)
        for span in self._open.values():
            span.end()  # the session itself continues in the next process
        for provider in self._providers:
            await asyncio.to_thread(provider.shutdown)

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._counters[metric.name].add(amount, self._tasks.bounded(labels))

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        self._histograms[metric.name].record(value, self._tasks.bounded(labels))

    def emit(self, record: logging.LogRecord) -> None:
        """Make a trace of a session's events: the session, its rounds, its losses."""
        try:
            self._trace(record)
        except Exception:  # noqa: BLE001 - as in every handler: no session ends by it
            self.handleError(record)

    def _trace(self, record: logging.LogRecord) -> None:
        """Turn a log record into the begin, an event or the end of a span."""
        facts: dict[str, Any] = getattr(record, "facts", {})
        event, key = getattr(record, "event", None), _session_of(facts)
        if key is None:
            return
        shown = {f"secagg.{k}": v for k, v in facts.items() if k in _SHOWN}
        now = int(record.created * _NANOSECONDS)
        if event in _OPENS:
            if len(self._open) >= _OPEN_AT_MOST:
                self._open.pop(next(iter(self._open))).end()
            # The rounds are spans of their own; this one would stay the first.
            shown.pop("secagg.round", None)
            self._open[key] = self._tracer.start_span(
                "session", attributes=shown, start_time=now
            )
            return
        session = self._open.get(key)
        if session is None:
            return
        if event == telemetry.ROUND_CLOSED:
            self._tracer.start_span(
                f"round {facts['round']}",
                context=self._in_span(session),
                attributes=shown,
                start_time=now - int(facts["seconds"] * _NANOSECONDS),
            ).end(now)
        elif event in _WITHIN:
            session.add_event(event, shown, now)
        elif event in _ENDS:
            if event == telemetry.SESSION_ABORTED:
                session.set_status(self._failed, str(facts["code"]))
                session.set_attributes(shown)
            self._open.pop(key).end(now)


def _session_of(facts: dict[str, Any]) -> tuple[object, object] | None:
    if "task" in facts and "session" in facts:
        return facts["task"], facts["session"]
    return None
