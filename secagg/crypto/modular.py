"""Vectors over Z_m in the narrowest unsigned word.

Rule 1: a vector over Z_m is an unsigned array of shape (d,).  Its word has 16, 32 or 64
        bits, the narrowest that holds m - 1; entries are in [0, m).
Rule 2: for m = 2^b an *accumulator* may hold any word.  Since 2^b divides 2^w, the
        wrap-around of the word keeps the residue.  One AND at the end suffices.
Rule 3: for any other m an accumulator is kept below m by a conditional subtraction,
        never by a division.
Rule 4: a peer's vector is checked by `check_vector` before any other use.

There are no signed values here; centring belongs to the decoder.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

UnsignedArray: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

_WORDS: Final = (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64))

_MIN_MODULUS: Final = 2
MAX_MODULUS: Final = 1 << 62
"""Largest modulus: two residues then add without overflow even as signed words."""


class BadVectorError(ValueError):
    """A vector has the wrong length, type or entries for its modulus.

    If a peer sent it, the peer is at fault: refuse the vector, keep the session.
    """


def check_modulus(modulus: int) -> int:
    """Return the modulus if it is usable.

    Raises:
        ValueError: It lies outside [2, 2^62]; choose another one.
    """
    if not _MIN_MODULUS <= modulus <= MAX_MODULUS:
        raise ValueError(f"expected a modulus in [2, 2^62], not {modulus}")
    return modulus


def is_power_of_two(modulus: int) -> bool:
    """Return whether the modulus takes the fast path, m = 2^b."""
    return modulus & (modulus - 1) == 0


def bit_width(modulus: int) -> int:
    """Return ⌈log2 m⌉, the bits of one packed entry, in [1, 62]."""
    return (check_modulus(modulus) - 1).bit_length()


def word_dtype(modulus: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the word of vectors over Z_m: uint16, uint32 or uint64.

    Source:
        PROTOCOL §6.4: words of 2, 4 or 8 bytes for m up to 2^16, 2^32, 2^64.
    """
    bits = bit_width(modulus)
    return next(word for word in _WORDS if bits <= 8 * word.itemsize)


def zeros(dim: int, modulus: int) -> UnsignedArray:
    """Return the zero vector of a dimension, as an accumulator."""
    return np.zeros(dim, word_dtype(modulus))


def check_vector(vector: npt.NDArray[Any], modulus: int, dim: int) -> UnsignedArray:
    """Check a foreign vector, in one pass and without a copy.

    Args:
        vector: Should have shape (dim,), the word of the modulus, entries below it.
        modulus: m.
        dim: The dimension d that the session demands.

    Returns:
        The same array.

    Raises:
        BadVectorError: Anything differs; refuse the vector.
    """
    if vector.shape != (dim,):
        raise BadVectorError(f"expected shape ({dim},), not {vector.shape}")
    expected = word_dtype(modulus)
    if vector.dtype != expected:
        raise BadVectorError(f"expected words of type {expected}, not {vector.dtype}")
    if dim and int(vector.max()) >= modulus:
        raise BadVectorError(f"an entry is not below the modulus {modulus}")
    return vector


def add_into(accumulator: UnsignedArray, vector: UnsignedArray, modulus: int) -> None:
    """Add a vector to an accumulator modulo m, in place.

    Args:
        accumulator: Shape (d,), word of the modulus; below m unless m = 2^b.
        vector: Same shape and type; below m unless m = 2^b.
        modulus: m.
    """
    np.add(accumulator, vector, out=accumulator)
    if is_power_of_two(modulus):
        return
    word = accumulator.dtype.type(modulus)
    if _sum_fits_word(accumulator, modulus):
        # If the sum is below m, subtracting m wraps to a larger value.
        np.minimum(accumulator, accumulator - word, out=accumulator)
        return
    # The sum of two residues may need one bit more than the word has.  It wrapped
    # exactly if it is now smaller than an addend. Subtracting m, modulo the word, is
    # then correct as well.
    too_large = accumulator < vector
    np.logical_or(too_large, accumulator >= word, out=too_large)
    np.subtract(accumulator, word, out=accumulator, where=too_large)


def subtract_into(
    accumulator: UnsignedArray, vector: UnsignedArray, modulus: int
) -> None:
    """Subtract a vector from an accumulator modulo m, in place.

    Args:
        accumulator: Shape (d,), word of the modulus; below m unless m = 2^b.
        vector: Same shape and type; below m unless m = 2^b.
        modulus: m.
    """
    if is_power_of_two(modulus):
        np.subtract(accumulator, vector, out=accumulator)
        return
    word = accumulator.dtype.type(modulus)
    if _sum_fits_word(accumulator, modulus):
        # A negative difference wraps to a value larger than itself plus m.
        np.subtract(accumulator, vector, out=accumulator)
        np.minimum(accumulator, accumulator + word, out=accumulator)
        return
    borrowed = accumulator < vector
    np.subtract(accumulator, vector, out=accumulator)
    np.add(accumulator, word, out=accumulator, where=borrowed)


def reduce_in_place(accumulator: UnsignedArray, modulus: int) -> UnsignedArray:
    """Bring an accumulator into [0, m) and return it.

    Args:
        accumulator: Any words when m = 2^b; for other m it is below m already.
        modulus: m.
    """
    if is_power_of_two(modulus):
        mask = accumulator.dtype.type(modulus - 1)
        np.bitwise_and(accumulator, mask, out=accumulator)
    return accumulator


def _sum_fits_word(accumulator: UnsignedArray, modulus: int) -> bool:
    """Return whether two residues add without wrap-around."""
    return 2 * modulus <= 1 << (8 * accumulator.itemsize)
