"""Several tasks behind one port: whose call it is, and what operators say of them."""

import asyncio

import numpy as np
import pytest
from secagg_testing.crash_points import CrashingStore, CrashSwitch, SimulatedCrashError
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import HELPER_KEY, TwoAggregators, noise_for

from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.runtime.workers import Workers
from secagg.server.admin.operations import SessionFilter
from secagg.server.storage import ServerStorage
from secagg.storage.change import Side
from secagg.storage.postgres.executor import PostgresExecutor
from secagg.storage.queries import ReadTally
from secagg.storage.rows import TaskState
from secagg.storage.spool import SUM
from secagg.storage.store import TableStore
from secagg.transport.address import Address
from secagg.transport.connection import InMemoryConnection
from secagg.two_aggregators import Helper, PartyServer
from secagg.wire.calls import Blob, FetchChunk, GetOffer, GetUpdate, Wait, WatchSession

TASKS = ("counts", "heights")
VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]
NOISE = noise_for(participations=3)
NAMES = [f"client-{place}" for place in range(4)]


class Both:
    """Two tasks between two aggregators, each of which is one server."""

    def __init__(self, clock, storages=None):
        self.clock = clock
        self.pairs = {
            task: TwoAggregators(
                clock, NOISE, task=task, storages=(storages or {}).get(task)
            )
            for task in TASKS
        }
        pairs = self.pairs.values()
        self.servers = {
            name: PartyServer(
                [getattr(pair, name) for pair in pairs],
                Address("127.0.0.1", 0),
                None,
                clock=clock,
            )
            for name in ("leader", "helper")
        }
        for pair in pairs:  # the leaders call the helper's one port, too
            pair.leader._helper = pair.leader._calls._connection = self.way(
                "helper", "leader"
            )

    @property
    def storages(self):
        return {task: pair.storages for task, pair in self.pairs.items()}

    def way(self, name, client):
        return InMemoryConnection(self.servers[name], client, aggregator=name)

    def contribute_all(self, task):
        pair = self.pairs[task]
        return asyncio.gather(
            pair.leader.next_sum(),
            *(
                pair.client(
                    name,
                    leader=self.way("leader", name),
                    helper=self.way("helper", name),
                ).contribute(vector)
                for name, vector in zip(NAMES, VECTORS, strict=True)
            ),
        )

    def fetch(self, released):
        call = FetchChunk(released.session_id, Blob.SUM, 0, 1 << 20)
        return self.way("leader", NAMES[0]).call(call)


def test_two_tasks_run_concurrently_and_each_call_reaches_its_task():
    async def main(clock):
        both = Both(clock)
        results = await asyncio.gather(*(both.contribute_all(task) for task in TASKS))
        sums = [released for released, *_ in results]
        for released, *given in results:
            assert released.inputs == 4
            for each in given:
                assert each.is_included
                np.testing.assert_array_equal(each.values, released.values)
        pieces = [(await both.fetch(released)).data for released in sums]
        assert pieces[0] != pieces[1]
        views = await both.servers["leader"].views(None).tasks()
        assert [(view["task"], view["sums"]) for view in views] == [
            (task, 1) for task in TASKS
        ]
        # What is no session, or no task, here is refused as by one party alone.
        way = both.way("leader", NAMES[0])
        for call, code in (
            (GetUpdate(bytes(32), 0), ErrorCode.UNKNOWN_SESSION),
            (GetOffer("weights"), ErrorCode.TASK_OVER),
        ):
            with pytest.raises(ServiceError) as refused:
                await way.call(call)
            assert refused.value.code is code
        with pytest.raises(RemoteProtocolError, match="may not call"):
            both.servers["leader"].watch(NAMES[0], WatchSession(bytes(32), 0))

    run(main)


