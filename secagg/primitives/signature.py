"""Ed25519 identities for the profiles that distrust the server.

Rule 1: verification raises; there is no result that could be overlooked.
Rule 2: what is signed starts with a domain tag (`secagg.primitives.transcript`),
        so that a signature for one purpose is worthless for another.

Enrolment, that is, which identity may take part, is decided elsewhere.

Source:
    RFC 8032.  The implementation is libsodium's: it verifies in about half the
    time, and it refuses public keys of low order and non-canonical signatures.
"""

from typing import Final, Self

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from secagg.primitives.entropy import Entropy
from secagg.primitives.secret_bytes import SecretBytes

__all__ = [
    "IDENTITY_SIZE",
    "SEED_SIZE",
    "SIGNATURE_SIZE",
    "IdentityKey",
    "SignatureError",
    "verify",
]

SEED_SIZE: Final = 32
IDENTITY_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64


class SignatureError(ValueError):
    """A signature does not belong to this message and this identity.

    Its sender, or the server that carried it, is at fault.  Refuse the message.
    """


class IdentityKey:
    """A client's long-lived signing key."""

    __slots__ = ("_key", "public_bytes")

    public_bytes: bytes
    """The identity: 32 bytes, public."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self.public_bytes = bytes(key.verify_key)

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """Make a fresh identity from 32 bytes of entropy."""
        return cls.from_bytes(SecretBytes(entropy.token(SEED_SIZE)))

    @classmethod
    def from_bytes(cls, seed: SecretBytes) -> Self:
        """Load an identity from its 32-byte seed.

        Raises:
            ValueError: Another length.
        """
        if len(seed) != SEED_SIZE:
            raise ValueError(
                f"an identity seed has {SEED_SIZE} bytes, this one {len(seed)}"
            )
        return cls(SigningKey(seed.reveal()))

    def seed(self) -> SecretBytes:
        """Return the seed, for storing the identity."""
        return SecretBytes(bytes(self._key))

    def sign(self, message: bytes) -> bytes:
        """Sign a message; signing is deterministic.

        Returns:
            64 bytes.
        """
        return self._key.sign(message).signature

    def __repr__(self) -> str:
        return f"IdentityKey(public={self.public_bytes.hex()})"


def verify(identity: bytes, message: bytes, signature: bytes) -> None:
    """Check a signature.

    Args:
        identity: The signer's public key, 32 bytes.
        message: What was signed.
        signature: 64 bytes.

    Raises:
        SignatureError: Any of the three does not fit; refuse the message.
    """
    if len(identity) != IDENTITY_SIZE:
        raise SignatureError(
            f"an identity has {IDENTITY_SIZE} bytes, this one {len(identity)}"
        )
    if len(signature) != SIGNATURE_SIZE:
        raise SignatureError(
            f"a signature has {SIGNATURE_SIZE} bytes, this one {len(signature)}"
        )
    try:
        VerifyKey(identity).verify(message, signature)
    except BadSignatureError:
        raise SignatureError("the signature does not fit message and signer") from None
