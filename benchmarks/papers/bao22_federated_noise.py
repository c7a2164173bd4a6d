"""The noise behind Figures 2 and 3 of [Bao22]: 1000 sampled steps on 60 000 records.

The publication trains networks; what decides its curves is how much noise every
mechanism needs, and whether the noisy sum still fits the modulus. Both are computed
here; no network is trained. Batches of 240 records, q = 0.004, T = 1000, δ = 10⁻⁵, unit
clip, 63 610 weights padded to 65 536 coordinates; readers of the model.

Left: the noise for ε = 1 over the scale. Right: over ε, published mechanisms at the
scale 64 that the publication uses with one byte, ours at scale 8.
"""

import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from figure import Curve, Figure, Panel
from reproduction import Options, Reproduction, Usual, run
from required_noise import PUBLISHED_ORDERS, Budget, Setting

from dpnoise.accounting import calibrate
from dpnoise.accounting.conversion import renyi_epsilon
from dpnoise.errors import CalibrationError
from dpnoise.events import GaussianEvent, PrivacyEvent

DIM: Final = 65_536
BATCH: Final = 240
SAMPLING_RATE: Final = 0.004
STEPS: Final = 1000
DELTA: Final = 1e-5
SCALES: Final = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
EPSILONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0)
PUBLISHED_SCALE: Final = 64.0
OUR_SCALE: Final = 8.0
BYTE: Final = 256

GAUSSIAN: Final = "gaussian-pld"
FORMULA: Final = "smm-formula-only"
_CURVES: Final = (
    (GAUSSIAN, "central Gaussian", "gaussian", ":"),
    ("skellam-paper", "Skellam [Aga21]", "skellam", "-"),
    ("ddgauss-paper", "DDG [KLS21]", "ddgauss", "-"),
    ("skellam-gdp", "Skellam, Gaussian-DP certificate (ours)", "skellam-ours", "-"),
    ("smm-paper", "SMM [Bao22], theorem holds", "smm", "-"),
    (FORMULA, "SMM, formula only (no theorem)", "smm", "-"),
    ("mixture-rdp", "ours, mixture-rdp", "ours-rdp", "-"),
    ("mixture-pld", "ours, mixture-pld", "ours", "-"),
)
_OURS: Final = frozenset({"mixture-rdp", "mixture-pld"})
_BISECTIONS: Final = 60


SETTINGS: Final = {
    "scales": Usual(SCALES, tiny=(8.0,)),
    "epsilons": Usual(EPSILONS, tiny=()),
    "published_scale": Usual((PUBLISHED_SCALE,), one=True),
    "our_scale": Usual((OUR_SCALE,), one=True),
    "dimension": Usual((DIM,), one=True),
    "batch": Usual((BATCH,), one=True),
    "sampling_rate": Usual((SAMPLING_RATE,), one=True),
    "steps": Usual((STEPS,), one=True),
    "delta": Usual((DELTA,), one=True),
}


