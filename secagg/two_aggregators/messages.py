"""The three messages that only sessions between two aggregators have.

The existing calls carry them as uploads and blobs, in canonical encoding. A decoder
returns a value or raises BAD_ENCODING, for any bytes.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

from secagg.crypto.canonical import CanonicalEncodingError, Reader, Writer
from secagg.crypto.entropy import SEED_SIZE
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IDENTITY_SIZE, SIGNATURE_SIZE
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.protocol.parameters import MAX_CLIENTS
from secagg.wire.codec import refuse
from secagg.wire.limits import MAX_DESCRIPTOR_BYTES, SESSION_ID_BYTES


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
