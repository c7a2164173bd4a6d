"""ScalarDP: a number of [0, bound] by randomised response on a grid.

The value is rounded without bias to one of k + 1 grid points J/k·bound. J is sent with
probability 1 − lie, otherwise another point, all equally likely; then
    E Ĵ = s·J + lie·(k + 1)/2,   s = 1 − lie − lie/k,

so that (Ĵ − lie·(k + 1)/2)/s·bound/k is unbiased. Two inputs change the probability of
an outcome by (1 − lie)·k/lie at most, which is e^ε. All draws are exact.

With x = value·k/bound and f its fractional part, the variance, in units of
(bound/(k·s))², is that of Ĵ:

    s·(1 − s)·x² + s·f(1 − f) + lie·(k + 1)·[(2k + 1)/6 − s·x − lie·(k + 1)/4].

Between grid points it is a concave parabola. Over grid points it is convex, so that its
maximum lies in the first cell or the last. k minimises that maximum.

Source: [Bho18] Algorithm 3. The exact variance and the choice of k are ours; Lemma 4.3
there bounds the variance and Lemma 4.4 names k = ⌈e^(ε/3)⌉.
"""

import math
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.local.draws import Draws
from dpnoise.local.parameters import LocalParameters
from dpnoise.local.randomiser import LocalRandomiser, exact_level, lie_probability

_MOST_LEVELS: Final = 1 << 20
"""Finer grids gain less than 10^-12 of the squared bound."""

_STEP: Final = 1.05  # of the search for k; the maximum is flat
_ENLARGED: Final = 1.0 + 2.0**-40


class ScalarDP(LocalRandomiser):
    """A number between 0 and the bound (see `LocalParameters`); others are clipped."""

    name: ClassVar[str] = "scalar-dp"
    exact_alphabet: ClassVar[bool] = True

    def __init__(self, parameters: LocalParameters) -> None:
        super().__init__(parameters)
        self.levels = _best_levels(parameters.epsilon)

    @cached_property
    def lie(self) -> Fraction:
        """Probability to send another grid point, exact."""
        return _other_point_probability(self.parameters.epsilon, self.levels)

    @cached_property
    def slope(self) -> float:
        """The s of the module, in (0, 1]."""
        return _slope(self.lie, self.levels)

    @property
    def exact_epsilon(self) -> float:
        """The epsilon that the actual draws satisfy."""
        return exact_level(self.lie, math.log(self.levels))

    @property
    def output_norm(self) -> float:
        """Largest absolute value that is sent: that of the highest grid point."""
        return self._value(self.levels) * _ENLARGED

    @property
    def reach(self) -> float:
        """Half the distance from the lowest to the highest value that is sent."""
        return self.parameters.bound / self.slope / 2.0 * _ENLARGED

    def mse(self, norm: float) -> float:
        """Return the variance at a value."""
        unit = self.parameters.bound / self.levels
        position = norm / unit
        return _variance(position, self.levels, self.lie) * unit * unit

    def _size(self, checked: NDArray[np.float64]) -> float:
        # A value below the range is clipped to 0.
        return float(checked[0]) if checked[0] >= 0.0 else math.inf

    def _randomise(
        self, checked: NDArray[np.float64], draws: Draws
    ) -> NDArray[np.float64]:
        return np.array([self.draw(float(checked[0]), draws)])

    def draw(self, value: float, draws: Draws) -> float:
        """Draw the number to send for a value; outside of [0, bound] it is clipped.

        Args:
            value: Any float but NaN.
            draws: Source of the draws.
        """
        share = min(max(value / self.parameters.bound, 0.0), 1.0)
        position = Fraction(share) * self.levels
        point = math.floor(position)
        point += draws.bernoulli(position - point)
        if draws.bernoulli(self.lie):
            other = draws.below(self.levels)
            point = other + (other >= point)
        return self._value(point)

    def _value(self, point: int) -> float:
        centre = float(self.lie) * (self.levels + 1) / 2.0
        unit = self.parameters.bound / self.levels
        return (point - centre) / self.slope * unit


def _best_levels(epsilon: float) -> int:
    """Return the k with the smallest maximum of the variance, to within a search step.

    Args:
        epsilon: Level in nats.
    """
    most = min(float(_MOST_LEVELS), 4.0 * math.exp(min(epsilon / 3.0, 40.0)) + 4.0)
    steps = math.ceil(math.log(most) / math.log(_STEP))
    candidates = {max(1, round(_STEP**i)) for i in range(steps + 1)}
    return min(sorted(candidates), key=lambda k: _worst_share(epsilon, k))


def _worst_share(epsilon: float, levels: int) -> float:
    """Return the largest variance, in units of the squared bound."""
    lie = _other_point_probability(epsilon, levels)
    slope = _slope(lie, levels)
    worst = 0.0
    for cell in {0, levels - 1}:
        peak = (2 * cell + 1 - float(lie) * (levels + 1)) / (2.0 * slope)
        position = min(max(peak, float(cell)), float(cell + 1))
        worst = max(worst, _variance(position, levels, lie))
    return worst / levels**2


def _variance(position: float, levels: int, lie: Fraction) -> float:
    """Return the variance of the estimate of x, in grid steps squared."""
    slope, wrong = _slope(lie, levels), float(lie)
    fraction = position - math.floor(position)
    spread = slope * wrong * (1.0 + 1.0 / levels) * position**2
    spread += slope * fraction * (1.0 - fraction)
    spread += (
        wrong
        * (levels + 1)
        * ((2 * levels + 1) / 6 - slope * position - wrong * (levels + 1) / 4)
    )
    return spread / slope**2


def _slope(lie: Fraction, levels: int) -> float:
    return float(1 - lie - lie / levels)


def _other_point_probability(epsilon: float, levels: int) -> Fraction:
    """Return the probability of another point, k/(e^ε + k) rounded up."""
    return lie_probability(epsilon - math.log(levels))
