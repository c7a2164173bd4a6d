"""§5.9 and §11.4, slowly: edges that clients draw, what covers them, and chances."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import reference as ref
from reference import (
    BAD_EDGES,
    BAD_ENCODING,
    BAD_PROOF,
    BAD_SIGNATURE,
    SELF_MISSING,
    Decoder,
    Refused,
    blob,
    digest,
    tag,
    u32,
)
from reference_ring import bits_of
from reference_roster import proof_for, proven_top, top_of

SIGNATURE_SIZE = 64
EDGE_NODE, IN_NODE = "edge node", "in node"


# --- §11.4 ---------------------------------------------------------------------------


def corrupt_holders(rules: ref.Parameters, count: int, bits: float) -> int:
    """cmax."""
    others, bad, k = count - 1, rules.colluders, rules.degree

    def chance(most: int) -> Fraction:
        ways = sum(
            math.comb(bad, hit) * math.comb(others - bad, k - hit)
            for hit in range(most + 1, min(bad, k) + 1)
            if k - hit <= others - bad
        )
        return (count - bad) * Fraction(ways, math.comb(others, k))

    return next(x for x in itertools.count() if bits_of(chance(x)) >= bits)


def set_apart(rules: ref.Parameters, count: int, bits: float) -> int:
    """s0 - 1: how many may stand apart unseen."""
    honest, k = count - rules.colluders, rules.degree
    lost = min(rules.max_losses, count - rules.min_survivors)
    every = math.comb(count - 1, k)

    def exactly(size: int) -> Fraction:
        inside = Fraction(math.comb(size - 1 + rules.colluders + lost, k), every)
        around = Fraction(math.comb(count - 1 - size, k), every)
        ways = math.comb(honest, size) * math.comb(honest - size, lost)
        return ways * inside**size * around ** (honest - lost - size)

    largest = (honest - lost) // 2
    or_more = [
        sum((exactly(each) for each in range(size, largest + 1)), Fraction(0))
        for size in range(1, largest + 2)
    ]
    return next(i for i, chance in enumerate(or_more) if bits_of(chance) >= bits)


def are_safe(rules: ref.Parameters, count: int, bits: float) -> bool:
    """The end of R3.2-9, at a size of the roster."""
    apart = set_apart(rules, count, bits)
    least = corrupt_holders(rules, count, bits) + max(1, apart)
    return rules.threshold >= least and rules.quorum >= rules.min_survivors + apart


# --- the lists -----------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """Whom one client has drawn."""

    drawn: tuple[int, ...]
    signature: bytes = b""

    def listed(self) -> bytes:
        return b"".join(u32(index) for index in self.drawn)

    def encode(self) -> bytes:
        return self.listed() + self.signature

    def signed_bytes(self, suite: int, ctx1: bytes, index: int) -> bytes:
        return tag("client", "edges", suite) + blob(ctx1) + u32(index) + self.listed()

    @staticmethod
    def decode(data: bytes) -> "Edges":
        if len(data) < SIGNATURE_SIZE or (len(data) - SIGNATURE_SIZE) % 4:
            raise Refused(BAD_ENCODING)
        listed, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
        drawn = tuple(
            int.from_bytes(listed[place : place + 4], "big")
            for place in range(0, len(listed), 4)
        )
        if any(left >= right for left, right in itertools.pairwise(drawn)):
            raise Refused(BAD_ENCODING)
        return Edges(drawn, signature)

    def check(self, degree: int, count: int, owner: int) -> None:
        """R5.9-3 and R5.9-9."""
        if len(self.drawn) != degree or owner in self.drawn or self.drawn[-1] >= count:
            raise Refused(BAD_EDGES)


def in_leaves(suite: int, ctx1: bytes, drawn: int, drawers: list[int]) -> list[bytes]:
    return [digest(suite, "in leaf", ctx1, u32(drawn), u32(who)) for who in drawers]


def in_list(suite: int, ctx1: bytes, drawn: int, drawers: list[int]) -> bytes:
    leaves = in_leaves(suite, ctx1, drawn, drawers)
    top = top_of(suite, leaves, IN_NODE) if leaves else b""
    return digest(suite, "in list", u32(len(drawers)), top)


def edge_leaf(
    suite: int, ctx1: bytes, index: int, drawn_hash: bytes, inside: bytes
) -> bytes:
    return digest(suite, "edge leaf", ctx1, u32(index), drawn_hash, inside)


def drawn_hash(suite: int, listed: bytes) -> bytes:
    return digest(suite, "out", listed)


def empty_leaf(suite: int, ctx1: bytes, index: int) -> bytes:
    inside = in_list(suite, ctx1, index, [])
    return edge_leaf(suite, ctx1, index, drawn_hash(suite, b""), inside)


def root_of(suite: int, count: int, top: bytes) -> bytes:
    return digest(suite, "edge root", u32(count), top)


def encode_proof(proof: list[bytes]) -> bytes:
    return u32(len(proof)) + b"".join(proof)


def read_proof(decoder: Decoder) -> list[bytes]:
    return [decoder.take(32) for _ in range(decoder.number(4))]


class Lists:
    """All lists of a session, as the server covers them."""

    def __init__(
        self,
        suite: int,
        ctx1: bytes,
        lists: dict[int, Edges],
        *,
        count: int,
        claims: dict[int, list[int]] | None = None,
    ) -> None:
        self.suite, self.ctx1, self.lists = suite, ctx1, lists
        self.claims = claims or {}  # of a server that lies about who drew whom
        self.leaves = [self._leaf(index) for index in range(count)]
        self.root = root_of(suite, count, top_of(suite, self.leaves, EDGE_NODE))

    def drawers(self, index: int) -> list[int]:
        if index in self.claims:
            return self.claims[index]
        if index not in self.lists:
            return []
        return [who for who in sorted(self.lists) if index in self.lists[who].drawn]

    def _leaf(self, index: int) -> bytes:
        if index not in self.lists:
            return empty_leaf(self.suite, self.ctx1, index)
        listed = self.lists[index].listed()
        inside = in_list(self.suite, self.ctx1, index, self.drawers(index))
        drawn = drawn_hash(self.suite, listed)
        return edge_leaf(self.suite, self.ctx1, index, drawn, inside)

    def published(self, reader: int) -> "Published":
        drawn = self.lists[reader].drawn
        return Published(
            self.root,
            [(who, self.lists[who].encode()) for who in self.drawers(reader)],
            proof_for(self.suite, self.leaves, {reader}, EDGE_NODE),
            [self._place(other, reader) for other in drawn],
            proof_for(self.suite, self.leaves, set(drawn), EDGE_NODE),
        )

    def _place(self, other: int, reader: int) -> "Place | None":
        if other not in self.lists:
            return None
        drawers = self.drawers(other)
        place = drawers.index(reader)
        leaves = in_leaves(self.suite, self.ctx1, other, drawers)
        proof = proof_for(self.suite, leaves, {place}, IN_NODE)
        hashed = drawn_hash(self.suite, self.lists[other].listed())
        return Place(hashed, len(drawers), place, proof)


@dataclass(frozen=True)
class Place:
    """That the reader stands on the list of who drew another client."""

    drawn_hash: bytes
    count: int
    place: int
    proof: list[bytes]

    def encode(self) -> bytes:
        numbers = u32(self.count) + u32(self.place)
        return b"\1" + self.drawn_hash + numbers + encode_proof(self.proof)


@dataclass(frozen=True)
class Published:
    """What one client is shown of all lists."""

    root: bytes
    drawers: list[tuple[int, bytes]]
    own_proof: list[bytes]
    places: list[Place | None]
    leaves_proof: list[bytes]

    def encode(self) -> bytes:
        rows = b"".join(u32(who) + blob(edges) for who, edges in self.drawers)
        places = b"".join(b"\0" if p is None else p.encode() for p in self.places)
        return (
            self.root
            + u32(len(self.drawers))
            + rows
            + encode_proof(self.own_proof)
            + u32(len(self.places))
            + places
            + encode_proof(self.leaves_proof)
        )

    @staticmethod
    def decode(data: bytes) -> "Published":
        """R5.9-5."""
        decoder = Decoder(data)
        root, drawers = decoder.take(32), []
        for _ in range(decoder.number(4)):
            who = decoder.number(4)
            edges = decoder.blob(len(data))
            Edges.decode(edges)
            drawers.append((who, edges))
        if any(one[0] >= other[0] for one, other in itertools.pairwise(drawers)):
            raise Refused(BAD_ENCODING)
        own_proof, places = read_proof(decoder), []
        for _ in range(decoder.number(4)):
            kind = decoder.number(1)
            if kind > 1:
                raise Refused(BAD_ENCODING)
            place = None
            if kind:
                hashed, count = decoder.take(32), decoder.number(4)
                place = Place(hashed, count, decoder.number(4), read_proof(decoder))
            places.append(place)
        shown = Published(root, drawers, own_proof, places, read_proof(decoder))
        decoder.end()
        return shown


@dataclass(frozen=True)
class Reader:
    """One client, and what it has sent."""

    rules: ref.Parameters
    ctx1: bytes
    count: int
    index: int
    own: Edges
    holds: Callable[[int, bytes, bytes], bool]

    def check(self, data: bytes) -> tuple[bytes, dict[int, list[int]]]:
        """R5.9-5 to R5.9-10; return the root and the lists that touch the reader."""
        shown, suite = Published.decode(data), self.rules.suite
        whose = [who for who, _ in shown.drawers]
        inside = in_list(suite, self.ctx1, self.index, whose)
        drawn = drawn_hash(suite, self.own.listed())
        leaf = edge_leaf(suite, self.ctx1, self.index, drawn, inside)
        if not self._covers(shown.root, {self.index: leaf}, shown.own_proof):
            raise Refused(SELF_MISSING)
        if len(whose) > self.rules.in_cap or any(
            who >= self.count or who == self.index for who in whose
        ):
            raise Refused(BAD_EDGES)
        lists = {who: Edges.decode(edges) for who, edges in shown.drawers}
        for who, edges in lists.items():
            message = edges.signed_bytes(suite, self.ctx1, who)
            if not self.holds(who, message, edges.signature):
                raise Refused(BAD_SIGNATURE)
        for who, edges in lists.items():
            edges.check(self.rules.degree, self.count, who)
            if self.index not in edges.drawn:
                raise Refused(BAD_EDGES)
        self._check_drawn(shown)
        found = {who: list(edges.drawn) for who, edges in lists.items()}
        return shown.root, found | {self.index: list(self.own.drawn)}

    def _check_drawn(self, shown: Published) -> None:
        """R5.9-10."""
        drawn = self.own.drawn
        if len(shown.places) != len(drawn):
            raise Refused(BAD_PROOF)
        leaves = {
            other: self._leaf(other, place)
            for other, place in zip(drawn, shown.places, strict=True)
        }
        if not self._covers(shown.root, leaves, shown.leaves_proof):
            raise Refused(BAD_PROOF)

    def _leaf(self, other: int, place: Place | None) -> bytes:
        suite = self.rules.suite
        if place is None:
            return empty_leaf(suite, self.ctx1, other)
        if place.place >= place.count:
            raise Refused(BAD_PROOF)
        (own,) = in_leaves(suite, self.ctx1, other, [self.index])
        top = proven_top(suite, place.count, {place.place: own}, place.proof, IN_NODE)
        inside = digest(suite, "in list", u32(place.count), top)
        return edge_leaf(suite, self.ctx1, other, place.drawn_hash, inside)

    def _covers(
        self, root: bytes, leaves: dict[int, bytes], proof: list[bytes]
    ) -> bool:
        suite = self.rules.suite
        try:
            top = proven_top(suite, self.count, leaves, proof, EDGE_NODE)
        except Refused:
            return False
        return root_of(suite, self.count, top) == root
