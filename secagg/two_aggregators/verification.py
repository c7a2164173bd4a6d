"""What anybody can make of a receipt between two aggregators, without network or state.

Rule 1: whoever verifies brings both keys: a receipt cannot vouch for its own.
Rule 2: the first step that fails is named. What passes shows that both have signed the
        same offers, roster and survivors, and that the noise which they promise there
        keeps the epsilon which they claim. Whether they have drawn it, and whether the
        sum is right, cannot be seen.
"""

from dataclasses import dataclass

from secagg.crypto.signature import SignatureError, verify
from secagg.distributed_dp import AggregatorNoise, TwoAggregatorReport
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.packing import packed_size
from secagg.protocol.receipts.receipt import Outcome
from secagg.protocol.receipts.verifier import ShownSession, Step, naming_step
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
    """What a receipt that passes says.

    Attributes:
        receipt: Its fields.
        leader: The leader's offer.
        helper: The helper's.
        roster: How many shares the leader held.
        survivors: How many vectors the sum adds up; 0 without a sum.
        is_included: In a client's receipt, True where both have signed that its own
            name is one of them, and False where nothing shows it: whoever hands a
            receipt out can leave a name's place out of it, so that nobody has signed
            that a client is *not* in the sum. None in an operator's.
        privacy: What the whole task costs, computed anew from what both have signed.
        statement: What both have signed of the sum.
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
        """Whether both have signed a sum; else the leader alone says that it ended."""
        return self.receipt.outcome is Outcome.RELEASED


def verify_shared_receipt(
    data: bytes, *, leader_key: bytes, helper_key: bytes
) -> TwoAggregatorVerdict:
    """Judge a receipt of a session between two aggregators.

    Args:
        data: Its bytes.
        leader_key: What the leader is to sign with, 32 bytes.
        helper_key: What the helper is to sign with.

    Returns:
        What it shows.

    Raises:
        ReceiptError: The first step that fails, and why.
    """
    with naming_step(Step.ENCODING):
        receipt = TwoAggregatorReceipt.decode(data)
    with naming_step(Step.OFFER):
        leader = SessionDescriptor.decode(receipt.leader_offer)
        helper = SessionDescriptor.decode(receipt.helper_offer)
        check_pair(leader, helper)
    with naming_step(Step.VIEW):
        statement, sizes = _stated(receipt, leader)
    with naming_step(Step.CREDENTIALS):
        _require(leader_key != helper_key, "one key cannot sign for both aggregators")
        _check_keys(receipt, leader_key=leader_key, helper_key=helper_key)
    with naming_step(Step.SETS):
        noise = AggregatorNoise.from_parameters(leader.parameters)
        _check_sets(receipt, leader, sizes)
    with naming_step(Step.SIGNATURES):
        _check_signatures(receipt, statement, leader)
    with naming_step(Step.OUTCOME):
        _check_outcome(receipt, leader)
    with naming_step(Step.CLAIM):
        privacy = noise.kept_claim()
    shown = receipt.survivors
    is_included = shown.place is not None if isinstance(shown, NamePath) else None
    return TwoAggregatorVerdict(
        receipt, leader, helper, *sizes, is_included, privacy, statement
    )


def shown_between_two(verdict: TwoAggregatorVerdict, *, source: str) -> ShownSession:
    """Return what a receipt shows of a session between two, to compare it with others.

    An aggregator that keeps to its part signs one statement of each session, so that
    an operator's receipt and those of all clients agree in every entry.

    Args:
        verdict: Of a receipt that holds.
        source: Where the receipt comes from.
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
    """Return what both are to have signed, and how many names the two lists have."""
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
    parameters, (roster, survivors) = leader.parameters, sizes
    _require(
        roster <= parameters.max_clients,
        f"the leader held {roster} shares, {parameters.max_clients} at most",
    )
    if receipt.outcome is Outcome.RELEASED:
        _require(
            parameters.min_survivors <= survivors <= roster,
            f"a sum of {survivors} of {roster} vectors, at least "
            f"{parameters.min_survivors} are needed",
        )
    else:
        _require(survivors == 0, "without a sum nobody survives")
    held, summed = receipt.roster, receipt.survivors
    if isinstance(held, NamePath) and isinstance(summed, NamePath):
        is_subset = summed.place is None or held.place is not None
    else:
        is_subset = set(_listed_names(summed)) <= set(_listed_names(held))
    _require(is_subset, "somebody is in the sum whose share the leader did not hold")


def _listed_names(names: Names) -> tuple[str, ...]:
    return names if isinstance(names, tuple) else ()


def _check_signatures(
    receipt: TwoAggregatorReceipt, statement: PartStatement, leader: SessionDescriptor
) -> None:
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
    parameters = leader.parameters
    if receipt.outcome is Outcome.RELEASED:
        size = packed_size(parameters.dimension, parameters.bits)
        _require(receipt.code == 0, "a sum that was released has a reason to abort")
        _require(receipt.size == size, f"a sum has {size} bytes, not {receipt.size}")
        return
    _require(receipt.outcome is Outcome.ABORTED, "a sum is released, or there is none")
    _require(receipt.code != 0, "a session that was aborted has a reason")
    rest = (receipt.size, any(receipt.sum_hash), any(receipt.part_digest))
    _require(not any(rest), "there is something of a sum that was not released")
    _require(
        not receipt.helper_signature and not receipt.helper_key,
        "the helper has signed a part of no sum",
    )


def _require(holds: bool, complaint: str) -> None:  # noqa: FBT001 - the value asked about
    if not holds:
        raise _fault(complaint)


def _fault(
    complaint: str, code: ErrorCode = ErrorCode.POLICY_VIOLATION
) -> RemoteProtocolError:
    return RemoteProtocolError(complaint, code=code)
