"""Cells that cover the coordinates a client may send.

* Cells and the interval near zero together cover every admissible coordinate.
* No cell straddles an integer, because the law of a rounded coordinate is analytic
  only between integers.
* By reflection, only coordinates of one sign are needed.

It does not know the noise.
"""

import enum
import math
from dataclasses import dataclass

import numpy as np

from dpnoise.floats import FloatArray


class CoordinateNorm(enum.Enum):
    """What the sum over coordinates bounds; the moments are measured against it."""

    SQUARE = "x^2"
    """Real coordinates under a bound on the squared L2 norm before rounding."""

    MIXTURE = "x^2 + f - f^2"
    """Real coordinates under a bound on the expected squared norm after rounding."""

    INTEGER = "x^2 of integers"
    """Integer coordinates under a bound on the squared L2 norm."""


@dataclass(frozen=True, slots=True, eq=False)
class CoordinateGrid:
    """Cells that cover the admissible coordinates.

    Args:
        norm: What a coordinate counts for.
        centres: Cell centres, shape (n,), increasing, grid steps.
        half_widths: Half widths, shape (n,); zero for integer coordinates.
        near_zero: The cells begin here; smaller coordinates have their own bound. At
            most 1/2, and 0 for integer coordinates.
        largest: The largest admissible coordinate.
    """

    norm: CoordinateNorm
    centres: FloatArray
    half_widths: FloatArray
    near_zero: float
    largest: float

    @classmethod
    def build(
        cls,
        norm: CoordinateNorm,
        *,
        largest: float,
        near_zero: float,
        relative_width: float,
        largest_width: float,
    ) -> "CoordinateGrid":
        """Cut (near_zero, largest] into cells that never straddle an integer.

        Args:
            norm: What a coordinate counts for.
            largest: The largest admissible coordinate, greater than 0.
            near_zero: Where the cells begin; clamped to at most 1/2 and `largest`.
            relative_width: Width of a cell in units of its position.
            largest_width: Absolute bound on the width, grid steps.

        Returns:
            The grid.
        """
        if norm is CoordinateNorm.INTEGER:
            points = np.arange(1.0, math.floor(largest) + 1.0)
            return cls(norm, points, np.zeros_like(points), 0.0, largest)
        start = min(near_zero, 0.5, largest)
        edges = [start]
        while edges[-1] < largest:
            edge = edges[-1]
            width = min(relative_width * edge, largest_width)
            stop = min(math.floor(edge) + 1.0, largest)
            # No sliver before the boundary, and no wider cell either: what is largest
            # there would be largest by the width of its cell.
            left = stop - edge
            if left > width:
                stop = edge + (0.5 * left if left - width < width else width)
            edges.append(stop)
        lower, upper = np.array(edges[:-1]), np.array(edges[1:])
        return cls(norm, 0.5 * (lower + upper), 0.5 * (upper - lower), start, largest)

    def norms(self, whole: FloatArray, x: FloatArray) -> FloatArray:
        """Return what coordinates count for, given the integer part of their cell."""
        if self.norm is CoordinateNorm.MIXTURE:
            found: FloatArray = whole * whole + (2.0 * whole + 1.0) * (x - whole)
            return found
        return np.asarray(x * x)
