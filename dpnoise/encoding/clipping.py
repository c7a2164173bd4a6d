"""The boundary where a caller's vector enters: checked, then clipped.

Rule 1: Nothing but a one-dimensional vector of finite real numbers of the agreed length
        passes. An error names the argument and the position, never the entry.
Rule 2: A clipped vector is never longer than the bound, not even by a rounding error.
Rule 3: A vector within the bound comes back unchanged, except within 2^-40 of it.

The norm that privacy rests on is measured again in grid steps, after rotation and
scaling (`dpnoise.encoding.scaling`).  Of every norm here the direction of the error is
known:

* `squared_norm_bound` never returns less than the exact squared norm.
* `integer_squared_norm` is exact.
* Both work in blocks, so that the error of a sum does not grow with the dimension and
  no partial sum overflows.

Source: [Hig02] section 3.1: however n products are added up, the relative error is at
most n·u/(1 − n·u), u = 2^-53.
"""

import math
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import InputError, ParameterError

_BLOCK: Final = 4096
# 4096 products and one exactly rounded sum of blocks: below 4100·2^-53 < 2^-40.
_ENLARGEMENT: Final = 1.0 + 2.0**-40

MAX_INTEGER_ENTRY: Final = (1 << 25) + 1
"""Largest magnitude whose squares a block of 4096 can add up in 63 bits."""


def squared_norm_bound(values: npt.NDArray[np.float64]) -> float:
    """Bound the sum of squares of a vector from above.

    Args:
        values: Finite entries, shape (dim,), no larger than 2^500 in magnitude.

    Returns:
        A number at least the exact sum of squares, and at most about 2^-39 above it in
        relative terms, apart from squares that underflow.
    """
    whole = values.size - values.size % _BLOCK
    blocks = values[:whole].reshape(-1, _BLOCK)
    sums = np.einsum("ij,ij->i", blocks, blocks).tolist()
    rest = values[whole:]
    sums.append(float(np.einsum("i,i->", rest, rest)))
    # A square below 2^-1022 is off by 2^-1075 at most.
    underflow = math.ldexp(values.size, -1074) if values.any() else 0.0
    return math.nextafter(math.fsum(sums) * _ENLARGEMENT + underflow, math.inf)


def integer_squared_norm(values: npt.NDArray[np.int64]) -> int:
    """Add up the squares of a vector exactly.

    Args:
        values: Entries of magnitude at most `MAX_INTEGER_ENTRY`, shape (dim,).

    Returns:
        The exact sum of squares.
    """
    whole = values.size - values.size % _BLOCK
    blocks = values[:whole].reshape(-1, _BLOCK)
    rest = values[whole:]
    # (2^25 + 1)² · 4096 < 2^63: no block overflows; the blocks are Python integers.
    sums: list[int] = np.einsum("ij,ij->i", blocks, blocks).tolist()
    return sum(sums) + int(np.einsum("i,i->", rest, rest))


MIN_L2_CLIP: Final = 2.0**-500
"""Below this, products underflow and the bound of rule 2 would not be rigorous."""

MAX_L2_CLIP: Final = 2.0**500
"""Above this, squares overflow."""

# Integers and floats that float64 holds. A bool, complex, text, date or object does not
# mean a real, and longdouble would be narrowed without notice.
_ACCEPTED_KINDS: Final = "iuf"
_MAX_ITEMSIZE: Final = 8
# The power of two is a normal float up to here, and a product is faster than ldexp.
_FAST_EXPONENT: Final = 1000


