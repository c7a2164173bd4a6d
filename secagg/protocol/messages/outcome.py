"""Outcomes of a session for its reader: with a sum or without one."""

from dataclasses import dataclass
from enum import IntEnum, unique
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.errors import ErrorCode, error_code, printable
from secagg.protocol.messages.encoding import DIGEST_BYTES, decode
from secagg.protocol.messages.round import Round

MAX_REASON_BYTES: Final = 1000


@unique
class Fate(IntEnum):
    """The fate of the reader's input when its session ended (PROTOCOL §5.6).

    It bounds what the server may have learnt from the input.  A client uses nothing
    else to decide whether the session is charged to its budget.
    """

    NEVER_FIXED = 0
    """No set U3 was ever fixed: no client was asked to unmask."""
    NOT_INCLUDED = 1
    """U3 does not name the reader, or will not."""
    INCLUDED = 2
    """U3 names the reader, whether or not a sum was released."""


def _read_fate(reader: Reader) -> Fate:
    return Fate(reader.u8())  # a ValueError for any other number


@dataclass(frozen=True, slots=True)
class Released:
    """The session is over and a sum exists; server to the clients of U3.

    Attributes:
        fate: The fate of the reader's input; never NEVER_FIXED.
        sum_hash: SHA-256 of the packed sum.
        size: Bytes of the packed sum.
        survivors: |U3|, how many inputs the sum adds up.
        kept_until: Time until which the sum can be fetched, in Unix seconds; 0 without
            a stated time.
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
        return decode("release", data, cls._read)

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
        fate: The fate of the reader's input.
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
        """Read the bytes of a peer that may lie; the reason is safe to show.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("abort", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        fate = _read_fate(reader)
        # A code of a later release must not hide that the session is over.
        code = error_code(reader.u16())
        reason = reader.text(max_bytes=MAX_REASON_BYTES)
        return cls(fate, code, printable(reason, max_bytes=MAX_REASON_BYTES))
