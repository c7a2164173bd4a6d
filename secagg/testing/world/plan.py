"""What a seed stands for: who takes part in what, and what goes wrong when."""

from dataclasses import dataclass, replace
from enum import StrEnum, unique
from functools import cache
from typing import Final

from secagg.distributed_dp import NoisedTask
from secagg.parameters import ProtocolParameters
from secagg.policy import NO_NOISE_ACKNOWLEDGEMENT, ExactSumsAccepted, PrivacyFloors
from secagg.server.task_setup import PreparedTask
from secagg.simulation.enrolled import published_in_simulation
from secagg.testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    with_noise,
)
from secagg.testing.world.dice import Dice
from secagg.testing.world.network import Weather

__all__ = ["Blow", "Incident", "Kind", "Plan"]

CLIENTS: Final = 4
SUMS: Final = 2
SPARE: Final = 1
PAYLOAD: Final = b"a model"
# After so many steps nothing goes wrong any more, and everybody should come to an end.
LAST_STEP: Final = 1500
_EPSILON, _DELTA = 8.0, 1e-5


@unique
class Kind(StrEnum):
    """What the task is."""

    EXACT = "exact sums"
    NOISED = "sums with noise"
    SIGNED = "exact sums, profile malicious-server"


@unique
class Blow(StrEnum):
    """What goes wrong."""

    KILL_SERVER = "a server is killed"
    STOP_SERVER = "a server stands still"
    RESTART_SERVER = "a server is restarted in peace"
    FILL_SERVER_DISK = "the servers' disk is full"
    BACK_UP_SERVER = "the servers' state is backed up"
    PUT_BACK_SERVER = "the servers are killed, and their state is put back"
    KILL_CLIENT = "a client is killed"
    BACK_UP_CLIENT = "a client's state is backed up"
    PUT_BACK_CLIENT = "a client is killed, and its state is put back"
    STOP_CLIENT = "a client stands still"
    FILL_CLIENT_DISK = "a client's disk is full"
    CUT_OFF_CLIENT = "a client is cut off"
    CUT_OFF_ALL = "everybody is cut off"

    @property
    def meets_client(self) -> bool:
        """Whether it meets one client."""
        return "client" in self


