import tracemalloc

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto import prg
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import word_dtype, zeros
from secagg.crypto.prg import Mask, add_masks, expand
from secagg.crypto.secret_bytes import SecretBytes

# Moduli of every word; among the odd ones some reject almost half of all words
# (2^15 + 1, 2^31 + 5) and some almost none.
MODULI = [2, 3, 16, 2**15 + 1, 65521, 2**16, 2**16 + 1, 2**31 - 1, 2**31 + 5]
MODULI += [2**32 - 5, 2**32, 2**32 + 1, 2**48, 2**61 - 1, 2**62 - 57, 2**62]


def make_masks(count, *, key_size=32, label=b"masks"):
    stream = SeededEntropy(SecretBytes(bytes(range(32))), label)
    return [
        Mask(
            SecretBytes(stream.token(key_size)),
            stream.token(12),
            1 if number % 3 else -1,
        )
        for number in range(count)
    ]


def expected_sum(start_values, masks, modulus, *, start, dim):
    total = [int(value) for value in start_values]
    for mask in masks:
        plain = expand(mask.key, mask.iv, len(total), modulus, start=start, dim=dim)
        total = [
            (old + mask.sign * int(new)) % modulus
            for old, new in zip(total, plain, strict=True)
        ]
    return total


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(MODULI),
    st.sampled_from([16, 32]),
    st.integers(0, 200),
    st.data(),
)
def test_any_slice_in_any_chunks_equals_the_plain_oracle(modulus, key_size, dim, data):
    start = data.draw(st.integers(0, dim))
    size = data.draw(st.integers(0, dim - start))
    chunk_bytes = data.draw(st.sampled_from([1, 16, 40, 1 << 18]))
    masks = make_masks(data.draw(st.integers(0, 4)), key_size=key_size)
    accumulator = zeros(size, modulus)
    accumulator += accumulator.dtype.type(modulus - 1)
    expected = expected_sum(accumulator, masks, modulus, start=start, dim=dim)
    add_masks(
        accumulator, masks, modulus, start=start, dim=dim, chunk_bytes=chunk_bytes
    )
    assert accumulator.tolist() == expected


@pytest.mark.parametrize("bits", range(1, 63))
def test_a_mask_and_its_opposite_cancel_for_every_power_of_two(bits):
    (mask,) = make_masks(1)
    opposite = Mask(mask.key, mask.iv, -mask.sign)
    vector = np.arange(70).astype(word_dtype(1 << bits)) & word_dtype(1 << bits).type(
        (1 << bits) - 1
    )
    masked = vector.copy()
    add_masks(masked, [mask], 1 << bits)
    assert masked.tolist() != vector.tolist()
    add_masks(masked, [opposite], 1 << bits)
    assert masked.tolist() == vector.tolist()


@pytest.mark.parametrize("modulus", [2**16, 2**20, 2**40, 65521, 10**6 + 3])
@pytest.mark.parametrize("key_size", [16, 32])
def test_both_engines_generate_the_same_masks(monkeypatch, modulus, key_size):
    # R6.4-2: the masks alone, and nothing of a tag
    results = []
    for gcm in (False, True):
        monkeypatch.setattr(prg, "_gcm_is_faster", lambda _size, gcm=gcm: gcm)
        accumulator = zeros(5000, modulus)
        add_masks(
            accumulator, make_masks(5, key_size=key_size), modulus, chunk_bytes=999
        )
        results.append(accumulator.tolist())
    assert results[0] == results[1]


def test_an_engine_with_wrong_output_is_never_chosen(monkeypatch):
    prg._gcm_is_faster.cache_clear()

    def wrong(_mask):
        def fill(zeros_, buffer):
            buffer[:] = zeros_
            return len(zeros_)

        return fill

    monkeypatch.setattr(prg, "_gcm_fill", wrong)
    assert not prg._gcm_is_faster(32)
    monkeypatch.undo()
    prg._gcm_is_faster.cache_clear()


def test_concatenated_slices_equal_the_whole():
    masks = make_masks(3)
    for modulus in (2**20, 2**31 + 5):
        whole = zeros(1000, modulus)
        add_masks(whole, masks, modulus)
        for cut in (1, 3, 500, 999):
            parts = [zeros(cut, modulus), zeros(1000 - cut, modulus)]
            add_masks(parts[0], masks, modulus, start=0, dim=1000)
            add_masks(parts[1], masks, modulus, start=cut, dim=1000)
            assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.parametrize("modulus", [2, 3, 16, 100, 255, 256, 1000])
def test_every_residue_occurs_including_the_largest(modulus):
    (mask,) = make_masks(1)
    accumulator = zeros(40 * modulus, modulus)
    add_masks(accumulator, [mask], modulus)
    # A residue is missing with probability below m·exp(-40) < 1e-14.
    assert np.unique(accumulator).tolist() == list(range(modulus))


