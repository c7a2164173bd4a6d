"""One frozen class per protocol message, in both directions: what is said.

Rule 1: `encode` is the canonical encoding of PROTOCOL §3; what is hashed, journalled,
        sent and compared is always these bytes and never a serialisation of the
        transport.
Rule 2: every decoder is total: a value, or `RemoteProtocolError` naming what is wrong.
Rule 3: sets travel as bitmaps over the roster, so that duplicates, foreign ids and
        unsorted lists cannot be expressed (PROTOCOL §3.3).
Rule 4: an `Envelope` is a message on its way: its class and its canonical bytes.  The
        state machines take and give envelopes; journal and wire carry them unread.

It checks form only.  Whether a message is acceptable now is the business of
`secagg.protocol`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from itertools import pairwise
from typing import ClassVar, Final, Self, TypeVar

from secagg.errors import ErrorCode, RemoteProtocolError, error_code, printable
from secagg.parameters import MAX_CLIENTS, MAX_NOISE_LAYERS
from secagg.primitives.canonical import Reader, Writer

__all__ = [
    "BUNDLE_BYTES",
    "KINDS",
    "MAX_IDENTITY_BYTES",
    "Aborted",
    "Advert",
    "Bundles",
    "Complaint",
    "Delivery",
    "Envelope",
    "Fate",
    "Message",
    "Released",
    "Roster",
    "Round",
    "Shares",
    "Survivors",
    "Update",
    "Upload",
]

# A SPIFFE id has at most 2048 bytes, but people read these in logs and tables.
MAX_IDENTITY_BYTES: Final = 255
KEY_BYTES: Final = 32
COMMITMENT_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
# identity, two keys, commitment, signature and the length prefixes between them
MAX_ADVERT_BYTES: Final = MAX_IDENTITY_BYTES + 3 * 32 + SIGNATURE_BYTES + 16
# Sealed: sender, receiver, abscissa (4 bytes each), two shares of 34 bytes, 16 of tag.
BUNDLE_BYTES: Final = 3 * 4 + 2 * 34 + 16
MAX_REASON_BYTES: Final = 1000
MAX_SET_BYTES: Final = -(-MAX_CLIENTS // 8)
DIGEST_BYTES: Final = 32
_MAX_BYTES: Final = (1 << 32) - 1  # what a length prefix can say

_Message = TypeVar("_Message")


@unique
class Round(IntEnum):
    """Which round a session is in.  Numbers are those of [Bon17]."""

    ADVERTISE_KEYS = 0
    SHARE_KEYS = 1
    MASKED_INPUT_COLLECTION = 2
    CONSISTENCY_CHECK = 3
    UNMASKING = 4
    FINISHED = 5


@unique
class Fate(IntEnum):
    """What became of the reader's input when its session ended (PROTOCOL §5.6).

    It says how much the server may have learnt from the input, and is all that a
    client asks when it decides whether the session is charged to its budget.
    """

    NEVER_FIXED = 0
    """No set U3 was ever fixed: nobody was asked to unmask anything."""
    LEFT_OUT = 1
    """U3 is without the reader, or will be."""
    INCLUDED = 2
    """U3 names the reader, whether or not a sum came of it."""


def _read_fate(reader: Reader) -> Fate:
    return Fate(reader.u8())  # a ValueError for any other number


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
        noise_commitments: Hashes of the seeds g_i of noise layers, 32 bytes each, as
            many as the parameters have layers.
        signature: Ed25519 over ctx0 and the rest; empty in profiles without
            identities of their own.
    """

    KIND: ClassVar[int] = 1
    ROUND: ClassVar[Round] = Round.ADVERTISE_KEYS

    identity: str
    encryption_key: bytes
    masking_key: bytes
    self_mask_commitment: bytes
    noise_commitments: tuple[bytes, ...] = ()
    signature: bytes = b""

    def signed_part(self) -> bytes:
        """Return what a signature covers: everything but the signature."""
        writer = Writer()
        writer.text(self.identity)
        writer.fixed(self.encryption_key)
        writer.fixed(self.masking_key)
        writer.fixed(self.self_mask_commitment)
        writer.u8(len(self.noise_commitments))
        for commitment in self.noise_commitments:
            writer.fixed(commitment)
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
        count = reader.u8()
        if count > MAX_NOISE_LAYERS:
            raise ValueError(f"{count} noise commitments, at most {MAX_NOISE_LAYERS}")
        noise = tuple(reader.fixed(COMMITMENT_BYTES) for _ in range(count))
        signature = reader.blob(max_bytes=SIGNATURE_BYTES)
        if len(signature) not in (0, SIGNATURE_BYTES):
            raise ValueError(f"a signature has 0 or 64 bytes, not {len(signature)}")
        return cls(identity, keys[0], keys[1], commitment, noise, signature)


