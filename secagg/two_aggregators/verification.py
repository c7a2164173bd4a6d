"""Verification of receipts between two aggregators, without network or state.

Rule 1: the caller provides both keys, because a receipt cannot prove its own.
Rule 2: an error names the first step that fails. A valid receipt shows that both have
        signed the same offers, roster and survivors, and that the noise stated there
        achieves the claimed epsilon. It does not show that the noise was drawn, or that
        the sum is right.
"""

from dataclasses import dataclass

from secagg.crypto.signature import SignatureError, verify
from secagg.distributed_dp import AggregatorNoise, TwoAggregatorReport
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.packing import packed_size
from secagg.protocol.receipts.receipt import Outcome
from secagg.protocol.receipts.verifier import (
    ShownSession,
    VerificationStep,
    naming_step,
)
from secagg.two_aggregators.offers import check_pair
from secagg.two_aggregators.receipt import (
    NameList,
    NamePath,
    Names,
    PartStatement,
    TwoAggregatorReceipt,
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
        statement, sizes = _stated(receipt, leader)
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


def shown_between_two(verdict: TwoAggregatorVerdict, *, source: str) -> ShownSession:
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


def _stated(
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
    return statement, (_count(receipt.roster), _count(receipt.survivors))


def _commitment(names: Names, reader: str, leader: SessionDescriptor) -> bytes:
    session_id, suite = leader.session_id, leader.parameters.suite
    if isinstance(names, NamePath):
        return names.commitment(reader, session_id, suite)
    return NameList(names, session_id, suite).commitment


def _count(names: Names) -> int:
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
            raise _fault(
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
        raise _fault(complaint)


def _fault(
    complaint: str, code: ErrorCode = ErrorCode.POLICY_VIOLATION
) -> RemoteProtocolError:
    return RemoteProtocolError(complaint, code=code)
