"""Figure 1 of [Bao22]: error of a distributed sum in ten panels of modulus and scale.

100 clients hold points of the unit sphere in 65 536 dimensions; (ε, 10⁻⁵)-DP for
ε = 1 … 5; m = 2^10 … 2^18 with two scales each. Published curves use the publication's
accountants; ours are the default mechanism under two of this project's.

* Without `--allow-invalid-theorem` the published mixture is calibrated with the
  conditions of its theorem, so where they fail it pays more noise. With it, the
  formula alone is drawn as a broken line: no privacy follows from that line.
* Circles are measured: 100 clients encoded, summed modulo m, decoded.
* cpSGD's constants are recalled from its publication; its error is computed only,
  because it lies far outside the picture, as in the publication.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from figure import Curve, Figure, Panel
from reproduction import Options, Reproduction, Usual, run
from required_noise import (
    Budget,
    Setting,
    gaussian_variance,
    largest_admitted_bound,
    smm_formula_only,
    smm_linf_bound,
    smm_order,
)
from sum_experiment import (
    Cohort,
    build_mechanism,
    measured_mse,
    mixture_clip_gain,
    predicted_mse,
)

from dpnoise.errors import TheoremNotApplicableError
from dpnoise.mechanisms.base import Mechanism

CLIENTS: Final = 100
DIM: Final = 65_536
RADIUS: Final = 1.0
DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0)
PANELS: Final = (
    *((bits, 2.0 ** (bits - 8)) for bits in (10, 12, 14, 16, 18)),
    *((bits, 2.0 ** (bits - 7)) for bits in (10, 12, 14, 16, 18)),
)
"""(bits, scale) in the publication's order: (a) to (e), then (f) to (j)."""

_MEASURED_AT: Final = (1.0, 3.0, 5.0)
_CARRIED_ABOVE: Final = 64.0
_CARRY_MARGIN: Final = Fraction(1002, 1000)
_CERTIFIED_UP_TO: Final = 64.0  # the contour's tables grow with the scale


@dataclass(frozen=True, slots=True)
class Method:
    """One curve.

    Args:
        label: Legend.
        family: Colour.
        accountant: Name of the accountant that decides the noise.
        mechanism: Name of the mechanism that runs.
        broken: Whether no theorem covers the noise.
        measured: Whether the mechanism is run.
    """

    label: str
    family: str
    accountant: str
    mechanism: str
    broken: bool = False
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """Where on the figure: bits of the modulus, scale factor, ε."""

    bits: int
    scale: float
    epsilon: float


_FORMULA: Final = Method(
    "SMM, formula only (no theorem)", "smm", "smm-formula-only", "smm", broken=True
)
METHODS: Final = (
    Method("DDG [KLS21]", "ddgauss", "ddgauss-paper", "ddgauss"),
    Method("Skellam [Aga21]", "skellam", "skellam-paper", "skellam"),
    Method("SMM [Bao22], theorem holds", "smm", "smm-paper", "smm"),
    Method("cpSGD (recalled)", "other", "cpsgd-recalled", "binomial", measured=False),
    Method("ours, mixture-rdp", "ours-rdp", "mixture-rdp", "skellam-mixture"),
    Method("ours, mixture-contour", "ours", "mixture-contour", "skellam-mixture"),
)


