"""What watches an aggregator: a scrape, probes, gRPC's health, a page for people."""

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from html.parser import HTMLParser
from http import HTTPStatus
from itertools import product
from types import MappingProxyType, SimpleNamespace
from unittest.mock import AsyncMock

import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from secagg_testing import manual_clock

from secagg.client.client import Client
from secagg.config import load_task_settings
from secagg.config.server import ServerSection
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Round
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.protocol.rounds import DropReason
from secagg.runtime import metrics
from secagg.runtime.log_events import CLOCK_BEHIND, CLOCK_DIFFERS
from secagg.runtime.metrics import METRICS, PROCESS_METRICS, Kind
from secagg.server.admin.page import operator_page
from secagg.server.admin.snapshot import StatusSnapshot
from secagg.server.http.listener import HTTPListener, text
from secagg.server.http.readiness import PROBE_EVERY_SECONDS, Readiness
from secagg.server.server import OperatedServer
from secagg.server.service import meter_of, page_address, watching
from secagg.server.supervisor import TaskSupervisor
from secagg.server.telemetry.measures import PrometheusMeter
from secagg.storage.changes import Touch
from secagg.storage.queries import ListTasks, ReadClock
from secagg.transport.address import Address
from secagg.transport.relay import Rejection
from secagg.wire.calls import CALLS

TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "b", "progress", "small"}
TAGS |= {"footer", "ul", "li"}
HOSTILE = "<script>alert(1)</script>&"
FILE = f"""
[task]
id = "{HOSTILE}"
steps = 2
invited = ["a", "b"]
[vector]
dimension = 2
[cohort]
min_clients = 2
max_clients = 2
min_survivors = 2
[noise]
none = "{NO_NOISE_ACKNOWLEDGEMENT}"
"""

NOISED = """
[task]
id = "noised"
steps = 3
schedule = "every 1h"
[vector]
dimension = 6
[cohort]
min_clients = 8
max_clients = 10
min_survivors = 7
[noise]
mechanism = "skellam"
epsilon = 4.0
delta = 1e-6
l2_clip = 1.0
"""


async def get(address, path, **options):
    async with httpx.AsyncClient() as client:
        return await client.request(
            options.pop("method", "GET"), f"http://{address}{path}", **options
        )


class World:
    def __init__(self, directory):
        self.section = ServerSection(
            metrics_listen="127.0.0.1:0",
            page_listen="127.0.0.1:0",
            state_dir=directory / "state",
        )
        (directory / "task.toml").write_text(FILE)
        self.proposed = load_task_settings(directory / "task.toml")
        self.directory = directory

    @asynccontextmanager
    async def running(self, *more):
        self.keeper = keeper = TaskSupervisor(
            self.directory / "sums",
            self.section.state_dir,
            own_task=HOSTILE,
            notify=lambda _: None,
        )
        meter = meter_of(self.section)
        self.server = OperatedServer(
            "127.0.0.1:0",
            insecure_for_tests=True,
            state_dir=self.section.state_dir,
        )
        self.server.measure_with(meter)
        async with self.server:
            await keeper.start(self.server, [self.proposed, *more])
            async with watching(self.server, self.section, meter) as self.watched:
                yield self
            self.server.drain()
            await keeper.close()

    async def give(self, name):
        async with Client(
            self.server.connection(name),
            task=HOSTILE,
            privacy_limits=ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT),
            cohort=ClientPolicy(min_clients=2, min_survivors=2, require_noise=False),
        ) as one:
            await one.contribute([1, 2])

    async def scrape(self):
        answer = await get(self.watched.metrics, "/metrics")
        assert answer.status_code == HTTPStatus.OK
        return answer.text

    async def page(self):
        answer = await get(self.watched.page, "/")
        assert answer.status_code == HTTPStatus.OK
        return answer


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr("secagg.server.server.SETTLE_SECONDS", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "marks"))
    return World(tmp_path)


