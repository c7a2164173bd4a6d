"""A client keeps to the budget of its task, even if the server does not."""

import asyncio

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.inline_store import inline_store
from secagg_testing.offers_only import OffersOnly

from secagg.client.client import Client
from secagg.distributed_dp import report
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.policy import ClientPolicy, PrivacyLimits
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.transport.connection import InMemoryConnection

NAMES = ("alice", "bob", "carol")
DIMENSION = 4
LIMITS = {"max_epsilon": 8.0, "max_delta": 1e-5}


def parameters_for_one_session(spare=0):
    cohort = parameters_for(3, dimension=DIMENSION, threshold=3)
    return with_noise(cohort, spare=spare)


@pytest.fixture
async def aggregator():
    made = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))
    yield made
    await made.close()


async def start(aggregator, sessions, spare=0):
    async def no_payload(_):
        return b""

    async def ignore(_):
        return None

    task = TaskDefinition(
        task_id="t", parameters=parameters_for_one_session(spare), sessions=sessions
    )
    running = asyncio.create_task(
        aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
    )
    await asyncio.sleep(0)  # one turn of the loop: the task is known
    return running


def client(connection, *, privacy_limits=None, cohort=None, state_dir=None):
    return Client(
        connection,
        task="t",
        privacy_limits=PrivacyLimits(
            **{"max_epsilon": 8.0, "max_delta": 1e-5, **(privacy_limits or {})}
        ),
        cohort=ClientPolicy(**(cohort or {})),
        state_dir=state_dir,
    )


@pytest.mark.parametrize("spare", [0, 1])
async def test_a_session_beyond_the_budget_and_its_spare_sessions_is_rejected(
    aggregator, spare
):
    covered = 1 + spare
    running = await start(aggregator, sessions=covered + 1, spare=spare)

    async def one_too_many(name):
        connection = OffersOnly(aggregator, name)
        async with client(connection) as one:
            connection.may_join = True
            for left in reversed(range(covered)):
                given = await one.contribute(np.ones(DIMENSION))
                assert given.inputs == 3
                assert given.sessions_left == left
            connection.may_join = False
            with pytest.raises(
                RemoteProtocolError, match=f"covers {covered}"
            ) as caught:
                await one.contribute(np.ones(DIMENSION))
            return caught.value.code

    codes = await asyncio.gather(*(one_too_many(name) for name in NAMES))
    assert set(codes) == {ErrorCode.POLICY_VIOLATION}
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize(
    ("privacy_limits", "cohort", "expected"),
    [
        ({"max_epsilon": 7.5}, {}, "epsilon"),
        ({"max_delta": 1e-6}, {}, "delta"),
        ({"statuses": frozenset({"proven"})}, {}, "certified"),
        ({"min_local_noise_stddev": 100.0}, {}, "standard deviation"),
        ({}, {"min_survivors": 4}, "min_survivors"),
        ({}, {"min_colluders": 1}, "colluders"),
    ],
)
async def test_an_offer_below_the_limits_is_rejected_before_any_message(
    aggregator, privacy_limits, cohort, expected
):
    running = await start(aggregator, sessions=1)
    connection = OffersOnly(aggregator, "alice")
    async with client(connection, privacy_limits=privacy_limits, cohort=cohort) as one:
        with pytest.raises(RemoteProtocolError, match=expected) as caught:
            await one.contribute(np.ones(DIMENSION))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    running.cancel()
    await asyncio.wait({running})


async def test_a_restarted_client_does_not_compute_epsilon_again(
    aggregator, tmp_path, monkeypatch
):
    running = await start(aggregator, sessions=1)

    async def contribute(name):
        connection = InMemoryConnection(aggregator, name)
        async with client(connection, state_dir=tmp_path / name) as one:
            return await one.contribute(np.ones(DIMENSION))

    first, *_ = await asyncio.gather(*(contribute(name) for name in NAMES))
    await running

    def forbidden(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr("secagg.distributed_dp.report.make_accountant", forbidden)
    report.statement.cache_clear()
    running = await start(aggregator, sessions=2)
    # Its budget is spent: it says so after checking the offer, and not before.
    with pytest.raises(RemoteProtocolError, match="budget covers 1"):
        await contribute("alice")
    running.cancel()
    await asyncio.wait({running})
    assert first.privacy is not None
