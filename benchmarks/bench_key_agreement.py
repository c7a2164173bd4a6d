"""Key agreement, derivation, sealing and signatures, per neighbour."""

import sys
from collections.abc import Callable
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from measurement import cpu_seconds, emit

from secagg.crypto import key_derivation as kdf
from secagg.crypto.cipher_suite import CipherSuite, open_sealed, seal
from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.signature import IdentityKey, verify

_SUITE = CipherSuite.AES_256_CTR
_BUNDLE = bytes(80)


def microseconds(count: int, work: Callable[[], object]) -> float:
    """Return microseconds per call."""

    def repeat() -> None:
        for _ in range(count):
            work()

    return 1e6 * cpu_seconds(repeat, repeats=3) / count


def main(*, tiny: bool = False) -> None:
    """Measure single operations, and all that one neighbour costs a client."""
    count = 2 if tiny else 300
    entropy = SystemEntropy()
    pair, peer = KeyPair.generate(entropy), KeyPair.generate(entropy)
    private = X25519PrivateKey.from_private_bytes(pair.private_bytes.reveal())
    public = X25519PublicKey.from_public_bytes(peer.public_bytes)
    identity = IdentityKey.generate(entropy)
    signature = identity.sign(_BUNDLE)
    other = Ed25519PrivateKey.generate()
    check = partial(other.public_key().verify, other.sign(_BUNDLE), _BUNDLE)
    exchange = microseconds(count, partial(private.exchange, public))
    openssl = microseconds(count, check)
    bare = "X25519 of OpenSSL, keys loaded"
    verified = "Ed25519 of OpenSSL, key loaded"
    agree = partial(pair.agree, peer.public_bytes)
    neighbour = partial(_neighbour, pair, peer.public_bytes)
    check_identity = partial(verify, identity.public_bytes, _BUNDLE, signature)
    for name, work, baseline, baseline_value in (
        ("keys/agree", agree, bare, exchange),
        ("keys/generate", partial(KeyPair.generate, entropy), bare, exchange),
        ("keys/one neighbour", neighbour, f"twice {bare}", 2 * exchange),
        ("keys/verify a signature", check_identity, verified, openssl),
    ):
        value = microseconds(count, work)
        emit(
            name,
            parameters={"calls": count},
            value=value,
            unit="us",
            baseline=baseline,
            ratio=baseline_value / value,
        )


def _neighbour(pair: KeyPair, peer: bytes) -> None:
    """Do what a client does for each neighbour: two secrets, three keys, two seals."""
    session, context = bytes(32), bytes(32)
    shared = pair.agree(peer)
    out, back = (
        kdf.share_channel_key(
            shared,
            session_id=session,
            context=context,
            sender=sender,
            receiver=3 - sender,
            suite=_SUITE,
        )
        for sender in (1, 2)
    )
    seal(out, _BUNDLE, context)
    open_sealed(back, seal(back, _BUNDLE, context), context)
    kdf.pair_mask_key(
        pair.agree(peer),
        session_id=session,
        context=context,
        low=1,
        high=2,
        suite=_SUITE,
    )


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
