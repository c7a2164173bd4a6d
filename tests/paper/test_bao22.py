"""Statements of [Bao22], each against exact divergences from Bessel functions."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpnoise.accounting import calibrate, make_accountant
from dpnoise.accounting.conversion import renyi_epsilon
from dpnoise.accounting.published.smm import (
    PublishedMixtureCurve,
    _formula_only_divergences,
    largest_linf_bound,
    least_noise_variance,
    mixture_bound,
)
from dpnoise.errors import ParameterError, TheoremNotApplicableError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    PoissonSampled,
    Repeated,
    SkellamEvent,
    SkellamMixtureClippedEvent,
)


def exact_divergences(order, coordinate, variance):
    """Both directions between a rounded coordinate plus noise and the noise."""
    with mpmath.workdps(40):
        v, alpha = mpmath.mpf(variance), mpmath.mpf(order)
        low = int(coordinate)
        share = mpmath.mpf(coordinate) - low
        reach = int(60 + 14 * variance**0.5 + 3 * order * (low + 1))
        bessel = [mpmath.besseli(k, v) for k in range(reach + low + 2)]
        forward = reverse = mpmath.mpf(0)
        for y in range(-reach, reach + 1):
            base = bessel[abs(y)]
            mixture = (1 - share) * bessel[abs(y - low)]
            mixture += share * bessel[abs(y - low - 1)]
            forward += mixture**alpha * base ** (1 - alpha)
            reverse += base**alpha * mixture ** (1 - alpha)
        return [
            float(mpmath.log(total * mpmath.exp(-v)) / (alpha - 1))
            for total in (forward, reverse)
        ]


@pytest.mark.parametrize("coordinate", [0.1, 0.5, 0.9, 1.0, 1.4, 2.0])
@pytest.mark.parametrize(
    ("variance", "order"), [(40.0, 2.0), (300.0, 3.0), (900.0, 7.0)]
)
def test_theorem_5_bounds_the_exact_divergence(coordinate, variance, order):
    share = coordinate % 1.0
    linf_bound = int(np.ceil(coordinate))
    bound = mixture_bound(
        np.array([order]),
        mixture_norm_bound=coordinate**2 + share - share**2,
        linf_bound=linf_bound,
        noise_variance=variance,
    )[0]
    assert max(exact_divergences(order, coordinate, variance)) <= bound


def test_theorem_5_is_silent_where_either_condition_fails():
    # 10.9α² − 1.8α − 9.1 < 2v/Δ² ends at α = 7.87 for v = 328, Δ = 1.
    bounds = mixture_bound(
        np.array([1.0, 2.0, 7.8, 7.95, 13.0]),
        mixture_norm_bound=16.0,
        linf_bound=1,
        noise_variance=328.0,
    )
    assert np.isfinite(bounds).tolist() == [False, True, True, False, False]
    # α < v/Δ + 1 is the tighter one only for tiny variances.
    assert np.isinf(
        mixture_bound(
            np.array([1.2]), mixture_norm_bound=1.0, linf_bound=1, noise_variance=0.1
        )[0]
    )


def test_largest_bound_is_the_integer_strictly_below_both_limits():
    for variance in (20.0, 328.0, 1e4):
        for order in (2.0, 5.0, 12.0):
            bound = largest_linf_bound(order, noise_variance=variance)
            for candidate in (bound, bound + 1):
                if candidate == 0:
                    continue
                value = mixture_bound(
                    np.array([order]),
                    mixture_norm_bound=1.0,
                    linf_bound=candidate,
                    noise_variance=variance,
                )[0]
                assert np.isfinite(value) == (candidate <= bound)


def test_published_noise_of_the_small_scales_admits_no_coordinate_but_zero():
    # n = 100, d = 65 536, ε = 1: order about 18, noise 20.5·γ².
    assert largest_linf_bound(18.0, noise_variance=20.5 * 4**2) == 0
    assert largest_linf_bound(18.0, noise_variance=20.5 * 64**2) >= 1


def test_least_noise_variance_is_where_the_theorem_starts():
    least = least_noise_variance(2.0, linf_bound=3)
    value = PublishedMixtureCurve(1.0, 3, float(least)).divergences(np.array([2.0]))
    assert np.isfinite(value[0])
    below = PublishedMixtureCurve(1.0, 3, float(least) * 0.998)
    assert np.isinf(below.divergences(np.array([2.0]))[0])


def test_formula_without_conditions_needs_20_5_in_the_published_setting():
    orders = 1.0 + np.exp(np.linspace(-2.0, 6.0, 4000))

    def epsilon(variance):
        divergences = _formula_only_divergences(orders, 1.0, variance)
        return renyi_epsilon(orders, divergences, 1e-5)

    assert epsilon(20.6) < 1.0 < epsilon(20.5)


def test_accountant_demands_more_noise_than_the_formula_at_small_scales():
    variance = calibrate(
        lambda v: SkellamMixtureClippedEvent(65_536, v, 16.0, 1),
        accountant="smm-paper",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
    )
    assert 39.0 < variance / 16 < 40.5


def test_accountant_meets_the_formula_at_large_scales():
    variance = calibrate(
        lambda v: SkellamMixtureClippedEvent(65_536, v, 256.0**2, 5),
        accountant="smm-paper",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
    )
    assert variance / 256**2 == pytest.approx(20.545, abs=0.02)


def test_theorem_6_in_the_federated_setting_at_a_covered_scale():
    # q = 0.004, 1000 steps, δ = 1e-5: published noise 1.4617 per squared unit.
    variance = calibrate(
        lambda v: Repeated(
            PoissonSampled(SkellamMixtureClippedEvent(65_536, v, 64.0**2, 1), 0.004),
            1000,
        ),
        accountant="hypothetical-smm-paper",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.MODEL_READER,
    )
    assert variance / 64**2 == pytest.approx(1.4617, rel=0.01)


def test_noise_below_the_theorem_is_rejected_with_the_nearest_valid_value():
    account = make_accountant("smm-paper", adversary=Adversary.SERVER)
    with pytest.raises(TheoremNotApplicableError) as caught:
        account.compose(SkellamMixtureClippedEvent(64, Fraction(15), 16.0, 1))
    assert caught.value.parameter == "aggregate_noise_variance"
    nearest = Fraction(caught.value.nearest)
    assert 15 < nearest < 16
    account.compose(SkellamMixtureClippedEvent(64, nearest, 16.0, 1))
    assert account.epsilon(1e-5) > 1.0


def test_the_accountant_rejects_plain_clips_and_replace_one():
    with pytest.raises(UnknownEventError):
        make_accountant("smm-paper", adversary=Adversary.SERVER).compose(
            SkellamEvent(64, Fraction(100), 4.0)
        )
    with pytest.raises(ParameterError, match="zero-out"):
        make_accountant(
            "smm-paper",
            adversary=Adversary.SERVER,
            adjacency=Adjacency.REPLACE_ONE,
        )
