import os

import pytest

from secagg.crypto import entropy
from secagg.crypto.entropy import SeededEntropy, SystemEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import share_secrets
from secagg.crypto.signature import IdentityKey

SEED = SecretBytes(bytes(range(32)))


class CountingEntropy:
    """Counts what is taken from it."""

    def __init__(self):
        self.taken = 0
        self._stream = SeededEntropy(SEED, b"counting")

    def token(self, size, /):
        self.taken += size
        return self._stream.token(size)


def test_a_stream_does_not_depend_on_the_sizes_of_its_pieces():
    whole = SeededEntropy(SEED, b"noise").token(100)
    stream = SeededEntropy(SEED, b"noise")
    assert b"".join(stream.token(size) for size in (1, 0, 15, 16, 17, 51)) == whole


def test_labels_and_seeds_separate_streams():
    other = SecretBytes(bytes(range(1, 33)))
    streams = {
        SeededEntropy(seed, label).token(16)
        for seed in (SEED, other)
        for label in (b"", b"a", b"b", b"ab")
    }
    assert len(streams) == 8


def test_seeds_that_differ_in_any_one_byte_give_unrelated_streams():
    streams = set()
    for place in range(32):
        changed = bytearray(SEED.reveal())
        changed[place] ^= 1
        streams.add(SeededEntropy(SecretBytes(changed), b"x").token(8))
    assert len(streams) == 32


def test_a_short_seed_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        SeededEntropy(SecretBytes(bytes(31)), b"x")


def test_the_representation_of_a_stream_shows_its_label_only():
    assert repr(SeededEntropy(SEED, b"noise")) == "SeededEntropy(label=b'noise')"


def test_system_entropy_uses_the_operating_system(monkeypatch):
    monkeypatch.setattr(entropy.secrets, "token_bytes", lambda size: b"\xaa" * size)
    assert SystemEntropy().token(3) == b"\xaa" * 3


def test_system_entropy_does_not_repeat_itself():
    assert SystemEntropy().token(32) != SystemEntropy().token(32)


def test_primitives_take_randomness_only_from_the_given_source(monkeypatch):
    def refuse(_size):
        raise AssertionError("an entropy source was touched that was not passed in")

    monkeypatch.setattr(os, "urandom", refuse)
    monkeypatch.setattr(entropy.secrets, "token_bytes", refuse)
    source = CountingEntropy()
    pair = KeyPair.generate(source)
    assert source.taken == 32
    IdentityKey.generate(source)
    assert source.taken == 64
    share_secrets([pair.private_bytes, SEED], 3, [1, 2, 3, 4], source)
    assert source.taken == 64 + 2 * 2 * 16 * 4
