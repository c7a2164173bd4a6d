"""The discrete Gaussian law: a Gaussian restricted to the integers.

Rule 1: `variance_parameter` is σ² in P(X = k) ∝ exp(−k²/(2σ²)). It is not the variance:
        the variance is a little smaller, and far smaller once σ² falls below 1/4.
Rule 2: Sums of discrete Gaussians are not discrete Gaussian. `dpnoise.accounting`
        accounts for such a sum.
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

MIN_VARIANCE_PARAMETER: Final = Fraction(1, 64)
"""Below this a draw is zero but for a chance of 2^-45: no noise at all."""

MAX_VARIANCE_PARAMETER: Final = Fraction(1 << 28)
"""The same number of cells as the largest Skellam table, for the same reasons. Beyond,
`wide_discrete_gaussian.discrete_gaussian_sampler` draws without a full table."""


def discrete_gaussian_table(variance_parameter: Fraction | int) -> InversionTable:
    """Build, or fetch, the sampler of the discrete Gaussian centred at zero.

    Args:
        variance_parameter: σ² in P(X = k) ∝ exp(−k²/(2σ²)), in grid steps squared: an
            exact rational in [1/64, 2^28].

    Returns:
        The table. Its `variance` is the variance of the draws, at most σ².

    Raises:
        ParameterError: Not a rational number, or out of range.

    Source:
        [CKS20] Definition 1.

    Checked by:
        tests/unit/dpnoise/samplers/test_table_accuracy.py
    """
    return _build(
        exact_parameter(
            "variance_parameter",
            variance_parameter,
            MIN_VARIANCE_PARAMETER,
            MAX_VARIANCE_PARAMETER,
        )
    )


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build(variance_parameter: Fraction) -> InversionTable:
    """Return the table of the law."""
    return InversionTable.from_law(
        "discrete-gaussian",
        (variance_parameter,),
        functools.partial(gaussian_weights, variance_parameter),
        variance=None,
    )


def gaussian_weights(variance_parameter: Fraction, precision: int) -> Weights:
    """Enclose the weights w_k = exp(−k²/(2σ²)) of the outcomes k ≥ 1.

    By w_(k+1) = w_k·u_k and u_(k+1) = u_k·exp(−1/σ²), with u_0 = exp(−1/(2σ²)).

    Args:
        variance_parameter: σ², exact.
        precision: Bits after the binary point.
    """
    nats = SUMMATION_BITS * math.log(2)
    cells = math.ceil(math.sqrt(2 * nats * variance_parameter)) + 8
    half = Fraction(1, 2) / variance_parameter
    ratio_lower, ratio_upper = exp_enclosure(half, precision)
    factor_lower, factor_upper = exp_enclosure(2 * half, precision)

    one = 1 << precision
    low = high = one
    lower, upper = [], []
    for _ in range(cells):
        low = (low * ratio_lower) >> precision
        high = ((high * ratio_upper) >> precision) + 1
        lower.append(low)
        upper.append(high)
        ratio_lower = (ratio_lower * factor_lower) >> precision
        ratio_upper = ((ratio_upper * factor_upper) >> precision) + 1
    rest = geometric_rest(high, ratio_upper, precision)
    return Weights(0, one, one, OneSide(lower, upper, rest))
