"""One frozen dataclass per protocol message: the vocabulary of core, wire and storage.

Rule 1: `encode` is the canonical encoding of PROTOCOL §3; what is hashed, stored or
        compared is always these bytes and never a serialisation of the transport.
Rule 2: every decoder is total: a value, or `RemoteProtocolError` naming what is wrong.
Rule 3: sets travel as bitmaps over the roster, so that duplicates, foreign ids and
        unsorted lists cannot be expressed (PROTOCOL §3.3).

It checks form only.  Whether a message is acceptable now is the business of
`secagg.protocol`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self, TypeVar

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.parameters import MAX_CLIENTS
from secagg.primitives.canonical import Reader, Writer

__all__ = [
    "MAX_IDENTITY_BYTES",
    "Advert",
    "Roster",
    "RosterPublished",
    "ServerUpdate",
    "SessionAborted",
    "SharesDelivered",
    "SumReleased",
    "UnmaskRequested",
]

# A SPIFFE id has at most 2048 bytes, but people read these in logs and tables.
MAX_IDENTITY_BYTES: Final = 255
KEY_BYTES: Final = 32
COMMITMENT_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
# identity, two keys, commitment, signature and the length prefixes between them
MAX_ADVERT_BYTES: Final = MAX_IDENTITY_BYTES + 3 * 32 + SIGNATURE_BYTES + 16
MAX_REASON_BYTES: Final = 1000

_Message = TypeVar("_Message")


def _decode(what: str, data: bytes, read: Callable[[Reader], _Message]) -> _Message:
    """Run `read` over all of `data`; every failure is the peer's."""
    reader = Reader(data, what)
    try:
        message = read(reader)
        reader.end()
    except ValueError as error:
        raise RemoteProtocolError(
            f"{what} cannot be read: {error}", code=ErrorCode.BAD_ENCODING
        ) from None
    return message


@dataclass(frozen=True, slots=True)
class Advert:
    """Round 0, client to server, read by every client of the roster (PROTOCOL §5.1).

    Attributes:
        identity: Name from the client's certificate, 1 to 255 bytes of UTF-8.
        encryption_key: X25519 public key c^PK for share bundles, 32 bytes.
        masking_key: X25519 public key s^PK for pairwise masks, 32 bytes.
        self_mask_commitment: Hash of the self-mask seed b_u, 32 bytes.
        signature: Ed25519 over ctx0 and the rest; empty in profiles without
            identities of their own.
    """

    identity: str
    encryption_key: bytes
    masking_key: bytes
    self_mask_commitment: bytes
    signature: bytes = b""

    def signed_part(self) -> bytes:
        """Return what a signature covers: everything but the signature."""
        writer = Writer()
        writer.text(self.identity)
        writer.fixed(self.encryption_key)
        writer.fixed(self.masking_key)
        writer.fixed(self.self_mask_commitment)
        return writer.getvalue()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer()
        writer.fixed(self.signed_part())
        writer.blob(self.signature)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return _decode("advert", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        identity = reader.text(max_bytes=MAX_IDENTITY_BYTES)
        if not identity:
            raise ValueError("the identity is empty")
        keys = [reader.fixed(KEY_BYTES), reader.fixed(KEY_BYTES)]
        commitment = reader.fixed(COMMITMENT_BYTES)
        signature = reader.blob(max_bytes=SIGNATURE_BYTES)
        if len(signature) not in (0, SIGNATURE_BYTES):
            raise ValueError(f"a signature has 0 or 64 bytes, not {len(signature)}")
        return cls(identity, keys[0], keys[1], commitment, signature)


@dataclass(frozen=True, slots=True)
class Roster:
    """U1: the adverts of everybody, in order of identity (PROTOCOL §5.1).

    A client's index is the rank of its identity; its Shamir abscissa is index + 1.

    Attributes:
        adverts: Strictly ascending by the UTF-8 bytes of the identity.
        graph_seed: 32 bytes that order the ring, or b"" on the complete graph.
    """

    adverts: tuple[Advert, ...]
    graph_seed: bytes = b""

    def __len__(self) -> int:
        return len(self.adverts)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer()
        writer.u32(len(self.adverts))
        for advert in self.adverts:
            writer.blob(advert.encode())
        writer.blob(self.graph_seed)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING; also for identities that are not
                strictly ascending, which is how duplicates become unencodable.
        """
        return _decode("roster", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        count = reader.u32()
        if count > MAX_CLIENTS:
            raise ValueError(f"{count} adverts, at most {MAX_CLIENTS} are possible")
        adverts = []
        for _ in range(count):
            advert = Reader(reader.blob(max_bytes=MAX_ADVERT_BYTES), "advert")
            adverts.append(Advert._read(advert))  # noqa: SLF001 - the same module
            advert.end()
        graph_seed = reader.blob(max_bytes=32)
        if len(graph_seed) not in (0, 32):
            raise ValueError(f"a graph seed has 0 or 32 bytes, not {len(graph_seed)}")
        names = [advert.identity.encode() for advert in adverts]
        if any(a >= b for a, b in pairwise(names)):
            raise ValueError("identities are not strictly ascending")
        return cls(tuple(adverts), graph_seed)


@dataclass(frozen=True, slots=True)
class RosterPublished:
    """Opens round 1; server to every client of U1."""

    roster: bytes  # canonical bytes of `Roster`: they are hashed as received


@dataclass(frozen=True, slots=True)
class SharesDelivered:
    """Opens round 2; server to each client of U2 (PROTOCOL §5.3).

    Attributes:
        sharers: Bitmap of U2 over the roster.
        bundles: The sealed bundles addressed to the reader, one per neighbour in U2,
            in order of index, without separators (`BUNDLE_BYTES` each).
    """

    sharers: bytes
    bundles: bytes = b""


@dataclass(frozen=True, slots=True)
class UnmaskRequested:
    """Opens round 4; server to each client of U3 (PROTOCOL §5.5).

    One bit per client decides which of the two shares is revealed, so that "both"
    cannot be expressed.

    Attributes:
        survivors: Bitmap of U3 over the roster.
    """

    survivors: bytes


@dataclass(frozen=True, slots=True)
class SumReleased:
    """The session is over and a sum exists; server to every client.

    Attributes:
        sum_hash: SHA-256 of the packed sum.
        size: Bytes of the packed sum.
        survivors: |U3|, how many inputs the sum adds up.
    """

    sum_hash: bytes
    size: int
    survivors: int


@dataclass(frozen=True, slots=True)
class SessionAborted:
    """The session is over and no sum exists; server to every client.

    Attributes:
        code: Why.
        reason: One sentence for people, at most 1000 bytes.
    """

    code: ErrorCode
    reason: str


ServerUpdate = (
    RosterPublished | SharesDelivered | UnmaskRequested | SumReleased | SessionAborted
)
