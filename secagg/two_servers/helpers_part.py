"""What a leader makes of the helper's answer: judged whole, before it is agreed on.

Rule 1: a helper may lie in every byte. What is no part of this session's sum is refused
        before the leader has written anything down, so that no answer can hold up a
        leader that is started again.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Self

from secagg.descriptor import SessionDescriptor
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.primitives.modular import BadVectorError, UnsignedArray
from secagg.two_servers.messages import NoisyShare
from secagg.wire.packing import packed_size, unpack

__all__ = ["HelpersPart"]


@dataclass(frozen=True, slots=True, eq=False)
class HelpersPart:
    """The helper's part of a sum.

    Attributes:
        answer_digest: SHA-256 of the answer as it came, 32 bytes.
        names: Over whom both add up, in the order of their bytes.
        vector: The sum of the helper's shares with its noise, residues of shape
            (dimension,).
    """

    answer_digest: bytes
    names: tuple[str, ...]
    vector: UnsignedArray = field(repr=False)

    @classmethod
    def judged(
        cls, answer: bytes, offer: SessionDescriptor, named: tuple[str, ...]
    ) -> Self:
        """Read the helper's answer, and refuse one that cannot be true.

        Args:
            answer: Its bytes.
            offer: The leader's, of the session.
            named: Whose shares the leader holds.

        Raises:
            RemoteProtocolError: BAD_ENCODING or U3_INVALID; the helper lies.
        """
        part, parameters = NoisyShare.decode(answer), offer.parameters
        size = packed_size(parameters.dimension, parameters.bits)
        for holds, complaint in (
            (part.session_id == offer.session_id, "it belongs to another session"),
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
                raise _lie(complaint)
        try:
            vector = unpack(
                part.packed, parameters.dimension, parameters.bits, parameters.modulus
            )
        except BadVectorError as error:
            raise _lie(str(error)) from None
        return cls(sha256(answer).digest(), part.names, vector)


def _lie(complaint: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the helper's answer cannot be used: {complaint}", code=ErrorCode.U3_INVALID
    )
