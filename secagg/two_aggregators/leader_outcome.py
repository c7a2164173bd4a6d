"""The leader's record of an ended session: its receipt, its outcome and its sum.

The helper's answer is checked completely before it is recorded:

Rule 1: a helper may lie in every byte. The leader refuses an invalid answer before it
        has recorded anything, so that no answer blocks a leader that is restarted.
Rule 2: an answer without the helper's signature is refused. It would leave a sum that
        the helper has not signed.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.entropy import SEED_SIZE
from secagg.crypto.modular import BadVectorError, UnsignedArray
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey, SignatureError, verify
from secagg.distributed_dp import AggregatorNoise, SumError, SumEstimate
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Aborted, Envelope, Fate, Released
from secagg.protocol.packing import packed_size, unpack
from secagg.protocol.receipts.receipt import Outcome
from secagg.two_aggregators.messages import NoisyShare
from secagg.two_aggregators.receipt import (
    MAX_SHARED_RECEIPT_BYTES,
    NameList,
    PartStatement,
    TwoAggregatorReceipt,
)


@dataclass(frozen=True, slots=True, eq=False)
class HelperAnswer:
    """The helper's part of a sum, checked.

    Attributes:
        answer_digest: SHA-256 of the received answer, 32 bytes.
        names: The clients in the sum, in the order of their bytes.
        vector: The sum of the helper's shares with its noise, residues of shape
            (dimension,).
        statement: What the helper has signed.
        key: The helper's receipt key, 32 bytes.
        signature: Over the statement, 64 bytes.
    """

    answer_digest: bytes
    names: tuple[str, ...]
    vector: UnsignedArray = field(repr=False)
    statement: PartStatement = field(repr=False)
    key: bytes
    signature: bytes = field(repr=False)

    @classmethod
    def checked(
        cls,
        answer: bytes,
        leader: SessionDescriptor,
        helper: SessionDescriptor,
        named: tuple[str, ...],
        key: bytes,
    ) -> Self:
        """Decode the helper's answer, and refuse an invalid one.

        Args:
            answer: Its bytes.
            leader: The leader's offer of the session.
            helper: The helper's offer.
            named: The clients whose shares the leader holds.
            key: Receipt key that the helper must sign with, 32 bytes.

        Raises:
            RemoteProtocolError: BAD_ENCODING, BAD_SIGNATURE or U3_INVALID; the helper
                lies.
        """
        part, parameters = NoisyShare.decode(answer), leader.parameters
        size = packed_size(parameters.dimension, parameters.bits)
        for holds, complaint in (
            (part.session_id == leader.session_id, "it belongs to another session"),
            (
                set(part.names) <= set(named),
                "it names clients that the leader did not name",
            ),
            (
                len(part.names) >= parameters.min_survivors,
                f"it adds up only {len(part.names)} shares",
            ),
            (len(part.packed) == size, "its vector has another size"),
        ):
            if not holds:
                raise _invalid(complaint, helper)
        try:
            vector = unpack(
                part.packed, parameters.dimension, parameters.bits, parameters.modulus
            )
        except BadVectorError as error:
            raise _invalid(str(error), helper) from None
        roster, survivors = (
            NameList(names, leader.session_id, parameters.suite).commitment
            for names in (named, part.names)
        )
        statement = PartStatement(
            leader.encode(),
            helper.encode(),
            roster,
            survivors,
            sha256(part.packed).digest(),
        )
        if part.key != key:
            raise _invalid(
                f"it is signed with the wrong key, ed25519:{part.key.hex()}",
                helper,
                code=ErrorCode.BAD_SIGNATURE,
                next_step="Compare [helper] receipt_key with the key that the helper "
                "prints at startup.",
            )
        try:
            verify(key, statement.to_sign(parameters.suite), part.signature)
        except SignatureError as error:
            raise _invalid(str(error), helper, code=ErrorCode.BAD_SIGNATURE) from None
        return cls(
            sha256(answer).digest(),
            part.names,
            vector,
            statement,
            part.key,
            part.signature,
        )


@dataclass(frozen=True, slots=True)
class AgreedAnswer:
    """The leader's record before it computes a sum.

    Attributes:
        answer_digest: SHA-256 of the helper's answer, 32 bytes.
        noise_seed: Seed of the leader's noise.
    """

    answer_digest: bytes
    noise_seed: SecretBytes

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return self.answer_digest + self.noise_seed.reveal()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        reader = Reader(data, "set agreed on")
        return cls(reader.fixed(32), SecretBytes(reader.fixed(SEED_SIZE)))


def _invalid(
    complaint: str,
    helper: SessionDescriptor,
    *,
    code: ErrorCode = ErrorCode.U3_INVALID,
    next_step: str = "Ask the helper's operator; further sessions would fail the same.",
) -> RemoteProtocolError:
    """Return the error of an invalid answer of the helper."""
    return code.error(
        f"the helper's answer is invalid: {complaint}",
        kind=RemoteProtocolError,
        sender=helper.aggregator,
        fix=next_step,
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
        return self._name_list(self.receipt.roster)

    @cached_property
    def included(self) -> NameList:
        """The clients whose vectors are in the sum."""
        return self._name_list(self.receipt.survivors)

    def _name_list(self, names: object) -> NameList:
        """Return names as the leader has them, whole."""
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
