"""The noise of the sums that train a model, planned as for a deployment.

* ε holds against the server of the aggregation. No member is sampled: batches are
  parts of a permutation that is drawn without looking at data. So every member takes
  part in at most `participations` of the sums.
* The planner of the product chooses noise, scale and modulus; the share of the member
  at stake does not count.
* With two aggregators each adds the whole noise, and ε holds against either of them, so
  the sum carries it twice.
* A table has a row for each method and ε: `row`; `accuracy_curves` draws them.
* The central Gaussian is a trusted server that adds real numbers to exact sums.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from figure import Curve

import dpnoise
from dpnoise.accounting import make_accountant
from dpnoise.events import (
    Adjacency,
    Adversary,
    GaussianEvent,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
)
from dpnoise.mechanisms import make_mechanism
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.discrete_gaussian import fixed_point_parameters

CENTRAL: Final = "central Gaussian"
OURS: Final = "ours"
SKELLAM: Final = "Skellam [Aga21]"
TWO: Final = "two aggregators [DPSA24]"
EXACT: Final = "no noise"

FAMILIES: Final = {
    CENTRAL: "gaussian",
    OURS: "ours",
    SKELLAM: "skellam",
    TWO: "ddgauss",
    EXACT: "other",
}
"""Colour of each method's curve."""

_FIXED_POINT_BITS: Final = 16
_GAUSSIAN_CERTIFICATE: Final = "skellam-gdp"
_PLANNED: Final = {OURS: "skellam-mixture", SKELLAM: "skellam", CENTRAL: "gaussian"}


@dataclass(frozen=True, slots=True)
class Task:
    """What all sums of a training have in common.

    Args:
        members: Vectors in one sum.
        dim: Entries of a vector.
        clip: Bound on the norm of a vector, caller's units.
        sums: How many are released.
        participations: Of one member, at most.
        delta: Of all of them.
    """

    members: int
    dim: int
    clip: float
    sums: int
    participations: int
    delta: float


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one method.

    Args:
        variance: Of an entry of the released sum, caller's units².
        mechanism: What clients run; None without integers.
        epsilon: What its accountant states against the server.
        accountant: Its name.
    """

    variance: float
    mechanism: Mechanism | None
    epsilon: float
    accountant: str


@functools.cache
def noise(method: str, task: Task, epsilon: float, bits: int | None = None) -> Noise:
    """Plan the noise of one method.

    Args:
        method: `CENTRAL`, `OURS`, `SKELLAM` or `TWO`.
        task: The sums.
        epsilon: Budget of one member over all of them.
        bits: Of the modulus; None for the planner's choice.
    """
    if method == TWO:
        return _of_two(task, epsilon)
    made = dpnoise.plan(
        mechanism=_PLANNED[method],
        clients=task.members,
        dimension=task.dim,
        l2_clip=task.clip,
        epsilon=epsilon,
        delta=task.delta,
        steps=task.sums,
        participations=task.participations,
        bits=bits,
    )
    mechanism = make_mechanism(made.parameters)
    if method == CENTRAL:
        variance = float(made.noise_variance) / made.parameters.scale_factor**2
        return Noise(variance, None, made.epsilon_model_reader, made.accountant)
    variance = (
        float(mechanism.expected_noise_variance) / made.parameters.scale_factor**2
    )
    return Noise(variance, mechanism, made.epsilon_server, made.accountant)


def sampled_epsilon(task: Task, variance: float, rate: float) -> float:
    """State ε as the publications count it: Poisson batches, readers of the model.

    It is that of a central Gaussian. With noise in shares no deployment can claim it.

    Args:
        task: The sums.
        variance: Of the noise, caller's units².
        rate: Probability that a member takes part in a sum.
    """
    account = make_accountant("gaussian-pld", adversary=Adversary.MODEL_READER)
    one = PoissonSampled(GaussianEvent(task.dim, variance, task.clip), rate)
    account.compose(Repeated(one, task.sums))
    return account.epsilon(task.delta)


def seed(label: str) -> bytes:
    """Return 32 bytes that a label names."""
    return hashlib.sha256(f"paper figures/{label}".encode()).digest()


def row(
    method: str, epsilon: float | None, planned: Noise | None, accuracies: list[float]
) -> dict[str, object]:
    """Return one row of the table of a figure.

    Args:
        method: Key of `FAMILIES`.
        epsilon: Budget; None without noise.
        planned: The noise, or None without.
        accuracies: Of the runs, in [0, 1].
    """
    made: dict[str, object] = {
        "method": method,
        "epsilon": epsilon,
        "accuracy": sum(accuracies) / len(accuracies),
        "accuracies": [round(accuracy, 4) for accuracy in accuracies],
    }
    if planned is not None:
        made |= {
            "epsilon_stated": planned.epsilon,
            "accountant": planned.accountant,
            "noise_variance": planned.variance,
        }
        if planned.mechanism is not None:
            given = planned.mechanism.parameters
            made |= {"scale": given.scale_factor, "modulus": given.modulus}
    return made


def number(made: Mapping[str, object], key: str) -> float:
    """Return a number of a row."""
    value = made[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {type(value).__name__}, not a number")
    return float(value)


def accuracy_curves(rows: Sequence[Mapping[str, object]]) -> list[Curve]:
    """Draw means as lines and single runs as circles; no noise is a dotted line.

    Args:
        rows: From `row`, that without noise first.
    """
    exact, *noisy = rows
    epsilons = sorted({number(each, "epsilon") for each in noisy})
    level = [number(exact, "accuracy")] * len(epsilons)
    curves = [Curve(EXACT, FAMILIES[EXACT], epsilons, level, style=":")]
    for method in dict.fromkeys(str(each["method"]) for each in noisy):
        points = [each for each in noisy if each["method"] == method]
        runs = [
            (number(each, "epsilon"), float(accuracy))
            for each in points
            for accuracy in cast("list[float]", each["accuracies"])
        ]
        family = FAMILIES[method]
        x = [number(each, "epsilon") for each in points]
        means = [number(each, "accuracy") for each in points]
        curves.append(Curve(method, family, x, means, wide=method == CENTRAL))
        x, y = [epsilon for epsilon, _ in runs], [value for _, value in runs]
        curves.append(Curve("single runs", family, x, y, marks_only=True))
    return curves


def findings(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Say the accuracy of every row."""
    return [
        f"epsilon {each['epsilon'] or 'infinite'}: {each['method']}: accuracy "
        f"{number(each, 'accuracy'):.4f}"
        for each in rows
    ]


def _of_two(task: Task, epsilon: float) -> Noise:
    """The published algorithm of two aggregators, at the Gaussian's ρ."""
    reference = noise(CENTRAL, task, epsilon)
    given = fixed_point_parameters(
        dim=task.dim,
        fixed_point_bits=_FIXED_POINT_BITS,
        rho=task.clip**2 / (2.0 * reference.variance),
        clients=task.members,
        l2_clip=task.clip,
        aggregators=2,
        adjacency=Adjacency.ZERO_OUT,
    )
    mechanism = make_mechanism(given)
    account = make_accountant(
        _GAUSSIAN_CERTIFICATE, adversary=Adversary.MODEL_READER
    ).compose(_repeated(mechanism.event(), task.participations))
    variance = 2.0 * float(mechanism.counted_noise_variance) / given.scale_factor**2
    stated = account.epsilon(task.delta)
    return Noise(variance, mechanism, stated, _GAUSSIAN_CERTIFICATE)


def _repeated(event: PrivacyEvent, count: int) -> PrivacyEvent:
    return event if count == 1 else Repeated(event, count)
