"""Simulated phones: they sleep, are killed, lose the network, and come back.

Two kinds differ in the program that a wake-up starts: `secagg.advanced.visit` here, or
the TypeScript client in a Node process of its own (phone.mjs).
"""

import asyncio
import json
import os
import signal
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from backend import LIMITS, TRUST_DOMAIN

import secagg
from secagg import advanced

HELD_SECONDS = 25.0


class Killed(BaseException):
    """The operating system has ended the app; no handler runs."""


@dataclass(frozen=True)
class Task:
    """What a phone is asked to take part in.

    Attributes:
        name: Of the task at the aggregator.
        vectors: What each user gives, by its name.
        has_noise: Whether the sum is released with noise.
        stays_awake: The short regime: the app is open, and its questions are held.
    """

    name: str
    vectors: dict[str, list[float]]
    has_noise: bool
    stays_awake: bool


@dataclass(frozen=True)
class Ending:
    """What a task has come to for one phone.

    Attributes:
        inputs: Vectors in the sum; 0 without a sum.
        values: The sum as this phone has read it.
        refusal: Code of the error that ended it; "" where there is a sum.
    """

    inputs: int = 0
    values: tuple[float, ...] = ()
    refusal: str = ""


@dataclass
class Phone(ABC):
    """One device.

    Attributes:
        name: Of its user.
        directory: All that it keeps between two visits.
        enrolment_key: Public key of the issuer, as text.
        authority: Of the aggregator's HTTP edge.
        authorities: PEM of the authorities that the edge's certificate is of.
        woken: Set by a push.
        day: Seconds after which it looks by itself.
        max_epsilon: Largest epsilon that its owner accepts.
        faults: What happens to it, once each, by the call that it is at: "killed"
            before the call, "network" after it, "stolen" before it.
        stolen: Set when the phone is stolen.
        found: Set when the thief switches it on.
        visits: How often it has been awake.
    """

    name: str
    directory: Path
    enrolment_key: str
    authority: str
    authorities: Path
    woken: asyncio.Event
    day: float
    max_epsilon: float = LIMITS.max_epsilon
    faults: dict[str, str] = field(default_factory=dict)
    stolen: asyncio.Event = field(default_factory=asyncio.Event)
    found: asyncio.Event = field(default_factory=asyncio.Event)
    visits: int = 0

    async def take_part(self, task: Task) -> Ending:
        """Visit until the sum is there, or this phone is out."""
        while True:
            self.visits += 1
            try:
                found = await self.wake_up(task)
            except Killed:
                continue  # the platform starts it again
            if isinstance(found, Ending):
                return found
            if task.stays_awake:
                continue
            # A push wakes it earlier: a hint, which it does not believe, but asks.
            with suppress(TimeoutError):
                async with asyncio.timeout(min(found, self.day)):
                    await self.woken.wait()
            self.woken.clear()

    @abstractmethod
    async def wake_up(self, task: Task) -> Ending | float:
        """Run one visit, as a process that knows nothing but its directory.

        Returns:
            How the task ended, or in how many seconds to come back.

        Raises:
            Killed: The platform has ended the app.
        """


