"""The canonical byte encoding of all that is hashed, signed or authenticated.

Rule 1: integers are unsigned, big-endian and of fixed width.
Rule 2: a byte string of variable length is preceded by its length as a u32. One of
        fixed length has no prefix, because both sides know the length.
Rule 3: a value has exactly one encoding, and a reader accepts nothing else: truncation,
        trailing bytes and non-canonical values are errors (R3.1-1).
Rule 4: a reader states the largest length it accepts before it reads a byte.

The encoding has no tags, no optional fields and no versions.  The code that writes a
record defines its fields, once.
"""

from collections.abc import Callable
from typing import ClassVar, Final, Self, TypeVar

from secagg.errors import ErrorCode

_Document = TypeVar("_Document")

_LENGTH_BYTES: Final = 4


class CanonicalEncodingError(ValueError):
    """The bytes are not the canonical encoding of what was expected.

    When the bytes came from a peer, the peer is at fault: refuse its message.
    """


class Writer:
    """Builds one canonical encoding; every method returns the writer itself.

    The methods raise `ValueError` for a value outside its field.  That is a fault
    of the calling code, hence not a `CanonicalEncodingError`.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u8(self, value: int) -> Self:
        """Append an integer in [0, 2^8)."""
        return self._write_integer(value, 1)

    def u16(self, value: int) -> Self:
        """Append an integer in [0, 2^16)."""
        return self._write_integer(value, 2)

    def u32(self, value: int) -> Self:
        """Append an integer in [0, 2^32)."""
        return self._write_integer(value, 4)

    def u64(self, value: int) -> Self:
        """Append an integer in [0, 2^64)."""
        return self._write_integer(value, 8)

    def flag(self, value: bool) -> Self:  # noqa: FBT001 - the value is the content
        """Append a truth value: one byte, 0 or 1."""
        return self._write_integer(1 if value else 0, 1)

    def fixed(self, value: bytes) -> Self:
        """Append bytes whose length the reader knows."""
        self._parts.append(bytes(value))
        return self

    def blob(self, value: bytes) -> Self:
        """Append bytes of variable length, preceded by their length."""
        return self._write_integer(len(value), _LENGTH_BYTES).fixed(value)

    def text(self, value: str) -> Self:
        """Append a string as a length-prefixed UTF-8 blob.

        Raises:
            ValueError: It holds U+0000, which no reader accepts.
        """
        if "\0" in value:
            raise ValueError("a text must not hold U+0000")
        return self.blob(value.encode())

    def getvalue(self) -> bytes:
        """Return the bytes written so far."""
        return b"".join(self._parts)

    def _write_integer(self, value: int, size: int) -> Self:
        """Append an integer of some bytes."""
        try:
            self._parts.append(value.to_bytes(size, "big"))
        except OverflowError:
            # The text omits the value, which may be derived from a secret.
            raise ValueError(f"expected an integer in [0, 2^{8 * size})") from None
        return self


class Reader:
    """Decodes a canonical encoding, field by field.

    Args:
        data: The whole encoding.
        what: The kind of record, for error messages ("share bundle").
    """

    __slots__ = ("_data", "_position", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = bytes(data)
        self._what = what
        self._position = 0

    def __repr__(self) -> str:
        return f"Reader({self._what!r}, {len(self._data)} bytes)"

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def u8(self) -> int:
        """Read an integer of one byte."""
        return self._read_integer(1)

    def u16(self) -> int:
        """Read an integer of two bytes."""
        return self._read_integer(2)

    def u32(self) -> int:
        """Read an integer of four bytes."""
        return self._read_integer(4)

    def u64(self) -> int:
        """Read an integer of eight bytes."""
        return self._read_integer(8)

    def flag(self) -> bool:
        """Read a truth value; any byte but 0 and 1 is refused."""
        value = self._read_integer(1)
        if value > 1:
            raise CanonicalEncodingError(
                f"{self._what}: a flag at byte {self._position - 1} is neither 0 nor 1"
            )
        return value == 1

    def fixed(self, size: int) -> bytes:
        """Read exactly `size` bytes.

        Raises:
            CanonicalEncodingError: The data ends earlier; refuse the message.
        """
        # Called hundreds of thousands of times by a client of a large session.
        start = self._position
        end = start + size
        if end > len(self._data):
            raise CanonicalEncodingError(
                f"{self._what}: expected {size} more bytes at byte {start},"
                f" {self.remaining} are left"
            )
        self._position = end
        return self._data[start:end]

    def blob(self, *, max_bytes: int) -> bytes:
        """Read a length-prefixed byte string of at most `max_bytes`.

        Raises:
            CanonicalEncodingError: It is longer, or cut off; refuse the message.
        """
        size = self._read_integer(_LENGTH_BYTES)
        if size > max_bytes:
            raise CanonicalEncodingError(
                f"{self._what}: a field of {size} bytes at byte {self._position},"
                f" at most {max_bytes} are allowed"
            )
        return self.fixed(size)

    def text(self, *, max_bytes: int) -> str:
        """Read a length-prefixed UTF-8 string of at most `max_bytes` bytes.

        Raises:
            CanonicalEncodingError: It is longer, cut off, no UTF-8, or holds U+0000.
        """
        start = self._position
        try:
            value = self.blob(max_bytes=max_bytes).decode()
        except UnicodeDecodeError:
            raise CanonicalEncodingError(
                f"{self._what}: the text at byte {start} is not UTF-8"
            ) from None
        # R3.1-3: languages disagree on where such a text ends, and so on the name.
        if "\0" in value:
            raise CanonicalEncodingError(
                f"{self._what}: the text at byte {start} holds U+0000"
            )
        return value

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            CanonicalEncodingError: Bytes remain; refuse the message.
        """
        if self.remaining:
            raise CanonicalEncodingError(
                f"{self._what}: {self.remaining} bytes follow the end"
            )

    def _read_integer(self, size: int) -> int:
        """Read an integer of some bytes."""
        return int.from_bytes(self.fixed(size), "big")


def decode_whole(
    what: str, data: bytes, read: Callable[[Reader], _Document], *, fix: str = ""
) -> _Document:
    """Decode bytes of a peer, all of them; every failure is the peer's fault.

    Args:
        what: The kind of document, for the error.
        data: Its bytes.
        read: Decodes the fields; may raise ValueError.
        fix: What to do about bytes that are not one.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    reader = Reader(data, what)
    try:
        document = read(reader)
        reader.end()
    except ValueError as error:
        raise ErrorCode.BAD_ENCODING.error(
            f"{what} is malformed: {error}", fix=fix
        ) from None
    return document


class Decodable:
    """Decodes the bytes of a peer as one document of a class.

    Attributes:
        WHAT: The kind of document, for errors.
        NEXT_STEP: What to do about bytes that are not one.
    """

    __slots__ = ()
    WHAT: ClassVar[str]
    NEXT_STEP: ClassVar[str] = ""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; a signature in it is checked elsewhere.

        Raises:
            RemoteProtocolError: BAD_ENCODING, also for each rule of its `_read`.
        """
        return decode_whole(cls.WHAT, data, cls._read, fix=cls.NEXT_STEP)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode the fields.

        Raises:
            ValueError: They break a rule.
        """
        raise NotImplementedError
