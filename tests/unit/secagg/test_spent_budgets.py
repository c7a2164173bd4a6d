"""A spent budget is refused at every entry, whatever entry has spent it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

import secagg
from secagg import blocking
from secagg.client.visit import visit
from secagg.learning import FederatedAveraging, Update
from secagg.wire.calls import GetOffer

LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)
ASKED = {"clients": 3, "l2_clip": 2.0, "epsilon": 8.0, "delta": 1e-6, "steps": 1}
VECTOR = [0.5] * 4


@pytest.fixture(scope="module")
def plan():
    return secagg.plan(**ASKED, dimension=4, mechanism="skellam", spare=0)


@pytest.fixture
def places(tmp_path):
    return {"state_dir": tmp_path / "state", "rollback_mark": tmp_path / "mark"}


def state(places, **more):
    own = {"aggregator": "aggregator", "privacy_limits": LIMITS, "tasks": ["sums"]}
    return secagg.StepClient("ann", **(own | places | more))


async def by_client(server, places):
    async with secagg.Client(
        server.connection("ann"), task="sums", privacy_limits=LIMITS, **places
    ) as one:
        return await one.contribute(VECTOR)


async def by_shared_state(server, places):
    with state(places) as shared:
        async with secagg.Client(
            server.connection("ann"), task="sums", step_client=shared
        ) as one:
            return await one.contribute(VECTOR)


async def by_visits(server, places):
    with state(places) as one:
        while True:
            found = await visit(
                one,
                server.connection("ann"),
                task="sums",
                vector=lambda *_: VECTOR,
                held_seconds=1.0,
            )
            if found.contribution is not None:
                return found.contribution


ENTRIES = {
    "client": by_client,
    "shared": by_shared_state,
    "visit": by_visits,
}


@pytest.mark.parametrize("spends", ["client", "visit"])
async def test_no_client_api_exceeds_the_budget(spends, plan, places):
    """The operator begins the task again, with another server and further numbers."""

    async def give(server, name):
        async with secagg.Client(
            server.connection(name), task="sums", privacy_limits=LIMITS
        ) as one:
            await one.contribute(VECTOR)

    async with secagg.Server(None) as server:
        task = await server.add_task("sums", plan)
        given, *_ = await asyncio.gather(
            ENTRIES[spends](server, places),
            *(give(server, name) for name in ("bob", "cleo")),
            task.next_sum(),
        )
        task.take()
    assert given.inputs == 3
    offer = secagg.StepServer(
        plan, aggregator="aggregator", task_id="sums", session_number=7
    ).offer
    with state(places) as one:
        assert one.sessions_left("sums") == 0
        for ask in (one.step, one.check_offer):
            with pytest.raises(secagg.RemoteProtocolError, match="budget") as caught:
                ask(offer)
            assert caught.value.code is secagg.ErrorCode.POLICY_VIOLATION
    async with secagg.Server(None) as server:
        await server.add_task("others", plan)
        await server.add_task("sums", plan)
        for again in ENTRIES.values():
            with pytest.raises(secagg.SecAggError) as caught:
                await again(Renumbered(server), places)
            assert "budget" in str(caught.value)
            assert caught.value.code is secagg.ErrorCode.POLICY_VIOLATION


class Renumbered:
    """A server whose offers have further numbers, as after a restart from nothing."""

    def __init__(self, server):
        self.server = server

    def connection(self, name):
        link = self.server.connection(name)
        call = link.call

        async def renumbered(request):
            if isinstance(request, GetOffer):
                return replace(
                    await call(replace(request, after_session=0)), session_number=9
                )
            return await call(request)

        link.call = renumbered
        return link


def test_one_ledger_has_one_budget_for_sums_and_training(tmp_path):
    """The same noise under the same ledger, however the block is used."""
    fed = FederatedAveraging(np.zeros(4))
    task = fed.plan(**ASKED, mechanism="skellam", spare=0)
    updates = [lambda _: Update(np.zeros(4))] * 3
    with blocking.local(task, ledger=tmp_path) as people:
        fed.train(people, updates)
    with (
        blocking.local(task, ledger=tmp_path) as people,
        pytest.raises(secagg.SecAggError),
    ):
        people.sum([VECTOR] * 3)
    with (
        blocking.local(task, ledger=tmp_path) as people,
        pytest.raises(secagg.SecAggError),
    ):
        FederatedAveraging(np.zeros(4)).train(people, updates, steps=1)
