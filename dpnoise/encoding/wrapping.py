"""Residues modulo m: into the group and back out of it.

* Residues are unsigned integers in [0, m), in the smallest of uint16, uint32, uint64.
* They become signed through `centre` only: z < m/2 stays, any other z becomes z − m.
  For even m the residue m/2 is −m/2.
* Wrapping around costs accuracy, never privacy.
* Sums are taken in 64 bits and reduced before they overflow. Adding residues in their
  own type is right by luck where m divides the type's range, and wrong elsewhere.

What this module does not do: it does not say how often a sum wraps around. That is part
of the forecast of a mechanism.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import InputError, ParameterError

MIN_MODULUS: Final = 2
"""Modulo 1 every sum is 0."""

MAX_MODULUS: Final = 1 << 62
"""Residues and their centred values fit int64 with room for one addition."""

_LARGEST_WORD: Final = (1 << 64) - 1
_WORDS: Final = (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64))

Residues = npt.NDArray[np.unsignedinteger]
"""Unsigned integers in [0, m), in the type of `residue_dtype`."""


def require_modulus(modulus: int) -> int:
    """Check a modulus and return it.

    Raises:
        ParameterError: Not an int in [2, 2^62].
    """
    kind: object = modulus
    if isinstance(kind, bool) or not isinstance(kind, int):
        raise ParameterError(
            f"modulus must be an int, got {type(kind).__name__}",
            parameter="modulus",
            value=modulus,
        )
    if not MIN_MODULUS <= modulus <= MAX_MODULUS:
        raise ParameterError(
            f"modulus must lie in [2, 2^62], got {modulus}",
            parameter="modulus",
            value=modulus,
            nearest="2" if modulus < MIN_MODULUS else "2^62",
        )
    return modulus


def residue_dtype(modulus: int) -> np.dtype[np.unsignedinteger]:
    """The smallest of uint16, uint32 and uint64 that holds [0, modulus).

    Raises:
        ParameterError: See `require_modulus`.
    """
    bits = (require_modulus(modulus) - 1).bit_length()
    return next(word for word in _WORDS if bits <= 8 * word.itemsize)


def wrap(values: npt.NDArray[np.int64], modulus: int) -> Residues:
    """Reduce signed integers modulo `modulus`.

    Args:
        values: Any int64 values, shape (dim,).
        modulus: m in [2, 2^62].

    Returns:
        Residues in [0, m), shape (dim,), in the type of `residue_dtype`.

    Raises:
        ParameterError: See `require_modulus`.
        InputError: `values` is not an int64 array.
    """
    dtype = residue_dtype(modulus)
    if values.dtype != np.int64:
        raise InputError(f"values must be an int64 array, got {values.dtype}")
    if modulus & (modulus - 1):
        return np.mod(values, np.int64(modulus)).astype(dtype)
    # In two's complement a mask reduces negative numbers as well.
    return (values & np.int64(modulus - 1)).astype(dtype)


def centre(residues: Residues, modulus: int) -> npt.NDArray[np.int64]:
    """Lift residues to the signed integers nearest zero.

    Args:
        residues: Unsigned integers in [0, modulus), shape (dim,).
        modulus: m in [2, 2^62].

    Returns:
        Integers in [−⌊m/2⌋, ⌈m/2⌉ − 1], shape (dim,).

    Raises:
        ParameterError: See `require_modulus`.
        InputError: Not unsigned integers, or one of them is not below the modulus.
    """
    require_modulus(modulus)
    if residues.dtype.kind != "u":
        raise InputError(f"residues must be unsigned integers, got {residues.dtype}")
    if residues.size and int(residues.max()) >= modulus:
        raise InputError(f"residues must lie below the modulus {modulus}")
    lifted = residues.astype(np.int64)
    if modulus & (modulus - 1):
        lifted -= modulus * (lifted >= (modulus + 1) // 2)
    else:
        # Move the sign bit of a b-bit number to the top and let it extend downwards.
        spare = np.int64(64 - (modulus.bit_length() - 1))
        lifted <<= spare
        lifted >>= spare
    return lifted


def sum_residues(residues: Residues, modulus: int) -> Residues:
    """Add up vectors of residues modulo `modulus`, whatever it is.

    Args:
        residues: One vector a row, shape (n, dim), in [0, modulus); n may be 0.
        modulus: m in [2, 2^62].

    Returns:
        The sum modulo m, shape (dim,), in the type of `residue_dtype`.

    Raises:
        ParameterError: See `require_modulus`.
        InputError: No matrix of unsigned integers, or one of them is not below the
            modulus.
    """
    dtype = residue_dtype(modulus)
    if residues.ndim != 2 or residues.dtype.kind != "u":  # noqa: PLR2004  # rows, columns
        raise InputError(
            "residues must be a matrix of unsigned integers, one vector a row, got "
            f"shape {residues.shape} of {residues.dtype}"
        )
    if residues.size and int(residues.max()) >= modulus:
        raise InputError(f"residues must lie below the modulus {modulus}")
    total = np.zeros(residues.shape[1], np.uint64)
    # So many rows beside what is carried over stay below 2^64.
    rows = _LARGEST_WORD // (modulus - 1) - 1
    for start in range(0, len(residues), rows):
        total += residues[start : start + rows].sum(axis=0, dtype=np.uint64)
        total %= np.uint64(modulus)
    return total.astype(dtype)