@dataclass
class Network:
    """A Python phone's way to the aggregator, with what happens on it."""

    connection: advanced.EdgeConnection
    phone: Phone

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever is asked for
        """Pass on all but calls."""
        return getattr(self.connection, name)

    async def call(self, request: Any) -> Any:  # noqa: ANN401 - any of the calls
        """Make a call, unless something happens before its answer arrives."""
        fault = self.phone.faults.pop(type(request).__name__, "")
        if fault == "killed":
            raise Killed
        if fault == "stolen":
            self.phone.stolen.set()
            await self.phone.found.wait()
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
class PythonPhone(Phone):
    """A phone whose app is written in Python."""

    async def wake_up(self, task: Task) -> Ending | float:
        """Run one visit by `secagg.advanced.visit`."""
        try:
            done = await self._visit(task)
        except secagg.SecAggError as error:
            if error.code is secagg.ErrorCode.UNREACHABLE:
                return self.day / 10
            return Ending(refusal=error.code.name)
        if (given := done.contribution) is None:
            return done.come_back_seconds
        if given.values is None:
            return Ending(refusal="NO_SUM")
        return Ending(given.inputs, tuple(map(float, given.values)))

    async def _visit(self, task: Task) -> advanced.Visit:
        enrolled = advanced.load_enrolled(
            advanced.ClientEnrolment(
                seed=self.directory / "identity.seed",
                credential=self.directory / "credential.bin",
                enrolment_key=self.enrolment_key,
            ),
            name=self.name,
        )
        limits: secagg.PrivacyLimits | secagg.ExactSumWaiver = secagg.PrivacyLimits(
            max_epsilon=self.max_epsilon, max_delta=LIMITS.max_delta
        )
        if not task.has_noise:
            limits = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
        client = secagg.StepClient(
            self.name,
            aggregator="aggregator",
            privacy_limits=limits,
            tasks=[task.name],
            cohort=secagg.ClientPolicy(
                profiles=frozenset({secagg.Profile.MALICIOUS_SERVER}),
                require_noise=task.has_noise,
            ),
            state_dir=self.directory / "state",
            rollback_mark=self.directory / "mark",
            enrolment=enrolled,
            trust_domain=TRUST_DOMAIN,
        )
        way = advanced.connect_edge(
            self.authority,
            enrolled,
            aggregator="aggregator",
            authorities=self.authorities,
        )
        async with Network(way, self) as connection:
            with client:
                return await advanced.visit(
                    client,
                    connection,
                    task=task.name,
                    vector=lambda _info, _payload: np.array(task.vectors[self.name]),
                    held_seconds=HELD_SECONDS if task.stays_awake else 0.0,
                )


@dataclass(kw_only=True)
class NodePhone(Phone):
    """A phone whose app is written in TypeScript; every visit is a process of its own.

    Attributes:
        node: The program that runs it.
        slow_seconds: By how much its clock is behind.
    """

    node: Path
    slow_seconds: float = 0.0

    async def wake_up(self, task: Task) -> Ending | float:
        """Run one visit by the TypeScript client."""
        call, fault = next(iter(self.faults.items()), ("", ""))
        answer = await self._node(
            "visit",
            authority=self.authority,
            task=task.name,
            vector=task.vectors[self.name],
            hasNoise=task.has_noise,
            maxEpsilon=self.max_epsilon,
            maxDelta=LIMITS.max_delta,
            heldMs=int(1000 * HELD_SECONDS) if task.stays_awake else 0,
            slowMs=int(1000 * self.slow_seconds),
            faultAt=call,
            fault=fault,
        )
        if answer is None or answer["isHit"]:
            del self.faults[call]
        if answer is None:
            raise Killed
        if answer["error"] == "UNREACHABLE":
            return self.day / 10
        if answer["error"]:
            return Ending(refusal=answer["error"])
        if not answer["inputs"]:
            return float(answer["comeBackMs"]) / 1000
        return Ending(answer["inputs"], tuple(answer["values"]))

    async def enrol(self, application: str, token: str) -> None:
        """Make a key, and have the app's server get its credential."""
        await self._node("enrol", application=application, token=token)

    async def _node(self, does: str, **settings: Any) -> dict[str, Any] | None:  # noqa: ANN401 - JSON
        """Run phone.mjs; return its answer, None where it was killed."""
        settings |= {
            "does": does,
            "directory": str(self.directory),
            "name": self.name,
            "trustDomain": TRUST_DOMAIN,
            "enrolmentKey": self.enrolment_key,
        }
        process = await asyncio.create_subprocess_exec(
            self.node,
            Path(__file__).with_name("phone.mjs"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"NODE_EXTRA_CA_CERTS": str(self.authorities)},
        )
        try:
            printed, _ = await process.communicate(json.dumps(settings).encode())
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if process.returncode == -signal.SIGKILL:
            return None
        if process.returncode != 0:
            raise RuntimeError(f"the phone of {self.name} ended with an error")
        answer: dict[str, Any] = json.loads(printed)
        return answer
