"""Early, late and repeated clients; servers that wait and retain."""

import asyncio
import logging
from dataclasses import replace

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection

from secagg.client.contribution import Participation, SessionOutcome, last_part
from secagg.client.retry_policy import (
    AttemptCounter,
    Backoff,
    ErrorStage,
    NextAction,
    after_error,
)
from secagg.client.session_driver import ClientPhase, SessionSettings
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, SecAggError, ServiceError, SessionAbortedError
from secagg.protocol.messages import Round
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import finish_before
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.session.runner import WAITING_SECONDS
from secagg.simulation import identity_of
from secagg.wire.calls import AdvertiseKeys, GetOffer, GetUpdate, UploadChunk, Wait

FOUR = parameters_for(4, dimension=9, threshold=3)
LATE = 3


async def persist(deployment, number, *, attempts=1):
    """Run a client as a program without an operator does."""
    entropy = SeededEntropy(SecretBytes(bytes(32)), b"jitter")
    attempts = AttemptCounter(attempts, Backoff(entropy))
    while True:
        runner = deployment._client(number, CrashSwitch())
        try:
            return await runner.run_session(TASK_ID)
        except SecAggError as error:
            pause = attempts.pause_after(error, runner.reach)
            if pause is None:
                raise
            await deployment.clock.sleep_until(deployment.clock.now() + pause)


def test_a_client_that_joins_long_before_the_others_is_in_the_first_sum():
    async def main(clock):
        deployment = Deployment(clock, FOUR, 4, max_attempts=1)
        serving = asyncio.ensure_future(deployment.serve())
        early = asyncio.ensure_future(persist(deployment, 0))
        await clock.sleep_until(clock.now() + 10 * FOUR.deadlines.advertise_keys + 1)
        assert not serving.done()
        assert not early.done()
        others = await asyncio.gather(*(persist(deployment, n) for n in (1, 2, 3)))
        outcomes = [await early, *others]
        await serving
        return deployment, outcomes

    deployment, outcomes = manual_clock.run(main)
    assert deployment.server_error is None
    (released,) = deployment.sums
    assert (released.descriptor.session_number, released.survivors) == (1, 4)
    assert {each.descriptor.session_number for each in outcomes} == {1}
    adverts = deployment.links[0].distinct_messages()
    assert [n for (_, call), n in adverts.items() if call is AdvertiseKeys] == [1]


@pytest.mark.parametrize(
    ("offer_seconds", "number"), [(None, 1), (900.0, 1), (60.0, None)]
)
def test_a_client_does_not_abandon_a_session_that_has_not_begun(offer_seconds, number):
    """It would wait for clients that never reconnect to it."""

    async def main(clock):
        deaf = {0, 1}

        def fault_of(who, call, _count):
            lost = who in deaf and call is not GetOffer
            return Fault.LOSE_REQUEST if lost else Fault.NONE

        deployment = Deployment(
            clock,
            FOUR,
            4,
            settings=SessionSettings(offer_seconds=offer_seconds),
            fault_of=fault_of,
        )
        serving = asyncio.ensure_future(deployment.serve())
        clients = [asyncio.ensure_future(persist(deployment, n)) for n in range(4)]
        await clock.sleep_until(clock.now() + 600.0)
        deaf.clear()
        await clock.sleep_until(clock.now() + 60.0)
        unfinished = [serving, *clients]
        for each in unfinished:
            each.cancel()
        await asyncio.wait(unfinished)
        return deployment

    deployment = manual_clock.run(main)
    sums = [each.descriptor.session_number for each in deployment.sums]
    assert sums == ([] if number is None else [number])


