"""Figure 4 of [Aga21]: distributed mean estimation at several bit widths.

Clients hold points of a sphere; the mean is estimated once through the distributed
Skellam mechanism, whose scale follows from the bit width. The error is that of the
mean, averaged over coordinates, with a 95 % confidence interval over fresh data sets.

The transcribed caption has lost n, d, the radius and the bits; those of the experiment
script that the authors published are used, and its two standard deviations of room in
the modulus. Beside it stands this project's planner with the same bits.
"""

import itertools
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from figure import Curve, Figure, Panel
from reproduction import Options, Reproduction, Usual, run
from required_noise import Budget, Setting, gaussian_variance
from sum_experiment import Cohort, build_mechanism, measured_mse, predicted_mse

from dpnoise.accounting.conversion import renyi_epsilon
from dpnoise.accounting.renyi.skellam_rdp import vector_bound
from dpnoise.encoding.rotation import encoded_dim
from dpnoise.mechanisms import make_mechanism
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.skellam import scale_from_bits
from dpnoise.planning import plan
from dpnoise.student_t import student_quantile

RADIUS: Final = 10.0
DIM: Final = 250
DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 2.0, 4.0, 6.0)
BITS: Final = (10, 12, 14, 16)
COHORTS: Final = ((100, 10), (1000, 3))
"""(clients, data sets): fewer data sets where each is ten times the work."""

_DEVIATIONS: Final = 2.0
_ORDERS: Final = np.arange(2.0, 257.0)
_BISECTIONS: Final = 50
_STYLES: Final = {10: ":", 12: "-.", 14: "--", 16: "-"}


SETTINGS: Final = {
    "epsilons": Usual(EPSILONS, tiny=(6.0,)),
    "bits": Usual(BITS, tiny=(10,)),
    "clients": Usual([clients for clients, _ in COHORTS], tiny=(20,)),
    "data_sets": Usual([sets for _, sets in COHORTS], tiny=(2,)),
    "dimension": Usual((DIM,), one=True),
    "radius": Usual((RADIUS,), one=True),
    "delta": Usual((DELTA,), one=True),
}
"""`data_sets`: for each number of clients, its last value for all that follow."""


@dataclass(frozen=True, slots=True)
class Question:
    """What all points have in common.

    Args:
        dim: Entries of a vector.
        radius: Of the sphere that vectors lie on, and of the clip.
        delta: Of one release.
    """

    dim: int
    radius: float
    delta: float


@dataclass(frozen=True, slots=True)
class Method:
    """One curve: a mechanism whose scale follows from the bits."""

    label: str
    family: str
    bits: int
    build: Callable[[int, int, float, Question], Mechanism]


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    epsilons, bits = options.numbers("epsilons"), options.counts("bits")
    sets = options.counts("data_sets")
    clients_and_sets = itertools.zip_longest(
        options.counts("clients"), sets, fillvalue=sets[-1]
    )
    cohorts = tuple(clients_and_sets)[: len(options.counts("clients"))]
    methods = _methods(bits)
    asked = Question(
        options.count("dimension"), options.number("radius"), options.number("delta")
    )
    if options.tiny:
        methods = methods[-1:] + methods[:1]
    rows: list[dict[str, object]] = []
    for clients, repeats in cohorts:
        alike = Cohort.aligned(
            clients=clients,
            dim=asked.dim,
            radius=asked.radius,
            label="aga21 figure 4/aligned",
        )
        data = [
            Cohort.on_sphere(
                clients=clients,
                dim=asked.dim,
                radius=asked.radius,
                label=f"aga21 figure 4/{clients}/{repeat}",
            )
            for repeat in range(repeats)
        ]
        rows.extend(
            _row(
                method,
                data,
                epsilon,
                asked,
                alike if epsilon == epsilons[-1] else None,
            )
            for epsilon in epsilons
            for method in methods
        )
    return Reproduction(
        name="aga21_figure4",
        stated={
            "mechanism": "Algorithm 1",
            "rounding bias": "e^(-1/2)",
            "interval": "95 % over data sets",
        },
        assumed={
            "clients, data sets": cohorts,
            "dimension": asked.dim,
            "radius": asked.radius,
            "delta": asked.delta,
            "bits": bits,
            "standard deviations of room k": _DEVIATIONS,
            "published data sets": 10,
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows, methods, asked),
    )


