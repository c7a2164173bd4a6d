"""Figure 2 of [Aga21]: privacy of one sensitivity-1 query against the noise.

A counter is scaled by s before integer noise of s times the standard deviation is
added, in n equal shares. Left: no scaling, where sums of discrete Gaussians suffer.
Right: scaled, where every bound approaches the Gaussian.

The transcribed caption has lost the values of s, n and δ: they are assumed.
"""

import math
import os
import sys
from fractions import Fraction
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from figure import Figure, Panel
from reproduction import Options, Reproduction, Usual, run
from scalar_release import (
    COMPARED,
    LogPmf,
    direct_epsilon,
    discrete_gaussian_log_pmf,
    epsilon_curves,
    loss_pair,
    pair_epsilon,
    skellam_log_pmf,
)

from dpnoise.accounting import make_accountant
from dpnoise.accounting.gaussian import gaussian_epsilon
from dpnoise.events import (
    Adversary,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    NoiseEvent,
    SkellamEvent,
)

DELTA: Final = 1e-6
SHARES: Final = 100
SCALES: Final = (1, 8)
STDDEVS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0)

GAUSSIAN: Final = "Gaussian, analytic"
_CURVES: Final = (
    (GAUSSIAN, "gaussian", ":", False),
    *COMPARED,
    ("distributed discrete Gaussian, RDP [KLS21]", "smm", "-", False),
    ("Skellam, direct", "other", "-", False),
)


SETTINGS: Final = {
    "scales": Usual(SCALES, tiny=SCALES[:1]),
    "stddevs": Usual(STDDEVS, tiny=STDDEVS[::5]),
    "shares": Usual((SHARES,), one=True),
    "delta": Usual((DELTA,), one=True),
}


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    stddevs, scales = options.numbers("stddevs"), options.counts("scales")
    shares, delta = options.count("shares"), options.number("delta")
    rows: list[dict[str, object]] = [
        {"scale": scale, "stddev": stddev, **epsilons(scale, stddev, shares, delta)}
        for scale in scales
        for stddev in stddevs
    ]
    return Reproduction(
        name="aga21_figure2",
        stated={"sensitivity": 1, "releases": 1},
        assumed={
            "delta": delta,
            "noise shares n": shares,
            "scales s": scales,
            "noise stddevs": stddevs,
        },
        rows=rows,
        findings=_findings(rows, shares),
        figure=_figure(rows, shares),
    )


def epsilons(scale: int, stddev: float, shares: int, delta: float) -> dict[str, float]:
    """Return ε of one release under every analysis.

    Args:
        scale: Grid steps per unit, an integer.
        stddev: Standard deviation of the summed noise, units.
        shares: Number of clients that the noise is divided among.
        delta: Failure probability.
    """
    variance = (scale * stddev) ** 2
    exact = Fraction(variance)
    # One coordinate: its L1, L2 and L∞ sensitivities are all the shift.
    skellam = SkellamEvent(1, exact, float(scale), float(scale), scale)
    divided = DistributedDiscreteGaussianEvent(
        1, shares, exact / shares, float(scale), float(scale)
    )

    def stated(accountant: str, release: NoiseEvent) -> float:
        account = make_accountant(accountant, adversary=Adversary.SERVER)
        return account.compose(release).epsilon(delta)

    def true_epsilon(log_pmf: LogPmf) -> float:
        return pair_epsilon(loss_pair(log_pmf, scale), count=1, delta=delta)

    values = (
        gaussian_epsilon(delta, noise_multiplier=stddev),
        true_epsilon(skellam_log_pmf(variance)),
        stated("skellam-paper", skellam),
        stated("skellam-rdp", skellam),
        stated("skellam-gdp", skellam),
        true_epsilon(discrete_gaussian_log_pmf(variance)),
        stated("zcdp", DiscreteGaussianEvent(1, exact, float(scale))),
        stated("ddgauss-paper", divided),
        direct_epsilon(variance, delta, shift=scale),
    )
    return {name: value for (name, *_), value in zip(_CURVES, values, strict=True)}


def _figure(rows: list[dict[str, object]], shares: int) -> Figure:
    panels = []
    for relative in (False, True):
        for scale in dict.fromkeys(row["scale"] for row in rows):
            here = [row for row in rows if row["scale"] == scale]
            panels.append(
                Panel(
                    title=f"s = {scale}, n = {shares}"
                    + (", relative to the Gaussian" if relative else ""),
                    curves=epsilon_curves(here, _CURVES, x="stddev", relative=relative),
                    x_label="standard deviation of the noise, units",
                    y_label="ε / ε of the Gaussian" if relative else "ε",
                    log_x=True,
                    log_y=not relative,
                    y_limits=(0.7, 1.8) if relative else (0.15, 30.0),
                    x_ticks=(1, 2, 5, 10, 20),
                )
            )
    return Figure(
        "One query of sensitivity 1, δ = 1e-6 (Figure 2 of [Aga21])", panels, columns=2
    )


def _findings(rows: list[dict[str, object]], shares: int) -> list[str]:
    found = []
    exact = "Skellam, exact loss distribution"
    for scale in dict.fromkeys(row["scale"] for row in rows):
        here = [
            row
            for row in rows
            if row["scale"] == scale and float(str(row["stddev"])) >= 2.0
        ]
        for name, *_ in _CURVES[2:5] + _CURVES[8:] if here else ():
            ratios = [float(str(row[name])) / float(str(row[exact])) for row in here]
            found.append(
                f"s = {scale}, stddev 2 and more: {name} states {min(ratios):.3f} to "
                f"{max(ratios):.3f} times the exact epsilon"
            )
        divided = _CURVES[7][0]
        harmless = [
            float(str(row["stddev"]))
            for row in rows
            if row["scale"] == scale
            and float(str(row[divided])) < 1.01 * float(str(row[_CURVES[6][0]]))
        ]
        found.append(
            f"s = {scale}: the sum of {shares} discrete Gaussians costs under 1 % "
            f"from stddev {min(harmless, default=math.inf):g} on"
        )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
