"""R3.5-5 across restarts: the session was joined, and the digest bound decides."""

import asyncio

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.inline_store import inline_store

from secagg.client.client import Client
from secagg.errors import InputError, LocalProtocolError
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ExactSumWaiver,
    PrivacyLimits,
)
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.testbed.connections import PausingConnection
from secagg.transport.connection import InMemoryConnection

DIMENSION = 4
COHORT = parameters_for(3, dimension=DIMENSION, threshold=3, modulus=1 << 16)
LIMITS = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
GOOD = np.ones(DIMENSION)
NAN = np.full(DIMENSION, np.nan)


def good(_):
    return GOOD


def fails(_):
    raise ZeroDivisionError


async def no_payload(_):
    return b""


async def ignore(_):
    return None


@pytest.fixture
async def aggregator():
    made = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))
    yield made
    await made.close()


async def restarted(  # noqa: PLR0913 - what two processes differ in
    aggregator, tmp_path, first, second, *, before, parameters=None
):
    """Stop a client in a session, and start it again with another vector.

    Returns what it got and what the others got; exceptions are values.
    """
    given = WAIVER if parameters is COHORT else LIMITS
    task = TaskDefinition(
        task_id="t", parameters=parameters or with_noise(COHORT), sessions=1
    )
    serving = asyncio.create_task(
        aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
    )
    await asyncio.sleep(0)  # one turn of the loop: the task is known
    stopped = asyncio.Event()
    way = InMemoryConnection(aggregator, "alice")
    paused = PausingConnection(
        way, session_number=1, before=before, on_pause=stopped.set
    )

    async def contribute(connection, vector, **more):
        async with Client(connection, task="t", privacy_limits=given, **more) as one:
            return await one.contribute(vector)

    others = [
        asyncio.create_task(contribute(InMemoryConnection(aggregator, name), GOOD))
        for name in ("bob", "carol")
    ]
    interrupted = asyncio.create_task(contribute(paused, first, state_dir=tmp_path))
    await stopped.wait()
    interrupted.cancel()
    await asyncio.wait({interrupted})
    (alice,) = await asyncio.gather(
        contribute(way, second, state_dir=tmp_path), return_exceptions=True
    )
    if isinstance(alice, Exception):
        for each in others:
            each.cancel()
        serving.cancel()
    found = await asyncio.gather(*others, return_exceptions=True)
    await asyncio.wait({serving})
    return alice, found


@pytest.mark.parametrize(
    "second", [NAN, np.ones(DIMENSION + 1), "text", None, [1 << 60] * DIMENSION, fails]
)
@pytest.mark.parametrize("first", [GOOD, good], ids=["numbers", "function"])
async def test_a_vector_that_becomes_invalid_after_joining_is_replaced_by_zeros(
    aggregator, tmp_path, first, second
):
    """Nothing is bound yet: numbers that were refused before an advert are not now."""
    alice, others = await restarted(aggregator, tmp_path, first, second, before="share")
    assert alice.inputs == 3
    assert alice.replaced
    assert all(other.inputs == 3 and other.replaced is None for other in others)


@pytest.mark.parametrize("second", [GOOD, good, NAN, fails])
async def test_bound_zeros_stay_zeros_after_a_restart(aggregator, tmp_path, second):
    """R5.3-2: another input under the same masks would show the difference."""
    alice, others = await restarted(
        aggregator, tmp_path, fails, second, before="upload"
    )
    assert alice.inputs == 3
    assert alice.replaced
    assert ("before a restart" in alice.replaced) == (second is GOOD or second is good)
    assert all(other.replaced is None for other in others)


async def test_a_bound_vector_stays_the_same_after_a_restart(aggregator, tmp_path):
    alice, _ = await restarted(aggregator, tmp_path, good, GOOD, before="upload")
    assert alice.inputs == 3
    assert alice.replaced is None
    assert alice.shortened_by == pytest.approx(2.0)


@pytest.mark.parametrize("second", [NAN, fails, np.zeros(DIMENSION) + 0.25])
async def test_a_bound_vector_is_never_replaced_by_zeros(
    aggregator, tmp_path, second, caplog
):
    alice, _ = await restarted(aggregator, tmp_path, GOOD, second, before="upload")
    assert isinstance(alice, LocalProtocolError)
    assert "already bound" in str(alice)
    # No zeros were given, and none are said to have been.
    assert "zeros_given" not in {getattr(each, "event", "") for each in caplog.records}


async def test_a_resumed_session_does_not_ask_for_acceptance_again(
    aggregator, tmp_path
):
    """`accept` may not keep a client away that has joined."""
    asked = []

    class Asking(Client):
        async def contribute(self, vector, **_):
            def accept(session):
                asked.append(session.session_number)
                if len(asked) > 1:
                    raise InputError("not this one")

            return await super().contribute(vector, accept=accept)

    task = TaskDefinition(task_id="t", parameters=with_noise(COHORT), sessions=1)
    serving = asyncio.create_task(
        aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
    )
    await asyncio.sleep(0)  # one turn of the loop: the task is known
    stopped = asyncio.Event()
    way = InMemoryConnection(aggregator, "alice")
    paused = PausingConnection(
        way, session_number=1, before="share", on_pause=stopped.set
    )

    async def give(connection, **more):
        async with Asking(connection, task="t", privacy_limits=LIMITS, **more) as one:
            before = await one.is_in_session()
            return before, await one.contribute(GOOD)

    async def give_plainly(name):
        way = InMemoryConnection(aggregator, name)
        async with Client(way, task="t", privacy_limits=LIMITS) as one:
            return await one.contribute(GOOD)

    others = [asyncio.create_task(give_plainly(name)) for name in ("bob", "carol")]
    first = asyncio.create_task(give(paused, state_dir=tmp_path))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})
    was_in_session, given = await give(way, state_dir=tmp_path)
    assert was_in_session
    assert given.inputs == 3
    assert asked == [1]
    await asyncio.gather(*others, serving)


async def test_without_noise_an_invalid_vector_is_an_error_and_can_be_corrected(
    aggregator, tmp_path
):
    alice, _ = await restarted(
        aggregator, tmp_path, GOOD, NAN, before="share", parameters=COHORT
    )
    assert isinstance(alice, InputError)
