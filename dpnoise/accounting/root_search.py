"""Where a falling function of the noise first reaches its target, in few steps.

* Noise is a dyadic rational of 24 significant bits, rounded *up*. What is returned was
  itself evaluated and reaches the target, unless a guess was asked for.
* The function says how far a variance misses, as the logarithm of the factor that it
  lacks. Were that exact, one step would do; regula falsi bounds the rest.
* Where a theorem begins to hold, or another order serves, the function jumps. No line
  leads to a jump: it is halved, and only until its place is known well enough.

It depends on neither privacy nor noise.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from dpnoise.errors import ParameterError

_SIGNIFICANT_BITS: Final = 24
_MAX_STEPS: Final = 100
_MAX_LOG_STEP: Final = 4.0  # a factor of 55 in variance
_WIDER: Final = 4.0  # than expected, if the root was not as near as that
_FLAT: Final = 50.0  # times as flat as a Gaussian: nothing changes
_STEEP: Final = 4.0  # times as steep as a Gaussian: a jump, as far as one can see


def round_up_to_dyadic(number: float | Fraction) -> Fraction:
    """Round a positive number up to a dyadic rational of 24 significant bits.

    Args:
        number: A finite number above 0.

    Returns:
        The least such rational that is not below the number.

    Raises:
        ParameterError: The number is not finite and above 0.
    """
    if not 0 < number < math.inf:
        raise ParameterError.of("number", number, "must be finite and greater than 0")
    exact = Fraction(number)
    exponent = (
        exact.numerator.bit_length()
        - exact.denominator.bit_length()
        - _SIGNIFICANT_BITS
    )
    unit = Fraction(2) ** exponent
    return math.ceil(exact / unit) * unit


def least_root(  # noqa: PLR0913 - a bracket, a start and their tolerances
    shortfall: Callable[[Fraction], float],
    *,
    low: Fraction,
    high: Fraction,
    start: Fraction,
    tolerance: float,
    at_a_jump: float = 0.0,
    near: float = math.inf,
    trusted: float = 0.0,
) -> Fraction | None:
    """Return about the least dyadic variance without a shortfall.

    Args:
        shortfall: Logarithm of the factor that a variance lacks; at most 0 where it
            suffices. It falls. Its steepness is an estimate that only affects speed.
        low: Least variance to consider, above 0.
        high: Largest variance to consider.
        start: Where the search begins.
        tolerance: How far above the least one may end, as a logarithm.
        at_a_jump: How far above it where the function jumps, as a logarithm; the
            tolerance where that is more.
        near: How far from `start` the answer is expected, as a logarithm.
        trusted: A shortfall up to which one step, not evaluated, is as good as the
            tolerance; 0 where the answer must be evaluated.

    Returns:
        The variance; None where even `high` falls short.
    """
    low = round_up_to_dyadic(low)  # or its neighbour above would be asked for ever
    start = min(max(low, start), high)
    variance = round_up_to_dyadic(start)
    bracket = _Bracket(tolerance, at_a_jump, near)
    best: Fraction | None = None
    for _ in range(_MAX_STEPS):
        missing = shortfall(variance)
        if abs(missing) <= trusted:
            return round_up_to_dyadic(float(variance) * math.exp(missing))
        bracket.add(math.log(variance), missing)
        if missing <= 0.0:
            best = variance
            if variance <= low or missing >= -tolerance:
                return best
        elif variance >= high:
            return None
        step = bracket.propose()
        if step is None:
            return best
        variance = round_up_to_dyadic(min(max(Fraction(math.exp(step)), low), high))
    return best


class _Bracket:
    """The two sides of the root in logarithms of the variance, and the next point.

    Regula falsi with Illinois' correction: when one end stays twice, its value counts
    half, so that it moves soon. Should the bracket still not halve in two steps, its
    middle is next, as it is where no line leads to the root.
    """

    def __init__(self, tolerance: float, at_a_jump: float, near: float) -> None:
        self._tolerance = tolerance
        self._at_a_jump = at_a_jump
        self._farthest = min(near, _MAX_LOG_STEP)
        self._missing: tuple[float, float] | None = None
        self._reached: tuple[float, float] | None = None
        self._last = (0.0, math.inf)
        self._last_reached: bool | None = None
        self._missing_weight = self._reached_weight = 1.0
        self._widths = [math.inf, math.inf]
        self._stretch = 1.0
        self._chord = 1.0  # steps for each that is missing, between the last two points

    def add(self, where: float, missing: float) -> None:
        """Take in one evaluation."""
        reached = missing <= 0.0
        before, missed = self._last
        if math.isfinite(missing) and math.isfinite(missed) and missing != missed:
            self._chord = (where - before) / (missed - missing)
        stays = 0.5 if reached == self._last_reached else 1.0
        if reached:
            self._reached, self._reached_weight = (where, missing), 1.0
            self._missing_weight *= stays
        else:
            self._missing, self._missing_weight = (where, missing), 1.0
            self._reached_weight *= stays
        self._last, self._last_reached = (where, missing), reached

    def propose(self) -> float | None:
        """Return the next logarithm of the variance; None when the bracket is tight."""
        # Aim a little beyond the root, so that the last step lands where it counts.
        aim = 0.5 * self._tolerance
        where, missing = self._last
        if self._missing is None or self._reached is None:
            # Far from the root the Gaussian step is only an estimate: lengthen it a
            # little, so that the root is bracketed soon.
            # If the release differs much from a Gaussian (a sampled one cannot exceed
            # a delta of its rate) the estimate is far too short. Double it every time,
            # or use the line through the last two points if that is longer. Above the
            # root the function may be flat; there that line leads far below it.
            is_flat = missing <= 0.0 and self._chord > _FLAT
            chord = 0.0 if is_flat else self._chord
            step = 1.01 * max(self._stretch, chord) * (missing + aim)
            self._stretch *= 2.0
            farthest = self._farthest
            self._farthest = min(_WIDER * farthest, _MAX_LOG_STEP)
            return where + min(max(step, -farthest), farthest)
        width = self._reached[0] - self._missing[0]
        is_jump = self._missing[1] - self._reached[1] > _STEEP * width
        if width <= max(self._tolerance, is_jump * self._at_a_jump):
            return None
        stalled = width > 0.5 * self._widths[-2]
        self._widths = [math.inf, math.inf] if stalled else [self._widths[-1], width]
        if not (stalled or math.isfinite(self._missing[1] - self._reached[1])):
            # Where all is flat up to a wall, the line through two points leads past it.
            step = where + max(1.0, self._chord) * (missing + aim)
            if self._missing[0] < step < self._reached[0]:
                return step
        if stalled or is_jump:
            return self._missing[0] + 0.5 * width
        missing = self._missing_weight * self._missing[1]
        left = self._reached_weight * self._reached[1]
        share = (missing + aim) / (missing - left)
        edge = min(0.25, 0.25 * self._tolerance / width)
        return self._missing[0] + min(max(share, edge), 1.0 - edge) * width
