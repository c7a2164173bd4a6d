"""One fault of any kind, in any round, and a task with noise has all its sums.

Processes die without a word and start again on their disks; clients continue by the
rules of their program, without an operator.  What must hold: every sum that was
wanted, exact over the clients that its receipt names; each of these clients has it;
and no client has given more inputs than the budget covers.
"""

import contextlib

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.crash_points import CrashSwitch, SimulatedCrashError
from secagg_testing.deployment import RESTART_SECONDS, TASK_ID, Deployment
from secagg_testing.lossy_connection import Fault

from secagg.client.retry_policy import AttemptCounter, Backoff
from secagg.client.session_driver import SessionSettings
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.messages import Round
from secagg.simulation import identity_of
from secagg.wire.calls import (
    AdvertiseKeys,
    GetUploadStatus,
    RevealShares,
    ShareKeys,
    UploadChunk,
)

CLIENTS, SUMS, SPARE = 5, 2, 1
PARAMETERS = with_noise(
    parameters_for(CLIENTS, dimension=CLIENTS + 2, threshold=3, colluders=1),
    steps=SUMS,
    spare=SPARE,
)
CALLS = {
    Round.ADVERTISE_KEYS: AdvertiseKeys,
    Round.SHARE_KEYS: ShareKeys,
    Round.MASKED_INPUT_COLLECTION: UploadChunk,
    Round.UNMASKING: RevealShares,
}
# A client in the middle: others have sent their message of the round, others have not.
VICTIM = 2
LONGER_THAN_A_ROUND = 400.0


