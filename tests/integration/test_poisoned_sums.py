"""A sum that ends whatever process computes it ends its session, and nothing else."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.deployment import RESTART_SECONDS, Deployment
from secagg_testing.inline_store import answer_of, inline_store
from secagg_testing.replicas import Replicas

from secagg.client.contribution import SessionOutcome
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Fate
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.session.report import next_step_after, report_of
from secagg.server.session.runner import MOST_ATTEMPTS
from secagg.storage.change import Committed, Side
from secagg.storage.journal import SumAttempt, decode_server_event, record_of
from secagg.storage.queries import ListSessions

CLIENTS = 4
PARAMETERS = parameters_for(CLIENTS, dimension=7, threshold=3)


class Poison:
    """The sum of the first session ends so many processes."""

    def __init__(self, monkeypatch, fatal):
        self.fatal = fatal
        self.begun = Counter()
        self.first = None
        self.kill = lambda _masks: None
        compute = MaskExecutor.compute_sum

        async def compute_sum(masks, job, uploads):
            self.first = self.first or job.session_id
            self.begun[job.session_id] += 1
            if self.first == job.session_id and self.begun[self.first] <= self.fatal:
                self.kill(masks)
                await asyncio.Event().wait()
            return await compute(masks, job, uploads)

        monkeypatch.setattr(MaskExecutor, "compute_sum", compute_sum)


def run(poison, *, kind=Deployment, **options):
    reports = []

    async def note(receipt, progress):
        reports.append((receipt, progress))

    async def main(clock):
        store = inline_store(now=clock.date)
        deployment = kind(
            clock, PARAMETERS, CLIENTS, server_store=store, on_ended=note, **options
        )

        def kill(masks):
            for aggregator, switch in processes(deployment):
                if aggregator._context.masks is masks:
                    switch.kill()

        poison.kill = kill
        return deployment, await deployment.run()

    return *manual_clock.run(main), reports


def processes(deployment):
    if isinstance(deployment, Replicas):
        return tuple(deployment.alive.values())
    return [(deployment.aggregator, deployment.server_process)]


def assert_summed(deployment, endings):
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    (total,) = deployment.sums
    all_clients = set(range(CLIENTS))
    np.testing.assert_array_equal(total.residues, deployment.expected_sum(all_clients))
    return total.descriptor.session_number


@pytest.mark.parametrize("kind", [Deployment, Replicas])
def test_a_sum_is_attempted_three_times_before_the_next_session(monkeypatch, kind):
    poison = Poison(monkeypatch, fatal=100)
    deployment, endings, reports = run(poison, kind=kind)
    assert poison.begun[poison.first] == MOST_ATTEMPTS
    assert assert_summed(deployment, endings) == 2
    receipt, progress = reports[0]
    aborted = receipt.outcome
    assert (aborted.code, aborted.fate) == (ErrorCode.INTERNAL, Fate.NOT_INCLUDED)
    assert receipt.was_unmasked  # it may be known: its inputs are charged
    assert "begun 3 times" in aborted.reason
    page = report_of(receipt, progress, opened=0.0, ended=1.0)
    assert page["reason"] == aborted.reason
    assert "memory" in page["next_step"] == next_step_after(receipt)
    assert answer_of(deployment.server_store.read(ListSessions(role=Side.SERVER))) == ()


@pytest.mark.parametrize("kind", [Deployment, Replicas])
def test_a_sum_that_succeeds_at_the_last_attempt_is_released(monkeypatch, kind, caplog):
    poison = Poison(monkeypatch, fatal=MOST_ATTEMPTS - 1)
    deployment, endings, _ = run(poison, kind=kind)
    assert assert_summed(deployment, endings) == 1
    assert caplog.text.count("sum_retried") == MOST_ATTEMPTS - 1
    assert "attempt=3 of=3" in caplog.text


class OftenRestarted(Deployment):
    """Is stopped in peace, and started again, as often as it takes."""

    async def serve(self):
        while True:
            self.serving = asyncio.ensure_future(self._serve_once(self.server_process))
            await asyncio.wait({self.serving})
            if not self.serving.cancelled():
                return self.serving.result()
            self.aggregator = None
            self.server_process.kill()  # it has gone: no caller waits for its answers
            self.server_process = CrashSwitch()
            self.server_restarts += 1
            await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)


def test_an_orderly_stop_does_not_count_as_an_attempt(monkeypatch):
    poison = Poison(monkeypatch, fatal=3 * MOST_ATTEMPTS)

    async def main(clock):
        deployment = OftenRestarted(clock, PARAMETERS, CLIENTS)
        poison.kill = lambda _: deployment.serving.cancel()
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    assert deployment.server_restarts == 3 * MOST_ATTEMPTS
    assert assert_summed(deployment, endings) == 1


class FallsSilentOnce(CrashingStore):
    """Stores that a sum is begun, and does not say so."""

    def __init__(self):
        super().__init__(inline_store(), CrashSwitch())
        self.attempts = []

    async def commit(self, change):
        committed = await super().commit(change)
        if isinstance(committed, Committed):
            events = [
                decode_server_event(each)
                for each in change.records
                if each.kind == record_of(SumAttempt(is_begun=True)).kind
            ]
            self.attempts += events
            if events:
                raise ServiceError("silence", code=ErrorCode.STORAGE_FAILED)
        return committed


def test_an_attempt_is_stored_before_the_sum_is_computed(monkeypatch):
    """Also by a store that says nothing of it: it is counted once."""
    compute, stored = MaskExecutor.compute_sum, []
    store = FallsSilentOnce()

    async def looked(masks, job, uploads):
        stored.append(list(store.attempts))
        return await compute(masks, job, uploads)

    monkeypatch.setattr(MaskExecutor, "compute_sum", looked)

    async def main(clock):
        deployment = Deployment(clock, PARAMETERS, CLIENTS, server_store=store)
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    assert assert_summed(deployment, endings) == 1
    assert stored == [[SumAttempt(is_begun=True)]]
