"""A store that rejects, disconnects or fails over under a running aggregator.

Everything is in one process and on a virtual clock; real databases are restarted and
promoted by `make fail-over`.
"""

import asyncio
import dataclasses
from collections import Counter

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.deployment import Deployment, entropy_of
from secagg_testing.inline_store import answer_of, inline_store

from secagg.client.contribution import SessionOutcome
from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.session.report import SessionReceipt
from secagg.server.task.definition import TaskDefinition
from secagg.simulation import identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.change import Change, Side
from secagg.storage.queries import ListSessions, LoadSession, ReadMissed
from secagg.storage.rows import SessionState
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.store import StoreFailoverError, StoreUnavailableError
from tests.cases import recorded_points

CLIENTS, SUMS = 3, 2
PARAMETERS = with_noise(
    parameters_for(CLIENTS, dimension=CLIENTS + 1, threshold=2, colluders=0),
    steps=SUMS,
    spare=2,
)


class Between:
    """Wraps a store or a spool; `strike` is called before and after every call."""

    def __init__(self, inner, strike):
        self.inner, self.strike = inner, strike

    def __getattr__(self, name):
        call = getattr(self.inner, name)

        def between(*words, **more):
            self.strike(name, "before")
            answer = call(*words, **more)
            self.strike(name, "after")
            return answer

        return between


class StoreBetween(Between):
    is_shared = False

    def __getattr__(self, name):
        call = getattr(self.inner, name)

        async def between(*words, **more):
            self.strike(name, "before")
            answer = await call(*words, **more)
            self.strike(name, "after")
            return answer

        return between


class Struck(Deployment):
    """A deployment whose storage is struck once the aggregator answers."""

    def begin(self):
        self.given = Counter()
        self.points = []
        self.server_store = StoreBetween(self.server_store, self.strike)
        self.spool = Between(self.spool, self.strike)

    def strike(self, name, when):
        if self.aggregator is not None:
            self.points.append(f"{when} {name}")
            self.meet(len(self.points) - 1)

    def meet(self, point):
        """Do what is to be done at a point; raises what the call shall raise."""

    async def _on_sum(self, released):
        self.given[released.descriptor.session_number] += 1
        await super()._on_sum(released)


class Refusing(Struck):
    """Refuses one call, which has had its effect or not."""

    at = -1

    def meet(self, point):
        if point == self.at:
            raise ServiceError(
                "the disk is full",
                code=ErrorCode.STORAGE_FAILED,
                retry_after_seconds=1.0,
            )


# Longer than any timeout for a disk that refuses.
AWAY_SECONDS = 90.0


class Away(Struck):
    """The store becomes unreachable at a point, and reachable after a while."""

    at, since = -1, None

    def meet(self, point):
        if point == self.at:
            self.since = self.clock.now()
        if self.is_away():
            raise StoreUnavailableError("it is away", next_step="Wait.")

    def is_away(self):
        since = self.since
        return since is not None and self.clock.now() < since + AWAY_SECONDS

    def begin(self):
        super().begin()
        self.spool = self.spool.inner  # which is elsewhere


class FailedOver(Away):
    """The store fails over to one that may have lost commits."""

    def begin(self):
        super().begin()
        self.server_store = FailingOver(self.server_store, self)

    def meet_again(self):
        """Do what is to be done when a session of before has been read again."""


class FailedOverTwice(FailedOver):
    """It becomes unreachable again before the restored session is ended."""

    is_first = True

    def meet_again(self):
        if self.is_first:
            self.is_first, self.since = False, self.clock.now()


class FailingOver:
    """What a database does after its fail-over to sessions that were open before."""

    is_shared = False

    def __init__(self, inner, deployment):
        self.inner, self.deployment, self.put_back = inner, deployment, None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def judge(self, key, *, restored):
        if self.deployment.since is None or self.deployment.is_away():
            return
        if self.put_back is None:
            rows = await self.inner.inner.read(ListSessions(role=Side.SERVER))
            self.put_back = {row.key for row in rows}
        if key in self.put_back and not restored:
            raise StoreFailoverError(key)

    async def commit(self, change):
        if not isinstance(change, Change):
            return await self.inner.commit(change)
        stored = await self.inner.inner.read(LoadSession(change.key))
        if stored is not None and not stored.ended:
            await self.judge(change.key, restored=change.restored)
        return await self.inner.commit(change)

    async def read(self, query):
        if isinstance(query, ReadMissed):
            await self.judge(query.key, restored=query.restored)
        stored = await self.inner.read(query)
        if not isinstance(query, LoadSession):
            return stored
        is_known = self.put_back is not None and query.key in self.put_back
        if is_known:
            self.deployment.meet_again()
        return dataclasses.replace(stored, restored=True) if is_known else stored


def run(kind, *, sums, **more):
    async def main(clock):
        deployment = kind(
            clock,
            PARAMETERS,
            CLIENTS,
            sessions=sums,
            allowed=SUMS + 2,
            payload=b"a model",
        )
        for name, value in more.items():
            setattr(deployment, name, value)
        deployment.begin()
        return deployment, await deployment.run()

    return manual_clock.run(main)


