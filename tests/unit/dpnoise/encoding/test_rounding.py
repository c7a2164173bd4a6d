"""Rounding: exact probabilities, hard bounds, fixed positions."""
# ruff: noqa: TID251 - numpy.random makes test data here, never noise

import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.encoding.clipping import integer_squared_norm
from dpnoise.encoding.scaling import (
    MAX_ROUNDING_ATTEMPTS,
    FixedPointVector,
    conditional_norm_bound,
    conditional_squared_bound,
    round_conditional,
    round_stochastic,
    round_toward_zero,
)
from dpnoise.errors import ParameterError
from dpnoise.samplers import BitSource

UNIT = 1 << 32
SEED = bytes(range(32))


class ConstantWords:
    """A stream whose every word is the same; counts the words it gave."""

    def __init__(self, word):
        self.word = word
        self.requested = []

    def uint32(self, start, count):
        self.requested.append((start, count))
        return np.full(count, self.word, dtype=np.uint32)


def fixed_of(*numbers):
    return FixedPointVector(np.array([round(n * UNIT) for n in numbers], np.int64))


@pytest.mark.parametrize(
    ("number", "floor"), [(2.25, 2), (-2.25, -3), (0.25, 0), (-0.75, -1), (-0.25, -1)]
)
def test_a_coordinate_rounds_up_for_exactly_its_fraction_of_all_words(number, floor):
    fraction = round((number - floor) * UNIT)
    below = round_stochastic(fixed_of(number), ConstantWords(fraction - 1))
    at = round_stochastic(fixed_of(number), ConstantWords(fraction))
    assert below.tolist() == [floor + 1]  # words 0 .. fraction − 1 round up
    assert at.tolist() == [floor]


def test_the_smallest_and_the_largest_fraction_are_exact():
    smallest = FixedPointVector(np.array([1, -1], np.int64))
    assert round_stochastic(smallest, ConstantWords(0)).tolist() == [1, 0]
    assert round_stochastic(smallest, ConstantWords(1)).tolist() == [0, 0]
    assert round_stochastic(smallest, ConstantWords(UNIT - 1)).tolist() == [0, -1]


def test_integers_never_move():
    whole = fixed_of(0, 1, -1, 77, -(1 << 25))
    for word in (0, UNIT - 1):
        assert round_stochastic(whole, ConstantWords(word)).tolist() == [
            0,
            1,
            -1,
            77,
            -(1 << 25),
        ]


def test_coordinate_j_uses_word_j_for_any_block_size():
    count = 200_000
    values = np.random.default_rng(1).integers(-5 * UNIT, 5 * UNIT, size=count)
    bits = BitSource(SEED, b"rounding")
    whole = round_stochastic(FixedPointVector(values), bits)
    for low, high in ((0, 5), (65_530, 65_545), (199_999, count)):
        part = FixedPointVector(values[low:high].copy())
        assert np.array_equal(round_stochastic(part, bits, start=low), whole[low:high])
    words = bits.uint32(0, count).astype(np.int64)
    assert np.array_equal(whole, (values >> 32) + (words < (values & (UNIT - 1))))


def test_rounding_toward_zero_truncates_both_signs():
    numbers = [2.75, -2.75, 0.999, -0.999, 0.0, 5.0, -5.0, 2.0**-32, -(2.0**-32)]
    rounded = round_toward_zero(fixed_of(*numbers))
    assert rounded.tolist() == [math.trunc(n) for n in numbers]


def test_conditional_rounding_retries_with_fresh_words_until_inside():
    dim, radius = 400, 5.0
    direction = np.random.default_rng(2).normal(size=dim)
    scaled = direction / np.linalg.norm(direction) * radius * (1 - 1e-9)
    fixed = FixedPointVector((scaled * UNIT).astype(np.int64))
    bits = BitSource(SEED, b"rounding")
    attempts = [round_stochastic(fixed, bits, start=a * dim) for a in range(64)]
    norms = [integer_squared_norm(attempt) for attempt in attempts]
    # A bound that the first attempt misses and a later one meets.
    bound = min(norms[:10])
    expected = next(a for a, norm in zip(attempts, norms, strict=True) if norm <= bound)
    assert norms[0] > bound
    assert np.array_equal(round_conditional(fixed, bits, bound), expected)


