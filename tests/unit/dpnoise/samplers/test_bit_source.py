"""The stream of random bits: positions, separate labels, no word of secrets."""

import copy
import hashlib
import hmac
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpnoise.errors import DPNoiseError, ParameterError
from dpnoise.samplers.bit_source import MAX_POSITION, BitSource, fresh_seed

SEED = bytes(range(32))


def keystream(seed: bytes, label: bytes, size: int) -> bytes:
    """The stream from its definition: RFC 5869 by hand, then AES of the block index."""
    info = b"dpnoise/v1/bit-source" + bytes([len(label)]) + label
    extracted = hmac.digest(bytes(32), seed, hashlib.sha256)
    key = hmac.digest(extracted, info + b"\x01", hashlib.sha256)
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = -(-size // 16)
    counters = b"".join(index.to_bytes(16, "big") for index in range(blocks))
    return encryptor.update(counters)[:size]


def test_the_stream_is_aes_of_block_indices_under_an_hkdf_key():
    assert BitSource(SEED, b"noise").bytes_at(0, 1000) == keystream(
        SEED, b"noise", 1000
    )


@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17, 4095, (1 << 18) - 3])
def test_any_range_equals_that_range_of_the_whole_stream(offset):
    source = BitSource(SEED, b"noise")
    whole = source.bytes_at(0, (1 << 18) + 4096)
    assert source.bytes_at(offset, 777) == whole[offset : offset + 777]


def test_a_range_longer_than_one_cipher_call_is_seamless():
    source = BitSource(SEED, b"long")
    size = (1 << 19) + 5
    assert source.bytes_at(3, size) == keystream(SEED, b"long", size + 3)[3:]


def test_words_are_little_endian_at_fixed_positions():
    source = BitSource(SEED, b"words")
    raw = source.bytes_at(0, 800)
    for width, read in ((2, source.uint16), (4, source.uint32), (8, source.uint64)):
        expected = [
            int.from_bytes(raw[low : low + width], "little")
            for low in range(5 * width, 25 * width, width)
        ]
        words = read(5, 20)
        assert words.tolist() == expected
        assert words.dtype == np.dtype(f"u{width}").newbyteorder("=")


def test_single_blocks_equal_the_words_of_the_stream():
    source = BitSource(SEED, b"blocks")
    blocks = np.array([7, 0, 7, 1_000_000, 3], dtype=np.uint64)
    words = source.block_words(blocks)
    for row, block in zip(words, blocks.tolist(), strict=True):
        assert row.tolist() == source.uint64(2 * block, 2).tolist()
    assert source.block_words(blocks[:0]).shape == (0, 2)


def test_labels_and_seeds_separate_streams():
    streams = {
        BitSource(seed, label).bytes_at(0, 16)
        for seed in (SEED, bytes(32))
        for label in (b"a", b"b", b"aa", b"a\x00")
    }
    assert len(streams) == 8


def test_two_fresh_seeds_differ_and_have_full_length():
    first, second = fresh_seed(), fresh_seed()
    assert len(first) == len(second) == 32
    assert first != second


@pytest.mark.parametrize(
    "seed", [b"", bytes(31), bytes(33), "x" * 32, bytearray(32), None]
)
def test_a_seed_of_the_wrong_kind_is_refused(seed):
    with pytest.raises(
        ParameterError, match="seed must be a bytes object of length 32"
    ):
        BitSource(seed, b"noise")


@pytest.mark.parametrize("label", [b"", b"x" * 256, "noise"])
def test_a_label_of_the_wrong_kind_is_refused(label):
    with pytest.raises(ParameterError, match="label must be a bytes object"):
        BitSource(SEED, label)


def test_positions_outside_the_stream_are_refused():
    source = BitSource(SEED, b"range")
    for start, count in ((-1, 1), (0, -1), (MAX_POSITION, 1), (MAX_POSITION // 2, 1)):
        with pytest.raises(ParameterError):
            source.uint16(start, count)
    with pytest.raises(ParameterError, match="2\\^52"):
        source.block_words(np.array([1 << 52], dtype=np.uint64))
    last = MAX_POSITION // 16 - 1
    at_end = source.block_words(np.array([last], dtype=np.uint64))
    assert at_end[0].tolist() == source.uint64(2 * last, 2).tolist()


def test_no_seed_appears_in_a_repr_or_an_error():
    secret = b"very secret seed bytes, 31 long"
    source = BitSource(secret + b"!", b"label")
    key_bytes = source._cipher.key
    for text in (repr(source), str(source), f"{source}"):
        assert "secret" not in text
        assert repr(key_bytes) not in text
    with pytest.raises(DPNoiseError) as caught:
        BitSource(secret, b"label")
    assert "secret" not in str(caught.value) + repr(caught.value.__dict__)


def test_positions_may_be_numpy_integers():
    source = BitSource(SEED, b"numpy")
    words = source.uint32(np.int64(5), np.uint16(7))
    assert words.tolist() == source.uint32(5, 7).tolist()


def test_a_source_refuses_to_be_pickled_or_copied():
    source = BitSource(SEED, b"label")
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pass the seed"):
            attempt(source)
