"""Sources of random bytes; the only module that calls the operating system's.

Rule 1: a function that needs randomness takes an `Entropy` as an argument.
Rule 2: in production it is `SystemEntropy`, or a `SeededEntropy` whose seed was drawn
        from it, so that a restarted client repeats the same bytes.
Rule 3: streams with different labels under one seed are independent.  A stream depends
        only on seed, label and the number of bytes drawn before.

There is no reseeding and no shared state: two streams never influence each other.
"""

import secrets
from typing import Final, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import key_derivation as kdf
from secagg.crypto.secret_bytes import SecretBytes

SEED_SIZE: Final = 32
"""Bytes of a seed: 256 bits, so that guessing is hopeless even for many targets."""


class Entropy(Protocol):
    """A source of uniformly random bytes."""

    def token(self, size: int, /) -> bytes:
        """Return `size` fresh bytes; no byte is ever returned twice."""
        ...


class SystemEntropy:
    """The operating system's generator."""

    __slots__ = ()

    def token(self, size: int, /) -> bytes:
        """Return `size` bytes from the operating system."""
        return secrets.token_bytes(size)


class SeededEntropy:
    """A deterministic stream: the AES-256-CTR keystream of a derived key.

    Args:
        seed: At least `SEED_SIZE` bytes.
        label: Names the purpose; each purpose gets its own stream.

    Raises:
        ValueError: The seed is shorter than `SEED_SIZE`.

    Source:
        Key = Expand(Extract("", seed), DST("entropy", "stream") ‖ label); the
        counter starts at the all-zero block, which is safe because the key serves
        this one stream.
    """

    __slots__ = ("_encryptor", "_label")

    def __init__(self, seed: SecretBytes, label: bytes) -> None:
        if len(seed) < SEED_SIZE:
            raise ValueError(
                f"a seed needs {SEED_SIZE} bytes, this one has {len(seed)}"
            )
        key = kdf.entropy_stream_key(seed, label)
        cipher = Cipher(algorithms.AES(key.reveal()), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()
        self._label = bytes(label)

    def __repr__(self) -> str:
        return f"SeededEntropy(label={self._label!r})"

    def token(self, size: int, /) -> bytes:
        """Return the next `size` bytes of the stream."""
        return self._encryptor.update(bytes(size))