SETTINGS: Final = {
    "epsilons": Usual(EPSILONS, tiny=(1.0, 5.0)),
    "measured_at": Usual(_MEASURED_AT, tiny=(1.0,)),
    "bits": Usual([bits for bits, _ in PANELS], tiny=(10,)),
    "scales": Usual([scale for _, scale in PANELS], tiny=(4.0,)),
    "clients": Usual((CLIENTS,), tiny=(10,), one=True),
    "dimension": Usual((DIM,), tiny=(1024,), one=True),
    "delta": Usual((DELTA,), one=True),
}


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    dim, clients = options.count("dimension"), options.count("clients")
    # In pairs; a list that is too short ends the figure.
    bits_and_scales = zip(
        options.counts("bits"), options.numbers("scales"), strict=False
    )
    panels = tuple(bits_and_scales)
    epsilons, delta = options.numbers("epsilons"), options.number("delta")
    measured_at = options.numbers("measured_at")
    methods = (
        (*METHODS[:3], _FORMULA, *METHODS[3:])
        if options.allow_invalid_theorem
        else METHODS
    )
    cohort = Cohort.on_sphere(
        clients=clients, dim=dim, radius=RADIUS, label="bao22 figure 1"
    )
    noise = _NoiseTable(dim, clients, delta)
    rows = [
        _row(
            noise,
            cohort,
            method,
            Point(bits, scale, epsilon),
            measure=epsilon in measured_at,
        )
        # From coarse to fine, so that noise can be carried over.
        for bits, scale in sorted(panels, key=lambda panel: panel[1])
        for epsilon in epsilons
        for method in methods
    ]
    return Reproduction(
        name="bao22_figure1",
        stated={
            "clients": clients,
            "dimension": dim,
            "radius": RADIUS,
            "delta": delta,
            "epsilons": epsilons,
            "panels (bits, scale)": panels,
            "rounding bias": "e^(-1/2)",
        },
        assumed={
            "noise shares that count": "all n, as published",
            "Delta_inf of SMM": (
                "noise for Delta_inf = 1, the weakest demand; then the largest "
                "integer that this noise admits"
            ),
            "cpSGD sensitivity": "L2 = scale + sqrt(d), L1 = sqrt(d)·L2",
            "noise of ours above scale 64": (
                "multiple of the Gaussian carried over from the scale before and "
                "confirmed by the accountant"
            ),
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows, panels, methods),
    )


class _NoiseTable:
    """Calibrated noise of every point, each computed once."""

    def __init__(self, dim: int, clients: int, delta: float) -> None:
        self.delta = delta
        self._dim = dim
        self._clients = clients
        self._multiples: dict[float, Fraction] = {}

    def setting(self, scale: float) -> Setting:
        """The setting of a scale."""
        return Setting(
            dim=self._dim, radius=RADIUS, scale_factor=scale, clients=self._clients
        )

    def noise(self, accountant: str, scale: float, epsilon: float) -> Fraction:
        """Return the aggregate variance in grid steps squared."""
        setting = self.setting(scale)
        budget = Budget(epsilon, self.delta)
        if accountant == "smm-formula-only":
            return Fraction(smm_formula_only(setting.squared_steps, budget))
        unit = gaussian_variance(budget, 1.0)
        if accountant != "mixture-contour":
            return setting.noise(accountant, budget, gaussian_variance=unit)
        # On fine grids the contour's tables grow with the scale, while the multiple of
        # the Gaussian's variance has long converged: confirm it instead of searching.
        near = unit * setting.squared_steps
        carried = self._multiples.get(epsilon)
        if carried is not None and scale > _CARRIED_ABOVE:
            variance = carried * Fraction(near)
            if setting.suffices(accountant, budget, variance):
                return variance
        variance = setting.noise(accountant, budget, gaussian_variance=unit)
        self._multiples[epsilon] = variance / Fraction(near) * _CARRY_MARGIN
        return variance


def _row(
    table: _NoiseTable, cohort: Cohort, method: Method, point: Point, *, measure: bool
) -> dict[str, object]:
    """One point of one curve."""
    scale, epsilon = point.scale, point.epsilon
    setting, budget = table.setting(scale), Budget(epsilon, table.delta)
    variance = table.noise(method.accountant, scale, epsilon)
    row: dict[str, object] = {
        "bits": point.bits,
        "scale": scale,
        "epsilon": epsilon,
        "method": method.label,
        "accountant": method.accountant,
        "noise_variance_per_unit2": float(variance) / scale**2,
        "gaussian_mse": gaussian_variance(budget, RADIUS),
    }
    linf_bound = None
    if method.mechanism == "smm":
        linf_bound = smm_linf_bound(setting, budget, variance)
        row["linf_bound"] = linf_bound
    if method.accountant == "smm-formula-only":
        order = smm_order(setting.squared_steps, budget)
        release = setting.smm(variance, linf_bound=linf_bound or 1)
        row["order"] = order
        row["largest_real_linf_bound"] = largest_admitted_bound(order, float(variance))
        row["epsilon_by_theorem"] = setting.stated_epsilon(
            "smm-paper", table.delta, release
        )
        if scale <= _CERTIFIED_UP_TO:
            row["epsilon_certified"] = setting.stated_epsilon(
                "mixture-contour", table.delta, release
            )
    if not method.measured:
        row["predicted_mse"] = float(variance) / scale**2
        return row
    try:
        mechanism = _mechanism(method, cohort, point, variance, linf_bound)
    except TheoremNotApplicableError as refused:
        # Of so little noise the theorem admits no order: nothing here would run it.
        row["refused"] = str(refused)
        return row
    row["predicted_mse"] = predicted_mse(mechanism, cohort)
    if linf_bound is not None:
        row["bias_mse"] = mechanism.forecast(sum_l2_norm=cohort.sum_norm).bias_mse
        row["signal_kept"] = mixture_clip_gain(
            cohort, scale_factor=scale, linf_bound=linf_bound
        )
    if measure:
        label = f"bao22 figure 1/{method.label}/{point.bits}/{scale}/{epsilon}"
        row["measured_mse"] = measured_mse(mechanism, cohort, label=label)
    return row


