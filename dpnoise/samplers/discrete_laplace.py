"""The discrete Laplace law, also called the two-sided geometric law.

* `decay_rate` is the reciprocal of the usual scale: P(X = k) falls by the factor
  e^(−decay_rate) per step. A counting query of L1 sensitivity D with this noise is
  (decay_rate · D)-differentially private.
"""

import functools
import math
from fractions import Fraction
from typing import Final

from dpnoise.samplers.inversion_table import InversionTable
from dpnoise.samplers.parameters import CACHED_TABLES, exact_parameter
from dpnoise.samplers.tail_bounds import (
    SUMMATION_BITS,
    OneSide,
    Weights,
    exp_enclosure,
    geometric_rest,
)

MIN_DECAY_RATE: Final = Fraction(1, 1 << 11)
"""The tail falls slowly: 390 000 cells at this rate, as many as the other laws use."""

MAX_DECAY_RATE: Final = Fraction(32)
"""Above this a draw is zero but for a chance of 2^-45: no noise at all."""


def discrete_laplace_table(decay_rate: Fraction | int) -> InversionTable:
    """Build, or fetch, the sampler of the discrete Laplace law centred at zero.

    Args:
        decay_rate: Rate a in P(X = k) ∝ exp(−a·|k|), per grid step: an exact rational
            in [2^-11, 32].

    Returns:
        The table. Its `variance` is the variance of the draws, 2e^(−a)/(1 − e^(−a))²
        up to the truncated tail.

    Raises:
        ParameterError: Not a rational number, or out of range.

    Source:
        The law of [CKS20] Algorithm 2, its t being 1/a.

    Checked by:
        tests/unit/dpnoise/samplers/test_table_accuracy.py
    """
    return _build(
        exact_parameter("decay_rate", decay_rate, MIN_DECAY_RATE, MAX_DECAY_RATE)
    )


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build(decay_rate: Fraction) -> InversionTable:
    return InversionTable.from_law(
        "discrete-laplace",
        (decay_rate,),
        functools.partial(_weights, decay_rate),
        variance=None,
    )


def _weights(decay_rate: Fraction, precision: int) -> Weights:
    """Weights e^(−a·k), a geometric series."""
    cells = math.ceil((SUMMATION_BITS + 16) * math.log(2) / decay_rate) + 8
    ratio_lower, ratio_upper = exp_enclosure(decay_rate, precision)
    one = 1 << precision
    low = high = one
    lower, upper = [], []
    for _ in range(cells):
        low = (low * ratio_lower) >> precision
        high = ((high * ratio_upper) >> precision) + 1
        lower.append(low)
        upper.append(high)
    rest = geometric_rest(high, ratio_upper, precision)
    return Weights(0, one, one, OneSide(lower, upper, rest))