@dataclass(frozen=True, slots=True)
class Training:
    """What all points have in common.

    Args:
        dim: Coordinates of the padded gradient.
        batch: Noise shares that count.
        sampling_rate: Of a record in one step.
        steps: How many.
        delta: Of all of them.
    """

    dim: int = DIM
    batch: int = BATCH
    sampling_rate: float = SAMPLING_RATE
    steps: int = STEPS
    delta: float = DELTA

    def budget(self, epsilon: float) -> Budget:
        """Return what all steps may spend at one epsilon."""
        return Budget(
            epsilon, self.delta, steps=self.steps, sampling_rate=self.sampling_rate
        )


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    scales, epsilons = options.numbers("scales"), options.numbers("epsilons")
    asked = Training(
        dim=options.count("dimension"),
        batch=options.count("batch"),
        sampling_rate=options.number("sampling_rate"),
        steps=options.count("steps"),
        delta=options.number("delta"),
    )
    at = {name: options.number("published_scale") for name, *_ in _CURVES}
    at |= dict.fromkeys(_OURS, options.number("our_scale"))
    shown = [
        accountant
        for accountant, *_ in _CURVES
        if options.allow_invalid_theorem or accountant != FORMULA
    ]
    if options.tiny:
        shown.remove("mixture-pld")
    wanted = [(scale, 1.0, name) for scale in scales for name in shown]
    wanted += [(at[name], epsilon, name) for epsilon in epsilons for name in shown]
    rows = [_row(asked, *point) for point in dict.fromkeys(wanted)]
    return Reproduction(
        name="bao22_federated_noise",
        stated={
            "records": 60_000,
            "batch": asked.batch,
            "sampling rate": asked.sampling_rate,
            "steps": asked.steps,
            "delta": asked.delta,
            "clip": 1.0,
            "weights": 63_610,
        },
        assumed={
            "noise shares that count": f"all {asked.batch}",
            "Delta_inf of SMM": "1, the weakest demand on the noise",
            "training": "none; only the noise is reproduced",
            "sampling": (
                "hypothetical but for the central Gaussian: the variance of a sum of "
                "noise shares and the number of its inputs tell who was sampled"
            ),
        },
        rows=rows,
        findings=_findings(rows, options.number("published_scale")),
        figure=_figure(rows, shown, scales, at, asked),
    )


@functools.cache
def noise_per_unit(
    asked: Training, accountant: str, scale: float, epsilon: float
) -> float:
    """Return the aggregate variance that the setting needs, units squared.

    Args:
        asked: The setting.
        accountant: Name of an accountant, `GAUSSIAN`, or `FORMULA`.
        scale: Grid steps per unit.
        epsilon: Budget of all steps.

    Returns:
        The variance over the squared scale; infinite if no noise suffices.
    """
    budget = asked.budget(epsilon)
    if accountant == FORMULA:
        return formula_only_noise(budget)
    if accountant == GAUSSIAN:
        return float(_gaussian(asked, epsilon))
    setting = Setting(
        dim=asked.dim, radius=1.0, scale_factor=scale, clients=asked.batch
    )
    unit = float(_gaussian(asked, epsilon))
    try:
        noise = setting.noise(accountant, budget, gaussian_variance=unit)
        return float(noise) / scale**2
    except CalibrationError:
        return math.inf


@functools.cache
def _gaussian(asked: Training, epsilon: float) -> Fraction:
    budget = asked.budget(epsilon)

    def build(variance: Fraction) -> PrivacyEvent:
        return budget.releases(GaussianEvent(asked.dim, float(variance), 1.0))

    return calibrate(
        build,
        accountant=GAUSSIAN,
        epsilon=epsilon,
        delta=asked.delta,
        adversary=budget.adversary,
        bracket=(Fraction(1, 10_000), Fraction(10_000)),
    )


def formula_only_noise(budget: Budget) -> float:
    """Evaluate Theorem 6 of [Bao22] as printed, without its conditions.

    Args:
        budget: What all steps may spend.

    Returns:
        The least variance per unit over the published orders. No privacy follows.

    Source:
        [Bao22] Lemma 2 and Theorem 6 with αq − q + 1 in place of the misprint; one
        direction only, as published.
    """
    low, high = math.log(1e-3), math.log(1e6)
    orders = np.array(PUBLISHED_ORDERS, dtype=np.float64)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        curve = np.array(
            [
                budget.steps
                * _sampled(order, budget.sampling_rate, 1.0 / math.exp(middle))
                for order in PUBLISHED_ORDERS
            ]
        )
        if renyi_epsilon(orders, curve, budget.delta) <= budget.epsilon:
            high = middle
        else:
            low = middle
    return math.exp(high)


