"""Checks of parameters that a caller or a configuration gives, each by its name.

* A value that cannot work is refused with the parameter's name and the nearest value
  that works.
* Numbers may come from a server that lies: nothing is converted before it is compared,
  and no text is read that could grow.

It knows no parameter's meaning.
"""

import dataclasses
import difflib
import inspect
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, cast

from dpnoise.checks import check_fraction, check_number, check_positive
from dpnoise.errors import ParameterError
from dpnoise.own_parts import is_own

_MAX_FRACTION_BITS: Final = 512
"""Longest numerator or denominator: building a noise table is slow in it."""

_LONGEST: Final = (
    2.0**256
)  # squares of lengths, and what they are divided by, are finite
_MAX_DIGITS: Final = 160  # the decimal digits of 512 bits, and a few


def check_choice(parameter: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse anything but one of the choices.

    Args:
        parameter: Name for the error.
        value: What the caller passed.
        choices: What works.

    Raises:
        ParameterError: It is not one of them; the error names the most similar one.
    """
    if value not in choices:
        text = str(value)[:80]
        # A refusal may be sent to a peer, who need not know of a program's own parts.
        known = [choice for choice in choices if not is_own(choice)]
        near = difflib.get_close_matches(text.replace("_", "-"), known, n=1)
        raise ParameterError(
            f"{parameter} must be one of {', '.join(known)}; got {text!r}",
            parameter=parameter,
            value=text,
            nearest=near[0] if near else None,
        )


def check_flag(parameter: str, value: object) -> None:
    """Refuse anything but true or false.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Raises:
        ParameterError: It is neither.
    """
    if not isinstance(value, bool):
        raise ParameterError(
            f"{parameter} must be true or false, got {type(value).__name__}",
            parameter=parameter,
            value=value,
            nearest="false",
        )


def plain_number(value: object) -> object:
    """Return a number of numpy as Python's own; anything else as it is.

    A program computes with numpy; a configuration is written with Python's numbers.

    Args:
        value: What the caller passed.
    """
    if value is None or isinstance(value, bool | int | float | Fraction):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def check_keywords(
    called: str,
    signature: inspect.Signature,
    args: Sequence[object],
    keywords: Mapping[str, object],
) -> None:
    """Refuse a call that does not fit, naming the keyword that is meant.

    Args:
        called: Name of the function, for the error.
        signature: What it takes, by keyword alone.
        args: What was passed without a name.
        keywords: What was passed by name.

    Raises:
        ParameterError: A keyword does not exist or is missing, or an argument has no
            name.
    """
    if args:
        raise ParameterError(f"{called} takes its arguments by name")
    for name in keywords:
        if name not in signature.parameters:
            near = difflib.get_close_matches(name, signature.parameters, n=1)
            raise ParameterError(
                f"{called} has no argument {name!r}",
                parameter=name,
                nearest=near[0] if near else None,
            )
    missing = [
        name
        for name, each in signature.parameters.items()
        if each.default is inspect.Parameter.empty and name not in keywords
    ]
    if missing:
        raise ParameterError(
            f"{called} needs {' and '.join(missing)}", parameter=missing[0]
        )


def check_length(parameter: str, value: object) -> float:
    """Return a length in the caller's units as a float, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Returns:
        The number, in [2^-256, 2^256].

    Raises:
        ParameterError: It is out of range; choose units that bring it into range.
    """
    number = check_positive(parameter, value)
    if not 1.0 / _LONGEST <= number <= _LONGEST:
        raise ParameterError(
            f"{parameter} must be between 2^-256 and 2^256, got {number!r}: choose "
            "other units",
            parameter=parameter,
            value=number,
            nearest=repr(_LONGEST if number > _LONGEST else 1.0 / _LONGEST),
        )
    return number


def check_bounded_fraction(parameter: str, value: object, *, most: int) -> Fraction:
    """Return an exact number greater than zero, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.
        most: Largest value that works, a power of two.

    Returns:
        The number.

    Raises:
        ParameterError: It is no Fraction, not in (0, most], or longer than 512 bits.
    """
    value = check_fraction(parameter, value)
    if not 0 < value <= most:
        raise ParameterError(
            f"{parameter} must be greater than 0 and at most "
            f"2^{most.bit_length() - 1}, got {float(value):.6g}",
            parameter=parameter,
            value=value,
            nearest=str(most) if value > 0 else None,
        )
    longest = max(value.numerator.bit_length(), value.denominator.bit_length())
    if longest > _MAX_FRACTION_BITS:
        raise ParameterError(
            f"{parameter} must have at most {_MAX_FRACTION_BITS} bits in numerator and "
            f"denominator, got {longest}",
            parameter=parameter,
            value=float(value),
            nearest="the next larger multiple of 2^-200",
        )
    return value


def read_fraction(parameter: str, value: object) -> Fraction:
    """Read an exact rational from "p/q", an integer, a float, or a Fraction.

    Args:
        parameter: Name for the error.
        value: What a configuration held.

    Returns:
        The rational; a float is taken for exactly what it is.

    Raises:
        ParameterError: It has another type or form, or is not finite.
    """
    if isinstance(value, str):
        numerator, _, denominator = value.partition("/")
        # Decimal forms such as "1e9999" would be expanded; only plain integers pass.
        parts = (numerator, denominator or "1")
        if all(map(_is_plain_integer, parts)) and int(parts[1]) > 0:
            return Fraction(int(parts[0]), int(parts[1]))
        raise ParameterError(
            f'{parameter} must read "numerator/denominator" in digits',
            parameter=parameter,
            value=value[:80],
        )
    check_number(parameter, value)
    return Fraction(cast("int | float | Fraction", value))


def _is_plain_integer(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def read_fields(
    record: type, entries: Mapping[str, object], *, what: str
) -> dict[str, object]:
    """Return the entries of a configuration if they are fields of a record.

    Args:
        record: A dataclass.
        entries: JSON values by field name; fields with a default may be missing.
        what: What the record is called in an error.

    Raises:
        ParameterError: A key is unknown or missing.  An unknown key is an error,
            since a key that one party ignores is a parameter on which they differ.
    """
    fields = {field.name: field for field in dataclasses.fields(record)}
    for key in entries:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            raise ParameterError(
                f"{what} has no key {key!r}",
                parameter=key,
                nearest=near[0] if near else None,
            )
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in entries:
            raise ParameterError(f"{what} lacks the key {name!r}", parameter=name)
    return dict(entries)
