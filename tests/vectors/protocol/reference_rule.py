"""The rule for small clients, from docs/rule-for-small-clients.md alone, slowly.

Numbers have 34 digits, moments are summed as they are defined and not by the
recurrence, and every place to clamp is tried.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Any

from mpmath import mp, mpf

DIGITS = 34
ORDERS = [*range(2, 33), *range(34, 65, 3), 72, 80, 96, 112, 128, 160, 192, 256]


def number(value: Fraction) -> Any:
    return mpf(value.numerator) / value.denominator


def unit_shift(variance: Any) -> Any:
    gap = (mpf("0.5") + (mpf("0.125") + mpf("0.25") / variance) / variance) / variance
    curvature = -2 * mp.log(1 - gap)
    return mp.sqrt(2 * curvature / (1 + mp.sqrt(1 - curvature)))


def normal_delta(epsilon: Any, shift: Any) -> Any:
    return mp.ncdf(shift / 2 - epsilon / shift) - mp.exp(epsilon) * mp.ncdf(
        -shift / 2 - epsilon / shift
    )


def clamped(rule: dict[str, Any], reach: Any) -> tuple[Any, Any] | None:
    """Return the shift μ·√T and the charge T·d·τ at one place, if it is one."""
    variance, norm = number(rule["variance"]), number(rule["norm_squared"])
    largest = int(mp.ceil(min(number(rule["largest"]), mp.sqrt(norm))))
    last = int(mp.ceil(reach * mp.sqrt(variance)))
    if last <= largest:
        return None
    unit = unit_shift(variance)
    exponent = (last + mpf("0.5")) * unit**2
    growth = mp.expm1(exponent) / exponent * mp.exp(unit**2 / 2)
    left = last - largest
    tail = mp.exp(
        mp.sqrt(left**2 + variance**2) - variance - left * mp.asinh(left / variance)
    )
    releases = rule["releases"]
    return mp.sqrt(releases * norm) * unit * growth, releases * rule["dim"] * tail


def statement_a(rule: dict[str, Any]) -> Any:
    if number(rule["variance"]) < 4:
        return mp.inf
    delta, best = number(rule["delta"]), mp.inf
    for sixteenth in range(32, 257):
        place = clamped(rule, mpf(sixteenth) / 16)
        if place is None or 2 * place[1] >= delta:
            continue
        # Without any charge already worse than what was found.
        if best < mp.inf and normal_delta(best, place[0]) > delta:
            continue
        best = min(best, first_epsilon(*place, delta, best))
    return best


def first_epsilon(shift: Any, charge: Any, delta: Any, best: Any) -> Any:
    """Return the least epsilon at which the charged curve reaches delta, or `best`."""

    def curve(epsilon: Any) -> Any:
        return normal_delta(epsilon, shift) + charge * (1 + mp.exp(epsilon))

    # Upwards from 0: the charge grows with epsilon, so the curve turns at some point.
    low, high, step = mpf(0), mpf(0), mpf("0.25")
    while curve(high) > delta:
        low, high = high, high + step
        if low > best or curve(high) > curve(low):
            return best
    for _ in range(42):
        middle = (low + high) / 2
        if curve(middle) <= delta:
            high = middle
        else:
            low = middle
    return high


@lru_cache
def weights(order: int, square: Any) -> list[Any]:
    """Return C(α, l)·e^(l(l−1)M²/2), the last one first."""
    return [
        mp.binomial(order, index) * mp.exp(index * (index - 1) * square / 2)
        for index in range(order, -1, -1)
    ]


def excess_moment(order: int, rate: Any, square: Any) -> Any:
    """Return A_α(p) − 1 as it is defined; cancels, hence the many digits."""
    odds, total = rate / (1 - rate), mpf(0)
    for weight in weights(order, square):
        total = total * odds + weight
    return total * (1 - rate) ** order - 1


@lru_cache
def quotient(order: int, variance: Fraction, largest: Fraction) -> Any:
    """Return κ_α."""
    square = unit_shift(number(variance)) ** 2
    ends = [number(largest) * mpf("0.84") ** cell for cell in range(41)]
    excess = [excess_moment(order, end, square) for end in ends]
    found = [excess[-1] / ends[-1] ** 2]
    for cell in range(40):
        inner = excess[cell + 1]
        found.append(excess[cell] / ends[cell] ** 2 * mp.log1p(inner) / inner)
    return max(found) / (order - 1)


def statement_b(rule: dict[str, Any]) -> Any:
    variance, largest = rule["variance"], rule["largest"]
    if variance < 4 or largest > 1:
        return mp.inf
    square = unit_shift(number(variance)) ** 2
    delta, best = number(rule["delta"]), mp.inf
    for order in ORDERS:
        if order**2 * square > 600:
            continue
        cost = rule["releases"] * number(rule["norm_squared"])
        divergence = cost * quotient(order, variance, largest)
        rest = mp.log(1 / delta) + (order - 1) * mp.log(1 - mpf(1) / order)
        best = min(best, divergence + (rest - mp.log(order)) / (order - 1))
    return best
