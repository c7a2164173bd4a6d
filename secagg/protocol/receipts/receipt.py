"""The bytes of an audit receipt: everything that a session's contexts cover.

Rule 1: it holds public bytes only, as they were sent and received.  Its reader
        recomputes all that follows from them (`secagg.protocol.receipts.verifier`).
Rule 2: the hash at its end detects accidents.  A forger can recompute it, but cannot
        make the signatures inside.

Source: PROTOCOL §5.8.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum, unique
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode

SHARED_MAGIC: Final = b"SecAgg-between/1"
"""The first 16 bytes of a receipt of two aggregators (`two_aggregators.receipt`)."""

_MAGIC: Final = b"SecAgg-receipt/1"
_HASH_BYTES: Final = 32
_SEED_BYTES: Final = 32
_MAX_CERTIFICATE_BYTES: Final = 1 << 16
_EVIDENCE_BYTES: Final = 32 + 64

MAX_RECEIPT_BYTES: Final = 64 << 20
"""Largest receipt: a roster of 65535 with credentials, its quorum, and disputes."""


@unique
class WrittenBy(IntEnum):
    """The party that wrote a receipt, by its own statement."""

    SERVER = 0
    CLIENT = 1


@unique
class Outcome(IntEnum):
    """How a session ended."""

    RELEASED = 0
    ABORTED = 1
    DISCARDED = 2
    """Unmasked and not released (R5-5): the server could have known the sum."""


@unique
class _View(IntEnum):
    NOTHING = 0
    ROSTER = 1
    COMMITMENT = 2


def offer_in(data: bytes) -> bytes:
    """Return the encoded offer at the beginning of a receipt; of two, the leader's.

    Raises:
        ValueError: The bytes do not begin like a receipt.
    """
    reader = Reader(data, "receipt")
    magic = reader.fixed(len(_MAGIC))
    if magic not in (_MAGIC, SHARED_MAGIC):
        raise ValueError("it does not begin like one")
    if magic == _MAGIC:
        reader.u8()
    return reader.blob(max_bytes=MAX_RECEIPT_BYTES)


@dataclass(frozen=True, slots=True)
class RosterCommitment:
    """What a reader of its neighbourhood knows of the whole roster.

    Attributes:
        clients: Number n of clients, as the server stated it.
        top: Of the tree over their adverts, 32 bytes.
        graph_seed: 32 bytes.
    """

    clients: int
    top: bytes
    graph_seed: bytes


@dataclass(frozen=True, slots=True, order=True)
class Dispute:
    """Two clients of which one lies, as stated by the writer of the receipt.

    Attributes:
        accuser: Index of a client.
        accused: Index of another.
        code: The code of the complaint.
        evidence: SHA-256 of the dealer's sealed bundles and its signature over them, 96
            bytes; empty in profiles without signatures.  It proves that the server has
            not invented what was dealt, and not which of the two lies.
    """

    accuser: int
    accused: int
    code: int
    evidence: bytes = field(default=b"", repr=False)

    @property
    def dealer(self) -> int:
        """The client that dealt the share in dispute.

        Holders complain about dealers.  If a share did not belong to the others, its
        dealer is named first.
        """
        is_wrong_share = self.code == ErrorCode.RECONSTRUCTION_FAILED
        return self.accuser if is_wrong_share else self.accused


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReceipt:
    """One session, as its writer saw it.

    Attributes:
        writer: The party that wrote it.  A server knows how often it has subtracted
            each layer of noise, and a client does not.
        offer: The encoded session descriptor.
        view: The roster as it was received, or what commits to it; None if U1 was never
            fixed, or the writer left before.
        edge_root: Empty in profiles without drawn edges.
        share_holders: Bitmap of U2; empty if it was never fixed.
        survivors: Bitmap of U3; empty if it was never fixed.
        quorum: The quorum message; empty without one.
        outcome: How the session ended.
        code: Why, if it was not released; 0 if it was.
        sum_hash: SHA-256 of the packed sum, 32 bytes; zeros if it was not released.
        size: Bytes of the packed sum; 0 if it was not released.
        certificate: Of the noise layers; empty without them.  A server's receipt of a
            released sum has one if the task has layers.
        disputes: Strictly ascending by accuser, accused.
    """

    writer: WrittenBy
    offer: bytes
    view: bytes | RosterCommitment | None = None
    edge_root: bytes = b""
    share_holders: bytes = b""
    survivors: bytes = b""
    quorum: bytes = b""
    outcome: Outcome
    code: int = 0
    sum_hash: bytes = bytes(_HASH_BYTES)
    size: int = 0
    certificate: bytes = b""
    disputes: tuple[Dispute, ...] = ()

    def encode(self) -> bytes:
        """Return the receipt's bytes, with the hash of all of them at the end."""
        writer = Writer().fixed(_MAGIC).u8(self.writer).blob(self.offer)
        match self.view:
            case None:
                writer.u8(_View.NOTHING)
            case RosterCommitment(clients, top, graph_seed):
                writer.u8(_View.COMMITMENT).u32(clients).fixed(top).blob(graph_seed)
            case roster:
                writer.u8(_View.ROSTER).blob(roster)
        writer.blob(self.edge_root).blob(self.share_holders).blob(self.survivors)
        writer.blob(self.quorum).u8(self.outcome).u16(self.code)
        writer.fixed(self.sum_hash).u64(self.size).blob(self.certificate)
        writer.u32(len(self.disputes))
        for dispute in self.disputes:
            writer.u32(dispute.accuser).u32(dispute.accused).u16(dispute.code)
            writer.blob(dispute.evidence)
        body = writer.getvalue()
        return body + _closing_hash(body)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; the hash at the end is not checked.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        reader = Reader(data, "receipt")
        try:
            if len(data) > MAX_RECEIPT_BYTES:
                raise ValueError(f"it has more than {MAX_RECEIPT_BYTES} bytes")  # noqa: TRY301 - joins the reader's own
            receipt = cls._read(reader)
            reader.end()
        except ValueError as error:
            raise ErrorCode.BAD_ENCODING.error(
                f"malformed receipt: {error}",
                fix="Name a receipt: receipt-<n>.bin of an aggregator, or "
                "<sum>.receipt.bin of a client.",
            ) from None
        return receipt

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a receipt; what it states is verified elsewhere."""
        if reader.fixed(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin like one")

        def rest() -> bytes:
            return reader.blob(max_bytes=MAX_RECEIPT_BYTES)

        receipt = cls(
            writer=WrittenBy(reader.u8()),
            offer=rest(),
            view=_read_view(reader, rest),
            edge_root=rest(),
            share_holders=rest(),
            survivors=rest(),
            quorum=rest(),
            outcome=Outcome(reader.u8()),
            code=reader.u16(),
            sum_hash=reader.fixed(_HASH_BYTES),
            size=reader.u64(),
            certificate=reader.blob(max_bytes=_MAX_CERTIFICATE_BYTES),
        )
        # Bounded by the bytes that exist: the reader refuses to read further.
        disputes = [_read_dispute(reader) for _ in range(reader.u32())]
        reader.fixed(_HASH_BYTES)
        return replace(receipt, disputes=tuple(disputes))

    def is_undamaged(self, data: bytes) -> bool:
        """Return whether these are the bytes of this receipt, hash included."""
        return self.encode() == data


def _read_view(
    reader: Reader, rest: Callable[[], bytes]
) -> bytes | RosterCommitment | None:
    """Decode what the writer has seen of the roster."""
    match _View(reader.u8()):
        case _View.NOTHING:
            return None
        case _View.ROSTER:
            return rest()
        case _View.COMMITMENT:
            clients, top = reader.u32(), reader.fixed(_HASH_BYTES)
            graph_seed = reader.blob(max_bytes=_SEED_BYTES)
            if len(graph_seed) != _SEED_BYTES:
                raise ValueError(f"a graph seed has {_SEED_BYTES} bytes")
            return RosterCommitment(clients, top, graph_seed)


def _read_dispute(reader: Reader) -> Dispute:
    """Read a dispute with its evidence."""
    pair, code = (reader.u32(), reader.u32()), reader.u16()
    evidence = reader.blob(max_bytes=_EVIDENCE_BYTES)
    if len(evidence) not in {0, _EVIDENCE_BYTES}:
        raise ValueError(f"evidence has 0 or {_EVIDENCE_BYTES} bytes")
    return Dispute(*pair, code, evidence)


def _closing_hash(body: bytes) -> bytes:
    """H("receipt"; body): a receipt outlives its session, hence it names no suite."""
    tag = domain_tag("hash", "receipt", None)
    return hashlib.sha256(tag + len(body).to_bytes(4, "big") + body).digest()
