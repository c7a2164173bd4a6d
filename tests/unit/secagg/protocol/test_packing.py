from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import BadVectorError, word_dtype
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol import packing
from secagg.protocol.packing import (
    BLOCK_VALUES,
    MAX_CHUNK_BYTES,
    chunk_values,
    chunks,
    pack,
    packed_size,
    unpack,
)


def vector(dim, bits, label=b"packing"):
    word = word_dtype(1 << bits)
    data = SeededEntropy(SecretBytes(bytes(32)), label).token(dim * word.itemsize)
    return np.frombuffer(data, word) & word.type((1 << bits) - 1)


@pytest.mark.parametrize("bits", range(1, 63))
def test_every_width_round_trips_in_exactly_the_bits_it_needs(bits):
    for dim in (0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200):
        values = vector(dim, bits)
        packed = pack(values, bits)
        assert len(packed) == packed_size(dim, bits) == -(-dim * bits // 8)
        back = unpack(packed, dim, bits, 1 << bits)
        assert back.dtype == values.dtype
        assert back.tolist() == values.tolist()


@pytest.mark.parametrize("bits", [1, 12, 16, 17, 31, 32, 33, 62])
def test_blocks_and_tails_round_trip(bits):
    dim = 3 * BLOCK_VALUES + 1000 + 5
    values = vector(dim, bits)
    packed = pack(values, bits)
    assert len(packed) == packed_size(dim, bits)
    assert np.array_equal(unpack(packed, dim, bits, 1 << bits), values)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_the_bytes_do_not_depend_on_how_many_blocks_are_shifted_at_once(
    monkeypatch, blocks
):
    dim = 5 * BLOCK_VALUES + 77
    values = vector(dim, 20)
    expected = pack(values, 20)
    monkeypatch.setattr(packing, "_VALUES_PER_PASS", blocks * BLOCK_VALUES)
    assert pack(values, 20) == expected
    assert np.array_equal(unpack(expected, dim, 20, 1 << 20), values)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 62), st.integers(0, 150), st.data())
def test_any_bytes_unpack_to_a_vector_that_packs_to_them_or_are_rejected(
    bits, dim, data
):
    size = packed_size(dim, bits)
    received = data.draw(st.binary(min_size=size, max_size=size))
    modulus = data.draw(st.integers((1 << bits - 1) + 1, 1 << bits)) if bits > 1 else 2
    try:
        values = unpack(received, dim, bits, modulus)
    except BadVectorError:
        padded = dim * bits % 8 != 0
        assert padded or modulus < 1 << bits
    else:
        assert all(value < modulus for value in values.tolist())
        assert pack(values, bits) == received


@pytest.mark.parametrize("bits", [1, 16, 20, 27, 33, 62])
def test_each_chunk_unpacks_independently(bits):
    dim = 2 * chunk_values(bits) + 12345
    values = vector(dim, bits)
    packed = pack(values, bits)
    parts = list(chunks(dim, bits))
    assert len(parts) == 3
    assert parts[0].start == parts[0].offset == 0
    for before, after in pairwise(parts):
        assert after.start == before.start + before.values
        assert after.offset == before.offset + before.nbytes
        assert before.values % BLOCK_VALUES == 0
    assert parts[-1].start + parts[-1].values == dim
    assert parts[-1].offset + parts[-1].nbytes == len(packed)
    for part in parts:
        assert part.nbytes <= MAX_CHUNK_BYTES
        data = packed[part.offset : part.offset + part.nbytes]
        found = unpack(data, part.values, bits, 1 << bits)
        assert np.array_equal(found, values[part.start : part.start + part.values])


@pytest.mark.parametrize("bits", range(1, 63))
def test_a_chunk_of_any_width_fits_into_one_message(bits):
    size = packed_size(chunk_values(bits), bits)
    assert size <= MAX_CHUNK_BYTES < size + packed_size(BLOCK_VALUES, bits)


def test_an_empty_vector_has_no_chunks():
    assert list(chunks(0, 20)) == []


@pytest.mark.parametrize("change", [-1, 1, -100, 100])
def test_a_wrong_length_is_refused(change):
    size = packed_size(100, 20) + change
    with pytest.raises(BadVectorError, match="250 bytes"):
        unpack(bytes(max(0, size)), 100, 20, 1 << 20)


def test_padding_that_is_not_zero_is_refused():
    # R8-1
    packed = bytearray(pack(vector(3, 20), 20))
    unpack(packed, 3, 20, 1 << 20)
    for bit in range(4, 8):
        changed = bytearray(packed)
        changed[-1] |= 1 << bit
        with pytest.raises(BadVectorError, match="padding"):
            unpack(changed, 3, 20, 1 << 20)


@pytest.mark.parametrize("place", [0, 31, 64, 98, 99])
@pytest.mark.parametrize("modulus", [10**6, 2**20 - 1])
def test_an_entry_not_below_the_modulus_is_rejected(place, modulus):
    values = np.zeros(100, np.uint32)
    values[place] = modulus - 1
    assert unpack(pack(values, 20), 100, 20, modulus)[place] == modulus - 1
    values[place] = modulus
    with pytest.raises(BadVectorError, match="not below"):
        unpack(pack(values, 20), 100, 20, modulus)


def test_bits_that_do_not_match_the_modulus_raise_value_error():
    with pytest.raises(ValueError, match="takes 20 bits") as caught:
        unpack(bytes(10), 4, 21, 2**20)
    assert not isinstance(caught.value, BadVectorError)


@pytest.mark.parametrize(
    ("values", "bits", "message"),
    [
        (np.array([1 << 20], np.uint32), 20, "more than 20 bits"),
        (np.zeros(4, np.uint64), 20, "uint32"),
        (np.zeros(4, np.int32), 20, "uint32"),
        (np.zeros((2, 2), np.uint32), 20, "uint32"),
        (np.zeros(4, np.uint64), 63, "1 to 62"),
        (np.zeros(4, np.uint16), 0, "1 to 62"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused(values, bits, message):
    with pytest.raises(ValueError, match=message):
        pack(values, bits)


def test_a_negative_dimension_is_refused():
    with pytest.raises(ValueError, match="not negative"):
        packed_size(-1, 20)


def test_a_vector_that_is_not_contiguous_packs_like_its_copy():
    values = vector(400, 20)
    assert pack(values[::2], 20) == pack(values[::2].copy(), 20)
