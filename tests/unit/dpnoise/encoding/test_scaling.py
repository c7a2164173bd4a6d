"""Fixed point: truncation never grows, and the norm bound holds in exact integers."""
# ruff: noqa: TID251 - numpy.random makes test data here, never noise

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpnoise.encoding.clipping import clip_l2, integer_squared_norm, squared_norm_bound
from dpnoise.encoding.rotation import make_rotation
from dpnoise.encoding.scaling import FixedPointVector, to_fixed_point
from dpnoise.errors import InputError, ParameterError

UNIT = 1 << 32


def exact_squared_norm(fixed):
    """In grid steps squared."""
    return Fraction(sum(g * g for g in fixed.values.tolist()), UNIT * UNIT)


def test_a_vector_well_inside_is_truncated_exactly():
    scaled = np.array([0.5, -0.5, 1.25, -2.75, 2.0**-33, -(2.0**-33), 3.0000000001])
    fixed = to_fixed_point(scaled, max_squared_norm=100.0, coordinate_bound=4)
    assert fixed.values.tolist() == [math.trunc(Fraction(y) * UNIT) for y in scaled]
    assert fixed.fractional_bits == 32


def test_a_bound_below_one_grid_step_clamps_exactly():
    scaled = np.array([0.01, -0.01, 0.25, -1e300, 7 / 4096])
    fixed = to_fixed_point(scaled, max_squared_norm=9.0, coordinate_bound=7 / 4096)
    cap = 7 * (UNIT // 4096)
    assert fixed.values.tolist() == [cap, -cap, cap, -cap, cap]


def test_coordinates_are_clamped_before_the_norm_is_measured():
    scaled = np.array([1e300, -1e300, 0.25])
    fixed = to_fixed_point(scaled, max_squared_norm=9.0, coordinate_bound=2)
    assert fixed.values.tolist() == [2 * UNIT, -2 * UNIT, UNIT // 4]


# Truncation takes more off this vector than shrinking its truncated norm would.
@example(entries=[5e-06], bound=1e-12, cap=1)
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.floats(min_value=-(2.0**26), max_value=2.0**26), min_size=1, max_size=40
    ),
    st.floats(min_value=1e-12, max_value=1e12),
    # Bounds below one grid step are as likely as bounds above.
    st.builds(
        lambda units, exponent: min(units << exponent, 1 << 37) / 4096,
        st.integers(min_value=1, max_value=1 << 12),
        st.integers(min_value=0, max_value=25),
    ),
)
def test_no_norm_and_no_coordinate_ever_exceeds_its_bound(entries, bound, cap):
    fixed = to_fixed_point(
        np.array(entries), max_squared_norm=bound, coordinate_bound=cap
    )
    assert exact_squared_norm(fixed) <= Fraction(bound)
    for g, y in zip(fixed.values.tolist(), entries, strict=True):
        assert abs(g) <= cap * UNIT
        assert abs(g) <= abs(Fraction(y)) * UNIT
        assert g * y >= 0


@pytest.mark.parametrize("factor", [1.0, 1 + 2.0**-52, 1 + 1e-15, 1 - 1e-16, 1.001])
def test_vectors_on_the_sphere_stay_within_the_bound_after_rounding(factor):
    rng = np.random.default_rng(3)
    direction = rng.normal(size=2000)
    direction /= np.linalg.norm(direction)
    bound = 17.3**2
    scaled = direction * 17.3 * factor
    fixed = to_fixed_point(scaled, max_squared_norm=bound, coordinate_bound=18)
    assert bound * (1 - 1e-8) < exact_squared_norm(fixed) <= Fraction(bound)


@pytest.mark.parametrize("excess", [1e-9, 1e-10, 1e-11, 1e-12])
def test_the_smallest_excess_over_the_bound_is_clipped(excess):
    # Integers survive truncation, so that nothing but the check shrinks this vector.
    bound = 25.0 * (1 - excess)
    fixed = to_fixed_point(
        np.array([3.0, -4.0]), max_squared_norm=bound, coordinate_bound=4
    )
    assert 25.0 * (1 - 4e-9) < exact_squared_norm(fixed) <= Fraction(bound)


