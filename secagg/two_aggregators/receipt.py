"""Receipts of sums between two aggregators, and how they are verified.

Rule 1: both sign both offers, the names of the clients whose shares the leader held,
        and the names in the sum. The helper also signs the digest of its part, and the
        leader the outcome. Offers state noise and epsilon, so both have signed these.
Rule 2: a signature covers a list of names by the top of a tree over it. The operator's
        receipt has the lists. A client's receipt has a path from its own name to each
        top, and no other name. Both have the same signatures over the same bytes.
Rule 3: receipts hold public bytes only, no seed and no share. Signing is deterministic,
        so a restarted aggregator signs the same bytes.

They are verified without network or state:

Rule 4: the caller provides both keys, because a receipt cannot prove its own.
Rule 5: an error names the first step that fails. A valid receipt shows that both have
        signed the same offers, roster and survivors, and that the noise stated there
        achieves the claimed epsilon. It does not show that the noise was drawn, or that
        the sum is right.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final, Self, TypeAlias

from secagg.crypto.canonical import Decodable, Reader, Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.signature import (
    IDENTITY_SIZE,
    SIGNATURE_SIZE,
    SignatureError,
    verify,
)
from secagg.crypto.transcript import (
    NODE_SIZE,
    MerkleTree,
    domain_tag,
    hash_parts,
    proven_top,
)
from secagg.distributed_dp import AggregatorNoise, TwoAggregatorReport
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.protocol.packing import packed_size
from secagg.protocol.parameters import MAX_CLIENTS
from secagg.protocol.receipts.receipt import SHARED_MAGIC, Outcome
from secagg.protocol.receipts.verifier import (
    ShownSession,
    VerificationStep,
    naming_step,
)
from secagg.two_aggregators.messages import MAX_NAMES_BYTES, read_names, write_names
from secagg.two_aggregators.offers import check_pair
from secagg.wire.calls import MAX_DESCRIPTOR_BYTES

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
            _hash_name(place, name, self._session_id, self._suite)
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
            leaves = {self.place: _hash_name(self.place, name, session_id, suite)}
            try:
                top = proven_top(self.count, leaves, self.path, suite, node=_NODE)
            except ValueError as error:  # a ProofError, or an index beyond the end
                raise _unproven(name, str(error)) from None
            if top != self.top:
                raise _unproven(name, "its path leads to another top")
        return self.count.to_bytes(4, "big") + self.top


def _unproven(name: str, complaint: str) -> SecAggError:
    return ErrorCode.BAD_PROOF.error(
        f"the receipt does not prove the place of {name!r}: {complaint}"
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
class TwoAggregatorReceipt(Decodable):
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

    WHAT: ClassVar[str] = "a receipt of two aggregators"

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
            _write_names(writer, names)
        writer.fixed(self.part_digest).blob(self.helper_signature)
        writer.u8(self.outcome).u16(self.code).fixed(self.sum_hash)
        writer.u64(self.size).u64(self.ended)
        return writer.fixed(self.leader_signature).getvalue()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        """Decode a receipt; check its bounds before memory is used, no more."""
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


def _write_names(writer: Writer, names: Names) -> None:
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


def _hash_name(place: int, name: str, session_id: bytes, suite: CipherSuite) -> bytes:
    """Return the leaf of a name in the tree of names."""
    return hash_parts(
        "shared name", session_id, place.to_bytes(4, "big"), name.encode(), suite=suite
    )


@dataclass(frozen=True, slots=True)
class TwoAggregatorVerdict:
    """What a valid receipt shows.

    Attributes:
        receipt: Its fields.
        leader: The leader's offer.
        helper: The helper's offer.
        roster: Number of shares that the leader held.
        survivors: Number of vectors in the sum; 0 without a sum.
        is_included: In a client's receipt, True if both have signed that its own name
            is among the survivors. False proves nothing: the leader can omit the proof,
            and no signature shows that a client is *not* in the sum. None in an
            operator's receipt.
        privacy: Privacy cost of the whole task, recomputed from the signed offers.
        statement: The statement that both have signed.
    """

    receipt: TwoAggregatorReceipt
    leader: SessionDescriptor
    helper: SessionDescriptor
    roster: int
    survivors: int
    is_included: bool | None
    privacy: TwoAggregatorReport
    statement: PartStatement

    @property
    def is_released(self) -> bool:
        """Whether both have signed a sum; else the leader alone signed the outcome."""
        return self.receipt.outcome is Outcome.RELEASED


def verify_shared_receipt(
    data: bytes, *, leader_key: bytes, helper_key: bytes
) -> TwoAggregatorVerdict:
    """Verify a receipt of a session between two aggregators.

    Args:
        data: Bytes of the receipt.
        leader_key: Receipt key of the leader, 32 bytes.
        helper_key: Receipt key of the helper, 32 bytes.

    Returns:
        What the receipt shows.

    Raises:
        ReceiptError: The receipt is invalid; names the first step that fails.
    """
    with naming_step(VerificationStep.ENCODING):
        receipt = TwoAggregatorReceipt.decode(data)
    with naming_step(VerificationStep.OFFER):
        leader = SessionDescriptor.decode(receipt.leader_offer)
        helper = SessionDescriptor.decode(receipt.helper_offer)
        check_pair(leader, helper)
    with naming_step(VerificationStep.VIEW):
        statement, sizes = _statement_of(receipt, leader)
    with naming_step(VerificationStep.CREDENTIALS):
        _require(leader_key != helper_key, "one key cannot sign for both aggregators")
        _check_keys(receipt, leader_key=leader_key, helper_key=helper_key)
    with naming_step(VerificationStep.SETS):
        noise = AggregatorNoise.from_parameters(leader.parameters)
        _check_sets(receipt, leader, sizes)
    with naming_step(VerificationStep.SIGNATURES):
        _check_signatures(receipt, statement, leader)
    with naming_step(VerificationStep.OUTCOME):
        _check_outcome(receipt, leader)
    with naming_step(VerificationStep.CLAIM):
        privacy = noise.kept_claim()
    shown = receipt.survivors
    is_included = shown.place is not None if isinstance(shown, NamePath) else None
    return TwoAggregatorVerdict(
        receipt, leader, helper, *sizes, is_included, privacy, statement
    )


def pair_facts(verdict: TwoAggregatorVerdict, *, source: str) -> ShownSession:
    """Return the facts of a receipt that are compared with other receipts.

    An honest aggregator signs one statement for each session, so an operator's receipt
    and those of all clients agree in every entry.

    Args:
        verdict: Verdict of a valid receipt.
        source: Origin of the receipt.
    """
    receipt, statement = verdict.receipt, verdict.statement
    is_released = verdict.is_released
    return ShownSession(
        source,
        verdict.leader.session_id,
        {
            "roster": statement.roster,
            "outcome": receipt.outcome.name.encode(),
            "U": statement.survivors if is_released else b"",
            "part of the helper": receipt.part_digest if is_released else b"",
            "sum": receipt.sum_hash if is_released else b"",
        },
    )


def _statement_of(
    receipt: TwoAggregatorReceipt, leader: SessionDescriptor
) -> tuple[PartStatement, tuple[int, int]]:
    """Return the statement that both must have signed, and the sizes of both lists."""
    roster, survivors = (
        _commitment(names, receipt.reader, leader)
        for names in (receipt.roster, receipt.survivors)
    )
    statement = PartStatement(
        receipt.leader_offer,
        receipt.helper_offer,
        roster,
        survivors,
        receipt.part_digest,
    )
    return statement, (_count_names(receipt.roster), _count_names(receipt.survivors))


def _commitment(names: Names, reader: str, leader: SessionDescriptor) -> bytes:
    """Return the commitment to a list of names, whole or in part."""
    session_id, suite = leader.session_id, leader.parameters.suite
    if isinstance(names, NamePath):
        return names.commitment(reader, session_id, suite)
    return NameList(names, session_id, suite).commitment


def _count_names(names: Names) -> int:
    """Return how many names a list has."""
    return names.count if isinstance(names, NamePath) else len(names)


def _check_keys(
    receipt: TwoAggregatorReceipt, *, leader_key: bytes, helper_key: bytes
) -> None:
    """Refuse keys other than those that the verifier was given."""
    pairs = [("leader", receipt.leader_key, leader_key)]
    if receipt.helper_signature:
        pairs.append(("helper", receipt.helper_key, helper_key))
    for part, stated, expected in pairs:
        _require(
            stated == expected,
            f"the {part} signs as ed25519:{stated.hex()}, which is not the key that "
            "this verifier was given",
        )


def _check_sets(
    receipt: TwoAggregatorReceipt, leader: SessionDescriptor, sizes: tuple[int, int]
) -> None:
    """Refuse roster and survivors that the offers do not allow."""
    parameters, (roster, survivors) = leader.parameters, sizes
    _require(
        roster <= parameters.max_clients,
        f"the leader held {roster} shares, more than {parameters.max_clients}",
    )
    if receipt.outcome is Outcome.RELEASED:
        _require(
            parameters.min_survivors <= survivors <= roster,
            f"a sum of {survivors} of {roster} vectors, at least "
            f"{parameters.min_survivors} are needed",
        )
    else:
        _require(survivors == 0, "survivors are listed without a sum")
    held, summed = receipt.roster, receipt.survivors
    if isinstance(held, NamePath) and isinstance(summed, NamePath):
        is_subset = summed.place is None or held.place is not None
    else:
        is_subset = set(_listed_names(summed)) <= set(_listed_names(held))
    _require(is_subset, "the sum includes a client whose share the leader did not hold")


def _listed_names(names: Names) -> tuple[str, ...]:
    return names if isinstance(names, tuple) else ()


def _check_signatures(
    receipt: TwoAggregatorReceipt, statement: PartStatement, leader: SessionDescriptor
) -> None:
    """Refuse a receipt that its aggregators have not signed."""
    suite = leader.parameters.suite
    signed = [
        (
            "leader",
            receipt.leader_key,
            receipt.to_sign(statement, suite),
            receipt.leader_signature,
        )
    ]
    if receipt.outcome is Outcome.RELEASED:
        helper = receipt.helper_key, statement.to_sign(suite), receipt.helper_signature
        signed.append(("helper", *helper))
    for part, key, message, signature in signed:
        try:
            verify(key, message, signature)
        except SignatureError as error:
            raise _verification_error(
                f"the {part} has not signed this: {error}", ErrorCode.BAD_SIGNATURE
            ) from None


def _check_outcome(receipt: TwoAggregatorReceipt, leader: SessionDescriptor) -> None:
    """Refuse facts that contradict the stated outcome."""
    parameters = leader.parameters
    if receipt.outcome is Outcome.RELEASED:
        size = packed_size(parameters.dimension, parameters.bits)
        _require(receipt.code == 0, "a released sum has an abort code")
        _require(receipt.size == size, f"a sum has {size} bytes, not {receipt.size}")
        return
    _require(receipt.outcome is Outcome.ABORTED, "the outcome is unknown")
    _require(receipt.code != 0, "an aborted session has no abort code")
    rest = (receipt.size, any(receipt.sum_hash), any(receipt.part_digest))
    _require(not any(rest), "an aborted session has facts of a sum")
    _require(
        not receipt.helper_signature and not receipt.helper_key,
        "the helper has signed a part of an aborted session",
    )


def _require(holds: bool, complaint: str) -> None:  # noqa: FBT001 - the checked value
    if not holds:
        raise _verification_error(complaint)


def _verification_error(
    complaint: str, code: ErrorCode = ErrorCode.POLICY_VIOLATION
) -> RemoteProtocolError:
    return code.error(complaint, kind=RemoteProtocolError)
