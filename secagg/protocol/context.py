"""The context chain: one hash that covers everything the parties must agree on.

ctx0 covers the configuration, ctx1 the roster, ctx2 the set U2, ctx3 the set U3
(PROTOCOL §4).  Every key, mask and associated datum derives from one of them, so
parties that were shown different things produce masks that do not cancel.  Nobody
takes one from a message (R4-1).
"""

from secagg.parameters import SessionDescriptor
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.secret_bytes import SecretBytes
from secagg.primitives.transcript import hash_parts

__all__ = [
    "mask_context",
    "noise_commitment",
    "roster_context",
    "self_mask_commitment",
    "session_context",
    "unmask_context",
]


def session_context(descriptor: SessionDescriptor) -> bytes:
    """Return ctx0: session id and configuration."""
    return hash_parts(
        "ctx0",
        descriptor.session_id,
        descriptor.configuration_hash,
        suite=descriptor.parameters.suite,
    )


def roster_context(ctx0: bytes, roster: bytes, suite: CipherSuite) -> bytes:
    """Return ctx1: ctx0 and the canonical bytes of the roster, graph seed included."""
    roster_hash = hash_parts("roster", ctx0, roster, suite=suite)
    return hash_parts("ctx1", ctx0, roster_hash, suite=suite)


def mask_context(
    ctx1: bytes, sharers: bytes, suite: CipherSuite, *, noise_context: bytes = b""
) -> bytes:
    """Return ctx2: ctx1, the bitmap of U2 and how noise is drawn for it."""
    noise = (noise_context,) if noise_context else ()
    return hash_parts("ctx2", ctx1, sharers, *noise, suite=suite)


def unmask_context(ctx2: bytes, survivors: bytes, suite: CipherSuite) -> bytes:
    """Return ctx3: ctx2 and the bitmap of U3."""
    return hash_parts("ctx3", ctx2, survivors, suite=suite)


def noise_commitment(
    session_id: bytes, identity: str, layer: int, seed: bytes, suite: CipherSuite
) -> bytes:
    """Return com_i, the commitment to the seed g_i of a noise layer (PROTOCOL §5.1)."""
    return hash_parts(
        "noise-commit",
        session_id,
        identity.encode(),
        layer.to_bytes(4, "big"),
        seed,
        suite=suite,
    )


def self_mask_commitment(
    session_id: bytes, identity: str, seed: SecretBytes, suite: CipherSuite
) -> bytes:
    """Return H_b, the commitment to a self-mask seed (PROTOCOL §5.1).

    The seed has 256 bits of entropy, so the hash hides it without a further salt.
    """
    return hash_parts(
        "b-commit", session_id, identity.encode(), seed.reveal(), suite=suite
    )
