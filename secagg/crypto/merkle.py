"""A hash tree over an ordered list: one hash for all, short proofs for a few.

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
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.transcript import domain_tag

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
        cut = _cut(start, end)
        return _node(prefix, top(start, cut), top(cut, end))

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


def _cut(start: int, end: int) -> int:
    """Return the place at which a subtree of two leaves or more is cut."""
    return start + (1 << ((end - start - 1).bit_length() - 1))


def _next_level(level: Sequence[bytes], prefix: bytes) -> list[bytes]:
    pairs = zip(level[::2], level[1::2], strict=False)
    above = [_node(prefix, left, right) for left, right in pairs]
    return [*above, level[-1]] if len(level) % 2 else above


def _prefix(suite: CipherSuite, node: str) -> bytes:
    return domain_tag("hash", node, suite) + _LENGTH


def _node(prefix: bytes, left: bytes, right: bytes) -> bytes:
    """Return H(node; left, right); the constant bytes are joined once."""
    return hashlib.sha256(prefix + left + _LENGTH + right).digest()
