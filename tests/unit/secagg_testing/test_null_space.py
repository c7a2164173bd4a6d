"""Combinations of rows that vanish, against enumeration and against the rank over Q."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from secagg_testing.knowledge.null_space import left_null_space

LARGE = (1 << 31) - 1

matrices = st.tuples(st.integers(1, 6), st.integers(0, 6)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(-1, 1))
)


@given(matrices)
def test_the_null_space_modulo_2_matches_enumeration(matrix):
    rows = len(matrix)
    basis = left_null_space(matrix, 2)
    spanned = {
        tuple(np.array(chosen, np.int64) @ basis % 2)
        for chosen in itertools.product((0, 1), repeat=len(basis))
    }
    vanishing = {
        chosen
        for chosen in itertools.product((0, 1), repeat=rows)
        if not np.any(np.array(chosen) @ matrix % 2)
    }
    assert spanned == vanishing
    assert len(spanned) == 2 ** len(basis)


@given(matrices)
def test_the_null_space_modulo_a_large_prime_has_the_rational_dimension(
    matrix,
):
    basis = left_null_space(matrix, LARGE)
    rank = np.linalg.matrix_rank(matrix) if matrix.size else 0
    assert basis.shape == (len(matrix) - rank, len(matrix))
    # Python's integers: the products are exact.
    assert not np.any(basis.astype(object) @ matrix.astype(object) % LARGE)


@given(matrices, st.sampled_from([2, 3, LARGE]))
def test_the_null_space_basis_is_reduced(matrix, prime):
    basis = left_null_space(matrix, prime)
    leads = [int(np.flatnonzero(row)[0]) for row in basis]
    assert leads == sorted(set(leads))
    np.testing.assert_array_equal(basis[:, leads], np.eye(len(basis), dtype=np.int64))


def test_disjoint_cycles_are_returned_as_sets():
    # Two triangles: 0, 2, 4 and 1, 3, 5.
    edges = [(0, 2), (0, 4), (2, 4), (1, 3), (1, 5), (3, 5)]
    matrix = np.zeros((6, len(edges)), np.int64)
    for column, (low, high) in enumerate(edges):
        matrix[low, column], matrix[high, column] = 1, -1
    assert left_null_space(matrix, LARGE).tolist() == [
        [1, 0, 1, 0, 1, 0],
        [0, 1, 0, 1, 0, 1],
    ]


@pytest.mark.parametrize(("prime", "dimension"), [(LARGE, 0), (2, 1)])
def test_a_triangle_with_a_wrong_sign_is_dependent_modulo_2_only(prime, dimension):
    triangle = np.array([[1, 1, 0], [1, 0, 1], [0, -1, -1]])
    assert len(left_null_space(triangle, prime)) == dimension
