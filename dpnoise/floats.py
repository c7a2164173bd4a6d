"""Floats on a known side of the truth, and arrays of them.

A privacy figure may err in one direction only. The functions here turn exact numbers
into floats and state the direction in which they round.
"""

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
"""An array of doubles."""

ROUNDING_MARGIN: Final = 1.0 + 2.0**-40
"""Factor that covers the rounding errors of a closed form of fewer than 2^10 steps."""

_LEAST_IN_FULL: Final = 1e-4
_MOST_IN_FULL: Final = 1e6  # errors beyond are written with an exponent

_NOTHING: Final = 1e-9  # of a figure: sums of floats, not a promise


def float_below(number: Fraction) -> float:
    """Return the largest float that is at most the given rational."""
    nearest = float(number)
    return math.nextafter(nearest, -math.inf) if _sign(nearest, number) > 0 else nearest


def float_above(number: Fraction) -> float:
    """Return the smallest float that is at least the given rational."""
    nearest = float(number)
    return math.nextafter(nearest, math.inf) if _sign(nearest, number) < 0 else nearest


def _sign(nearest: float, number: Fraction) -> int:
    """Return a number of the sign of `nearest - number`, without making a fraction."""
    whole, parts = nearest.as_integer_ratio()
    return whole * number.denominator - number.numerator * parts


def sqrt_above(number: Fraction) -> float:
    """Return a float that is at least the root of a rational, and next to it.

    Args:
        number: At least 0.
    """
    root = math.sqrt(float_above(number))
    return root if Fraction(root) ** 2 >= number else math.nextafter(root, math.inf)


def text_above(number: float, digits: int) -> str:
    """Return a bound as people read it: few digits, and never less than it is.

    Args:
        number: The bound; one that is not above 0, or is infinite, is printed as it is.
        digits: Significant digits, at least 1.

    Returns:
        The number in the manner of the format "g", rounded up, but for a part in 10^9.
    """
    return _text_beyond(number, digits, 1)


def text_below(number: float, digits: int) -> str:
    """Format a remaining amount with few digits, rounded down.

    Args:
        number: What is left; one that is not above 0, or is infinite, is printed as it
            is.
        digits: Significant digits, at least 1.

    Returns:
        The number in the manner of the format "g", rounded down, but for a part in
        10^9.
    """
    return _text_beyond(number, digits, -1)


def _text_beyond(number: float, digits: int, side: int) -> str:
    """Return a bound as people read it, above for side 1 and below for side −1."""
    text = f"{number:.{digits}g}"
    is_beyond = side * float(text) >= side * number * (1.0 - side * _NOTHING)
    if is_beyond or not 0.0 < number < math.inf:
        return text
    exponent = int(f"{number:.{digits - 1}e}".partition("e")[2])
    beyond = Decimal(text) + side * Decimal(1).scaleb(exponent - digits + 1)
    return f"{float(beyond):.{digits}g}"


def error_text(error: float) -> str:
    """Return an error as people read it: "1.35", three digits, rounded up.

    Args:
        error: At least 0.
    """
    stated = text_above(error, 3)
    if not _LEAST_IN_FULL <= error < _MOST_IN_FULL:
        return stated
    return f"{float(stated):.{_decimal_places(error)}f}"


def plus_minus(values: Iterable[float], error: float) -> tuple[str, ...]:
    """Return numbers with their error as people read them: "9.96 ± 1.35".

    Args:
        values: Numbers, all with the same error.
        error: At least 0; as in `error_text`, and the numbers have as many decimal
            places. With an error of 0 the numbers stand alone.

    Returns:
        A text for each number.
    """
    if error == 0.0:
        return tuple(
            str(value) if isinstance(value, int) else f"{value:.6g}" for value in values
        )
    form = ".6g"
    if _LEAST_IN_FULL <= error < _MOST_IN_FULL:
        form = f".{_decimal_places(error)}f"
    return tuple(f"{value:{form}} ± {error_text(error)}" for value in values)


def _decimal_places(error: float) -> int:
    """Return the decimal places of three digits."""
    return max(0, 2 - math.floor(math.log10(error)))


def text_between(lowest: float, highest: float) -> str:
    """Return an interval as people read it, rounded outwards: "38.7 to 48.8".

    Args:
        lowest: Its lower end.
        highest: Its upper end.
    """
    # The shortest digits that mean the same float: 0.1 is no more than 0.1 here.
    low, high = Decimal(repr(float(lowest))), Decimal(repr(float(highest)))
    width = high - low
    if not width.is_finite() or width <= 0:
        return f"{lowest:.6g} to {highest:.6g}"
    is_whole = float(lowest).is_integer() and float(highest).is_integer()
    places = 0 if is_whole else max(0, 2 - width.adjusted())
    place = Decimal(1).scaleb(-places)
    below = low.quantize(place, ROUND_FLOOR)
    above = high.quantize(place, ROUND_CEILING)
    return f"{below:f} to {above:f}"


def rational_text(number: Fraction) -> str:
    """Return "p/q" in lowest terms."""
    return f"{number.numerator}/{number.denominator}"