def test_erasing_sessions_of_one_task_leaves_others_intact():
    """Both parties remove each session of their spool that is not theirs."""

    async def main(clock):
        both = Both(clock)
        kept, *_ = await both.contribute_all("heights")
        stored = await both.fetch(kept)
        first, *_ = await both.contribute_all("counts")
        for _ in range(2):  # each forgets the sum before the last, at both
            await both.contribute_all("counts")
        with pytest.raises(ServiceError, match="over"):
            await both.fetch(first)
        assert await both.fetch(kept) == stored
        helper = both.pairs["heights"].helper
        (part,) = helper._storage.spool.session_ids()
        assert helper._storage.spool.read(part, SUM, 0, None)
        # The whole state of the other task is gone, and both start again.
        again = Both(clock, {"heights": both.pairs["heights"].storages})
        for server in again.servers.values():
            async with server:
                pass
        assert await again.fetch(kept) == stored
        assert (await again.pairs["heights"].leader.last_sum()).inputs == 4
        assert await again.pairs["counts"].leader.last_sum() is None
        results = await asyncio.gather(*(again.contribute_all(task) for task in TASKS))
        assert [released.inputs for released, *_ in results] == [4, 4]

    run(main)


def test_a_paused_task_opens_no_session_and_does_not_delay_others():
    async def main(clock):
        both = Both(clock)
        leader, helper = both.servers["leader"], both.servers["helper"]
        await leader.pause("counts", reason="wrong model")
        waiting = asyncio.ensure_future(both.contribute_all("counts"))
        await both.contribute_all("heights")
        offer = GetOffer("counts")
        assert isinstance(await both.way("leader", NAMES[0]).call(offer), Wait)
        tally = await both.pairs["counts"].leader.store.read(
            ReadTally(Side.SERVER, "counts")
        )
        assert tally.highest_number == 0
        view = await leader.views(None).task("counts")
        assert (view["state"], view["reason"], view["version"]) == (
            "paused",
            "wrong model",
            1,
        )
        assert "TASK_SLOT" not in str(view)
        with pytest.raises(ServiceError, match="has version 1, not 7"):
            await leader.resume("counts", expect_version=7)
        with pytest.raises(ServiceError, match="no task"):
            await leader.pause("weights", reason="")
        await leader.resume("counts", expect_version=1)
        released, *_ = await waiting
        assert released.inputs == 4
        # A helper that is paused answers no leader, who says so and opens nothing.
        await helper.pause("counts", reason="maintenance")
        with pytest.raises(SessionAbortedError) as waited:
            await both.pairs["counts"].leader.next_sum()
        assert waited.value.code is ErrorCode.DEADLINE

    run(main)


def test_a_pause_during_a_request_of_the_leader_takes_effect_before_opening():
    async def main(clock):
        both = Both(clock)
        leader, helper = both.servers["leader"], both.servers["helper"]
        await helper.pause("counts", reason="")
        giving = asyncio.ensure_future(both.contribute_all("counts"))
        await clock.sleep_until(clock.now() + 3)  # of 60 in which the helper is asked
        await leader.pause("counts", reason="")
        await helper.resume("counts")
        await clock.sleep_until(clock.now() + 3)
        assert helper.live()
        assert not leader.live()
        store = both.pairs["counts"].leader.store
        assert (await store.read(ReadTally(Side.SERVER, "counts"))).highest_number == 0
        await leader.resume("counts")
        released, *_ = await giving
        assert (released.session_number, released.inputs) == (1, 4)

    run(main)


@pytest.mark.parametrize("name", ["leader", "helper"])
def test_an_open_session_of_a_paused_task_continues(name):
    async def main(clock):
        both = Both(clock)
        server = both.servers[name]
        giving = asyncio.ensure_future(both.contribute_all("counts"))
        while not server.live():
            await clock.sleep_until(clock.now() + 0.01)
        await server.pause("counts", reason="")
        server.drain()
        released, *_ = await giving
        assert released.inputs == 4
        assert server.live() == ()

    run(main)


