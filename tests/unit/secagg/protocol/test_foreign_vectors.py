"""Vectors of frameworks that are no dependency, where they are installed."""

import numpy as np
import pytest

from secagg.errors import InputError
from secagg.protocol.arguments import as_vector

EXPECTED = [0.0, 1.0, 2.0]


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    for kind in (torch.float16, torch.float32, torch.float64, torch.int8, torch.int64):
        taken = as_vector(torch.arange(3).to(kind), 3, noisy=True)
        np.testing.assert_array_equal(taken, EXPECTED)
    with_gradient = torch.tensor(EXPECTED, requires_grad=True)
    np.testing.assert_array_equal(as_vector(with_gradient, 3), EXPECTED)
    with pytest.raises(InputError, match="cannot be read"):
        as_vector(torch.tensor(EXPECTED, dtype=torch.bfloat16), 3)
    with pytest.raises(InputError, match="cannot be read"):
        as_vector(torch.tensor(EXPECTED).to_sparse(), 3)
    with pytest.raises(InputError, match="holds bool"):
        as_vector(torch.tensor([True, False, True]), 3)


def test_jax_arrays_are_accepted():
    numpy = pytest.importorskip("jax.numpy")
    for kind in (numpy.float32, numpy.int32, numpy.uint8):
        taken = as_vector(numpy.arange(3, dtype=kind), 3, noisy=True)
        np.testing.assert_array_equal(taken, EXPECTED)
    with pytest.raises(InputError, match="expected numbers"):
        as_vector(numpy.zeros(3, dtype=numpy.bfloat16), 3)
    with pytest.raises(InputError, match="NaN"):
        as_vector(numpy.full(3, numpy.nan), 3)


def test_pandas_series_and_tables_are_accepted():
    pandas = pytest.importorskip("pandas")
    for kind in ("int8", "uint64", "float32", "Int64", "Float32"):
        taken = as_vector(pandas.Series(EXPECTED, dtype=kind), 3, noisy=True)
        np.testing.assert_array_equal(taken, EXPECTED)
    missing = pandas.Series([0, 1, None], dtype="Int64")
    with pytest.raises(InputError):
        as_vector(missing, 3)
    with pytest.raises(InputError, match="is a table"):
        as_vector(pandas.DataFrame({"a": EXPECTED}), 3)
    with pytest.raises(InputError):
        as_vector(pandas.Series(["a", "b", "c"], dtype="category"), 3)


def test_sparse_scipy_matrices_are_rejected():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InputError, match="is sparse"):
        as_vector(sparse.csr_matrix([EXPECTED]), 3)
