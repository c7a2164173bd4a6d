"""Whether a coin has won shows in nothing but the sum: not in time, size or words."""

import asyncio
import dataclasses
from concurrent.futures import Future
from fractions import Fraction

import numpy as np
import pytest

from secagg.client.client import Client
from secagg.client.conductor import ClientSettings, Conductor
from secagg.distributed_dp import NoisedTask, plan
from secagg.errors import ErrorCode, LocalProtocolError, SessionAbortedError
from secagg.policy import PrivacyFloors
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.noise_terms import noise_secrets
from secagg.server.aggregator import Aggregator
from secagg.server.task import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.inline_executor import InlineExecutor
from secagg.storage.spool import UploadSpool
from secagg.testing import manual_clock
from secagg.testing.cohorts import parameters_for
from secagg.testing.deployment import Deployment
from secagg.testing.inline_book import inline_book
from secagg.testing.lying_connection import LyingConnection
from secagg.transport.in_memory import InMemoryConnection
from secagg.wire.calls import UploadChunk

CLIENTS, DIM = 4, 6
TRAINING_SECONDS = 20.0


def noised(rate):
    made = plan(
        clients=CLIENTS,
        dimension=DIM,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        steps=4,
        selection_rate=rate,
        min_survivors=CLIENTS - 1,
        ladder=0,
    )
    cohort = parameters_for(
        CLIENTS,
        dimension=1,
        threshold=3,
        min_clients=CLIENTS,
        min_survivors=CLIENTS - 1,
    )
    return NoisedTask.from_plan(made, cohort)


@pytest.fixture(scope="module")
def half():
    return noised(Fraction(1, 2))


@pytest.fixture(scope="module")
def everybody():
    return noised(None)


class Run:
    """Four clients, of whom those that were selected train for a while."""

    def __init__(self, task, answer_at, monkeypatch, *, seconds=TRAINING_SECONDS):
        self.task, self.seconds = task, seconds
        self.selected, self.uploads, self.refused = {}, {}, []
        self.settings = ClientSettings(offer_seconds=60.0, answer_at=answer_at)
        self.lasting = 0.0
        keep_time = Conductor._keep_time

        async def noting(conductor):
            try:
                await keep_time(conductor)
            except SessionAbortedError as error:
                self.refused.append(error)
                raise

        monkeypatch.setattr(Conductor, "_keep_time", noting)
        monkeypatch.setattr(
            "secagg.testing.deployment.InlineExecutor", lambda: TakingTime(self)
        )
        manual_clock.run(self._main)

    async def _main(self, clock):
        self.clock = clock
        deployment = Deployment(
            clock,
            self.task.parameters,
            CLIENTS,
            make_input=self._input,
            tamper=self._watch,
            settings=self.settings,
            max_attempts=1,
        )
        await deployment.run()

    def _input(self, number):
        def make(descriptor, _, secrets):
            # Whoever's coin has won: every second one, so that both are there.
            selected = number % 2 == 0
            self.selected.setdefault(number, selected)
            self.lasting = self.seconds if selected else 0.0
            return self.task.encode(
                np.ones(DIM), session_id=descriptor.session_id, secrets=secrets
            ).vector

        return make

    def _watch(self, number, connection):
        run = self

        class Watched(LyingConnection):
            async def call(self, request):
                if isinstance(request, UploadChunk):
                    seen = (run.clock.now(), len(request.data))
                    run.uploads.setdefault(number, seen)
                return await super().call(request)

        return Watched(connection, {})


class TakingTime(InlineExecutor):
    """Gives the result of a call when the time that it takes has passed."""

    def __init__(self, run):
        self._run = run

    def submit(self, fn, /, *args, **kwargs):
        done = super().submit(fn, *args, **kwargs)
        seconds, self._run.lasting = self._run.lasting, 0.0
        if not seconds:
            return done
        later, clock = Future(), self._run.clock

        async def wait():
            await clock.sleep_until(clock.now() + seconds)
            later.set_result(done.result())

        later.waiting = asyncio.get_running_loop().create_task(wait())
        return later


def test_with_a_fixed_time_both_coins_upload_as_much_and_at_once(half, monkeypatch):
    """R3.5-2."""
    run = Run(half, 0.5, monkeypatch)
    assert len(run.uploads) == CLIENTS
    assert len(set(run.uploads.values())) == 1