def test_waiting_clients_are_told_how_many_have_joined():
    heard = []

    async def main(clock):
        deployment = Deployment(clock, FOUR, 4)
        serving = asyncio.ensure_future(deployment.serve())
        runner = deployment._client(0, CrashSwitch())
        runner._parts = replace(runner._parts, on_progress=heard.append)
        first = asyncio.ensure_future(runner.run_session(TASK_ID))
        await clock.sleep_until(clock.now() + 100)
        second = asyncio.ensure_future(persist(deployment, 1))
        await clock.sleep_until(clock.now() + 100)
        await asyncio.gather(first, second, *(persist(deployment, n) for n in (2, 3)))
        await serving

    manual_clock.run(main)
    joining = [
        (progress.joined, progress.needed)
        for progress in heard
        if progress.phase is ClientPhase.JOINING
    ]
    assert joining[:3] == [(0, 0), (1, 3), (2, 3)]


def late_client(deployment):
    """Return a client that dies when it has stored its session and sent nothing."""
    return asyncio.ensure_future(deployment.take_part(LATE))


def test_a_latecomer_to_an_ended_session_joins_the_next_one():
    alive = []

    def fault_of(number, call, _count):
        dead = number == LATE and call is AdvertiseKeys and not alive
        return Fault.LOSE_REQUEST if dead else Fault.NONE

    async def main(clock):
        deployment = Deployment(clock, FOUR, 4, payload=b"a model", fault_of=fault_of)
        serving = asyncio.ensure_future(deployment.serve())
        dying = late_client(deployment)
        await clock.sleep_until(clock.now() + 10)
        dying.cancel()
        await asyncio.gather(*(deployment.take_part(n) for n in (0, 1, 2)))
        await serving
        assert [each.survivors for each in deployment.sums] == [3]
        # Another process, which knows of that session only what is on the disk.
        deployment.sessions = 2
        alive.append(LATE)
        serving = asyncio.ensure_future(deployment.serve())
        outcome, *_ = await asyncio.gather(
            persist(deployment, LATE), *(deployment.take_part(n) for n in (0, 1, 2))
        )
        await serving
        return deployment, outcome

    deployment, outcome = manual_clock.run(main)
    assert isinstance(outcome, SessionOutcome)
    assert outcome.descriptor.session_number == 2
    assert [each.survivors for each in deployment.sums] == [3, 4]


def test_a_latecomer_to_a_deleted_session_joins_the_next_one():
    alive = []

    def fault_of(number, call, _count):
        dead = number == LATE and call is AdvertiseKeys and not alive
        return Fault.LOSE_REQUEST if dead else Fault.NONE

    async def main(clock):
        deployment = Deployment(
            clock,
            FOUR,
            4,
            sessions=6,
            fault_of=fault_of,
            limits=AggregatorLimits(kept_sums=2, keep_seconds=0.0, idle_timeout=30.0),
        )
        serving = asyncio.ensure_future(deployment.serve())
        dying = late_client(deployment)
        await clock.sleep_until(clock.now() + 10)
        dying.cancel()
        others = [asyncio.ensure_future(deployment.take_part(n)) for n in (0, 1, 2)]
        while len(deployment.sums) < 4:
            await clock.sleep_until(clock.now() + 1)
        alive.append(LATE)
        outcome = await persist(deployment, LATE)
        await asyncio.gather(*others)
        await serving
        return deployment, outcome

    deployment, outcome = manual_clock.run(main)
    number = outcome.descriptor.session_number
    assert number > 4
    assert deployment.sums[number - 1].survivors == 4


class EndedAtItsFirstSum(Deployment):
    """Its operator ends the task as soon as there is a sum."""

    async def _on_sum(self, released):
        await super()._on_sum(released)
        await self.aggregator.end_task(TASK_ID, "one is enough")


class EndedWhileItOpens(Deployment):
    """Its operator ends the task while a session is being opened."""

    async def _next_payload(self, count):
        await self.aggregator.end_task(TASK_ID, "none is needed")
        return await super()._next_payload(count)


def test_an_ended_task_opens_no_further_session():
    async def main(clock):
        deployment = EndedAtItsFirstSum(clock, FOUR, 4, sessions=2)
        await deployment.run()
        return deployment

    deployment = manual_clock.run(main)
    assert len(deployment.sums) == 1
    assert deployment.server_error.code is ErrorCode.TASK_OVER
    assert "1 sum(s): one is enough" in str(deployment.server_error)


