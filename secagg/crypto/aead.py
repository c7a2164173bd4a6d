"""Sealing of share bundles: ChaCha20-Poly1305 under single-use keys.

Rule 1: a key seals exactly one message.  Therefore the nonce is zero and not on the
        wire; `kdf.share_channel_key` gives every direction of every pair in every
        session its own key.
Rule 2: all that the message depends on is associated data.
Rule 3: no part of a ciphertext that does not authenticate is ever returned.

A caller that restarts must resend the bytes it sealed before, or abort: a second
message under the same key would reveal both (R6.1-1).

Source: RFC 8439 §2.8; PROTOCOL §6.1.
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from secagg.crypto.secret_bytes import SecretBytes

KEY_SIZE: Final = 32
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
    if len(key) != KEY_SIZE:
        raise ValueError(f"a sealing key has {KEY_SIZE} bytes, this one {len(key)}")
    return ChaCha20Poly1305(key.reveal())
