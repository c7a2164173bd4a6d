import json
from pathlib import Path

import pytest
from nacl.bindings import crypto_scalarmult

from secagg.crypto import key_agreement
from secagg.crypto.entropy import SeededEntropy, SystemEntropy
from secagg.crypto.key_agreement import (
    BadPublicKeyError,
    KeyPair,
    check_public_key,
    public_key_of,
)
from secagg.crypto.secret_bytes import SecretBytes

VECTORS = json.loads(
    (Path(__file__).parents[3] / "vectors/primitives/published.json").read_text()
)["x25519"]
P = 2**255 - 19


def secret(text):
    return SecretBytes(bytes.fromhex(text))


@pytest.fixture
def pair():
    return KeyPair.generate(SystemEntropy())


def test_rfc_7748_key_agreement():
    vector = VECTORS["key_agreement"]
    alice = KeyPair.from_private_bytes(secret(vector["alice_private"]))
    bob = KeyPair.from_private_bytes(secret(vector["bob_private"]))
    assert alice.public_bytes.hex() == vector["alice_public"]
    assert bob.public_bytes.hex() == vector["bob_public"]
    assert alice.agree(bob.public_bytes) == secret(vector["shared"])
    assert bob.agree(alice.public_bytes) == secret(vector["shared"])


def test_rfc_7748_scalar_multiplication():
    (vector,) = VECTORS["scalar_multiplication"]
    pair = KeyPair.from_private_bytes(secret(vector["scalar"]))
    assert pair.agree(bytes.fromhex(vector["u"])) == secret(vector["result"])


@pytest.mark.parametrize("point", VECTORS["low_order"])
def test_points_of_low_order_are_refused(pair, point):
    # R6-1
    with pytest.raises(BadPublicKeyError, match="low order"):
        pair.agree(bytes.fromhex(point))
    with pytest.raises(BadPublicKeyError, match="low order"):
        check_public_key(bytes.fromhex(point))


@pytest.mark.parametrize("point", VECTORS["not_canonical"])
def test_second_encodings_of_a_point_are_refused(pair, point):
    # R6-1
    with pytest.raises(BadPublicKeyError, match="canonical"):
        pair.agree(bytes.fromhex(point))


def test_a_secret_of_zeros_is_rejected_even_if_its_point_is_not_listed(
    monkeypatch, pair
):
    # R6-1: the library's own look stands behind the list of points.
    monkeypatch.setattr(key_agreement, "_LOW_ORDER", frozenset())
    for point in VECTORS["low_order"]:
        with pytest.raises(BadPublicKeyError, match="secret is zero"):
            pair.agree(bytes.fromhex(point))


def test_every_encoding_of_a_listed_point_gives_zero_in_another_library():
    key = SystemEntropy().token(32)
    for point in VECTORS["low_order"]:
        coordinate = int.from_bytes(bytes.fromhex(point), "little")
        below = [u for u in (coordinate, coordinate + P) if u < 1 << 255]
        for encoded in (*below, *(u | 1 << 255 for u in below)):
            with pytest.raises(RuntimeError):
                crypto_scalarmult(key, encoded.to_bytes(32, "little"))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(pair, size):
    with pytest.raises(BadPublicKeyError, match="32 bytes"):
        pair.agree(bytes([9] * size))
    with pytest.raises(ValueError, match="a private key has 32 bytes"):
        KeyPair.from_private_bytes(SecretBytes(bytes(size)))


def test_an_independent_implementation_agrees(pair):
    peer = KeyPair.generate(SystemEntropy())
    ours = pair.agree(peer.public_bytes)
    theirs = crypto_scalarmult(pair.private_bytes.reveal(), peer.public_bytes)
    assert ours == SecretBytes(theirs)


def test_a_reconstructed_private_key_gives_the_advertised_public_key(pair):
    again = SecretBytes(pair.private_bytes.reveal())
    assert public_key_of(again) == pair.public_bytes
    changed = bytearray(pair.private_bytes.reveal())
    changed[7] ^= 1
    assert public_key_of(SecretBytes(changed)) != pair.public_bytes


def test_keys_are_determined_by_the_entropy():
    seed = SecretBytes(bytes(32))
    first = KeyPair.generate(SeededEntropy(seed, b"k"))
    second = KeyPair.generate(SeededEntropy(seed, b"k"))
    assert first.public_bytes == second.public_bytes


def test_the_representation_shows_the_public_key_only(pair):
    assert repr(pair) == f"KeyPair(public={pair.public_bytes.hex()})"
    assert pair.private_bytes.reveal().hex() not in repr(pair)
