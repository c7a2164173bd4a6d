"""Named cipher suites and their wire identifiers.

A suite fixes every algorithm of a session at once; nothing is negotiated piece by
piece.  This is the only module that names algorithms, the modules beside it
implement them.  Identifiers are part of the protocol and are never reused.

Both suites share X25519, HKDF-SHA256, ChaCha20-Poly1305 and Ed25519 and differ in
the cipher that expands masks.  Post-quantum suites get their own identifiers.

Source:
    PROTOCOL §6.
"""

import enum
from typing import Self

__all__ = ["CipherSuite", "UnknownCipherSuiteError"]


class UnknownCipherSuiteError(ValueError):
    """A peer named a suite that this implementation does not have.

    Refuse the session; never fall back to another suite.
    """


class CipherSuite(enum.IntEnum):
    """A cipher suite; its integer value is the two-byte wire identifier."""

    AES_256_CTR = 0x0001
    """Masks from AES-256 in counter mode: the default."""

    AES_128_CTR = 0x0002
    """Masks from AES-128 in counter mode: about an eighth less work per mask."""

    @classmethod
    def from_id(cls, suite_id: int) -> Self:
        """Return the suite with a wire identifier.

        Raises:
            UnknownCipherSuiteError: No suite has it; refuse the session.
        """
        try:
            return cls(suite_id)
        except ValueError:
            known = ", ".join(f"0x{suite:04x}" for suite in cls)
            raise UnknownCipherSuiteError(
                f"cipher suite 0x{suite_id:04x} is not supported; known: {known}"
            ) from None

    @property
    def mask_key_size(self) -> int:
        """Bytes of one mask key: 32 or 16."""
        return 32 if self is CipherSuite.AES_256_CTR else 16
