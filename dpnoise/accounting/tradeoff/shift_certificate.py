"""A run-time certificate that Skellam noise hides a unit shift like a Gaussian.

Notation: F and 1 − F are the cdf and the tail of Skellam noise of variance v,
z(t) = Φ^(−1)(F(t)), inc(t) = z(t) − z(t−1). The pair (noise, noise + 1) is as private
as a Gaussian with mean shift μ if and only if no increment exceeds μ (`unit_shift`).

* All arithmetic is on integers, fixed-point, with an explicit error bound beside every
  number; every bound is rounded outwards. No float decides anything: floats only
  propose quantiles, which are then verified.
* Ratios r_k = I_{k+1}(v)/I_k(v) come from the backward recurrence
  r_{k−1} = 1/(2k/v + r_k), which turns the trivial enclosure [0, 1] into one as narrow
  as the arithmetic, and swaps lower and upper ends at every step.
* Ratios fall with k, so a geometric series bounds the tail beyond the last weight.
* Only the *forward* normal tail must be rigorous. It is carried from one proposed
  quantile to the next by its Taylor series, whose remainder is bounded by a majorant.
* Thresholds beyond the last one examined are excluded by clamping both worlds' outputs
  there. The probability of that is returned and must be charged to delta.
* An enclosure that comes out too wide is an error. Nothing is widened by hand.

It covers small variances only; for large ones `unit_shift` has a closed form, and the
number of thresholds would grow with the standard deviation.
"""

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

from dpnoise.errors import CertificateError, ParameterError

MAX_CERTIFIED_VARIANCE: Final = 1 << 14
"""Above, some 1700 thresholds and a quarter of a second buy less than 1e-5 of noise."""

_MAX_SHIFT_STDDEVS: Final = 64  # beyond, e^epsilon has hundreds of digits
_TAIL_BITS: Final = 120  # 2^38 coordinates and rounds keep the charge below 2^-80
_SPARE_BITS: Final = 96  # precision of the smallest tail that is examined
_GUARD_BITS: Final = 32
_MAX_RADIUS_BITS: Final = 44  # an enclosure of a quantile must be narrower than 2^-44


@dataclass(frozen=True, slots=True)
class ShiftCertificate:
    """What was verified about Skellam noise of one variance.

    Args:
        noise_variance: The exact variance v, grid steps squared.
        linf_sensitivity: Largest absolute shift S of a coordinate that is covered.
        unit_gdp: Upper bound on every examined increment. A shift by s steps is hidden
            at least as well as by a standard normal shifted by s times this number.
        largest_at: The threshold t ≥ 0 of the largest examined increment.
        last_threshold: The last threshold T that was examined.
        tail: Upper bound on P(|noise| > T − 2S), the clamped mass per coordinate and
            world; to be charged to delta for every coordinate that may differ.
    """

    noise_variance: Fraction
    linf_sensitivity: int
    unit_gdp: float
    largest_at: int
    last_threshold: int
    tail: float


@functools.lru_cache(maxsize=4096)
def certify_unit_shift(
    noise_variance: Fraction, linf_sensitivity: int
) -> ShiftCertificate:
    """Verify how well Skellam noise hides integer shifts of one coordinate.

    Args:
        noise_variance: Exact variance v, grid steps squared, from 2^-20 to
            `MAX_CERTIFIED_VARIANCE`.
        linf_sensitivity: Largest absolute shift S of a coordinate, grid steps, at
            least 1 and at most 64 standard deviations plus 64 steps.

    Returns:
        The certificate.

    Raises:
        ParameterError: The variance or the shift is outside the range.
        CertificateError: An enclosure failed; no figure may be reported. This is a
            defect: please report the parameters.
    """
    if not Fraction(1, 1 << 20) <= noise_variance <= MAX_CERTIFIED_VARIANCE:
        raise ParameterError(
            f"noise_variance must lie between 2^-20 and {MAX_CERTIFIED_VARIANCE} to "
            f"be certified, got {float(noise_variance):.6g}",
            parameter="noise_variance",
            value=str(noise_variance),
            nearest=str(MAX_CERTIFIED_VARIANCE) if noise_variance > 1 else "2**-20",
        )
    variance = float(noise_variance)
    largest = math.floor(_MAX_SHIFT_STDDEVS * (math.sqrt(variance) + 1.0))
    if not 1 <= linf_sensitivity <= largest:
        raise ParameterError(
            f"linf_sensitivity must lie between 1 and {largest} at this variance, "
            f"got {linf_sensitivity}",
            parameter="linf_sensitivity",
            value=linf_sensitivity,
            nearest=str(min(max(linf_sensitivity, 1), largest)),
        )
    inner = _first_beyond(variance, (_TAIL_BITS + 1) * math.log(2.0))
    last = inner + 2 * linf_sensitivity
    # The rate at `last` sets the precision that the smallest examined tail needs.
    least_bits = math.ceil(_chernoff_rate(variance, last + 1) / math.log(2.0)) + 16
    bits = least_bits + _SPARE_BITS + _GUARD_BITS
    size = _first_beyond(variance, (least_bits + _SPARE_BITS) * math.log(2.0))
    low, high = tail_enclosures(noise_variance, size=size, bits=bits)
    tail_units = 2 * high[inner]
    if tail_units > 1 << (bits - _TAIL_BITS):
        raise CertificateError(
            f"the tail of Skellam noise of variance {noise_variance} beyond {inner} "
            f"was expected below 2^-{_TAIL_BITS}"
        )
    largest_units, largest_at = _largest_increment(
        low[: last + 1], high[: last + 1], bits
    )
    return ShiftCertificate(
        noise_variance=noise_variance,
        linf_sensitivity=linf_sensitivity,
        unit_gdp=_float_above(largest_units, bits),
        largest_at=largest_at,
        last_threshold=last,
        tail=_float_above(tail_units, bits),
    )


