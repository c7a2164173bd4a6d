"""What integrals over contours will cost, from the release's quantities alone.

The same contours, cells, windows and blocks as those that will be computed are
counted; only the noise is taken for its saddle-point approximation. So the forecast
follows the time wherever it goes, which no formula in a few powers does.

* Cells of `Accountant.cost`, of which a processor core fills 10^9 in a second.
* Measured on some two hundred curves over the whole range, it is within a factor of
  three. On as many integrals it is within four, and little below the real cost.

It bounds no privacy.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dpnoise.accounting.accountant import ReleaseSize
from dpnoise.accounting.contour.integral import (
    CellWidths,
    ContourResolution,
    cell_widths,
)
from dpnoise.accounting.contour.lattice import (
    MAX_CONTOUR_VARIANCE,
    MIN_CONTOUR_VARIANCE,
)
from dpnoise.accounting.contour.moment_table import (
    FEW_ENTRIES,
    LOG_NEGLIGIBLE_TAIL,
    ROWS_BLOCK,
)
from dpnoise.events import NoiseEvent, SkellamEvent
from dpnoise.floats import FloatArray

_PER_WEIGHT: Final = 3e3  # an integer of the lattice, enclosed in 256 bits
_PER_TABLE: Final = 600.0  # an integer of the window, whatever the coordinates
_PER_GROUP: Final = 9e5  # calls for an octave of coordinates, or for what fits a cache
_PER_BLOCK: Final = 1.2e5  # calls for a block of the contour
_PER_ENTRY: Final = 240.0  # an integer of the window, in a coordinate cell
_PER_PHASE: Final = 5.0  # the same, once more in every block
_FARTHEST: Final = 1e12  # grid steps; windows beyond are refused whatever they cost
_POINTS: Final = 320
_DIRECTIONS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ContourCost:
    """Counts the cells of contours for one release.

    Attributes:
        size: The release, its variance within the range of the tables.
        integers: Whether coordinates are rounded by those who send them.
    """

    size: ReleaseSize
    integers: bool
    _noise: "_Noise"

    @classmethod
    def of(cls, release: NoiseEvent) -> "ContourCost | None":
        """Tabulate the noise of a release; None where nothing is integrated."""
        size = ReleaseSize.of(release)
        if not size:
            return None
        # Beyond the tables nothing is computed, or what their last one says is.
        variance = min(max(size.variance, MIN_CONTOUR_VARIANCE), MAX_CONTOUR_VARIANCE)
        return cls(
            replace(size, variance=variance),
            isinstance(release, SkellamEvent),
            _Noise(variance),
        )

    @property
    def lobe(self) -> float:
        """As `ContourBound.lobe`."""
        return math.sqrt(self.size.variance / self.size.norm)

    def lattice(self, c: float) -> float:
        """Forecast the enclosure of the noise, which ends at a power of two."""
        deviation, largest = math.sqrt(self.size.variance), self.size.largest
        reach = 10.0 * deviation + largest * (4.0 + c)
        reach = max(reach, 14.0 * deviation + 8.0 * largest) + 72.0
        return _PER_WEIGHT * 2.0 ** math.ceil(math.log2(reach))

    def contour(self, c: float, chosen: ContourResolution) -> float:
        """Forecast one contour, in both directions."""
        spans = (
            chosen.main_lobe * self.lobe,
            (chosen.end - chosen.main_lobe) * self.lobe,
        )
        window = self._noise.window(c, self.size.largest)
        total = 2.0 * _DIRECTIONS * _PER_TABLE * window
        for widths, span, cells in zip(
            cell_widths(c, self.size.variance, self.size.norm, chosen),
            spans,
            (chosen.main_cells, chosen.outer_cells),
            strict=True,
        ):
            octaves = _octaves(widths, self.size.largest, integers=self.integers)
            rows_of_all = sum(rows for _, rows in octaves)
            if rows_of_all * window <= FEW_ENTRIES:
                octaves = [(self.size.largest, rows_of_all)] if octaves else []
            for x, rows in octaves:
                groups = math.ceil(rows / max(1.0, ROWS_BLOCK // window))
                deviation = self._noise.deviation(c, x)
                blocks = min(cells, math.ceil(0.5 * span * deviation))
                entries = rows * window
                total += _DIRECTIONS * (
                    groups * (_PER_GROUP + blocks * _PER_BLOCK)
                    + entries * (_PER_ENTRY + blocks * _PER_PHASE)
                )
        return total


def _octaves(
    widths: CellWidths, largest: float, *, integers: bool
) -> list[tuple[float, float]]:
    """Return the upper end of each octave of coordinates, and its number of cells."""
    if integers:
        at, found = 1.0, []
        while at <= largest:
            found.append((min(2.0 * at, largest), min(at, largest - at + 1.0)))
            at *= 2.0
        return found
    at, found = min(widths.near_zero, 0.5, largest), []
    while at < largest:
        stop = min(2.0 * at, largest)
        width = min(widths.relative * 1.5 * at, widths.largest, 1.0)
        found.append((stop, math.ceil((stop - at) / width)))
        at = stop
    return found


class _Noise:
    """Skellam noise by its saddle point: log q(y) = v·(√(1 + s²) − 1 − s·asinh s)."""

    def __init__(self, variance: float) -> None:
        y = np.concatenate([[0.0], np.geomspace(0.25, _FARTHEST, _POINTS)])
        s = y / variance
        self._y = y
        self._log_ratio = np.arcsinh(s)  # log q(y − 1)/q(y)
        spread = np.hypot(y, variance)
        self._spread = np.sqrt(spread)  # deviation once tilted to y
        # s·(s/(1 + √(1 + s²)) − asinh s): the difference of two large numbers, avoided.
        exponent = y * (s / (1.0 + np.hypot(1.0, s)) - self._log_ratio)
        self._log_weight = exponent - 0.5 * np.log(1.0 + spread)
        self._log_width = np.log(np.gradient(y))

    def window(self, c: float, largest: float) -> float:
        """Return how many integers matter on a contour."""
        tilted = self._log_weight + (c + 1.0) * self._log_likelihood(largest)
        reached = self._y[tilted > LOG_NEGLIGIBLE_TAIL]
        plain = self._y[self._log_weight > LOG_NEGLIGIBLE_TAIL]
        return float(reached[-1] + plain[-1]) + 8.0 * (1.0 + largest)

    def deviation(self, c: float, x: float) -> float:
        """Return the deviation of a coordinate's loss on a contour."""
        losses = self._log_likelihood(x)
        heights = self._log_weight + (c + 1.0) * losses
        top = int(np.argmax(heights))
        # Points too far apart to resolve the peak: use its slope at the top.
        rise = x * math.exp(min(self._log_ratio[top] - losses[top], 700.0))
        slope = rise / self._spread[top] if x <= 1.0 else x / self._spread[top]
        weights = np.exp(heights - heights[top] + self._log_width)
        weights /= weights.sum()
        mean = float((weights * losses).sum())
        spread = math.sqrt(float((weights * (losses - mean) ** 2).sum()))
        return max(spread, float(slope))

    def _log_likelihood(self, x: float) -> FloatArray:
        """Return log R at every y for a coordinate x."""
        if x > 1.0:
            found: FloatArray = x * self._log_ratio
            return found
        return np.log1p(x * np.expm1(self._log_ratio))