@pytest.mark.parametrize("at", [0, 1])
def test_a_pause_is_stored_durably_or_not_at_all(at):
    """Killed before or behind the commit: the next process says the same."""

    async def main(clock):
        pair = TwoAggregators(clock, noise_for())
        switch = CrashSwitch(at)
        kept = pair.storages[1]
        pair.helper._storage = ServerStorage(CrashingStore(kept.store, switch), None)
        with pytest.raises(SimulatedCrashError):
            await pair.helper.set_state(TaskState.PAUSED, "why")
        again = pair.restarted(noise_for())
        await again.helper.recover()
        return again.helper.may_open

    assert run(main) is (at == 0)


def test_operations_without_meaning_between_two_aggregators_raise_a_clear_error():
    async def main(clock):
        server = Both(clock).servers["helper"]
        for refused in (
            lambda: server.add(None),
            lambda: server.apply(None, expect_version=1),
            lambda: server.stop("counts", reason=""),
            lambda: server.abort_session(bytes(32), ""),
        ):
            with pytest.raises(ServiceError) as said:
                await refused()
            assert said.value.code is ErrorCode.UNEXPECTED_MESSAGE
            assert said.value.next_step
        with pytest.raises(ServiceError, match="cannot be watched"):
            server.progress()

    run(main)


def test_views_show_the_state_of_each_party():
    async def main(clock):
        both = Both(clock)
        giving = asyncio.ensure_future(both.contribute_all("counts"))
        leader, helper = (
            both.servers[name].views(None) for name in ("leader", "helper")
        )
        while sum(live.progress.answered for live in both.servers["leader"].live()) < 2:
            await clock.sleep_until(clock.now() + 0.01)
        for views in (leader, helper):
            (session,) = await views.sessions(SessionFilter(task="counts"))
            assert session["outcome"] == "running"
            assert session["live"]["expected"] == 4
        await giving
        (told,) = await leader.sessions(SessionFilter(outcome="released"))
        assert (told["joined"], told["inputs"]) == (4, 4)
        assert (await leader.session("counts", 1))["in_the_sum"] == NAMES
        (told,) = await helper.sessions(SessionFilter())
        assert (told["outcome"], told["inputs"]) == ("released", None)
        assert "in_the_sum" not in await helper.session("counts", 1)
        for views in (leader, helper):
            (budget,) = await views.budgets(task="counts")
            assert (budget["sums"], budget["spent"], budget["left"]) == (1, 1, 2)
            assert not budget["is_short"]
            with pytest.raises(ServiceError, match="no session 2"):
                await views.session("counts", 2)
            with pytest.raises(ServiceError, match="no task 'weights'"):
                await views.budgets(task="weights")
        await both.contribute_all("heights")
        for limit, count in ((1, 1), (2, 2), (50, 2)):
            assert len(await leader.sessions(SessionFilter(limit=limit))) == count
        # A session that the leader leaves is one without an answer.
        await both.servers["helper"].answer("leader", GetOffer("counts", 1))
        await both.servers["helper"].answer("leader", GetOffer("counts", 2))
        (told,) = await helper.sessions(SessionFilter(outcome="CANCELLED"))
        assert told["number"] == 2

    run(main)


def test_a_database_is_rejected_where_seeds_must_be_erased():
    async def main(clock):
        pair = TwoAggregators(clock, noise_for())
        store = TableStore(
            object.__new__(PostgresExecutor)
        )  # the real engine, unopened
        storage = ServerStorage(store, None)
        with pytest.raises(ServiceError, match="SQLite alone") as refused:
            Helper(
                "counts",
                noise_for(),
                name="helper",
                leader="leader",
                storage=storage,
                receipt_key=HELPER_KEY,
            )
        assert refused.value.code is ErrorCode.BAD_SETTINGS
        for parties in ([], [pair.helper, pair.helper]):
            with pytest.raises(LocalProtocolError, match="one party for each task"):
                PartyServer(parties, Address("127.0.0.1", 0), None)

    run(main)


def test_a_closing_server_does_not_close_its_callers_threads(monkeypatch):
    closed = []
    monkeypatch.setattr(Workers, "close", closed.append)

    async def main(clock):
        both = Both(clock)
        async with both.servers["helper"]:
            pass
        assert closed == []  # which another task, or another server, may use

    run(main)
