"""The Skellam law: the difference of two independent Poisson variables.

* `noise_variance` is the variance of the law. Each of the two Poisson variables has
  rate `noise_variance / 2`. [Aga21] writes the variance as μ; [Bao22] writes the
  rate as λ, so that the variance is 2λ there.
* The variance is an exact rational number, never a float.
* Weights come from ratios of Bessel functions by a backward recurrence in which a
  lower and an upper bound swap roles at every step. No Bessel function is evaluated.

What this module does not do: it splits no noise among clients. Skellam variables add
up (the variances do), so a client draws from the table of its own share.
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
    geometric_rest,
)

MIN_TABLE_VARIANCE: Final = Fraction(1, 1 << 20)
"""Below this a draw is zero but for one chance in a million: a mistake in the units."""

MAX_TABLE_VARIANCE: Final = Fraction(1 << 28)
"""A table at this variance has 440 000 cells, takes about a second to build and holds
26 MB. Add independent draws for more noise: their variances add up."""


def skellam_table(noise_variance: Fraction | int) -> InversionTable:
    """Build, or fetch, the sampler of Skellam noise of the given variance.

    The law has P(X = k) = e^(−v)·I_|k|(v) with v = `noise_variance`, mean 0 and
    variance v.

    Args:
        noise_variance: Variance of one draw, in grid steps squared: an exact rational
            in [2^-20, 2^28].

    Returns:
        The table, shared by all callers with the same variance. Its `variance` is
        exactly `noise_variance`.

    Raises:
        ParameterError: Not a rational number, or out of range. Convert a float with
            `Fraction(value)`, rounding the variance up.

    Source:
        [Aga21] Definition 3.1; recurrence I_(k−1)(v) = (2k/v)·I_k(v) + I_(k+1)(v).

    Checked by:
        tests/unit/dpnoise/samplers/test_table_accuracy.py
    """
    return _build(
        exact_parameter(
            "noise_variance", noise_variance, MIN_TABLE_VARIANCE, MAX_TABLE_VARIANCE
        )
    )


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build(noise_variance: Fraction) -> InversionTable:
    """Return the table of the law."""
    return InversionTable.from_law(
        "skellam",
        (noise_variance,),
        functools.partial(skellam_weights, noise_variance),
        variance=noise_variance,
    )


def skellam_weights(noise_variance: Fraction, precision: int) -> Weights:
    """Enclose the weights I_k(v)/I_0(v) for k ≥ 1.

    With r_k = I_(k+1)(v)/I_k(v), dividing the recurrence by I_k gives
    r_(k−1) = 1/(2k/v + r_k), which falls as r_k grows. Since 0 ≤ r_k ≤ 1, starting far
    out from [0, 1] encloses every r_k, and each step shrinks the width by r_(k−1)².

    Args:
        noise_variance: v, exact, greater than 0.
        precision: Bits after the binary point.
    """
    numerator, denominator = noise_variance.as_integer_ratio()
    stddev = math.sqrt(noise_variance)
    nats = SUMMATION_BITS * math.log(2)
    cells = math.ceil(math.sqrt(2 * nats) * stddev + nats / 1.5) + 8
    # A few steps beyond the last cell bring its ratio below one, which `rest` needs.
    start = cells + math.ceil(stddev / 4) + 8

    one = 1 << precision
    square = 1 << (2 * precision)
    step_lower = ((2 * denominator) << precision) // numerator  # 2/v, rounded down
    ratios_lower, ratios_upper = [0] * cells, [0] * cells
    lower, upper = 0, one
    for k in range(start, 0, -1):
        base = k * step_lower
        lower, upper = (
            square // (base + k + upper),  # k·(2/v) < base + k
            min(one, square // (base + lower) + 1 if base + lower else one),
        )
        if k <= cells:
            ratios_lower[k - 1], ratios_upper[k - 1] = lower, upper

    weights_lower, weights_upper = [], []
    low = high = one
    for ratio_lower, ratio_upper in zip(ratios_lower, ratios_upper, strict=True):
        low = (low * ratio_lower) >> precision
        high = ((high * ratio_upper) >> precision) + 1
        weights_lower.append(low)
        weights_upper.append(high)
    rest = geometric_rest(high, ratios_upper[-1], precision)
    return Weights(0, one, one, OneSide(weights_lower, weights_upper, rest))
