"""The centred binomial law: successes among fair Bernoulli trials, less their mean.

* The number of trials is even, so that the mean is an integer and the centred law
  lives on the integers.
* Up to 4096 trials the weights are exact integers; beyond, enclosures.
"""

import functools
import math
from fractions import Fraction
from typing import Final

from dpnoise.checks import check_integer
from dpnoise.errors import ParameterError
from dpnoise.samplers.inversion_table import InversionTable
from dpnoise.samplers.parameters import CACHED_TABLES
from dpnoise.samplers.tail_bounds import SUMMATION_BITS, OneSide, Weights

MAX_NUM_TRIALS: Final = 1 << 30
"""Variance 2^28, the largest of the other tables too."""

_EXACT_TRIALS: Final = 4096  # above, an exact weight is longer than it is useful


def binomial_table(num_trials: int) -> InversionTable:
    """Build, or fetch, the sampler of Binomial(N, 1/2) − N/2.

    Args:
        num_trials: Number N of fair trials: even, in [2, 2^30].

    Returns:
        The table: symmetric around zero, `variance` exactly N/4.

    Raises:
        ParameterError: Not an even integer in range.

    Source:
        The binomial mechanism as [Bao22] section 5 describes it (cpSGD).

    Checked by:
        tests/unit/dpnoise/samplers/test_table_accuracy.py
    """
    return _build(even_trials(num_trials, MAX_NUM_TRIALS))


def even_trials(num_trials: int, most: int) -> int:
    """Check a number of fair trials and return it.

    Args:
        num_trials: As `binomial_table` takes it.
        most: Largest number.

    Raises:
        ParameterError: Not an even integer in range.
    """
    trials = check_integer("num_trials", num_trials, 2, most)
    if trials % 2:
        raise ParameterError(
            f"num_trials must be even, so that the mean is an integer; got {trials}",
            parameter="num_trials",
            value=trials,
            nearest=str(trials + 1),
        )
    return trials


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build(num_trials: int) -> InversionTable:
    """Return the table of the law."""
    return InversionTable.from_law(
        "binomial",
        (Fraction(num_trials),),
        functools.partial(binomial_weights, num_trials),
        variance=Fraction(num_trials, 4),
    )


def binomial_weights(num_trials: int, precision: int) -> Weights:
    """Enclose the weights of centred binomial noise.

    Args:
        num_trials: Number N of fair trials, even, at least 2.
        precision: Bits after the binary point, where weights are not exact.
    """
    if num_trials <= _EXACT_TRIALS:
        return _exact_weights(num_trials)
    return _weights(num_trials, precision)


def _exact_weights(num_trials: int) -> Weights:
    """Weights C(N, N/2 + k), exactly."""
    half = num_trials // 2
    exact = [math.comb(num_trials, half)]
    for k in range(half):
        exact.append(exact[-1] * (half - k) // (half + k + 1))
    return Weights(0, exact[0], exact[0], OneSide(exact[1:], exact[1:], 0))


def _weights(num_trials: int, precision: int) -> Weights:
    """Weights C(N, N/2 + k)/C(N, N/2) as enclosures."""
    half = num_trials // 2
    nats = SUMMATION_BITS * math.log(2)
    # Hoeffding: P(X ≥ k) ≤ exp(−2k²/N).
    cells = min(half, math.ceil(math.sqrt(nats * num_trials / 2)) + 8)
    one = 1 << precision
    low = high = one
    lower, upper = [], []
    for k in range(cells):
        low = low * (half - k) // (half + k + 1)
        high = high * (half - k) // (half + k + 1) + 1
        lower.append(low)
        upper.append(high)
    # Next ratio (half − cells)/(half + cells + 1), falling: a geometric series.
    rest = high * (half - cells) // (2 * cells + 1) + 1
    return Weights(0, one, one, OneSide(lower, upper, rest))
