"""The tasks that a world may run: who takes part, and under which parameters.

Small enough to run ten thousand times, and large enough to be legal: a ring needs seven
clients, drawn neighbours five.
"""

from dataclasses import dataclass
from enum import StrEnum, unique
from functools import cache
from typing import Final

from secagg.config import TaskSettings, task_from_document
from secagg.distributed_dp import NoisyTask
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ExactSumWaiver,
    PrivacyLimits,
)
from secagg.server.task.setup import PreparedTask, prepare_task
from secagg.simulation.driver import published_in_simulation
from secagg_testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
    with_noise,
)

PAYLOAD: Final = b"a model"
_SPARE: Final = 1
_SUMS: Final = 2
# On a ring the bits of its graph come on top of what was planned.
_EPSILON, _DELTA = 8.0, 1e-5 + 1e-9


@unique
class Kind(StrEnum):
    """What a task is."""

    EXACT = "exact sums"
    WEIGHTLESS = "sums with a budget and noise of nothing"
    SIGNED = "exact sums, profile malicious-server"
    RING = "noised sums on a ring"
    LADDER = "noised sums, noise given back"
    DRAWN = "exact sums, profile malicious-server-sparse"
    FILED = "exact sums of a file"

    @property
    def clients(self) -> int:
        """How many take part."""
        return _CLIENTS.get(self, 4)

    @property
    def has_noise(self) -> bool:
        """Whether clients draw noise, and sums are what they have drawn."""
        return self in {Kind.RING, Kind.LADDER}


_CLIENTS: Final = {Kind.RING: 7, Kind.LADDER: 5, Kind.DRAWN: 5, Kind.FILED: 3}


@dataclass(frozen=True, slots=True)
class WorldTask:
    """One task of a world.

    Attributes:
        name: What clients ask for.
        kind: What it is.
        first: Number of its first client among those of all tasks.
        sums: How many are wanted.
    """

    name: str
    kind: Kind
    first: int = 0
    sums: int = _SUMS

    @property
    def clients(self) -> tuple[str, ...]:
        """Who takes part, by name."""
        numbers = range(self.first, self.first + self.kind.clients)
        return tuple(f"client-{number}" for number in numbers)

    @property
    def parameters(self) -> ProtocolParameters:
        """Of every session."""
        return parameters_of(self.kind)

    @property
    def payload(self) -> bytes:
        """What each session hands out."""
        return b"" if self.kind is Kind.FILED else PAYLOAD


@cache
def parameters_of(kind: Kind) -> ProtocolParameters:
    """Return the parameters of a task."""
    if kind is Kind.FILED:
        return prepare_task(settings_of("a file")).parameters
    made = _without_noise(kind)
    if kind not in {Kind.WEIGHTLESS, Kind.LADDER, Kind.RING}:
        return made
    ladder = 2 if kind is Kind.LADDER else 0
    return with_noise(made, steps=_SUMS, spare=_SPARE, ladder=ladder)


def _without_noise(kind: Kind) -> ProtocolParameters:
    count = kind.clients
    match kind:
        case Kind.SIGNED:
            return signing_parameters_for(count, dimension=count)
        case Kind.DRAWN:
            return sparse_parameters_for(count, dimension=count, degree=3, losses=1)
        case Kind.RING:
            return parameters_for(
                count,
                dimension=count,
                threshold=3,
                degree=4,
                min_clients=count - 1,
                min_survivors=count - 2,
                max_dropouts=2,
                max_losses=2,
                colluders=1,
            )
    return parameters_for(
        count, dimension=count, threshold=3, min_survivors=3, colluders=1
    )


@cache
def prepared_of(kind: Kind) -> PreparedTask:
    """Return the task as a program that builds on the library prepares it."""
    parameters = parameters_of(kind)
    noised = NoisyTask.from_parameters(parameters) if parameters.noise_block else None
    return PreparedTask(
        parameters,
        noised,
        None if noised is None else noised.report(),
        payload=PAYLOAD,
        enrolment=published_in_simulation()
        if parameters.profile.has_identities
        else None,
    )


@cache
def settings_of(name: str, sums: int = _SUMS) -> TaskSettings:
    """Return the task of a file, as an operator proposes it."""
    count = Kind.FILED.clients
    document = {
        "task": {"id": name, "steps": sums, "attempts": 5},
        "vector": {"dimension": count, "modulus_bits": 20},
        "cohort": {"min_clients": 2, "max_clients": count, "min_survivors": 2},
        "noise": {"none": NO_NOISE_ACKNOWLEDGEMENT},
    }
    return task_from_document(document, origin="a world")


def privacy_limits_of(kind: Kind) -> PrivacyLimits | ExactSumWaiver:
    """Return what clients insist on."""
    if parameters_of(kind).noise_block:
        return PrivacyLimits(max_epsilon=_EPSILON, max_delta=_DELTA)
    return ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
