"""X25519 key pairs and shared secrets.

Rule 1: a public key is checked before it is used: 32 bytes, canonical, and not a point
        of low order.  Two clients that receive the same key bytes then have the same
        key, so that comparing bytes compares keys.
Rule 2: an all-zero shared secret is refused in every case.
Rule 3: a shared secret is key material, not a key; `secagg.crypto.key_derivation` makes
        keys from it.

The profile, not this module, binds keys to identities.

Source: RFC 7748 §5 and §6.1.
"""

from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from secagg.crypto.entropy import Entropy
from secagg.crypto.secret_bytes import SecretBytes

_PRIVATE_KEY_SIZE: Final = 32
_PUBLIC_KEY_SIZE: Final = 32

_FIELD_PRIME: Final = (1 << 255) - 19

# The u-coordinates below the prime whose points have order 1, 2, 4 or 8, on the
# curve or on its twist.  Multiplied by a clamped scalar they give zero.
_ORDER_EIGHT: Final = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
_LOW_ORDER: Final = frozenset(
    coordinate.to_bytes(_PUBLIC_KEY_SIZE, "little")
    for coordinate in (0, 1, _FIELD_PRIME - 1, *_ORDER_EIGHT)
)


class BadPublicKeyError(ValueError):
    """A public key has the wrong size, is not canonical, or has low order.

    The peer that sent the key is at fault.  Refuse its message.
    """


def check_public_key(public_key: bytes) -> None:
    """Check a peer's public key without using it.

    Raises:
        BadPublicKeyError: The key is invalid; refuse the peer's message.

    Source: PROTOCOL §6.
    """
    if len(public_key) != _PUBLIC_KEY_SIZE:
        raise BadPublicKeyError(
            f"a public key has {_PUBLIC_KEY_SIZE} bytes, this one {len(public_key)}"
        )
    # R6-1: RFC 7748 ignores the top bit and reduces modulo the prime; a second encoding
    # of the same point would make a comparison by bytes miss equal keys.
    if int.from_bytes(public_key, "little") >= _FIELD_PRIME:
        raise BadPublicKeyError("the public key is not encoded canonically")
    if public_key in _LOW_ORDER:
        raise BadPublicKeyError("the public key is a point of low order")


class KeyPair:
    """An X25519 key pair; the private key is loaded once and used many times."""

    __slots__ = ("_private", "_private_bytes", "public_bytes")

    public_bytes: bytes
    """The public key: 32 bytes, canonical."""

    def __init__(self, private: X25519PrivateKey, private_bytes: SecretBytes) -> None:
        self._private = private
        self._private_bytes = private_bytes
        self.public_bytes = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """Make a fresh key pair from 32 bytes of entropy."""
        return cls.from_private_bytes(SecretBytes(entropy.token(_PRIVATE_KEY_SIZE)))

    @classmethod
    def from_private_bytes(cls, private_bytes: SecretBytes) -> Self:
        """Load a private key.

        Args:
            private_bytes: 32 bytes; clamping happens inside the multiplication.

        Raises:
            ValueError: Another length.
        """
        if len(private_bytes) != _PRIVATE_KEY_SIZE:
            raise ValueError(
                f"a private key has {_PRIVATE_KEY_SIZE} bytes,"
                f" this one {len(private_bytes)}"
            )
        private = X25519PrivateKey.from_private_bytes(private_bytes.reveal())
        return cls(private, private_bytes)

    @property
    def private_bytes(self) -> SecretBytes:
        """The private key, which is shared among the neighbours."""
        return self._private_bytes

    def agree(self, peer_public: bytes) -> SecretBytes:
        """Compute the secret shared with the owner of a public key.

        Args:
            peer_public: The peer's public key, 32 bytes.

        Returns:
            32 bytes of key material; derive keys from it by HKDF.

        Raises:
            BadPublicKeyError: The key is invalid; refuse the peer's message.
        """
        check_public_key(peer_public)
        peer = X25519PublicKey.from_public_bytes(peer_public)
        try:
            return SecretBytes(self._private.exchange(peer))
        except ValueError:
            # R6-1: the library's own check for the all-zero secret.  The list above
            # comes first, so that the result does not depend on the library.
            raise BadPublicKeyError("the shared secret is zero") from None

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public_bytes.hex()})"


def public_key_of(private_bytes: SecretBytes) -> bytes:
    """Return the public key of a private one, to verify a reconstructed secret.

    Raises:
        ValueError: The private key does not have 32 bytes.
    """
    return KeyPair.from_private_bytes(private_bytes).public_bytes
