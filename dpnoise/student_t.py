"""Student's law: how far a mean of few measurements may be from the truth.

Its probabilities are finite sums for whole degrees of freedom, so no library is needed.
"""

import math
from typing import Final

from dpnoise.errors import ParameterError
from dpnoise.searches import halve

_HALF: Final = 0.5


def student_quantile(tail: float, freedom: int) -> float:
    """Return the number that Student's t exceeds with a given probability.

    Args:
        tail: That probability, in (0, 1). Below 10⁻¹² the answer is not reliable.
        freedom: Degrees of freedom, at least 1.

    Raises:
        ParameterError: A value is out of range.

    Source:
        M. Abramowitz, I. Stegun: Handbook of Mathematical Functions, 26.7.3, 26.7.4.

    Checked by:
        tests/unit/dpnoise/test_student_t.py
    """
    if not 0.0 < tail < 1.0:
        raise ParameterError.of("tail", tail, "must lie in (0, 1)")
    if freedom < 1:
        raise ParameterError.of("freedom", freedom, "must be at least 1", nearest="1")
    if tail > _HALF:
        return -student_quantile(1.0 - tail, freedom)
    angle, _ = halve(
        lambda angle: 1.0 - _inside(angle, freedom) <= 2.0 * tail, 0.0, math.pi / 2.0
    )
    return math.sqrt(freedom) * math.tan(angle)


def _inside(angle: float, freedom: int) -> float:
    """Return P(|t| < √freedom · tan(angle))."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    if odd:
        return 2.0 / math.pi * (angle + sine * total)
    return sine * total
