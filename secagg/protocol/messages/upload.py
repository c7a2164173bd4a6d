"""The masked input as the state machines see it (PROTOCOL §5.3)."""

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.protocol.messages.encoding import DIGEST_BYTES, decode
from secagg.protocol.messages.round import Round

# Between two aggregators there is no U2, hence no view that could differ.
NO_VIEW: Final = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class Upload:
    """MaskedInputCollection: names a masked input; the vector itself travels beside it.

    The upload receiver makes it after it has checked bytes, hash and range (PROTOCOL
    §5.3).

    Attributes:
        size: Bytes of the packed vector.
        digest: SHA-256 of the packed vector; the blob is stored under this name.
        view: Hash of ctx2 as the sender has computed it, 32 bytes (R5.3-14).
    """

    KIND: ClassVar[int] = 3
    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    size: int
    digest: bytes
    view: bytes = NO_VIEW

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().u64(self.size).fixed(self.digest)
        return writer.fixed(self.view).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("upload", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        size, digest = reader.u64(), reader.fixed(DIGEST_BYTES)
        return cls(size, digest, reader.fixed(DIGEST_BYTES))
