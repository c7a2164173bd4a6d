"""Tables against independent evaluations of the same laws in high precision."""

import itertools
import math
from fractions import Fraction

import mpmath
import pytest
from secagg_testing import reference_samplers as reference

from dpnoise.errors import CertificateError
from dpnoise.samplers import binomial_table, discrete_gaussian_table, skellam_table
from dpnoise.samplers.tail_bounds import (
    OneSide,
    Weights,
    exp_enclosure,
    geometric_rest,
    rounded_tails,
)
from tests.table_laws import discrete_laplace_table, poisson_table

WHOLE = 1 << 256
DIGITS = 110


def mp(number):
    return mpmath.mpf(number.numerator) / number.denominator


def skellam_cdf(v):
    """Cumulative sums of e^(−v)·I_k(v), by mpmath's Bessel function."""

    def pmf(k):
        return mpmath.exp(-mp(v)) * mpmath.besseli(abs(k), mp(v))

    return pmf


def gaussian_pmf(variance_parameter):
    q = mpmath.exp(-1 / (2 * mp(variance_parameter)))
    total = mpmath.jtheta(3, 0, q)
    return lambda k: q ** (k * k) / total


def laplace_pmf(decay_rate):
    p = mpmath.exp(-mp(decay_rate))
    return lambda k: (1 - p) / (1 + p) * p ** abs(k)


