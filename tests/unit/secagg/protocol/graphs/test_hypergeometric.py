"""Tails without replacement against integers, near the mode and far from it."""

import math
from fractions import Fraction
from math import comb

import pytest

from secagg.protocol.graphs.bounds import log_choose, log_drawn


def log_of(fraction):
    if fraction == 0:
        return -math.inf
    return math.log(fraction.numerator) - math.log(fraction.denominator)


def drawn(hits, population, marked, chosen):
    ways = sum(
        comb(marked, x) * comb(population - marked, chosen - x)
        for x in hits
        if 0 <= x <= chosen
    )
    return Fraction(ways, comb(population, chosen))


@pytest.mark.parametrize("population", [1, 2, 7, 20, 41, 60])
def test_every_range_of_hits_agrees_with_integers(population):
    step = 1 if population < 20 else 7
    for marked in range(0, population + 1, step):
        for chosen in range(0, population + 1, step):
            for low in range(-1, chosen + 2, step):
                for high in range(low - 1, chosen + 3, step):
                    found = log_drawn(
                        range(low, high),
                        population=population,
                        marked=marked,
                        drawn=chosen,
                    )
                    expected = drawn(range(low, high), population, marked, chosen)
                    assert found == pytest.approx(log_of(expected), rel=0, abs=1e-12)


@pytest.mark.parametrize(
    ("population", "marked", "chosen", "hits"),
    [
        (999, 200, 160, range(73, 161)),
        (999, 699, 160, range(73)),
        (999, 200, 160, range(161)),  # all of it: probability 1
        # The first term and the last are too small to be the unit of the others.
        (2_400, 1_200, 1_000, range(1_001)),
        (65_534, 13_107, 2_000, range(2_001)),
        (999_999, 200_000, 180, range(85, 181)),
        (999_999, 500_000, 3_000, range(1_200)),
        # The window lies on one side of the mode, and ends before the far tail.
        (5_000, 2_500, 800, range(410, 440)),
        (5_000, 2_500, 800, range(330, 390)),
    ],
)
def test_large_populations_agree_with_integers(population, marked, chosen, hits):
    found = log_drawn(hits, population=population, marked=marked, drawn=chosen)
    expected = drawn(hits, population, marked, chosen)
    assert found == pytest.approx(log_of(expected), rel=0, abs=1e-8)


def test_impossible_choices_have_probability_zero():
    assert log_choose(5, 6) == log_choose(5, -1) == log_choose(-1, 0) == -math.inf
    assert log_choose(0, 0) == 0
    assert log_choose(60, 30) == pytest.approx(math.log(comb(60, 30)), abs=1e-12)
