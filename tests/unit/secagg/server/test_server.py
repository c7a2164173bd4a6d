"""Tasks of a server, their sums, and what happens when it stops."""

import asyncio
import gc

import numpy as np
import pytest

from secagg.client.client import Client
from secagg.distributed_dp import plan
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
)
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.server import Server
from secagg.server.session.report import SessionReceipt
from secagg.server.task.setup import Cohort, PreparedTask
from secagg.storage.change import Side
from secagg.storage.open_store import open_state
from secagg.storage.queries import ListSessions
from secagg.storage.rows import Retention, SessionState
from secagg.transport.tls import TLSIdentity
from secagg.wire.calls import GetOffer

WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
COHORT = Cohort(min_clients=2, max_clients=2, min_survivors=2)
PAIR = ClientPolicy(min_clients=2, min_survivors=2, require_noise=False)
EXACT = PreparedTask.exact(WAIVER, COHORT, dimension=2)


async def contribute_as(server, name, task, *vectors):
    async with Client(
        server.connection(name), task=task, privacy_limits=WAIVER, cohort=PAIR
    ) as one:
        return [await one.contribute(vector) for vector in vectors]


def both(server, task, *vectors):
    """Let two clients give the same vectors."""
    return asyncio.gather(
        *(contribute_as(server, n, task, *vectors) for n in ("a", "b"))
    )


async def test_each_payload_may_depend_on_the_previous_sum():
    weights = np.zeros(2, np.int64)
    asked = []

    def payload(sums_so_far):
        asked.append(sums_so_far)
        return weights.tobytes()

    def step(session):
        return np.frombuffer(session.payload, np.int64) + 1

    async with Server(None) as server:
        task = await server.add_task("t", EXACT, steps=3, payload=payload)
        giving = asyncio.ensure_future(both(server, "t", step, step, step))
        totals = []
        async for total in task.sums():
            weights += total.values
            totals.append(total.values.tolist())
        await giving
    assert totals == [[2, 2], [6, 6], [18, 18]]
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("wrong", [None, "model", bytearray(b"model")], ids=repr)
async def test_a_payload_that_is_no_bytes_ends_no_task_unseen(wrong):
    """None would say that the task is over, to the program and to its clients."""
    async with Server(None) as server:
        task = await server.add_task("t", EXACT, payload=lambda _: wrong)
        with pytest.raises(LocalProtocolError, match="payload must be of class bytes"):
            await task.wait()
        with pytest.raises(ServiceError) as told:
            await server.connection("a").call(GetOffer("t"))
    assert told.value.code is ErrorCode.SHUTTING_DOWN  # and not TASK_OVER


async def test_tasks_run_concurrently():
    async with Server(None) as server:
        first = await server.add_task("one", EXACT)
        second = await server.add_task("two", EXACT)
        _, _, one, two = await asyncio.gather(
            both(server, "one", [1, 0]),
            both(server, "two", [0, 1]),
            first.next_sum(),
            second.next_sum(),
        )
    np.testing.assert_array_equal(one.values, [2, 0])
    np.testing.assert_array_equal(two.values, [0, 2])


async def test_an_unconfirmed_sum_is_delivered_again_after_a_restart(
    tmp_path, monkeypatch
):
    # A process that did not run a session does not know who was told of its end.
    monkeypatch.setattr("secagg.server.server.SETTLE_SECONDS", 0.0)
    async with Server(None, state_dir=tmp_path) as server:
        task = await server.add_task("t", EXACT, steps=2)
        giving = asyncio.ensure_future(both(server, "t", [1, 2]))
        released = await task.next_sum()
        await giving
    with pytest.raises(ServiceError) as caught:
        await task.wait()
    assert caught.value.code is ErrorCode.CANCELLED

    async with Server(None, state_dir=tmp_path) as server:
        task = await server.add_task("t", EXACT, steps=2)
        assert task.released_before == 0
        again = await task.next_sum()
        assert again.session_number == released.session_number
        np.testing.assert_array_equal(again.values, released.values)
        task.take()
        giving = asyncio.ensure_future(both(server, "t", [3, 4]))
        async for total in task.sums():
            np.testing.assert_array_equal(total.values, [6, 8])
        await giving

    async with Server(None, state_dir=tmp_path) as server:
        task = await server.add_task("t", EXACT, steps=2)
        assert task.released_before == 2
        assert await task.next_sum() is None


