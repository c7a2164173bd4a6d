"""A simulated phone: it sleeps, is killed, loses the network, and comes back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import secagg
from secagg import advanced


class Killed(BaseException):
    """The operating system has ended the app; no handler runs."""


@dataclass
class Network:
    """A phone's way to the aggregator, with what happens on it.

    Attributes:
        connection: The way itself.
        faults: Calls before which the app is killed, or the network is lost, once each.
    """

    connection: advanced.EdgeConnection
    faults: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever is asked for
        """Pass on all but calls."""
        return getattr(self.connection, name)

    async def call(self, request: Any) -> Any:  # noqa: ANN401 - any of the calls
        """Make a call, unless something happens before its answer arrives."""
        fault = self.faults.pop(type(request).__name__, "")
        if fault == "killed":
            raise Killed
        answer = await self.connection.call(request)
        if fault == "network":
            raise secagg.ServiceError(
                "the network is lost", code=secagg.ErrorCode.UNREACHABLE
            )
        return answer

    async def __aenter__(self) -> Self:
        """Open it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.connection.close()


@dataclass
class Phone:
    """One device.

    Attributes:
        name: Of its user.
        directory: All that it keeps between two visits.
        enrolment_key: Public key of the issuer, as text.
        connect: Opens a way to the aggregator.
        woken: Set by a push.
        day: Seconds after which it looks by itself.
        faults: What happens to it, by the call that it is at.
        visits: How often it has been awake.
    """

    name: str
    directory: Path
    enrolment_key: str
    connect: Callable[[advanced.EnrolledIdentity], advanced.EdgeConnection]
    woken: asyncio.Event
    day: float
    faults: dict[str, str] = field(default_factory=dict)
    visits: int = 0

    async def live(self) -> secagg.Contribution | secagg.SecAggError:
        """Visit until the sum is there, or this phone is out."""
        while True:
            sleep = 0.0
            try:
                done = await self._wake_up()
            except Killed:
                pass  # the platform starts it again
            except (secagg.SessionAbortedError, secagg.ServiceError) as error:
                if getattr(error, "code", None) is not secagg.ErrorCode.UNREACHABLE:
                    return error
            else:
                if done.contribution is not None:
                    return done.contribution
                sleep = min(done.come_back_seconds, self.day)
            # A push wakes it earlier: a hint, which it does not believe, but asks.
            try:
                async with asyncio.timeout(sleep):
                    await self.woken.wait()
            except TimeoutError:
                pass
            self.woken.clear()

    async def _wake_up(self) -> advanced.Visit:
        """Run one visit, as a process that knows nothing but its directory."""
        self.visits += 1
        enrolled = advanced.load_enrolled(
            advanced.ClientEnrolment(
                seed=self.directory / "identity.seed",
                credential=self.directory / "credential.bin",
                enrolment_key=self.enrolment_key,
            ),
            name=self.name,
        )
        client = secagg.StepClient(
            self.name,
            aggregator="aggregator",
            privacy_limits=secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT),
            tasks=["steps"],
            cohort=secagg.ClientPolicy(
                profiles=frozenset({secagg.Profile.MALICIOUS_SERVER}),
                require_noise=False,
            ),
            state_dir=self.directory / "state",
            rollback_mark=self.directory / "mark",
            enrolment=enrolled,
            trust_domain="secagg.local",
        )
        connection = Network(self.connect(enrolled), self.faults)
        async with connection:
            with client:
                return await advanced.visit(
                    client,
                    connection,
                    task="steps",
                    vector=lambda _info, _payload: np.arange(4),
                )