def assert_served(deployment, endings, sums):
    """The aggregator never ended, every sum is exact, and was given once."""
    assert deployment.server_error is None
    assert deployment.server_restarts == 0
    assert len(deployment.sums) == sums
    assert set(deployment.given.values()) == {1}
    for released in deployment.sums:
        inside = {
            n for n in range(CLIENTS) if identity_of(n) in released.receipt.survivors
        }
        np.testing.assert_array_equal(
            released.residues, deployment.expected_sum(inside)
        )
    assert deployment.contradictions() == {}
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


def points_of_the_server():
    """Calls that the aggregator makes by itself; a write may have succeeded."""
    writes = {"commit", "put", "put_facts", "drop_uploads"}
    for at, point in enumerate(recorded_points("store-that-refuses")):
        when, name = point.split()
        if name not in {"append", "read_upload"} and (
            when == "before" or name in writes
        ):
            yield at


@pytest.mark.parametrize(
    ("name", "kind"),
    [("refuses", Refusing), ("is-away", Away), ("fails-over", FailedOver)],
)
def test_the_points_of_a_store_are_those_recorded(name, kind, golden):
    points = run(kind, sums=1)[0].points
    golden(f"points/store-that-{name}.txt", "\n".join(points) + "\n")


@pytest.mark.parametrize("at", tuple(points_of_the_server()))
def test_one_rejected_write_ends_no_aggregator(at):
    deployment, endings = run(Refusing, sums=1, at=at)
    assert_served(deployment, endings, sums=1)
    (released,) = deployment.sums
    assert released.survivors == CLIENTS
    # Nor is a session left behind that began although the store had refused it.
    assert not answer_of(
        deployment.server_store.inner.read(ListSessions(role=Side.SERVER))
    )


def some_points(name, *, every):
    return range(0, len(recorded_points(f"store-that-{name}")), every)


@pytest.mark.parametrize("at", some_points("is-away", every=7))
def test_no_client_notices_a_store_outage(at):
    deployment, endings = run(Away, sums=SUMS, at=at)
    assert_served(deployment, endings, sums=SUMS)
    assert [released.survivors for released in deployment.sums] == [CLIENTS] * SUMS
    rows = answer_of(
        deployment.server_store.inner.read(
            ListSessions(role=Side.SERVER, state=SessionState.ALL)
        )
    )
    assert len(rows) == SUMS  # the sessions that were open continued


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        *((FailedOver, at) for at in some_points("fails-over", every=7)),
        *((FailedOverTwice, at) for at in some_points("fails-over", every=35)),
    ],
)
def test_sessions_open_at_a_failover_are_ended_and_others_follow(kind, at):
    deployment, endings = run(kind, sums=SUMS, at=at)
    assert_served(deployment, endings, sums=SUMS)
    store = deployment.server_store.inner.inner
    for key in deployment.server_store.put_back or ():
        receipt = SessionReceipt.decode(answer_of(store.read(LoadSession(key))).receipt)
        assert receipt.outcome_name in {"released", "STORAGE_FAILED"}
        if receipt.outcome_name == "STORAGE_FAILED":
            # It is unknown what was sent: every input counts as summed.
            assert receipt.was_restored
            assert answer_of(store.read(LoadSession(key))).spent


@pytest.mark.parametrize("had_its_effect", [False, True])
def test_no_session_begins_after_a_drain_during_a_full_disk(had_its_effect):
    """A drain takes effect while a session's creation waits for room."""

    class Full:
        is_shared, refusals = False, 0

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        async def commit(self, change):
            if self.refusals or not isinstance(change, Change):
                return await self.inner.commit(change)
            self.refusals += 1
            if had_its_effect:
                await self.inner.commit(change)
            self.aggregator.drain()
            raise ServiceError("the disk is full", code=ErrorCode.STORAGE_FAILED)

    async def main(clock):
        store = Full(inline_store(now=clock.date))
        workers = Workers(general=InlineExecutor())
        store.aggregator = aggregator = Aggregator(
            store,
            UploadSpool(MemoryBlobs()),
            clock=clock,
            entropy=entropy_of("one"),
            workers=workers,
            masks=MaskExecutor(workers),
        )
        task = TaskDefinition(task_id="t", parameters=PARAMETERS, sessions=1)
        running = asyncio.ensure_future(
            aggregator.run_task(task, next_payload=no_payload, on_sum=no_sum)
        )
        await clock.sleep_until(clock.now() + 60.0)
        rows = await store.read(ListSessions(role=Side.SERVER, state=SessionState.ALL))
        # What the disk took before it refused is there, and waits for its clients.
        assert len(rows) == had_its_effect
        assert store.refusals == 1
        assert running.done() is not had_its_effect
        running.cancel()
        await asyncio.wait({running})
        await aggregator.close()

    manual_clock.run(main)


async def no_payload(_):
    return b""


async def no_sum(_):
    raise AssertionError
