"""Enclosures of probability weights, and the exact rounding of their tail sums.

* Numbers are integers in fixed point, always in pairs: a lower end rounded down and
  an upper end rounded up. No float takes part.
* What is rounded is the true, untruncated cumulative distribution function. The
  threshold of a cell is `⌊2^256 · P⌋` of its tail probability P. Mathematics defines
  that number, so any correct implementation finds the same one.
* If an enclosure is too wide to decide a floor, the caller repeats the computation
  with more bits. Nothing is ever rounded by guess.

What this module does not do: it knows no particular law. Laws supply `Weights`.
"""

import decimal
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.errors import CertificateError

CDF_BITS: Final = 256
"""Bits of a threshold: 256 keep the rounding error of a table of half a million
cells below 2^-237, far beneath the tail that a table leaves out."""

TAIL_BITS: Final = 136
"""A table omits less than 2^-136 of probability (half of it on each side). With 2^48
draws that is 2^-88, which no accountant can tell from zero."""

SUMMATION_BITS: Final = CDF_BITS + 64
"""Laws list their weights until less than 2^-320 is left, so that the unlisted rest
does not blur the last bit of a threshold."""

# Working precisions tried in turn. 384 bits decide all but about 2^-40 of all tables.
_PRECISIONS: Final = (384, 512, 1024)


@dataclass(frozen=True, slots=True)
class OneSide:
    """Weights of the cells next to the centre, outwards: 1 away, 2 away, ...

    Args:
        lower: Lower ends, in units of 2^-precision of the law's own scale.
        upper: Upper ends, same length.
        rest: Upper bound of the sum of all weights further out.
    """

    lower: list[int]
    upper: list[int]
    rest: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A law up to a common factor: the weight of its centre cell and of both sides.

    Args:
        centre: The outcome in the middle.
        centre_lower: Lower end of its weight.
        centre_upper: Upper end of its weight.
        right: The outcomes above the centre.
        left: The outcomes below the centre, or None if the law is symmetric.
    """

    centre: int
    centre_lower: int
    centre_upper: int
    right: OneSide
    left: OneSide | None = None


@dataclass(frozen=True, slots=True)
class Tails:
    """Rounded tail probabilities of a law, from the centre outwards.

    Args:
        centre: The outcome in the middle.
        right: `right[j] = ⌊2^256 · P(X > centre + j)⌋`.
        left: `left[j] = ⌊2^256 · P(X < centre − j)⌋`.
        outside: Upper bound of the probability beyond the last cell of either side,
            in units of 2^-256.
    """

    centre: int
    right: list[int]
    left: list[int]
    outside: int


def rounded_tails(name: str, law: Callable[[int], Weights]) -> Tails:
    """Round every tail probability of a law down to 256 bits, exactly.

    Args:
        name: The law's name, for errors.
        law: Returns enclosures of the weights at a given precision in bits, listed
            until the unlisted rest is below 2^-320 of the total.

    Returns:
        The tails of both sides, each ended by the first cell beyond which less than
        2^-137 is left.

    Raises:
        CertificateError: Even 1024 bits leave a floor undecided, or the weights end
            too early. No parameter a caller may pass is known to lead there; please
            report it.
    """
    for precision in _PRECISIONS:
        weights = law(precision)
        sides = (weights.right, weights.right if weights.left is None else weights.left)
        total_lower = weights.centre_lower + sum(sum(side.lower) for side in sides)
        total_upper = weights.centre_upper + sum(
            sum(side.upper) + side.rest for side in sides
        )
        right = _one_sided_tails(weights.right, total_lower, total_upper)
        if weights.left is None:
            left = right
        else:
            left = _one_sided_tails(weights.left, total_lower, total_upper)
        if right is not None and left is not None:
            outside = right[1] + left[1]
            return Tails(weights.centre, right[0], left[0], outside)
    raise CertificateError(
        f"the thresholds of {name} are undecided at {_PRECISIONS[-1]} bits; "
        "this is a defect of dpnoise, please report the parameters"
    )


def _one_sided_tails(
    side: OneSide, total_lower: int, total_upper: int
) -> tuple[list[int], int] | None:
    """Tails of one side and a bound of what lies beyond, or None if undecided."""
    cut = 1 << (CDF_BITS - TAIL_BITS - 1)
    tails: list[int] = []
    beyond_last = -1
    # Outside inwards, so that small numbers are added first and nothing cancels.
    sum_lower, sum_upper = 0, side.rest
    for index in range(len(side.lower), -1, -1):
        floor_upper = (sum_upper << CDF_BITS) // total_lower
        if floor_upper >= cut:
            if beyond_last < 0:
                return None  # the listed weights do not reach into the tail
            floor_lower = (sum_lower << CDF_BITS) // total_upper
            if floor_lower != floor_upper:
                return None
            tails.append(floor_lower)
        else:
            beyond_last = floor_upper + 1
        if index:
            sum_lower += side.lower[index - 1]
            sum_upper += side.upper[index - 1]
    tails.reverse()
    return tails, beyond_last


def geometric_rest(weight: int, ratio: int, precision: int) -> int:
    """Bound the sum of all weights beyond one, when ratios of neighbours only fall.

    Args:
        weight: Upper end of the outermost listed weight.
        ratio: Upper end of the ratio of the next weight to it, times 2^precision.
        precision: Bits after the binary point.

    Returns:
        Upper bound of `weight · (ratio + ratio² + ...)`.

    Raises:
        CertificateError: The ratio may be one or more, which bounds nothing.
    """
    one = 1 << precision
    if ratio >= one:
        raise CertificateError(
            "the outermost weights of a law were not shown to fall; "
            "this is a defect of dpnoise, please report the parameters"
        )
    return weight * ratio // (one - ratio) + 1


def exp_enclosure(exponent: Fraction, precision: int) -> tuple[int, int]:
    """Enclose e^(−exponent) in units of 2^-precision.

    Args:
        exponent: Non-negative rational number.
        precision: Bits after the binary point.

    Returns:
        Integers `lower ≤ 2^precision · e^(−exponent) ≤ upper`, at most 3 apart.

    Source:
        The decimal arithmetic specification makes `exp` correctly rounded; one unit in
        the last place is given away at either end all the same.
    """
    digits = precision // 3 + 10  # log10(2) < 1/3: more digits than the result has
    down = decimal.Context(prec=digits, rounding=decimal.ROUND_FLOOR)
    up = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    numerator = decimal.Decimal(-exponent.numerator)
    denominator = decimal.Decimal(exponent.denominator)
    lower = down.next_minus(down.exp(down.divide(numerator, denominator)))
    upper = up.next_plus(up.exp(up.divide(numerator, denominator)))
    scaled = Fraction(lower) * (1 << precision), Fraction(upper) * (1 << precision)
    return scaled[0].__floor__(), min(scaled[1].__ceil__(), 1 << precision)
