"""Where a falling function of the noise first reaches its target, in few steps.

* Noise is a dyadic rational of 24 significant bits, rounded *up*; what is returned was
  itself evaluated and reaches the target, unless a guess was asked for.
* The function says how far a variance misses, as the logarithm of the factor that it
  lacks. Were that exact, one step would do; regula falsi bounds the rest.

It knows neither privacy nor noise.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from dpnoise.errors import ParameterError

__all__ = ["least_root", "round_up_to_dyadic"]

_SIGNIFICANT_BITS: Final = 24
_MAX_STEPS: Final = 100
_MAX_LOG_STEP: Final = 4.0  # a factor of 55 in variance


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
        raise ParameterError(
            f"number must be finite and greater than 0, got {number!r}",
            parameter="number",
            value=number,
        )
    exact = Fraction(number)
    exponent = (
        exact.numerator.bit_length()
        - exact.denominator.bit_length()
        - _SIGNIFICANT_BITS
    )
    unit = Fraction(2) ** exponent
    return math.ceil(exact / unit) * unit


def least_root(  # noqa: PLR0913 - a bracket, a start and two tolerances
    shortfall: Callable[[Fraction], float],
    *,
    low: Fraction,
    high: Fraction,
    start: Fraction,
    tolerance: float,
    trusted: float = 0.0,
) -> Fraction | None:
    """Return about the least dyadic variance without a shortfall.

    Args:
        shortfall: Logarithm of the factor that a variance lacks; at most 0 where it
            suffices. It falls; how steeply is a guess that only speed rests on.
        low: Least variance to consider, above 0.
        high: Largest variance to consider.
        start: Where to look first.
        tolerance: How far above the least one may end, as a logarithm.
        trusted: A shortfall up to which one step, not evaluated, is as good as the
            tolerance; 0 where the answer must be evaluated.

    Returns:
        The variance; None where even `high` falls short.
    """
    low = round_up_to_dyadic(low)  # or its neighbour above would be asked for ever
    start = min(max(low, start), high)
    variance = round_up_to_dyadic(start)
    bracket = _Bracket(tolerance)
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
    """The two sides of the root in logarithms of the variance, and where to look next.

    Regula falsi with Illinois' correction: when one end stays twice, its value counts
    half, so that it moves soon. Should the bracket still not halve in two steps, its
    middle is next.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._missing: tuple[float, float] | None = None
        self._reached: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._last_reached: bool | None = None
        self._widths = [math.inf, math.inf]
        self._stretch = 1.0

    def add(self, where: float, missing: float) -> None:
        """Take in one evaluation."""
        reached = missing <= 0.0
        if reached:
            self._reached = (where, missing)
        else:
            self._missing = (where, missing)
        if reached == self._last_reached:
            if reached and self._missing is not None:
                self._missing = (self._missing[0], 0.5 * self._missing[1])
            if not reached and self._reached is not None:
                self._reached = (self._reached[0], 0.5 * self._reached[1])
        self._last, self._last_reached = (where, missing), reached

    def propose(self) -> float | None:
        """Return the next logarithm of the variance; None when the bracket is tight."""
        # Aim a little beyond the root, so that the last step lands where it counts.
        aim = 0.5 * self._tolerance
        where, missing = self._last
        if self._missing is None or self._reached is None:
            # Far from the root the Gaussian step is only a guess: lengthen it a
            # little, so that the root is bracketed soon.
            # Where the release is unlike a Gaussian (a sampled one cannot exceed a
            # delta of its rate) the guess is far too short: double it every time.
            step = 1.01 * self._stretch * (missing + aim)
            self._stretch *= 2.0
            return where + min(max(step, -_MAX_LOG_STEP), _MAX_LOG_STEP)
        width = self._reached[0] - self._missing[0]
        if width <= self._tolerance:
            return None
        stalled = width > 0.5 * self._widths[-2]
        self._widths.append(width)
        if stalled or not (
            math.isfinite(self._missing[1]) and math.isfinite(self._reached[1])
        ):
            self._widths = [math.inf, math.inf]
            gaussian_step = where + missing + aim
            if not stalled and self._missing[0] < gaussian_step < self._reached[0]:
                return gaussian_step
            return self._missing[0] + 0.5 * width
        share = (self._missing[1] + aim) / (self._missing[1] - self._reached[1])
        edge = min(0.25, 0.25 * self._tolerance / width)
        return self._missing[0] + min(max(share, edge), 1.0 - edge) * width
