"""The advert: a client's first message (PROTOCOL §5.1)."""

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.protocol.enrolment.credential import CREDENTIAL_BYTES, Credential
from secagg.protocol.messages.encoding import SIGNATURE_BYTES, decode
from secagg.protocol.messages.round import Round
from secagg.protocol.parameters import MAX_NOISE_LAYERS

# A SPIFFE id has at most 2048 bytes, but people read these in logs and tables.
MAX_IDENTITY_BYTES: Final = 255
_KEY_BYTES: Final = 32
COMMITMENT_BYTES: Final = 32
# Name with its length, form, credential; two keys, H_b, count and commitments; the
# signature; and the three lengths around these.
MAX_ADVERT_BYTES: Final = (
    (4 + 4 + MAX_IDENTITY_BYTES + 1 + CREDENTIAL_BYTES)
    + (4 + 3 * 32 + 1 + MAX_NOISE_LAYERS * COMMITMENT_BYTES)
    + (4 + SIGNATURE_BYTES)
)
# The parts behind the name in an advert.
_FORM_BARE: Final = 0
_FORM_ENROLLED: Final = 1


@dataclass(frozen=True, slots=True)
class Advert:
    """AdvertiseKeys, client to server, read by the roster (PROTOCOL §5.1).

    Attributes:
        identity: Name from the client's certificate, 1 to 255 bytes of UTF-8.
        encryption_key: X25519 public key c^PK for share bundles, 32 bytes.
        masking_key: X25519 public key s^PK for pairwise masks, 32 bytes.
        self_mask_commitment: Hash of the self-mask seed b_u, 32 bytes.
        noise_commitments: Hash of the seed of each layer of noise, 32 bytes each; none
            without a ladder.
        credential: Binds the name to the client's signing key; None in profiles without
            identities of their own.
        signature: Ed25519 over ctx0 and the rest, 64 bytes; empty without credential.
    """

    KIND: ClassVar[int] = 1
    ROUND: ClassVar[Round] = Round.ADVERTISE_KEYS

    identity: str
    encryption_key: bytes
    masking_key: bytes
    self_mask_commitment: bytes
    noise_commitments: tuple[bytes, ...] = ()
    credential: Credential | None = None
    signature: bytes = b""

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """Every key in it; all of a session are distinct (R5.2-5)."""
        keys = (self.encryption_key, self.masking_key)
        return (
            keys if self.credential is None else (*keys, self.credential.identity_key)
        )

    def id_part(self) -> bytes:
        """Return the client's name, as encoded."""
        writer = Writer().text(self.identity)
        if self.credential is None:
            return writer.u8(_FORM_BARE).getvalue()
        self.credential.encode_into(writer.u8(_FORM_ENROLLED))
        return writer.getvalue()

    def key_part(self) -> bytes:
        """Return keys and commitments, as encoded."""
        writer = Writer().fixed(self.encryption_key).fixed(self.masking_key)
        writer.fixed(self.self_mask_commitment).u8(len(self.noise_commitments))
        for commitment in self.noise_commitments:
            writer.fixed(commitment)
        return writer.getvalue()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer().blob(self.id_part()).blob(self.key_part())
        return writer.blob(self.signature).getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return decode("advert", data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        id_part, key_part, signature = _read_parts(reader)
        who = Reader(id_part, "identity of an advert")
        identity = who.text(max_bytes=MAX_IDENTITY_BYTES)
        if not identity:
            raise ValueError("the identity is empty")
        credential = None
        if who.flag():
            credential = Credential.decode_from(who, name=identity)
        who.end()
        keys = Reader(key_part, "keys of an advert")
        encryption, masking = keys.fixed(_KEY_BYTES), keys.fixed(_KEY_BYTES)
        commitment = keys.fixed(COMMITMENT_BYTES)
        layers = tuple(keys.fixed(COMMITMENT_BYTES) for _ in range(keys.u8()))
        keys.end()
        return cls(
            identity, encryption, masking, commitment, layers, credential, signature
        )


def advert_parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Split an advert into the parts that are hashed: name, keys, signature.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    return decode("advert", data, _read_parts)


def _read_parts(reader: Reader) -> tuple[bytes, bytes, bytes]:
    id_part = reader.blob(max_bytes=MAX_ADVERT_BYTES)
    key_part = reader.blob(max_bytes=MAX_ADVERT_BYTES)
    signature = reader.blob(max_bytes=SIGNATURE_BYTES)
    if len(signature) not in {0, SIGNATURE_BYTES}:
        raise ValueError(f"a signature has 0 or 64 bytes, not {len(signature)}")
    return id_part, key_part, signature
