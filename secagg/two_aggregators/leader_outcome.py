"""The leader's record of an ended session: its receipt, its outcome and its sum."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp import AggregatorNoise, SumError, SumEstimate
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Aborted, Envelope, Fate, Released
from secagg.protocol.receipts.receipt import Outcome
from secagg.two_aggregators.helper_answer import HelperAnswer
from secagg.two_aggregators.receipt import (
    MAX_SHARED_RECEIPT_BYTES,
    NameList,
    PartStatement,
    TwoAggregatorReceipt,
)


class LeaderOutcome:
    """The outcome of an ended session.

    Args:
        receipt: The operator's receipt, signed.
        outcome: What clients receive.
    """

    def __init__(
        self, receipt: TwoAggregatorReceipt, outcome: Released | Aborted
    ) -> None:
        self.receipt = receipt
        self.outcome = outcome

    @classmethod
    def signed(  # noqa: PLR0913 - one argument for each signed fact
        cls,
        leader: SessionDescriptor,
        helper: SessionDescriptor,
        held: tuple[str, ...],
        part: HelperAnswer | None,
        outcome: Released | Aborted,
        *,
        ended: int,
        key: IdentityKey,
    ) -> Self:
        """Return the signed outcome of a session.

        Args:
            leader: The leader's offer.
            helper: The helper's offer.
            held: The clients whose shares the leader held, in the order of their bytes.
            part: The helper's part of a sum; None without a sum.
            outcome: What clients receive.
            ended: End of the session, in Unix seconds.
            key: The leader's receipt key.
        """
        suite = leader.parameters.suite
        result = cls(
            TwoAggregatorReceipt(
                leader_offer=leader.encode(),
                helper_offer=helper.encode(),
                leader_key=key.public_bytes,
                roster=held,
                survivors=(),
                outcome=Outcome.ABORTED,
                code=outcome.code if isinstance(outcome, Aborted) else 0,
                ended=ended,
            ),
            outcome,
        )
        if part is not None and isinstance(outcome, Released):
            result.receipt = replace(
                result.receipt,
                helper_key=part.key,
                survivors=part.names,
                part_digest=part.statement.part_digest,
                helper_signature=part.signature,
                outcome=Outcome.RELEASED,
                sum_hash=outcome.sum_hash,
                size=outcome.size,
            )
        statement = PartStatement(
            result.receipt.leader_offer,
            result.receipt.helper_offer,
            result.held.commitment,
            result.included.commitment,
            result.receipt.part_digest,
        )
        signature = key.sign(result.receipt.to_sign(statement, suite))
        result.receipt = replace(result.receipt, leader_signature=signature)
        return result

    def encode(self) -> bytes:
        """Return the bytes to store."""
        writer = Writer().blob(self.receipt.encode())
        writer.flag(isinstance(self.outcome, Released))
        return writer.fixed(self.outcome.encode()).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        reader = Reader(data, "session outcome")
        receipt = reader.blob(max_bytes=MAX_SHARED_RECEIPT_BYTES)
        kind = Released if reader.flag() else Aborted
        outcome = kind.decode(reader.fixed(reader.remaining))
        return cls(TwoAggregatorReceipt.decode(receipt), outcome)

    @cached_property
    def offer(self) -> SessionDescriptor:
        """The leader's offer."""
        return SessionDescriptor.decode(self.receipt.leader_offer)

    @cached_property
    def held(self) -> NameList:
        """The clients whose shares the leader held."""
        return self._list(self.receipt.roster)

    @cached_property
    def included(self) -> NameList:
        """The clients whose vectors are in the sum."""
        return self._list(self.receipt.survivors)

    def _list(self, names: object) -> NameList:
        assert isinstance(names, tuple)  # noqa: S101 - the operator's receipt has lists
        return NameList(names, self.offer.session_id, self.offer.parameters.suite)

    def update_for(self, name: str) -> Envelope:
        """Return the final update for one client."""
        fate = Fate.INCLUDED if name in self.included else Fate.NOT_INCLUDED
        return Envelope.of(replace(self.outcome, fate=fate))

    def receipt_for(self, name: str) -> bytes:
        """Return the receipt of one client, which names no other client."""
        return self.receipt.for_reader(name, self.held, self.included).encode()


@dataclass(frozen=True, slots=True)
class TwoAggregatorSum(SumEstimate):
    """A sum that two aggregators have released, with its error.

    Attributes:
        session_number: Number of the leader's session.
        session_id: Id of the leader's session.
        inputs: Number of vectors in the sum.
        ended: Time of the release, in Unix seconds of the leader's clock.
        sum_hash: SHA-256 of the packed residues, which clients receive as well.
        noise: The noise of the task when the session was opened.
        values: The estimate, shape (dim,), caller's units.
        residues: The noisy sum modulo m, shape (dimension,).
        error: How far `values` may be from the sum of the vectors, if both aggregators
            have added their noise.
    """

    session_number: int
    session_id: bytes
    inputs: int
    ended: int
    sum_hash: bytes
    noise: AggregatorNoise = field(repr=False)
    values: npt.NDArray[np.float64] = field(repr=False)
    residues: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    error: SumError = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute the error from noise and inputs."""
        error = self.noise.sum_error(inputs=self.inputs)
        object.__setattr__(self, "error", error)

    def _cost(self) -> str:
        return self.noise.report().figures()

    def facts(self) -> dict[str, object]:
        """Return the fields of a report, as JSON values."""
        ended, budget = datetime.fromtimestamp(self.ended, UTC), self.noise.budget
        return {
            "session_number": self.session_number,
            "session_id": self.session_id.hex(),
            "released": ended.isoformat(timespec="seconds"),
            "inputs": self.inputs,
            "standard_error": self.standard_error,
            "no_interval": list(self.error.flaws),
            "dimension": self.noise.dim,
            "sum_hash": self.sum_hash.hex(),
            "charges_in_budget": budget.charges,
            "budget_epsilon": budget.epsilon,
            "budget_delta": budget.delta,
            "privacy": self.noise.report().to_dict(),
        }
