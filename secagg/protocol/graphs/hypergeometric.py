"""Hypergeometric tails in logarithms, far below the range of floats.

Rule 1: a tail is summed from its own terms, never taken from 1: 2^-40 would be lost to
        rounding.
Rule 2: the functions are total; the logarithm of an impossible event is -inf.

Rounding is below 1e-12 for populations up to 60, below 1e-8 up to 10^6.
"""

import math
from functools import lru_cache

# Terms below this part of the sum so far cannot change its last digit, even all of them
# together: they fall beyond the mode, and a tail has at most 2^20 of them.
_NEGLIGIBLE = 2.0**-72


def log_choose(among: int, chosen: int) -> float:
    """Return ln C(among, chosen), -inf where there is no choice."""
    if not 0 <= chosen <= among:
        return -math.inf
    return (
        math.lgamma(among + 1)
        - math.lgamma(chosen + 1)
        - math.lgamma(among - chosen + 1)
    )


# A party needs the same bounds at the offer, at the roster and before it answers.
@lru_cache(maxsize=256)
def log_drawn(hits: range, *, population: int, marked: int, drawn: int) -> float:
    """Return ln P[X in hits], where X counts the marked ones among those drawn.

    Args:
        hits: Consecutive numbers; impossible ones add nothing.
        population: Size of the population, at least `marked` and `drawn`.
        marked: How many of them are marked.
        drawn: How many are drawn, without replacement.
    """
    low = max(hits.start, 0, marked + drawn - population)
    high = min(hits.stop - 1, marked, drawn)
    if low > high:
        return -math.inf
    # The largest term is nearest to the mode; the others follow from it as products.
    mode = (marked + 1) * (drawn + 1) // (population + 2)
    top = min(max(low, mode), high)
    rest = population - marked - drawn
    terms = [1.0]
    for hit in range(top, high):
        term = terms[-1] * (marked - hit) * (drawn - hit)
        terms.append(term / ((hit + 1) * (rest + hit + 1)))
        if terms[-1] < _NEGLIGIBLE:
            break
    falling = 1.0
    for hit in range(top, low, -1):
        falling *= hit * (rest + hit) / ((marked - hit + 1) * (drawn - hit + 1))
        terms.append(falling)
        if falling < _NEGLIGIBLE:
            break
    return (
        math.log(math.fsum(terms))
        + log_choose(marked, top)
        + log_choose(population - marked, drawn - top)
        - log_choose(population, drawn)
    )
