"""Checks of one number that a caller or a configuration gives, by its name.

A value that cannot work is refused with the parameter's name and the nearest value that
works. Nothing is converted before it is compared: a server that lies may have sent it.

It knows no parameter's meaning.
"""

import math
from fractions import Fraction
from typing import Final

from dpnoise.errors import ParameterError

_SHOWN_BITS: Final = 128


def check_number(parameter: str, value: object) -> float:
    """Return a finite number as a float, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Returns:
        The number as a float.

    Raises:
        ParameterError: It is no number, NaN, or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ParameterError(
            f"{parameter} must be a number, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError.of(parameter, number, "must be a finite number")
    return number


def check_fraction(parameter: str, value: object) -> Fraction:
    """Return an exact rational, or refuse another kind of number by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Raises:
        ParameterError: It is not a Fraction.
    """
    if isinstance(value, Fraction):
        return value
    raise ParameterError(
        f"{parameter} must be an exact Fraction, got {type(value).__name__}",
        parameter=parameter,
        value=value,
        nearest=f"Fraction({value!r})" if isinstance(value, int | float) else None,
    )


def check_positive(parameter: str, value: object) -> float:
    """Return a number greater than zero as a float, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Returns:
        The number as a float.

    Raises:
        ParameterError: It is no finite number greater than 0.
    """
    number = check_number(parameter, value)
    if number <= 0.0:
        raise ParameterError.of(
            parameter,
            number,
            "must be greater than 0",
            nearest="any number above 0, such as 1.0",
        )
    return number


def check_non_negative(parameter: str, value: object) -> None:
    """Refuse what is no finite number of at least 0."""
    if check_number(parameter, value) < 0.0:
        raise ParameterError.of(parameter, value, "must be at least 0", nearest="0.0")


def check_integer(
    parameter: str, value: object, lowest: int, highest: int | None = None
) -> int:
    """Return an integer within its limits, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.
        lowest: Smallest value that works.
        highest: Largest value that works; None for no limit.

    Returns:
        The integer.

    Raises:
        ParameterError: It is no integer, or outside the limits.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(
            f"{parameter} must be an integer, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    if value < lowest or (highest is not None and value > highest):
        limits = (
            f"at least {lowest}"
            if highest is None
            else f"between {lowest} and {highest}"
        )
        bits = value.bit_length()
        shown = value if bits <= _SHOWN_BITS else f"an integer of {bits} bits"
        raise ParameterError(
            f"{parameter} must be {limits}, got {shown}",
            parameter=parameter,
            value=value,
            nearest=str(lowest if value < lowest else highest),
        )
    return value
