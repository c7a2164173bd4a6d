"""Additive shares of a vector, a seed and a difference, and their sums.

Rule 1: the seed's share is its expansion (`secagg.crypto.prg`) under a key that covers
        the leader's session id. The other share is the vector minus it, modulo m. Each
        alone is pseudorandom, whatever the vector is.
Rule 2: a sum needs memory O(d), never O(n·d).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from secagg.crypto import key_derivation as kdf
from secagg.crypto.modular import UnsignedArray, add_into, reduce_in_place, zeros
from secagg.crypto.prg import Mask, add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.packing import chunks, unpack
from secagg.protocol.parameters import ProtocolParameters

_ADDED: Final = 1
_SUBTRACTED: Final = -1


def leader_share(
    residues: UnsignedArray,
    seed: SecretBytes,
    *,
    session_id: bytes,
    parameters: ProtocolParameters,
) -> UnsignedArray:
    """Return the leader's share: the vector minus the expansion of the seed.

    Args:
        residues: The encoded vector, shape (dimension,), entries below m.
        seed: 32 uniform bytes of this client, for this session alone.
        session_id: Id of the leader's session.
        parameters: Parameters of the session.

    Returns:
        Residues of shape (dimension,).
    """
    share = residues.copy()
    mask = _mask(seed, _SUBTRACTED, session_id, parameters)
    add_masks(share, (mask,), parameters.modulus)
    return share


def sum_of_seeds(
    seeds: Sequence[SecretBytes], *, session_id: bytes, parameters: ProtocolParameters
) -> UnsignedArray:
    """Expand the helper's shares and add them up.

    Args:
        seeds: Seeds of the clients in the set.
        session_id: Id of the leader's session.
        parameters: Parameters of the session.

    Returns:
        Residues of shape (dimension,).
    """
    total = zeros(parameters.dimension, parameters.modulus)
    masks = [_mask(seed, _ADDED, session_id, parameters) for seed in seeds]
    add_masks(total, masks, parameters.modulus)
    return total


def sum_of_uploads(
    reads: Iterable[Callable[[int, int], bytes]], parameters: ProtocolParameters
) -> UnsignedArray:
    """Add up the leader's shares.

    Args:
        reads: For each client in the set, a function that returns bytes of its packed
            share, given offset and size.
        parameters: Parameters of the session.

    Returns:
        Residues of shape (dimension,).
    """
    modulus, bits = parameters.modulus, parameters.bits
    total = zeros(parameters.dimension, modulus)
    for read in reads:
        for chunk in chunks(parameters.dimension, bits):
            target = total[chunk.start : chunk.start + chunk.values]
            packed = read(chunk.offset, chunk.nbytes)
            add_into(target, unpack(packed, chunk.values, bits, modulus), modulus)
    return reduce_in_place(total, modulus)


def _mask(
    seed: SecretBytes, sign: int, session_id: bytes, parameters: ProtocolParameters
) -> Mask:
    key, iv = kdf.additive_share_key(
        seed, session_id=session_id, suite=parameters.suite
    )
    return Mask(key, iv, sign)
