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