def _sampled(order: int, rate: float, ratio: float) -> float:
    """Lemma 2 with τ(l) = (0.6l + 0.5)·c/v, where ratio = c/v."""
    logs = [
        (order - 1) * math.log1p(-rate) + math.log(order * rate - rate + 1.0),
        *(
            math.log(math.comb(order, part))
            + (order - part) * math.log1p(-rate)
            + part * math.log(rate)
            + (part - 1) * (0.6 * part + 0.5) * ratio
            for part in range(2, order + 1)
        ),
    ]
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def _counted_by(accountant: str) -> str:
    """The name in the table: noise in shares cannot hide who was sampled."""
    is_central = accountant == GAUSSIAN
    return accountant if is_central else f"hypothetical-{accountant}"


def _row(
    asked: Training, scale: float, epsilon: float, accountant: str
) -> dict[str, object]:
    variance = noise_per_unit(asked, accountant, scale, epsilon)
    steps = math.sqrt(variance) * scale
    wrapped = math.erfc(BYTE / 2.0 / (steps * math.sqrt(2.0)))
    return {
        "scale": scale,
        "epsilon": epsilon,
        "accountant": _counted_by(accountant),
        "noise_variance_per_unit2": variance,
        "relative_to_gaussian": variance
        / noise_per_unit(asked, GAUSSIAN, scale, epsilon),
        "noise_wraps_a_byte": wrapped,
    }


def _figure(
    rows: Sequence[dict[str, object]],
    shown: Sequence[str],
    scales: Sequence[float],
    at: Mapping[str, float],
    asked: Training,
) -> Figure:
    left: list[Curve] = []
    right: list[Curve] = []
    for accountant, label, family, style in _CURVES:
        if accountant not in shown:
            continue
        points = [row for row in rows if row["accountant"] == _counted_by(accountant)]
        over_scale = [row for row in points if row["epsilon"] == 1.0]
        over_scale = [row for row in over_scale if row["scale"] in scales]
        over_epsilon = [row for row in points if row["scale"] == at[accountant]]
        for target, chosen, key in (
            (left, over_scale, "scale"),
            (right, over_epsilon, "epsilon"),
        ):
            target.append(
                Curve(
                    label,
                    family,
                    [_number(row, key) for row in chosen],
                    [_number(row, "noise_variance_per_unit2") for row in chosen],
                    style=style,
                    broken=accountant == FORMULA,
                    wide=family == "ddgauss",
                )
            )
    y_label = "noise variance of the sum, units²"
    return Figure(
        f"Noise of {asked.steps} sampled steps, q = {asked.sampling_rate:g}, "
        f"δ = {asked.delta:g} ([Bao22] section 6.2)\n"
        "hypothetical: noise shares tell who was sampled",
        [
            Panel(
                "ε = 1, over the scale", left, "scale", y_label,
                log_x=True, x_ticks=scales, y_limits=(0.5, 1e4),
            ),
            Panel(
                f"published at scale {at['skellam-paper']:g}, "
                f"ours at scale {at['mixture-rdp']:g}",
                right, "ε", y_label,
                x_ticks=sorted({_number(row, "epsilon") for row in rows}),
            ),
        ],
        columns=2,
    )  # fmt: skip


def _findings(rows: Sequence[dict[str, object]], scale: float) -> list[str]:
    found = []
    for accountant, label, *_ in _CURVES:
        points = [
            row
            for row in rows
            if row["accountant"] == _counted_by(accountant) and row["epsilon"] == 1.0
        ]
        if points:
            figures = ", ".join(
                f"{_number(row, 'noise_variance_per_unit2'):.4g} at scale "
                f"{_number(row, 'scale'):g}"
                for row in points
            )
            found.append(f"{label}: noise for epsilon 1: {figures}")
    found.extend(
        f"{row['accountant']}: at scale {scale:g} and one byte "
        f"{_number(row, 'noise_wraps_a_byte'):.3g} of the coordinates wrap by their "
        "noise alone"
        for row in rows
        if row["epsilon"] == 1.0 and row["scale"] == scale
    )
    return found


def _number(row: dict[str, object], key: str) -> float:
    value = row[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {type(value).__name__}, not a number")
    return float(value)


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
