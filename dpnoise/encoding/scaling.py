"""From floats to fixed point: the integers on which every privacy claim rests.

* The input is the rotated vector times `scale_factor`, in grid steps. The result is an
  integer vector in units of 2^-32 grid steps.
* Conversion truncates towards zero: no coordinate ever grows, and every float64 of
  magnitude up to 2^25 is truncated exactly.
* The squared norm of the result, in exact arithmetic, is at most the bound, and no
  coordinate exceeds the coordinate bound. Rotation and scaling may have lost a few
  bits; whatever they did, the check comes after them.
* Entries are secret: a representation shows the length only.

From fixed point to integers: three ways to round, each with exact probabilities.

* A coordinate k + f/2^32 becomes k + 1 with probability f/2^32 exactly: a uniform
  32-bit word is compared with the integer f. No float is compared with anything.
* Coordinate j of attempt a reads word `start + a·dim + j` of the stream, so that
  rounding is reproducible whatever the blocks.
* Conditional and truncating rounding keep a hard norm bound, checked in exact
  integers. They are biased: conditional rounding prefers short vectors, truncation
  shrinks every coordinate. Stochastic rounding is unbiased and has no hard bound.

It adds no noise, and claims no privacy for the bits of
rounding. What the rounding means for privacy is the accountant's business.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.encoding.clipping import (
    check_vector,
    integer_squared_norm,
    require_positive,
    squared_norm_bound,
)
from dpnoise.errors import CertificateError, ParameterError
from dpnoise.samplers.bit_source import BitSource

FRACTIONAL_BITS: Final = 32
"""Bits after the binary point: one 32-bit word rounds a coordinate without error."""

MAX_COORDINATE_BOUND: Final = 1 << 25
"""Keeps sums of squares of 4096 rounded coordinates inside 63 bits."""

BOUND_GRID: Final = 1 << 12
"""Bounds on coordinates are multiples of 1/4096: exact in floats and in fixed point."""

_DEVIATIONS: Final = 6.0
_SHRINK: Final = 1.0 - 1e-9
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FixedPointVector:
    """Coordinates in units of 2^-fractional_bits grid steps.

    Attributes:
        values: Integers, shape (dim,), read-only.
        fractional_bits: Always 32; named so that no caller has to know.
    """

    values: npt.NDArray[np.int64]
    fractional_bits: int = FRACTIONAL_BITS

    def __post_init__(self) -> None:
        """Check the type and protect the entries from being written to."""
        if self.values.dtype != np.int64 or self.values.ndim != 1:
            raise ParameterError(
                "values must be a one-dimensional int64 array, "
                f"got {self.values.dtype} of shape {self.values.shape}",
                parameter="values",
            )
        if self.fractional_bits != FRACTIONAL_BITS:
            raise ParameterError(
                f"fractional_bits must be {FRACTIONAL_BITS}",
                parameter="fractional_bits",
                value=self.fractional_bits,
                nearest=str(FRACTIONAL_BITS),
            )
        self.values.setflags(write=False)

    def __repr__(self) -> str:
        return f"FixedPointVector(dim={self.values.size}, entries=<redacted>)"

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.values.size


def natural_coordinate_cap(
    norm: float, *, dim: int, flatness: float | None
) -> Fraction:
    """Return a bound on coordinates that a rotated vector practically never reaches.

    A larger bound would gain nothing and cost noise: where a grid is coarse, the loss
    of a coordinate grows faster than its square.

    Args:
        norm: Norm of the scaled vector, grid steps.
        dim: Coordinates after rotation.
        flatness: The rotation's ρ, or None without a rotation.

    Returns:
        Six standard deviations of a rotated coordinate, which a normal coordinate
        exceeds once in 5·10^8 and that of the worst vector once in 3·10^7; or the
        norm, where that is smaller or nothing spreads it. Rounded up: to a multiple of
        1/4096 if at most 1, else to an integer.
    """
    cap = norm
    if flatness is not None:
        cap = min(cap, _DEVIATIONS * norm * math.sqrt(flatness / dim))
    grid = BOUND_GRID if cap <= 1.0 else 1
    return Fraction(math.ceil(grid * cap), grid)


def to_fixed_point(
    scaled: npt.NDArray[np.float64],
    *,
    max_squared_norm: float,
    coordinate_bound: float,
) -> FixedPointVector:
    """Clamp, truncate to 32 fractional bits, and verify the norm.

    Args:
        scaled: Rotated vector times scale factor, in grid steps, shape (dim,).
        max_squared_norm: Largest squared L2 norm, in grid steps squared: the number
            that the accountant is told. In [2^-500, 2^500].
        coordinate_bound: Largest magnitude of a coordinate in grid steps, a multiple
            of 2^-12 in [2^-12, 2^25].

    Returns:
        A vector g with |g_j| ≤ coordinate_bound and Σ g_j² ≤ max_squared_norm exactly
        (in grid steps), no coordinate of which is larger than the input's. A vector
        whose norm is above the bound, or within 2^-39 of it, is shrunk to
        1 − 10^-9 of the bound.

    Raises:
        InputError: `scaled` is no vector of finite numbers.
        ParameterError: A bound is out of range.
        CertificateError: The norm could not be verified. This is a defect.

    Checked by:
        tests/unit/dpnoise/encoding/test_scaling.py
    """
    limit = require_positive("max_squared_norm", max_squared_norm, 2.0**-500, 2.0**500)
    cap = require_positive(
        "coordinate_bound", coordinate_bound, 1.0 / BOUND_GRID, MAX_COORDINATE_BOUND
    )
    if not (cap * BOUND_GRID).is_integer():
        raise ParameterError.of(
            "coordinate_bound",
            cap,
            f"must be a multiple of 1/{BOUND_GRID}",
            nearest=repr(math.floor(cap * BOUND_GRID) / BOUND_GRID),
        )
    steps = check_vector(scaled, name="scaled")
    np.clip(steps, -cap, cap, out=steps)
    limit_units = math.ldexp(limit, 2 * FRACTIONAL_BITS)
    for _ in range(_ATTEMPTS):
        # Both operations are exact: below 2^57 every truncated float is an integer that
        # float64 and int64 hold alike.
        units = steps * float(1 << FRACTIONAL_BITS)
        np.trunc(units, out=units)
        bound = squared_norm_bound(units)
        if bound <= limit_units:
            return FixedPointVector(units.astype(np.int64))
        # Measured before truncation: on very short vectors the truncated norm can be
        # below the bound's reach and yet not move when the vector shrinks a little.
        full = squared_norm_bound(steps * float(1 << FRACTIONAL_BITS))
        # Shrinking can only make magnitudes smaller, so the clamp still holds.
        steps *= math.sqrt(limit_units / full) * _SHRINK
    raise CertificateError(
        "the squared norm of an encoded vector could not be brought below its bound; "
        "this is a defect of dpnoise, please report it"
    )


MAX_ROUNDING_ATTEMPTS: Final = 64
"""At an acceptance probability of 0.39 all of them fail once in 10^14 vectors; then
truncation, which is always inside the ball, takes over."""

_BLOCK: Final = 1 << 16
_FRACTION: Final = np.int64((1 << FRACTIONAL_BITS) - 1)
_SHIFT: Final = np.int64(FRACTIONAL_BITS)


def round_stochastic(
    fixed: FixedPointVector, bits: BitSource, *, start: int = 0
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
    fixed: FixedPointVector, bits: BitSource, max_squared_norm: int
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
