"""Messages about U3: its members, their signatures, and the quorum."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.protocol.messages.encoding import (
    DIGEST_BYTES,
    SIGNATURE_BYTES,
    check_ascending,
    decode,
    read_count,
)
from secagg.protocol.messages.round import Round
from secagg.protocol.parameters import MAX_CLIENTS


@dataclass(frozen=True, slots=True)
class Survivors:
    """Opens Unmasking; server to each client of U3 (PROTOCOL §5.4).

    One bit for each client decides which of the two shares is revealed, so that "both"
    cannot be expressed.

    Attributes:
        bitmap: U3 over the roster.
    """

    KIND: ClassVar[int] = 7
    ROUND: ClassVar[Round] = Round.CONSISTENCY_CHECK

    bitmap: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.bitmap

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Consistency:
    """ConsistencyCheck, client to server: signs the received U3 (PROTOCOL §5.4).

    Attributes:
        signature: Ed25519 over ctx3, 64 bytes.
    """

    KIND: ClassVar[int] = 11
    ROUND: ClassVar[Round] = Round.CONSISTENCY_CHECK

    signature: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("consistency", data, lambda r: cls(r.fixed(SIGNATURE_BYTES)))


@dataclass(frozen=True, slots=True)
class RosterProof:
    """A dealer's signature under the roster that it received (R5.2-11).

    Attributes:
        index: The dealer's roster index.
        digest: SHA-256 of its sealed bundles, 32 bytes.
        signature: Ed25519 over ctx1, index and digest, 64 bytes.
    """

    index: int
    digest: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Quorum:
    """Opens Unmasking in profiles with signatures (PROTOCOL §5.5).

    Attributes:
        signatures: Roster index of each signer and its signature over ctx3, strictly
            ascending by index.
        roster_proofs: Of each other member of U3, strictly ascending by index
            (R5.3-13).
    """

    KIND: ClassVar[int] = 12
    ROUND: ClassVar[Round] = Round.UNMASKING

    signatures: tuple[tuple[int, bytes], ...] = field(repr=False)
    roster_proofs: tuple[RosterProof, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.signatures)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().u32(len(self.signatures))
        for index, signature in self.signatures:
            writer.u32(index).fixed(signature)
        writer.u32(len(self.roster_proofs))
        for proof in self.roster_proofs:
            writer.u32(proof.index).fixed(proof.digest).fixed(proof.signature)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING; also for indices of either list that
                are not strictly ascending, so that no client counts twice (R5.5-1).
        """
        return decode("quorum", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        signatures = tuple(
            (reader.u32(), reader.fixed(SIGNATURE_BYTES))
            for _ in range(read_count(reader, MAX_CLIENTS))
        )
        check_ascending(index for index, _ in signatures)
        proofs = tuple(
            RosterProof(
                reader.u32(), reader.fixed(DIGEST_BYTES), reader.fixed(SIGNATURE_BYTES)
            )
            for _ in range(read_count(reader, MAX_CLIENTS))
        )
        check_ascending(proof.index for proof in proofs)
        return cls(signatures, proofs)
