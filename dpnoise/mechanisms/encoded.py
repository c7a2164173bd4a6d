"""One encoded vector, and how much the clips have taken off it."""

import math
import sys
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.scaling import FRACTIONAL_BITS
from dpnoise.encoding.wrapping import Residues

_SHORTENED: Final = 1.0 + 2.0**-20  # what rounding of floats never reaches


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded:
    """One client's contribution, ready to be summed.

    Args:
        residues: Shape `(encoded_dim,)`, the smallest unsigned type that holds the
            modulus; equal arguments of `encode` give equal residues.
        shortened_by: Length of the vector over what the clips left of it: 1.0 for a
            vector that fitted, 10.0 for one ten times too long. To six digits. It
            says something about the vector: show it to its owner alone.
    """

    residues: Residues
    shortened_by: float

    def __repr__(self) -> str:
        return f"Encoded(length={self.residues.size}, entries=<redacted>)"


def shortening(
    checked: NDArray[np.float64], fixed: NDArray[np.int64], scale_factor: float
) -> float:
    """Return the length before the clips over the length after them, at least 1.

    Args:
        checked: The caller's vector, caller's units.
        fixed: What is left of it, in fixed point.
        scale_factor: Grid steps per unit.
    """
    peak = float(np.abs(checked).max())
    if peak == 0.0:
        return 1.0
    # Divided by the largest entry, whose square may be no float.
    before = float(np.linalg.norm(checked / peak))
    # Truncation took less than one fixed-point unit off each coordinate.
    after = float(np.linalg.norm(fixed.astype(np.float64))) + math.sqrt(fixed.size)
    ratio = before * (peak / after) * scale_factor * float(1 << FRACTIONAL_BITS)
    if ratio <= _SHORTENED:
        return 1.0
    return float(f"{min(ratio, sys.float_info.max):.6g}")