def test_a_task_ended_while_it_opens_a_session_waits_for_no_client():
    async def main(clock):
        deployment = EndedWhileItOpens(clock, FOUR, 4)
        await deployment.serve()
        return deployment

    error = manual_clock.run(main).server_error
    assert error.code is ErrorCode.ROSTER_TOO_SMALL
    assert "none is needed" in str(error)


def test_a_client_of_a_finished_task_learns_its_last_participation():
    async def main(clock):
        deployment = Deployment(clock, FOUR, 4, sessions=2)
        serving = asyncio.ensure_future(deployment.serve())
        await asyncio.gather(*(persist(deployment, n) for n in (0, 1, 2)))
        await asyncio.gather(*(persist(deployment, n) for n in (0, 1, 2)))
        codes = []
        for number in (0, LATE):
            with pytest.raises(ServiceError) as caught:
                await persist(deployment, number)
            codes.append(caught.value.code)
        await serving
        stores = deployment.client_stores
        return codes, [await last_part(stores[n], TASK_ID) for n in (0, LATE)]

    codes, parts = manual_clock.run(main)
    assert codes == [ErrorCode.TASK_OVER] * 2
    assert parts == [Participation(session_number=2, inputs=3), None]


@pytest.mark.parametrize(
    ("keep_seconds", "kept"), [(0.0, 1), (1e6, 3)], ids=["not at all", "for long"]
)
def test_sums_are_kept_for_their_time_regardless_of_later_sums(keep_seconds, kept):
    async def main(clock):
        deployment = Deployment(
            clock,
            FOUR,
            4,
            sessions=3,
            limits=AggregatorLimits(
                kept_sums=1, keep_seconds=keep_seconds, idle_timeout=30.0
            ),
        )
        await deployment.run()
        return deployment

    deployment = manual_clock.run(main)
    assert len(deployment.spool.session_ids()) == kept
    # The store's clock stands still; without a time there is no promise.
    promised = 1_000_000 + int(keep_seconds) if keep_seconds else 0
    for released in deployment.sums:
        assert released.receipt.outcome.kept_until == promised


def test_progress_reports_the_sessions_left_in_the_budget():
    seen = []

    async def main(clock):
        deployment = Deployment(clock, FOUR, 4, sessions=2, allowed=5)
        running = asyncio.ensure_future(deployment.run())
        await clock.sleep_until(clock.now() + 0.1)

        async def watch():
            async for progress in deployment.aggregator.progress():
                seen.append(progress)  # noqa: PERF401 - until cancelled

        watching = asyncio.ensure_future(watch())
        await running
        watching.cancel()
        return deployment

    deployment = manual_clock.run(main)
    assert [s.receipt.sessions_left for s in deployment.sums] == [4, 3]
    for progress in seen:
        is_spent = progress.round >= Round.UNMASKING
        assert progress.sessions_left == 6 - progress.session_number - is_spent
    assert {progress.session_number for progress in seen} == {1, 2}


@pytest.mark.parametrize("first", range(3))
def test_a_restarted_server_reports_the_sessions_left(first):
    for at in range(first, 30, 3):
        deployment = run(sessions=1, allowed=5, server_crash=CrashSwitch(at))
        assert deployment.sums[0].receipt.sessions_left == 4


def test_without_a_budget_no_number_of_sessions_is_reported():
    assert run().sums[0].receipt.sessions_left is None


# --- what the operator reads ----------------------------------------------------------


def server_lines(caplog, event):
    return [
        record
        for record in caplog.records
        if record.name == telemetry.SERVER_LOGGER
        and record.getMessage().startswith(event)
    ]


def run(**options):
    async def main(clock):
        deployment = Deployment(clock, FOUR, 4, max_attempts=1, **options)
        await deployment.run()
        return deployment

    return manual_clock.run(main)


