"""Cost and tightness of the contour and loss-distribution accountants.

Prints one JSON line per result. Times are ratios to an analytic Gaussian calibration
repeated in the same run; tightness is the ratio of the calibrated noise variance to
that of the central Gaussian for the same target.

Usage: python benchmarks/bench_accounting.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from fractions import Fraction

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
BASELINE_REPETITIONS = 200


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


def measure(
    name: str,
    build: Callable[[Fraction], PrivacyEvent],
    *,
    accountant: str,
    norm: float,
    baseline: tuple[float, float],
) -> float:
    """Calibrate once and print what it took and what it cost."""
    seconds_of_baseline, variance_of_baseline = baseline
    start = time.perf_counter()
    variance = calibrate(
        build,
        accountant=accountant,
        epsilon=1.0,
        delta=DELTA,
        adversary=Adversary.MODEL_READER,
    )
    seconds = time.perf_counter() - start
    units = float(variance) / norm
    print(
        json.dumps(
            {
                "benchmark": "accounting",
                "case": name,
                "accountant": accountant,
                "seconds": round(seconds, 3),
                "time_ratio_to_analytic_gaussian": round(
                    seconds / seconds_of_baseline, 1
                ),
                "variance_per_unit": round(units, 5),
                "variance_ratio_to_gaussian": round(units / variance_of_baseline, 5),
            }
        ),
        flush=True,
    )
    return units


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out large moduli")
    quick = parser.parse_args().quick

    stddev = analytic_gaussian_stddev(1.0, DELTA, 1.0)
    start = time.perf_counter()
    for _ in range(BASELINE_REPETITIONS):
        analytic_gaussian_stddev(1.0, DELTA, 1.0)
    single = ((time.perf_counter() - start) / BASELINE_REPETITIONS, stddev**2)

    scales = (0.25, 1.0, 4.0, 16.0) if quick else (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
    for scale in scales:
        spread = 8.0 * scale / 256.0  # eight deviations of a rotated coordinate
        for cap, label in ((spread, "fractional"), (math.ceil(spread), "integer")):
            measure(
                f"one sum, scale {scale:g}, {label} coordinate cap",
                sum_of(scale**2, float(cap)),
                accountant="mixture-contour",
                norm=scale**2,
                baseline=single,
            )

    units = measure(
        "1000 sampled steps, central Gaussian",
        run_of(gaussian, 0.004, 1000),
        accountant="gaussian-pld",
        norm=1.0,
        baseline=(single[0], single[1]),
    )
    for scale in (8.0,) if quick else (8.0, 32.0):
        measure(
            f"1000 sampled steps, scale {scale:g}",
            run_of(sum_of(scale**2, 1.0), 0.004, 1000),
            accountant="mixture-pld",
            norm=scale**2,
            baseline=(single[0], units),
        )


if __name__ == "__main__":
    main()
