"""Messages about share holders in the profile with drawn edges (PROTOCOL §5.9)."""

import struct
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.protocol.messages.encoding import (
    DIGEST_BYTES,
    SIGNATURE_BYTES,
    check_ascending,
    decode,
    read_count,
    read_proof,
    write_proof,
)
from secagg.protocol.messages.round import Round
from secagg.protocol.parameters import MAX_CLIENTS, MAX_SPARSE_CLIENTS

# A client can draw at most all others.
MAX_EDGES_BYTES: Final = 4 * MAX_SPARSE_CLIENTS + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Edges:
    """ChooseEdges, client to server: the clients that it drew (PROTOCOL §5.9).

    Attributes:
        drawn: Roster indices of the holders of its shares, strictly ascending.
        signature: Ed25519 over ctx1, own index and the list, 64 bytes.
    """

    KIND: ClassVar[int] = 13
    ROUND: ClassVar[Round] = Round.CHOOSE_EDGES

    drawn: tuple[int, ...]
    signature: bytes = field(repr=False)

    def listed(self) -> bytes:
        """Return the list alone, as it is signed and hashed."""
        return struct.pack(f">{len(self.drawn)}I", *self.drawn)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.listed() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING; also for indices that are not strictly
                ascending, so that no client is drawn twice.
        """
        return decode("list of drawn neighbours", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        drawn = []
        while reader.remaining > SIGNATURE_BYTES:
            drawn.append(reader.u32())
        check_ascending(drawn)
        return cls(tuple(drawn), reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class ListProof:
    """Proof that the reader is on the list of another client's drawers (PROTOCOL §5.9).

    Attributes:
        drawn_hash: Hash of the list that the other client has drawn, 32 bytes.
        size: How many drew the other client.
        place: Of the reader among them, from 0.
        proof: Hashes of their tree that the reader cannot compute, 32 bytes each.
    """

    drawn_hash: bytes
    size: int
    place: int
    proof: tuple[bytes, ...] = field(repr=False)

    def encode_into(self, writer: Writer) -> None:
        """Append the canonical encoding."""
        writer.fixed(self.drawn_hash).u32(self.size).u32(self.place)
        write_proof(writer, self.proof)

    @classmethod
    def decode_from(cls, reader: Reader) -> Self:
        """Read what `encode_into` wrote."""
        drawn_hash, size = reader.fixed(DIGEST_BYTES), reader.u32()
        return cls(drawn_hash, size, reader.u32(), read_proof(reader, MAX_CLIENTS))


@dataclass(frozen=True, slots=True)
class EdgesPublished:
    """Opens ShareKeys in the profile with drawn edges (PROTOCOL §5.9).

    Attributes:
        edge_root: Covers all drawn edges, 32 bytes.
        drawers: The reader's drawers: roster index and the message of each, strictly
            ascending.
        own_proof: Of the reader's leaf.
        lists: For each client that the reader drew, ascending, proof that the reader is
            on its list; None for a client that drew none, and is out of the session.
        leaves_proof: Of the leaves of these, together.
    """

    KIND: ClassVar[int] = 14
    ROUND: ClassVar[Round] = Round.SHARE_KEYS

    edge_root: bytes
    drawers: tuple[tuple[int, Edges], ...] = field(repr=False)
    own_proof: tuple[bytes, ...] = field(repr=False)
    lists: tuple[ListProof | None, ...] = field(repr=False)
    leaves_proof: tuple[bytes, ...] = field(repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().fixed(self.edge_root).u32(len(self.drawers))
        for index, edges in self.drawers:
            writer.u32(index).blob(edges.encode())
        write_proof(writer, self.own_proof)
        writer.u32(len(self.lists))
        for each in self.lists:
            writer.flag(each is not None)
            if each is not None:
                each.encode_into(writer)
        write_proof(writer, self.leaves_proof)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING; also for drawers that are not strictly
                ascending (R5.9-6).
        """
        return decode("published edges", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        edge_root = reader.fixed(DIGEST_BYTES)
        drawers = tuple(
            (reader.u32(), Edges.decode(reader.blob(max_bytes=MAX_EDGES_BYTES)))
            for _ in range(read_count(reader, MAX_CLIENTS))
        )
        check_ascending(index for index, _ in drawers)
        own_proof = read_proof(reader, MAX_CLIENTS)
        lists = tuple(
            ListProof.decode_from(reader) if reader.flag() else None
            for _ in range(read_count(reader, MAX_CLIENTS))
        )
        return cls(
            edge_root, drawers, own_proof, lists, read_proof(reader, MAX_CLIENTS)
        )