def test_a_rotated_vector_of_a_million_coordinates_keeps_its_norm_bound():
    dim, radius = 1 << 20, 900.0
    rng = np.random.default_rng(4)
    vector = clip_l2(rng.normal(size=dim), 1.0)
    rotated = make_rotation("hadamard", dim, bytes(32)).forward(vector) * radius
    fixed = to_fixed_point(
        rotated,
        max_squared_norm=radius**2,
        coordinate_bound=8,
    )
    # Exact: values fit 35 bits, so halves of 18 bits add up without overflow.
    high, low = fixed.values >> 18, fixed.values & ((1 << 18) - 1)
    total = (
        (int(np.dot(high, high)) << 36)
        + (int(np.dot(high, low)) << 19)
        + int(np.dot(low, low))
    )
    assert (radius**2) * (1 - 1e-7) * UNIT**2 < total <= radius**2 * UNIT**2


def test_an_input_that_is_not_finite_is_refused_by_name():
    for bad in (math.nan, math.inf):
        with pytest.raises(
            InputError, match="scaled has 1 entries that are not finite"
        ):
            to_fixed_point(
                np.array([0.0, bad]), max_squared_norm=1.0, coordinate_bound=1
            )


@pytest.mark.parametrize(
    ("bound", "cap", "name"),
    [
        (0.0, 1, "max_squared_norm"),
        (math.nan, 1, "max_squared_norm"),
        (math.inf, 1, "max_squared_norm"),
        (1.0, 0, "coordinate_bound"),
        (1.0, 2.0**-13, "coordinate_bound"),
        (1.0, 1.0 + 2.0**-13, "coordinate_bound"),
        (1.0, (1 << 25) + 1, "coordinate_bound"),
    ],
)
def test_bounds_out_of_range_are_refused(bound, cap, name):
    with pytest.raises(ParameterError) as caught:
        to_fixed_point(np.zeros(2), max_squared_norm=bound, coordinate_bound=cap)
    assert caught.value.parameter == name


def test_a_fixed_point_vector_is_read_only_and_redacted():
    fixed = FixedPointVector(np.array([123456789, 5], dtype=np.int64))
    assert repr(fixed) == "FixedPointVector(dim=2, entries=<redacted>)"
    with pytest.raises(ValueError, match="read-only"):
        fixed.values[0] = 1
    with pytest.raises(ParameterError, match="int64"):
        FixedPointVector(np.zeros(2))
    with pytest.raises(ParameterError, match="fractional_bits"):
        FixedPointVector(np.zeros(2, dtype=np.int64), 31)


def test_the_squared_norm_bound_is_an_upper_bound_and_close():
    rng = np.random.default_rng(5)
    for size in (1, 3, 4096, 4097, 20_000):
        values = rng.normal(size=size) * 10.0 ** rng.integers(-9, 9, size=size)
        exact = sum(Fraction(v) ** 2 for v in values.tolist())
        bound = Fraction(squared_norm_bound(values))
        assert exact <= bound <= exact * (1 + Fraction(1, 1 << 38))
    # Squares that underflow to zero still count.
    tiny = np.full(1000, 1e-162)
    assert Fraction(squared_norm_bound(tiny)) >= 1000 * Fraction(1e-162) ** 2
    assert squared_norm_bound(np.zeros(5)) < 1e-300


def test_the_integer_squared_norm_is_exact_at_its_limits():
    extreme = np.full(10_000, (1 << 25) + 1, dtype=np.int64)
    extreme[::2] *= -1
    assert integer_squared_norm(extreme) == 10_000 * ((1 << 25) + 1) ** 2
    assert integer_squared_norm(extreme[:1]) == ((1 << 25) + 1) ** 2
