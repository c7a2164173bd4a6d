"""Floats on a known side of the truth, and arrays of them.

A privacy figure may err in one direction only. Whoever turns an exact number into a
float, or evaluates a closed form in floats, says here which way the error goes.
"""

from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ROUNDING_MARGIN", "FloatArray", "float_above", "float_below"]

FloatArray: TypeAlias = npt.NDArray[np.float64]
"""An array of doubles."""

ROUNDING_MARGIN: Final = 1.0 + 2.0**-40
"""Factor that covers the rounding errors of a closed form of fewer than 2^10 steps."""


def float_below(number: Fraction) -> float:
    """Return the largest float that is at most the given rational."""
    nearest = float(number)
    if nearest > number:
        return float(np.nextafter(nearest, -np.inf))
    return nearest


def float_above(number: Fraction) -> float:
    """Return the smallest float that is at least the given rational."""
    nearest = float(number)
    if nearest < number:
        return float(np.nextafter(nearest, np.inf))
    return nearest
