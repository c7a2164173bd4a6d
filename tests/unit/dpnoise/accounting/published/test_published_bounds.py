"""What the accountants of publications state, against their formulas typed again.

Each statement lies between the formula's least value over all orders and half a percent
more, so that 3 % more noise in the formula, which is 1.5 % of an epsilon, would show.
"""

from fractions import Fraction

import mpmath
import pytest

from dpnoise.accounting import make_accountant
from dpnoise.events import (
    Adversary,
    BinomialEvent,
    DistributedDiscreteGaussianEvent,
    SkellamEvent,
)

DELTA = 1e-5


def stated(name, event):
    account = make_accountant(name, adversary=Adversary.SERVER)
    return account.compose(event).epsilon(DELTA)


def least_epsilon(divergence, orders):
    """[CKS20] Proposition 12: D + (log(1/δ) − log α)/(α − 1) + log(1 − 1/α)."""
    return min(
        divergence(order)
        + (-mpmath.log(DELTA) - mpmath.log(order)) / (order - 1)
        + mpmath.log1p(-1 / mpmath.mpf(order))
        for order in orders
    )


def assert_stated(name, event, formula):
    assert float(formula) * (1 - 1e-9) <= stated(name, event) <= 1.005 * float(formula)


@pytest.mark.parametrize(("l2", "l1"), [(20.0, 150.0), (8.0, 30.0)])
def test_skellam_paper_is_corollary_3_6(l2, l1):
    variance = Fraction(700)
    mu = mpmath.mpf(700)

    def divergence(order):
        second = ((2 * order - 1) * l2**2 + 6 * l1) / (4 * mu**2)
        return order * l2**2 / (2 * mu) + min(second, 3 * l1 / (2 * mu))

    event = SkellamEvent(
        dim=100,
        aggregate_noise_variance=variance,
        l2_sensitivity=l2,
        l1_sensitivity=l1,
        linf_sensitivity=5,
    )
    formula = least_epsilon(divergence, range(2, 300))
    assert_stated("skellam-paper", event, formula)


@pytest.mark.parametrize("share", [Fraction(7, 10), Fraction(2)])
def test_ddgauss_paper_is_the_bound_for_sums(share):
    shares, dim, l2, l1 = 100, 16, 9.0, 30.0
    one = mpmath.mpf(share.numerator) / share.denominator
    tau = 10 * mpmath.fsum(
        mpmath.exp(-2 * mpmath.pi**2 * one * k / (k + 1)) for k in range(1, shares)
    )
    sigma = mpmath.sqrt(shares * one)

    def divergence(order):
        return min(
            order * l2**2 / (2 * sigma**2) + tau * dim,
            order / 2 * (l2**2 / sigma**2 + 2 * l1 * tau / sigma + tau**2 * dim),
            order / 2 * (l2 / sigma + tau * mpmath.sqrt(dim)) ** 2,
        )

    event = DistributedDiscreteGaussianEvent(
        dim=dim,
        num_noise_shares=shares,
        local_noise_variance=share,
        l2_sensitivity=l2,
        l1_sensitivity=l1,
    )
    orders = [mpmath.mpf(1) + mpmath.mpf(k) / 20 for k in range(2, 1000)]
    assert_stated("ddgauss-paper", event, least_epsilon(divergence, orders))


def test_cpsgd_recalled_is_its_theorem():
    trials, dim, l2, l1, linf = 60_000, 50, 3.0, 15.0, 2
    p = mpmath.mpf(1) / 2
    squares, cubes = p**2 + (1 - p) ** 2, p**3 + (1 - p) ** 3
    b = squares * 2 / 3 + (1 - 2 * p)
    c = mpmath.sqrt(2) * (3 * cubes + 2 * squares)
    d = squares * 4 / 3
    variance, delta = trials * p * (1 - p), mpmath.mpf(DELTA)
    formula = l2 * mpmath.sqrt(2 * mpmath.log(1.25 / delta) / variance)
    formula += (l2 * c * mpmath.sqrt(mpmath.log(10 / delta)) + l1 * b) / (
        variance * (1 - delta / 10)
    )
    formula += (
        linf * mpmath.log(1.25 / delta) * 2 / 3
        + linf * d * mpmath.log(20 * dim / delta) * mpmath.log(10 / delta)
    ) / variance
    event = BinomialEvent(
        dim=dim,
        num_trials=trials,
        l2_sensitivity=l2,
        l1_sensitivity=l1,
        linf_sensitivity=linf,
    )
    assert_stated("cpsgd-recalled", event, formula)
