"""Unambiguous hashing with domain separation, and the encoding of client sets.

Rule 1: every hash, key derivation and signature starts with a domain tag that names
        protocol version, suite, role and usage.  The same content hashed for two
        purposes gives two unrelated values.
Rule 2: every part is preceded by its length, so that no two lists of parts give the
        same bytes.
Rule 3: a set of clients is a bitmap over the roster, which excludes duplicates, foreign
        indices and orders.

`secagg.protocol` defines which hashes exist and what they cover.

A set of clients is kept as the bitmap that was received.  A client receives U2 and U3
of the whole roster. It needs to know which of its neighbours are members, the size of
each set, and whether one set contains the other. The bitmap answers at a few machine
operations per 64 clients, and is hashed anyway.  A `frozenset` would take a thousand
times the memory and the time.

Source: PROTOCOL §3.3 and §4.
"""

import hashlib
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.canonical import CanonicalEncodingError, Writer
from secagg.crypto.cipher_suite import CipherSuite

_PROTOCOL_VERSION: Final = b"SecAgg/1"
MAX_SET_SIZE: Final = 1 << 16
"""Largest roster: the Shamir field has 65536 non-zero abscissae."""


@lru_cache(maxsize=256)  # tags are few and fixed; the bound is for safety only
def domain_tag(role: str, usage: str, suite: CipherSuite | None) -> bytes:
    """Return the domain separation tag of one purpose.

    Args:
        role: The party that computes the value ("client", "pair", "hash").
        usage: The use of the value ("share", "mask", "ctx0").
        suite: The session's cipher suite; None for a value outside of any session.

    Returns:
        Version, suite (u16, 0 for none), role and usage, each preceded by its length.

    Source: PROTOCOL §4.
    """
    return (
        Writer()
        .blob(_PROTOCOL_VERSION)
        .blob((suite or 0).to_bytes(2, "big"))
        .text(role)
        .text(usage)
        .getvalue()
    )


def hash_parts(usage: str, *parts: bytes, suite: CipherSuite) -> bytes:
    """Hash a list of byte strings for one purpose.

    Args:
        usage: The purpose; it enters the domain tag with the role "hash".
        *parts: What is hashed; each is preceded by its length.
        suite: The session's cipher suite.

    Returns:
        32 bytes: SHA-256 over domain tag and parts.

    Source:
        PROTOCOL §4.
    """
    digest = hashlib.sha256(domain_tag("hash", usage, suite))
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.digest()


def encode_set(indices: Iterable[int], n: int) -> bytes:
    """Encode a set of roster indices as a bitmap.

    Args:
        indices: Distinct integers in [0, n), in any order.
        n: Size of the roster, in [0, 65536].

    Returns:
        ⌈n/8⌉ bytes; index i is bit i mod 8, counted from the least significant
        one, of byte ⌊i/8⌋.

    Raises:
        ValueError: An index lies outside the roster or occurs twice.
    """
    _check_roster_size(n)
    chosen = list(indices)
    if chosen and not 0 <= min(chosen) <= max(chosen) < n:
        raise ValueError(f"expected roster indices in [0, {n})")
    if len(set(chosen)) != len(chosen):
        raise ValueError("a roster index occurs twice in a set")
    members = np.zeros(n, np.uint8)
    members[chosen] = 1
    return np.packbits(members, bitorder="little").tobytes()


def decode_set(data: bytes, n: int) -> tuple[int, ...]:
    """Decode a bitmap over a roster of n clients.

    Args:
        data: The bitmap, as `encode_set` writes it.
        n: Size of the roster, in [0, 65536].

    Returns:
        The indices of the set, ascending.

    Raises:
        CanonicalEncodingError: Wrong length or padding bits set; refuse the message.
        ValueError: n lies outside its range: a fault of the calling code.
    """
    _check_bitmap(data, n)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return tuple(np.flatnonzero(bits).tolist())


def _check_bitmap(data: bytes, n: int) -> None:
    """Check that bytes are a bitmap over a roster of n clients.

    Args:
        data: As `encode_set` writes it.
        n: Size of the roster, in [0, 65536].

    Raises:
        CanonicalEncodingError: Wrong length or padding bits set; refuse the message.
        ValueError: n lies outside its range: a fault of the calling code.
    """
    _check_roster_size(n)
    size = -(-n // 8)
    if len(data) != size:
        raise CanonicalEncodingError(
            f"a set over {n} clients takes {size} bytes, not {len(data)}"
        )
    if n % 8 and data[-1] >> n % 8:  # R3.3-1
        raise CanonicalEncodingError(
            f"a set over {n} clients has padding bits that are not zero"
        )


def _check_roster_size(n: int) -> None:
    if not 0 <= n <= MAX_SET_SIZE:
        raise ValueError(f"a roster has 0 to {MAX_SET_SIZE} clients, not {n}")


class ClientBitmap(AbstractSet[int]):
    """Roster indices; immutable, equal to every other set of the same indices.

    Args:
        bitmap: As `encode_set` writes it.
        clients: n, in [0, 65536].

    Raises:
        CanonicalEncodingError: Wrong length or padding bits set; refuse the message.
        ValueError: n lies outside its range: a fault of the calling code.
    """

    __slots__ = ("_bitmap", "_clients", "_number")

    def __init__(self, bitmap: bytes, clients: int) -> None:
        _check_bitmap(bitmap, clients)
        self._bitmap = bitmap
        self._clients = clients
        self._number = int.from_bytes(bitmap, "little")

    def __contains__(self, index: object) -> bool:
        return (
            isinstance(index, int)
            and 0 <= index < self._clients
            and bool(self._bitmap[index >> 3] >> (index & 7) & 1)
        )

    def __iter__(self) -> Iterator[int]:
        indices: list[int] = np.flatnonzero(self.places()).tolist()
        return iter(indices)

    def __len__(self) -> int:
        return self._number.bit_count()

    def __le__(self, other: AbstractSet[Any]) -> bool:
        if isinstance(other, ClientBitmap):
            return self._number & ~other._number == 0
        return super().__le__(other)

    def __repr__(self) -> str:
        return f"ClientBitmap({len(self)} of {self._clients})"

    def places(self) -> npt.NDArray[np.bool_]:
        """Return membership by roster index, shape (n,)."""
        packed = np.frombuffer(self._bitmap, np.uint8)
        bits = np.unpackbits(packed, count=self._clients, bitorder="little")
        return bits.view(np.bool_)
