"""A carrier of bytes between `StepClient`s and a `StepServer`, for tests."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import Need
from secagg.client.open_client import ClientStep
from secagg.client.step_client import StepClient
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.errors import SessionAbortedError
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT, ExactSumWaiver
from secagg.server.step_server import StepServer
from secagg.server.task.setup import PreparedTask
from secagg.simulation.driver import identity_in_simulation
from secagg_testing.cohorts import LENIENT_POLICY, report_of

NOW = 1_800_000_000.0
WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
Vectors = Callable[[str], npt.ArrayLike]


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Return a temporary directory, in memory where the machine has one.

    What is tested are the calls that sync, and not how long a disk takes for them.
    """
    place = Path("/dev/shm")
    with TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as home:
        yield Path(home)


def prepared(parameters: ProtocolParameters) -> PreparedTask:
    """Return the task of some parameters, with or without noise."""
    if not parameters.noise_block:
        return PreparedTask(parameters, None, None)
    task = NoisyTask.from_parameters(parameters)
    return PreparedTask(parameters, task, report_of(task))


def enrolled(name: str, parameters: ProtocolParameters) -> EnrolledClient | None:
    """Return a client's enrolment, where the profile requires one."""
    if not parameters.profile.has_identities:
        return None
    serial = int.from_bytes(sha256(name.encode()).digest()[:3], "big")
    return EnrolledClient(identity_in_simulation(name, serial + 1))


def step_client(
    name: str, parameters: ProtocolParameters, home: Path | None, **changes: Any
) -> StepClient:
    """Return a client, not open yet, that accepts the configured parameters."""
    arguments: dict[str, Any] = {
        "aggregator": "hub",
        "privacy_limits": WAIVER,
        "cohort": LENIENT_POLICY,
        "state_dir": None if home is None else home / name,
        "rollback_mark": None if home is None else home / "marks" / name,
        "enrolment": enrolled(name, parameters),
        "lock_seconds": 0.0,
        "clock": lambda: NOW,
    }
    return StepClient(name, **(arguments | changes))


@dataclass
class Carrier:
    """Carries one session between a server and its clients.

    Attributes:
        parameters: Of the session.
        names: Of the clients.
        home: Where clients keep their state; None for memory.
        number: Of the session.
        options: Further arguments of the server.
        client_options: Of each client, by name.
        often: How often every message is delivered.
        new_objects: A new client object is made before every call.
        vector: Makes the vector of a client.
        made: How many vectors were asked for, by name.
        said: Messages that clients have sent, by name.
    """

    parameters: ProtocolParameters
    names: tuple[str, ...]
    home: Path | None = None
    number: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    client_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    often: int = 1
    new_objects: bool = False
    vector: Vectors | None = None

    def __post_init__(self) -> None:
        """Open the session, and the clients."""
        arguments: dict[str, Any] = {
            "aggregator": "hub",
            "task_id": "sums",
            "session_number": self.number,
            "now": NOW,
            "entropy": SeededEntropy(SecretBytes(bytes(32)), b"%d" % self.number),
        }
        task = prepared(self.parameters)
        self.server = StepServer(task, **(arguments | dict(self.options)))
        self.made = dict.fromkeys(self.names, 0)
        self.said: dict[str, list[bytes]] = {name: [] for name in self.names}
        self.last: dict[str, ClientStep] = {}
        self._open: dict[str, StepClient] = {}

    def client(self, name: str) -> StepClient:
        """Return a client, open; another one than before with `new_objects`."""
        if name in self._open:
            if not self.new_objects:
                return self._open[name]
            self._open.pop(name).close()
        changes = self.client_options.get(name, {})
        made = step_client(name, self.parameters, self.home, **changes)
        self._open[name] = made.__enter__()
        return made

    def close(self) -> None:
        """Close all clients."""
        while self._open:
            self._open.popitem()[1].close()

    def hand(self, name: str, update: bytes = b"", **given: Any) -> ClientStep:
        """Make one call of a client, repeated as every message is."""
        offer = self.server.offer
        done = self.client(name).step(offer, update, **given)
        for _ in range(1, self.often):
            done = self.client(name).step(offer, update, **given)
        if Need.VECTOR in done.needs:
            self.server.check_view(name, done.view)
            self.made[name] += 1
            given["vector"] = (self.vector or self.whole_number)(name)
            self.send(name, done)
            done = self.client(name).step(offer, **given)
        self.last[name] = done
        return done

    def whole_number(self, name: str) -> npt.NDArray[Any]:
        """Return the vector of a client: its index among the names in each entry."""
        task = prepared(self.parameters).noised
        dim = self.parameters.dimension if task is None else task.dim
        return np.full(dim, self.names.index(name))

    def send(self, name: str, done: ClientStep) -> None:
        """Deliver the messages of a client."""
        for message in done.messages:
            self.said[name].append(message)
            for _ in range(self.often):
                self.server.receive(name, message)

    def deliver_update(self, name: str) -> None:
        """Deliver the next update to one client, and its answer to the server."""
        done = self.last.get(name)
        if done is not None and done.is_over:
            return
        after = None if done is None else done.round
        update = self.server.update_for(name, after=after)
        if done is None or update is not None:
            self.send(name, self.hand(name, update or b""))

    def run(self, lost: Mapping[str, int] | None = None) -> None:
        """Carry the session to its end.

        Args:
            lost: Round after which a client sends nothing, from 0, by name.
        """
        lost, counted = lost or {}, 0
        while not self.server.is_over:
            for name in self.names:
                if lost.get(name, 99) > counted:
                    self.deliver_update(name)
            self.server.close_round()
            counted += 1
        for name in self.names:
            if lost.get(name, 99) > counted:
                self.deliver_update(name)

    def endings(self) -> dict[str, ClientStep | SessionAbortedError]:
        """Deliver the outcome of the session to every client in any state."""
        found: dict[str, ClientStep | SessionAbortedError] = {}
        for name in self.names:
            try:
                update = self.server.update_for(name) or b""
                found[name] = self.client(name).step(self.server.offer, update)
            except SessionAbortedError as error:
                found[name] = error
        return found
