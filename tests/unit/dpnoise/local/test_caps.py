"""The numbers of caps, against high-precision arithmetic and exact integers."""

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import pytest

from dpnoise.errors import ParameterError
from dpnoise.local.sphere_cap import (
    LOG_TAIL_ERROR,
    CubeCap,
    SphereCap,
    best_cube_cap,
    best_sphere_cap,
)

EPSILONS = (0.1, 1.0, 10.0, 100.0, 1000.0)


@pytest.fixture(autouse=True)
def _sixty_digits():
    with mpmath.workdps(60):
        yield


def sphere_tail(dim, height):
    """The regularised incomplete beta function, as mpmath evaluates it."""
    square = mpmath.mpf(height) * (2 - mpmath.mpf(height))
    half = mpmath.mpf(dim - 1) / 2
    below = mpmath.betainc(half, 0.5, 0, square, regularized=True)
    if below == 0:  # there mpmath's own underflow begins: the series in its place
        moment = square**half / (half * mpmath.beta(half, 0.5))
        below = moment * mpmath.hyp2f1(1, half + 0.5, half + 1, square)
        below *= mpmath.sqrt(1 - square)
    return below / 2


def moment(dim, height):
    """E[t; t ≥ 1 − h] for the cosine of a uniform point."""
    square = mpmath.mpf(height) * (2 - mpmath.mpf(height))
    half = mpmath.mpf(dim - 1) / 2
    return square**half / (2 * half * mpmath.beta(half, 0.5))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [2, 3, 4, 10, 101, 1000, 100_000])
def test_the_cap_of_the_sphere_is_evaluated_to_all_its_digits(dim, epsilon):
    cap = best_sphere_cap(dim, epsilon)
    tail = sphere_tail(dim, cap.height)
    assert abs(mpmath.log(tail) - cap.log_tail) < LOG_TAIL_ERROR / 100
    assert abs(moment(dim, cap.height) / tail / cap.mean - 1) < 1e-11


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_million_dimensions_agree_with_quadrature(epsilon):
    cap = best_sphere_cap(1_000_000, epsilon)
    half = mpmath.mpf(999_999) / 2
    edge = 1 - mpmath.mpf(cap.height)
    # Far beyond the edge nothing is left; the ratio to the density there is smooth.
    reach = edge + mpmath.mpf(16) / 1000
    with mpmath.workdps(25):
        weight = mpmath.quad(
            lambda t: mpmath.exp((half - 1) * mpmath.log((1 - t * t) / (1 - edge**2))),
            mpmath.linspace(edge, reach, 9),
        )
        log_tail = (
            mpmath.log(weight)
            + (half - 1) * mpmath.log(1 - edge**2)
            - mpmath.log(mpmath.beta(half, 0.5))
        )
        assert abs(log_tail - cap.log_tail) < LOG_TAIL_ERROR / 100


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("dim", [2, 3, 10, 1000])
def test_no_other_cap_of_the_sphere_points_farther(dim, epsilon):
    rest = 1 / (mpmath.exp(epsilon) - 1)

    def agreement(height):
        return moment(dim, height) / (sphere_tail(dim, height) + rest)

    best = best_sphere_cap(dim, epsilon)
    found = agreement(best.height)
    assert abs(found / (1 - mpmath.mpf(best.height)) - 1) < 1e-6
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1):
        if best.height * factor < 1:
            assert agreement(best.height * factor) < found


def test_three_dimensions_have_a_closed_form():
    # The cap of the ordinary sphere has an area in proportion to its height.
    for epsilon in (0.1, 1.0, 10.0):
        cap = best_sphere_cap(3, epsilon)
        assert cap.edge == pytest.approx(math.tanh(epsilon / 4), rel=1e-9)
        assert math.exp(cap.log_tail) == pytest.approx(cap.height / 2, rel=1e-12)


def test_the_published_normaliser_is_the_same_number():
    # [Bho18] equation (15), with the incomplete beta function of mpmath.
    dim, edge, chance = 500, mpmath.mpf("0.1"), mpmath.mpf("0.7")
    half, position = mpmath.mpf(dim - 1) / 2, (1 + edge) / 2
    whole = mpmath.beta(half, half)
    low = mpmath.betainc(half, half, 0, position)
    published = (
        (1 - edge**2) ** half
        / (mpmath.mpf(2) ** (dim - 2) * (dim - 1))
        * (chance / (whole - low) - (1 - chance) / low)
    )
    cap = SphereCap.of_height(dim, 0.9)
    q = math.exp(cap.log_tail)
    assert cap.mean * (0.7 - q) / (1 - q) == pytest.approx(float(published), rel=1e-10)


def exact_tail(dim, level):
    return Fraction(sum(math.comb(dim, k) for k in range(level, dim + 1)), 2**dim)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [1, 2, 3, 10, 101, 1000])
def test_the_cap_of_the_cube_is_exact_and_best(dim, epsilon):
    cap = best_cube_cap(dim, epsilon)
    tail = exact_tail(dim, cap.level)
    log_tail = mpmath.log(tail.numerator) - mpmath.log(tail.denominator)
    assert abs(log_tail - cap.log_tail) < LOG_TAIL_ERROR / 100
    mean = Fraction(math.comb(dim - 1, cap.level - 1), 2**dim) / tail
    assert cap.mean == pytest.approx(float(mean), rel=1e-11)
    rest = 1 / (mpmath.exp(epsilon) - 1)

    def agreement(level):
        if not dim / 2 < level <= dim:
            return mpmath.mpf(0)
        moment = mpmath.mpf(math.comb(dim - 1, level - 1)) / 2**dim
        exact = exact_tail(dim, level)
        return moment / (mpmath.mpf(exact.numerator) / exact.denominator + rest)

    around = [agreement(cap.level + step) for step in (-5, -1, 0, 1, 5)]
    assert max(around) == around[2]


def test_a_cube_of_a_million_agrees_with_exact_integers():
    for level in (500_199, 522_220):
        cap = CubeCap.of_level(1_000_000, level)
        # Terms beyond fall geometrically; 20 000 of them leave nothing.
        term, total = Fraction(1), mpmath.mpf(1)
        number = mpmath.mpf(1)
        for agreeing in range(level, level + 20_000):
            term = Fraction(1_000_000 - agreeing, agreeing + 1)
            number *= mpmath.mpf(term.numerator) / term.denominator
            total += number
        log_first = (
            mpmath.loggamma(1_000_001)
            - mpmath.loggamma(level + 1)
            - mpmath.loggamma(1_000_001 - level)
            - 1_000_000 * mpmath.log(2)
        )
        assert abs(log_first + mpmath.log(total) - cap.log_tail) < 1e-11


def test_edges_rise_with_the_level():
    for dim in (2, 30, 10_000):
        edges = [best_sphere_cap(dim, epsilon).edge for epsilon in EPSILONS[:3]]
        assert all(low < high for low, high in pairwise(edges))


@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 1001.0, float("nan"), True, "1"])
def test_levels_out_of_range_are_refused(epsilon):
    with pytest.raises(ParameterError, match="epsilon must lie in"):
        best_sphere_cap(10, epsilon)
    with pytest.raises(ParameterError, match="epsilon must lie in"):
        best_cube_cap(10, epsilon)
