"""The messages that only sessions between two aggregators have, and their shares.

The existing calls carry them as uploads and blobs, in canonical encoding. A decoder
returns a value or raises BAD_ENCODING, for any bytes.

The additive shares of a vector are a seed and a difference:

Rule 1: the seed's share is its expansion (`secagg.crypto.prg`) under a key that covers
        the leader's session id. The other share is the vector minus it, modulo m. Each
        alone is pseudorandom, whatever the vector is.
Rule 2: a sum needs memory O(d), never O(n·d).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

from secagg.crypto import key_derivation as kdf
from secagg.crypto.canonical import CanonicalEncodingError, Reader, Writer
from secagg.crypto.entropy import SEED_SIZE
from secagg.crypto.modular import UnsignedArray, add_into, reduce_in_place, zeros
from secagg.crypto.prg import Mask, add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IDENTITY_SIZE, SIGNATURE_SIZE
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.protocol.packing import chunks, unpack
from secagg.protocol.parameters import MAX_CLIENTS, ProtocolParameters
from secagg.wire.calls import MAX_DESCRIPTOR_BYTES, SESSION_ID_BYTES, refuse


@dataclass(frozen=True, slots=True)
class HelperShare:
    """A client's share for the helper; client to helper.

    Attributes:
        seed: Seed from which the share is expanded.
        session_id: Id of the leader's session that the share belongs to.
    """

    SIZE = SEED_SIZE + SESSION_ID_BYTES

    seed: SecretBytes
    session_id: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.seed.reveal() + self.session_id

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        if len(data) != cls.SIZE:
            raise refuse(f"a helper's share has {cls.SIZE} bytes, not {len(data)}")
        return cls(SecretBytes(data[:SEED_SIZE]), data[SEED_SIZE:])


@dataclass(frozen=True, slots=True)
class AcceptedShares:
    """The clients whose shares the leader holds; leader to helper, once.

    Attributes:
        offer: The leader's session descriptor, as its clients have received it.
        names: Their names in the order of their bytes, without duplicates.
    """

    offer: bytes
    names: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().blob(self.offer)
        write_names(writer, self.names)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        reader = Reader(data, "list of accepted shares")
        try:
            offer = reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES)
            names = read_names(reader)
            reader.end()
        except ValueError as error:
            raise refuse(str(error)) from None
        return cls(offer, names)


@dataclass(frozen=True, slots=True)
class NoisyShare:
    """The helper's part of a sum, noise included; helper to leader.

    Attributes:
        session_id: Id of the leader's session.
        names: The clients in the sum, whose shares both aggregators hold.
        key: The helper's receipt key, 32 bytes.
        signature: The helper's signature over its `PartStatement`, 64 bytes.
        packed: The sum of the helper's shares with the helper's noise, packed.
    """

    session_id: bytes
    names: tuple[str, ...]
    key: bytes
    signature: bytes = field(repr=False)
    packed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding; the vector comes last."""
        writer = Writer().fixed(self.session_id)
        write_names(writer, self.names)
        writer.fixed(self.key).fixed(self.signature)
        return writer.fixed(self.packed).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        reader = Reader(data, "helper's part of a sum")
        try:
            session_id = reader.fixed(SESSION_ID_BYTES)
            names = read_names(reader)
            key, signature = reader.fixed(IDENTITY_SIZE), reader.fixed(SIGNATURE_SIZE)
            packed = reader.fixed(reader.remaining)
        except ValueError as error:
            raise refuse(str(error)) from None
        return cls(session_id, names, key, signature, packed)


MAX_NAMES_BYTES: Final = 4 + MAX_CLIENTS * (4 + MAX_IDENTITY_BYTES)
"""Longest list of names."""

MAX_PART_BYTES: Final = (
    SESSION_ID_BYTES + MAX_NAMES_BYTES + IDENTITY_SIZE + SIGNATURE_SIZE
)
"""Longest `NoisyShare`, without its vector."""

MAX_ACCEPTED_BYTES: Final = 4 + MAX_DESCRIPTOR_BYTES + MAX_NAMES_BYTES
"""Longest `AcceptedShares`."""


def write_names(writer: Writer, names: tuple[str, ...]) -> None:
    """Append a list of names."""
    writer.u32(len(names))
    for name in names:
        writer.text(name)


def read_names(reader: Reader) -> tuple[str, ...]:
    """Read a list of names, ascending by their bytes: a set has one encoding.

    Raises:
        CanonicalEncodingError: The list is too long, out of order or has an empty name.
    """
    count = reader.u32()
    if count > MAX_CLIENTS:
        raise CanonicalEncodingError(f"a list of {count} names is too long")
    names = tuple(reader.text(max_bytes=MAX_IDENTITY_BYTES) for _ in range(count))
    spelled = [name.encode() for name in names]
    if not all(spelled) or any(low >= high for low, high in pairwise(spelled)):
        raise CanonicalEncodingError("names are empty, or not in ascending order")
    return names


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
    """Return the additive share that a seed expands to."""
    key, iv = kdf.additive_share_key(
        seed, session_id=session_id, suite=parameters.suite
    )
    return Mask(key, iv, sign)
