"""Sums of discrete Gaussians and fair coins against convolutions in other code."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise import plan
from dpnoise.accounting import calibrate, make_accountant, to_dp_accounting
from dpnoise.accounting.gaussian import gaussian_epsilon
from dpnoise.accounting.tradeoff.log_concave import (
    _moments_beside_zero,
    binomial_shift,
    discrete_gaussian_sum_shift,
    periodic_part,
)
from dpnoise.errors import UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    Composed,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    Repeated,
    SkellamEvent,
)

SUMS = [(2, 1.0), (3, 0.7), (10, 0.5), (20, 0.35), (100, 0.5), (100, 1.0), (40, 4.0)]


def sum_law(shares, variance):
    """The pmf of the sum by repeated convolution; sums of positive terms only."""
    reach = int(13 * math.sqrt(variance) + 8)
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k**2) / (2 * variance))
    square, law = weights / weights.sum(), np.ones(1)
    while shares:
        if shares & 1:
            law = np.convolve(law, square)
        square = np.convolve(square, square)
        shares >>= 1
    return law


def account(event, **options):
    options.setdefault("adversary", Adversary.SERVER)
    return make_accountant("log-concave-gdp", **options).compose(event)


def exact_delta(law, shift, epsilon):
    base = np.concatenate([law, np.zeros(shift)])
    shifted = np.concatenate([np.zeros(shift), law])
    return float(np.sum(np.maximum(shifted - math.exp(epsilon) * base, 0.0)))


def increments(law, deviations):
    """z(t) − z(t−1) at the thresholds within some deviations above the centre."""
    centre = len(law) // 2
    spread = math.sqrt(np.sum(law * (np.arange(len(law)) - centre) ** 2))
    above = np.cumsum(law[::-1])[::-1]
    z = -scipy.stats.norm.ppf(above[centre + 1 : centre + 2 + int(deviations * spread)])
    return np.concatenate([[2 * z[0]], np.diff(z)])


@pytest.mark.parametrize(("shares", "variance"), SUMS)
def test_no_increment_of_a_sum_exceeds_the_bound(shares, variance):
    bound = discrete_gaussian_sum_shift(shares, Fraction(variance))
    largest = np.max(increments(sum_law(shares, variance), 7.5))
    # Where it says something at all it is within a tenth, and on wide sums much closer.
    assert largest <= bound <= 1.1 * largest
    if shares * variance >= 50:
        assert bound <= 1.004 * largest


@pytest.mark.parametrize(("shares", "variance"), SUMS)
def test_the_law_is_a_gaussian_times_a_periodic_function(shares, variance):
    law = sum_law(shares, variance)
    centre = len(law) // 2
    reach = min(centre, int(8 * math.sqrt(shares * variance)))
    t = np.arange(-reach, reach + 1)
    theta = law[centre + t] * np.exp(t**2 / (2 * shares * variance))
    if 2 * reach > shares:
        again = theta[shares:] / theta[:-shares]
        assert np.allclose(again, 1.0, rtol=1e-9)
    plain, bent = periodic_part(shares, variance)
    # Θ lies within R of its mean over a period, which the vector 0 contributes.
    middle = 0.5 * (theta.max() + theta.min())
    assert (theta.max() - theta.min()) / (2 * middle) <= plain / (1 - plain) + 1e-9
    second = np.abs(np.diff(theta, 2)).max()
    assert second / theta.min() <= bent / (1 - plain) + 1e-9


def test_sums_over_vectors_agree_with_enumeration_for_three_shares():
    beta = 2 * math.pi**2 * 0.5
    plain = bent = 0.0
    for a in range(-6, 7):
        for b in range(-6, 7):
            if (a, b) == (0, 0):
                continue
            mean = (a + b) / 3
            energy = (a - mean) ** 2 + (b - mean) ** 2 + mean**2
            plain += math.exp(-beta * energy)
            bent += math.exp(-beta * energy) * (2 - 2 * math.cos(2 * math.pi * mean))
    found = periodic_part(3, 0.5)
    assert plain <= found[0] <= 2.0 * plain
    assert bent <= found[1] <= 3.2 * bent


@pytest.mark.parametrize(("shares", "variance"), [(10, 0.5), (100, 1.0), (40, 4.0)])
@pytest.mark.parametrize("shift", [1, 3, 9])
def test_delta_of_shares_is_never_below_the_exact_one(shares, variance, shift):
    law = sum_law(shares, variance)
    event = DistributedDiscreteGaussianEvent(
        8, shares, Fraction(variance), float(shift)
    )
    for epsilon in (0.0, 0.3, 1.0, 4.0):
        assert exact_delta(law, shift, epsilon) <= account(event).delta(epsilon) + 1e-14


@pytest.mark.parametrize(
    ("most", "total"),
    [(3, 1.5), (5, 1.75), (10, 3.0), (40, 12.0), (77, 25.0), (100, 40.0)],
)
def test_a_bound_holds_for_fewer_and_wider_shares_of_the_same_noise(most, total):
    """What `ddgauss` states for all rosters: the most shares of the same noise."""
    stated = discrete_gaussian_sum_shift(most, Fraction(total) / most)
    plain, bent = periodic_part(most, total / most)
    for shares in range(2, most + 1, 1 + most // 25):
        largest = np.max(increments(sum_law(shares, total / shares), 6.0))
        assert largest <= stated
        found = sums_by_quadrature(shares, total / shares)
        assert found[0] <= plain
        assert found[1] <= bent
    # A discrete Gaussian of its own, which is wider than any sum.
    assert discrete_gaussian_sum_shift(1, Fraction(total)) <= stated


def sums_by_quadrature(shares, variance):
    """The sums R and Q of rule 3 for this very number of shares, by a fine grid."""
    beta = 2 * math.pi**2 * variance
    # Ends included, where terms of fewer shares may be the larger ones.
    c = np.linspace(-0.5, 0.5, 20_001)
    k = np.array([k for k in range(-12, 13) if k])[:, np.newaxis]
    weights = np.exp(-beta * (k**2 - 2 * k * c))
    zeroth, first, second = ((k**power * weights).sum(0) for power in range(3))
    density = np.sqrt(beta * shares / np.pi) * np.exp(-beta * shares * c**2)
    plain = np.expm1(shares * np.log1p(zeroth))
    bent = (1 + zeroth) ** (shares - 1) * second / shares
    bent += (1 - 1 / shares) * (1 + zeroth) ** (shares - 2) * first**2
    return tuple(
        float(np.trapezoid(density * part, c)) for part in (plain, 4 * np.pi**2 * bent)
    )


@pytest.mark.parametrize("c", [0.0, 0.2, 0.45, 0.49, 0.4999, 0.5])
@pytest.mark.parametrize(("most", "variance"), [(4, 0.4), (30, 0.15), (200, 1.0)])
def test_terms_of_fewer_shares_are_never_larger_than_what_is_summed(most, variance, c):
    beta = 2 * math.pi**2 * variance
    zeroth, first, second = _moments_beside_zero(most, beta, c)
    k = np.array([k for k in range(-12, 13) if k])
    for shares in range(2, most + 1):
        weights = np.exp(-beta * most / shares * (k**2 - 2 * k * c))
        assert weights.sum() <= zeroth * (1 + 1e-12)
        assert (k * weights).sum() <= first * (1 + 1e-12) + 1e-15
        assert (k**2 * weights).sum() / shares <= second / most * (1 + 1e-12)


def test_the_shift_bound_covers_few_wide_and_many_narrow_shares():
    # A variance of 25 in 40 or in 140 shares: true increments 1.0018 and 1.29 of 1/√v.
    for shares, factor in ((40, 1.0018), (140, 1.29)):
        largest = np.max(increments(sum_law(shares, 25.0 / shares), 7.5))
        assert largest * 5.0 == pytest.approx(factor, rel=4e-3)
        bound = discrete_gaussian_sum_shift(shares, Fraction(25) / shares)
        assert bound >= largest
    assert math.isinf(discrete_gaussian_sum_shift(140, Fraction(25) / 140))


def test_a_single_share_is_a_discrete_gaussian():
    one = DistributedDiscreteGaussianEvent(4, 1, Fraction(50), 7.0)
    assert account(one).epsilon(1e-5) == account(
        DiscreteGaussianEvent(4, Fraction(50), 7.0)
    ).epsilon(1e-5)
    assert account(one, adjacency=Adjacency.REPLACE_ONE).epsilon(1e-5) == account(
        DistributedDiscreteGaussianEvent(4, 1, Fraction(50), 14.0)
    ).epsilon(1e-5)


@pytest.mark.parametrize("coins", [400, 1001, 20_000])
@pytest.mark.parametrize("shift", [1, 4, 20])
def test_delta_of_selections_is_never_below_the_exact_one(coins, shift):
    law = scipy.stats.binom.pmf(np.arange(coins + 1), coins, 0.5)
    event = BinomialEvent(8, coins, float(shift), float(shift), shift)
    for epsilon in (0.0, 0.3, 1.0, 4.0):
        # The ends, where the loss is infinite, are in the exact figure, too.
        assert exact_delta(law, shift, epsilon) <= account(event).delta(epsilon) + 1e-14


def test_selections_are_certified_at_a_large_epsilon():
    """The charge is multiplied by e^epsilon, so many coins must charge next to none."""
    coins, shift = 400_000, 2500
    law = scipy.stats.binom.pmf(np.arange(coins + 1), coins, 0.5)
    event = BinomialEvent(65536, coins, float(shift), float(shift), shift)
    exact, stated = exact_delta(law, shift, 40.0), account(event).delta(40.0)
    assert 0.01 < exact <= stated < 1.01 * exact
    # With 3 % less noise counted the same statement is false.
    less = BinomialEvent(65536, int(1.03 * coins), float(shift), float(shift), shift)
    assert account(less).delta(40.0) < exact


def test_the_charge_of_rounding_bits_covers_the_replaced_ends():
    for coins in (400, 5000, 10**6):
        bound = binomial_shift(coins)
        assert 0.0 < bound.tail < 2.0**-60
        within = math.sqrt(bound.tail)  # far inside the kept part
        reach = scipy.stats.norm.isf(within) * math.sqrt(coins) / 2
        k = np.arange(coins // 2, coins // 2 + int(reach))
        curvature = np.log1p((coins + 1) / (k * (coins - k)))
        assert bound.unit_gdp**2 >= curvature.max()
    assert math.isinf(binomial_shift(60).unit_gdp)


def build(kind, variance, norm_bound):
    if kind == "shares":
        return DistributedDiscreteGaussianEvent(65536, 100, variance / 100, norm_bound)
    if kind == "coins":
        coins = math.floor(4 * variance)
        return BinomialEvent(
            65536, max(1, coins), norm_bound, norm_bound**2, int(norm_bound)
        )
    return DiscreteGaussianEvent(65536, variance, norm_bound)


@pytest.mark.parametrize("kind", ["shares", "coins", "one"])
def test_three_percent_less_noise_than_calibrated_breaks_the_promise(kind):
    shift = 32
    variance = calibrate(
        lambda v: build(kind, v, float(shift)),
        accountant="log-concave-gdp",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
        bracket=(Fraction(1), Fraction(1 << 30)),
    )
    # Within a percent of what a continuous Gaussian needs.
    assert 13.9176 <= float(variance) / shift**2 <= 13.9176 * 1.01

    def law(v):
        if kind == "coins":
            coins = math.floor(4 * v)
            return scipy.stats.binom.pmf(np.arange(coins + 1), coins, 0.5)
        return sum_law(*((100, v / 100) if kind == "shares" else (1, v)))

    assert exact_delta(law(float(variance)), shift, 1.0) <= 1e-5
    assert exact_delta(law(0.97 * float(variance)), shift, 1.0) > 1e-5


@pytest.mark.parametrize("mechanism", ["ddgauss", "binomial"])
def test_plans_of_the_baselines_are_certified_and_close_to_a_gaussian(mechanism):
    made = plan(
        clients=100,
        dimension=65536,
        l2_clip=1.0,
        epsilon=1.0,
        delta=1e-5,
        mechanism=mechanism,
        bits=20,
    )
    assert made.accountant == "log-concave-gdp"
    given = made.parameters
    needed = float(given.noise_rule.counted_variance) / given.scale_factor**2
    assert needed <= 1.01 * 13.9176


def test_releases_add_in_quadrature_and_export_to_dp_accounting():
    shares = DistributedDiscreteGaussianEvent(16, 50, Fraction(20), 10.0)
    coins = BinomialEvent(16, 400_000, 100.0, 400.0, 100)
    both = account(Composed((Repeated(shares, 3), coins)))
    shift = math.sqrt(3 * 0.1 + 0.1)
    assert both.epsilon(1e-5) == pytest.approx(
        gaussian_epsilon(1e-5, noise_multiplier=1 / shift), rel=2e-3
    )
    assert both.statement(1e-5).status.value == "certified"
    exported, distance = to_dp_accounting(Composed((shares, coins)))
    assert exported is not None
    assert 0.0 < distance < 1e-12


def test_events_without_a_theorem_are_rejected_or_infinite():
    with pytest.raises(UnknownEventError):
        account(SkellamEvent(16, Fraction(100), 4.0))
    narrow = DistributedDiscreteGaussianEvent(16, 1000, Fraction(1, 10), 1.0)
    assert account(narrow).epsilon(1e-5) == math.inf
