"""Norms of float and integer vectors, with the direction of every error known.

* `squared_norm_bound` never returns less than the exact squared norm.
* `integer_squared_norm` is exact.
* Both work in blocks, so that the error of a sum does not grow with the dimension and
  no partial sum overflows.

Source: [Hig02] section 3.1: however
n products are added up, the relative error is at most n·u/(1 − n·u), u = 2^-53.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

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
