"""One frozen class for each protocol message, in both directions.

Rule 1: `encode` is the canonical encoding of PROTOCOL §3.  Hashes, journal, wire and
        comparisons always use these bytes and never a serialisation of the transport.
Rule 2: every decoder is total: it returns a value, or raises `RemoteProtocolError` with
        the fault.  A function that reads a peer's bytes raises `ValueError` for any
        fault in them; `decode` turns it, and no other exception, into the peer's error.
Rule 3: sets travel as bitmaps over the roster, so duplicates, foreign ids and unsorted
        lists cannot be expressed (PROTOCOL §3.3).
Rule 4: an `Envelope` is a message in transit: its class and its canonical bytes.  The
        state machines accept and return envelopes; journal and wire carry them unread.

This module checks form only.  `secagg.protocol` decides whether a message is
acceptable.  `KINDS` lists all messages.

A `RosterFrame` leaves the adverts as bytes: that is enough to hash a roster, and to cut
a neighbourhood out of it.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from itertools import pairwise
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Decodable, Reader, Writer, decode_whole
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode, error_code, printable
from secagg.protocol.enrolment import CREDENTIAL_BYTES, Credential
from secagg.protocol.parameters import MAX_CLIENTS, MAX_NOISE_LAYERS, MAX_SPARSE_CLIENTS

DIGEST_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def _read_count(reader: Reader, most: int) -> int:
    """Read and limit the number of parts that follow.

    Raises:
        ValueError: More than `most`.
    """
    count = reader.u32()
    if count > most:
        raise ValueError(f"{count} parts, at most {most} are possible")
    return count


def _check_ascending(indices: Iterable[int]) -> None:
    """Refuse roster indices that repeat or are out of order.

    Raises:
        ValueError: They are not strictly ascending.
    """
    if any(a >= b for a, b in pairwise(indices)):
        raise ValueError("indices are not strictly ascending")


def write_proof(writer: Writer, proof: tuple[bytes, ...]) -> None:
    """Append the hashes of a tree that its reader cannot compute, 32 bytes each."""
    writer.u32(len(proof)).fixed(b"".join(proof))


def _read_proof(reader: Reader, leaves: int) -> tuple[bytes, ...]:
    """Read what `write_proof` wrote.

    Raises:
        ValueError: More hashes than the tree has leaves.
    """
    return tuple(reader.fixed(DIGEST_BYTES) for _ in range(_read_count(reader, leaves)))


@unique
class Round(IntEnum):
    """The round of a session.  Numbers are those on the wire (PROTOCOL §1)."""

    ADVERTISE_KEYS = 1
    CHOOSE_EDGES = 2
    SHARE_KEYS = 3
    MASKED_INPUT_COLLECTION = 4
    CONSISTENCY_CHECK = 5
    UNMASKING = 6
    FINISHED = 7


# A SPIFFE id has at most 2048 bytes, but operators read these in logs and tables.
MAX_IDENTITY_BYTES: Final = 255
_KEY_BYTES: Final = 32
COMMITMENT_BYTES: Final = 32
# Name with its length, form, credential; two keys, H_b, count and commitments; the
# signature; and the three lengths around these.
MAX_ADVERT_BYTES: Final = (
    (4 + 4 + MAX_IDENTITY_BYTES + 1 + CREDENTIAL_BYTES)
    + (4 + 3 * 32 + 1 + MAX_NOISE_LAYERS * COMMITMENT_BYTES)
    + (4 + SIGNATURE_BYTES)
)
# The forms of an advert: what follows the name.
_FORM_BARE: Final = 0
_FORM_ENROLLED: Final = 1


@dataclass(frozen=True, slots=True)
class Advert(Decodable):
    """AdvertiseKeys, client to server, read by the roster (PROTOCOL §5.1).

    Attributes:
        identity: Name from the client's certificate, 1 to 255 bytes of UTF-8.
        encryption_key: X25519 public key c^PK for share bundles, 32 bytes.
        masking_key: X25519 public key s^PK for pairwise masks, 32 bytes.
        self_mask_commitment: Hash of the self-mask seed b_u, 32 bytes.
        noise_commitments: Hash of the seed of each layer of noise, 32 bytes each; none
            without a ladder.
        credential: Binds the name to the client's signing key; None in profiles without
            identities of their own.
        signature: Ed25519 over ctx0 and the rest, 64 bytes; empty without credential.
    """

    WHAT: ClassVar[str] = "advert"
    KIND: ClassVar[int] = 1
    ROUND: ClassVar[Round] = Round.ADVERTISE_KEYS

    identity: str
    encryption_key: bytes
    masking_key: bytes
    self_mask_commitment: bytes
    noise_commitments: tuple[bytes, ...] = ()
    credential: Credential | None = None
    signature: bytes = b""

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """All public keys of the advert; those of a session are distinct (R5.2-5)."""
        keys = (self.encryption_key, self.masking_key)
        return (
            keys if self.credential is None else (*keys, self.credential.identity_key)
        )

    def id_part(self) -> bytes:
        """Return the client's name, as encoded."""
        writer = Writer().text(self.identity)
        if self.credential is None:
            return writer.u8(_FORM_BARE).getvalue()
        self.credential.encode_into(writer.u8(_FORM_ENROLLED))
        return writer.getvalue()

    def key_part(self) -> bytes:
        """Return keys and commitments, as encoded."""
        writer = Writer().fixed(self.encryption_key).fixed(self.masking_key)
        writer.fixed(self.self_mask_commitment).u8(len(self.noise_commitments))
        for commitment in self.noise_commitments:
            writer.fixed(commitment)
        return writer.getvalue()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().blob(self.id_part()).blob(self.key_part())
        return writer.blob(self.signature).getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode an advert; its signature is checked elsewhere."""
        id_part, key_part, signature = _read_parts(reader)
        who = Reader(id_part, "identity of an advert")
        identity = who.text(max_bytes=MAX_IDENTITY_BYTES)
        if not identity:
            raise ValueError("the identity is empty")
        credential = None
        if who.flag():
            credential = Credential.decode_from(who, name=identity)
        who.end()
        keys = Reader(key_part, "keys of an advert")
        encryption, masking = keys.fixed(_KEY_BYTES), keys.fixed(_KEY_BYTES)
        commitment = keys.fixed(COMMITMENT_BYTES)
        layers = tuple(keys.fixed(COMMITMENT_BYTES) for _ in range(keys.u8()))
        keys.end()
        return cls(
            identity, encryption, masking, commitment, layers, credential, signature
        )


def advert_parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Split an advert into the parts that are hashed: name, keys, signature.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    return decode_whole(Advert.WHAT, data, _read_parts)


def _read_parts(reader: Reader) -> tuple[bytes, bytes, bytes]:
    """Read the three parts of an advert, still encoded."""
    id_part = reader.blob(max_bytes=MAX_ADVERT_BYTES)
    key_part = reader.blob(max_bytes=MAX_ADVERT_BYTES)
    signature = reader.blob(max_bytes=SIGNATURE_BYTES)
    if len(signature) not in {0, SIGNATURE_BYTES}:
        raise ValueError(f"a signature has 0 or 64 bytes, not {len(signature)}")
    return id_part, key_part, signature


_RING_ORDER: Final = domain_tag("ring", "order", None)

# The form of a roster: whole, or one reader's neighbourhood.
_WHOLE_FORM: Final = 0
_NEIGHBOURHOOD_FORM: Final = 1


@dataclass(frozen=True, slots=True)
class RosterFrame(Decodable):
    """The bytes of a roster in either form, split into the parts that are hashed.

    Attributes:
        size: n, the number of all adverts.
        adverts: The shown adverts by index, ascending, as received.
        graph_seed: 32 bytes that order the ring, or b"" on the other graphs.
        reader: Index of the reader of a neighbourhood; None for the whole roster.
        proof: Of a neighbourhood: the parts of the tree that the reader cannot compute.
    """

    WHAT: ClassVar[str] = "roster"

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
        writer.u8(_NEIGHBOURHOOD_FORM).u32(self.size).u32(self.reader)
        writer.blob(self.graph_seed).u32(len(self.adverts))
        for index, advert in self.adverts.items():
            writer.u32(index).blob(advert)
        write_proof(writer, self.proof)
        return writer.getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a roster in either form."""
        is_neighbourhood, size = reader.flag(), _read_count(reader, MAX_CLIENTS)
        if is_neighbourhood:
            return cls._read_neighbourhood(reader, size)
        adverts = [reader.blob(max_bytes=MAX_ADVERT_BYTES) for _ in range(size)]
        return cls(size, dict(enumerate(adverts)), _read_seed(reader))

    @classmethod
    def _read_neighbourhood(cls, reader: Reader, size: int) -> Self:
        """Decode the adverts of one client's neighbours, with their proof."""
        own, seed = reader.u32(), _read_seed(reader)
        if not seed:
            raise ValueError("a neighbourhood has no graph seed")
        adverts: dict[int, bytes] = {}
        last = -1
        for _ in range(_read_count(reader, size)):
            index = reader.u32()
            if not last < index < size:
                raise ValueError("indices are not strictly ascending and below n")
            adverts[index] = reader.blob(max_bytes=MAX_ADVERT_BYTES)
            last = index
        return cls(size, adverts, seed, own, _read_proof(reader, size))