@pytest.mark.parametrize("modulus", [*MODULI, 1000, 10**6 + 3, 10**12 + 39])
def test_masks_are_uniform(modulus):
    # Chi-square over 64 classes of residues; false alarm 1e-6 per modulus.
    (mask,) = make_masks(1, label=b"uniform")
    size = 100_000
    accumulator = zeros(size, modulus)
    add_masks(accumulator, [mask], modulus)
    classes = min(modulus, 64)
    # Class of r is floor(r·classes/m); it covers ceil-differences many residues.
    edges = [-(-place * modulus // classes) for place in range(classes + 1)]
    inner = np.array(edges[1:-1], accumulator.dtype)
    found = np.bincount(
        np.searchsorted(inner, accumulator, side="right"), minlength=classes
    )
    expected = size * np.diff(np.array(edges, float)) / modulus
    statistic = float(((found - expected) ** 2 / expected).sum())
    assert statistic < scipy.stats.chi2.isf(1e-6, classes - 1)
    assert int(accumulator.max()) < modulus


def test_keys_that_differ_in_any_one_byte_give_unrelated_masks():
    seen = set()
    for place in range(44):
        material = bytearray(44)
        material[place] = 1
        mask = expand(SecretBytes(material[:32]), bytes(material[32:]), 4, 2**32)
        seen.add(tuple(mask.tolist()))
    assert len(seen) == 44


def test_peak_memory_does_not_grow_with_the_number_of_masks():
    peaks = []
    accumulator = zeros(1 << 18, 2**20)
    add_masks(accumulator, make_masks(1), 2**20)  # tables and trial come first
    for count in (10, 100):
        masks = make_masks(count)
        tracemalloc.start()
        add_masks(accumulator, masks, 2**20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # One buffer and one run of zeros, 256 KiB each, and about 1 KiB per open stream.
    assert peaks[1] - peaks[0] < 90 * 4096
    assert peaks[0] < 1 << 20


@pytest.mark.parametrize(
    ("key", "iv", "sign"),
    [(24, 12, 1), (0, 12, 1), (32, 16, 1), (32, 12, 0), (32, 12, 2)],
)
def test_a_malformed_mask_is_refused(key, iv, sign):
    with pytest.raises(ValueError, match="mask"):
        Mask(SecretBytes(bytes(key)), bytes(iv), sign)


def test_the_representation_of_a_mask_shows_no_key():
    mask = Mask(SecretBytes(b"k" * 32), b"i" * 12, 1)
    assert "kkkk" not in repr(mask)


@pytest.mark.parametrize(
    ("accumulator", "options", "message"),
    [
        (np.zeros(4, np.uint64), {}, "type uint32"),
        (np.zeros(4, np.int32), {}, "type uint32"),
        (np.zeros((2, 2), np.uint32), {}, "contiguous"),
        (np.zeros(8, np.uint32)[::2], {}, "contiguous"),
        (np.zeros(4, np.uint32), {"start": 1}, "dim="),
        (np.zeros(4, np.uint32), {"start": 1, "dim": 4}, "do not lie"),
        (np.zeros(4, np.uint32), {"start": -1, "dim": 8}, "do not lie"),
    ],
)
def test_an_invalid_accumulator_is_rejected(accumulator, options, message):
    with pytest.raises(ValueError, match=message):
        add_masks(accumulator, make_masks(1), 2**20, **options)


def test_a_vector_beyond_the_stream_of_one_key_is_refused():
    # R6.4-1
    limit = prg.MAX_STREAM_BYTES // 4
    tail = zeros(1, 2**20)
    add_masks(tail, make_masks(1), 2**20, start=limit - 1, dim=limit)
    with pytest.raises(ValueError, match="split it"):
        add_masks(tail, make_masks(1), 2**20, start=limit, dim=limit + 1)
    with pytest.raises(ValueError, match="split it"):
        add_masks(zeros(1, 10**6), [], 10**6, start=0, dim=limit // 4 + 1)


def test_a_seek_to_the_end_of_the_longest_stream_keeps_the_counter():
    # The last block has counter 2^32 - 1: had the counter wrapped, its bytes would
    # be those of another block.
    (mask,) = make_masks(1)
    dim = prg.MAX_STREAM_BYTES // 8
    last = zeros(2, 2**62)
    add_masks(last, [mask], 2**62, start=dim - 2, dim=dim)
    first = expand(mask.key, mask.iv, 2, 2**62)
    assert last.tolist() != first.tolist()


def test_the_plain_oracle_refuses_a_negative_length():
    with pytest.raises(ValueError, match="not negative"):
        expand(SecretBytes(bytes(32)), bytes(12), -1, 16)
