"""One Shamir share in 34 bytes.

Rule 1: a secret of 32 bytes is 16 limbs of 16 bits, big-endian, limb 0 first; each limb
        is shared in the field of 65537 elements.
Rule 2: a share is 16 limb values as big-endian u16 and a big-endian u16 of flags. The
        one value that needs 17 bits, 65536, is stored as 0 with flag bit i set for limb
        i.
Rule 3: a flag over a limb that is not 0 is invalid.  Decoding refuses it, so that a
        share has one encoding.

A wrong share cannot be recognised by itself; the rebuilt secret is checked.

Source: PROTOCOL §7.1 and §7.2.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.prime_field import PRIME, FieldArray

SECRET_SIZE: Final = 32
LIMBS: Final = 16
SHARE_SIZE: Final = 2 * LIMBS + 2

_BIG_ENDIAN: Final = np.dtype(">u2")
_FLAG_BITS: Final = (1 << np.arange(LIMBS)).astype(np.uint16)


class BadShareError(ValueError):
    """The bytes are not an encoding of a share.

    Their sender is at fault; continue without that holder.
    """


def limbs_of(secrets: npt.NDArray[np.uint8]) -> FieldArray:
    """Split secrets into limbs: (..., 32) bytes to (..., 16) integers below 2^16."""
    return np.ascontiguousarray(secrets).view(_BIG_ENDIAN).astype(np.int64)


def secrets_of(limbs: FieldArray) -> npt.NDArray[np.uint8]:
    """Join limbs below 2^16 to secrets: (..., 16) integers to (..., 32) bytes."""
    return np.ascontiguousarray(limbs.astype(_BIG_ENDIAN)).view(np.uint8)


def encode_shares(values: FieldArray) -> npt.NDArray[np.uint8]:
    """Encode share values.

    Args:
        values: Field elements, shape (..., 16).

    Returns:
        Shape (..., 34).
    """
    words = np.empty((*values.shape[:-1], LIMBS + 1), _BIG_ENDIAN)
    wide = values == PRIME - 1
    # 65536 loses its 17th bit here, which leaves the 0 that rule 2 asks for.
    words[..., :LIMBS] = values.astype(np.uint16)
    words[..., LIMBS] = wide @ _FLAG_BITS
    return words.view(np.uint8)


def decode_shares(encoded: npt.NDArray[np.uint8]) -> FieldArray:
    """Decode shares and refuse any that is not canonical.

    Args:
        encoded: Shape (..., 34).

    Returns:
        Field elements, shape (..., 16).

    Raises:
        BadShareError: The last axis is not 34 bytes long, or a flag stands over a
            limb that is not 0.  Use `check_shares` first where one bad share must
            not spoil a batch.
    """
    words = _words(encoded)
    values = words[..., :LIMBS].astype(np.int64)
    # One limb in 65537 is flagged: handle the few alone.
    flat = encoded.reshape(-1, 1, SHARE_SIZE)
    rows, _, limbs = flagged_limbs(flat)
    values.reshape(-1, LIMBS)[rows, limbs] = PRIME - 1
    return values


def flagged_limbs(
    encoded: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Find the limbs of value 65536.

    Args:
        encoded: Shape (rows, columns, 34).

    Returns:
        Row, column and limb of each, as three arrays.

    Raises:
        BadShareError: As of `decode_shares`.
    """
    words = _words(encoded)
    rows, columns = np.nonzero(words[..., LIMBS])
    flags = _flag_matrix(words[rows, columns, LIMBS])
    which, limbs = np.nonzero(flags)
    rows, columns = rows[which], columns[which]
    if np.any(words[rows, columns, limbs]):  # R7.2-1
        raise BadShareError("a share has a flag over a limb that is not zero")
    return rows, columns, limbs


def check_shares(encoded: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return which shares are canonical.

    Args:
        encoded: Shape (..., 34).

    Returns:
        Shape (...): True if `decode_shares` would accept the share.

    Raises:
        BadShareError: The last axis is not 34 bytes long.
    """
    words = _words(encoded).reshape(-1, LIMBS + 1)
    canonical = np.ones(len(words), np.bool_)
    flagged = np.flatnonzero(words[:, LIMBS])
    chosen = words[flagged]
    broken = (chosen[:, :LIMBS] != 0) & _flag_matrix(chosen[:, LIMBS])
    canonical[flagged] = ~broken.any(axis=1)
    return canonical.reshape(encoded.shape[:-1])


def _words(encoded: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    if (
        encoded.dtype != np.uint8
        or encoded.ndim == 0
        or encoded.shape[-1] != SHARE_SIZE
    ):
        raise BadShareError(f"a share has {SHARE_SIZE} bytes")
    return np.ascontiguousarray(encoded).view(_BIG_ENDIAN)


def _flag_matrix(flags: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Spread flag words (k,) over limbs (k, 16)."""
    spread: npt.NDArray[np.bool_] = (flags[:, None] & _FLAG_BITS) != 0
    return spread
