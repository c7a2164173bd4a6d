"""Several aggregators of one store: they crash, are cut off, and miss messages.

Every call of a client goes to a replica that chance names.  Whatever happens, each sum
is exact, each session is opened, closed and charged once, and no client sends two
messages for one round (`Deployment.run` checks what the aggregators may know).
"""

import asyncio
import functools
import gc
import os
from collections import Counter
from typing import cast

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import entropy_of
from secagg_testing.inline_store import answer_of, inline_store
from secagg_testing.replicas import Replicas
from secagg_testing.shared_store import SharedStore

from secagg.client.contribution import SessionOutcome
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.session.lease import LEASE_SECONDS
from secagg.server.session.report import SessionReceipt
from secagg.server.session.runner import SumRelease
from secagg.server.task.definition import TaskDefinition
from secagg.server.task.outputs import RETRY_SECONDS
from secagg.simulation import identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.leases import AcquireLease, Heartbeat, RenewLease
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.store import Store
from secagg.wire.calls import GetOffer, GetUpdate, Wait
from tests.cases import recorded_points

CLIENTS = 4
# `make chaos` runs many more.
SCHEDULES = int(os.environ.get("SECAGG_REPLICA_SCHEDULES", "4"))
PARAMETERS = parameters_for(CLIENTS, dimension=7, threshold=3, colluders=1)


# Until the clients of a replica that has died are at work at another one: they come
# back within two seconds, and find what was not announced after two more at most.
RECOVERY_SECONDS = 2.0 + 2.0


number_of = {identity_of(number): number for number in range(CLIENTS)}


async def run_over(clock, store, **options):
    # Clients ask often enough to notice a death within the time that is promised.
    chosen = {"limits": AggregatorLimits(idle_timeout=30.0)} | options
    deployment = Replicas(
        clock, PARAMETERS, CLIENTS, payload=b"a query", server_store=store, **chosen
    )
    return deployment, await deployment.run()


def run(**options):
    return manual_clock.run(
        lambda clock: run_over(clock, inline_store(now=clock.date), **options)
    )


def receipts_of(deployment):
    store = deployment.server_store
    rows = answer_of(store.read(ListSessions(role=Side.SERVER, state=SessionState.ALL)))
    found = [
        answer_of(store.read(LoadSession(row.key))).receipt for row in reversed(rows)
    ]
    assert None not in found  # every session has ended
    return [SessionReceipt.decode(each) for each in found]


def assert_right(deployment, endings, sums):
    assert_safe(deployment)
    assert not deployment.errors
    assert len(deployment.sums) == sums
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


def assert_safe(deployment):
    """Every session exact or a typed abort, none summed twice, nothing left open."""
    assert deployment.contradictions() == {}
    receipts = receipts_of(deployment)
    numbers = [receipt.descriptor.session_number for receipt in receipts]
    assert numbers == list(range(1, len(numbers) + 1))
    released = [each for each in receipts if each.outcome_name == "released"]
    assert len(released) == len(deployment.sums)
    assert all(isinstance(each, SessionAbortedError) for each in deployment.errors)
    for total in deployment.sums:
        added = {number_of[name] for name in total.receipt.survivors}
        assert len(added) == total.survivors >= PARAMETERS.min_survivors
        np.testing.assert_array_equal(total.residues, deployment.expected_sum(added))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("deaf", [frozenset(), frozenset({0, 1, 2})], ids=str)
def test_several_replicas_release_the_same_sums_as_one(replicas, deaf):
    # Longer than a lease lasts without renewal.
    deployment, endings = run(
        replicas=replicas, sessions=3, deaf=deaf, taking_seconds=40.0
    )
    assert_right(deployment, endings, sums=3)
    assert set(Counter(number for _, number in deployment.given).values()) == {1}