def test_after_the_last_attempt_conditional_rounding_truncates():
    fixed = fixed_of(*([0.5] * 10), -1.5)
    words = ConstantWords(0)  # rounds everything up, so every attempt is too long
    rounded = round_conditional(fixed, words, 5)
    assert rounded.tolist() == [0] * 10 + [-1]
    starts = [start for start, _ in words.requested]
    assert starts == [11 * a for a in range(MAX_ROUNDING_ATTEMPTS)]


def test_a_rounding_beyond_the_bound_is_discarded():
    fixed, up = fixed_of(*([0.5] * 100)), ConstantWords(0)
    assert round_conditional(fixed, up, 100).tolist() == [1] * 100
    assert round_conditional(fixed, up, 99).tolist() == [0] * 100


def test_a_bound_below_the_norm_of_the_vector_is_rejected():
    with pytest.raises(ParameterError, match="conditional_squared_bound"):
        round_conditional(fixed_of(3.0, 4.0), ConstantWords(0), 24)


@pytest.mark.parametrize("dim", [1, 10, 65_536])
@pytest.mark.parametrize("norm", [0.5, 4.0, 300.0])
@pytest.mark.parametrize("bias", [0.0, 1e-9, math.exp(-0.5), 0.999])
def test_the_bound_is_that_of_the_proposition(dim, norm, bias):
    always = (norm + math.sqrt(dim)) ** 2
    squared = always
    if bias:
        spread = math.sqrt(2 * math.log(1 / bias)) * (norm + math.sqrt(dim) / 2)
        squared = min(always, norm**2 + dim / 4 + spread)
    assert conditional_norm_bound(norm, dim, bias) == pytest.approx(math.sqrt(squared))
    assert abs(conditional_squared_bound(norm, dim, bias) - math.floor(squared)) <= 1
    assert conditional_squared_bound(norm, dim, bias) >= math.floor(norm**2)


def test_without_bias_every_rounding_satisfies_the_bound():
    fixed = fixed_of(0.9, 0.9, -0.9, 1.1)
    norm = math.sqrt(3 * 0.81 + 1.21)
    bound = conditional_squared_bound(norm, 4, 0.0)
    assert integer_squared_norm(np.array([1, 1, -1, 2])) <= bound
    assert integer_squared_norm(round_stochastic(fixed, ConstantWords(0))) <= bound
    # The triangle inequality behind it is met with equality by growing every entry.
    assert conditional_norm_bound(10.0, 100, 0.0) == 20.0


def test_the_acceptance_probability_is_at_least_one_minus_the_bias():
    dim, norm, bias = 256, 6.0, math.exp(-0.5)
    bound = conditional_squared_bound(norm, dim, bias)
    value = math.floor(norm / math.sqrt(dim) * UNIT)
    fixed = FixedPointVector(np.full(dim, value, np.int64))
    bits = BitSource(SEED, b"acceptance")
    trials = 2000
    accepted = sum(
        integer_squared_norm(round_stochastic(fixed, bits, start=t * dim)) <= bound
        for t in range(trials)
    )
    # Five standard deviations below 1 − β: a false alarm has a chance under 1e-6.
    least = trials * (1 - bias) - 5 * math.sqrt(trials * bias * (1 - bias))
    assert accepted >= least


@pytest.mark.parametrize("bias", [-0.1, 1.0, 2.0, math.nan])
def test_a_bias_out_of_range_is_refused(bias):
    with pytest.raises(ParameterError) as caught:
        conditional_norm_bound(1.0, 4, bias)
    assert caught.value.parameter == "rounding_bias"


def test_stochastic_rounding_is_unbiased_over_all_words_of_a_coarse_fraction():
    # A fraction of j/16 rounds up for 2^32·j/16 words: count the words at the edges.
    for j in range(16):
        fixed = FixedPointVector(np.array([j * UNIT // 16], np.int64))
        ups = sum(
            int(round_stochastic(fixed, ConstantWords(w * UNIT // 16))[0])
            for w in range(16)
        )
        assert Fraction(ups, 16) == Fraction(j, 16)
