"""The search for the least noise: where it ends, and how often it asks."""

import math
from fractions import Fraction

import pytest

from dpnoise.accounting.root_search import least_root

TOLERANCE = 5e-6


class Asked:
    """A shortfall that counts how often it is asked for."""

    def __init__(self, shortfall):
        self.shortfall = shortfall
        self.places = []

    def __call__(self, variance):
        self.places.append(float(variance))
        return self.shortfall(math.log(variance))


def search(asked, start, **options):
    return least_root(
        asked,
        low=Fraction(1, 1 << 20),
        high=Fraction(1 << 100),
        start=Fraction(start),
        **({"tolerance": TOLERANCE} | options),
    )


def jump(where, before, after):
    """As a Gaussian's, and at one variance from far too little to far too much."""

    def shortfall(at):
        return (before if at < math.log(where) else -after) + math.log(where) - at

    return shortfall


@pytest.mark.parametrize("slope", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("start", [1e-3, 300.0, 1e6])
def test_a_smooth_minimum_is_found_in_few_steps(slope, start):
    asked = Asked(lambda at: slope * (math.log(300.0) - at))
    found = search(asked, start, at_a_jump=1e-3, near=3.9e-3)
    assert 300.0 <= found <= 300.0 * (1 + 2.0 * TOLERANCE / slope)
    assert len(asked.places) <= 22


@pytest.mark.parametrize("start", [10.0, 900.0, 1e5])
@pytest.mark.parametrize("before", [0.13, 3.0, math.inf])
def test_a_jump_is_located_only_as_precisely_as_required(start, before):
    exact = Asked(jump(1000.0, before, 1.0))
    search(exact, start)
    asked = Asked(jump(1000.0, before, 1.0))
    found = search(asked, start, at_a_jump=1e-3)
    assert 1000.0 <= found <= 1000.0 * math.exp(1e-3)
    assert float(found) in asked.places
    assert len(asked.places) <= min(19, len(exact.places) - 5)


def test_a_roughly_known_jump_is_searched_nearby():
    for start in (1000.5, 1003.5):
        asked = Asked(jump(1000.0, 0.13, 1.0))
        found = search(asked, start, at_a_jump=2.5e-4, near=3.9e-3)
        assert 1000.0 <= found <= 1000.0 * math.exp(2.5e-4)
        assert len(asked.places) <= 6
        assert all(990.0 < place < 1010.0 for place in asked.places)


def test_a_flat_function_with_a_wall_is_bisected():
    """As where δ is the sampler's charge alone, and then there is no theorem."""

    def shortfall(at):
        if at < math.log(1e4):
            return math.inf
        return max(-0.124 - 1e-9 * at, 5.0 * (math.log(5e4) - at))

    asked = Asked(shortfall)
    found = search(asked, 3e3, tolerance=1e-3, at_a_jump=4e-3)
    assert 5e4 <= found <= 5e4 * math.exp(4e-3)
    assert len(asked.places) <= 16  # by the Gaussian's step alone 30


def test_the_search_does_not_leap_far_below_a_flat_region():
    """As where a δ has its least, from noise that another bound would need."""
    asked = Asked(lambda at: max(-0.2427 - 1e-7 * at, math.log(166.0) - at))
    found = search(asked, 344.6, tolerance=1e-3)
    assert 166.0 <= found <= 166.0 * 1.002
    assert min(asked.places) > 100.0
    assert len(asked.places) <= 6


def test_the_result_always_satisfies_the_condition():
    """Even where what is asked for neither falls nor rises steadily."""
    for seed in range(40):

        def ragged(at, seed=seed):
            return math.log(7.0) - at + 0.02 * math.sin(1e3 * at + seed)

        asked = Asked(ragged)
        found = search(asked, 3.0 + seed, at_a_jump=1e-3)
        assert ragged(math.log(found)) <= 0.0
        assert 6.8 < found < 7.2