def test_a_replica_with_a_full_disk_leaves_the_sum_to_another():
    """At once: while one waits for its disk it keeps no other from the sum."""
    roomy, _ = run(replicas=2, sessions=3)
    full = roomy.given[0][0]  # the first to take a sum finds no room
    deployment, endings = run(replicas=2, sessions=3, full={full})
    assert_right(deployment, endings, sums=3)
    tries: dict[int, list[tuple[int, float]]] = {}
    for (number, session), at in zip(
        deployment.given, deployment.given_at, strict=True
    ):
        tries.setdefault(session, []).append((number, at))
    failed = [each for each in tries.values() if each[0][0] == full]
    assert failed  # it has tried
    assert deployment.settled == [full] * len(failed)
    for (_, began), (taker, at) in failed:
        # Before it would try again itself.
        assert taker != full
        assert at < began + RETRY_SECONDS
    assert all(len(each) == 1 for each in tries.values() if each not in failed)


def test_a_sum_waits_until_some_replica_has_disk_space():
    async def main(clock):
        full = {0, 1}
        making = asyncio.ensure_future(
            run_over(clock, inline_store(now=clock.date), sessions=1, full=full)
        )
        await clock.sleep_until(clock.now() + 300.0)
        assert not making.done()
        full.remove(1)
        return await making

    deployment, endings = manual_clock.run(main)
    assert_right(deployment, endings, sums=1)
    takers = [number for number, _ in deployment.given]
    assert takers[-1] == 1
    assert takers.count(0) > 10
    assert set(deployment.settled) == {0, 1}


@functools.cache
def run_without_deaths():
    """The busiest of three replicas, where it might die, and when all is done."""
    switches = {number: CrashSwitch() for number in range(3)}
    deployment, _ = run(crashes=switches, replicas=3, sessions=2)
    number = max(switches, key=lambda each: len(switches[each].points))
    return number, switches[number].points, deployment.given_at[-1]


def test_the_points_are_those_of_the_busiest_replica(golden):
    golden("points/busiest-replica.txt", "\n".join(run_without_deaths()[1]) + "\n")


@pytest.mark.parametrize("at", range(0, len(recorded_points("busiest-replica")), 7))
def test_the_others_continue_at_once_after_a_replica_crashes(at):
    """Nor waited for: the others continue at once.

    Its clients try again within two seconds, and a replica that polls for what was not
    announced does so every two seconds.  What it had a lease of, the store sees to be
    free.
    """
    switch = CrashSwitch(at)
    number, _, seconds = run_without_deaths()
    deployment, endings = run(crashes={number: switch}, sessions=2, replicas=3)
    assert_right(deployment, endings, sums=2)
    assert switch.is_dead
    assert deployment.given_at[-1] - seconds <= RECOVERY_SECONDS


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_replicas_crash_and_are_cut_off_at_any_time(seed):
    """Both die once, and the third is stopped for longer than its lease lasts."""
    chance = entropy_of(f"schedule {seed}")
    first, second, at, lasts = (chance.token(1)[0] for _ in range(4))
    deployment, endings = run(
        replicas=3,
        seed=str(seed),
        crashes={0: CrashSwitch(first % 60), 1: CrashSwitch(second % 60)},
        cuts={2: (at / 8, float(lasts))},
        deaf=frozenset({seed % 4}),
        sessions=2,
        allowed=8,
    )
    assert_safe(deployment)
    # A client whose call hung for longer than its round lasts is out, and says so.
    for ending in endings.values():
        assert isinstance(ending, SessionOutcome | SessionAbortedError)


def unavailable_error():
    return ServiceError(
        "it is away", code=ErrorCode.STORAGE_FAILED, retry_after_seconds=1.0
    )


class UploadsAway(UploadSpool):
    """Hides the uploads from the reader of the first sum."""

    def __init__(self):
        super().__init__(MemoryBlobs())
        self.reads = Counter()

    def read_upload(self, session_id, digest, offset, size):
        self.reads[digest] += 1
        if self.reads[digest] == 2:  # the first one has checked its entries
            raise unavailable_error()
        return super().read_upload(session_id, digest, offset, size)


