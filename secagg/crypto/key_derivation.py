"""Key derivation: HKDF-SHA256, and the only list of purposes.

Rule 1: every key has exactly one purpose, and the purpose enters its derivation.
Rule 2: every session key is bound to the session id (salt) and to the context hash
        (info), which covers configuration, roster and client sets.  Clients that were
        shown different values derive different keys: masks then do not cancel, and
        nothing leaks.
Rule 3: keys are directional.  Messages from u to v and from v to u are sealed under
        different keys, so that none can be reflected.

This module neither draws randomness nor keeps a secret.

Source: HKDF: RFC 5869.  Derivations: PROTOCOL §6.
"""

import hmac
from functools import lru_cache
from typing import Final

from secagg.crypto.canonical import Writer
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import domain_tag

_HASH: Final = "sha256"
_HASH_SIZE: Final = 32

MAX_EXPAND_SIZE: Final = 255 * _HASH_SIZE
"""Longest output of one expansion, in bytes: the block counter is one byte."""

_AEAD_KEY_SIZE: Final = 32
_IV_SIZE: Final = 12

# All purposes of derived keys, as (role, usage) of the domain tag.
_SHARE_CHANNEL: Final = ("client", "share")
_PAIR_MASK: Final = ("pair", "mask")
_SELF_MASK: Final = ("self", "mask")
_NOISE_STREAM: Final = ("client", "noise")
_ADDITIVE_SHARE: Final = ("client", "additive-share")
_ENTROPY_STREAM: Final = ("entropy", "stream")


def extract(salt: bytes, key_material: SecretBytes) -> SecretBytes:
    """Concentrate key material into one pseudorandom key of 32 bytes.

    Args:
        salt: Public value that separates sessions; may be empty.
        key_material: A secret with enough entropy, uniform or not.

    Source:
        RFC 5869 §2.2.
    """
    # HMAC pads its key with zeros, so the empty salt equals the RFC's default.
    return SecretBytes(hmac.digest(salt, key_material.reveal(), _HASH))