def published_scale(bits: int, clients: int, epsilon: float, asked: Question) -> float:
    """Choose the scale as Algorithm 1 of [Aga21] does.

    Args:
        bits: Bits per coordinate of the sum.
        clients: Number of vectors in the sum.
        epsilon: Budget of one release.
        asked: For which vectors, at which delta.

    Returns:
        Grid steps per unit.
    """
    dim = encoded_dim("hadamard", asked.dim)

    def noise_variance_at(scale: float) -> float:
        setting = Setting(
            dim=dim, radius=asked.radius, scale_factor=scale, clients=clients
        )
        release = setting.skellam(Fraction(1))
        low = math.log(setting.rounded_squared_bound) - 10.0
        high = low + 40.0
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            curve = vector_bound(
                _ORDERS,
                l2_sensitivity=release.l2_sensitivity,
                l1_sensitivity=release.l1_sensitivity or 0.0,
                noise_variance=math.exp(middle),
            )
            if renyi_epsilon(_ORDERS, curve, asked.delta) <= epsilon:
                high = middle
            else:
                low = middle
        return math.exp(high)

    return scale_from_bits(
        bits,
        dim=dim,
        l2_clip=asked.radius,
        num_clients=clients,
        noise_variance_at=noise_variance_at,
        deviations=_DEVIATIONS,
    )


def _published(bits: int, clients: int, epsilon: float, asked: Question) -> Mechanism:
    """The distributed Skellam mechanism, noise by its published bound."""
    scale = published_scale(bits, clients, epsilon, asked)
    dim = encoded_dim("hadamard", asked.dim)
    setting = Setting(dim=dim, radius=asked.radius, scale_factor=scale, clients=clients)
    variance = setting.noise(
        "skellam-paper",
        Budget(epsilon, asked.delta),
        gaussian_variance=gaussian_variance(Budget(epsilon, asked.delta), 1.0),
    )
    return build_mechanism(
        "skellam",
        dim=asked.dim,
        radius=asked.radius,
        scale_factor=scale,
        bits=bits,
        clients=clients,
        noise_variance=variance,
    )


def _planned(
    bits: int,
    clients: int,
    epsilon: float,
    asked: Question,
    *,
    sum_l2_norm: float | None = None,
) -> Mechanism:
    """This project's default at the same bits; one share more than is counted."""
    made = plan(
        clients=clients,
        dimension=asked.dim,
        l2_clip=asked.radius,
        epsilon=epsilon,
        delta=asked.delta,
        bits=bits,
        sum_l2_norm=sum_l2_norm,
    )
    return make_mechanism(made.parameters)


def _planned_spread(
    bits: int, clients: int, epsilon: float, asked: Question
) -> Mechanism:
    """The same, told that the sum is as short as one of independent directions."""
    return _planned(
        bits, clients, epsilon, asked, sum_l2_norm=math.sqrt(clients) * asked.radius
    )


def _methods(widths: Sequence[int]) -> tuple[Method, ...]:
    published = [
        Method(f"Skellam [Aga21], {bits} bits", "skellam", bits, _published)
        for bits in widths
    ]
    return (
        *published,
        Method("ours, 10 bits, any vectors", "ours", 10, _planned),
        Method("ours, 14 bits, any vectors", "ours", 14, _planned),
        Method("ours, 10 bits, vectors not aligned", "ours-rdp", 10, _planned_spread),
    )


