"""Many clients contribute to few sums each: every client durably keeps its count."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import numpy as np
import pytest
from secagg_testing.client_state import LastingStore
from secagg_testing.inline_store import inline_store
from secagg_testing.manual_clock import run
from secagg_testing.offers_only import OffersOnly
from secagg_testing.two_aggregators import TASK, TwoAggregators, noise_for

import secagg
from secagg.cli import main
from secagg.client.client import Client
from secagg.config import load_task_settings
from secagg.distributed_dp import plan
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT, ClientPolicy, PrivacyLimits
from secagg.server.admin.printed import task_rows
from secagg.server.admin.views import StoreViews
from secagg.server.aggregator import Aggregator
from secagg.server.server import OperatedServer, Server
from secagg.server.task.definition import TaskDefinition
from secagg.server.task.history import sums_released
from secagg.server.task.setup import PreparedTask, settle_task
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.budget_ledger import BudgetSpentError
from secagg.storage.spool import UploadSpool
from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import GetOffer

DIM = 6
NAMES = [f"client-{number}" for number in range(1, 9)]
# Four sums of four clients, each client in two of them.
COHORTS = [NAMES[:4], NAMES[4:], NAMES[::2], NAMES[1::2]]
LIMITS = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
POLICY = ClientPolicy(min_clients=4, min_survivors=4)


def planned(**changes):
    asked = {"steps": 4, "participations": 2, "mechanism": "skellam"}
    return plan(
        clients=4,
        dimension=DIM,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        scale_factor=64.0,
        **asked | changes,
    )


PREPARED = PreparedTask.from_plan(planned())


def vector_of(name):
    return np.eye(DIM)[NAMES.index(name) % DIM]


async def contribute(connection, name, place):
    """Reopen the client on its own state, and contribute once."""
    async with Client(
        connection,
        task="t",
        privacy_limits=LIMITS,
        cohort=POLICY,
        state_dir=place / name,
    ) as one:
        return await one.contribute(vector_of(name))


async def contribute_all(server, cohort, place):
    return await asyncio.gather(
        *(contribute(server.connection(name), name, place) for name in cohort)
    )


async def confirm_sum(server, task, sums):
    """Take a sum, and return when store and aggregator count it."""
    task.take()
    opened = server._opened()
    # A commit is seen in the store before its writer hears of it.
    while (
        await sums_released(opened.storage.store, "t") < sums
        or (await opened.aggregator._sessions.facts("t")).sums < sums
    ):
        pass  # each question to the store is a turn of the loop


async def test_each_client_contributes_to_two_of_four_sums(tmp_path):
    seen = Counter()
    for number, cohort in enumerate(COHORTS):
        # Server and clients begin again for every sum: only what is stored counts.
        async with Server(None, state_dir=tmp_path / "server") as server:
            task = await server.add_task("t", PREPARED, invited=frozenset(NAMES))
            assert task.released_before == number
            giving = asyncio.ensure_future(contribute_all(server, cohort, tmp_path))
            total = await task.next_sum()
            given = await giving
            await confirm_sum(server, task, number + 1)
            assert total.receipt.survivors == tuple(sorted(cohort))
            expected = sum(vector_of(name) for name in cohort)
            # A correct release is beyond once in 10^15 entries.
            error = np.abs(total.values - expected)
            assert np.all(error < 8 * total.standard_error)
            seen.update(cohort)
            for name, each in zip(cohort, given, strict=True):
                assert each.sessions_left == 2 - seen[name]
            if number == 2:
                for name in cohort:
                    way = server.connection(name)
                    with pytest.raises(
                        ServiceError, match="has used 2 of its 2"
                    ) as over:
                        await way.call(GetOffer("t", 0))
                    assert over.value.code is ErrorCode.TASK_OVER
                # The last session waits for the others alone.
                others = server.connection(COHORTS[3][0])
                offer = await others.call(GetOffer("t", 3, wait_ms=30_000))
                assert offer.session_number == 4
                (live,) = server._opened().aggregator.live()
                assert set(live.missing) == set(NAMES) - set(cohort)
    assert set(seen.values()) == {2}


async def all_sums(task):
    return [total async for total in task.sums()]


async def test_a_client_ends_when_the_server_reports_all_its_participations():
    """With spare sessions its own budget would still cover another one."""
    prepared = PreparedTask.from_plan(planned(spare=1))
    async with Server(None) as server:
        task = await server.add_task("t", prepared)

        async def all_of(name):
            async with Client(
                server.connection(name), task="t", privacy_limits=LIMITS, cohort=POLICY
            ) as one:
                made = one.contributions(lambda _: vector_of(name))
                return [given.sessions_left async for given in made]

        summing = asyncio.ensure_future(all_sums(task))
        left = []
        # Four end while sums are missing. Eight at once may leave three for the last.
        for cohort in (NAMES[:4], NAMES[4:]):
            assert not summing.done()
            left += await asyncio.gather(*map(all_of, cohort))
        totals = await summing
    assert len(totals) == 4
    assert left == [[2, 1]] * 8


@pytest.fixture(name="greedy")
async def _greedy():
    """A server of its own that offers session after session to all clients."""
    aggregator = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))

    async def start(parameters):
        async def no_payload(_):
            return b""

        async def ignore(_):
            return None

        task = TaskDefinition(task_id="t", parameters=parameters, sessions=9)
        running = asyncio.create_task(
            aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
        )
        stack.callback(running.cancel)
        await asyncio.sleep(0)  # one turn of the loop: the task is known
        return aggregator

    async with AsyncExitStack() as stack:
        yield start
    await aggregator.close()


@pytest.mark.parametrize("spare", [0, 1])
async def test_a_restarted_client_rejects_sessions_beyond_its_participations(
    tmp_path, greedy, spare
):
    prepared = PreparedTask.from_plan(planned(spare=spare))
    aggregator = await greedy(prepared.parameters)
    covered = 2 + spare

    async def give(name):
        for left in reversed(range(covered)):
            way = InMemoryConnection(aggregator, name)
            given = await contribute(way, name, tmp_path)
            assert given.sessions_left == left
            # What is stated covers every session that this client may give.
            assert f"in at most {covered} sessions" in given.privacy.privacy_unit
        with pytest.raises(BudgetSpentError, match=f"covers {covered}") as refused:
            # Only offers come through: it must refuse before it says anything.
            await contribute(OffersOnly(aggregator, name), name, tmp_path)
        return refused.value.code

    codes = await asyncio.gather(*(give(name) for name in NAMES[:4]))
    assert set(codes) == {ErrorCode.POLICY_VIOLATION}


@pytest.mark.parametrize("spare", [0, 1])
def test_the_privacy_report_covers_the_sessions_of_one_client(spare):
    some = PreparedTask.from_plan(planned(spare=spare))
    whole = PreparedTask.from_plan(planned(steps=2 + spare, participations=None))
    assert some.report.server == whole.report.server
    assert some.report.model_reader == whole.report.model_reader
    assert some.noised.budget.charges == 2 + spare
    # 4 sums; a spare session of each client is one for every two sums.
    assert (some.sums, some.max_sessions) == (4, 4 + 2 * spare)


@pytest.mark.parametrize(
    ("steps", "invited", "complaint"),
    [
        (5, NAMES, "planned for 4"),
        (1, NAMES, "covers 2 participations"),
        (None, NAMES[:7], "7 clients with 2 participations each give 14 vectors"),
    ],
)
async def test_sums_that_the_clients_cannot_fill_are_rejected(
    steps, invited, complaint
):
    async with Server(None) as server:
        with pytest.raises(LocalProtocolError, match=complaint):
            await server.add_task(
                "t", PREPARED, steps=steps, invited=frozenset(invited)
            )


async def test_each_client_of_a_local_pool_contributes_to_some_sums():
    async with secagg.local(PREPARED, clients=8, privacy_limits=LIMITS) as people:
        for cohort in COHORTS:
            vectors = [vector_of(n) if n in cohort else None for n in NAMES]
            total = await people.sum(vectors)
            assert total.receipt.survivors == tuple(sorted(cohort))
        with pytest.raises(LocalProtocolError, match="released all its sums"):
            await people.sum(vectors)
    with pytest.raises(LocalProtocolError, match="7 clients with 2 participations"):
        async with secagg.local(PREPARED, clients=7, privacy_limits=LIMITS):
            pass


async def test_a_local_session_accepts_exactly_the_planned_number_of_vectors():
    async with secagg.local(PREPARED, clients=8, privacy_limits=LIMITS) as people:
        for count in (3, 5):
            with pytest.raises(LocalProtocolError, match="takes 4 to 4 vectors"):
                await people.sum([np.zeros(DIM)] * count + [None] * (8 - count))


TASK_SETTINGS = f"""
[task]
id = "t"
steps = 4
participations = 2
spare_sessions = 1
invited = [{", ".join(f'"{name}"' for name in NAMES)}]
[vector]
dimension = {DIM}
[cohort]
min_clients = 4
max_clients = 4
min_survivors = 4
[noise]
epsilon = 8.0
delta = 1e-5
l2_clip = 1.0
mechanism = "skellam"
scale_factor = 64.0
"""
BUDGET = TASK_SETTINGS.partition("[noise]\n")[2]
CLIENT_SETTINGS = """
[client]
server = "sums.example.org:1"
task = "t"
state_dir = "{name}"
[tls]
ca = "ca.pem"
certificate = "client.pem"
key = "client.key"
[policy]
max_epsilon = 8.0
max_delta = 1e-5
"""


async def test_operator_and_client_report_the_remaining_budget(tmp_path, capsys):
    (tmp_path / "task.toml").write_text(TASK_SETTINGS)
    settings = load_task_settings(tmp_path / "task.toml")
    async with OperatedServer(None, state_dir=tmp_path / "server") as server:
        store = server.storage.store
        prepared = await settle_task(settings, store, reports=None)
        task = await server.add_task("t", prepared, invited=frozenset(NAMES))
        cohorts = [1, 2, 3, 4], [1, 2, 3, 5], [4, 5, 6, 7]
        for number, cohort in enumerate(cohorts, 1):
            (view,) = await StoreViews(store, tmp_path).tasks()
            assert view["short_of_clients"] == ""
            names = [f"client-{number}" for number in cohort]
            giving = asyncio.ensure_future(contribute_all(server, names, tmp_path))
            await task.next_sum()
            await giving
            await confirm_sum(server, task, number)
        # Five of eight have given twice, and three are too few for a fourth sum.
        (view,) = await StoreViews(store, tmp_path).tasks()
        (budget,) = await StoreViews(store, tmp_path).budgets()
    why = (
        "5 of 8 invited clients used their participations; 3 are left, and a "
        "session needs 4"
    )
    assert (view["clients_finished"], view["short_of_clients"]) == (5, why)
    assert any(why in cell for cell in task_rows([view])[0])
    assert (budget["participations"], budget["charges"]) == (2, 3)
    assert (budget["sums"], budget["sums_planned"]) == (3, 4)
    assert "in at most 3 sessions; which of them" in budget["privacy_unit"]
    for name, given in (("client-1", 2), ("client-6", 1), ("client-8", 0)):
        (tmp_path / "client.toml").write_text(CLIENT_SETTINGS.format(name=name))
        if not given:  # it has never joined, and has no store yet
            continue
        words = ["budget", "--config", str(tmp_path / "client.toml"), "--json"]
        assert await asyncio.to_thread(main, words) == 0
        (said,) = json.loads(capsys.readouterr().out.splitlines()[-1])["budgets"]
        assert (said["charges"], said["given"], said["left"]) == (3, given, 3 - given)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("participations = 2", "participations = 5"), "releases 4 sums"),
        (
            ("steps = 4", "steps = 5"),
            "give 16 vectors, and 5 sums",
        ),
        ((BUDGET, f'none = "{NO_NOISE_ACKNOWLEDGEMENT}"'), "the task has no noise"),
    ],
)
def test_settings_that_the_clients_cannot_fill_are_rejected(
    tmp_path, change, complaint
):
    assert change[0] in TASK_SETTINGS
    (tmp_path / "task.toml").write_text(TASK_SETTINGS.replace(*change))
    with pytest.raises(ServiceError, match=complaint) as refused:
        load_task_settings(tmp_path / "task.toml")
    assert refused.value.code is ErrorCode.BAD_SETTINGS


async def test_with_participations_the_number_of_sums_does_not_change_the_noise(
    tmp_path, monkeypatch
):
    path, store = tmp_path / "task.toml", inline_store()
    blocks = []
    for steps in (3, 4):
        path.write_text(TASK_SETTINGS.replace("steps = 4", f"steps = {steps}"))
        prepared = await settle_task(load_task_settings(path), store, reports=None)
        assert prepared.sums == steps
        blocks.append(prepared.parameters.noise_block)
        # What was planned is remembered: no later planner is asked.
        monkeypatch.setattr("secagg.server.task.setup.plan_noise", lambda _: 1 / 0)
    assert blocks[0] == blocks[1]


async def between_two(deployment, cohort, stores):
    """Have clients contribute once, each on its own store; return the results."""
    clients = [
        deployment.client(name, store=stores.setdefault(name, LastingStore.make()))
        for name in cohort
    ]
    return await asyncio.gather(
        deployment.leader.next_sum(),
        *(one.contribute(np.zeros(5)) for one in clients),
        return_exceptions=True,
    )


def test_with_two_aggregators_each_client_uses_its_participations():
    async def main_of(clock):
        noise, stores = noise_for(participations=2), {}
        deployment = TwoAggregators(clock, noise, steps=4)
        for number, cohort in enumerate(COHORTS):
            released, *given = await between_two(deployment, cohort, stores)
            assert released.inputs == 4
            assert all(each.is_included for each in given)
            if number == 2:  # the leader of a new process still knows
                deployment = TwoAggregators(
                    clock, noise, steps=4, storages=deployment.storages
                )
                await deployment.leader.recover()
                for name in cohort:
                    with pytest.raises(ServiceError, match="has used 2 of 2") as over:
                        await deployment.way_to("leader", name).call(GetOffer(TASK, 0))
                    assert over.value.code is ErrorCode.TASK_OVER
        with pytest.raises(ServiceError, match="all its sums"):
            await deployment.leader.next_sum()

    run(main_of)


def test_with_two_aggregators_a_client_rejects_sessions_beyond_its_participations():
    async def main_of(clock):
        noise, stores = noise_for(participations=2), {}
        deployment = TwoAggregators(clock, noise, steps=9)

        async def no_check(_):
            return None

        deployment.leader._check_participations = no_check
        for _ in range(2):
            released, *_ = await between_two(deployment, NAMES[:4], stores)
            assert released.inputs == 4
        return await between_two(deployment, NAMES[:4], stores)

    _, *refused = run(main_of)
    assert all(isinstance(each, BudgetSpentError) for each in refused)


def test_with_two_aggregators_participations_cannot_exceed_the_sums():
    with pytest.raises(LocalProtocolError, match="covers 2 participations"):
        run(lambda clock: _house(clock, steps=1))


async def _house(clock, **more):
    return TwoAggregators(clock, noise_for(participations=2), **more)
