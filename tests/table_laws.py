"""Two laws for the tests of `InversionTable` that no release draws from.

* The discrete Laplace law has long tails, so its table has the most cells.
* The Poisson law is not symmetric.  Its table is centred at the integer part of the
  rate, where the weight is largest.
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
    return _build_laplace(
        exact_parameter("decay_rate", decay_rate, MIN_DECAY_RATE, MAX_DECAY_RATE)
    )


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build_laplace(decay_rate: Fraction) -> InversionTable:
    return InversionTable.from_law(
        "discrete-laplace",
        (decay_rate,),
        functools.partial(_laplace_weights, decay_rate),
        variance=None,
    )


def _laplace_weights(decay_rate: Fraction, precision: int) -> Weights:
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


MIN_POISSON_RATE: Final = Fraction(1, 1 << 20)
"""Below this a draw is zero but for one chance in a million."""

MAX_POISSON_RATE: Final = Fraction(1 << 24)
"""The law is two-sided, which doubles the work of a symmetric one."""


def poisson_table(poisson_rate: Fraction | int) -> InversionTable:
    """Build, or fetch, the sampler of the Poisson law.

    Args:
        poisson_rate: Mean and variance λ: an exact rational in [2^-20, 2^24].

    Returns:
        The table; outcomes below zero do not exist. `variance` is the rate.

    Raises:
        ParameterError: Not a rational number, or out of range.

    Source:
        [Bao22] section 2.1.

    Checked by:
        tests/unit/dpnoise/samplers/test_table_accuracy.py
    """
    return _build_poisson(
        exact_parameter(
            "poisson_rate", poisson_rate, MIN_POISSON_RATE, MAX_POISSON_RATE
        )
    )


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build_poisson(poisson_rate: Fraction) -> InversionTable:
    return InversionTable.from_law(
        "poisson",
        (poisson_rate,),
        functools.partial(_poisson_weights, poisson_rate),
        variance=poisson_rate,
    )


def _poisson_weights(poisson_rate: Fraction, precision: int) -> Weights:
    """Weights relative to the one at ⌊λ⌋: w_(k+1) = w_k·λ/(k+1) upwards."""
    numerator, denominator = poisson_rate.as_integer_ratio()
    centre = numerator // denominator
    nats = SUMMATION_BITS * math.log(2)
    reach = math.ceil(math.sqrt(2 * nats * poisson_rate) + nats / 1.5) + 8
    one = 1 << precision

    low = high = one
    right = OneSide([], [], 0)
    for k in range(centre + 1, centre + reach + 1):
        low = low * numerator // (denominator * k)
        high = high * numerator // (denominator * k) + 1
        right.lower.append(low)
        right.upper.append(high)
    # The next ratio is λ/(k + 1) with k the last outcome, and they fall.
    following = denominator * (centre + reach + 1)
    right_rest = high * numerator // (following - numerator) + 1

    low = high = one
    left = OneSide([], [], 0)
    for k in range(centre, max(0, centre - reach), -1):
        low = low * denominator * k // numerator
        high = high * denominator * k // numerator + 1
        left.lower.append(low)
        left.upper.append(high)
    # Downwards the ratio is k/λ with k the last outcome, zero if that is zero.
    last = denominator * max(0, centre - reach)
    left_rest = high * last // (numerator - last) + 1 if last else 0
    return Weights(
        centre,
        one,
        one,
        OneSide(right.lower, right.upper, right_rest),
        OneSide(left.lower, left.upper, left_rest),
    )
