"""A clock that is wrong for a while stops no service for good."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import inline_store

from secagg.client.retry_policy import (
    AttemptCounter,
    Backoff,
    ErrorStage,
    NextAction,
    after_error,
)
from secagg.client.service import ClientService
from secagg.client.session import ClientSession
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import (
    FINAL_CODES,
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.policy import ClientPolicy
from secagg.runtime.clock import finish_before

CLIENTS, MINUTE = 4, 60.0


class SetClock:
    """The manual clock with another date."""

    def __init__(self, clock):
        self._clock, self.ahead = clock, 0.0
        self.now, self.sleep_until = clock.now, clock.sleep_until

    def date(self):
        return self._clock.date() + self.ahead


class Contributing:
    """The part of a client that a service uses, around a runner."""

    def __init__(self, deployment, number):
        self._deployment, self._number = deployment, number
        self.refused, self.certificate = [], None

    def _entropy(self):
        return SeededEntropy(SecretBytes(bytes(31) + bytes([self._number])), b"waits")

    async def contribute(self, _make, *, accept):
        accept(None)
        clock = self._deployment.clock
        attempts = AttemptCounter(3, Backoff(self._entropy()))
        while True:
            runner = self._deployment._client(self._number, CrashSwitch())
            try:
                await runner.run_session(TASK_ID)
            except SecAggError as error:
                self.refused.append(error.code)
                pause = attempts.pause_after(error, runner.reach)
                if pause is None:
                    raise
                await clock.sleep_until(clock.now() + pause)
            else:
                return SimpleNamespace(sessions_left=0)

    def service(self):
        async def failed(_):
            pass

        return ClientService(
            self,
            lambda _: None,
            lambda _: None,
            lambda _: None,
            failed,
            clock=self._deployment.clock,
            entropy=self._entropy(),
        )


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "runs on"])
@pytest.mark.parametrize("hours", [(-2, 0), (2, 0), (-2, 2, 0), (2, -2, 0)], ids=str)
def test_services_continue_once_the_clock_of_the_aggregator_is_correct(
    hours, is_killed
):
    async def main(clock):
        date = SetClock(clock)
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3, min_clients=CLIENTS),
            CLIENTS,
            ends_at=1e5,
            server_clock=date,
        )
        clients = [Contributing(deployment, number) for number in range(CLIENTS)]
        date.ahead = hours[0] * 3600.0
        serving = asyncio.ensure_future(deployment.serve())
        services = asyncio.gather(*(each.service().run() for each in clients))
        for ahead in hours[1:]:
            await clock.sleep_until(clock.now() + 2 * MINUTE)
            assert not services.done()
            date.ahead = ahead * 3600.0  # as after a boot before its date is set
            if is_killed:
                deployment.server_process.kill()
        began = clock.now()
        await finish_before(clock, began + 11 * MINUTE, services)
        await serving
        return deployment, clients

    deployment, clients = manual_clock.run(main)
    (released,) = deployment.sums
    assert released.survivors == CLIENTS
    for client in clients:
        assert ErrorCode.BAD_CLOCK in client.refused


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_outside_of_services_a_wrong_clock_uses_up_the_attempts(ahead):
    async def main(clock):
        date = SetClock(clock)
        date.ahead = ahead
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3),
            CLIENTS,
            ends_at=1e5,
            server_clock=date,
        )
        serving = asyncio.ensure_future(deployment.serve())
        client = Contributing(deployment, 0)
        with pytest.raises(RemoteProtocolError) as caught:
            await client.contribute(None, accept=lambda _: None)
        serving.cancel()
        return client.refused, str(caught.value)

    refused, said = manual_clock.run(main)
    assert refused == [ErrorCode.BAD_CLOCK] * 3
    # Both times, for the person who compares them.
    assert said.count(" UTC") == 2


def offer_that_ends(session_end):
    return SessionDescriptor(
        aggregator="a",
        task_id="t",
        session_number=1,
        server_nonce=bytes(32),
        session_end=session_end,
        payload_hash=b"",
        parameters=parameters_for(CLIENTS, dimension=7, threshold=3),
    )


async def test_an_offer_with_a_wrong_clock_states_the_next_step():
    """The clock may be set between the gate and the first record of a session."""
    with pytest.raises(RemoteProtocolError) as caught:
        await ClientSession.begin(
            offer_that_ends(1_800_000_000),
            "client",
            aggregator="a",
            trust_domain=None,
            store=inline_store(),
            policy=ClientPolicy(require_noise=False),
            entropy=SeededEntropy(SecretBytes(bytes(32)), b"a test"),
            now=1_900_000_000,
        )
    assert caught.value.code is ErrorCode.BAD_CLOCK
    assert "clocks" in caught.value.next_step


def test_codes_that_a_service_retries_are_not_final():
    """One table says which codes end a program outside of a session."""
    for kind, code in itertools.product((RemoteProtocolError, ServiceError), ErrorCode):
        error = kind("why", code=code)
        if after_error(error, ErrorStage.JOINED) is not NextAction.FINAL:
            assert code not in FINAL_CODES
        waits = after_error(error, ErrorStage.NO_SESSION) is not NextAction.FINAL
        assert waits == (code is ErrorCode.BAD_CLOCK)