def _mechanism(
    method: Method,
    cohort: Cohort,
    point: Point,
    variance: Fraction,
    linf_bound: int | None,
) -> Mechanism:
    clients, dim = cohort.vectors.shape
    return build_mechanism(
        method.mechanism,
        dim=dim,
        radius=RADIUS,
        scale_factor=point.scale,
        bits=point.bits,
        clients=clients,
        noise_variance=variance,
        linf_bound=linf_bound,
    )


def _figure(
    rows: Sequence[dict[str, object]],
    panels: Sequence[tuple[int, float]],
    methods: Sequence[Method],
) -> Figure:
    drawn = []
    for index, (bits, scale) in enumerate(panels):
        here = [row for row in rows if (row["bits"], row["scale"]) == (bits, scale)]
        curves = []
        for method in methods:
            points = [row for row in here if row["method"] == method.label]
            curves.append(
                Curve(
                    method.label,
                    method.family,
                    [_number(row, "epsilon") for row in points],
                    [_number(row, "predicted_mse") for row in points],
                    broken=method.broken,
                    wide=method.mechanism == "ddgauss",
                )
            )
            curves.append(
                Curve(
                    "measured",
                    method.family,
                    [_number(row, "epsilon") for row in points],
                    [_number(row, "measured_mse") for row in points],
                    marks_only=True,
                )
            )
        gaussian = {_number(row, "epsilon"): row["gaussian_mse"] for row in here}
        curves.append(
            Curve(
                "central Gaussian",
                "gaussian",
                list(gaussian),
                [float(str(value)) for value in gaussian.values()],
                style=":",
            )
        )
        drawn.append(
            Panel(
                title=f"({chr(ord('a') + index)}) m = 2^{bits}, scale {scale:g}",
                curves=curves,
                x_label="ε",
                y_label="MSE of the sum",
                y_limits=(0.5, 2e4),
                x_ticks=sorted(gaussian),
            )
        )
    return Figure(
        "Distributed sum, n = 100, d = 65 536, δ = 1e-5 (Figure 1 of [Bao22])",
        drawn,
        columns=min(5, len(drawn)),
    )


def _findings(rows: Sequence[dict[str, object]]) -> list[str]:
    """Sentences with the numbers that matter."""
    found = []
    for method in METHODS:
        points = [row for row in rows if row["method"] == method.label]
        ratios = [
            _number(row, "predicted_mse") / _number(row, "gaussian_mse")
            for row in points
        ]
        found.append(
            f"{method.label}: error {min(ratios):.3g} to {max(ratios):.3g} times the "
            "central Gaussian's"
        )
    gaps = [
        abs(_number(row, "measured_mse") / _number(row, "predicted_mse") - 1.0)
        for row in rows
        if "measured_mse" in row
    ]
    if gaps:
        found.append(
            f"{len(gaps)} measured points differ from the forecast by at most "
            f"{max(gaps):.2%}"
        )
    formula = [row for row in rows if row["accountant"] == "smm-formula-only"]
    uncovered = [row for row in formula if _number(row, "largest_real_linf_bound") <= 1]
    if formula:
        found.append(
            f"the mixture formula is outside its theorem at {len(uncovered)} of "
            f"{len(formula)} points"
        )
    return found


def _number(row: dict[str, object], key: str) -> float:
    value = row.get(key, math.nan)
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {type(value).__name__}, not a number")
    return float(value)


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
