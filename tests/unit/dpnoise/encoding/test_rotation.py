"""Rotations: orthonormal, invertible, flat, and with independent signs."""

# ruff: noqa: TID251 - numpy.random makes test data here, never noise
import math

import numpy as np
import pytest

from dpnoise.encoding.rotation import (
    MAX_ROTATED_DIM,
    encoded_dim,
    flatness,
    hadamard_matrix,
    kronecker_factors,
    kronecker_product,
    make_rotation,
    padded_dim,
    rotation_names,
)
from dpnoise.errors import InputError, ParameterError

SEED = bytes(range(32))
DIMS = [1, 2, 3, 4, 7, 12, 13, 20, 31, 64, 100, 240, 255, 1000, 1025]


def matrix_of(rotation):
    """The columns: images of the unit vectors."""
    return np.column_stack([rotation.forward(row) for row in np.eye(rotation.dim)])


@pytest.mark.parametrize("name", rotation_names())
@pytest.mark.parametrize("dim", DIMS)
def test_columns_are_orthonormal_and_no_entry_exceeds_the_flatness(name, dim):
    rotation = make_rotation(name, dim, SEED)
    matrix = matrix_of(rotation)
    assert matrix.shape == (encoded_dim(name, dim), dim)
    assert rotation.encoded_dim == encoded_dim(name, dim)
    assert np.allclose(matrix.T @ matrix, np.eye(dim), atol=1e-13)
    largest = rotation.encoded_dim * float(np.max(matrix**2))
    assert largest <= flatness(name, dim) * (1 + 1e-12)
    assert rotation.flatness == flatness(name, dim)


@pytest.mark.parametrize("name", rotation_names())
@pytest.mark.parametrize("dim", [*DIMS, 65_536, 99_991])
def test_the_inverse_undoes_the_rotation(name, dim):
    rotation = make_rotation(name, dim, SEED)
    vector = np.random.default_rng(dim).normal(size=dim)
    original = vector.copy()
    back = rotation.inverse(rotation.forward(vector))
    assert np.allclose(back, vector, rtol=0, atol=1e-13 * math.log2(dim + 2) * 10)
    assert np.array_equal(vector, original)


@pytest.mark.parametrize("name", rotation_names())
def test_rotations_are_linear_and_invert_sums(name):
    rotation = make_rotation(name, 300, SEED)
    vectors = np.random.default_rng(7).normal(size=(5, 300))
    total = sum(rotation.forward(vector) for vector in vectors)
    assert np.allclose(rotation.inverse(total), vectors.sum(axis=0), atol=1e-12)


@pytest.mark.parametrize("dim", [5, 8])
def test_the_fourier_rotation_is_the_real_fourier_basis_times_signs(dim):
    matrix = matrix_of(make_rotation("dft", dim, SEED))
    index = np.arange(dim)
    rows = [np.full(dim, math.sqrt(1 / dim))]
    pairs = range(1, (dim - 1) // 2 + 1)
    angles = [2 * math.pi * k * index / dim for k in pairs]
    rows += [math.sqrt(2 / dim) * np.cos(angle) for angle in angles]
    rows += [-math.sqrt(2 / dim) * np.sin(angle) for angle in angles]
    if dim % 2 == 0:
        rows.append(math.sqrt(1 / dim) * (-1.0) ** index)
    signs = matrix[0] * math.sqrt(dim)
    assert np.allclose(np.abs(signs), 1)
    assert np.allclose(matrix, np.array(rows) * signs, atol=1e-14)


def test_the_hadamard_rotation_is_the_dense_matrix_times_signs():
    dense = np.ones((1, 1))
    for _ in range(7):
        dense = np.kron(np.array([[1, 1], [1, -1]]), dense)
    matrix = matrix_of(make_rotation("hadamard", 128, SEED)) * math.sqrt(128)
    signs = matrix[0]
    assert set(np.round(signs, 9)) == {-1.0, 1.0}
    assert np.allclose(matrix, dense * signs, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 4, 8, 12, 16, 20, 32])
def test_built_in_factors_are_hadamard_matrices(order):
    matrix = hadamard_matrix(order)
    assert np.array_equal(np.abs(matrix), np.ones((order, order)))
    assert np.array_equal(matrix @ matrix.T, order * np.eye(order))
    with pytest.raises(ValueError, match="read-only"):
        matrix[0, 0] = 2