def test_temporarily_unavailable_uploads_cost_no_session():
    spool = UploadsAway()
    deployment, endings = run(spool=spool, sessions=1)
    assert max(spool.reads.values()) > 2
    assert_right(deployment, endings, sums=1)
    assert len(receipts_of(deployment)) == 1


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_sum_that_outlasts_its_lease_is_computed_at_most_once_per_replica(
    monkeypatch, replicas
):
    """Replicas that are too busy to renew it lose their lease, and no work."""
    computed, compute = Counter(), MaskExecutor.compute_sum
    ended, kept_until = Counter(), SumRelease._kept_until

    async def compute_for_long(masks, job, spool):
        computed[masks] += 1
        assert computed[masks] == 1
        await asyncio.sleep(0)
        packed = await compute(masks, job, spool)
        await wait(3 * LEASE_SECONDS)
        return packed

    async def end_late_at_first(release):
        ended[release] += 1
        if ended[release] == 1:
            await wait(3 * LEASE_SECONDS)
        return await kept_until(release)

    async def too_busy(*_, **__):
        return False

    async def main(clock):
        nonlocal wait

        async def wait(seconds):
            await clock.sleep_until(clock.now() + seconds)

        deployment = Replicas(
            clock,
            PARAMETERS,
            CLIENTS,
            server_store=inline_store(now=clock.date),
            replicas=replicas,
        )
        return deployment, await deployment.run()

    wait = None
    monkeypatch.setattr(MaskExecutor, "compute_sum", compute_for_long)
    monkeypatch.setattr(SumRelease, "_kept_until", end_late_at_first)
    monkeypatch.setattr(RenewLease, "run", too_busy)
    deployment, endings = manual_clock.run(main)
    assert_right(deployment, endings, sums=1)
    assert 1 <= computed.total() <= replicas


@pytest.mark.parametrize("call", [AcquireLease, RenewLease])
def test_no_replica_ends_during_a_short_store_outage(call, monkeypatch):
    refused = []
    honest = call.run

    async def refuse_now_and_then(command, connection):
        refused.append(len(refused) % 3 == 0)
        if refused[-1]:
            raise unavailable_error()
        return await honest(command, connection)

    monkeypatch.setattr(call, "run", refuse_now_and_then)
    deployment, endings = run(sessions=2)
    assert any(refused)
    assert_right(deployment, endings, sums=2)


def one_more(name, store, spool, clock, **options):
    """Return an aggregator that shares a store and a spool."""
    workers = Workers(general=InlineExecutor())
    return Aggregator(
        cast("Store", SharedStore(store, clock, entropy_of(f"turns of {name}"), [])),
        spool,
        clock=clock,
        entropy=entropy_of(name),
        workers=workers,
        masks=MaskExecutor(workers),
        **options,
    )


def test_a_session_that_one_may_not_serve_is_not_served_because_another_opened_it():
    """R10.3-4: this one's TLS may end in a proxy, and that of the other does not."""
    task = TaskDefinition(task_id="t", parameters=PARAMETERS, sessions=1)

    def refuse(profile):
        raise ServiceError(f"not {profile.label}", code=ErrorCode.BAD_SETTINGS)

    async def main(clock):
        store, spool = inline_store(now=clock.date), UploadSpool(MemoryBlobs())
        one = one_more("one", store, spool, clock)
        proxied = one_more("proxied", store, spool, clock, check_profile=refuse)
        session = await one._sessions.open(task, b"", attempt=1)
        asked = GetUpdate(session.session_id, after=None)
        assert isinstance(await one.answer(identity_of(0), asked), Wait)
        with pytest.raises(ServiceError) as unknown:
            await proxied.answer(identity_of(0), asked)
        with pytest.raises(ServiceError) as restarted:
            await proxied.recover()
        return unknown.value.code, restarted.value.code

    assert manual_clock.run(main) == (
        ErrorCode.UNKNOWN_SESSION,
        ErrorCode.BAD_SETTINGS,
    )


def test_a_session_of_another_release_is_an_error_of_the_store_at_a_replica():
    async def main(clock):
        store, spool = inline_store(now=clock.date), UploadSpool(MemoryBlobs())
        newer = NewSession(role=Side.SERVER, task="t", number=1, header=b"\xff\xff")
        key = f"server/{bytes(32).hex()}"
        await store.commit(Change(key=key, create=newer))
        older = one_more("older", store, spool, clock)
        asked = GetUpdate(bytes(32), after=None)
        with pytest.raises(ServiceError) as refused:
            await older.answer(identity_of(0), asked)
        return refused.value.code

    assert manual_clock.run(main) is ErrorCode.STORAGE_FAILED


