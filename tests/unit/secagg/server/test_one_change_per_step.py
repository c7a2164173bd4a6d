"""What the server writes with each step, and what it does when the store disagrees."""

import asyncio
import logging

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of, inline_store
from secagg_testing.lossy_connection import Fault

from secagg.client.contribution import SessionOutcome
from secagg.errors import ErrorCode
from secagg.simulation import identity_of
from secagg.storage.change import (
    Change,
    DuplicateRecordError,
    NewSession,
    NumberTakenError,
    SessionsSpentError,
    Side,
)
from secagg.storage.queries import ReadTally
from secagg.wire.calls import RevealShares, ShareKeys, UploadChunk

CLIENTS = 4
# So often a client repeats a call without success until the round is closed without it.
FIRST_SESSION = 12
PARAMETERS = parameters_for(CLIENTS, dimension=7, threshold=3)


class Watched(CrashingStore):
    """Notes every change."""

    def __init__(self):
        super().__init__(inline_store(), CrashSwitch())
        self.changes = []

    async def commit(self, change):
        if isinstance(change, Change):
            self.changes.append(change)
        return await super().commit(change)


def run(**options):
    async def main(clock):
        deployment = Deployment(clock, PARAMETERS, CLIENTS, **options)
        return deployment, await deployment.run()

    return manual_clock.run(main)


def lost(*calls):
    def fault_of(_number, call, _count):
        return Fault.LOSE_REQUEST if call in calls else Fault.NONE

    return fault_of


def test_closing_a_round_stores_deadline_and_use_in_one_change():
    store = Watched()
    run(server_store=store)
    closes = [c for c in store.changes if c.round is not None and c.create is None]
    assert [c.round for c in closes] == [3, 4, 6, 6, 7]
    deadlines = PARAMETERS.deadlines
    assert [c.deadline_seconds for c in closes] == [
        deadlines.share_keys,
        deadlines.masked_input,
        deadlines.unmasking,
        deadlines.unmasking,
        None,
    ]
    assert [c.spend for c in closes] == [False, False, True, False, False]
    assert all(len(c.records) == 1 for c in closes)
    assert not any(c.spend for c in store.changes if c.round is None)


@pytest.mark.parametrize(
    ("call", "spent"),
    [(ShareKeys, 0), (UploadChunk, 0), (RevealShares, 1)],
)
def test_a_session_is_spent_from_the_moment_u3_is_fixed(call, spent):
    deployment, _ = run(fault_of=lost(call), max_attempts=1)
    assert not deployment.sums
    assert (
        answer_of(deployment.server_store.read(ReadTally(Side.SERVER, TASK_ID))).spent
        == spent
    )


def test_no_session_is_opened_beyond_the_session_limit_of_its_task():
    deployment, _ = run(sessions=3, allowed=2)
    assert len(deployment.sums) == 2
    assert isinstance(deployment.server_error, SessionsSpentError)
    assert deployment.server_error.code is ErrorCode.POLICY_VIOLATION

    # Sessions that end before U3 is fixed cost nothing.
    def lost_at_first(number, call, count):
        dead = number < 2 and call is ShareKeys and count < FIRST_SESSION
        return Fault.LOSE_REQUEST if dead else Fault.NONE

    deployment, _ = run(allowed=1, fault_of=lost_at_first)
    assert deployment.sums[0].descriptor.session_number == 2


def test_a_session_number_that_is_taken_is_skipped():
    class Racing(Watched):
        async def commit(self, change):
            is_new = isinstance(change, Change) and change.create is not None
            if is_new and len(self.changes) < 2:
                self.changes.append(change)
                raise NumberTakenError(change.create, highest=6 + len(self.changes))
            return await super().commit(change)

    deployment, _ = run(server_store=Racing(), payload=b"p")
    assert deployment.sums[0].descriptor.session_number == 9
    assert len(deployment.spool.session_ids()) == 1  # no payload is left behind


def test_a_duplicate_record_is_reported_as_internal_error_without_delay(caplog):
    class Strict(Watched):
        """Takes every set of bundles of one client for its second."""

        async def commit(self, change):
            for record in getattr(change, "records", ()):
                if (record.kind, record.sender) == (2, identity_of(1)):
                    raise DuplicateRecordError(change.key, record)
            return await super().commit(change)

    caplog.set_level(logging.CRITICAL)
    deployment, endings = run(server_store=Strict())
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum({0, 2, 3})
    )
    assert isinstance(endings[1], Exception)
    assert all(isinstance(endings[n], SessionOutcome) for n in (0, 2, 3))
    assert f"holds a record of kind 2 from {identity_of(1)!r} already" in caplog.text


def test_a_late_notification_of_a_sessions_end_is_recorded():
    async def main(clock):
        deployment = Deployment(clock, PARAMETERS, CLIENTS)
        serving = asyncio.ensure_future(deployment.serve())
        await clock.sleep_until(clock.now() + 1)
        (runner,) = deployment.aggregator._sessions.running(TASK_ID)
        await runner.abort(ErrorCode.CANCELLED, "an operator's wish")
        await runner.finish(b"")
        await runner.finish(b"")  # ended is ended
        written = runner.receipt().encode()
        runner._durable._state = runner.record.start()
        await runner.abort(ErrorCode.CANCELLED, "again")
        assert runner._durable.receipt == written
        serving.cancel()
        await asyncio.wait({serving})

    manual_clock.run(main)


def test_a_new_session_stores_its_task_and_its_session_limit():
    store = Watched()
    run(server_store=store, allowed=5)
    new = store.changes[0].create
    assert isinstance(new, NewSession)
    assert (new.role, new.task, new.number) == (Side.SERVER, TASK_ID, 1)
    assert new.allowed == 5
