"""What a collector of OpenTelemetry hears of sessions, and what it must not hear."""

import asyncio
import logging
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from secagg.cli.output import log_to_stderr
from secagg.client.client import Client
from secagg.config.server import ServerSection
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.runtime import log_events as telemetry
from secagg.runtime import metrics
from secagg.runtime.metrics import METRICS, TASKS_AT_MOST, Kind, Meters
from secagg.server.server import OperatedServer
from secagg.server.service import exporter_of
from secagg.server.task.setup import Cohort, PreparedTask
from secagg.server.telemetry import open_telemetry
from secagg.server.telemetry.measures import PrometheusMeter
from secagg.server.telemetry.open_telemetry import OpenTelemetry

LOG = logging.getLogger(telemetry.SERVER_LOGGER)
WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
NAMES = ("hospital-north", "hospital-south", "hospital-west")


class Collected:
    """An exporter whose spans and points stay in memory."""

    def __init__(self):
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        traces = TracerProvider(shutdown_on_exit=False)
        traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.exporter = OpenTelemetry(
            traces, MeterProvider([self._reader], shutdown_on_exit=False)
        )

    @property
    def spans(self):
        return self._spans.get_finished_spans()

    def points(self):
        """Every point by the name of its metric."""
        data = self._reader.get_metrics_data()
        return {
            each.name: list(each.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
        }


@pytest.fixture(autouse=True)
def level():
    """Leave the loggers as they were."""
    loggers = [logging.getLogger("secagg"), LOG]
    before = [(each, each.level, list(each.handlers)) for each in loggers]
    yield
    for each, number, handlers in before:
        each.setLevel(number)
        each.handlers[:] = handlers


async def contribute_as(server, name):
    async with Client(
        server.connection(name),
        task="ward",
        privacy_limits=WAIVER,
        cohort=ClientPolicy(min_clients=2, min_survivors=2, require_noise=False),
    ) as one:
        await one.contribute([4711, 4712])


async def test_a_session_is_exported_as_a_trace_that_names_no_client(caplog):
    caplog.set_level("WARNING", logger=telemetry.SERVER_LOGGER)
    collected, prometheus = Collected(), PrometheusMeter()
    cohort = Cohort(min_clients=3, max_clients=3, min_survivors=3)
    server = OperatedServer(None)
    server.measure_with(Meters([prometheus, collected.exporter]))
    async with collected.exporter:
        async with server:
            task = await server.add_task(
                "ward", PreparedTask.exact(WAIVER, cohort, dimension=2)
            )
            await asyncio.gather(*(contribute_as(server, name) for name in NAMES))
            assert len([released async for released in task.sums()]) == 1
        points = collected.points()
    *rounds, session = collected.spans
    assert session.name == "session"
    assert session.attributes["secagg.task"] == "ward"
    assert [each.name for each in rounds] == [
        "round ADVERTISE_KEYS",
        "round SHARE_KEYS",
        "round MASKED_INPUT_COLLECTION",
        "round UNMASKING",
    ]
    for each in rounds:
        assert each.parent.span_id == session.context.span_id
        assert session.start_time <= each.end_time <= session.end_time
        assert each.start_time <= each.end_time
        assert each.attributes["secagg.answered"] == 3
    # The same numbers as are scraped.
    (released,) = points[metrics.SESSIONS.name]
    assert dict(released.attributes) == {"task": "ward", "outcome": "released"}
    assert released.value == 1
    scraped = prometheus.scraped([]).decode()
    assert 'secagg_sessions_total{outcome="released",task="ward"} 1.0' in scraped
    calls = sum(point.value for point in points[metrics.CALLS.name])
    assert calls == sum(
        float(line.rpartition(" ")[2])
        for line in scraped.splitlines()
        if line.startswith("secagg_calls_total{")
    )
    assert set(points) <= {m.name for m in METRICS if m.kind is not Kind.GAUGE}
    # No client is named, and no input leaves.
    said = "".join(each.to_json() for each in collected.spans) + repr(points)
    assert not [name for name in NAMES if name in said]
    # Whole numbers: any four digits stand in some instant or identifier by chance.
    assert not {"4711", "4712", "14133", "14136"} & set(re.findall(r"\w+", said))


def log(event, **facts):
    telemetry.log_event(LOG, logging.INFO, event, **facts)


ONE = {"task": "t", "number": 1, "session": "00ff"}


async def test_only_numbers_and_known_words_of_an_event_are_exported():
    collected = Collected()
    async with collected.exporter:
        log(telemetry.SESSION_OPENED, round="ADVERTISE_KEYS", **ONE)
        log(telemetry.CLIENT_DROPPED, sender="mallory", round="SHARE_KEYS", **ONE)
        log(telemetry.MESSAGE_REFUSED, sender="mallory", code="INVALID", **ONE)
        log(
            telemetry.SESSION_ABORTED,
            round="SHARE_KEYS",
            code="U3_TOO_SMALL",
            reason="mallory fell silent",
            lost="mallory",
            **ONE,
        )
        log(telemetry.ROUND_CLOSED, round="UNMASKING", seconds=1.0, **ONE)  # too late
        log(telemetry.CERTIFICATE_RENEWED, path="/etc")
    (session,) = collected.spans
    assert "mallory" not in session.to_json()
    assert session.status.description == "U3_TOO_SMALL"
    (event,) = session.events
    assert event.name == "client_dropped"
    assert event.attributes["secagg.round"] == "SHARE_KEYS"
    assert set(session.attributes) <= {f"secagg.{k}" for k in open_telemetry._SHOWN}


async def test_sessions_that_continue_elsewhere_are_closed(monkeypatch):
    monkeypatch.setattr(open_telemetry, "_OPEN_AT_MOST", 2)
    collected = Collected()
    async with collected.exporter:
        for number in range(3):
            log(telemetry.SESSION_RESUMED, task="t", session=number, number=number)
        (oldest,) = collected.spans
        assert oldest.attributes["secagg.number"] == 0
    assert len(collected.spans) == 3


async def test_a_trace_ends_with_a_session_ended_by_another_aggregator():
    collected = Collected()
    async with collected.exporter:
        log(telemetry.SESSION_RESUMED, round="UNMASKING", **ONE)
        log(telemetry.SESSION_ENDED_BY_REPLICA, reason="released", **ONE)
        assert [each.name for each in collected.spans] == ["session"]


def test_only_a_limited_number_of_tasks_is_counted_separately():
    collected = Collected()
    for number in range(TASKS_AT_MOST + 20):
        collected.exporter.add(metrics.UPLOAD_BYTES, 1, task=f"task {number}")
    points = collected.points()[metrics.UPLOAD_BYTES.name]
    assert len(points) == TASKS_AT_MOST + 1
    assert {"task": "other"} in [dict(point.attributes) for point in points]


async def test_the_log_level_is_not_changed_by_the_exporter(capfd):
    log_to_stderr("warning", "text")
    async with Collected().exporter:
        log(telemetry.SESSION_OPENED, **ONE)
        telemetry.log_event(LOG, logging.WARNING, telemetry.SESSION_ABORTED, **ONE)
    assert "session_opened" not in capfd.readouterr().err


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


async def test_traces_and_metrics_are_sent_to_the_configured_collector():
    with HTTPServer(("127.0.0.1", 0), Collector) as listener:
        listener.asked = []
        serving = Thread(target=listener.serve_forever)
        serving.start()
        where = f"http://127.0.0.1:{listener.server_port}/"
        exporter = exporter_of(ServerSection(otlp=where))
        async with exporter:
            log(telemetry.SESSION_OPENED, **ONE)
            exporter.add(metrics.CALLS, method="Join")
        listener.shutdown()
        serving.join()
    assert {"/v1/traces", "/v1/metrics"} == set(listener.asked)


@pytest.mark.parametrize(
    "wrong", ["127.0.0.1:4318", "ftp://host", "http://", "http://user:hush@host:4318"]
)
def test_an_invalid_collector_address_is_rejected_at_the_start(wrong):
    with pytest.raises(ServiceError, match="collector") as caught:
        exporter_of(ServerSection(otlp=wrong))
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "hush" not in str(caught.value)


def test_nothing_is_exported_by_default_and_a_missing_extra_is_named(monkeypatch):
    assert exporter_of(ServerSection()) is None

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(open_telemetry, "import_module", missing)
    with pytest.raises(ServiceError) as caught:
        exporter_of(ServerSection(otlp="http://127.0.0.1:4318"))
    assert caught.value.code is ErrorCode.MISSING_EXTRA
    assert "secagg[otel]" in caught.value.next_step
