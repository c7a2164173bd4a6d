"""Judges the noise of a released sum by the tests of the conformance kit.

    python law.py SUM.npy REPORT.json EXPECTED.npy

The vectors must lie on the grid, and the task must have no rotation: the sum then holds
them and draws of Skellam's law, and nothing is rounded.  `secagg.conformance.noise_law`
states how seldom right noise is blamed: less than once in ten million sums.
"""

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from secagg.conformance.noise_law import law_complaint, missing_complaint, noise_fault

# Far above the error of a float, far below a step.
_EXACT: Final = 1e-6


def main(sum_path: str, report_path: str, expected_path: str) -> str:
    """Return what is wrong with the noise, or ""."""
    report = json.loads(Path(report_path).read_text(encoding="utf-8"))
    expected = np.load(expected_path)
    scale = report["privacy"]["mechanism"]["scale_factor"]
    left = (np.load(sum_path) - expected) * scale
    noise = np.rint(left)
    if np.max(np.abs(left - noise)) > _EXACT:
        return "the sum is not on the grid"
    variance = float(Fraction(report["receipt"]["noise"]["noise_total"]))
    return (
        noise_fault(noise, variance)
        or law_complaint(noise.astype(np.int64), variance)
        or missing_complaint(noise, expected, variance)
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