def check_vector(
    vector: npt.ArrayLike, dim: int | None = None, *, name: str = "vector"
) -> npt.NDArray[np.float64]:
    """Check a caller's vector and copy it as float64.

    Args:
        vector: Array or sequence of real numbers, shape (dim,).
        dim: Length it must have, or None for any length of at least one.
        name: What the caller calls it, for the error.

    Returns:
        A fresh contiguous float64 array, shape (dim,).

    Raises:
        InputError: Not a vector of finite real numbers of this length. Correct the
            data; nothing has been used up yet.
    """
    try:
        array = np.asarray(vector)
    except ValueError:
        # The cause quotes entries; keep it out of the traceback.
        raise InputError(f"{name} is ragged, expected a flat vector") from None
    if array.dtype.kind not in _ACCEPTED_KINDS or array.dtype.itemsize > _MAX_ITEMSIZE:
        raise InputError(
            f"{name} must hold integers or floats of at most 64 bits, "
            f"got dtype {array.dtype}"
        )
    wanted = "one dimension" if dim is None else f"shape ({dim},)"
    if array.ndim != 1 or (dim is not None and array.size != dim):
        raise InputError(f"{name} must have {wanted}, got shape {array.shape}")
    if array.size == 0:
        raise InputError(f"{name} is empty, expected at least one entry")
    checked = array.astype(np.float64, order="C", copy=True)
    finite = np.isfinite(checked)
    if not finite.all():
        position = int(np.argmin(finite))
        kind = "NaN" if math.isnan(checked[position]) else "infinite"
        count = checked.size - int(np.count_nonzero(finite))
        raise InputError(
            f"{name} has {count} entries that are not finite; the first, "
            f"at position {position}, is {kind}"
        )
    return checked


def check_matrix(vectors: object, dim: int) -> None:
    """Refuse anything but one vector a row; the rows are left to `check_vector`.

    Args:
        vectors: What the caller passed.
        dim: Length of a row, for the error.

    Raises:
        InputError: It is no two-dimensional array.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2:  # noqa: PLR2004 - a matrix
        raise InputError(f"vectors must be a matrix of shape (n, {dim})")


def clip_l2(vector: npt.ArrayLike, l2_clip: float) -> npt.NDArray[np.float64]:
    """Shrink a vector to an L2 norm of at most `l2_clip`, keeping its direction.

    Args:
        vector: Finite real numbers, shape (dim,), in the caller's units.
        l2_clip: The largest norm, in the caller's units, in [2^-500, 2^500].

    Returns:
        A fresh float64 array, shape (dim,). Its exact norm is at most `l2_clip`; it is
        the input if that was shorter by a factor of 1 − 2^-40 or more.

    Raises:
        InputError: See `check_vector`.
        ParameterError: `l2_clip` is out of range.

    Checked by:
        tests/unit/dpnoise/encoding/test_clipping.py
    """
    limit = require_positive("l2_clip", l2_clip, MIN_L2_CLIP, MAX_L2_CLIP)
    values = check_vector(vector)
    peak = max(float(values.max()), -float(values.min()))
    if peak == 0.0:
        return values
    # Scaling by a power of two is exact and keeps the squares in range.
    exponent = math.frexp(peak)[1]
    if abs(exponent) <= _FAST_EXPONENT:
        unit = values * math.ldexp(1.0, -exponent)
    else:
        unit = np.ldexp(values, -exponent)
    norm = math.nextafter(math.sqrt(squared_norm_bound(unit)), math.inf)
    if Fraction(norm) * Fraction(2) ** exponent <= Fraction(limit):
        return values
    # Each product is off by 2^-53 in relative terms, the quotient too; 2^-48 pays for
    # both, so that ‖unit·factor‖ ≤ norm·factor·(1 + 2^-53) < limit.
    factor = limit / norm * (1.0 - 2.0**-48)
    unit *= factor
    # An entry far below the others may have been rounded up where floats are sparse.
    return np.copysign(np.minimum(np.abs(unit), np.abs(values)), values)


def require_positive(parameter: str, value: float, least: float, most: float) -> float:
    """Check a positive finite number and return it as a float.

    Raises:
        ParameterError: Not a real number, or outside [least, most].
    """
    kind: object = value
    if isinstance(kind, bool) or not isinstance(kind, int | float | Fraction):
        raise ParameterError(
            f"{parameter} must be a real number, got {type(kind).__name__}",
            parameter=parameter,
            value=value,
        )
    # Written so that NaN fails too.
    if not least <= value <= most:
        # NaN is nearest to nothing.
        is_nan = isinstance(kind, float) and math.isnan(kind)
        nearest = None if is_nan else (least if value < least else most)
        raise ParameterError(
            f"{parameter} must lie in [{least:g}, {most:g}], got {value}",
            parameter=parameter,
            value=value,
            nearest=None if nearest is None else repr(nearest),
        )
    return float(value)