def _row(
    method: Method,
    data: list[Cohort],
    epsilon: float,
    asked: Question,
    alike: Cohort | None,
) -> dict[str, object]:
    """One point: forecast, and the mean over data sets with its interval.

    Where `alike` is given, the worst case is measured too: all vectors are equal.
    """
    clients = data[0].vectors.shape[0]
    mechanism = method.build(method.bits, clients, epsilon, asked)
    label = f"aga21 figure 4/{method.label}/{epsilon}"
    errors = [
        measured_mse(mechanism, cohort, label=f"{label}/{repeat}") / clients**2
        for repeat, cohort in enumerate(data)
    ]
    repeats = len(errors)
    sem = statistics.stdev(errors) / math.sqrt(repeats) if repeats > 1 else math.nan
    gaussian = (
        gaussian_variance(Budget(epsilon, asked.delta), asked.radius) / clients**2
    )
    row: dict[str, object] = {
        "clients": clients,
        "epsilon": epsilon,
        "method": method.label,
        "bits": method.bits,
        "scale": mechanism.parameters.scale_factor,
        "gaussian_mse": gaussian,
        "predicted_mse": predicted_mse(mechanism, data[0]) / clients**2,
        "measured_mse": statistics.fmean(errors),
        "half_interval": _quantile(repeats) * sem,
        "data_sets": repeats,
    }
    if alike is not None:
        worst = measured_mse(mechanism, alike, label=f"{label}/aligned")
        row["measured_mse_of_equal_vectors"] = worst / clients**2
    return row


def _quantile(repeats: int) -> float:
    """The 97.5 % quantile of Student's t, to four digits."""
    if repeats == 1:
        return math.nan
    return float(f"{student_quantile(0.025, repeats - 1):.4g}")


def _figure(
    rows: list[dict[str, object]], methods: tuple[Method, ...], asked: Question
) -> Figure:
    cohorts = list(dict.fromkeys(_number(row, "clients") for row in rows))
    return Figure(
        f"Distributed mean estimation, δ = {asked.delta:g} (Figure 4 of [Aga21])",
        [
            _panel(rows, methods, clients, asked, relative=relative)
            for relative in (False, True)
            for clients in cohorts
        ],
        columns=len(cohorts),
    )


def _panel(
    rows: list[dict[str, object]],
    methods: tuple[Method, ...],
    clients: float,
    asked: Question,
    *,
    relative: bool,
) -> Panel:
    """Measured errors at one cohort size, or forecasts over the Gaussian's error."""
    here = [row for row in rows if row["clients"] == clients]
    curves = []
    for method in methods:
        points = [row for row in here if row["method"] == method.label]
        units = [_number(row, "gaussian_mse") if relative else 1.0 for row in points]
        shown = "predicted_mse" if relative else "measured_mse"
        means = [_number(row, shown) for row in points]
        halves = [] if relative else [_number(row, "half_interval") for row in points]
        curves.append(
            Curve(
                method.label,
                method.family,
                [_number(row, "epsilon") for row in points],
                [mean / unit for mean, unit in zip(means, units, strict=True)],
                spread=halves,
                style=_STYLES.get(method.bits, "-"),
            )
        )
    gaussian = {_number(row, "epsilon"): _number(row, "gaussian_mse") for row in here}
    curves.append(
        Curve(
            "central Gaussian",
            "gaussian",
            list(gaussian),
            [1.0 if relative else error for error in gaussian.values()],
        )
    )
    return Panel(
        title=f"n = {clients:g}, d = {asked.dim}, "
        + ("forecast over the Gaussian" if relative else f"radius {asked.radius:g}"),
        curves=curves,
        x_label="ε",
        y_label="MSE / that of the Gaussian" if relative else "MSE of the mean",
        log_y=not relative,
        y_limits=(0.8, 1.8) if relative else None,
        x_ticks=sorted(gaussian),
    )


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    for clients in dict.fromkeys(_number(row, "clients") for row in rows):
        for label in dict.fromkeys(str(row["method"]) for row in rows):
            points = [
                row
                for row in rows
                if row["clients"] == clients and row["method"] == label
            ]
            ratios = [
                _number(row, "measured_mse") / _number(row, "gaussian_mse")
                for row in points
            ]
            last = points[-1]
            worst = _number(last, "measured_mse_of_equal_vectors")
            found.append(
                f"n = {clients:g}: {label}: measured error {min(ratios):.3g} to "
                f"{max(ratios):.3g} times the central Gaussian's; "
                f"{worst / _number(last, 'gaussian_mse'):.3g} times at epsilon "
                f"{last['epsilon']} if all vectors are equal"
            )
    return found


def _number(row: dict[str, object], key: str) -> float:
    value = row[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {type(value).__name__}, not a number")
    return float(value)


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
