"""The masked input, as far as the state machines see it (PROTOCOL §5.3)."""

from dataclasses import dataclass
from typing import ClassVar, Self

from secagg.messages.encoding import DIGEST_BYTES, decode
from secagg.messages.round import Round
from secagg.primitives.canonical import Writer

__all__ = ["Upload"]


@dataclass(frozen=True, slots=True)
class Upload:
    """MaskedInputCollection: a masked input, named; the vector itself travels beside.

    The upload desk makes it when bytes, hash and range are checked (PROTOCOL §5.3).

    Attributes:
        size: Bytes of the packed vector.
        digest: SHA-256 of the packed vector; the blob is stored under this name.
    """

    KIND: ClassVar[int] = 3
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    size: int
    digest: bytes

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        return Writer().u64(self.size).fixed(self.digest).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("upload", data, lambda r: cls(r.u64(), r.fixed(DIGEST_BYTES)))
