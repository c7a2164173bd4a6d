"""What a leader makes of the helper's answer: judged whole, before it is agreed on.

Rule 1: a helper may lie in every byte. What is no part of this session's sum is refused
        before the leader has written anything down, so that no answer can hold up a
        leader that is started again.
Rule 2: an answer without the helper's signature is no answer: it would leave a sum
        behind for which the helper has not vouched.
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
    """The helper's part of a sum.

    Attributes:
        answer_digest: SHA-256 of the answer as it came, 32 bytes.
        names: Over whom both add up, in the order of their bytes.
        vector: The sum of the helper's shares with its noise, residues of shape
            (dimension,).
        statement: What the helper has signed.
        key: What it signs with, 32 bytes.
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
        """Read the helper's answer, and refuse one that cannot be true.

        Args:
            answer: Its bytes.
            leader: The leader's offer of the session.
            helper: The helper's.
            named: Whose shares the leader holds.
            key: What the helper is to sign with, 32 bytes.

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
                "it names clients that were not named to it",
            ),
            (
                len(part.names) >= parameters.min_survivors,
                f"it adds up {len(part.names)} shares",
            ),
            (len(part.packed) == size, "its vector has another size"),
        ):
            if not holds:
                raise _invalid_answer(complaint, helper)
        try:
            vector = unpack(
                part.packed, parameters.dimension, parameters.bits, parameters.modulus
            )
        except BadVectorError as error:
            raise _invalid_answer(str(error), helper) from None
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
            raise _invalid_answer(
                f"it signs as ed25519:{part.key.hex()}, not as it was to",
                helper,
                code=ErrorCode.BAD_SIGNATURE,
                next_step="Compare [helper] receipt_key with what the helper prints at "
                "its start.",
            )
        try:
            verify(key, statement.to_sign(parameters.suite), part.signature)
        except SignatureError as error:
            raise _invalid_answer(
                str(error), helper, code=ErrorCode.BAD_SIGNATURE
            ) from None
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
    """What is in the leader's book before a sum is computed.

    Attributes:
        answer_digest: SHA-256 of the helper's answer, 32 bytes.
        noise_seed: Of the leader's noise.
    """

    answer_digest: bytes
    noise_seed: SecretBytes

    def encode(self) -> bytes:
        """Return the bytes to keep."""
        return self.answer_digest + self.noise_seed.reveal()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        reader = Reader(data, "set agreed on")
        return cls(reader.fixed(32), SecretBytes(reader.fixed(SEED_SIZE)))


def _invalid_answer(
    complaint: str,
    helper: SessionDescriptor,
    *,
    code: ErrorCode = ErrorCode.U3_INVALID,
    next_step: str = "Ask the helper's operator; another session would end like this.",
) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the helper's answer cannot be used: {complaint}",
        code=code,
        sender=helper.aggregator,
        next_step=next_step,
    )
