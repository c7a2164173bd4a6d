"""Where a condition begins to hold, and where a function is least, on an interval.

Both searches evaluate at fixed places: the same arguments give the same floats on every
machine whose elementary functions agree.
"""

import math
from collections.abc import Callable
from typing import Final

_HALVINGS: Final = 200
"""More than any two doubles within a factor of 2^100 are apart."""

_GOLDEN: Final = 0.5 * (math.sqrt(5.0) - 1.0)


def double(
    holds: Callable[[float], bool], high: float, *, most: float = math.inf
) -> tuple[float, float]:
    """Double a number until a condition holds.

    Args:
        holds: The condition; once it holds, it holds for all larger numbers.
        high: The number to begin with, above 0.
        most: The largest number to try.

    Returns:
        The last number at which it does not hold, or 0, and the first at which it does;
        the second is infinite if it holds at no number up to `most`.
    """
    low = 0.0
    while not holds(high):
        low, high = high, 2.0 * high
        if high > most:
            return low, math.inf
    return low, high


def halve(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    steps: int = _HALVINGS,
    width: float = 0.0,
) -> tuple[float, float]:
    """Halve an interval around the number from which on a condition holds.

    Args:
        holds: The condition. It is assumed at `high` and not at `low`, and asked for at
            neither.
        low: Lower end.
        high: Upper end.
        steps: Most halvings.
        width: An interval below this width is not halved any more.

    Returns:
        The ends: it does not hold at the lower one, and does at the upper one.
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
        if high - low < width:
            break
    return low, high


def golden_section(
    objective: Callable[[float], float],
    low: float,
    high: float,
    *,
    steps: int,
    width: float,
) -> float:
    """Return about the place where a function of one minimum is least.

    Args:
        objective: The function.
        low: Lower end of the interval that holds the minimum.
        high: Its upper end.
        steps: Most evaluations beyond the first two.
        width: An interval below this width is small enough.

    Returns:
        The middle of the last interval.
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = objective(left), objective(right)
    for _ in range(steps):
        if high - low < width:
            break
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = objective(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = objective(right)
    return 0.5 * (low + high)
