"""Encoding functions that several messages share.

A function that reads a peer's bytes raises `ValueError` for any fault in them; `decode`
turns it, and no other exception, into the peer's error.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final, TypeVar

from secagg.crypto.canonical import Reader, Writer
from secagg.errors import ErrorCode

DIGEST_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_Message = TypeVar("_Message")


def decode(what: str, data: bytes, read: Callable[[Reader], _Message]) -> _Message:
    """Run `read` over all of `data`; every failure is the peer's fault."""
    reader = Reader(data, what)
    try:
        message = read(reader)
        reader.end()
    except ValueError as error:
        raise ErrorCode.BAD_ENCODING.error(f"{what} is malformed: {error}") from None
    return message


def read_count(reader: Reader, most: int) -> int:
    """Read the number of parts that follow, before any of them is read.

    Raises:
        ValueError: More than `most`.
    """
    count = reader.u32()
    if count > most:
        raise ValueError(f"{count} parts, at most {most} are possible")
    return count


def check_ascending(indices: Iterable[int]) -> None:
    """Refuse roster indices that repeat or are out of order.

    Raises:
        ValueError: They are not strictly ascending.
    """
    if any(a >= b for a, b in pairwise(indices)):
        raise ValueError("indices are not strictly ascending")


def write_proof(writer: Writer, proof: tuple[bytes, ...]) -> None:
    """Append the hashes of a tree that its reader cannot compute, 32 bytes each."""
    writer.u32(len(proof)).fixed(b"".join(proof))


def read_proof(reader: Reader, leaves: int) -> tuple[bytes, ...]:
    """Read what `write_proof` wrote.

    Raises:
        ValueError: More hashes than the tree has leaves.
    """
    return tuple(reader.fixed(DIGEST_BYTES) for _ in range(read_count(reader, leaves)))
