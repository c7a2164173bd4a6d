"""The boundary: what is refused, and that a clipped vector is never too long."""
# ruff: noqa: TID251 - numpy.random makes test data here, never noise

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpnoise.encoding.clipping import check_vector, clip_l2, require_positive
from dpnoise.errors import InputError, ParameterError

BAD_VECTORS = [
    ([1.0, float("nan")], "position 1, is NaN"),
    ([float("inf"), 0.0], "position 0, is infinite"),
    ([0.0, 1.0, -float("inf")], "position 2, is infinite"),
    (np.array([1, 2], dtype=bool), "dtype bool"),
    (np.array([1j, 2]), "dtype complex128"),
    (np.array(["1", "2"]), "dtype <U1"),
    (np.array([None, 1.0]), "dtype object"),
    (np.array([1, 2], dtype="datetime64[s]"), "dtype datetime64"),
    (np.array([1, 2], dtype=np.longdouble), "at most 64 bits"),
    ([[1.0], [1.0, 2.0]], "ragged"),
    (np.zeros((2, 2)), r"shape \(2, 2\)"),
    (np.float64(3.0), r"shape \(\)"),
    (np.zeros(0), "empty"),
]


def exact_squared_norm(vector):
    return sum(Fraction(float(entry)) ** 2 for entry in vector)


@pytest.mark.parametrize(("vector", "message"), BAD_VECTORS)
def test_invalid_vectors_are_rejected_by_name(vector, message):
    with pytest.raises(InputError, match=message) as caught:
        check_vector(vector, name="update")
    assert str(caught.value).startswith("update ")
    with pytest.raises(InputError, match=message):
        clip_l2(vector, 1.0)


def test_a_wrong_length_is_refused_with_both_lengths():
    with pytest.raises(InputError, match=r"shape \(3,\), got shape \(2,\)"):
        check_vector([1.0, 2.0], 3)


def test_an_error_never_quotes_an_entry():
    secret = 31337.125
    for vector in ([secret, float("nan")], [[secret], [secret, 1.0]], [secret, None]):
        with pytest.raises(InputError) as caught:
            check_vector(vector)
        assert "31337" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint64])
def test_narrow_and_integer_types_are_accepted_as_a_copy(dtype):
    vector = np.array([0, 1, 2], dtype=dtype)
    checked = check_vector(vector, 3)
    assert checked.dtype == np.float64
    assert checked.tolist() == [0.0, 1.0, 2.0]
    checked[0] = 7.0
    assert vector[0] == 0


def test_a_short_vector_is_copied_unchanged():
    vector = np.array([0.3, -0.4, 0.0])
    clipped = clip_l2(vector, 0.5000001)
    assert np.array_equal(clipped, vector)
    assert clipped is not vector
    assert np.array_equal(clip_l2(np.zeros(4), 1.0), np.zeros(4))


def test_a_long_vector_keeps_its_direction_and_nearly_its_norm():
    vector = np.array([3.0, -4.0, 12.0])
    clipped = clip_l2(vector, 1.0)
    assert np.allclose(clipped, vector / 13.0, rtol=1e-11, atol=0)
    assert 1 - Fraction(1, 10**11) < exact_squared_norm(clipped) <= 1


ADVERSARIAL = {
    "one entry": [0.1],
    "thirds": [1 / 3] * 9,
    "ones": [1.0] * 1000,
    "mixed magnitudes": [10.0**k for k in range(-300, 300, 7)],
    "largest floats": [1.7e308] * 5,
    "subnormal": [5e-324, -1e-310],
    "one giant among dwarfs": [1e200, 1e-200, 1.0],
    "just above": [np.nextafter(0.6, 1), np.nextafter(0.8, 1)],
    "random": np.random.default_rng(1).normal(size=5000),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("l2_clip", [1.0, 0.1, 1 / 3, 1e-140, 1e140, 7.3e5])
def test_no_clipped_vector_is_longer_than_the_clip_in_exact_arithmetic(name, l2_clip):
    vector = np.array(ADVERSARIAL[name])
    clipped = clip_l2(vector, l2_clip)
    assert exact_squared_norm(clipped) <= Fraction(l2_clip) ** 2
    if exact_squared_norm(vector) <= Fraction(l2_clip) ** 2 * Fraction(99, 100):
        assert np.array_equal(clipped, vector)
    else:
        least = Fraction(l2_clip) ** 2 * (1 - Fraction(1, 10**10))
        assert exact_squared_norm(clipped) >= least * Fraction(98, 100)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    st.floats(min_value=1e-100, max_value=1e100),
)
@example([2.187250724783012e99, 8.518632479979071e-219], 2.1872483915165933e99)
def test_any_finite_vector_ends_inside_the_ball(entries, l2_clip):
    clipped = clip_l2(entries, l2_clip)
    assert exact_squared_norm(clipped) <= Fraction(l2_clip) ** 2
    assert np.all(np.abs(clipped) <= np.abs(entries))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 1e-200, 1e200])
def test_a_clip_out_of_range_is_refused(value):
    with pytest.raises(ParameterError, match="l2_clip must lie in") as caught:
        clip_l2([1.0], value)
    assert caught.value.parameter == "l2_clip"
    if value == value:  # noqa: PLR0124 - not NaN
        assert clip_l2([1.0], float(caught.value.nearest)).size == 1


@pytest.mark.parametrize("value", ["1", None, True, 1j])
def test_a_clip_that_is_no_number_is_refused(value):
    with pytest.raises(ParameterError, match="must be a real number"):
        clip_l2([1.0], value)
    with pytest.raises(ParameterError, match="must be a real number"):
        require_positive("l2_clip", value, 1, 2)