def expand(pseudorandom_key: SecretBytes, info: bytes, length: int) -> SecretBytes:
    """Derive `length` bytes for one purpose.

    Args:
        pseudorandom_key: Output of `extract`, or another uniform 32-byte key.
        info: The purpose and its context, encoded unambiguously.
        length: Bytes wanted, in [1, 8160].

    Raises:
        ValueError: The length lies outside its range.

    Source:
        RFC 5869 §2.3.
    """
    if not 1 <= length <= MAX_EXPAND_SIZE:
        raise ValueError(f"expected a length in [1, {MAX_EXPAND_SIZE}], not {length}")
    key = pseudorandom_key.reveal()
    block, output = b"", b""
    for counter in range(1, -(-length // _HASH_SIZE) + 1):
        block = hmac.digest(key, block + info + bytes((counter,)), _HASH)
        output += block
    return SecretBytes(output[:length])


def share_channel_key(  # noqa: PLR0913 - the context of one derivation
    shared_secret: SecretBytes,
    *,
    session_id: bytes,
    context: bytes,
    sender: int,
    receiver: int,
    suite: CipherSuite,
) -> SecretBytes:
    """Derive the single-use key that seals one client's shares for another.

    Args:
        shared_secret: X25519 output of the two encryption keys.
        session_id: The session, as salt.
        context: ctx1, which covers configuration and roster.
        sender: Roster index of the dealer.
        receiver: Roster index of the holder.
        suite: The session's suite.

    Returns:
        A key of 32 bytes.

    Source:
        PROTOCOL §6.1.
    """
    info = _encode_info(_SHARE_CHANNEL, suite, context, sender, receiver)
    return expand(extract(session_id, shared_secret), info, _AEAD_KEY_SIZE)


def pair_mask_key(  # noqa: PLR0913 - the context of one derivation
    shared_secret: SecretBytes,
    *,
    session_id: bytes,
    context: bytes,
    low: int,
    high: int,
    vector_id: int = 0,
    suite: CipherSuite,
) -> tuple[SecretBytes, bytes]:
    """Derive key and iv of the mask that two clients share.

    Args:
        shared_secret: X25519 output of the two masking keys.
        session_id: The session, as salt.
        context: ctx2, which covers configuration, roster and U2.
        low: The smaller roster index of the pair; this client adds the mask.
        high: The larger one; that client subtracts it.
        vector_id: Number of the vector within the session's vector specification.
        suite: The session's suite, which fixes the size of the key.

    Returns:
        Key (`suite.mask_key_size` bytes) and iv (12 bytes).

    Raises:
        ValueError: The indices are not in ascending order.

    Source:
        PROTOCOL §6.2.
    """
    if low >= high:
        raise ValueError("expected the pair's roster indices in ascending order")
    info = _encode_info(_PAIR_MASK, suite, context, low, high, vector_id)
    return _mask_key(extract(session_id, shared_secret), info, suite)


def self_mask_key(  # noqa: PLR0913 - the context of one derivation
    self_mask_seed: SecretBytes,
    *,
    session_id: bytes,
    context: bytes,
    client: int,
    vector_id: int = 0,
    suite: CipherSuite,
) -> tuple[SecretBytes, bytes]:
    """Derive key and iv of a client's self mask.

    Args:
        self_mask_seed: The client's b_u, 32 uniform bytes.
        session_id: The session, as salt.
        context: ctx2, which covers configuration, roster and U2.
        client: The client's roster index.
        vector_id: Number of the vector within the session's vector specification.
        suite: The session's suite, which fixes the size of the key.

    Returns:
        Key (`suite.mask_key_size` bytes) and iv (12 bytes).

    Source:
        PROTOCOL §6.3.
    """
    info = _encode_info(_SELF_MASK, suite, context, client, vector_id)
    return _mask_key(extract(session_id, self_mask_seed), info, suite)


def noise_seed(
    seed: SecretBytes,
    *,
    context: bytes,
    component: int,
    suite: CipherSuite,
) -> SecretBytes:
    """Derive the seed of one noise component from a client's secret seed.

    Args:
        seed: 32 uniform bytes: the client's own, or g_i of a layer, which may be
            revealed to the server.
        context: ctx2; another view of the session gives other noise.
        component: 0 for the noise that is never removed, i + 1 for layer i.
        suite: The session's suite.

    Returns:
        A seed of 32 bytes.

    Source: PROTOCOL §6.7.
    """
    info = _encode_info(_NOISE_STREAM, suite, context, component)
    return expand(seed, info, _HASH_SIZE)


def additive_share_key(
    seed: SecretBytes, *, session_id: bytes, suite: CipherSuite
) -> tuple[SecretBytes, bytes]:
    """Derive key and iv of the share that one of two aggregators expands.

    Args:
        seed: 32 uniform bytes of one client, of this session and no other.
        session_id: The session, as salt and context.
        suite: The session's suite, which fixes the size of the key.

    Returns:
        Key (`suite.mask_key_size` bytes) and iv (12 bytes).

    Source:
        protos/TWO_AGGREGATORS.md.
    """
    info = _encode_info(_ADDITIVE_SHARE, suite, session_id)
    return _mask_key(extract(session_id, seed), info, suite)


def entropy_stream_key(seed: SecretBytes, label: bytes) -> SecretBytes:
    """Derive the AES-256 key of one stream of `SeededEntropy`."""
    # A seed precedes the choice of a suite, so the tag names the default one.
    tag = domain_tag(*_ENTROPY_STREAM, CipherSuite.AES_256_CTR)
    return expand(extract(b"", seed), tag + Writer().blob(label).getvalue(), 32)


def _encode_info(
    purpose: tuple[str, str], suite: CipherSuite, context: bytes, *numbers: int
) -> bytes:
    """Return the info of a key: tag and context, and numbers of four bytes."""
    head = _info_head(purpose, suite, context)
    return head + b"".join(number.to_bytes(4, "big") for number in numbers)


# A client derives a key for each neighbour, a server one for each survivor.
@lru_cache(maxsize=64)
def _info_head(purpose: tuple[str, str], suite: CipherSuite, context: bytes) -> bytes:
    """Return the part of a key's info that all numbers have in common."""
    return Writer().fixed(domain_tag(*purpose, suite)).blob(context).getvalue()


def _mask_key(
    pseudorandom_key: SecretBytes, info: bytes, suite: CipherSuite
) -> tuple[SecretBytes, bytes]:
    size = suite.mask_key_size
    both = expand(pseudorandom_key, info, size + _IV_SIZE).reveal()
    return SecretBytes(both[:size]), both[size:]