class FullDisk(CrashSwitch):
    """A disk that takes nothing for some time; the process lives on."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.full_until = clock, 0.0

    @contextlib.contextmanager
    def around(self, what):
        if self.clock.now() < self.full_until and not what.startswith("send"):
            raise ServiceError(
                "the disk is full",
                code=ErrorCode.STORAGE_FAILED,
                retry_after_seconds=1.0,
            )
        with super().around(what):
            yield


class Unattended(Deployment):
    """A deployment whose processes a supervisor starts again, and no other party."""

    def __init__(self, *args, fault, **options):
        super().__init__(*args, fault_of=self.fault_at, **options)
        self.fault, self.has_happened = fault, False
        self.cut_until = 0.0  # for all parties
        self.upload_cut_until = 0.0  # for one client's uploads
        self.processes = {}
        self.outcomes = {number: {} for number in range(self.clients)}
        self.server_crash = FullDisk(self.clock)

    def fault_at(self, number, call, _count):
        now = self.clock.now()
        uploads = number == VICTIM and call in (UploadChunk, GetUploadStatus)
        if now < self.cut_until or (uploads and now < self.upload_cut_until):
            return Fault.LOSE_REQUEST
        if self.has_happened or call is not self.fault.call:
            return Fault.NONE
        if self.fault.meets not in {number, None}:
            return Fault.NONE
        self.has_happened = True
        return self.fault.strike(self) or Fault.NONE

    async def serve(self):
        while True:
            self.server_error = None
            await super().serve()
            error = self.server_error
            if error is None or error.code is not ErrorCode.STORAGE_FAILED:
                return
            await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)
            self.server_crash = CrashSwitch()

    async def take_part(self, number):
        attempts = self.attempts(number)
        switch = FullDisk(self.clock)
        while True:
            self.processes[number] = switch
            runner = self._client(number, switch)
            try:
                outcome = await runner.run_session(TASK_ID)
            except SimulatedCrashError:
                await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)
                switch, attempts = FullDisk(self.clock), self.attempts(number)
            except SecAggError as error:
                pause = attempts.pause_after(error, runner.reach)
                if pause is None and error.code is ErrorCode.STORAGE_FAILED:
                    # A unit of systemd starts it again (docs/errors.md).
                    pause, attempts = RESTART_SECONDS, self.attempts(number)
                if pause is None:
                    return error
                await self.clock.sleep_until(self.clock.now() + pause)
            else:
                self.outcomes[number][outcome.descriptor.session_id] = outcome
                attempts = self.attempts(number)

    @staticmethod
    def attempts(number):
        jitter = SeededEntropy(SecretBytes(bytes(32)), str(number).encode())
        return AttemptCounter(3, Backoff(jitter))


class At:
    """A fault at the moment in which one client sends its message of a round."""

    meets = VICTIM

    def __init__(self, which):
        self.call = CALLS[which]

    def strike(self, _world):
        """Let it happen; return what becomes of the message."""
        raise AssertionError("a fault says what it does")


class ServerDies(At):
    def strike(self, world):
        world.server_process.kill()
        return Fault.LOSE_REQUEST


class ServerDiesInTheAct(At):
    """It has written what it is told, and dies before it can say so."""

    def strike(self, world):
        dying = world.server_process
        dying._at = len(dying.points) + 1


class ClientDiesBefore(At):
    def strike(self, world):
        world.processes[VICTIM].kill()
        return Fault.LOSE_REQUEST


class ClientDiesAfter(At):
    def strike(self, world):
        world.processes[VICTIM].kill()
        return Fault.LOSE_ANSWER


class ServerDiskIsFull(At):
    def strike(self, world):
        world.server_process.full_until = world.clock.now() + 60


class ClientDiskIsFull(At):
    def strike(self, world):
        world.processes[VICTIM].full_until = world.clock.now() + 60


class EverybodyIsCutOff(At):
    meets = None  # the first client, so that none has sent anything

    def strike(self, world):
        world.cut_until = world.clock.now() + LONGER_THAN_A_ROUND
        return Fault.LOSE_REQUEST


class UploadIsLost(At):
    def strike(self, _world):
        return Fault.LOSE_REQUEST


class UploadIsLostForTheRound(At):
    def strike(self, world):
        world.upload_cut_until = world.clock.now() + LONGER_THAN_A_ROUND
        return Fault.LOSE_REQUEST


def run(fault):
    async def main(clock):
        deployment = Unattended(
            clock,
            PARAMETERS,
            CLIENTS,
            fault=fault,
            sessions=SUMS,
            allowed=SUMS + SPARE,
            payload=b"a model",
            settings=SessionSettings(watch=False, offer_seconds=3600.0),
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def everywhere(*kinds):
    return [
        pytest.param(kind(which), id=f"{kind.__name__} {which.name}")
        for kind in kinds
        for which in CALLS
    ]


def assert_all_sums(deployment, endings):
    assert deployment.has_happened
    assert len(deployment.sums) == SUMS
    for released in deployment.sums:
        inside = {
            n for n in range(CLIENTS) if identity_of(n) in released.receipt.survivors
        }
        np.testing.assert_array_equal(
            released.residues, deployment.expected_sum(inside)
        )
        for number in inside:
            told = deployment.outcomes[number][released.descriptor.session_id]
            np.testing.assert_array_equal(told.residues, released.residues)
    assert {ending.code for ending in endings.values()} == {ErrorCode.TASK_OVER}
    assert deployment.contradictions() == {}


def survivors(deployment):
    return [released.survivors for released in deployment.sums]


@pytest.mark.parametrize(
    "fault",
    [
        *everywhere(ServerDies, ServerDiesInTheAct, ClientDiesBefore, ClientDiesAfter),
        pytest.param(UploadIsLost(Round.MASKED_INPUT_COLLECTION), id="UploadIsLost"),
    ],
)
def test_a_fault_shorter_than_a_round_costs_no_client_its_sum(fault):
    deployment, endings = run(fault)
    assert_all_sums(deployment, endings)
    assert survivors(deployment) == [CLIENTS] * SUMS


@pytest.mark.parametrize(
    "fault",
    [
        *everywhere(ServerDiskIsFull, ClientDiskIsFull, EverybodyIsCutOff),
        pytest.param(
            UploadIsLostForTheRound(Round.MASKED_INPUT_COLLECTION),
            id="UploadIsLostForTheRound",
        ),
    ],
)
def test_a_fault_longer_than_a_round_costs_the_task_no_sum(fault):
    deployment, endings = run(fault)
    assert_all_sums(deployment, endings)


@pytest.mark.parametrize("fault", everywhere(ServerDies))
def test_a_server_unavailable_for_longer_than_a_round_finishes_its_task(
    fault, monkeypatch
):
    away = "secagg_testing.deployment.RESTART_SECONDS"
    monkeypatch.setattr(away, LONGER_THAN_A_ROUND)
    deployment, endings = run(fault)
    assert_all_sums(deployment, endings)