class Shown(HTMLParser):
    """Reads a page as a browser would: tags, and the words of each row."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.rows, self.wanting = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        tag = self.tags[-1][0]
        if tag in ("td", "th", "b", "small") and self.rows:
            self.rows[-1][-1] += data
        elif tag == "li":
            self.wanting.append(data)


async def test_page_metrics_and_health_agree_on_a_session(world):
    """One aggregator, one client of two: then both, and a sum."""
    async with world.running():
        first = asyncio.ensure_future(world.give("a"))
        async for progress in world.server.progress():
            if progress.joined:
                break
        shown = Shown((page := await world.page()).text)
        (row,) = [row for row in shown.rows if "1 of 2" in row]
        assert row[0] == HOSTILE
        assert row[6] == "b"  # who is missing
        # Nothing of the name became a tag, and the page can neither act nor load.
        assert {tag for tag, _ in shown.tags} <= TAGS
        assert not {"src", "href", "onclick"} & {k for _, a in shown.tags for k in a}
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        scraped = await world.scrape()
        assert f'secagg_sessions_open{{task="{HOSTILE}"}} 1.0' in scraped
        assert f'secagg_round_answered{{task="{HOSTILE}"}} 1.0' in scraped

        await asyncio.gather(first, world.give("b"))
        async for progress in world.server.progress():
            if progress.session_number > 1:
                break
        scraped = await world.scrape()
        ended = f'secagg_sessions_total{{outcome="released",task="{HOSTILE}"}} 1.0'
        assert ended in scraped
        assert 'closed_by="full"' in scraped
        assert "secagg_sum_seconds_count 1.0" in scraped
        uploaded = re.search(r"secagg_upload_bytes_total{.*} (\S+)", scraped)
        assert float(uploaded[1]) > 0
        assert not re.search(r"[\"',]b[\"',]", scraped)  # no client's name
        shown = Shown((await world.page()).text)
        assert ["released", "2", "2"] in [row[2:5] for row in shown.rows]
        assert shown.wanting == []
        assert (await get(world.watched.metrics, "/readyz")).text == "ready\n"
        assert await health(world) == health_pb2.HealthCheckResponse.SERVING


async def health(world):
    async with grpc.aio.insecure_channel(str(world.server.address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        return answer.status


async def test_the_privacy_cost_of_a_task_is_on_the_page_and_in_the_metrics(
    world, tmp_path
):
    (tmp_path / "noised.toml").write_text(NOISED)
    async with world.running(load_task_settings(tmp_path / "noised.toml")):
        scraped = await world.scrape()
        shown = Shown((await world.page()).text)
    gauge = re.compile(r'^(secagg_task_\w+{[^}]*noised"}) (\S+)$', re.MULTILINE)
    read = dict(gauge.findall(scraped))
    left = float(read['secagg_task_sessions_left{task="noised"}'])
    assert (
        left - 3 == float(read['secagg_task_spare_sessions_left{task="noised"}']) >= 0
    )
    assert read['secagg_task_slot_seconds{task="noised"}'] == "3600.0"
    labels = 'against="%s",task="noised"'
    epsilons = {
        against: float(read[f"secagg_task_epsilon{{{labels % against}}}"])
        for against in ("server", "model_reader")
    }
    assert 0 < epsilons["model_reader"] <= epsilons["server"] <= 4.0
    (row,) = [r for r in shown.rows if r[0] == "noised" and r[5] == str(int(left))]
    assert row[1] == f"{epsilons['server']:.4g}"
    assert row[4] == "certified (own proof)"
    assert shown.wanting == []


async def test_problems_that_need_a_person_are_at_the_top_of_the_page(
    world, monkeypatch
):
    async with world.running() as running:
        world.server.pending_writes.refused[HOSTILE] = why = "No <space> left"
        assert re.search(
            r'secagg_task_pending_writes\{task=".*"\} 1.0', await world.scrape()
        )
        await running.keeper.pause(HOSTILE, reason="wrong <b>model</b>")
        overview = StatusSnapshot(world.server, world.section.state_dir)
        status = await overview.status()
        replicas = [
            {"name": f"vm-{n}", "address": address, "version": "1", "started": "2026"}
            | {"silent_seconds": 700.0 * n}
            for n, address in enumerate(["10.0.0.1:7400", None])
        ]
        soon = {"certificate_days": 29, "is_draining": True, "replicas": replicas}
        soon = status["server"] | soon
        monkeypatch.setattr(
            StatusSnapshot, "status", AsyncMock(return_value=status | {"server": soon})
        )
        page = await operator_page(overview.sources(), "the disk & all")
    shown = Shown(page.decode())
    assert shown.wanting == [
        f"Task {HOSTILE} is paused: wrong <b>model</b>",
        f"Files of task {HOSTILE} cannot be written, and it waits: {why}",
        "The certificate ends in 29 days",
    ]
    assert ["10.0.0.1:7400", "here", "2026", "0 s ago", "1", "vm-0"] in shown.rows
    assert ["no port yet", "silent", "2026", "12 min ago", "1", "vm-1"] in shown.rows
    assert "<p>the disk &amp; all</p>" in page.decode()
    assert '<b class="warn">draining</b>' in page.decode()
    assert {tag for tag, _ in shown.tags} <= TAGS


async def test_probes_distinguish_a_live_process_from_a_ready_one(world, monkeypatch):
    async def refuse(*_):
        raise ServiceError("disk full", code=ErrorCode.STORAGE_FAILED)

    async with world.running():
        monkeypatch.setattr(Touch, "run", refuse)
        world.section = replace(world.section, page_listen=None)
        meter = PrometheusMeter()
        async with watching(world.server, world.section, meter) as watched:
            answer = await get(watched.metrics, "/readyz")
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            assert "disk full" in answer.text
            assert (await get(watched.metrics, "/healthz")).text == "alive\n"
            scraped = (await get(watched.metrics, "/metrics")).text
            assert "secagg_is_ready 0.0" in scraped
            assert "secagg_task_slot_seconds" in scraped
            assert await health(world) == health_pb2.HealthCheckResponse.NOT_SERVING
            # A store that says nothing at all takes its own readings with it.
            monkeypatch.setattr(ListTasks, "run", refuse)
            answer = await get(watched.metrics, "/metrics")
            assert answer.status_code == HTTPStatus.OK
            assert "secagg_is_ready 0.0" in answer.text
            assert "secagg_task_slot_seconds{" not in answer.text


class Gate:
    """Replaces the relay of a server."""

    connections = 3
    refused = MappingProxyType({Rejection.NO_HELLO: 7})


async def test_the_metrics_count_connections_rejected_before_a_call(world, monkeypatch):
    async with world.running():
        monkeypatch.setattr(world.server.transport, "relay", Gate())
        scraped = await world.scrape()
    assert 'secagg_connections_open{entry="grpc"} 3.0' in scraped
    assert 'secagg_connections_refused{entry="grpc",reason="no_hello"} 7.0' in scraped


async def test_the_metrics_contain_every_metric_of_the_table(world):
    async with world.running():
        scraped = await world.scrape()
    named = set(re.findall(r"^# TYPE (\S+)", scraped, re.MULTILINE))
    expected = {metric.name for metric in METRICS} | PROCESS_METRICS
    assert named == expected


def test_the_size_of_the_metrics_is_bounded_with_many_tasks():
    """Every label takes every value that it can; tasks, three outcomes each."""
    meter = PrometheusMeter()
    values = {
        "task": [f"task {number}" for number in range(300)],
        "outcome": ["released", "U3_TOO_SMALL", "CANCELLED"],
        "code": [code.name for code in ErrorCode],
        "method": [request.__name__ for request in CALLS],
        "round": [each.name for each in Round],
        "reason": [str(reason) for reason in DropReason],
        "closed_by": ["full", "deadline"],
        "against": ["server", "model_reader"],
        "version": ["1"],
        "which": ["server", "ca", "helper", "edge"],
        "entry": ["grpc", "edge"],
        "engine": ["threads"],
        "result": ["done", "lost"],
    }
    readings = []
    for metric in METRICS:
        for words in product(*(values[name] for name in metric.labels)):
            labels = dict(zip(metric.labels, words, strict=True))
            if metric.kind is Kind.GAUGE:
                readings.append((metric, 1.0, labels))
            elif metric.kind is Kind.HISTOGRAM:
                meter.observe(metric, 1.0, **labels)
            else:
                meter.add(metric, **labels)
    lines = meter.scraped(readings).decode().splitlines()
    series = [line for line in lines if not line.startswith("#")]
    assert len(series) < 2100
    assert 'secagg_upload_bytes_total{task="other"} 200.0' in series
    assert not any(
        "secagg_task_slot_seconds" in line and "other" in line for line in series
    )


def test_no_metric_label_can_name_a_client_or_a_session():
    allowed = {"task", "outcome", "code", "method", "round", "reason"}
    allowed |= {"against", "closed_by", "engine", "entry", "result", "version", "which"}
    assert {label for metric in METRICS for label in metric.labels} <= allowed
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    declared = {v for v in vars(metrics).values() if isinstance(v, metrics.Metric)}
    assert declared == set(METRICS)


def test_the_page_listens_on_loopback_only():
    with pytest.raises(ServiceError, match="other machines") as caught:
        page_address(ServerSection(page_listen="0.0.0.0:80"))
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert page_address(ServerSection()) is None
    assert meter_of(ServerSection()) is None


# --- the listener ---------------------------------------------------------------------


async def status_line(address, data):
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


async def hello():
    return text("hello")


async def broken():
    raise RuntimeError("a secret")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: localhost:1", 200),
        ("GET /?a=b HTTP/1.0\r\nHOST: 127.0.0.1", 200),
        ("GET / HTTP/1.1\r\nHost: [::1]:80", 200),
        ("HEAD / HTTP/1.1\r\nHost: localhost", 200),
        ("GET /none HTTP/1.1\r\nHost: localhost", 404),
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost", 404),
        ("POST / HTTP/1.1\r\nHost: localhost", 405),
        ("GET / HTTP/1.1\r\nHost: rebound.example", 421),
        ("GET / HTTP/1.1\r\nHost: localhost.rebound.example", 421),
        ("GET / HTTP/1.1\r\nHost: 192.0.2.1", 421),
        ("GET / HTTP/1.1\r\nHost: [", 421),
        ("GET / HTTP/1.1", 421),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: rebound.example", 421),
        ("GET /broken HTTP/1.1\r\nHost: localhost", 500),
        ("GET /", 400),
        ("\x16\x03\x01", 400),
        ("GET / HTTP/1.1\r\nX: " + "x" * 20_000, 400),
    ],
)
async def test_each_request_is_answered_with_its_status(head, status, caplog):
    listener = HTTPListener(
        Address("127.0.0.1", 0), {"/": hello, "/broken": broken}, is_local=True
    )
    async with listener:
        line = await status_line(listener.address, head.encode("latin-1") + b"\r\n\r\n")
    assert line.split()[1] == str(status).encode()
    assert ("call_failed" in caplog.text) == (status == 500)


async def test_an_answer_to_head_has_no_body_and_an_error_no_reason():
    pages = {"/": hello, "/broken": broken}
    async with HTTPListener(Address("127.0.0.1", 0), pages, is_local=True) as listener:
        head = await get(listener.address, "/", method="HEAD")
        assert (head.content, head.headers["content-length"]) == (b"", "6")
        assert "secret" not in (await get(listener.address, "/broken")).text


async def test_silent_connections_are_closed_for_new_ones(monkeypatch):
    monkeypatch.setattr("secagg.server.http.listener._CALLERS_AT_MOST", 2)
    pages = {"/": hello}
    async with HTTPListener(Address("127.0.0.1", 0), pages, is_local=False) as listener:
        where = listener.address.host, listener.address.port
        silent = [await asyncio.open_connection(*where) for _ in range(2)]
        with pytest.raises(httpx.HTTPError):
            await get(listener.address, "/")
        silent[0][1].close()
        await silent[0][1].wait_closed()
        answer = None
        while answer is None:  # until the listener has seen it go
            try:
                answer = await get(listener.address, "/")
            except httpx.HTTPError:
                continue
        assert answer.text == "hello\n"
        silent[1][1].close()


# --- readiness ------------------------------------------------------------------------


class Disk:
    def __init__(self, *, newest=None, differs=0.0):
        self.writes, self.blocks = 0, False
        self.newest, self.differs, self.clock = newest, differs, None

    async def read(self, query):
        if isinstance(query, ReadClock):
            return self.clock.date() + self.differs
        if self.newest is None:
            return ()
        return (
            SimpleNamespace(ended=self.newest, born=self.newest - 900),
            SimpleNamespace(ended=None, born=self.newest - 60),
        )

    async def commit(self, _):
        self.writes += 1
        if self.blocks:
            await asyncio.Event().wait()


def test_readiness_writes_only_occasionally_and_does_not_wait_for_a_disk(tmp_path):
    async def main(clock):
        disk, runs = Disk(), [True]
        readiness = Readiness((disk,), tmp_path, lambda: runs[0], clock)
        assert [await readiness.complaint() for _ in range(3)] == [""] * 3
        assert disk.writes == 1
        runs[0] = False  # is not remembered
        assert await readiness.complaint() == "no task runs"
        await clock.sleep_until(clock.now() + PROBE_EVERY_SECONDS)
        disk.blocks = True
        return await readiness.complaint()

    assert "took longer than 2 s" in manual_clock.run(main)


def test_a_full_disk_is_not_ready(tmp_path, monkeypatch):
    async def main(clock):
        monkeypatch.setattr("secagg.server.http.readiness.MIN_FREE_BYTES", 1 << 62)
        return await Readiness((Disk(),), tmp_path, lambda: True, clock).complaint()

    assert "MiB of disk are free" in manual_clock.run(main)


@pytest.mark.parametrize("behind", [59, 61, 7200])
def test_a_clock_behind_the_store_delays_readiness_by_ten_minutes_at_most(
    tmp_path, caplog, behind
):
    async def main(clock):
        disk = Disk(newest=clock.date() + behind)
        readiness = Readiness((disk,), tmp_path, lambda: True, clock)
        status_line = []
        for _ in range(140):
            status_line.append(await readiness.complaint())
            await clock.sleep_until(clock.now() + PROBE_EVERY_SECONDS)
        return status_line

    status_line = manual_clock.run(main)
    waited = sum(PROBE_EVERY_SECONDS for each in status_line if "clock" in each)
    expected = {59: 0, 61: 5, 7200: 600}[behind]
    assert abs(waited - expected) <= PROBE_EVERY_SECONDS
    assert status_line[-1] == ""
    assert [each.message.split()[0] for each in caplog.records].count(CLOCK_BEHIND) == (
        behind == 7200
    )


@pytest.mark.parametrize("differs", [-3600.0, 59.0, 61.0])
def test_a_clock_that_differs_from_the_database_is_only_logged(
    tmp_path, caplog, differs
):
    async def main(clock):
        disk = Disk(newest=clock.date() + 7200, differs=differs)
        disk.clock = clock
        readiness = Readiness(
            (disk,), tmp_path, lambda: True, clock, is_store_elsewhere=True
        )
        return await readiness.complaint()

    assert manual_clock.run(main) == ""
    assert (CLOCK_DIFFERS in caplog.text) == (abs(differs) > 60)