def test_the_log_has_one_line_with_counts_for_every_closed_round(caplog):
    caplog.set_level(logging.INFO, telemetry.SERVER_LOGGER)
    run()
    lines = [each.getMessage() for each in server_lines(caplog, "round_closed")]
    for line, name in zip(
        lines,
        ("ADVERTISE_KEYS", "SHARE_KEYS", "MASKED_INPUT_COLLECTION", "UNMASKING"),
        strict=True,
    ):
        assert f"round={name} answered=4 expected=4 seconds=" in line


def test_an_aborted_session_logs_a_warning_with_reason_and_dropouts(caplog):
    run(
        fault_of=lambda number, call, _: (
            Fault.LOSE_REQUEST if number > 1 and call is UploadChunk else Fault.NONE
        )
    )
    (warning,) = server_lines(caplog, "session_aborted")
    assert warning.levelno == logging.WARNING
    line = warning.getMessage()
    assert "code=U3_TOO_SMALL" in line
    assert "2 clients uploaded their input, 3 are needed" in line
    assert f"lost='{identity_of(2)}, {identity_of(3)}'" in line


def test_a_client_keeps_its_place_while_the_server_is_unavailable():
    """It has joined, and the session continues waiting for it."""
    is_silent = False

    def answer(answered):
        if is_silent:
            raise ServiceError("silence", code=ErrorCode.UNREACHABLE)
        return answered

    async def main(clock):
        nonlocal is_silent
        patient = SessionSettings(watch=False, offer_seconds=200.0)
        deployment = Deployment(
            clock,
            FOUR,
            4,
            settings=patient,
            tamper=lambda _, connection: LyingConnection(
                connection, {GetUpdate: answer}
            ),
        )
        serving = asyncio.ensure_future(deployment.serve())
        waiting = deployment._client(0, CrashSwitch())
        joining = asyncio.ensure_future(waiting.run_session(TASK_ID))
        await clock.sleep_until(clock.now() + 100)
        silent_at, is_silent = clock.now(), True
        with pytest.raises(ServiceError) as caught:
            await joining
        lasted, is_silent = clock.now() - silent_at, False
        again = deployment._client(0, CrashSwitch())
        endings = await asyncio.gather(
            again.run_session(TASK_ID), *(deployment.take_part(n) for n in (1, 2, 3))
        )
        await serving
        return lasted, caught.value, endings

    lasted, error, endings = manual_clock.run(main)
    slack = SessionSettings().slack_seconds
    assert 200 <= lasted <= 200 + slack + 30
    assert (error.code, "silence" in str(error)) == (ErrorCode.UNREACHABLE, True)
    assert "place" in error.next_step
    assert after_error(error, ErrorStage.JOINED) is NextAction.SAME_SESSION
    assert [each.descriptor.session_number for each in endings] == [1] * 4
    assert [each.released.survivors for each in endings] == [4] * 4


def test_a_server_that_answers_wait_for_ever_is_left_at_the_end_of_the_session():
    """R5-7: the session end is the client's last deadline, whatever it receives."""

    async def main(clock):
        deployment = Deployment(
            clock,
            FOUR,
            4,
            settings=SessionSettings(watch=False, offer_seconds=600.0),
            tamper=lambda _, connection: LyingConnection(
                connection, {GetUpdate: lambda _: Wait(5.0)}
            ),
        )
        serving = asyncio.ensure_future(deployment.serve())
        runner = deployment._client(0, CrashSwitch())
        started = clock.now()
        with pytest.raises(SessionAbortedError) as caught:
            await finish_before(clock, started + 86_400, runner.run_session(TASK_ID))
        serving.cancel()
        await asyncio.wait({serving})
        return clock.now() - started, caught.value.code

    lasted, code = manual_clock.run(main)
    assert code is ErrorCode.DEADLINE
    longest = FOUR.deadlines.longest_session + WAITING_SECONDS
    assert longest <= lasted <= longest + SessionSettings().slack_seconds + 1
