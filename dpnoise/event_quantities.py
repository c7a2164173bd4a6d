"""What the quantities of an event may be; the errors name the field and a way out.

Every check raises `ParameterError` with the field's name and, where there is one, the
nearest value that works. No theorem's hypothesis is checked here.
"""

import math
from fractions import Fraction
from typing import Final

from dpnoise.errors import ParameterError

MAX_EVENT_DIM: Final = 1 << 40
"""Largest dimension: 2^40 coordinates of one byte are a terabyte per client."""


def as_float(parameter: str, value: object) -> float:
    """Return a finite number as a float, or refuse it by name."""
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ParameterError(
            f"{parameter} must be a number, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    number = float(value)
    if not math.isfinite(number):
        raise ParameterError(
            f"{parameter} must be finite, got {number!r}",
            parameter=parameter,
            value=number,
        )
    return number


def check_dim(dim: object) -> None:
    """Refuse a dimension that no vector has."""
    check_count("dim", dim, at_least=1)
    if isinstance(dim, int) and dim > MAX_EVENT_DIM:
        raise ParameterError(
            f"dim must be at most {MAX_EVENT_DIM}, got {dim}",
            parameter="dim",
            value=dim,
            nearest=str(MAX_EVENT_DIM),
        )


def check_count(parameter: str, value: object, *, at_least: int) -> None:
    """Refuse what is no integer of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(
            f"{parameter} must be an integer, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    if value < at_least:
        raise ParameterError(
            f"{parameter} must be at least {at_least}, got {value}",
            parameter=parameter,
            value=value,
            nearest=str(at_least),
        )


def check_variance(parameter: str, value: object) -> None:
    """Refuse what is no exact rational above 0."""
    if not isinstance(value, Fraction):
        raise ParameterError(
            f"{parameter} must be an exact Fraction, got {type(value).__name__}",
            parameter=parameter,
            value=value,
            nearest=(
                f"Fraction({value!r})" if isinstance(value, int | float) else None
            ),
        )
    if value <= 0:
        raise ParameterError(
            f"{parameter} must be greater than 0, got {value}",
            parameter=parameter,
            value=value,
        )


def check_positive(parameter: str, value: object) -> None:
    """Refuse what is no finite number above 0."""
    if as_float(parameter, value) <= 0.0:
        raise ParameterError(
            f"{parameter} must be greater than 0, got {value!r}",
            parameter=parameter,
            value=value,
        )


def check_non_negative(parameter: str, value: object) -> None:
    """Refuse what is no finite number of at least 0."""
    if as_float(parameter, value) < 0.0:
        raise ParameterError(
            f"{parameter} must be at least 0, got {value!r}",
            parameter=parameter,
            value=value,
            nearest="0.0",
        )


def check_distance(value: object) -> None:
    """Refuse what is no total variation distance below 1."""
    if not 0.0 <= as_float("sampler_distance", value) < 1.0:
        raise ParameterError(
            f"sampler_distance must lie in [0, 1), got {value!r}",
            parameter="sampler_distance",
            value=value,
            nearest="0.0",
        )