@dataclass(frozen=True, slots=True)
class Bundles:
    """Round 1, client to server: the sealed bundles for its neighbours (PROTOCOL §5.2).

    Attributes:
        sealed: One bundle of `BUNDLE_BYTES` per holder, in order of index, without
            separators.
    """

    KIND: ClassVar[int] = 2
    ROUND: ClassVar[Round] = Round.SHARE_KEYS

    sealed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.sealed

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Upload:
    """Round 2: a masked input, named; the vector itself travels beside the messages.

    The upload desk makes it when bytes, hash and range are checked (PROTOCOL §5.3).

    Attributes:
        size: Bytes of the packed vector.
        digest: SHA-256 of the packed vector; the blob is stored under this name.
    """

    KIND: ClassVar[int] = 3
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    size: int
    digest: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().u64(self.size).fixed(self.digest).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return _decode("upload", data, lambda r: cls(r.u64(), r.fixed(DIGEST_BYTES)))


@dataclass(frozen=True, slots=True)
class Shares:
    """Round 4, client to server: what it reveals (PROTOCOL §5.5).

    Attributes:
        revealed: Over the dealers of U2 whose shares the sender should hold, in order
            of index: the bitmap of those it could not open, then one share of 34 bytes
            for each, zeros for the absent, without separators; then the seeds of the
            noise layers that |U2 minus U3| asks for, 32 bytes each.
    """

    KIND: ClassVar[int] = 4
    ROUND: ClassVar[Round] = Round.UNMASKING

    revealed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.revealed

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Complaint:
    """Client to server: the bundle of one dealer is of no use (PROTOCOL §5.3).

    It is about a pair: nobody else can tell whether the accused or the accuser lies.

    Attributes:
        code: What is wrong with it.
        accused: Roster index of the dealer.
    """

    KIND: ClassVar[int] = 10
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    code: ErrorCode
    accused: int

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().u16(self.code).u32(self.accused).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING; also for a code that accuses nobody.
        """
        return _decode("complaint", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        code = error_code(reader.u16())
        if code not in _GRIEVANCES:
            raise ValueError("its code is none that a complaint can have")
        return cls(code, reader.u32())


_GRIEVANCES: Final = frozenset(
    {ErrorCode.BAD_SHARE_CIPHERTEXT, ErrorCode.SHARE_CONFUSION}
)


@dataclass(frozen=True, slots=True)
class Roster:
    """Opens round 1: U1, the adverts of everybody by identity (PROTOCOL §5.1).

    A client's index is the rank of its identity; its Shamir abscissa is index + 1.

    Attributes:
        adverts: Strictly ascending by the UTF-8 bytes of the identity.
        graph_seed: 32 bytes that order the ring, or b"" on the complete graph.
    """

    KIND: ClassVar[int] = 5
    ROUND: ClassVar[Round] = Round.SHARE_KEYS

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
class Delivery:
    """Opens round 2; server to each client of U2 (PROTOCOL §5.3).

    Attributes:
        sharers: Bitmap of U2 over the roster.
        bundles: The sealed bundles addressed to the reader, one per neighbour in U2,
            in order of index, without separators.
    """

    KIND: ClassVar[int] = 6
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    sharers: bytes
    bundles: bytes = field(default=b"", repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().blob(self.sharers).blob(self.bundles).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return _decode(
            "delivery",
            data,
            lambda r: cls(
                r.blob(max_bytes=MAX_SET_BYTES), r.blob(max_bytes=_MAX_BYTES)
            ),
        )


@dataclass(frozen=True, slots=True)
class Survivors:
    """Opens round 4; server to each client of U3 (PROTOCOL §5.5).

    One bit per client decides which of the two shares is revealed, so that "both"
    cannot be expressed.

    Attributes:
        bitmap: U3 over the roster.
    """

    KIND: ClassVar[int] = 7
    ROUND: ClassVar[Round] = Round.UNMASKING

    bitmap: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.bitmap

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Released:
    """The session is over and a sum exists; server to the clients of U3.

    Attributes:
        fate: What became of the reader's input; never NEVER_FIXED.
        sum_hash: SHA-256 of the packed sum.
        size: Bytes of the packed sum.
        survivors: |U3|, how many inputs the sum adds up.
        kept_until: Until when the sum can be fetched, in Unix seconds; 0 when the
            server promises nothing.
    """

    KIND: ClassVar[int] = 8
    ROUND: ClassVar[Round] = Round.FINISHED

    fate: Fate
    sum_hash: bytes
    size: int
    survivors: int
    kept_until: int

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().u8(self.fate).fixed(self.sum_hash).u64(self.size)
        return writer.u32(self.survivors).u64(self.kept_until).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return _decode("release", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        fate = _read_fate(reader)
        if fate is Fate.NEVER_FIXED:
            raise ValueError("there is no sum before U3 is fixed")
        digest, size = reader.fixed(DIGEST_BYTES), reader.u64()
        return cls(fate, digest, size, reader.u32(), reader.u64())


@dataclass(frozen=True, slots=True)
class Aborted:
    """The session is over for the reader, without a sum; server to every client.

    Attributes:
        fate: What became of the reader's input.
        code: Why.
        reason: One sentence for people, at most 1000 bytes.
    """

    KIND: ClassVar[int] = 9
    ROUND: ClassVar[Round] = Round.FINISHED

    fate: Fate
    code: ErrorCode
    reason: str

    def encode(self) -> bytes:
        """Return the canonical encoding; a reason that is too long is cut."""
        reason = printable(self.reason, max_bytes=MAX_REASON_BYTES)
        return Writer().u8(self.fate).u16(self.code).text(reason).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote, or a liar; the reason is safe to show.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return _decode("abort", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        fate = _read_fate(reader)
        # A code of a later release must not hide that the session is over.
        code = error_code(reader.u16())
        reason = reader.text(max_bytes=MAX_REASON_BYTES)
        return cls(fate, code, printable(reason, max_bytes=MAX_REASON_BYTES))


Update = Roster | Delivery | Survivors | Released | Aborted
Message = Advert | Bundles | Upload | Shares | Complaint | Update

# Numbers of the journal and of the wire; none is ever given a second meaning.
KINDS: Final[Mapping[int, type[Message]]] = {
    kind.KIND: kind
    for kind in (
        Advert,
        Bundles,
        Upload,
        Shares,
        Roster,
        Delivery,
        Survivors,
        Released,
        Aborted,
        Complaint,
    )
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message on its way: what it is, and its canonical bytes.

    Attributes:
        kind: Class of the message.
        data: Its canonical bytes, as received or as encoded once.
    """

    kind: type[Message]
    data: bytes = field(repr=False)
    # A roster is one envelope for a whole cohort: it is hashed once.
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Encode a message."""
        return cls(type(message), message.encode())

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes: tells a repetition from a contradiction."""
        if not self._digest:
            digest = hashlib.sha256(self.data).digest()
            object.__setattr__(self, "_digest", digest)
        return self._digest

    def open(self) -> Message:
        """Decode the message.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return self.kind.decode(self.data)
