"""Residues: every integer of the symmetric range survives, for odd and even moduli."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpnoise.encoding.wrapping import (
    MAX_MODULUS,
    centre,
    residue_dtype,
    sum_residues,
    wrap,
)
from dpnoise.errors import InputError, ParameterError

MODULI = [2, 3, 5, 256, 1000, 1 << 16, (1 << 16) + 1, 1 << 32, (1 << 32) + 1, 1 << 48]


@pytest.mark.parametrize("modulus", [2, 3, 4, 5, 10, 16])
def test_all_residues_of_a_small_modulus_lift_to_the_symmetric_range(modulus):
    residues = np.arange(modulus, dtype=residue_dtype(modulus))
    lifted = centre(residues, modulus).tolist()
    assert sorted(lifted) == list(range(-(modulus // 2), (modulus + 1) // 2))
    assert [value % modulus for value in lifted] == list(range(modulus))


@pytest.mark.parametrize("modulus", [4, 10, 1 << 10, 1 << 62])
def test_half_of_an_even_modulus_lifts_to_minus_half(modulus):
    half = np.array([modulus // 2, modulus // 2 - 1], dtype=residue_dtype(modulus))
    assert centre(half, modulus).tolist() == [-modulus // 2, modulus // 2 - 1]


@given(
    st.one_of(st.sampled_from(MODULI), st.integers(2, MAX_MODULUS)),
    st.lists(st.integers(-(1 << 62), 1 << 62), min_size=1, max_size=20),
)
def test_wrapping_is_reduction_and_centring_undoes_it(modulus, entries):
    residues = wrap(np.array(entries, dtype=np.int64), modulus)
    assert residues.dtype == residue_dtype(modulus)
    assert [int(r) for r in residues] == [value % modulus for value in entries]
    lifted = centre(residues, modulus)
    assert lifted.dtype == np.int64
    for value, original in zip(lifted.tolist(), entries, strict=True):
        assert (value - original) % modulus == 0
        assert -modulus <= 2 * value < modulus


@pytest.mark.parametrize(
    ("modulus", "dtype"),
    [
        (2, np.uint16),
        (1 << 16, np.uint16),
        ((1 << 16) + 1, np.uint32),
        (1 << 32, np.uint32),
        ((1 << 32) + 1, np.uint64),
        (1 << 62, np.uint64),
    ],
)
def test_residues_use_the_smallest_type_that_holds_them(modulus, dtype):
    assert residue_dtype(modulus) == dtype
    values = np.array([-1, 0, modulus - 1, modulus], dtype=np.int64)
    assert wrap(values, modulus).tolist() == [modulus - 1, 0, modulus - 1, 0]


@pytest.mark.parametrize("modulus", [-1, 0, 1, (1 << 62) + 1])
def test_a_modulus_out_of_range_is_refused_with_the_nearest(modulus):
    with pytest.raises(ParameterError, match="modulus must lie in") as caught:
        wrap(np.zeros(1, np.int64), modulus)
    assert caught.value.nearest in {"2", "2^62"}


@pytest.mark.parametrize("modulus", [4.0, "4", None, True])
def test_a_modulus_that_is_no_integer_is_refused(modulus):
    with pytest.raises(ParameterError, match="must be an int"):
        residue_dtype(modulus)


def test_residues_that_are_not_reduced_or_signed_are_refused():
    with pytest.raises(InputError, match="below the modulus 10"):
        centre(np.array([3, 10], dtype=np.uint16), 10)
    with pytest.raises(InputError, match="unsigned"):
        centre(np.array([3, -1]), 10)
    with pytest.raises(InputError, match="int64"):
        wrap(np.array([3.0]), 10)
    assert centre(np.zeros(0, np.uint16), 10).shape == (0,)


def test_a_sum_of_residues_is_the_residue_of_the_sum():
    modulus = 1000
    parts = [np.array([k * 37 - 400, -k], dtype=np.int64) for k in range(30)]
    total = sum(wrap(part, modulus).astype(np.uint64) for part in parts) % modulus
    expected = sum(parts) % modulus
    assert np.array_equal(total, expected)


@pytest.mark.parametrize(
    "modulus",
    [
        *MODULI,
        (1 << 16) - 15,
        (1 << 32) - 5,
        (1 << 48) + 5,
        MAX_MODULUS - 57,
        MAX_MODULUS,
    ],
)
def test_a_sum_of_residues_is_right_for_every_modulus(modulus):
    # Nine rows of the largest residue: more than four overflow 64 bits at 2^62, and two
    # the type of the residues where the modulus nearly fills it.
    entries = [
        [modulus - 1, row % modulus, (row * row + 1) % modulus] for row in range(9)
    ]
    residues = np.array(entries, dtype=residue_dtype(modulus))
    total = sum_residues(residues, modulus)
    assert total.dtype == residue_dtype(modulus)
    exact = [sum(column) % modulus for column in zip(*entries, strict=True)]
    assert [int(entry) for entry in total] == exact


def test_a_sum_of_no_vectors_is_zero():
    assert sum_residues(np.zeros((0, 3), np.uint16), 1000).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "residues",
    [
        np.zeros(3, np.uint16),
        np.zeros((2, 3), np.int64),
        np.full((2, 3), 10, np.uint16),
    ],
)
def test_an_invalid_matrix_of_residues_is_rejected(residues):
    with pytest.raises(InputError):
        sum_residues(residues, 10)
