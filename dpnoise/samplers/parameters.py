"""Exact parameters: integers and rational numbers within stated limits.

* A float is refused, although it is a rational number. The caller that rounds a
  variance must choose the direction, and accountant and sampler must use the same
  number.
* Numerator and denominator are limited in length: a peer may choose them, and the time
  to build a table grows with their length.
"""

from fractions import Fraction
from typing import Final

from dpnoise.errors import ParameterError

CACHED_TABLES: Final = 16
"""Tables kept per law. A session uses one or two; the largest holds 26 MB."""

MAX_RATIONAL_BITS: Final = 4096
"""Longest numerator or denominator: ten times the working precision of the tables."""


_SHOWN_BITS: Final = 128


def exact_parameter(
    parameter: str, value: object, least: Fraction, most: Fraction
) -> Fraction:
    """Check one rational parameter of a law and return it as a Fraction.

    Raises:
        ParameterError: Not an int or a Fraction, too long, or outside [least, most].
    """
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise ParameterError(
            f"{parameter} must be an exact rational number (int or Fraction), "
            f"got {type(value).__name__}",
            parameter=parameter,
            value=value,
            nearest=f"Fraction({value!r})" if isinstance(value, float) else None,
        )
    exact = Fraction(value)
    if not least <= exact <= most:
        raise ParameterError(
            f"{parameter} must lie in [{_as_text(least)}, {_as_text(most)}], "
            f"got {_as_text(exact)}",
            parameter=parameter,
            value=value,
            nearest=_as_text(least if exact < least else most),
        )
    length = _longer_bit_length(exact)
    if length > MAX_RATIONAL_BITS:
        raise ParameterError(
            f"numerator and denominator of {parameter} have at most "
            f"{MAX_RATIONAL_BITS} bits, got {length}; round the value up",
            parameter=parameter,
            value=value,
        )
    return exact


def _longer_bit_length(number: Fraction) -> int:
    """Length of the longer of numerator and denominator."""
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _as_text(number: Fraction) -> str:
    """A rational as text, unless it is so long that its length says more."""
    length = _longer_bit_length(number)
    return str(number) if length <= _SHOWN_BITS else f"a rational of {length} bits"
