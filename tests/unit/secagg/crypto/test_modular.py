import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto.modular import (
    BadVectorError,
    add_into,
    bit_width,
    check_modulus,
    check_vector,
    is_power_of_two,
    reduce_in_place,
    subtract_into,
    word_dtype,
    zeros,
)

MODULI = [2, 3, 255, 2**15 + 1, 65521, 2**16, 2**16 + 1, 2**31 - 1, 2**31 + 5]
MODULI += [2**32 - 5, 2**32, 2**32 + 15, 2**48, 2**61 - 1, 2**62 - 57, 2**62]


@pytest.mark.parametrize(
    ("modulus", "name"),
    [
        (2, "uint16"),
        (2**16, "uint16"),
        (2**16 + 1, "uint32"),
        (2**32, "uint32"),
        (2**32 + 1, "uint64"),
        (2**62, "uint64"),
    ],
)
def test_the_word_is_the_narrowest_that_holds_the_residues(modulus, name):
    assert word_dtype(modulus).name == name


@pytest.mark.parametrize("modulus", [-4, 0, 1, 2**62 + 1, 2**64])
def test_moduli_outside_the_range_are_refused(modulus):
    with pytest.raises(ValueError, match="modulus"):
        check_modulus(modulus)
    with pytest.raises(ValueError, match="modulus"):
        word_dtype(modulus)


def test_the_bit_width_is_the_rounded_up_logarithm():
    assert [bit_width(modulus) for modulus in (2, 3, 4, 5, 2**20, 2**20 + 1)] == [
        1, 2, 2, 3, 20, 21,
    ]  # fmt: skip
    assert is_power_of_two(2**20)
    assert not is_power_of_two(2**20 - 2)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(MODULI), st.data())
def test_sums_and_differences_are_those_of_integers(modulus, data):
    edge = st.sampled_from([0, 1, modulus // 2, modulus - 1])
    entry = st.one_of(edge, st.integers(0, modulus - 1))
    size = data.draw(st.integers(0, 6))
    steps = data.draw(
        st.lists(
            st.tuples(st.booleans(), st.lists(entry, min_size=size, max_size=size)),
            max_size=6,
        )
    )
    accumulator = zeros(size, modulus)
    expected = [0] * size
    for add, entries in steps:
        vector = np.array(entries, word_dtype(modulus))
        sign = 1 if add else -1
        (add_into if add else subtract_into)(accumulator, vector, modulus)
        expected = [
            (old + sign * new) % modulus
            for old, new in zip(expected, entries, strict=True)
        ]
        assert vector.tolist() == entries
    assert reduce_in_place(accumulator, modulus).tolist() == expected


@pytest.mark.parametrize("modulus", [3, 2**16, 2**20, 2**40])
def test_a_valid_vector_is_returned_unchanged(modulus):
    vector = np.array([0, modulus - 1], word_dtype(modulus))
    assert check_vector(vector, modulus, 2) is vector


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(3, np.uint32), "shape"),
        (np.zeros((2, 1), np.uint32), "shape"),
        (np.zeros(2, np.uint64), "type uint32"),
        (np.zeros(2, np.int32), "type uint32"),
        (np.zeros(2, np.float64), "type uint32"),
        (np.array([0, 2**20], np.uint32), "not below"),
    ],
)
def test_an_invalid_vector_is_rejected(vector, message):
    with pytest.raises(BadVectorError, match=message):
        check_vector(vector, 2**20, 2)


def test_an_empty_vector_is_legal():
    assert check_vector(zeros(0, 7), 7, 0).size == 0