def _read_seed(reader: Reader) -> bytes:
    """Read the seed of a graph: 32 bytes, or none."""
    graph_seed = reader.blob(max_bytes=32)
    if len(graph_seed) not in {0, 32}:
        raise ValueError(f"a graph seed has 0 or 32 bytes, not {len(graph_seed)}")
    return graph_seed


def sort_key(identity: str, graph_seed: bytes) -> bytes:
    """Return the key by which clients are ordered in a roster (PROTOCOL §5.1).

    Args:
        identity: Of the client.
        graph_seed: As in the roster.

    Returns:
        The bytes of the identity.  On a ring a hash of them: the order is random, and
            unknown to all before the seed is drawn.
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
        adverts: Strictly ascending by `sort_key`.
        graph_seed: 32 bytes that order the ring, or b"" on the other graphs.
    """

    KIND: ClassVar[int] = 5
    ROUND: ClassVar[Round] = Round.CHOOSE_EDGES

    adverts: tuple[Advert, ...]
    graph_seed: bytes = b""

    @classmethod
    def of(cls, adverts: Iterable[Advert], graph_seed: bytes = b"") -> Self:
        """Return the roster of some clients, in their order."""
        ranked = sorted(adverts, key=lambda each: sort_key(each.identity, graph_seed))
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
        ranks = [sort_key(advert.identity, seed) for advert in adverts.values()]
        if any(a >= b for a, b in pairwise(ranks)):
            raise ErrorCode.BAD_ENCODING.error(
                "malformed roster: its identities are out of order"
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


# A client can draw at most all others.
MAX_EDGES_BYTES: Final = 4 * MAX_SPARSE_CLIENTS + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Edges(Decodable):
    """ChooseEdges, client to server: the clients that it drew (PROTOCOL §5.9).

    Attributes:
        drawn: Roster indices of the holders of its shares, strictly ascending.
        signature: Ed25519 over ctx1, own index and the list, 64 bytes.
    """

    WHAT: ClassVar[str] = "list of drawn neighbours"
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
    def _read(cls, reader: Reader) -> Self:
        """Decode a list; strictly ascending, so that no client is drawn twice."""
        drawn = []
        while reader.remaining > SIGNATURE_BYTES:
            drawn.append(reader.u32())
        _check_ascending(drawn)
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
        return cls(drawn_hash, size, reader.u32(), _read_proof(reader, MAX_CLIENTS))


@dataclass(frozen=True, slots=True)
class EdgesPublished(Decodable):
    """Opens ShareKeys in the profile with drawn edges (PROTOCOL §5.9).

    Attributes:
        edge_root: Covers all drawn edges, 32 bytes.
        drawers: The reader's drawers: roster index and the message of each, strictly
            ascending.
        own_proof: Of the reader's leaf.
        lists: For each client that the reader drew, ascending, the proof that the
            reader is on its list.  None for a client without a list, which is out of
            the session.
        leaves_proof: Of the leaves of these, together.
    """

    WHAT: ClassVar[str] = "published edges"
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
    def _read(cls, reader: Reader) -> Self:
        """Decode drawn edges, with the proofs that they are in the tree.

        The drawers are strictly ascending (R5.9-6).
        """
        edge_root = reader.fixed(DIGEST_BYTES)
        drawers = tuple(
            (reader.u32(), Edges.decode(reader.blob(max_bytes=MAX_EDGES_BYTES)))
            for _ in range(_read_count(reader, MAX_CLIENTS))
        )
        _check_ascending(index for index, _ in drawers)
        own_proof = _read_proof(reader, MAX_CLIENTS)
        lists = tuple(
            ListProof.decode_from(reader) if reader.flag() else None
            for _ in range(_read_count(reader, MAX_CLIENTS))
        )
        return cls(
            edge_root, drawers, own_proof, lists, _read_proof(reader, MAX_CLIENTS)
        )


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
class Delivery(Decodable):
    """Opens MaskedInputCollection; server to each client of U2 (PROTOCOL §5.3).

    Attributes:
        share_holders: Bitmap of U2 over the roster.
        bundles: The sealed bundles addressed to the reader, one per neighbour in U2, in
            order of index, without separators.
    """

    WHAT: ClassVar[str] = "delivery"
    KIND: ClassVar[int] = 6
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    share_holders: bytes
    bundles: bytes = field(default=b"", repr=False)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().blob(self.share_holders).blob(self.bundles).getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode share holders and bundles; neither is checked."""
        holders = reader.blob(max_bytes=_MAX_SET_BYTES)
        return cls(holders, reader.blob(max_bytes=_MAX_BYTES))


@dataclass(frozen=True, slots=True)
class Complaint(Decodable):
    """Client to server: the bundle of one dealer cannot be used (PROTOCOL §5.3).

    It is about a pair: no other party can tell whether the accused or the accuser lies.

    Attributes:
        code: What is wrong with it.
        accused: Roster index of the dealer.
    """

    WHAT: ClassVar[str] = "complaint"
    KIND: ClassVar[int] = 10
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    code: ErrorCode
    accused: int

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().u16(self.code).u32(self.accused).getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a complaint; its code must be one of a complaint."""
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


# Between two aggregators there is no U2, hence no view that could differ.
NO_VIEW: Final = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class Upload(Decodable):
    """MaskedInputCollection: names a masked input; the vector itself travels beside it.

    The upload receiver makes it after it has checked bytes, hash and range (PROTOCOL
    §5.3).

    Attributes:
        size: Bytes of the packed vector.
        digest: SHA-256 of the packed vector; the blob is stored under this name.
        view: Hash of ctx2 as the sender has computed it, 32 bytes (R5.3-14).
    """

    WHAT: ClassVar[str] = "upload"
    KIND: ClassVar[int] = 3
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    size: int
    digest: bytes
    view: bytes = NO_VIEW

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().u64(self.size).fixed(self.digest)
        return writer.fixed(self.view).getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode the name of a masked input."""
        size, digest = reader.u64(), reader.fixed(DIGEST_BYTES)
        return cls(size, digest, reader.fixed(DIGEST_BYTES))


@dataclass(frozen=True, slots=True)
class Survivors:
    """Opens Unmasking; server to each client of U3 (PROTOCOL §5.4).

    One bit for each client decides which of the two shares is revealed, so that "both"
    cannot be expressed.

    Attributes:
        bitmap: U3 over the roster.
    """

    KIND: ClassVar[int] = 7
    ROUND: ClassVar[Round] = Round.CONSISTENCY_CHECK

    bitmap: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.bitmap

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Consistency(Decodable):
    """ConsistencyCheck, client to server: signs the received U3 (PROTOCOL §5.4).

    Attributes:
        signature: Ed25519 over ctx3, 64 bytes.
    """

    WHAT: ClassVar[str] = "consistency"
    KIND: ClassVar[int] = 11
    ROUND: ClassVar[Round] = Round.CONSISTENCY_CHECK

    signature: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return self.signature

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a signature, which is checked elsewhere."""
        return cls(reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class RosterProof:
    """A dealer's signature under the roster that it received (R5.2-11).

    Attributes:
        index: The dealer's roster index.
        digest: SHA-256 of its sealed bundles, 32 bytes.
        signature: Ed25519 over ctx1, index and digest, 64 bytes.
    """

    index: int
    digest: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Quorum(Decodable):
    """Opens Unmasking in profiles with signatures (PROTOCOL §5.5).

    Attributes:
        signatures: Roster index of each signer and its signature over ctx3, strictly
            ascending by index.
        roster_proofs: Of each other member of U3, strictly ascending by index
            (R5.3-13).
    """

    WHAT: ClassVar[str] = "quorum"
    KIND: ClassVar[int] = 12
    ROUND: ClassVar[Round] = Round.UNMASKING

    signatures: tuple[tuple[int, bytes], ...] = field(repr=False)
    roster_proofs: tuple[RosterProof, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.signatures)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().u32(len(self.signatures))
        for index, signature in self.signatures:
            writer.u32(index).fixed(signature)
        writer.u32(len(self.roster_proofs))
        for proof in self.roster_proofs:
            writer.u32(proof.index).fixed(proof.digest).fixed(proof.signature)
        return writer.getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode the signatures on the survivors, and the proofs.

        The indices of each list are strictly ascending, so that no client counts twice
        (R5.5-1).
        """
        signatures = tuple(
            (reader.u32(), reader.fixed(SIGNATURE_BYTES))
            for _ in range(_read_count(reader, MAX_CLIENTS))
        )
        _check_ascending(index for index, _ in signatures)
        proofs = tuple(
            RosterProof(
                reader.u32(), reader.fixed(DIGEST_BYTES), reader.fixed(SIGNATURE_BYTES)
            )
            for _ in range(_read_count(reader, MAX_CLIENTS))
        )
        _check_ascending(proof.index for proof in proofs)
        return cls(signatures, proofs)


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
    """Read a client's fate."""
    return Fate(reader.u8())  # a ValueError for any other number


@dataclass(frozen=True, slots=True)
class Released(Decodable):
    """The session is over and a sum exists; server to the clients of U3.

    Attributes:
        fate: The fate of the reader's input; never NEVER_FIXED.
        sum_hash: SHA-256 of the packed sum.
        size: Bytes of the packed sum.
        survivors: |U3|, how many inputs the sum adds up.
        kept_until: Time until which the sum can be fetched, in Unix seconds; 0 without
            a stated time.
    """

    WHAT: ClassVar[str] = "release"
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
    def _read(cls, reader: Reader) -> Self:
        """Decode the end of a session whose survivors were fixed."""
        fate = _read_fate(reader)
        if fate is Fate.NEVER_FIXED:
            raise ValueError("there is no sum before U3 is fixed")
        digest, size = reader.fixed(DIGEST_BYTES), reader.u64()
        return cls(fate, digest, size, reader.u32(), reader.u64())


@dataclass(frozen=True, slots=True)
class Aborted(Decodable):
    """The session is over for the reader, without a sum; server to every client.

    Attributes:
        fate: The fate of the reader's input.
        code: Why.
        reason: One sentence for people, at most 1000 bytes.
    """

    WHAT: ClassVar[str] = "abort"
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
    def _read(cls, reader: Reader) -> Self:
        """Decode the end that a peer states; the reason is safe to show."""
        fate = _read_fate(reader)
        # A code of a later release must not hide that the session is over.
        code = error_code(reader.u16())
        reason = reader.text(max_bytes=MAX_REASON_BYTES)
        return cls(fate, code, printable(reason, max_bytes=MAX_REASON_BYTES))


Update = (
    Roster
    | Neighbourhood
    | EdgesPublished
    | Delivery
    | Survivors
    | Quorum
    | Released
    | Aborted
)
Message = Advert | Edges | Bundles | Upload | Consistency | Shares | Complaint | Update

# Numbers of the journal and of the wire; a number never gets a second meaning.  Both
# forms of a roster share one.
KINDS: Final[Mapping[int, type[Message]]] = {
    kind.KIND: kind
    for kind in (
        Advert,
        Bundles,
        Upload,
        Shares,
        Roster,
        Delivery,
        Survivors,
        Released,
        Aborted,
        Complaint,
        Consistency,
        Quorum,
        Edges,
        EdgesPublished,
    )
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message in transit: its kind and its canonical bytes.

    Attributes:
        kind: Class of the message.
        data: Its canonical bytes, as received or as encoded once.
    """

    kind: type[Message]
    data: bytes = field(repr=False)
    # A roster is one envelope for a whole cohort: it is hashed once.
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Encode a message."""
        return cls(KINDS[message.KIND], message.encode())

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes; it distinguishes a repetition from a contradiction."""
        if not self._digest:
            digest = hashlib.sha256(self.data).digest()
            object.__setattr__(self, "_digest", digest)
        return self._digest

    def tagged(self) -> bytes:
        """Return the byte of its kind, then its data: a message or update, whole."""
        return bytes([self.kind.KIND]) + self.data

    def open(self) -> Message:
        """Decode the message.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return self.kind.decode(self.data)


def is_neighbourhood(envelope: Envelope) -> bool:
    """Whether an envelope holds a roster in the form of a neighbourhood."""
    return envelope.kind is Roster and envelope.data[:1] == bytes(
        (_NEIGHBOURHOOD_FORM,)
    )