@pytest.mark.parametrize("factors", [(1,), (12,), (2, 20), (12, 20, 2), (4, 32, 32)])
@pytest.mark.parametrize("transpose", [False, True])
def test_the_chain_of_small_products_is_the_kronecker_product(factors, transpose):
    dense = np.ones((1, 1))
    for order in factors:
        dense = np.kron(dense, hadamard_matrix(order))
    vector = np.arange(dense.shape[0], dtype=np.float64)
    expected = (dense.T if transpose else dense) @ vector
    assert np.array_equal(
        kronecker_product(factors, vector, transpose=transpose), expected
    )


def test_padding_is_to_a_power_of_two_or_at_most_a_fifth():
    for dim in [*range(1, 3000), 65_537, 1_000_000, 1_048_577]:
        power = padded_dim(dim, paley=False)
        assert power & (power - 1) == 0
        assert power // 2 < dim <= power
        short = padded_dim(dim, paley=True)
        assert dim <= short <= power
        assert math.prod(kronecker_factors(short)) == short
        if dim > 200:
            assert short <= 1.201 * dim


def test_lengths_without_a_factorisation_are_refused():
    with pytest.raises(ParameterError, match="no product"):
        kronecker_factors(7)
    with pytest.raises(ParameterError, match="order 28"):
        hadamard_matrix(28)


def signs_of(seed, dim):
    rotation = make_rotation("hadamard", dim, seed)
    return np.sign(rotation.scaled_signs)


def test_two_coordinates_get_independent_signs():
    # 4096 seeds, 8 coordinates: each sign and each pairwise product is a fair coin.
    # Thirty-six sums of 4096 signs; 5.5 standard deviations: false alarm 1.4e-6.
    signs = np.array([signs_of(k.to_bytes(32, "big"), 8) for k in range(4096)])
    limit = 5.5 * math.sqrt(4096)
    assert np.all(np.abs(signs.sum(axis=0)) < limit)
    products = signs.T @ signs
    assert np.all(np.abs(products - np.diag(np.diag(products))) < limit)


def test_neighbouring_coordinates_of_one_seed_get_independent_signs():
    signs = signs_of(SEED, 1 << 16)
    limit = 5.5 * math.sqrt(1 << 16)
    for lag in (1, 2, 7, 8, 64, 1024):
        assert abs(float(np.dot(signs[lag:], signs[:-lag]))) < limit
    assert abs(signs.sum()) < limit


def test_the_public_seed_fixes_the_signs_and_another_seed_changes_them():
    assert np.array_equal(signs_of(SEED, 500), signs_of(SEED, 500))
    assert np.array_equal(signs_of(SEED, 500)[:100], signs_of(SEED, 100))
    agreeing = np.count_nonzero(signs_of(SEED, 500) == signs_of(bytes(32), 500))
    assert 150 < agreeing < 350


def test_a_concentrated_vector_is_spread_evenly():
    for name in ("hadamard", "hadamard-kronecker", "dft"):
        rotation = make_rotation(name, 5000, SEED)
        spike = np.zeros(5000)
        spike[17] = 1.0
        bound = math.sqrt(rotation.flatness / rotation.encoded_dim)
        assert np.max(np.abs(rotation.forward(spike))) <= bound * (1 + 1e-12)
        flat = rotation.forward(np.full(5000, 1 / math.sqrt(5000)))
        assert np.max(np.abs(flat)) < 8 * bound


@pytest.mark.parametrize("name", rotation_names())
def test_wrong_shapes_and_types_are_refused(name):
    rotation = make_rotation(name, 10, SEED)
    for bad in (np.zeros(11), np.zeros((10, 1)), np.zeros(10, np.float32)):
        with pytest.raises(InputError, match="vector must be float64"):
            rotation.forward(bad)
    with pytest.raises(InputError, match="rotated must be float64"):
        rotation.inverse(np.zeros(rotation.encoded_dim + 1))


def test_unknown_names_dimensions_and_seeds_are_refused():
    with pytest.raises(ParameterError, match="unknown rotation 'dct'"):
        make_rotation("dct", 10, SEED)
    with pytest.raises(ParameterError, match="unknown rotation"):
        flatness("fft", 10)
    for dim in (0, -1, MAX_ROTATED_DIM + 1):
        with pytest.raises(ParameterError, match="dim must be between"):
            encoded_dim("none", dim)
    with pytest.raises(ParameterError, match="dim must be an int"):
        make_rotation("dft", 10.0, SEED)
    with pytest.raises(ParameterError, match="length 32"):
        make_rotation("hadamard", 10, b"short")
