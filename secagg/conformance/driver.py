"""`StepClient` as a program under test: ``python -m secagg.conformance.driver``.

An example of what an implementation has to bring to be tested by the kit, in any
language: it reads one JSON object a line, and answers one line.  The reference of the
lines is `docs/write-a-client.md`.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy as np

from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import Need
from secagg.client.open_client import ClientStep
from secagg.client.step_client import StepClient
from secagg.conformance.program import STATE_VARIABLE
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp.units import encode_integers
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    SessionAbortedError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import ClientIdentity, IssuedCredential
from secagg.protocol.messages import Aborted
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
)
from secagg.protocol.profiles import Profile

_OF_THE_COHORT: Final = (
    "min_graph_bits",
    "min_clients",
    "max_clients",
    "min_survivors",
    "max_dropouts",
    "min_colluders",
    "require_majority",
    "max_dimension",
    "max_modulus_bits",
)


class Driver:
    """Answers the kit's lines with a `StepClient`.

    Args:
        state: Directory for the clients' states.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._clients = 0
        self._told: Mapping[str, Any] = {}
        self._now = 0.0
        self._client: StepClient | None = None

    def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one line."""
        self._now = line.get("now", self._now)
        update = bytes.fromhex(line.get("update", ""))
        does: dict[str, Callable[[], dict[str, Any]]] = {
            "hello": self.hello,
            "begin": lambda: self.begin(line),
            "restart": lambda: self.restart(line),
            "update": lambda: self.write_result(self.step(update)),
            "bind": lambda: self.write_result(self.step(vector=self.vector())),
            "refused": lambda: self.refused(line["code"]),
            "sum": lambda: self.sum(bytes.fromhex(line["packed"])),
        }
        try:
            return does[line["do"]]()
        except SecAggError as error:
            is_told = isinstance(error, SessionAbortedError) and error.code is _code_in(
                update
            )
            return {"ended" if is_told else "left": error.code.name}

    @staticmethod
    def hello() -> dict[str, Any]:
        """Say what this client can do."""
        return {
            "name": "secagg.StepClient",
            "version": metadata.version("secagg"),
            "profiles": [1, 2],
            "graphs": ["complete", "ring"],
            "mechanisms": ["skellam-mixture", "skellam", "skellam-counts"],
            "restart": "memory",
        }

    def refused(self, code: str) -> dict[str, Any]:
        """Leave a session whose aggregator has another view."""
        self.client.leave(self.offer, "the aggregator has another view")
        return {"left": code}

    @property
    def client(self) -> StepClient:
        """The client that is open."""
        if self._client is None:
            raise ValueError("no session has begun")
        return self._client

    @property
    def offer(self) -> bytes:
        """The session's offer."""
        return bytes.fromhex(self._told["offer"])

    def begin(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Take part in a session, as a new client or as the one of before."""
        self.open(line, is_new=line["forget"])
        self.client.check_offer(self.offer, revocations=self.revocations)
        parameters = SessionDescriptor.decode(self.offer).parameters
        if not parameters.noise_block:  # R14.1-1: checked before the advert
            encode_integers(self.vector(), parameters)
        return self.write_result(self.step())

    def restart(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Continue from what is stored."""
        self.open(line, is_new=False)
        return self.write_result(self.step())

    def open(self, line: Mapping[str, Any], *, is_new: bool) -> None:
        """Open a client as a line describes it."""
        if self._client is not None:
            self._client.close()
        while is_new and (self._state / str(self._clients)).exists():
            self._clients += 1  # of an earlier client, or of an earlier process
        self._told = line
        limits, home = line["limits"], self._state / str(self._clients)
        self._client = StepClient(
            line["name"],
            aggregator=line["aggregator"],
            privacy_limits=self.limits(limits),
            tasks=None if not limits["require_noise"] else ["kit-task"],
            cohort=ClientPolicy(
                profiles=frozenset(map(Profile, limits["profiles"])),
                suites=frozenset(map(CipherSuite, limits["suites"])),
                graphs=frozenset(map(Graph, limits["graphs"])),
                **{name: limits[name] for name in _OF_THE_COHORT},
            ),
            state_dir=home,
            rollback_mark=self._state / f"{self._clients}.mark",
            enrolment=self.enrolment(line),
            trust_domain=line.get("membership", {}).get("trust_domain"),
            lock_seconds=0.0,
            clock=lambda: self._now,
        ).__enter__()

    @staticmethod
    def limits(limits: Mapping[str, Any]) -> PrivacyLimits | ExactSumWaiver:
        """Return what the client's owner insists on."""
        noised = PrivacyLimits(
            max_epsilon=limits["max_epsilon"],
            max_delta=limits["max_delta"],
            min_colluder_fraction=limits["min_colluder_fraction"],
        )
        if limits["require_noise"]:
            return noised
        return ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT, noised=noised)

    @staticmethod
    def enrolment(line: Mapping[str, Any]) -> EnrolledClient | None:
        """Return the client's place among the enrolled, where the line has one."""
        told = line.get("membership")
        if told is None:
            return None
        days = line["limits"]["max_revocation_days"]
        return EnrolledClient(
            ClientIdentity(
                IdentityKey.from_bytes(SecretBytes(bytes.fromhex(told["seed"]))),
                IssuedCredential.decode(bytes.fromhex(told["credential"])),
                bytes.fromhex(told["enrolment_key"]),
            ),
            max_revocation_seconds=None if days is None else 86_400 * days,
        )

    @property
    def revocations(self) -> bytes | None:
        """The revocation list that the offer names."""
        told = self._told.get("revocations")
        return None if told is None else bytes.fromhex(told)

    def vector(self) -> Any:
        """Return the client's vector: doubles with noise, whole numbers without."""
        told = self._told["vector"]
        if SessionDescriptor.decode(self.offer).parameters.noise_block:
            return np.array([float(entry) for entry in told])
        return np.array([_number(entry) for entry in told])

    def step(self, update: bytes = b"", **given: Any) -> ClientStep:
        """Make one call of the client."""
        return self.client.step(
            self.offer, update, revocations=self.revocations, **given
        )

    @staticmethod
    def write_result(done: ClientStep) -> dict[str, Any]:
        """Write what a call has come to."""
        if done.is_over:
            return {"released": True}
        answer: dict[str, Any] = {"messages": [each.hex() for each in done.messages]}
        if Need.VECTOR in done.needs:
            answer["view"] = done.view.hex()
        return answer

    def sum(self, packed: bytes) -> dict[str, Any]:
        """Read a sum."""
        values = self.client.read_sum(self.offer, packed).values
        if values is None:
            raise ErrorCode.UNEXPECTED_MESSAGE.error("the session has no sum")
        if np.issubdtype(values.dtype, np.integer):
            return {"sum": [str(each) for each in values.tolist()]}
        return {"sum": values.tolist()}


def _code_in(update: bytes) -> ErrorCode | None:
    """Return the code with which an update ends the session; None for any other."""
    if update[:1] != bytes([Aborted.KIND]):
        return None
    try:
        return Aborted.decode(update[1:]).code
    except RemoteProtocolError:
        return None


def _number(entry: str) -> int | float:
    return float(entry) if "." in entry else int(entry)


class AnswersLines(Protocol):
    """A program under test without its pipes."""

    def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one line."""
        ...


def answer_lines(make: Callable[[Path], AnswersLines]) -> None:
    """Answer line after line until the input ends.

    Args:
        make: Makes the program of the lines, given the directory of its state.
    """
    with TemporaryDirectory() as own:
        program = make(Path(os.environ.get(STATE_VARIABLE) or own))
        for line in sys.stdin:
            sys.stdout.write(json.dumps(program.answer(json.loads(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    answer_lines(Driver)
