"""Samples of the tables against the exact laws; every test has a false-alarm rate 1e-6.

Seeds are fixed, so that a test either always passes or always fails. The rate says how
likely a correct sampler was to fail when the seed was chosen.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from secagg_testing import reference_samplers as reference

from dpnoise.samplers import binomial_table, discrete_gaussian_table, skellam_table
from tests.table_laws import discrete_laplace_table, poisson_table

FALSE_ALARM = 1e-6
COUNT = 1 << 20
SEED = b"the seed of the statistical test"

LAWS = [
    (skellam_table, reference.skellam_pmf, Fraction(1, 100)),
    (skellam_table, reference.skellam_pmf, Fraction(1, 2)),
    (skellam_table, reference.skellam_pmf, Fraction(4)),
    (skellam_table, reference.skellam_pmf, Fraction(355, 113)),
    (skellam_table, reference.skellam_pmf, Fraction(900)),
    (discrete_gaussian_table, reference.discrete_gaussian_pmf, Fraction(1, 4)),
    (discrete_gaussian_table, reference.discrete_gaussian_pmf, Fraction(50)),
    (discrete_laplace_table, reference.discrete_laplace_pmf, Fraction(1, 3)),
    (binomial_table, reference.binomial_pmf, 2),
    (binomial_table, reference.binomial_pmf, 100),
    (poisson_table, reference.poisson_pmf, Fraction(7, 2)),
]


def name_of(value):
    return getattr(value, "__name__", None) or str(value)


def draw(build, parameter, label=b"noise"):
    return build(parameter).draw(SEED, label, COUNT)


def pearson(samples, probability, support):
    """Pearson's statistic and its degrees of freedom; thin cells are pooled."""
    expected = np.array([float(probability(k)) for k in support]) * samples.size
    observed = np.array(
        np.bincount(
            np.clip(samples - support[0], 0, len(support)), minlength=len(support)
        )[: len(support)],
        dtype=np.float64,
    )
    thick = expected >= 30
    pooled = samples.size - expected[thick].sum()
    statistic = ((observed[thick] - expected[thick]) ** 2 / expected[thick]).sum()
    cells = int(thick.sum())
    if pooled >= 30:
        statistic += (samples.size - observed[thick].sum() - pooled) ** 2 / pooled
        cells += 1
    return statistic, cells - 1


@pytest.mark.parametrize(("build", "pmf", "parameter"), LAWS, ids=name_of)
def test_cell_counts_follow_the_exact_probabilities(build, pmf, parameter):
    table = build(parameter)
    samples = draw(build, parameter)
    reach = 6 * math.isqrt(math.ceil(table.variance)) + 6
    centre = math.floor(parameter) if build is poisson_table else 0
    support = range(
        max(table.first, centre - reach), min(table.last, centre + reach) + 1
    )
    statistic, freedom = pearson(samples, lambda k: pmf(k, parameter), support)
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, freedom)


@pytest.mark.parametrize(("build", "pmf", "parameter"), LAWS, ids=name_of)
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_both_tails_have_the_exact_weight(build, pmf, parameter, upper):
    table = build(parameter)
    samples = draw(build, parameter, b"tails")
    # Inwards from the end of the table, to the last cut that leaves out a thousandth
    # of all draws or less. What lies beyond the table is below 1e-40.
    cut, step = (table.last, -1) if upper else (table.first, 1)
    tail = float(pmf(cut, parameter))
    while (next_tail := tail + float(pmf(cut + step, parameter))) <= 1e-3:
        cut += step
        tail = next_tail
    beyond = int(np.count_nonzero(samples >= cut if upper else samples <= cut))
    binomial = scipy.stats.binom(COUNT, tail)
    assert binomial.cdf(beyond) > FALSE_ALARM / 2
    assert binomial.sf(beyond - 1) > FALSE_ALARM / 2


@pytest.mark.parametrize(
    "variance", [Fraction(1, 100), 1, 100, 10**4, 10**5, 10**6, 10**7]
)
def test_mean_and_variance_of_skellam_noise_are_as_asked_for(variance):
    table = skellam_table(variance)
    samples = draw(skellam_table, variance, b"moments").astype(np.float64)
    v = float(variance)
    quantile = float(scipy.stats.norm.isf(FALSE_ALARM / 4))
    assert abs(samples.mean()) < quantile * math.sqrt(v / COUNT)
    # The fourth central moment of the law is 3v² + v.
    spread = math.sqrt((2 * v * v + v) / COUNT)
    assert abs((samples**2).mean() - v) < quantile * spread
    # Twice the rate of each Poisson part, not the rate: a factor of two would be
    # hundreds of standard errors.
    assert table.variance == 2 * (Fraction(variance) / 2)
    assert spread < v / 40


@pytest.mark.parametrize("variance", [10**5, 10**6, 10**7])
def test_wide_laws_follow_the_exact_cdf_in_equally_likely_cells(variance):
    # 1000 cells between quantiles of the table, whose cdf other tests hold to mpmath.
    table = skellam_table(variance)
    whole = 1 << 256
    cuts, sizes, previous = [], [], 0
    for k in range(table.first, table.last):
        threshold = table.threshold(k - table.first)
        if threshold - previous >= whole // 1000:
            cuts.append(k)
            sizes.append((threshold - previous) / whole)
            previous = threshold
    sizes.append((whole - previous) / whole)
    samples = draw(skellam_table, variance, b"cells")
    observed = np.bincount(
        np.searchsorted(cuts, samples, side="left"), minlength=len(sizes)
    )
    expected = np.array(sizes) * COUNT
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, len(sizes) - 1)


def test_neighbouring_coordinates_and_labels_are_uncorrelated():
    table = skellam_table(20)
    first = table.draw(SEED, b"a", COUNT).astype(np.float64)
    second = table.draw(SEED, b"b", COUNT).astype(np.float64)
    # Six correlations, Bonferroni: each at a sixth of the rate.
    quantile = float(scipy.stats.norm.isf(FALSE_ALARM / 12))
    pairs = [(first[:-lag], first[lag:]) for lag in (1, 2, 4, 8, 65_536)]
    for left, right in [*pairs, (first, second)]:
        correlation = float(np.dot(left, right)) / (20 * left.size)
        assert abs(correlation) < quantile / math.sqrt(left.size)


def test_the_sum_of_shares_has_the_variance_of_the_aggregate():
    # The point of Skellam noise: 25 shares of variance 4/25 are one share of 4.
    share = skellam_table(Fraction(4, 25))
    count = 1 << 17
    total = np.zeros(count, np.int64)
    for client in range(25):
        share.add_to(total, client.to_bytes(32, "big"), b"noise")
    statistic, freedom = pearson(
        total, lambda k: reference.skellam_pmf(k, Fraction(4)), range(-12, 13)
    )
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, freedom)


def test_a_wrong_variance_is_detected():
    # The sensitivity of the tests above: two percent more variance fails them.
    samples = skellam_table(Fraction(408, 100)).draw(SEED, b"noise", COUNT)
    statistic, freedom = pearson(
        samples, lambda k: reference.skellam_pmf(k, Fraction(4)), range(-17, 18)
    )
    assert statistic > scipy.stats.chi2.isf(FALSE_ALARM, freedom)
