"""The roster: clients in their order, whole or as one reader's neighbourhood.

A `RosterFrame` leaves the adverts as bytes: that is enough to hash a roster, and to cut
a neighbourhood out of it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode
from secagg.protocol.messages.advert import MAX_ADVERT_BYTES, Advert
from secagg.protocol.messages.encoding import (
    decode,
    read_count,
    read_proof,
    write_proof,
)
from secagg.protocol.messages.round import Round
from secagg.protocol.parameters import MAX_CLIENTS

_RING_ORDER: Final = domain_tag("ring", "order", None)

# The form of a roster: whole, or one reader's neighbourhood.
_WHOLE_FORM: Final = 0
NEIGHBOURHOOD_FORM: Final = 1


@dataclass(frozen=True, slots=True)
class RosterFrame:
    """The bytes of a roster in either form, split into the parts that are hashed.

    Attributes:
        size: n, the number of all adverts.
        adverts: The shown adverts by index, ascending, as received.
        graph_seed: 32 bytes that order the ring, or b"" on the other graphs.
        reader: Index of the reader of a neighbourhood; None for the whole roster.
        proof: Of a neighbourhood: the parts of the tree that the reader cannot compute.
    """

    size: int
    adverts: Mapping[int, bytes] = field(repr=False)
    graph_seed: bytes
    reader: int | None = None
    proof: tuple[bytes, ...] = field(default=(), repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer()
        if self.reader is None:
            writer.u8(_WHOLE_FORM).u32(self.size)
            for advert in self.adverts.values():
                writer.blob(advert)
            return writer.blob(self.graph_seed).getvalue()
        writer.u8(NEIGHBOURHOOD_FORM).u32(self.size).u32(self.reader)
        writer.blob(self.graph_seed).u32(len(self.adverts))
        for index, advert in self.adverts.items():
            writer.u32(index).blob(advert)
        write_proof(writer, self.proof)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("roster", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        is_neighbourhood, size = reader.flag(), read_count(reader, MAX_CLIENTS)
        if is_neighbourhood:
            return cls._read_neighbourhood(reader, size)
        adverts = [reader.blob(max_bytes=MAX_ADVERT_BYTES) for _ in range(size)]
        return cls(size, dict(enumerate(adverts)), _read_seed(reader))

    @classmethod
    def _read_neighbourhood(cls, reader: Reader, size: int) -> Self:
        own, seed = reader.u32(), _read_seed(reader)
        if not seed:
            raise ValueError("a neighbourhood has no graph seed")
        adverts: dict[int, bytes] = {}
        last = -1
        for _ in range(read_count(reader, size)):
            index = reader.u32()
            if not last < index < size:
                raise ValueError("indices are not strictly ascending and below n")
            adverts[index] = reader.blob(max_bytes=MAX_ADVERT_BYTES)
            last = index
        return cls(size, adverts, seed, own, read_proof(reader, size))


def _read_seed(reader: Reader) -> bytes:
    graph_seed = reader.blob(max_bytes=32)
    if len(graph_seed) not in {0, 32}:
        raise ValueError(f"a graph seed has 0 or 32 bytes, not {len(graph_seed)}")
    return graph_seed


def rank_key(identity: str, graph_seed: bytes) -> bytes:
    """Return the key by which clients are ordered in a roster (PROTOCOL §5.1).

    Args:
        identity: Of the client.
        graph_seed: As in the roster.

    Returns:
        The bytes of the identity; on a ring a hash of them, so that the order is random
            and unknown to all before the seed was drawn.
    """
    name = identity.encode()
    if not graph_seed:
        return name
    # Sorting by a hash is a uniform permutation up to collisions of SHA-256, and any
    # language can repeat it.
    return hashlib.sha256(_RING_ORDER + graph_seed + name).digest()


@dataclass(frozen=True, slots=True)
class Roster:
    """Opens ShareKeys: U1, all adverts in their order (PROTOCOL §5.1).

    A client's index is its rank in it, on a ring its place there.  In the profile with
    drawn edges it opens the round before.

    Attributes:
        adverts: Strictly ascending by `rank_key`.
        graph_seed: 32 bytes that order the ring, or b"" on the other graphs.
    """

    KIND: ClassVar[int] = 5
    ROUND: ClassVar[Round] = Round.CHOOSE_EDGES

    adverts: tuple[Advert, ...]
    graph_seed: bytes = b""

    @classmethod
    def of(cls, adverts: Iterable[Advert], graph_seed: bytes = b"") -> Self:
        """Return the roster of some clients, in their order."""
        ranked = sorted(adverts, key=lambda each: rank_key(each.identity, graph_seed))
        return cls(tuple(ranked), graph_seed)

    def __len__(self) -> int:
        return len(self.adverts)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        shown = {i: advert.encode() for i, advert in enumerate(self.adverts)}
        return RosterFrame(len(self.adverts), shown, self.graph_seed).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Self | Neighbourhood":
        """Read a roster in either form.

        Raises:
            RemoteProtocolError: BAD_ENCODING; also for identities that are not in
                strictly ascending order, which excludes duplicates.
        """
        frame = RosterFrame.decode(data)
        adverts = {index: Advert.decode(raw) for index, raw in frame.adverts.items()}
        seed = frame.graph_seed
        ranks = [rank_key(advert.identity, seed) for advert in adverts.values()]
        if any(a >= b for a, b in pairwise(ranks)):
            raise ErrorCode.BAD_ENCODING.error(
                "malformed roster: its identities are out of order",
            )
        if frame.reader is not None:
            return Neighbourhood(frame.size, frame.reader, adverts, seed, frame.proof)
        return cls(tuple(adverts.values()), seed)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The other form of a roster: the part that one client of a ring needs.

    It proves that the same hash covers the omitted parts (PROTOCOL §4.1).

    Attributes:
        size: n, how many adverts the whole roster has.
        reader: Roster index of the client that it is for.
        adverts: Those of the reader and of its neighbours, by index, ascending.
        graph_seed: 32 bytes that order the ring.
        proof: Hashes of the tree that the reader cannot compute, 32 bytes each.
    """

    KIND: ClassVar[int] = Roster.KIND
    ROUND: ClassVar[Round] = Roster.ROUND

    size: int
    reader: int
    adverts: Mapping[int, Advert]
    graph_seed: bytes
    proof: tuple[bytes, ...] = field(repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        shown = {index: advert.encode() for index, advert in self.adverts.items()}
        return RosterFrame(
            self.size, shown, self.graph_seed, self.reader, self.proof
        ).encode()

    @staticmethod
    def decode(data: bytes) -> "Roster | Neighbourhood":
        """Read a roster in either form, as `Roster.decode` does."""
        return Roster.decode(data)
