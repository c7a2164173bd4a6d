"""The helper's answer at the leader, checked completely before it is recorded.

Rule 1: a helper may lie in every byte. The leader refuses an invalid answer before it
        has recorded anything, so that no answer blocks a leader that is restarted.
Rule 2: an answer without the helper's signature is refused. It would leave a sum that
        the helper has not signed.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Self

from secagg.crypto.canonical import Reader
from secagg.crypto.entropy import SEED_SIZE
from secagg.crypto.modular import BadVectorError, UnsignedArray
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import SignatureError, verify
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.packing import packed_size, unpack
from secagg.two_aggregators.messages import NoisyShare
from secagg.two_aggregators.receipt import NameList, PartStatement


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
    return RemoteProtocolError(
        f"the helper's answer is invalid: {complaint}",
        code=code,
        sender=helper.aggregator,
        next_step=next_step,
    )
