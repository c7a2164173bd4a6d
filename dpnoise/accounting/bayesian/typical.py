"""What all but a share of the people lose, however the releases followed each other.

Fix an order λ before the first release. For every person i, with C_i the sum of the
divergences D_(λ+1) of the releases that really took place, λ(L_i − C_i) is the
logarithm of a martingale of mean 1: whatever was released next, it was chosen by what
was seen before. So P(L_i ≥ C_i + log(1/δ)/λ) ≤ δ, by Markov. Draw a person at random:
the probability that C_i is among the largest share β of them is β. Hence

    P(L ≥ B + log(1/δ)/λ) ≤ δ + β,   B the (1 − β)-quantile of C_1, …, C_N,

for adaptive releases, without a planned number of them, and with people that differ.
With fewer than 1/β people, B is the largest C_i, so it covers every person.
Source: ours; a Rényi odometer of one order ([MTZ19] for divergences), and a quantile.
"""

import math

import numpy as np

from dpnoise.accounting.accountant import check_delta
from dpnoise.errors import InputError, ParameterError
from dpnoise.floats import FloatArray


def typical_epsilon(
    divergences: FloatArray,
    *,
    order: float,
    delta: float,
    share: float,
    failure: float | None = None,
) -> float:
    """Return a bound on the loss of a person drawn at random.

    Args:
        divergences: Sum of D_(λ+1) over all releases, person by person, nats, shape
            (people,).
        order: λ, fixed before the first release, greater than 0.
        delta: Failure probability of the noise, in (0, 1).
        share: Part of the people that may lose more, in (0, 1).
        failure: Probability that the sample misses the quantile; None if `divergences`
            are those of the whole population.

    Returns:
        Epsilon in nats; it fails with a probability of `delta` + `share` + `failure` at
        most. Infinite if the sample is too small to see such a share.

    Raises:
        InputError: A divergence is negative or none.
        ParameterError: A number is out of range.
    """
    if divergences.size == 0 or not np.all(divergences >= 0.0):
        raise InputError("divergences are at least one number, none negative")
    if not 0.0 < order < math.inf:
        raise ParameterError(
            f"order must be greater than 0, got {order!r}",
            parameter="order",
            value=order,
        )
    people = divergences.size
    ordered = np.sort(divergences)
    part = check_delta(share)
    if failure is None:
        excluded = math.floor(part * people)
    else:
        excluded = _safely_excluded(people, part, check_delta(failure))
        if excluded < 0:
            return math.inf
    quantile = float(ordered[people - 1 - min(excluded, people - 1)])
    return quantile - math.log(check_delta(delta)) / order


def _safely_excluded(people: int, share: float, failure: float) -> int:
    """Return how many largest values a sample may lack, or −1 if not even zero.

    Excluding k of n is wrong if the (1 − share)-quantile lies above the rest. Then at
    most k of n draws fell among the share: a binomial tail.
    """
    total, most = 0.0, -1
    for missed in range(people):
        log_chance = (
            math.lgamma(people + 1)
            - math.lgamma(missed + 1)
            - math.lgamma(people - missed + 1)
            + missed * math.log(share)
            + (people - missed) * math.log1p(-share)
        )
        total += math.exp(log_chance)
        if total > failure:
            break
        most = missed
    return most
