"""Rates as people write them: "1/10", "0.1" or "1", and never through a float."""

import re
from fractions import Fraction
from typing import Final

from secagg.errors import ErrorCode

_RATE: Final = re.compile(r"\d{1,9}/0*[1-9]\d{0,8}|\d{1,9}(\.\d{1,9})?", re.ASCII)


def parse_rate(text: str, *, name: str) -> Fraction:
    """Read a rate.

    Args:
        text: Two whole numbers with a slash between them, or a decimal number.
        name: Of the setting or option, for the error.

    Returns:
        The rate, exactly as written; the planner checks its range.

    Raises:
        ServiceError: BAD_SETTINGS; it is not a number.
    """
    if _RATE.fullmatch(text) is None:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{name} is no rate: {text!r}",
            fix='Write it as "1/10", or as "0.1" with at most nine digits.',
        )
    return Fraction(text)
