"""Whether a coin has won shows in nothing but the sum: not in time, size or words."""

import asyncio
import dataclasses
from concurrent.futures import Executor, Future
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.inline_store import inline_store

from secagg.client import program
from secagg.client.application import Application
from secagg.client.client import Client
from secagg.client.open_client import OpenClient
from secagg.client.session_driver import SessionDriver
from secagg.config import ClientSettings
from secagg.config.client import ClientSection, IdentitySection, PolicySection
from secagg.config.common import TLSSection
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.errors import LocalProtocolError
from secagg.protocol.noise_terms import noise_secrets
from secagg.protocol.policy import PrivacyLimits
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.transport.connection import InMemoryConnection

CLIENTS, DIM = 4, 6
TRAINING_SECONDS = 20.0


class Training(Executor):
    """Calls of a function take a while."""

    def __init__(self, run, seconds):
        self._run, self._seconds = run, seconds

    def submit(self, fn, /, *args, **kwargs):
        later, result, clock = Future(), fn(*args, **kwargs), self._run.clock

        async def wait():
            await clock.sleep_until(clock.now() + self._seconds)
            if later.set_running_or_notify_cancel():
                later.set_result(result)

        later.waiting = asyncio.get_running_loop().create_task(wait())
        return later


def trained(run, monkeypatch, *, seconds=TRAINING_SECONDS, bad=()):
    """Let the coins of every second client win; those train for a while.

    Some of the functions fail.  Returns the run, and who was asked for a vector.
    """
    asked = []
    coins = {}

    async def is_selected(self, offered):
        secrets = self._live[offered.session_id].session.noise_secrets
        return coins.setdefault(secrets.seed.reveal(), len(coins) % 2 == 0)

    monkeypatch.setattr(OpenClient, "is_selected", is_selected)

    def function(number):
        def make(_):
            asked.append(number)
            return np.full(DIM, np.nan) if number in bad else np.ones(DIM)

        return make

    run.run(
        {number: function(number) for number in range(CLIENTS)},
        {number: Training(run, seconds) for number in range(CLIENTS)},
    )
    return run, asked


def test_with_a_fixed_time_selected_and_unselected_clients_upload_alike(
    half, cohort, monkeypatch
):
    """R3.5-2."""
    run, asked = trained(cohort(half, answer_at=0.5), monkeypatch)
    assert len(asked) == CLIENTS // 2
    assert len(run.uploads) == CLIENTS
    assert len(set(run.uploads.values())) == 1


def test_without_a_fixed_time_every_client_calls_its_function(
    half, cohort, monkeypatch
):
    run, asked = trained(cohort(half), monkeypatch)
    assert len(asked) == CLIENTS
    assert len(set(run.uploads.values())) == 1


def test_make_unselected_calls_the_function_of_every_client(half, cohort, monkeypatch):
    """Else its files would tell the coin; what it failed by tells nothing then."""
    run = cohort(half, answer_at=0.5, make_unselected=True)
    run, asked = trained(run, monkeypatch, bad={1, 2})
    assert sorted(asked) == [*range(CLIENTS)]
    assert len(set(run.uploads.values())) == 1
    given = [each for gifts in run.gifts.values() for each in gifts]
    assert sum(each.replaced is not None for each in given) == 2
    assert sum(each.shortened_by is not None for each in given) == 2


def test_the_command_reads_its_file_regardless_of_the_selection(monkeypatch):
    """It notes the file and writes the payload: a trace for each session."""
    monkeypatch.setattr(program.TLSIdentity, "load", lambda **_: None)
    monkeypatch.setattr(program, "Client", lambda *_, **given: given)
    settings = ClientSettings(
        client=ClientSection(server="h:1", task="t", answer_at=0.3),
        tls=TLSSection(ca=Path("a"), certificate=Path("c"), key=Path("k")),
        enrolment=IdentitySection(),
        policy=PolicySection(max_epsilon=1.0, max_delta=1e-6),
    )
    given = program.client_of(settings)
    assert given["answer_at"] == 0.3
    assert given["make_unselected"]


@pytest.mark.parametrize("seconds", [0.0, TRAINING_SECONDS, 4000.0])
def test_failing_and_late_functions_do_not_reveal_the_selection(
    half, cohort, monkeypatch, seconds
):
    """No message, time or line of a log says who was asked, and who failed."""
    run, asked = trained(
        cohort(half, answer_at=0.5), monkeypatch, seconds=seconds, bad=range(CLIENTS)
    )
    assert 0 < len(asked) < CLIENTS
    assert run.inputs == [CLIENTS]
    first, *others = (run.sent[number] for number in range(CLIENTS))
    assert all(without_names(each) == without_names(first) for each in others)
    lines, *others = (run.logged[number] for number in range(CLIENTS))
    assert all(each == lines for each in others)
    assert "zeros_given" not in {event for _, event, _ in lines}
    for (given,) in run.gifts.values():
        assert given.replaced is None
        assert given.shortened_by is None


def without_names(sent):
    return [(kind, size, at) for kind, size, at in sent if kind != "GetOffer"]


@pytest.fixture
async def aggregator():
    made = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))
    yield made
    await made.close()


async def at_once(_, make, **__):
    return make()


@pytest.mark.parametrize(("answer_at", "asked"), [(0.5, 3), (None, 4)])
async def test_only_a_client_with_a_fixed_time_skips_the_function_if_unselected(
    half, aggregator, monkeypatch, answer_at, asked
):
    coins = iter([False, True, True, True])
    monkeypatch.setattr(NoisyTask, "is_selected", lambda *_: next(coins))
    # Uploads leave at the beginning of the round, without a wait.
    monkeypatch.setattr(SessionDriver, "_vector_due_at", lambda _: 0.0)
    monkeypatch.setattr(Application, "vector", at_once)
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
            privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
            answer_at=answer_at,
        ) as one:
            return await one.contribute(make)

    given = await asyncio.gather(*(contribute(f"client-{n}") for n in range(CLIENTS)))
    await serving
    assert len(made) == asked
    # A session is a session: a client not asked has spent as much as the others.
    assert {one.sessions_left for one in given} == {3}
    # Made vectors were too long, and zeros are not: where some are not made, it would
    # tell whose.
    assert {one.shortened_by is None for one in given} == {answer_at is not None}
    assert all(one.privacy.selection_rate == Fraction(1, 2) for one in given)


@pytest.mark.parametrize("part", [0.0, 1.0, -0.5, float("nan")])
def test_an_answer_time_outside_the_round_is_rejected(aggregator, part):
    with pytest.raises(LocalProtocolError, match="answer_at"):
        Client(
            InMemoryConnection(aggregator, "alice"),
            task="t",
            privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
            answer_at=part,
        )


def test_the_selection_depends_on_the_set_of_share_holders(half):
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
        share_holders=CLIENTS,
        context=context.ljust(32),
        suite=CipherSuite(1),
    )


def test_no_representation_of_an_input_shows_its_selection(half):
    texts = set()
    for number in range(12):
        secrets = secrets_of(b"seed %d" % number, b"context")
        given = half.encode(np.zeros(DIM), session_id=bytes(32), secrets=secrets)
        hidden = dataclasses.replace(
            given.vector, residues=np.zeros_like(given.vector.residues)
        )
        texts.add((repr(given), repr(hidden), str(given.shortened_by)))
    assert len(texts) == 1
