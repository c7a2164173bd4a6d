"""The receipt of a session between two aggregators, signed by both.

Rule 1: both sign both offers, the names of the clients whose shares the leader held,
        and the names in the sum. The helper also signs the digest of its part, and the
        leader the outcome. Offers state noise and epsilon, so both have signed these.
Rule 2: a signature covers a list of names by the top of a tree over it. The operator's
        receipt has the lists. A client's receipt has a path from its own name to each
        top, and no other name. Both have the same signatures over the same bytes.
Rule 3: receipts hold public bytes only, no seed and no share. Signing is deterministic,
        so a restarted aggregator signs the same bytes.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Self, TypeAlias

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.merkle import NODE_SIZE, MerkleTree, proven_top
from secagg.crypto.signature import IDENTITY_SIZE, SIGNATURE_SIZE
from secagg.crypto.transcript import domain_tag, hash_parts
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.messages import MAX_IDENTITY_BYTES, decode
from secagg.protocol.parameters import MAX_CLIENTS
from secagg.protocol.receipts.receipt import SHARED_MAGIC, Outcome
from secagg.two_aggregators.messages import MAX_NAMES_BYTES, read_names, write_names
from secagg.wire.limits import MAX_DESCRIPTOR_BYTES

COMMITMENT_BYTES: Final = 4 + NODE_SIZE
"""Size of the commitment to a list of names."""

_DIGEST: Final = 32
_NODE: Final = "shared name node"
# Hashes on the way from one of MAX_CLIENTS leaves to the top.
_MAX_PATH: Final = MAX_CLIENTS.bit_length()
_FIXED: Final = 1024
_EMPTY_TOP: Final = bytes(NODE_SIZE)

MAX_CLIENT_RECEIPT_BYTES: Final = (
    2 * MAX_DESCRIPTOR_BYTES + 2 * _MAX_PATH * NODE_SIZE + MAX_IDENTITY_BYTES + _FIXED
)
"""Longest receipt of a client."""

MAX_SHARED_RECEIPT_BYTES: Final = MAX_CLIENT_RECEIPT_BYTES + 2 * MAX_NAMES_BYTES
"""Longest receipt of an operator."""


class NameList:
    """A list of names and the tree over it.

    Args:
        names: Names in the order of their bytes, without duplicates.
        session_id: Id of the leader's session; leaves of two sessions differ.
        suite: Cipher suite of the session.
    """

    def __init__(
        self, names: tuple[str, ...], session_id: bytes, suite: CipherSuite
    ) -> None:
        self.names = names
        self._session_id = session_id
        self._suite = suite
        self._places = {name: place for place, name in enumerate(names)}

    @cached_property
    def _tree(self) -> MerkleTree | None:
        """The tree, hashed at its first use; 65,535 names take a tenth of a second."""
        leaves = [
            _leaf(place, name, self._session_id, self._suite)
            for place, name in enumerate(self.names)
        ]
        return MerkleTree(leaves, self._suite, node=_NODE) if leaves else None

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def commitment(self) -> bytes:
        """Number of names and the top over them, `COMMITMENT_BYTES`."""
        top = _EMPTY_TOP if self._tree is None else self._tree.top
        return len(self.names).to_bytes(4, "big") + top

    def path_of(self, name: str) -> "NamePath":
        """Return the proof of a name in this list; for an absent name only the top."""
        count, top = len(self.names), self.commitment[4:]
        place = self._places.get(name)
        if place is None or self._tree is None:
            return NamePath(count, top, None)
        return NamePath(count, top, place, self._tree.proof((place,)))


@dataclass(frozen=True, slots=True)
class NamePath:
    """The proof of one name that replaces a list in a client's receipt.

    Attributes:
        count: Number of names.
        top: Top of the tree over them, 32 bytes; zeros for an empty list.
        place: Index of the client's own name; None without a proof that it is listed.
        path: Hashes from that name to the top, 32 bytes each.
    """

    count: int
    top: bytes
    place: int | None
    path: tuple[bytes, ...] = field(default=(), repr=False)

    def commitment(self, name: str, session_id: bytes, suite: CipherSuite) -> bytes:
        """Return the commitment that was signed.

        Raises:
            RemoteProtocolError: BAD_PROOF; the path does not prove the name.
        """
        if self.place is not None:
            leaves = {self.place: _leaf(self.place, name, session_id, suite)}
            try:
                top = proven_top(self.count, leaves, self.path, suite, node=_NODE)
            except ValueError as error:  # a ProofError, or an index beyond the end
                raise _unproven(name, str(error)) from None
            if top != self.top:
                raise _unproven(name, "its path leads to another top")
        return self.count.to_bytes(4, "big") + self.top


def _unproven(name: str, complaint: str) -> SecAggError:
    return ErrorCode.BAD_PROOF.error(
        f"the receipt does not prove the place of {name!r}: {complaint}",
    )


Names: TypeAlias = tuple[str, ...] | NamePath


@dataclass(frozen=True, slots=True)
class PartStatement:
    """The statement that the helper signs, and that the leader's signature covers.

    Attributes:
        leader_offer: The leader's session descriptor, encoded.
        helper_offer: The helper's session descriptor, encoded.
        roster: Commitment to the clients whose shares the leader held.
        survivors: Commitment to the clients in the sum.
        part_digest: SHA-256 of the helper's packed part, noise included; zeros without
            a part.
    """

    leader_offer: bytes
    helper_offer: bytes
    roster: bytes
    survivors: bytes
    part_digest: bytes = bytes(_DIGEST)

    def to_sign(self, suite: CipherSuite) -> bytes:
        """Return the bytes that the helper signs."""
        return domain_tag("helper", "shared part", suite) + self.encode()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().blob(self.leader_offer).blob(self.helper_offer)
        writer.fixed(self.roster).fixed(self.survivors)
        return writer.fixed(self.part_digest).getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoAggregatorReceipt:
    """One session between two aggregators.

    Attributes:
        leader_offer: The leader's session descriptor, encoded.
        helper_offer: The helper's session descriptor, encoded.
        leader_key: The leader's receipt key, 32 bytes.
        helper_key: The helper's receipt key, 32 bytes; empty without its part.
        reader: The client whose receipt it is; empty for the operator's.
        roster: The clients whose shares the leader held.
        survivors: The clients in the sum; empty without a sum.
        part_digest: As `PartStatement.part_digest`.
        helper_signature: Over a `PartStatement`; empty without the helper's part.
        outcome: RELEASED or ABORTED.
        code: Error code of an aborted session; 0 otherwise.
        sum_hash: SHA-256 of the packed sum, 32 bytes; zeros without a sum.
        size: Length of the packed sum in bytes; 0 without a sum.
        ended: End of the session, in Unix seconds of the leader's clock.
        leader_signature: Over everything but `reader` and the names.
    """

    leader_offer: bytes
    helper_offer: bytes
    leader_key: bytes
    helper_key: bytes = b""
    reader: str = ""
    roster: Names
    survivors: Names
    part_digest: bytes = bytes(_DIGEST)
    helper_signature: bytes = field(default=b"", repr=False)
    outcome: Outcome
    code: int = 0
    sum_hash: bytes = bytes(_DIGEST)
    size: int = 0
    ended: int
    leader_signature: bytes = field(default=b"", repr=False)

    def to_sign(self, statement: PartStatement, suite: CipherSuite) -> bytes:
        """Return the bytes that the leader signs.

        Args:
            statement: The statement that both sign.
            suite: Cipher suite of the session.
        """
        writer = Writer().blob(statement.encode())
        writer.blob(self.leader_key).blob(self.helper_key).blob(self.helper_signature)
        writer.u8(self.outcome).u16(self.code).fixed(self.sum_hash)
        writer.u64(self.size).u64(self.ended)
        return domain_tag("leader", "shared sum", suite) + writer.getvalue()

    def for_reader(
        self, name: str, roster: NameList, survivors: NameList
    ) -> "TwoAggregatorReceipt":
        """Return the receipt of one client, which names no other client."""
        return replace(
            self,
            reader=name,
            roster=roster.path_of(name),
            survivors=survivors.path_of(name),
        )

    def encode(self) -> bytes:
        """Return the receipt's bytes."""
        writer = (
            Writer().fixed(SHARED_MAGIC).blob(self.leader_offer).blob(self.helper_offer)
        )
        writer.fixed(self.leader_key).blob(self.helper_key).text(self.reader)
        for names in (self.roster, self.survivors):
            _write(writer, names)
        writer.fixed(self.part_digest).blob(self.helper_signature)
        writer.u8(self.outcome).u16(self.code).fixed(self.sum_hash)
        writer.u64(self.size).u64(self.ended)
        return writer.fixed(self.leader_signature).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; verify nothing in it.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("a receipt of two aggregators", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a receipt; its bounds are checked before memory is used."""
        if reader.remaining > MAX_SHARED_RECEIPT_BYTES:
            raise ValueError(f"it has more than {MAX_SHARED_RECEIPT_BYTES} bytes")
        if reader.fixed(len(SHARED_MAGIC)) != SHARED_MAGIC:
            raise ValueError("it does not begin with the magic bytes")
        return cls(
            leader_offer=reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES),
            helper_offer=reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES),
            leader_key=reader.fixed(IDENTITY_SIZE),
            helper_key=reader.blob(max_bytes=IDENTITY_SIZE),
            reader=(name := reader.text(max_bytes=MAX_IDENTITY_BYTES)),
            roster=(read := _read_path if name else read_names)(reader),
            survivors=read(reader),
            part_digest=reader.fixed(_DIGEST),
            helper_signature=reader.blob(max_bytes=SIGNATURE_SIZE),
            outcome=Outcome(reader.u8()),
            code=reader.u16(),
            sum_hash=reader.fixed(_DIGEST),
            size=reader.u64(),
            ended=reader.u64(),
            leader_signature=reader.fixed(SIGNATURE_SIZE),
        )


def _write(writer: Writer, names: Names) -> None:
    """Write names, or the proof that one name is among them."""
    if isinstance(names, tuple):
        write_names(writer, names)
        return
    writer.u32(names.count).fixed(names.top).flag(names.place is not None)
    if names.place is not None:
        writer.u32(names.place).u8(len(names.path))
        for node in names.path:
            writer.fixed(node)


def _read_path(reader: Reader) -> NamePath:
    """Read the proof that one name is, or is not, in a list."""
    count, top = reader.u32(), reader.fixed(NODE_SIZE)
    if not reader.flag():
        return NamePath(count, top, None)
    place = reader.u32()
    # Its length is bounded by one byte.
    path = tuple(reader.fixed(NODE_SIZE) for _ in range(reader.u8()))
    return NamePath(count, top, place, path)


def _leaf(place: int, name: str, session_id: bytes, suite: CipherSuite) -> bytes:
    return hash_parts(
        "shared name", session_id, place.to_bytes(4, "big"), name.encode(), suite=suite
    )
