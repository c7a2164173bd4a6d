"""The clip of the published Skellam mixture mechanism: the norm after rounding.

Stochastic rounding takes x = k + f (k an integer, 0 ≤ f < 1) to k or k + 1. The
expected square of the result is x² + f − f² = k² + (2k + 1)·f. These are the squares of
the integers, joined by straight lines. The *mixture norm* of a vector is the sum of
that over its coordinates.

* The result g satisfies Σ_j (g_j² + f_j − f_j²) ≤ mixture_norm_bound and
  ⌈|g_j|⌉ ≤ linf_bound, both checked in exact integers on the fixed-point vector.
* The mixture norm grows with every |g_j|, so truncation to fixed point is safe.

What this module does not do: it is not needed by the default mechanism, which clips the
plain L2 norm. For |x| < 1 the mixture norm is |x|, so at coarse grids this clip shrinks
a spread-out vector far more than an L2 clip would.
"""

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.checks import check_integer
from dpnoise.encoding.clipping import (
    check_vector,
    integer_squared_norm,
    require_positive,
)
from dpnoise.encoding.scaling import FRACTIONAL_BITS, FixedPointVector
from dpnoise.errors import CertificateError

MAX_LINF_BOUND: Final = 1 << 24
"""Keeps the exact sums of `mixture_norm` inside 63 bits."""

# Larger magnitudes would overflow when squared; they end at linf_bound or near zero.
_CEILING: Final = 2.0**200
_BLOCK: Final = 4096
_HALF_BITS: Final = np.int64(16)
_HALF_MASK: Final = np.int64((1 << 16) - 1)
_FRACTION: Final = np.int64((1 << FRACTIONAL_BITS) - 1)
_SHRINKS: Final = (1.0, 1.0 - 2.0**-36, 1.0 - 2.0**-20)


def clip_mixture(
    scaled: npt.ArrayLike, *, mixture_norm_bound: float, linf_bound: int
) -> FixedPointVector:
    """Clip a vector in grid steps to a mixture norm and to a coordinate bound.

    Args:
        scaled: Rotated vector times scale factor, in grid steps, shape (dim,).
        mixture_norm_bound: c > 0, in grid steps squared, in [2^-500, 2^500].
        linf_bound: Δ∞, an integer number of grid steps in [1, 2^24].

    Returns:
        The clipped vector in fixed point, with `mixture_norm` at most c and no
        magnitude above Δ∞.

    Raises:
        InputError: `scaled` is no vector of finite numbers.
        ParameterError: A bound is out of range.
        CertificateError: The bound could not be verified. This is a defect.

    Source:
        [Bao22] Algorithm 5, with the corrections listed in SOURCES.md: line 3 subtracts
        the squared fraction (Eq. 4), line 7 divides v − k², line 10 divides by |g|.

    Checked by:
        tests/unit/dpnoise/encoding/test_mixture_clipping.py
    """
    limit = Fraction(
        require_positive("mixture_norm_bound", mixture_norm_bound, 2.0**-500, 2.0**500)
    )
    cap = check_integer("linf_bound", linf_bound, 1, MAX_LINF_BOUND)
    values = check_vector(scaled, name="scaled")
    magnitudes = np.minimum(np.abs(values), _CEILING)
    whole = np.floor(magnitudes)
    # [Bao22] Algorithm 5 line 3, as k² + (2k + 1)·f, which does not cancel.
    helpers = whole * whole + (2.0 * whole + 1.0) * (magnitudes - whole)
    # Line 4. Each attempt leaves more room for the rounding of the float arithmetic.
    ratio = min(1.0, float(limit) / max(float(helpers.sum()), 2.0**-1000))
    for shrink in _SHRINKS:
        if ratio < 1.0 or shrink < 1.0:
            scaled_helpers = helpers * (ratio * shrink)
            whole = np.floor(np.sqrt(scaled_helpers))
            # Lines 5 to 8: the inverse of the piecewise linear square.
            clipped = whole + (scaled_helpers - whole * whole) / (2.0 * whole + 1.0)
        else:
            clipped = magnitudes
        np.minimum(clipped, cap, out=clipped)  # line 10
        units = np.trunc(np.maximum(clipped, 0.0) * float(1 << FRACTIONAL_BITS))
        fixed = FixedPointVector(np.copysign(units, values).astype(np.int64))
        if mixture_norm(fixed) <= limit:
            return fixed
    raise CertificateError(
        "the mixture norm of an encoded vector could not be brought below its bound; "
        "this is a defect of dpnoise, please report it"
    )


def mixture_norm(fixed: FixedPointVector) -> Fraction:
    """Add up x² + f − f² over all coordinates, exactly.

    Args:
        fixed: Vector in fixed point, magnitudes up to 2^24 grid steps.

    Returns:
        The expected squared L2 norm after stochastic rounding, in grid steps squared.

    Source:
        [Bao22] Eq. (4).
    """
    magnitudes = np.abs(fixed.values)
    whole = magnitudes >> np.int64(FRACTIONAL_BITS)
    fractions = magnitudes & _FRACTION
    slopes = 2 * whole + 1
    # Halves of the fraction keep each block below (2^25 + 1)·2^16·4096 < 2^54.
    low = _dot(slopes, fractions & _HALF_MASK)
    high = _dot(slopes, fractions >> _HALF_BITS)
    linear = Fraction((high << int(_HALF_BITS)) + low, 1 << FRACTIONAL_BITS)
    return integer_squared_norm(whole) + linear


def _dot(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> int:
    """Exact scalar product, block by block."""
    return sum(
        int(np.dot(left[low : low + _BLOCK], right[low : low + _BLOCK]))
        for low in range(0, left.size, _BLOCK)
    )