def test_without_one_the_time_would_tell(half, monkeypatch):
    run = Run(half, None, monkeypatch)
    times = {number: seen[0] for number, seen in run.uploads.items()}
    first = min(times.values())
    assert {number: time > first for number, time in times.items()} == run.selected
    assert len({size for _, size in run.uploads.values()}) == 1


def test_a_task_without_selection_does_not_wait(everybody, monkeypatch):
    run = Run(everybody, 0.5, monkeypatch, seconds=0.0)
    # Half of the round has not passed, even since before the clients joined.
    began = 1000.0
    half_a_round = 0.5 * everybody.parameters.deadlines.masked_input
    assert all(time < began + half_a_round for time, _ in run.uploads.values())


def test_a_vector_that_comes_too_late_does_not_leave(half, monkeypatch):
    run = Run(half, 0.01, monkeypatch)
    assert {n: n not in run.uploads for n in range(CLIENTS)} == run.selected
    for error in run.refused:
        assert error.code is ErrorCode.POLICY_VIOLATION
        assert "too late" in str(error)
    assert len(run.refused) == sum(run.selected.values())


@pytest.fixture
async def aggregator():
    made = Aggregator(inline_book(), UploadSpool(MemoryBlobs()))
    yield made
    await made.close()


@pytest.mark.parametrize(("answer_at", "asked"), [(0.5, 3), (None, 4)])
async def test_only_a_client_with_a_fixed_time_may_skip_the_making(
    half, aggregator, monkeypatch, answer_at, asked
):
    coins = iter([False, True, True, True])
    monkeypatch.setattr(NoisedTask, "is_selected", lambda *_: next(coins))

    async def at_once(_):
        return None

    monkeypatch.setattr(Conductor, "_keep_time", at_once)
    made = []

    def make(session):
        made.append(session.session_number)
        return np.ones(DIM)

    async def no_payload(_):
        return b""

    async def ignore(_):
        return None

    task = TaskDefinition(task_id="t", parameters=half.parameters, sessions=1)
    serving = asyncio.create_task(
        aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
    )
    await asyncio.sleep(0)  # one turn of the loop: the task is known

    async def contribute(name):
        async with Client(
            InMemoryConnection(aggregator, name),
            task="t",
            floors=PrivacyFloors(max_epsilon=8.0, max_delta=1e-5),
            answer_at=answer_at,
        ) as one:
            return await one.contribute(make)

    given = await asyncio.gather(*(contribute(f"client-{n}") for n in range(CLIENTS)))
    await serving
    assert len(made) == asked
    # A session is a session: whoever was not asked has spent as much as the others.
    assert {one.sessions_left for one in given} == {3}
    # Made vectors were too long, and zeros are not: where some are not made, it would
    # tell whose.
    assert {one.shortened_by is None for one in given} == {answer_at is not None}
    assert all(one.privacy.selection_rate == Fraction(1, 2) for one in given)


@pytest.mark.parametrize("part", [0.0, 1.0, -0.5, float("nan")])
def test_a_time_outside_the_round_is_refused(aggregator, part):
    with pytest.raises(LocalProtocolError, match="answer_at"):
        Client(
            InMemoryConnection(aggregator, "alice"),
            task="t",
            floors=PrivacyFloors(max_epsilon=8.0, max_delta=1e-5),
            answer_at=part,
        )


def test_another_set_of_sharers_has_another_coin(half):
    """R3.5-2: two uploads under one coin would not be two selected releases."""
    seen = set()
    for number in range(20):
        one = secrets_of(b"seed", b"context %d" % number)
        seen.add(half.is_selected(one))
        again = secrets_of(b"seed", b"context %d" % number)
        assert half.is_selected(again) == half.is_selected(one)
    assert seen == {True, False}


def secrets_of(seed, context):
    return noise_secrets(
        SecretBytes(seed.ljust(32)),
        (),
        sharers=CLIENTS,
        context=context.ljust(32),
        suite=CipherSuite(1),
    )


def test_nothing_around_an_input_shows_its_coin(half):
    texts = set()
    for number in range(12):
        secrets = secrets_of(b"seed %d" % number, b"context")
        given = half.encode(np.zeros(DIM), session_id=bytes(32), secrets=secrets)
        hidden = dataclasses.replace(
            given.vector, residues=np.zeros_like(given.vector.residues)
        )
        texts.add((repr(given), repr(hidden), str(given.shortened_by)))
    assert len(texts) == 1
