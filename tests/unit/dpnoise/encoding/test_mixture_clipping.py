"""The published clip: both bounds hold exactly, and line 3 subtracts."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpnoise.encoding.mixture_clipping import clip_mixture, mixture_norm
from dpnoise.encoding.scaling import FixedPointVector, round_stochastic
from dpnoise.errors import InputError, ParameterError
from dpnoise.samplers import BitSource

UNIT = 1 << 32


def exact_norm(fixed):
    """Σ x² + f − f² by rational arithmetic, from the definition."""
    total = Fraction(0)
    for value in fixed.values.tolist():
        magnitude = Fraction(abs(value), UNIT)
        fraction = magnitude - math.floor(magnitude)
        total += magnitude**2 + fraction - fraction**2
    return total


def algorithm_5(vector, bound, cap):
    """[Bao22] Algorithm 5 with the corrected lines, one coordinate at a time."""
    helpers = []
    for g in vector:
        f = abs(g) - math.floor(abs(g))
        helpers.append(g * g + f - f * f)
    shrink = min(1.0, bound / sum(helpers)) if any(helpers) else 1.0
    clipped = []
    for g, helper in zip(vector, helpers, strict=True):
        v = helper * shrink
        k = math.floor(math.sqrt(v))
        p = (v - k * k) / (2 * k + 1)
        clipped.append(math.copysign(min(k + p, cap), g))
    return clipped


VECTORS = {
    "small": [0.1, -0.2, 0.3, 0.0],
    "mixed": [0.5, -1.5, 2.25, -3.0, 7.9, 0.0],
    "integers": [1.0, -2.0, 3.0],
    "large": [100.5, -2000.25, 3.3],
    "random": np.random.default_rng(9).normal(size=400) * 2,  # noqa: TID251 - inputs, not noise
}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize(("bound", "cap"), [(1.0, 1), (16.0, 2), (500.0, 5), (1e9, 9)])
def test_the_clip_follows_algorithm_5_with_its_errata(name, bound, cap):
    vector = np.array(VECTORS[name])
    fixed = clip_mixture(vector, mixture_norm_bound=bound, linf_bound=cap)
    expected = algorithm_5(vector.tolist(), bound, cap)
    assert np.allclose(fixed.values / UNIT, expected, rtol=1e-9, atol=2.0**-31)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    st.floats(min_value=1e-6, max_value=1e6),
    st.integers(min_value=1, max_value=1000),
)
def test_both_bounds_hold_exactly_for_every_finite_vector(entries, bound, cap):
    fixed = clip_mixture(entries, mixture_norm_bound=bound, linf_bound=cap)
    assert exact_norm(fixed) <= Fraction(bound)
    assert mixture_norm(fixed) == exact_norm(fixed)
    for value, entry in zip(fixed.values.tolist(), entries, strict=True):
        assert abs(value) <= cap * UNIT  # hence ⌈|g|⌉ ≤ cap
        assert value == 0 or (value > 0) == (entry > 0)


def test_a_vector_on_the_bound_is_unchanged_and_a_longer_one_barely_shortened():
    vector = np.array([1.5, -2.25, 0.75])
    norm = float(exact_norm(FixedPointVector((vector * UNIT).astype(np.int64))))
    at = clip_mixture(vector, mixture_norm_bound=norm, linf_bound=10)
    assert np.array_equal(at.values, vector * UNIT)
    below = clip_mixture(vector, mixture_norm_bound=norm * 0.999, linf_bound=10)
    assert 0.99899 * norm < exact_norm(below) <= Fraction(norm * 0.999)


def test_the_mixture_norm_is_the_expected_square_after_rounding():
    rng = np.random.default_rng(11)  # noqa: TID251 - inputs, not noise
    fixed = FixedPointVector(rng.integers(-3 * UNIT, 3 * UNIT, size=50))
    bits = BitSource(bytes(32), b"rounding")
    trials = 4000
    squares = np.array(
        [
            float(np.sum(round_stochastic(fixed, bits, start=50 * t) ** 2))
            for t in range(trials)
        ]
    )
    expected = float(mixture_norm(fixed))
    # Five standard errors of the mean: a false alarm has a chance under 1e-6.
    assert abs(squares.mean() - expected) < 5 * squares.std() / math.sqrt(trials)


def test_the_printed_plus_sign_would_break_the_inverse():
    # Rule of the erratum: (k + p)² + p − p² = k² + (2k + 1)·p; with + p² it is not.
    k, p = 3, Fraction(2, 5)
    g = k + p
    assert g**2 + p - p**2 == k**2 + (2 * k + 1) * p
    assert g**2 + p + p**2 != k**2 + (2 * k + 1) * p


def test_the_mixture_norm_is_exact_at_the_largest_magnitudes():
    value = (1 << 24) * UNIT - 1
    fixed = FixedPointVector(np.full(9000, -value, np.int64))
    k, f = divmod(value, UNIT)
    one = Fraction(k * k) + Fraction((2 * k + 1) * f, UNIT)
    assert mixture_norm(fixed) == 9000 * one


@pytest.mark.parametrize(
    ("bound", "cap", "name"),
    [
        (0.0, 1, "mixture_norm_bound"),
        (math.nan, 1, "mixture_norm_bound"),
        (1.0, 0, "linf_bound"),
        (1.0, (1 << 24) + 1, "linf_bound"),
        (1.0, 5.94, "linf_bound"),
    ],
)
def test_bounds_out_of_range_and_real_caps_are_refused(bound, cap, name):
    with pytest.raises(ParameterError) as caught:
        clip_mixture([0.5], mixture_norm_bound=bound, linf_bound=cap)
    assert caught.value.parameter == name


def test_an_input_that_is_not_finite_is_refused():
    with pytest.raises(InputError, match="scaled"):
        clip_mixture([math.nan], mixture_norm_bound=1.0, linf_bound=1)
