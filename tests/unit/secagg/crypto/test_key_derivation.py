import pytest

from secagg.crypto import key_derivation as kdf
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes

SECRET = SecretBytes(bytes(range(32)))
BASE = {"session_id": b"s" * 32, "context": b"c" * 32, "suite": CipherSuite.AES_256_CTR}


def channel(**changes):
    arguments = {**BASE, "sender": 3, "receiver": 5, **changes}
    return kdf.share_channel_key(SECRET, **arguments).reveal()


def pair(**changes):
    arguments = {**BASE, "low": 3, "high": 5, **changes}
    key, iv = kdf.pair_mask_key(SECRET, **arguments)
    return key.reveal() + iv


def own(**changes):
    arguments = {**BASE, "client": 3, **changes}
    key, iv = kdf.self_mask_key(SECRET, **arguments)
    return key.reveal() + iv


COMMON = [
    {},
    {"session_id": b"t" * 32},
    {"context": b"d" * 32},
    {"suite": CipherSuite.AES_128_CTR},
]


def test_every_field_changes_every_key_and_no_two_purposes_share_one():
    keys = [channel(**change) for change in COMMON]
    keys += [channel(sender=5, receiver=3), channel(sender=4), channel(receiver=4)]
    keys += [pair(**change)[:16] for change in COMMON]
    keys += [pair(low=4)[:16], pair(high=4)[:16], pair(vector_id=1)[:16]]
    keys += [own(**change)[:16] for change in COMMON]
    keys += [own(client=5)[:16], own(vector_id=1)[:16]]
    keys += [
        kdf.noise_seed(
            SECRET, context=context, component=number, suite=CipherSuite.AES_256_CTR
        ).reveal()
        for context in (b"c" * 32, b"d" * 32)
        for number in (0, 1)
    ]
    assert len({key[:16] for key in keys}) == len(keys)


def test_the_two_directions_of_a_channel_have_different_keys():
    assert channel(sender=3, receiver=5) != channel(sender=5, receiver=3)


@pytest.mark.parametrize(
    ("suite", "size"), [(CipherSuite.AES_256_CTR, 32), (CipherSuite.AES_128_CTR, 16)]
)
def test_mask_keys_have_the_size_of_the_suite(suite, size):
    key, iv = kdf.self_mask_key(SECRET, **{**BASE, "client": 0, "suite": suite})
    assert (len(key), len(iv)) == (size, 12)


@pytest.mark.parametrize(("low", "high"), [(5, 3), (3, 3)])
def test_a_pair_in_descending_order_is_rejected(low, high):
    with pytest.raises(ValueError, match="ascending"):
        pair(low=low, high=high)


@pytest.mark.parametrize("length", [0, -1, 255 * 32 + 1])
def test_a_length_beyond_the_counter_is_refused(length):
    with pytest.raises(ValueError, match="8160"):
        kdf.expand(SECRET, b"", length)


def test_the_longest_expansion_works_and_extends_the_shorter_ones():
    longest = kdf.expand(SECRET, b"i", kdf.MAX_EXPAND_SIZE).reveal()
    assert len(longest) == 8160
    assert kdf.expand(SECRET, b"i", 33).reveal() == longest[:33]