def tail_enclosures(
    noise_variance: Fraction, *, size: int, bits: int
) -> tuple[list[int], list[int]]:
    """Enclose the tail P(noise > t) of Skellam noise for t = 0 … size − 1.

    Args:
        noise_variance: Exact variance, grid steps squared.
        size: Number of explicit weights beyond the centre.
        bits: Fractional bits of the fixed-point numbers.

    Returns:
        Lower and upper bounds in units of 2^-bits, two lists of length `size`.

    Raises:
        CertificateError: The ratio at the last weight could not be bounded below 1.
    """
    one = 1 << bits
    ratios = _ratio_enclosures(noise_variance, size=size + 1, bits=bits)
    low, high = [one], [one]
    for ratio_low, ratio_high in ratios[:size]:
        low.append((low[-1] * ratio_low) >> bits)
        high.append(-((-high[-1] * ratio_high) >> bits))
    ratio_high = ratios[size][1]
    if ratio_high >= one:
        raise CertificateError("the ratio of Bessel functions reached 1")
    beyond = -((-high[-1] * ratio_high) // (one - ratio_high))
    # Sums from the outside inwards; entry t becomes the mass above t.
    above_low, above_high = [0] * size, [0] * size
    sum_low, sum_high = 0, beyond
    for index in range(size, 0, -1):
        sum_low += low[index]
        sum_high += high[index]
        above_low[index - 1], above_high[index - 1] = sum_low, sum_high
    total_low, total_high = one + 2 * sum_low, one + 2 * sum_high
    return (
        [(mass << bits) // total_high for mass in above_low],
        [-((-mass << bits) // total_low) for mass in above_high],
    )


def _ratio_enclosures(
    noise_variance: Fraction, *, size: int, bits: int
) -> list[tuple[int, int]]:
    """Enclose I_{k+1}(v)/I_k(v) for k = 0 … size − 1 in units of 2^-bits."""
    numerator, denominator = noise_variance.numerator, noise_variance.denominator
    one, square = 1 << bits, 1 << (2 * bits)
    # Each backward step shrinks the enclosure by the square of the ratio; start where
    # the product of the ratios falls below 2^-bits.
    start = size + _first_beyond(float(noise_variance), bits * math.log(2.0)) + 8
    low, high = 0, one
    step = (2 * denominator) << bits
    found: list[tuple[int, int]] = []
    for index in range(start, 0, -1):
        exact = index * step
        twice = exact // numerator
        low, high = (
            square // (twice + 1 + high),
            min(one, -(-square // (twice + low))),
        )
        if index <= size:
            found.append((low, high))
    found.reverse()
    return found


def _largest_increment(low: list[int], high: list[int], bits: int) -> tuple[int, int]:
    """Bound the largest increment and say where it is."""
    walk = _NormalWalk(bits)
    previous_low = 0
    largest, largest_at = 0, 0
    for threshold, (tail_low, tail_high) in enumerate(zip(low, high, strict=True)):
        radius = walk.move_to(tail_low, tail_high)
        upper, lower = walk.position + radius, walk.position - radius
        # By symmetry z(−1) = −z(0), so the central increment is twice z(0).
        increment = 2 * upper if threshold == 0 else upper - previous_low
        if increment > largest:
            largest, largest_at = increment, threshold
        previous_low = lower
    return largest, largest_at


class _NormalWalk:
    """A point on the line with enclosures of the normal tail and density there."""

    def __init__(self, bits: int) -> None:
        one = 1 << bits
        self._bits = bits
        self.position = 0  # exact
        self._tail = one >> 1  # Q(0) = 1/2, exact
        self._tail_error = 0
        # φ(0) = 1/√(2π); the root is exact to a unit, π to a few.
        self._density = math.isqrt((1 << (3 * bits)) // (2 * _pi(bits)))
        self._density_error = 4
        self._terms = _taylor_terms(bits)

    def move_to(self, tail_low: int, tail_high: int) -> int:
        """Move to the quantile of a tail; return the radius that encloses it."""
        bits = self._bits
        target = (tail_low + tail_high) >> 1
        while True:
            step, final = self._propose(target)
            self._advance(step)
            if final:
                break
        gap = max(abs(self._tail - tail_low), abs(self._tail - tail_high))
        gap += self._tail_error
        density = self._density - self._density_error
        if density <= 0:
            raise CertificateError("the normal density was lost in rounding")
        # Mean value theorem: within the radius the density stays above (1 − 2^-20)
        # of its value here, since position·radius + radius² is below 2^-20.
        radius = (gap << bits) // density
        radius += (radius >> 19) + 1
        if radius >> (bits - _MAX_RADIUS_BITS) or (abs(self.position) + radius) >> (
            bits + 16
        ):
            raise CertificateError(
                "a normal quantile could not be enclosed; too few bits of precision"
            )
        return radius

    def _propose(self, target: int) -> tuple[int, bool]:
        """Propose a step towards the quantile of `target`, and whether it is final."""
        bits = self._bits
        position = math.ldexp(self.position >> (bits - 64), -64)
        # ∫_0^h exp(−zx − x²/2) dx = (Q(z) − target)/φ(z) =: area, solved in floats.
        area = math.ldexp(((self._tail - target) << 64) // self._density, -64)
        limit = 0.5 / (position + 1.0)
        step = _solve_area(position, area, limit)
        final = step < limit
        mantissa = math.floor(math.ldexp(min(step, limit), 80))
        return mantissa << (bits - 80), final

    def _advance(self, step: int) -> None:
        """Carry tail and density over an exact step with position·step ≤ 1/2."""
        bits = self._bits
        linear = (self.position * step) >> bits
        square = (step * step) >> bits
        before, term = 0, 1 << bits
        ratio, integral = term, term
        for index in range(1, self._terms):
            # (n+1)·g_{n+1} = −z·g_n − g_{n−1}, each times its power of the step.
            before, term = (
                term,
                -((linear * term + square * before) >> bits) // index,
            )
            ratio += term
            integral += term // (index + 1)
        # Every term inherits at most half of its predecessors' errors and adds four
        # units, so each is off by at most 8 units. The remainder is below 2 units.
        series_error = 9 * self._terms + 2
        area = (step * integral) >> bits
        area_error = series_error + 2  # the step is below 1
        self._tail -= (self._density * area) >> bits
        self._tail_error += (
            ((self._density_error * (area + area_error)) >> bits)
            + ((self._density * area_error) >> bits)
            + 3
        )
        self._density_error = (
            ((self._density_error * (ratio + series_error)) >> bits)
            + ((self._density * series_error) >> bits)
            + 3
        )
        self._density = (self._density * ratio) >> bits
        self.position += step


def _solve_area(position: float, area: float, limit: float) -> float:
    """Solve ∫_0^h exp(−zx − x²/2) dx = area for h by Newton; at most `limit`."""
    if area <= 0.0:
        return 0.0
    step = min(area, limit)
    for _ in range(40):
        value = _area(position, step)
        slope = math.exp(-step * (position + 0.5 * step))
        change = (area - value) / slope
        step = min(max(step + change, 0.0), limit)
        if abs(change) <= 4e-16 * step:
            break
    return step


def _area(position: float, step: float) -> float:
    """Evaluate the integral of `_solve_area` by its series, in floats."""
    linear, square = position * step, step * step
    before, term, total = 0.0, 1.0, 1.0
    index = 1
    while abs(term) + abs(before) > 1e-18 * total:
        before, term = term, -(linear * term + square * before) / index
        total += term / (index + 1)
        index += 1
    return step * total


@functools.cache
def _taylor_terms(bits: int) -> int:
    """Number of Taylor terms whose remainder is below one unit, for bounded steps.

    With position·step ≤ 1/2 and step² ≤ 1/4 the terms are majorised by the recurrence
    below, and from the second index on they at least halve every two indices.
    """
    before, term, index = 0.0, 1.0, 1
    while max(before, term) > math.ldexp(1.0, -bits - 3):
        before, term = term, (0.5 * term + 0.25 * before) / index
        index += 1
    return index + 2


@functools.cache
def _pi(bits: int) -> int:
    """Return ⌊π·2^bits⌋ up to one unit, by Machin's formula."""
    guard = 16
    unit = 1 << (bits + guard)

    def arctan_of_inverse(inverse: int) -> int:
        power, total, index = unit // inverse, 0, 1
        while power:
            total += power // index if index % 4 == 1 else -(power // index)
            power //= inverse * inverse
            index += 2
        return total

    return (16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) >> guard


def _chernoff_rate(variance: float, threshold: float) -> float:
    """Return Chernoff's exponent: P(noise ≥ t) ≤ exp(−rate)."""
    return (
        threshold * math.asinh(threshold / variance)
        - math.hypot(threshold, variance)
        + variance
    )


def _first_beyond(variance: float, exponent: float) -> int:
    """Return an integer threshold whose Chernoff exponent is at least `exponent`."""
    high = 1
    while _chernoff_rate(variance, high) < exponent:
        high *= 2
    return bisect_left(
        range(high), exponent, high // 2, key=partial(_chernoff_rate, variance)
    )


def _float_above(units: int, bits: int) -> float:
    """Convert units of 2^-bits to a float that is not smaller."""
    return math.nextafter(float(Fraction(units, 1 << bits)), math.inf)
