"""Figure 1 of [Aga21]: how the privacy loss of a counter grows over many releases.

A scalar query of sensitivity 1 is released T times. For Skellam and discrete Gaussian
noise the exact loss distribution is composed; beside it stand the published Rényi
bounds, the direct analysis with advanced composition, and this project's certificate.

The transcribed caption has lost its numbers: noise, δ and the range of T are assumed.
"""

import os
import sys
from fractions import Fraction
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from figure import Figure, Panel
from reproduction import Options, Reproduction, Usual, run
from scalar_release import (
    COMPARED,
    composed_direct_epsilon,
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
    NoiseEvent,
    Repeated,
    SkellamEvent,
)

DELTA: Final = 1e-6
STDDEVS: Final = (2.0, 10.0)
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

GAUSSIAN: Final = "Gaussian, exact"
_CURVES: Final = (
    (GAUSSIAN, "gaussian", ":", False),
    *COMPARED,
    ("Skellam, direct + composition theorems", "other", "-", False),
)


SETTINGS: Final = {
    "stddevs": Usual(STDDEVS, tiny=STDDEVS[:1]),
    "releases": Usual(COUNTS, tiny=COUNTS[:4:3]),
    "delta": Usual((DELTA,), one=True),
}


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    counts, delta = options.counts("releases"), options.number("delta")
    stddevs = options.numbers("stddevs")
    rows: list[dict[str, object]] = []
    for stddev in stddevs:
        for count in counts:
            values = epsilons(stddev, count, delta)
            rows.append({"stddev": stddev, "releases": count, **values})
    return Reproduction(
        name="aga21_figure1",
        stated={"sensitivity": 1, "queries": "scalar"},
        assumed={"delta": delta, "noise stddevs": stddevs, "releases": counts},
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def epsilons(stddev: float, count: int, delta: float) -> dict[str, float]:
    """Return ε after `count` releases under every analysis.

    Args:
        stddev: Noise standard deviation (for the discrete Gaussian: its parameter).
        count: Number of releases.
        delta: Failure probability.
    """
    variance = stddev * stddev
    exact = Fraction(variance)
    skellam = SkellamEvent(1, exact, 1.0, 1.0, 1)
    discrete = DiscreteGaussianEvent(1, exact, 1.0)

    def stated(accountant: str, release: NoiseEvent) -> float:
        account = make_accountant(accountant, adversary=Adversary.SERVER)
        return account.compose(Repeated(release, count)).epsilon(delta)

    values = (
        gaussian_epsilon(delta, noise_multiplier=stddev / count**0.5),
        pair_epsilon(loss_pair(skellam_log_pmf(variance), 1), count=count, delta=delta),
        stated("skellam-paper", skellam),
        stated("skellam-rdp", skellam),
        stated("skellam-gdp", skellam),
        pair_epsilon(
            loss_pair(discrete_gaussian_log_pmf(variance), 1), count=count, delta=delta
        ),
        stated("zcdp", discrete),
        composed_direct_epsilon(variance, count=count, delta=delta),
    )
    return {name: value for (name, *_), value in zip(_CURVES, values, strict=True)}


def _figure(rows: list[dict[str, object]]) -> Figure:
    panels = []
    for relative in (False, True):
        for stddev in dict.fromkeys(row["stddev"] for row in rows):
            here = [row for row in rows if row["stddev"] == stddev]
            panels.append(
                Panel(
                    title=f"noise stddev {stddev:g}"
                    + (", relative to the Gaussian" if relative else ""),
                    curves=epsilon_curves(
                        here, _CURVES, x="releases", relative=relative
                    ),
                    x_label="releases",
                    y_label="ε / ε of the Gaussian" if relative else "ε",
                    log_x=True,
                    log_y=not relative,
                    y_limits=(0.9, 1.6) if relative else None,
                )
            )
    return Figure(
        "Composition of a counter, sensitivity 1, δ = 1e-6 (Figure 1 of [Aga21])",
        panels,
        columns=2,
    )


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    exact = "Skellam, exact loss distribution"
    for stddev in dict.fromkeys(row["stddev"] for row in rows):
        here = [row for row in rows if row["stddev"] == stddev]
        for name, *_ in _CURVES[2:5] + _CURVES[7:]:
            ratios = [float(str(row[name])) / float(str(row[exact])) for row in here]
            found.append(
                f"stddev {stddev:g}: {name} states {min(ratios):.3f} to "
                f"{max(ratios):.3f} times the exact epsilon"
            )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
