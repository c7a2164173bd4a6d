"""The parts of a load test: its inputs, its losses, and what a machine can hold."""

import asyncio
import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.load.director import (
    ALLOCATOR,
    CallTraffic,
    ClosedRound,
    LoadResult,
    _Direction,
    _mean_traffic,
)
from secagg.load.layout import LoadLayout
from secagg.load.machine import Machine, check_machine
from secagg.load.plan import LoadPlan, write_server_settings
from secagg.load.vectors import expected_sum, vector_of
from secagg.parameters import Graph
from secagg.profiles import Profile
from secagg.run_folder import client_name
from secagg.storage.vector_files import write_vector

PLAN = LoadPlan(clients=20, dimension=30, degree=4, lost=3, round_seconds=5)
ROOMY = Machine(files=1 << 20, memory_bytes=1 << 40, disk_bytes=1 << 40)


def test_no_two_clients_have_the_same_vector():
    seen = {vector_of(number, 3).tobytes() for number in range(1, 20_001)}
    assert len(seen) == 20_000
    assert expected_sum([], 3).tolist() == [0, 0, 0]
    whole = vector_of(1, 3) + vector_of(5000, 3)
    assert expected_sum([1, 5000], 3).tolist() == whole.tolist()


@pytest.mark.parametrize("lost", [0, 1, 3, 10, 20])
def test_as_many_clients_vanish_as_were_asked_for(lost):
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
def test_clients_insist_on_the_cohort_that_the_aggregator_offers(
    tmp_path, profile, degree, graph
):
    planned = dataclasses.replace(PLAN, profile=profile, degree=degree)
    key = "ed25519:58" + 31 * "66"
    settings = write_server_settings(LoadLayout(tmp_path), planned, enrolment_key=key)
    assert settings.cohort.min_clients == settings.cohort.max_clients == 20
    assert settings.cohort.min_survivors == 17
    assert settings.cohort.degree == degree
    assert (settings.enrolment.enrolment_key == key) is profile.has_identities
    assert planned.policy().graphs == {graph}
    assert planned.policy().profiles == {profile}


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"files": 100}, "144 open files, a process may have 100"),
        ({"memory_bytes": 1 << 20}, "of memory, 1 MiB are free"),
        ({"disk_bytes": 1 << 20}, "of disk, 1 MiB are free"),
    ],
)
def test_a_machine_that_cannot_hold_it_is_told_both_numbers(lacking, said):
    check_machine(PLAN, ROOMY)
    with pytest.raises(ServiceError, match=said) as caught:
        check_machine(PLAN, dataclasses.replace(ROOMY, **lacking))
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.next_step


def test_a_machine_that_says_nothing_of_its_memory_is_believed(tmp_path):
    check_machine(PLAN, dataclasses.replace(ROOMY, memory_bytes=None))
    here = Machine.here(tmp_path)
    assert here.files > 0
    assert here.disk_bytes > 0


@pytest.mark.parametrize("damage", ["sum", "client", "names"])
def test_a_sum_that_is_not_that_of_the_named_clients_is_not_exact(tmp_path, damage):
    async def judge():
        direction = _Direction(LoadLayout(tmp_path), PLAN, "", lambda _: None)
        heard = direction._heard
        heard.included = [client_name(1), client_name(3)]
        values = expected_sum([1, 3], PLAN.dimension)
        write_vector(LoadLayout(tmp_path).released, values.astype("<u4"))
        digest = _digest(values)
        direction._hear({"event": "completed", "number": 1, "sum_sha256": digest})
        completed = list(heard.clients.values())
        assert direction._is_exact(completed)
        match damage:
            case "sum":
                values[0] += 1
                write_vector(LoadLayout(tmp_path).released, values.astype("<u4"))
            case "client":
                completed.append({"sum_sha256": _digest(values + 1)})
            case "names":
                heard.included.append(client_name(2))
        assert not direction._is_exact(completed)

    asyncio.run(judge())


def test_memory_is_measured_as_it_is_held_under_the_shipped_unit():
    unit = Path(__file__).parents[4] / "deploy" / "systemd" / "secagg-server.service"
    lines = unit.read_text().splitlines()
    told = [line.removeprefix("Environment=") for line in lines if "=MALLOC_" in line]
    assert dict(each.split("=") for each in told) == ALLOCATOR


def test_waiting_is_counted_in_the_round_that_waits_for_lost_clients():
    result = LoadResult(
        is_exact=True,
        clients_completed=10,
        clients_lost=2,
        clients_failed=0,
        failure="",
        survivors=10,
        server_start_cpu_seconds=0.5,
        server_cpu_seconds=1.0,
        server_peak_rss_bytes=1,
        traffic=(CallTraffic("A", 1.0, 3.0, 4.0), CallTraffic("B", 0.5, 2.0, 1.0)),
        wall_seconds=1.0,
        rounds=(
            ClosedRound("SHARE_KEYS", 1.0, 9.0, 0.5, 8.0),
            ClosedRound("MASKED_INPUT_COLLECTION", 60.0, 9.0, 30.0, 0.03),
        ),
    )
    # 30 ms in 30 s for ten clients.
    assert result.waiting_cpu_ms == pytest.approx(0.1)
    assert dataclasses.replace(result, clients_lost=0).waiting_cpu_ms is None
    assert (result.bytes_up_per_client, result.bytes_down_per_client) == (5.0, 5.0)


def test_traffic_is_that_of_the_mean_client_call_by_call():
    clients = [
        {"traffic": {"GetUpdate": [3, 30, 60], "GetOffer": [1, 6, 160]}},
        {"traffic": {"GetOffer": [1, 6, 164]}},
    ]
    # In the order of the table of calls, without those that nobody made.
    assert _mean_traffic(clients, 2) == (
        CallTraffic("GetOffer", 1.0, 6.0, 162.0),
        CallTraffic("GetUpdate", 1.5, 15.0, 30.0),
    )


def _digest(values):
    return hashlib.sha256(np.asarray(values, "<i8").tobytes()).hexdigest()