async def test_sums_count_after_their_receipts_are_deleted(tmp_path):
    async with Server(None, state_dir=tmp_path) as server:
        task = await server.add_task("t", EXACT)
        giving = asyncio.ensure_future(both(server, "t", [1, 2]))
        async for _ in task.sums():
            pass
        await giving
    nothing = Retention(keep_receipts=0)
    for _ in range(2):  # purged by the first, gone at the second
        async with Server(None, state_dir=tmp_path, retention=nothing) as server:
            task = await server.add_task("t", EXACT)
            assert task.released_before == 1
            assert await task.next_sum() is None
    store = await open_state(tmp_path)
    assert (
        await store.read(ListSessions(role=Side.SERVER, state=SessionState.ALL)) == ()
    )
    await store.close()


async def test_a_sum_is_repeated_until_the_loop_confirms_it():
    async with Server(None) as server:
        task = await server.add_task("t", EXACT, steps=1)
        giving = asyncio.ensure_future(both(server, "t", [1, 2]))
        async for total in task.sums():
            first = total
            break
        await giving
        assert [total.session_number async for total in task.sums()] == [
            first.session_number
        ]
        await task.wait()
        assert task.sums_left == 0


async def test_a_task_runs_no_more_sums_than_its_noise_was_planned_for():
    made = plan(
        clients=2,
        dimension=2,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        steps=2,
        spare=1,
        mechanism="skellam",
    )
    prepared = PreparedTask.from_plan(made, COHORT)
    async with Server(None) as server:
        with pytest.raises(LocalProtocolError, match="planned for 2"):
            await server.add_task("t", prepared, steps=3)
        task = await server.add_task("t", prepared)
        with pytest.raises(LocalProtocolError, match="runs already"):
            await server.add_task("t", prepared)
        assert not task.is_done


@pytest.mark.parametrize(
    "waiver", [None, True, PrivacyLimits(max_epsilon=1, max_delta=0.5)]
)
def test_exact_sums_require_a_waiver(waiver):
    with pytest.raises(LocalProtocolError, match="waiver"):
        PreparedTask.exact(waiver, COHORT, dimension=2)


# Refused before it is read.
IDENTITY = object.__new__(TLSIdentity)


@pytest.mark.parametrize(
    ("listen", "more", "complaint"),
    [
        (None, {"identity": IDENTITY}, "require an address"),
        (None, {"insecure_for_tests": True}, "require an address"),
        ("localhost:0", {}, "TLS identity"),
        ("localhost:0", {"identity": IDENTITY, "insecure_for_tests": True}, "TLS"),
        ("localhost:0", {"identity": IDENTITY}, "state_dir"),
    ],
)
def test_a_listening_server_requires_a_certificate_and_a_state_directory(
    listen, more, complaint
):
    with pytest.raises(LocalProtocolError, match=complaint):
        Server(listen, **more)


async def test_a_server_works_only_while_open():
    server = Server(None)
    with pytest.raises(LocalProtocolError, match="not open"):
        await server.add_task("t", EXACT)
    async with server:
        with pytest.raises(LocalProtocolError, match="open already"):
            await server.__aenter__()
        with pytest.raises(LocalProtocolError, match="does not listen"):
            _ = server.address


async def test_a_task_keeps_receipts_of_the_latest_sums_only():
    """It may run for months: those of the latest sums are there for latecomers."""
    sums = AggregatorLimits().kept_sums + 4
    async with Server(None, keep_seconds=0.0) as server:
        task = await server.add_task("for months", EXACT, steps=sums)
        giving = asyncio.ensure_future(both(server, "for months", *[[1, 2]] * sums))
        async for _ in task.sums():
            pass
        await giving
        gc.collect()
        kept = [
            each
            for each in gc.get_objects()
            if isinstance(each, SessionReceipt)
            and each.descriptor.task_id == "for months"
        ]
        assert len(kept) <= AggregatorLimits().kept_sums
