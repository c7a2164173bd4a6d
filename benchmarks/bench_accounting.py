"""Cost and tightness of the contour and loss-distribution accountants.

Every calibration gives two results: its time beside an analytic Gaussian calibration,
and the noise variance it needs beside that of the central Gaussian for the same target.
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction

from measurement import cpu_seconds, emit

from dpnoise.accounting.calibration import calibrate
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.events import (
    Adversary,
    GaussianEvent,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
    SkellamMixtureEvent,
)

DELTA = 1e-5
DIM = 65536
EPSILON = 1.0


def sum_of(norm: float, largest: float) -> Callable[[Fraction], PrivacyEvent]:
    """One sum of vectors with a squared norm of at most `norm` grid steps."""

    def build(variance: Fraction) -> PrivacyEvent:
        return SkellamMixtureEvent(DIM, variance, norm, largest)

    return build


def run_of(
    event: Callable[[Fraction], PrivacyEvent], rate: float, steps: int
) -> Callable[[Fraction], PrivacyEvent]:
    """Many sampled releases."""

    def build(variance: Fraction) -> PrivacyEvent:
        once = event(variance)
        if isinstance(once, SkellamMixtureEvent | GaussianEvent):
            return Repeated(PoissonSampled(once, rate), steps)
        return once

    return build


def gaussian(variance: Fraction) -> PrivacyEvent:
    """The central baseline, in units of the clip."""
    return GaussianEvent(DIM, float(variance), 1.0)


def measure(  # noqa: PLR0913 - a case and its baselines
    name: str,
    build: Callable[[Fraction], PrivacyEvent],
    *,
    accountant: str,
    norm: float,
    gaussian_seconds: float,
    gaussian_variance: float,
) -> float:
    """Calibrate, report time and tightness, and return the variance per unit²."""
    found: list[Fraction] = []

    def run() -> None:
        variance = calibrate(
            build,
            accountant=accountant,
            epsilon=EPSILON,
            delta=DELTA,
            adversary=Adversary.MODEL_READER,
        )
        found.append(variance)

    seconds = cpu_seconds(run, repeats=1)
    units = float(found[-1]) / norm
    parameters: dict[str, object] = {"case": name, "epsilon": EPSILON, "delta": DELTA}
    emit(
        f"accounting/{accountant}/time",
        parameters=parameters,
        value=seconds,
        unit="s",
        baseline="analytic Gaussian calibration",
        ratio=gaussian_seconds / seconds,
    )
    emit(
        f"accounting/{accountant}/noise",
        parameters=parameters,
        value=units,
        unit="variance per squared unit of the clip",
        baseline="central Gaussian, same target",
        ratio=gaussian_variance / units,
    )
    return units


def main(*, tiny: bool = False) -> None:
    """Measure one sum at several scales, and a sampled training run."""
    stddev = analytic_gaussian_stddev(EPSILON, DELTA, 1.0)

    def analytic() -> None:
        analytic_gaussian_stddev(EPSILON, DELTA, 1.0)

    seconds = cpu_seconds(analytic)
    for scale in (4.0,) if tiny else (0.25, 1.0, 4.0, 16.0, 64.0, 256.0):
        spread = 8.0 * scale / 256.0  # eight deviations of a rotated coordinate
        for cap, label in ((spread, "fractional"), (math.ceil(spread), "integer")):
            measure(
                f"one sum, scale {scale:g}, {label} coordinate cap",
                sum_of(scale**2, float(cap)),
                accountant="mixture-contour",
                norm=scale**2,
                gaussian_seconds=seconds,
                gaussian_variance=stddev**2,
            )
    if tiny:
        return
    units = measure(
        "1000 sampled steps, central Gaussian",
        run_of(gaussian, 0.004, 1000),
        accountant="gaussian-pld",
        norm=1.0,
        gaussian_seconds=seconds,
        gaussian_variance=stddev**2,
    )
    for scale in (8.0, 32.0):
        measure(
            f"1000 sampled steps, scale {scale:g}",
            run_of(sum_of(scale**2, 1.0), 0.004, 1000),
            accountant="mixture-pld",
            norm=scale**2,
            gaussian_seconds=seconds,
            gaussian_variance=units,
        )


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
