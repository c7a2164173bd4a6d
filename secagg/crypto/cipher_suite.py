"""Cipher suites with their wire identifiers, and the seal that all of them use.

A suite fixes every algorithm of a session at once; nothing is negotiated piece by
piece.  This is the only module that names algorithms.  Those of suites are implemented
beside it, the seal of share bundles here.  Identifiers are part of the protocol and are
never reused.

Both suites share X25519, HKDF-SHA256, ChaCha20-Poly1305 and Ed25519 and differ in the
cipher that expands masks.  Post-quantum suites get their own identifiers.

Share bundles are sealed with ChaCha20-Poly1305 under single-use keys.

Rule 1: a key seals exactly one message.  Therefore the nonce is zero and not on the
        wire; `key_derivation.share_channel_key` gives every direction of every pair in
        every session its own key.
Rule 2: all that the message depends on is associated data.
Rule 3: no part of a ciphertext that does not authenticate is ever returned.

A caller that restarts must resend the bytes it sealed before, or abort: a second
message under the same key would reveal both (R6.1-1).

Source: PROTOCOL §6 and §6.1; RFC 8439 §2.8.
"""

import enum
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from secagg.crypto.secret_bytes import SecretBytes


class CipherSuite(enum.IntEnum):
    """A cipher suite; its integer value is the two-byte wire identifier.

    A party that reads an unknown identifier refuses the session, and never falls back
    to another suite.
    """

    AES_256_CTR = 0x0001
    """Masks from AES-256 in counter mode: the default."""

    AES_128_CTR = 0x0002
    """Masks from AES-128 in counter mode: about an eighth less work for each mask."""

    @property
    def label(self) -> str:
        """The name in settings, for example "aes-256-ctr"."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def from_label(cls, label: str) -> "CipherSuite":
        """Return the suite that settings name.

        Raises:
            ValueError: No suite has this name.
        """
        for suite in cls:
            if suite.label == label:
                return suite
        known = ", ".join(suite.label for suite in cls)
        raise ValueError(f"{label!r} is not a cipher suite; known: {known}")

    @property
    def mask_key_size(self) -> int:
        """Bytes of one mask key: 32 or 16."""
        return 32 if self is CipherSuite.AES_256_CTR else 16


_KEY_SIZE: Final = 32
TAG_SIZE: Final = 16

_NONCE: Final = bytes(12)  # rule 1


class AuthenticationError(ValueError):
    """A ciphertext was not made with this key and this associated data.

    Its sender, or the server that carried it, is at fault.  Refuse the message.
    """


def seal(key: SecretBytes, plaintext: bytes, associated_data: bytes) -> bytes:
    """Encrypt and authenticate the one message of a key.

    Args:
        key: 32 bytes, used for this message only.
        plaintext: The message.
        associated_data: Authenticated with the message; it is not encrypted.

    Returns:
        The ciphertext: 16 bytes longer than the plaintext.

    Raises:
        ValueError: The key has another length.
    """
    return _cipher(key).encrypt(_NONCE, plaintext, associated_data)


def open_sealed(key: SecretBytes, ciphertext: bytes, associated_data: bytes) -> bytes:
    """Check and decrypt a message.

    Args:
        key: The key it was sealed under.
        ciphertext: The result of `seal`.
        associated_data: The receiver's own value of the associated data.

    Returns:
        The plaintext.

    Raises:
        AuthenticationError: A bit was altered; refuse the message.
        ValueError: The key has another length.
    """
    try:
        return _cipher(key).decrypt(_NONCE, ciphertext, associated_data)
    except InvalidTag:
        raise AuthenticationError(
            f"a sealed message of {len(ciphertext)} bytes does not authenticate"
        ) from None


def _cipher(key: SecretBytes) -> ChaCha20Poly1305:
    if len(key) != _KEY_SIZE:
        raise ValueError(f"a sealing key has {_KEY_SIZE} bytes, this one {len(key)}")
    return ChaCha20Poly1305(key.reveal())
