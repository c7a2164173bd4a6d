"""Hashes with domain separation, client sets as bitmaps, and trees of hashes.

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

A hash tree over an ordered list has one hash for all, and short proofs for a few:

* n leaves are cut after the largest power of two below n, and so is each part. The same
  subtrees result from hashing neighbours in pairs, level by level, with an odd last one
  moved up unchanged.  A tree is therefore made in one pass and kept by levels.
* A proof for some leaves holds the hashes that their reader cannot compute, from left
  to right.  The number of leaves and the places of the known ones determine how many
  there are. Hence a proof has one form, without positions.
* The tree alone does not bind n: most proofs also hold for n + 1.  A comparison of tops
  must hash n beside them.

Leaves are hashes that bind their own place; this module does not interpret them.

Source: PROTOCOL §4.1; the shape is that of RFC 6962, section 2.1.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import pairwise
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


NODE_SIZE: Final = 32
"""Size of leaves, nodes and tops, bytes."""

ROSTER_NODE: Final = "roster node"
"""The usage of the nodes of a tree over adverts, for the tag of their hashes."""

_LENGTH: Final = NODE_SIZE.to_bytes(4, "big")


class ProofError(ValueError):
    """A proof has another number of hashes than its leaves require."""


class MerkleTree:
    """A tree whose leaves are all known.

    It takes twice the bytes of its leaves, and makes proofs without hashing.

    Args:
        leaves: 32 bytes each, at least one.
        suite: The session's cipher suite; it separates the domain of the hashes.
        node: The usage of its nodes, for the same purpose.
    """

    __slots__ = ("_levels",)

    def __init__(
        self,
        leaves: Sequence[bytes],
        suite: CipherSuite,
        *,
        node: str = ROSTER_NODE,
    ) -> None:
        if not leaves:
            raise ValueError("a tree has at least one leaf")
        if any(len(leaf) != NODE_SIZE for leaf in leaves):
            raise ValueError(f"a leaf has {NODE_SIZE} bytes")
        # Level i holds the tops of 2^i leaves each, the last one of fewer.
        self._levels: list[Sequence[bytes]] = [leaves]
        while len(level := self._levels[-1]) > 1:
            self._levels.append(_next_level(level, _prefix(suite, node)))

    def __len__(self) -> int:
        return len(self._levels[0])

    @property
    def top(self) -> bytes:
        """The hash that covers all leaves, 32 bytes."""
        return self._levels[-1][0]

    def proof(self, places: Sequence[int]) -> tuple[bytes, ...]:
        """Return the hashes that a reader of some leaves is missing.

        Args:
            places: Of the leaves that the reader has, strictly ascending, below n.

        Returns:
            32 bytes each, in the order in which `proven_top` takes them.
        """
        count = len(self)
        if any(place >= other for place, other in pairwise(places)):
            raise ValueError("expected places in strictly ascending order")
        if places and not 0 <= places[0] <= places[-1] < count:
            raise ValueError(f"expected places of {count} leaves")
        levels = self._levels
        return tuple(
            levels[level][start >> level] for start, level in _unknown(count, places)
        )


def proven_top(
    count: int,
    leaves: Mapping[int, bytes],
    proof: Sequence[bytes],
    suite: CipherSuite,
    *,
    node: str = ROSTER_NODE,
) -> bytes:
    """Compute the top of a tree from some of its leaves and a proof (R4.1-1).

    Args:
        count: Number of leaves n, at least 1.
        leaves: Some of them by place, 32 bytes each.
        proof: From `MerkleTree.proof` for the same places, as it was received.
        suite: The session's cipher suite.
        node: The usage of its nodes.

    Returns:
        32 bytes.  Any proof with the right number of hashes has some top: compare it,
            or a value derived from it, with another party's.

    Raises:
        ProofError: A hash is missing or superfluous.
    """
    places = sorted(leaves)
    if places and not 0 <= places[0] <= places[-1] < count:
        raise ValueError(f"expected places of {count} leaves")
    if len(proof) != len(_unknown(count, places)):
        raise ProofError(
            f"the proof for {len(places)} of {count} leaves has {len(proof)} hashes"
        )
    rest = iter(proof)
    prefix = _prefix(suite, node)

    def top(start: int, end: int) -> bytes:
        first = bisect_left(places, start)
        if first == len(places) or places[first] >= end:
            return next(rest)
        if end - start == 1:
            return leaves[start]
        cut = _split_index(start, end)
        return _hash_node(prefix, top(start, cut), top(cut, end))

    return top(0, count)


def _unknown(count: int, places: Collection[int]) -> list[tuple[int, int]]:
    """Return the largest subtrees without a known leaf, from left to right.

    Each is named by its first leaf and by the level of its top.
    """
    if not places:
        return [(0, (count - 1).bit_length())]
    # Level by level: the other half of every pair of which one half is known.
    found, known, size, level = [], set(places), count, 0
    while size > 1:
        for node in known:
            other = node ^ 1
            if other < size and other not in known:
                found.append((other << level, level))
        known = {node >> 1 for node in known}
        size, level = (size + 1) // 2, level + 1
    return sorted(found)


def _split_index(start: int, end: int) -> int:
    """Return the place at which a subtree of two leaves or more is cut."""
    return start + (1 << ((end - start - 1).bit_length() - 1))


def _next_level(level: Sequence[bytes], prefix: bytes) -> list[bytes]:
    pairs = zip(level[::2], level[1::2], strict=False)
    above = [_hash_node(prefix, left, right) for left, right in pairs]
    return [*above, level[-1]] if len(level) % 2 else above


def _prefix(suite: CipherSuite, node: str) -> bytes:
    return domain_tag("hash", node, suite) + _LENGTH


def _hash_node(prefix: bytes, left: bytes, right: bytes) -> bytes:
    """Return H(node; left, right); the constant bytes are joined once."""
    return hashlib.sha256(prefix + left + _LENGTH + right).digest()
