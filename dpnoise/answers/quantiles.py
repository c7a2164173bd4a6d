"""Medians and other quantiles of a number, from counts on a dyadic tree.

Notation: L levels, 2^L cells of equal width; level l has 2^l nodes, each the sum of its
two children. The root is the number of inputs, which is public and holds no noise.

* One person adds one on every level: L entries of 1. A prefix of cells is a union of at
  most one node from each level. So a rank carries the noise of at most L counts. In a
  plain histogram of 2^L buckets it would carry that of up to half of them.
* The point estimates are the least squares fit of all nodes ([Hay10]), in which every
  node is the sum of its children.
* The intervals come from the sums of nodes themselves, whose noise is Skellam with
  known variance: all of them hold together with the stated confidence.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.answers.answer import Answer, Estimate
from dpnoise.answers.question import CountQuestion, ReadTotal, read_number
from dpnoise.errors import ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LEVELS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class RankTally(Answer):
    """How many inputs lie below each border of a cell.

    Attributes:
        borders: Borders of the cells, shape (2^L + 1,).
        ranks: Estimated number of inputs below each border, from 0 to the number of
            inputs, shape (2^L + 1,). Noise may make them fall here and there.
        lowest: Lower ends of intervals for the ranks, same shape.
        highest: Upper ends.
        confidence: That all intervals hold.
    """

    borders: NDArray[np.float64]
    ranks: NDArray[np.float64]
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    confidence: float

    @property
    def estimates(self) -> tuple[tuple[str, Estimate], ...]:
        """The quartiles."""
        return tuple(
            (f"{part:.0%} below", self.quantile(part)) for part in (0.25, 0.5, 0.75)
        )

    def __str__(self) -> str:
        """The quartiles, each with its interval."""
        return "\n".join(
            f"{label} {each.value:.6g}, from {each.lowest:.6g} to {each.highest:.6g}"
            for label, each in self.estimates
        )

    def _draw(self, axes: "Axes") -> None:
        axes.plot(self.borders, self.ranks)
        axes.fill_between(self.borders, self.lowest, self.highest, alpha=0.3)
        axes.set_ylabel("answers below")
        axes.set_title(self._caption)

    def quantile(self, part: float) -> Estimate:
        """Return the value below which a part of the inputs lies.

        Args:
            part: In (0, 1); 0.5 for the median.

        Returns:
            The value, interpolated within its cell. The interval consists of whole
            cells; intervals of any number of quantiles hold together.

        Raises:
            ParameterError: The part is not in (0, 1).
        """
        if not 0.0 < part < 1.0:
            raise ParameterError.of("part", part, "must lie in (0, 1)", nearest="0.5")
        wanted = part * float(self.ranks[-1])
        # Rounding noise out of it: ranks only rise.
        rising = np.maximum.accumulate(self.ranks)
        value = float(np.interp(wanted, rising, self.borders))
        # Where even the most that may lie below is too little, and the least enough.
        below = np.flatnonzero(self.highest < wanted)
        above = np.flatnonzero(self.lowest >= wanted)
        lowest = float(self.borders[below[-1] if below.size else 0])
        highest = float(self.borders[above[0] if above.size else -1])
        return Estimate(min(max(value, lowest), highest), lowest, highest)


@dataclass(frozen=True, slots=True)
class Quantiles(CountQuestion[RankTally]):
    """How are numbers distributed over an interval?

    Args:
        lowest: Lower end; smaller numbers count as this one.
        highest: Upper end; larger numbers count as this one.
        levels: L, 1 … 20: the interval has 2^L cells.

    Raises:
        ParameterError: The interval is empty, or there are too many levels.
    """

    lowest: float
    highest: float
    levels: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.highest - self.lowest) or (
            self.lowest >= self.highest
        ):
            raise ParameterError(
                "the interval must have finite ends, the highest above the lowest",
                parameter="highest",
                value=self.highest,
            )
        if not 1 <= self.levels <= _MOST_LEVELS:
            raise ParameterError(
                f"levels must be between 1 and {_MOST_LEVELS}, got {self.levels}",
                parameter="levels",
                value=self.levels,
                nearest=str(min(max(1, self.levels), _MOST_LEVELS)),
            )

    @property
    def cells(self) -> int:
        """Number of cells, 2^L."""
        return 1 << self.levels

    @property
    def dimension(self) -> int:
        """All nodes below the root, level by level."""
        return 2 * self.cells - 2

    @property
    def max_nonzero(self) -> int:
        """One node on each level."""
        return self.levels

    def encode(self, value: float) -> NDArray[np.int64]:
        """Turn one person's number into a vector.

        Args:
            value: The number; outside the interval it counts as the nearest end.

        Raises:
            InputError: It is no number.
        """
        value = read_number(value)
        share = (value - self.lowest) / (self.highest - self.lowest)
        cell = math.floor(min(max(share, 0.0), 1.0) * self.cells)
        cell = min(cell, self.cells - 1)
        vector = np.zeros(self.dimension, np.int64)
        for level in range(1, self.levels + 1):
            vector[(1 << level) - 2 + (cell >> (self.levels - level))] = 1
        return vector

    def _answer(self, read: ReadTotal, confidence: float) -> RankTally:
        nodes, number = read.values, float(read.needed_inputs)
        levels = [
            nodes[(1 << level) - 2 : (2 << level) - 2]
            for level in range(1, self.levels + 1)
        ]
        ranks = np.concatenate([[0.0], np.cumsum(_fit_nodes(levels, number))])
        middle, terms = self._sum_nodes(levels, number)
        reach = {
            count: read.error.times(count).half_width(confidence, counts=self.cells - 1)
            for count in set(terms.tolist())
            if count
        }
        half = np.array([reach.get(count, 0) for count in terms.tolist()], np.float64)
        # Ranks never fall from one cell to the next, which tightens both bounds.
        low = np.maximum.accumulate(np.clip(middle - half, 0.0, number))
        high = np.minimum.accumulate(np.clip(middle + half, 0.0, number)[::-1])[::-1]
        return RankTally(
            borders=np.linspace(self.lowest, self.highest, self.cells + 1),
            ranks=ranks,
            lowest=low,
            highest=high,
            confidence=confidence,
        )

    def _sum_nodes(
        self, levels: list[NDArray[np.float64]], inputs: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Add up the fewest nodes below each border, or above it.

        Returns:
            Unbiased ranks of all borders, and the number of noisy nodes in each.
        """
        ranks = np.zeros(self.cells + 1)
        terms = np.zeros(self.cells + 1, np.int64)
        ranks[-1] = inputs
        for border in range(1, self.cells):
            above = self.cells - border
            from_below = border.bit_count() <= above.bit_count()
            length = border if from_below else above
            found = 0.0
            for level, counts in enumerate(levels, start=1):
                width = self.levels - level
                if length >> width & 1:
                    # The nodes of a prefix end where its longer nodes begin.
                    place = (length >> width) - 1
                    found += float(counts[place if from_below else -1 - place])
            ranks[border] = found if from_below else inputs - found
            terms[border] = length.bit_count()
        return ranks, terms


def _fit_nodes(levels: list[NDArray[np.float64]], inputs: float) -> NDArray[np.float64]:
    """Fit cells to noisy nodes by least squares, given the exact root.

    Source:
        [Hay10] Theorem 3, for a binary tree whose root is known.
    """
    fitted = [levels[-1]]
    for height, counts in enumerate(reversed(levels[:-1]), start=2):
        children = fitted[0][0::2] + fitted[0][1::2]
        whole = float((1 << height) - 1)
        own = (1 << (height - 1)) / whole
        fitted.insert(0, own * counts + (1.0 - own) * children)
    parents = np.array([inputs])
    for estimates in fitted:
        surplus = parents - (estimates[0::2] + estimates[1::2])
        parents = estimates + np.repeat(0.5 * surplus, 2)
    return parents
