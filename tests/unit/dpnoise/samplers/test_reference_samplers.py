"""The oracle itself: exact probabilities that sum to one, samplers that follow them."""

from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from secagg_testing import reference_samplers as reference
from secagg_testing.reference_samplers import FairBits

from dpnoise.samplers.bit_source import BitSource

LAWS = [
    ("skellam", reference.skellam_pmf, reference.sample_skellam, Fraction(7, 4)),
    (
        "discrete-gaussian",
        reference.discrete_gaussian_pmf,
        reference.sample_discrete_gaussian,
        Fraction(9, 2),
    ),
    (
        "discrete-laplace",
        reference.discrete_laplace_pmf,
        reference.sample_discrete_laplace,
        Fraction(5, 7),
    ),
    ("binomial", reference.binomial_pmf, reference.sample_binomial, 24),
    ("poisson", reference.poisson_pmf, reference.sample_poisson, Fraction(11, 5)),
]


@pytest.mark.parametrize(("name", "pmf", "sample", "parameter"), LAWS)
def test_probabilities_sum_to_one(name, pmf, sample, parameter):  # noqa: ARG001 - one table of cases
    total = reference.lower_tail(lambda k: pmf(k, parameter), 250)
    assert abs(total - 1) < Decimal(10) ** -60


def test_probabilities_agree_with_mpmath():
    with mpmath.workdps(80):
        v = mpmath.mpf(7) / 4
        for k in (-9, 0, 3):
            bessel = mpmath.exp(-v) * mpmath.besseli(abs(k), v)
            ours = mpmath.mpf(str(reference.skellam_pmf(k, Fraction(7, 4))))
            assert abs(ours / bessel - 1) < mpmath.mpf(10) ** -60
        large = mpmath.mpf(str(reference.skellam_pmf(150, Fraction(20_000))))
        bessel = mpmath.exp(-20_000) * mpmath.besseli(150, 20_000)
        assert abs(large / bessel - 1) < mpmath.mpf(10) ** -60


@pytest.mark.parametrize(("name", "pmf", "sample", "parameter"), LAWS)
def test_reference_samples_follow_the_reference_probabilities(
    name, pmf, sample, parameter
):
    # Pearson's statistic over the cells expecting 20 or more; false alarm 1e-6.
    from scipy.stats import chi2  # noqa: PLC0415 - slow import, one test

    count = 8000
    bits = FairBits(BitSource(bytes(32), name.encode()))
    samples = np.array([sample(parameter, bits) for _ in range(count)])
    cells = [k for k in range(-40, 41) if pmf(k, parameter) * count >= 20]
    expected = np.array([float(pmf(k, parameter)) * count for k in cells])
    observed = np.array([np.count_nonzero(samples == k) for k in cells])
    rest = count - expected.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    if rest > 5:
        statistic += (count - observed.sum() - rest) ** 2 / rest
    assert statistic < chi2.isf(1e-6, len(cells))


def test_fair_bits_draw_uniform_integers_and_exact_bernoullis():
    bits = FairBits(BitSource(bytes(32), b"fair"))
    counts = np.bincount([bits.below(5) for _ in range(5000)], minlength=5)
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(800))  # 5 sigma: 3e-6 in total
    assert bits.below(1) == 0
    assert bits.bernoulli(Fraction(1))
    assert not bits.bernoulli(Fraction(0))
    ones = sum(bits.bernoulli_exp(Fraction(5, 4)) for _ in range(4000))
    mean, stddev = 4000 * 0.2865048, np.sqrt(4000 * 0.2865048 * 0.7134952)
    assert abs(ones - mean) < 5 * stddev