# What is put back was backed up before.
_BACKED_UP: Final = {
    Blow.PUT_BACK_SERVER: Blow.BACK_UP_SERVER,
    Blow.PUT_BACK_CLIENT: Blow.BACK_UP_CLIENT,
}


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that goes wrong.

    Attributes:
        step: At which step of the run.
        blow: What.
        client: Which one it meets; of fewer servers, modulo their number.
        seconds: How long it lasts.
    """

    step: int
    blow: Blow
    client: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it begins.

    Attributes:
        seed: What all of it follows from.
        kind: What the task is.
        weather: Of the network.
        job_seconds: Longest time that threads take, mostly.
        disk_refusal: How often a transaction is refused.
        disk_silence: How often one succeeds and nobody hears so.
        is_shuffled: Whether callbacks run in any order.
        servers: How many share the work.
        corrupt: Clients whose secrets the adversary has.
        incidents: What goes wrong, in order.
    """

    seed: int
    kind: Kind
    weather: Weather
    job_seconds: float
    disk_refusal: float
    disk_silence: float
    is_shuffled: bool
    servers: int
    corrupt: frozenset[int]
    incidents: tuple[Incident, ...]

    @property
    def is_fair(self) -> bool:
        """Whether nothing goes wrong at all, nor takes longer than anybody waits."""
        weather = self.weather
        chances = (
            *(weather.loss, weather.straggle),
            *(self.disk_refusal, self.disk_silence),
        )
        return not self.incidents and not any(chances) and self.job_seconds < 1.0

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """Return what a seed stands for."""
        dice = Dice(seed, "plan")
        kind = dice.choice(tuple(Kind))
        weather = Weather(
            delay_seconds=dice.choice((0.001, 0.05, 2.0)),
            loss=dice.choice((0.0, 0.0, 0.02, 0.1)),
            hush=dice.choice((0.0, 0.3)),
            echo=dice.choice((0.0, 0.1)),
            straggle=dice.choice((0.0, 0.01)),
        )
        count = dice.choice((0, 1, 1, 2, 3, 5, 8))
        incidents = [_incident(dice) for _ in range(count)]
        incidents += [
            replace(each, step=1 + dice.below(each.step), blow=_BACKED_UP[each.blow])
            for each in incidents
            if each.blow in _BACKED_UP
        ]
        return cls(
            seed=seed,
            kind=kind,
            weather=weather,
            job_seconds=dice.choice((0.0, 0.001, 0.1, 3.0)),
            disk_refusal=dice.choice((0.0, 0.0, 0.01, 0.05)),
            disk_silence=dice.choice((0.0, 0.0, 0.01, 0.05)),
            is_shuffled=dice.chance(0.7),
            servers=dice.choice((1, 1, 2, 3)),
            corrupt=frozenset({dice.below(CLIENTS)})
            if kind is Kind.NOISED and dice.chance(0.5)
            else frozenset(),
            incidents=tuple(sorted(incidents, key=lambda each: each.step)),
        )

    def __str__(self) -> str:
        weather = self.weather
        lines = [
            f"seed {self.seed}: {self.servers} servers, {CLIENTS} clients, "
            f"{SUMS} sums, {self.kind}"
            + (f", corrupt {sorted(self.corrupt)}" if self.corrupt else ""),
            (
                f"  network: {weather.delay_seconds} s a way, lost {weather.loss}, "
                f"silent {weather.hush}, twice {weather.echo}, late {weather.straggle}"
            ),
            (
                f"  threads: {self.job_seconds} s; disks: refuse {self.disk_refusal}, "
                f"fall silent {self.disk_silence}; "
                + ("any order" if self.is_shuffled else "asyncio's order")
            ),
        ]
        lines += [
            f"  step {each.step}: {each.blow} (number {each.client}), "
            f"{each.seconds:.1f} s"
            for each in self.incidents
        ]
        return "\n".join(lines)


def _incident(dice: Dice) -> Incident:
    return Incident(
        step=1 + dice.below(dice.choice((60, 300, 900))),
        blow=dice.choice([each for each in Blow if each not in _BACKED_UP.values()]),
        client=dice.below(CLIENTS),
        seconds=dice.choice((0.5, 10.0, 70.0, 400.0)) * (0.5 + dice.uniform()),
    )


@cache
def parameters_of(kind: Kind) -> ProtocolParameters:
    """Return the parameters of a task."""
    if kind is Kind.SIGNED:
        return signing_parameters_for(CLIENTS, dimension=CLIENTS)
    plain = parameters_for(
        CLIENTS, dimension=CLIENTS, threshold=3, min_survivors=3, colluders=1
    )
    if kind is Kind.EXACT:
        return plain
    return with_noise(plain, steps=SUMS, spare=SPARE)


@cache
def prepared_of(kind: Kind) -> PreparedTask:
    """Return the task as its operator prepares it."""
    parameters = parameters_of(kind)
    noised = NoisedTask.from_parameters(parameters) if parameters.noise_block else None
    return PreparedTask(
        parameters,
        noised,
        None if noised is None else noised.report(),
        None,
        payload=PAYLOAD,
        enrolment=published_in_simulation() if kind is Kind.SIGNED else None,
    )


def floors_of(kind: Kind) -> PrivacyFloors | ExactSumsAccepted:
    """Return what clients insist on."""
    if kind is Kind.NOISED:
        return PrivacyFloors(max_epsilon=_EPSILON, max_delta=_DELTA)
    return ExactSumsAccepted(NO_NOISE_ACKNOWLEDGEMENT)
