"""Messages about shares: sealed, delivered, disputed, revealed."""

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.errors import ErrorCode, error_code
from secagg.protocol.messages.encoding import SIGNATURE_BYTES, decode
from secagg.protocol.messages.round import Round
from secagg.protocol.parameters import MAX_CLIENTS

# Sealed: sender, receiver, abscissa (4 bytes each), two shares of 34 bytes, 16 of tag.
BUNDLE_BYTES: Final = 3 * 4 + 2 * 34 + 16
_MAX_SET_BYTES: Final = -(-MAX_CLIENTS // 8)
_MAX_BYTES: Final = (1 << 32) - 1  # the range of a length prefix
_GRIEVANCES: Final = frozenset(
    {ErrorCode.BAD_SHARE_CIPHERTEXT, ErrorCode.SHARE_CONFUSION}
)


@dataclass(frozen=True, slots=True)
class Bundles:
    """ShareKeys, client to server: sealed bundles for its neighbours (PROTOCOL §5.2).

    Attributes:
        sealed: One bundle of `BUNDLE_BYTES` per holder, in order of index, without
            separators.
        signature: Ed25519 over ctx1, own index and the bundles, 64 bytes; empty in
            profiles without identities of their own.
    """

    KIND: ClassVar[int] = 2
    ROUND: ClassVar[Round] = Round.SHARE_KEYS

    sealed: bytes = field(repr=False)
    signature: bytes = b""

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.sealed + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; the number of bundles is not checked."""
        # Both sizes are fixed, so the remainder decides whether it is signed.
        signed = len(data) % BUNDLE_BYTES == SIGNATURE_BYTES
        end = len(data) - SIGNATURE_BYTES if signed else len(data)
        return cls(bytes(data[:end]), bytes(data[end:]))


@dataclass(frozen=True, slots=True)
class Delivery:
    """Opens MaskedInputCollection; server to each client of U2 (PROTOCOL §5.3).

    Attributes:
        sharers: Bitmap of U2 over the roster.
        bundles: The sealed bundles addressed to the reader, one per neighbour in U2, in
            order of index, without separators.
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
        return decode(
            "delivery",
            data,
            lambda r: cls(
                r.blob(max_bytes=_MAX_SET_BYTES), r.blob(max_bytes=_MAX_BYTES)
            ),
        )


@dataclass(frozen=True, slots=True)
class Complaint:
    """Client to server: the bundle of one dealer cannot be used (PROTOCOL §5.3).

    It is about a pair: no other party can tell whether the accused or the accuser lies.

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
            RemoteProtocolError: BAD_ENCODING; also for a code that is not one of a
                complaint.
        """
        return decode("complaint", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        code = error_code(reader.u16())
        if code not in _GRIEVANCES:
            raise ValueError("its code is not one of a complaint")
        return cls(code, reader.u32())


@dataclass(frozen=True, slots=True)
class Shares:
    """Unmasking, client to server: the revealed shares (PROTOCOL §5.5).

    Attributes:
        revealed: Three parts without separators.  A bitmap of the shares that the
            sender could not open, over the dealers of U2 whose shares it should hold,
            in order of index.  Then one share of 34 bytes for each, zeros for the
            absent.  Then the seeds of the removed noise layers, 32 bytes each.
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
