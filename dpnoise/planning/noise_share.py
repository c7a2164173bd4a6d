"""One client's share of the required noise.

Numbered rules:

1. A share is rounded up, never down: the shares that count add up to at least what the
   accountant requires.
2. Shares are dyadic rationals with few digits, so that configurations stay readable and
   two parties agree on them exactly.
3. A share below what a sampler accepts is raised to it. More noise is post-processing.

This module deliberately does not know who is counted.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from dpnoise.mechanisms.parameters import MAX_NOISE_VARIANCE as MAX_VARIANCE
from dpnoise.samplers.skellam import MAX_NOISE_VARIANCE

__all__ = ["largest_share", "round_share_up"]

_TABLES_ONLY: Final = frozenset({"skellam-mixture", "skellam", "smm", "binomial"})
_LARGEST_TABLE: Final = MAX_NOISE_VARIANCE
_LARGEST_VARIANCE: Final = Fraction(MAX_VARIANCE)
_PRECISION: Final = 20  # a share is rounded up by one part in 2^20 at most
_LEAST_VARIANCE: Final = {
    # Smallest variance that the samplers accept; more noise than needed is harmless.
    "ddgauss": Fraction(1, 64),
    "discrete-gaussian": Fraction(1, 64),
    "binomial": Fraction(1, 2),
}
_LEAST_SKELLAM: Final = Fraction(1, 1 << 20)


def largest_share(mechanism: str) -> Fraction:
    """Return the largest variance of one share that the mechanism's sampler holds.

    Args:
        mechanism: Name of the mechanism.

    Returns:
        The variance, grid steps².
    """
    # Skellam and binomial noise come from tables; the others have samplers or
    # simulations of any width.
    return _LARGEST_TABLE if mechanism in _TABLES_ONLY else _LARGEST_VARIANCE


def round_share_up(variance: Fraction, mechanism: str) -> Fraction:
    """Round one share's variance up to a rational that the sampler accepts.

    Args:
        variance: Required variance of one share, grid steps², greater than 0.
        mechanism: Name of the mechanism.

    Returns:
        A dyadic rational, at least the argument: a multiple of 1/2 for `binomial`.
    """
    least = max(variance, _LEAST_VARIANCE.get(mechanism, _LEAST_SKELLAM))
    if mechanism == "binomial":
        return Fraction(math.ceil(2 * least), 2)
    unit = Fraction(2) ** (math.floor(math.log2(least)) - _PRECISION)
    return math.ceil(least / unit) * unit