def binomial_pmf(trials):
    return lambda k: mpmath.binomial(trials, trials // 2 + k) / mpmath.mpf(2) ** trials


def poisson_pmf(rate):
    return lambda k: (
        mpmath.exp(-mp(rate)) * mp(rate) ** k / mpmath.factorial(k)
        if k >= 0
        else mpmath.mpf(0)
    )


def exact_cdf(pmf, first, last):
    """P(X ≤ k) for k in [first, last): sums from below, started far out."""
    total = mpmath.mpf(0)
    lowest = first - max(40, 2 * (last - first) // 3)
    values = []
    for k in range(lowest, last):
        total += pmf(k)
        if k >= first:
            values.append(+total)
    return values


SMALL = [
    (skellam_table, skellam_cdf, Fraction(1, 100)),
    (skellam_table, skellam_cdf, Fraction(1)),
    (skellam_table, skellam_cdf, Fraction(355, 113)),
    (skellam_table, skellam_cdf, Fraction(2**200 + 1, 2**195 + 3)),
    (skellam_table, skellam_cdf, Fraction(150)),
    (discrete_gaussian_table, gaussian_pmf, Fraction(1, 10)),
    (discrete_gaussian_table, gaussian_pmf, Fraction(9, 2)),
    (discrete_gaussian_table, gaussian_pmf, Fraction(300)),
    (discrete_laplace_table, laplace_pmf, Fraction(5)),
    (discrete_laplace_table, laplace_pmf, Fraction(1, 3)),
    (binomial_table, binomial_pmf, 2),
    (binomial_table, binomial_pmf, 256),
    (binomial_table, binomial_pmf, 4096),
    (binomial_table, binomial_pmf, 5000),
    (poisson_table, poisson_pmf, Fraction(1, 3)),
    (poisson_table, poisson_pmf, Fraction(1000, 7)),
]


@pytest.mark.parametrize(("build", "law", "parameter"), SMALL)
def test_every_threshold_is_the_exact_cdf_rounded_to_256_bits(build, law, parameter):
    table = build(parameter)
    with mpmath.workdps(DIGITS):
        cdf = exact_cdf(law(parameter), table.first, table.last)
        centre = math.floor(parameter) if build is poisson_table else 0
        for index, probability in enumerate(cdf):
            if table.first + index < centre:
                expected = int(mpmath.floor(probability * WHOLE))
            else:
                expected = WHOLE - int(mpmath.floor((1 - probability) * WHOLE))
            # The last unit is decided by mpmath as well, at 110 digits.
            assert table.threshold(index) == expected


@pytest.mark.parametrize(("build", "law", "parameter"), SMALL)
def test_the_distance_bound_covers_the_true_distance_and_is_tiny(build, law, parameter):
    table = build(parameter)
    with mpmath.workdps(DIGITS):
        pmf = law(parameter)
        thresholds = [table.threshold(index) for index in range(table.num_thresholds)]
        cells = [b - a for a, b in itertools.pairwise([0, *thresholds, WHOLE])]
        probabilities = [pmf(k) for k in range(table.first, table.last + 1)]
        outside = 1 - mpmath.fsum(probabilities)
        distance = outside + mpmath.fsum(
            abs(mpmath.mpf(cell) / WHOLE - probability)
            for cell, probability in zip(cells, probabilities, strict=True)
        )
        assert distance / 2 <= table.distance_bound
    assert table.distance_bound < 2.0**-135


@pytest.mark.parametrize("variance", [10**4, 10**7])
def test_large_skellam_tables_agree_with_mpmath_to_thirty_digits(variance):
    table = skellam_table(variance)
    stddev = math.isqrt(variance)
    with mpmath.workdps(50):
        # One value of the cdf by symmetry, its neighbours by single probabilities.
        pmf = skellam_cdf(Fraction(variance))
        for start in (0, stddev, 4 * stddev):
            for k in range(start, start + 3):
                cell = table.threshold(k + 1 - table.first) - table.threshold(
                    k - table.first
                )
                assert abs(mpmath.mpf(cell) / WHOLE - pmf(k + 1)) < 1e-40
        middle = (1 + pmf(0)) / 2
        at_zero = mpmath.mpf(table.threshold(-table.first)) / WHOLE
        assert abs(at_zero - middle) < 1e-40


def test_the_largest_and_the_smallest_skellam_variance_can_be_built():
    tiny = skellam_table(Fraction(1, 1 << 20))
    assert tiny.threshold(-tiny.first) - tiny.threshold(-1 - tiny.first) > (
        WHOLE - (WHOLE >> 19)
    )
    large = skellam_table(1 << 24)
    assert large.last == -large.first
    assert large.distance_bound < 2.0**-135


def test_the_variance_is_twice_the_rate_of_each_poisson_part():
    rate = Fraction(7, 3)
    table = skellam_table(2 * rate)
    assert table.variance == 2 * rate
    whole = Fraction(WHOLE)
    cells = _cells(table)
    moment = sum(k * k * cell for k, cell in cells) / whole
    assert abs(moment - 2 * rate) < Fraction(1, 1 << 120)
    assert sum(k * cell for k, cell in cells) == 0  # exactly symmetric
    poisson = poisson_table(rate)
    mean = sum(k * cell for k, cell in _cells(poisson)) / whole
    assert abs(mean - rate) < Fraction(1, 1 << 120)
    assert poisson.variance == rate


def test_irrational_variances_are_those_of_the_table():
    for table, expected in (
        (discrete_gaussian_table(Fraction(1, 5)), None),
        (discrete_laplace_table(Fraction(3, 2)), Fraction(3, 2)),
    ):
        moment = Fraction(sum(k * k * cell for k, cell in _cells(table)), WHOLE)
        assert table.variance == moment
        if expected is not None:
            ratio = math.exp(-float(expected))
            assert float(moment) == pytest.approx(
                2 * ratio / (1 - ratio) ** 2, rel=1e-14
            )
    # Rule 1 of the module: the variance is far below the parameter when that is small.
    assert discrete_gaussian_table(Fraction(1, 5)).variance < Fraction(1, 6)


@pytest.mark.parametrize(
    ("build", "pmf", "parameter"),
    [
        (skellam_table, reference.skellam_pmf, Fraction(13, 4)),
        (discrete_gaussian_table, reference.discrete_gaussian_pmf, Fraction(13, 4)),
        (discrete_laplace_table, reference.discrete_laplace_pmf, Fraction(1, 2)),
        (binomial_table, reference.binomial_pmf, 50),
        (poisson_table, reference.poisson_pmf, Fraction(13, 4)),
    ],
)
def test_tables_agree_with_the_decimal_reference(build, pmf, parameter):
    table = build(parameter)
    for k in range(table.first, min(table.last, table.first + 60)):
        tail = reference.lower_tail(lambda j: pmf(j, parameter), k)
        error = Fraction(table.threshold(k - table.first), WHOLE) - Fraction(tail)
        assert abs(error) < Fraction(1, 10**60)


def test_equal_laws_share_one_table_and_digests_distinguish_laws():
    assert skellam_table(2) is skellam_table(Fraction(4, 2))
    tables = [
        skellam_table(2),
        skellam_table(3),
        discrete_gaussian_table(2),
        poisson_table(2),
        binomial_table(2),
        discrete_laplace_table(2),
    ]
    assert len({table.digest for table in tables}) == len(tables)
    assert all(len(table.digest) == 32 for table in tables)


def test_exp_enclosure_brackets_the_exponential_tightly():
    for exponent in (Fraction(0), Fraction(1, 10**12), Fraction(22, 7), Fraction(200)):
        lower, upper = exp_enclosure(exponent, 384)
        with mpmath.workdps(150):
            exact = mpmath.exp(-mp(exponent)) * mpmath.mpf(2) ** 384
            assert lower <= exact <= upper
        assert upper - lower <= 3


def test_an_undecided_rounding_is_retried_with_more_bits_and_then_fails():
    asked = []

    def coarse(precision):
        """Weights so wide that no threshold can ever be decided."""
        asked.append(precision)
        return Weights(0, 1000, 1001, OneSide([10, 1], [12, 2], 0))

    with pytest.raises(CertificateError, match="undecided at 1024 bits"):
        rounded_tails("coarse", coarse)
    assert asked == [384, 512, 1024]


def test_a_law_with_missing_mass_is_rejected():
    def short(precision):
        """Half of the mass is left unlisted."""
        one = 1 << precision
        return Weights(0, one, one, OneSide([], [], one))

    with pytest.raises(CertificateError):
        rounded_tails("short", short)


def test_weights_that_do_not_decrease_have_no_bounded_remainder():
    assert geometric_rest(1000, 1 << 383, 384) == 1001  # 1000·(1/2 + 1/4 + ...)
    for ratio in (1 << 384, (1 << 384) + 1):
        with pytest.raises(CertificateError, match="not shown to fall"):
            geometric_rest(1000, ratio, 384)


def test_a_rounding_undecided_at_low_precision_succeeds_with_more_bits():
    def law(precision):
        """Exact thirds, blurred beyond use at the first precision only."""
        blur = 1 << 300 if precision == 384 else 0
        one = 1 << precision
        return Weights(0, one - blur, one + blur, OneSide([one], [one], 0))

    tails = rounded_tails("thirds", law)
    assert tails.right == [WHOLE // 3]
    assert tails.left == tails.right


def _cells(table):
    thresholds = [table.threshold(index) for index in range(table.num_thresholds)]
    previous = [0, *thresholds]
    following = [*thresholds, WHOLE]
    return [
        (table.first + index, high - low)
        for index, (low, high) in enumerate(zip(previous, following, strict=True))
    ]
