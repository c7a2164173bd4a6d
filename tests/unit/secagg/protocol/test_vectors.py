"""What a vector of a caller may be."""

import numpy as np
import pandas as pd
import pytest

from secagg.errors import InputError
from secagg.protocol.arguments import as_vector


class Tensor:
    """Has the methods of a tensor that wants gradients and lies on another device."""

    def __init__(self, values, *, is_here=False):
        self._values, self._is_here = values, is_here

    def detach(self):
        return Tensor(self._values)

    def cpu(self):
        return Tensor(self._values, is_here=True)

    def numpy(self):
        if not self._is_here:
            raise TypeError("the tensor lies on another device")
        if self._values is None:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.asarray(self._values)


class Array:
    """Another library's."""

    def __array__(self, *_, **__):
        return np.arange(3.0)


class Sparse:
    """Has the methods of a sparse matrix of scipy."""

    nnz = 1

    def toarray(self):
        return np.eye(1)


async def late():
    """A function that was not called."""


@pytest.mark.parametrize(
    "given",
    [
        [0, 1, 2],
        (0.0, 1.0, 2.0),
        range(3),
        *(np.arange(3).astype(kind) for kind in "bhilBHILefd"),
        np.arange(3.0).astype(">f4"),
        np.arange(6.0)[::2] / 2,
        np.ma.masked_array(np.arange(3.0)),
        pd.Series([0, 1, 2]),
        pd.Series([0.0, 1.0, 2.0], index=list("abc")),
        Tensor([0.0, 1.0, 2.0]),
        Array(),
        [np.float32(0), np.int8(1), 2],
    ],
)
def test_number_sequences_are_accepted(given):
    taken = as_vector(given, 3)
    assert type(taken) is np.ndarray
    np.testing.assert_array_equal(taken, [0, 1, 2])
    noisy = as_vector(given, 3, noisy=True)
    assert noisy.dtype == np.float64
    np.testing.assert_array_equal(noisy, taken)


@pytest.mark.parametrize(
    ("given", "complaint", "way_out"),
    [
        (None, "is None", "list of numbers"),
        ("1, 2", "is text", "list of numbers"),
        (b"12", "is text", "list of numbers"),
        ((x for x in range(3)), "is an iterator", "list(vector)"),
        (iter([1]), "is an iterator", "list(vector)"),
        ({"a": 1}, "is of type dict", "list of its numbers"),
        ({1, 2}, "is of type set", "list of its numbers"),
        (pd.DataFrame({"a": [1]}), "is a table", "to_numpy().ravel()"),
        (Sparse(), "is sparse", "toarray().ravel()"),
        (pd.Series(["a"]), "holds", "astype(float)"),
        (Tensor(None), "of type Tensor, cannot be read", "flat list"),
        (np.ones((2, 2)), "shape (2, 2)", "ravel()"),
        (np.float64(3), "shape ()", "ravel()"),
        (object(), "shape ()", "ravel()"),
        ([[1.0], [2.0, 3.0]], "cannot be read", "flat list"),
        ([], "is empty", "length"),
        ([True, False], "holds bool", "astype(float)"),
        ([1j], "holds complex128", "astype(float)"),
        (["a"], "expected numbers", "astype(float)"),
        ([None, 1], "holds object", "astype(float)"),
        ([1 << 70], "holds object", "astype(float)"),
        (np.ones(2, np.longdouble), "at most 64 bits", "astype(float)"),
        ([1.0, np.nan], "NaN or infinity, first at entry 1", "Replace"),
        ([-np.inf], "NaN or infinity, first at entry 0", "Replace"),
        (np.ma.masked_array([4711.0], mask=[True]), "masked entries", "filled(0)"),
    ],
)
def test_other_inputs_are_rejected_with_one_sentence_and_a_next_step(
    given, complaint, way_out
):
    with pytest.raises(InputError) as caught:
        as_vector(given, name="the input x")
    assert str(caught.value).startswith("the input x")
    assert complaint in str(caught.value)
    assert way_out in caught.value.next_step
    assert "4711" not in str(caught.value)


def test_a_coroutine_is_rejected_and_closed():
    """Python would complain of one that is never awaited, and fail this test."""
    with pytest.raises(InputError, match="is a coroutine"):
        as_vector(late())


def test_another_length_is_refused():
    with pytest.raises(InputError, match="2 entries, the task adds up vectors of 3"):
        as_vector([1, 2], 3)


@pytest.mark.parametrize("largest", [1 << 53, -(1 << 53)])
def test_integers_must_be_exact_as_floats(largest):
    assert as_vector([largest], noisy=True)[0] == largest
    beyond = largest + (1 if largest > 0 else -1)
    with pytest.raises(InputError, match="float64 cannot hold"):
        as_vector([beyond], noisy=True)
    assert as_vector([beyond])[0] == beyond
    smallest = np.full(1, np.iinfo(np.int64).min)  # whose absolute value is negative
    with pytest.raises(InputError, match="float64 cannot hold"):
        as_vector(smallest, noisy=True)
