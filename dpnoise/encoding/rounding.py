"""From fixed point to integers: three ways to round, each with exact probabilities.

* A coordinate k + f/2^32 becomes k + 1 with probability f/2^32 exactly: a uniform
  32-bit word is compared with the integer f. No float is compared with anything.
* Coordinate j of attempt a reads word `start + a·dim + j` of the stream, so that
  rounding is reproducible whatever the blocks.
* Conditional and truncating rounding keep a hard norm bound, checked in exact
  integers. They are biased: conditional rounding prefers short vectors, truncation
  shrinks every coordinate. Stochastic rounding is unbiased and has no hard bound.

What this module does not do: it adds no noise, and claims no privacy for the bits of
rounding. What the rounding means for privacy is the accountant's business.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.encoding.clipping import integer_squared_norm, require_positive
from dpnoise.encoding.scaling import FRACTIONAL_BITS, FixedPointVector
from dpnoise.errors import ParameterError
from dpnoise.samplers.bit_source import PositionedBits

MAX_ROUNDING_ATTEMPTS: Final = 64
"""At an acceptance probability of 0.39 all of them fail once in 10^14 vectors; then
truncation, which is always inside the ball, takes over."""

_BLOCK: Final = 1 << 16
_FRACTION: Final = np.int64((1 << FRACTIONAL_BITS) - 1)
_SHIFT: Final = np.int64(FRACTIONAL_BITS)


def round_stochastic(
    fixed: FixedPointVector, bits: PositionedBits, *, start: int = 0
) -> npt.NDArray[np.int64]:
    """Round every coordinate up or down at random, without bias.

    Args:
        fixed: Vector in fixed point, shape (dim,).
        bits: Stream of secret random bits of its own.
        start: First 32-bit word of the stream to use.

    Returns:
        Integers, shape (dim,), in grid steps; their expectation is `fixed`.

    Source:
        [Bao22] Algorithm 4 lines 3 to 9; [Aga21] section 4.
    """
    rounded = np.empty(fixed.dim, np.int64)
    for low in range(0, fixed.dim, _BLOCK):
        part = fixed.values[low : low + _BLOCK]
        words = bits.uint32(start + low, part.size)
        up = words < (part & _FRACTION).astype(np.uint32)
        # The arithmetic shift is a floor, for negative numbers too.
        np.add(part >> _SHIFT, up, out=rounded[low : low + part.size])
    return rounded


def round_toward_zero(fixed: FixedPointVector) -> npt.NDArray[np.int64]:
    """Drop the fraction of every coordinate; no norm ever grows.

    Returns:
        Integers, shape (dim,), in grid steps.
    """
    toward_zero = (fixed.values >> np.int64(63)) & _FRACTION
    return (fixed.values + toward_zero) >> _SHIFT


def round_conditional(
    fixed: FixedPointVector, bits: PositionedBits, max_squared_norm: int
) -> npt.NDArray[np.int64]:
    """Repeat stochastic rounding until the result lies inside a ball.

    Args:
        fixed: Vector in fixed point, shape (dim,), itself inside the ball.
        bits: Stream of secret random bits of its own.
        max_squared_norm: Squared radius in grid steps squared, see
            `conditional_squared_bound`.

    Returns:
        Integers, shape (dim,), with exact squared norm at most `max_squared_norm`.

    Raises:
        ParameterError: Not even the truncated vector fits: the bound does not belong
            to the norm that the vector was clipped to.

    Source:
        [Aga21] section 4, conditional rounding (Prop. 4.2); the fallback after 64
        attempts is ours.
    """
    for attempt in range(MAX_ROUNDING_ATTEMPTS):
        rounded = round_stochastic(fixed, bits, start=attempt * fixed.dim)
        if integer_squared_norm(rounded) <= max_squared_norm:
            return rounded
    truncated = round_toward_zero(fixed)
    if integer_squared_norm(truncated) > max_squared_norm:
        raise ParameterError(
            "max_squared_norm is below the squared norm of the vector itself; "
            "derive it from the clip with conditional_squared_bound",
            parameter="max_squared_norm",
            value=max_squared_norm,
        )
    return truncated


def conditional_norm_bound(
    l2_clip_steps: float, dim: int, rounding_bias: float
) -> float:
    """Norm bound that stochastic rounding meets with probability 1 − β or more.

    Args:
        l2_clip_steps: Norm bound D before rounding, in grid steps, positive.
        dim: Number of coordinates d, at least 1.
        rounding_bias: β in [0, 1). Zero gives the bound that every rounding meets.

    Returns:
        √min{(D + √d)², D² + d/4 + √(2·ln(1/β))·(D + √d/2)}, in grid steps.

    Raises:
        ParameterError: An argument is out of range.

    Source:
        [Aga21] Proposition 4.2. All terms stand under the square root, and it is √d/2;
        [Bao22] Eq. (6) prints √(d/2).
    """
    norm = require_positive("l2_clip_steps", l2_clip_steps, 2.0**-500, 2.0**200)
    root = math.sqrt(require_positive("dim", dim, 1, 2.0**48))
    always = (norm + root) ** 2
    if rounding_bias == 0:
        return math.sqrt(always)
    bias = require_positive("rounding_bias", rounding_bias, 2.0**-1000, 1 - 2.0**-53)
    spread = math.sqrt(-2.0 * math.log(bias)) * (norm + root / 2)
    return math.sqrt(min(always, norm * norm + dim / 4 + spread))


def conditional_squared_bound(
    l2_clip_steps: float, dim: int, rounding_bias: float
) -> int:
    """The largest integer squared norm within `conditional_norm_bound`.

    Rounded vectors have integer squared norms, so the square root of this number is
    their exact L2 sensitivity; tell that to the accountant.

    Returns:
        ⌊bound²⌋, in grid steps squared, never below ⌊l2_clip_steps²⌋.

    Raises:
        ParameterError: An argument is out of range.
    """
    bound = conditional_norm_bound(l2_clip_steps, dim, rounding_bias)
    return math.floor(bound * bound)
