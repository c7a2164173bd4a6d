"""Subsampled Rényi curves against numerical integration and dp-accounting."""

import math

import numpy as np
import pytest

from dpnoise.accounting.renyi.accountant import ConcentratedCurve, sampled_divergences
from dpnoise.accounting.renyi.mixture_rdp import ExactMixtureCurve
from dpnoise.accounting.renyi.skellam_rdp import ExactSkellamCurve


class UnmirroredCurve(ConcentratedCurve):
    """The same curve without the mirror, so that the general bound is used."""

    mirrored = False


ORDERS = np.array([2.0, 3.0, 7.0, 16.0, 50.0])


@pytest.mark.parametrize("rate", [1e-4, 0.004, 0.1, 0.7])
@pytest.mark.parametrize("noise_multiplier", [0.8, 2.0, 10.0])
def test_gaussian_curve_agrees_with_dp_accounting(rate, noise_multiplier):
    import dp_accounting  # noqa: PLC0415 - slow import, one test
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415 - the same

    base = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(rate, base)
    theirs = RdpAccountant(list(ORDERS)).compose(event)._rdp
    ours = sampled_divergences(
        ConcentratedCurve(rho=0.5 / noise_multiplier**2), rate, ORDERS
    )
    assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("shift", [0.3, 1.0])
def test_both_directions_are_bounded_for_a_gaussian(rate, shift):
    y = np.linspace(-25, 25, 200_001)
    log_base = -(y**2) / 2 - math.log(2 * math.pi) / 2
    log_ratio = np.log(1 - rate + rate * np.exp(shift * y - shift**2 / 2))
    for order in (2.0, 5.0, 9.0):
        bound = sampled_divergences(
            ConcentratedCurve(rho=shift**2 / 2), rate, np.array([order])
        )[0]
        general = sampled_divergences(
            UnmirroredCurve(rho=shift**2 / 2), rate, np.array([order])
        )[0]
        forward = np.trapezoid(np.exp(log_base + order * log_ratio), y)
        reverse = np.trapezoid(np.exp(log_base + (1 - order) * log_ratio), y)
        for moment in (forward, reverse):
            assert math.log(moment) / (order - 1) <= bound * (1 + 1e-9)
        assert bound <= general


def test_amplification_is_never_worse_than_no_sampling():
    for rate in (0.5, 0.9, 0.999):
        plain = UnmirroredCurve(rho=2.0).divergences(ORDERS)
        assert np.all(
            sampled_divergences(UnmirroredCurve(rho=2.0), rate, ORDERS) <= plain
        )


def test_tiny_rates_lose_no_digits():
    # α·q²·(e^(D_2) − 1)/2 to leading order; a sum that starts from 1 would lose it all.
    found = sampled_divergences(ConcentratedCurve(rho=0.5), 1e-9, np.array([4.0]))[0]
    assert found == pytest.approx(2.0 * 1e-18 * math.expm1(1.0), rel=1e-6)


def test_overflowing_moments_stay_bounded_by_the_plain_curve():
    orders = np.array([2.0, 1000.0])
    found = sampled_divergences(ConcentratedCurve(rho=5.0), 0.01, orders)
    assert np.all(np.isfinite(found))
    assert np.all(found <= 5.0 * orders * (1 + 1e-9))


@pytest.mark.parametrize(
    "curve",
    [ExactSkellamCurve(16.0, 4, 100.0), ExactMixtureCurve(16.0, 1.0, 100.0)],
)
def test_exact_curves_under_sampling_stay_close_to_the_gaussian(curve):
    gaussian = sampled_divergences(ConcentratedCurve(16 / 200), 0.01, ORDERS[:3])
    found = sampled_divergences(curve, 0.01, ORDERS[:3])
    assert np.allclose(found, gaussian, rtol=0.1)


@pytest.mark.parametrize("rate", [0.004, 0.3])
def test_the_generic_factor_multiplies_every_moment_above_the_second(rate):
    order, rho = 6, 0.2
    total = (1 - rate) ** (order - 1) * (order * rate - rate + 1)
    for power in range(2, order + 1):
        weight = math.comb(order, power) * (1 - rate) ** (order - power) * rate**power
        moment = math.exp((power - 1) * power * rho)
        total += weight * moment * (3 if power > 2 else 1)
    found = sampled_divergences(
        ConcentratedCurve(rho=rho), rate, np.array([float(order)]), moment_factor=3.0
    )[0]
    assert found == pytest.approx(min(math.log(total) / (order - 1), order * rho))
