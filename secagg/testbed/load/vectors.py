"""Inputs of a load test: a client's number determines its vector.

No two clients have the same one.  So a sum with an input twice, or without one of its
inputs, is detected.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

# The largest prime below 2^12: 65 535 clients stay below 2^28.
_PRIME: Final = 4093


def vector_of(number: int, dimension: int) -> npt.NDArray[np.int64]:
    """Return the vector of one client, shape (dimension,), entries below 2^12.

    Args:
        number: Of the client, counted from 1.
        dimension: Entries.
    """
    places = np.arange(1, dimension + 1, dtype=np.int64)
    return (number * places + number // _PRIME) % _PRIME


def expected_sum(numbers: Iterable[int], dimension: int) -> npt.NDArray[np.int64]:
    """Return the sum of the vectors of these clients, shape (dimension,)."""
    total = np.zeros(dimension, dtype=np.int64)
    for number in numbers:
        total += vector_of(number, dimension)
    return total