def test_a_replica_that_was_cut_off_resumes_with_sessions_opened_by_others():
    task = TaskDefinition(task_id="t", parameters=PARAMETERS, sessions=2)

    async def main(clock):
        store, spool = inline_store(now=clock.date), UploadSpool(MemoryBlobs())
        one, other = (one_more(name, store, spool, clock) for name in ("one", "other"))
        first = await one._sessions.open(task, b"", attempt=1)
        assert (await other._sessions.resumable(task)).session_id == first.session_id
        # The other one hears nothing for a while.
        await first.abort(ErrorCode.CANCELLED, "no reason")
        await one._sessions.close(first)
        second = await one._sessions.open(task, b"", attempt=1)
        found = await other._sessions.resumable(task)
        assert found.session_id == second.session_id
        (row,) = await store.read(ListSessions(role=Side.SERVER))
        assert row.number == second.descriptor.session_number
        await one.close()
        await other.close()

    manual_clock.run(main)


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_failed_refresh_of_tasks_is_not_reported_to_clients(
    monkeypatch, is_waited_for
):
    """A caller hears what is known; one that has gone leaves no trace in the log."""
    hearing = 60.0 if is_waited_for else 0.0
    monkeypatch.setattr("secagg.server.aggregator.HEARING_SECONDS", hearing)
    looks, escaped = [], []

    async def look_at_a_server_that_has_closed():
        looks.append(aggregator)
        raise LocalProtocolError("the server is not open")

    async def main(clock):
        nonlocal aggregator
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, about: escaped.append(about))
        store, spool = inline_store(now=clock.date), UploadSpool(MemoryBlobs())
        aggregator = one_more("one", store, spool, clock)
        aggregator.when_changed(look_at_a_server_that_has_closed)
        with pytest.raises(ServiceError) as caught:
            await aggregator.answer("a", GetOffer("unknown"))
        assert caught.value.code is ErrorCode.UNKNOWN_SESSION
        await clock.sleep_until(clock.now() + 10.0)
        await aggregator.close()

    aggregator = None
    manual_clock.run(main)
    gc.collect()  # a task that no caller has asked is reported when it goes
    assert looks
    assert escaped == []


def test_a_defect_stops_neither_the_refresh_nor_the_heartbeat(monkeypatch, caplog):
    looks, beats = [], []

    async def stumble():
        looks.append(1)
        raise KeyError("a defect")

    async def heartbeat(*_):
        beats.append(1)
        if len(beats) > 1:  # not at the start
            raise KeyError("another")

    async def main(clock):
        store, spool = inline_store(now=clock.date), UploadSpool(MemoryBlobs())
        aggregator = one_more("one", store, spool, clock)
        aggregator.when_changed(stumble)
        await aggregator.recover()
        await clock.sleep_until(clock.now() + 21.0)
        await aggregator.close()

    monkeypatch.setattr(Heartbeat, "run", heartbeat)
    manual_clock.run(main)
    assert len(looks) > 1
    assert len(beats) > 3
    assert "KeyError: 'a defect'" in caplog.text
    assert "KeyError: 'another'" in caplog.text


def test_requests_for_old_sessions_evict_no_newer_ones():
    async def main(clock):
        store = inline_store(now=clock.date)
        deployment = Replicas(
            clock, PARAMETERS, CLIENTS, server_store=store, sessions=3
        )
        await deployment.run()
        await clock.sleep_until(clock.now() + 100_000.0)
        aggregator = one_more(
            "late", store, deployment.spool, clock, limits=AggregatorLimits(kept_sums=1)
        )
        await aggregator.recover()
        sessions = aggregator._sessions
        newest, *older = await store.read(
            ListSessions(role=Side.SERVER, state=SessionState.ALL)
        )
        for row in older:
            session_id = bytes.fromhex(row.key.rpartition("/")[2])
            found = await sessions.find_session(session_id)
            assert found.descriptor.session_id == session_id
        (kept,) = sessions._ended
        assert kept.hex() in newest.key
        await aggregator.close()

    manual_clock.run(main)
