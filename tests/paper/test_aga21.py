"""Statements of [Aga21], each against the exact divergence.

The exact divergence is summed from Bessel functions in 40 digits and shares no code
with the product.
"""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpnoise.accounting import calibrate, make_accountant
from dpnoise.accounting.renyi.skellam_rdp import (
    integer_l1_sensitivity,
    scaled_vector_bound,
    shift_bound,
    vector_bound,
)
from dpnoise.events import Adjacency, Adversary, PoissonSampled, Repeated, SkellamEvent


def exact_divergence(order, shift, variance):
    with mpmath.workdps(40):
        v, alpha = mpmath.mpf(variance), mpmath.mpf(order)
        reach = int(60 + 14 * variance**0.5 + 3 * order * shift)
        bessel = [mpmath.besseli(k, v) for k in range(reach + shift + 1)]
        total = mpmath.fsum(
            bessel[abs(y)] ** (1 - alpha) * bessel[abs(y - shift)] ** alpha
            for y in range(-reach, reach + 1)
        )
        return float(mpmath.log(total * mpmath.exp(-v)) / (alpha - 1))


@pytest.mark.parametrize("variance", [0.5, 4.0, 16.0, 64.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.parametrize("order", [2, 4, 16])
def test_theorem_3_5_bounds_the_exact_divergence(order, shift, variance):
    bound = shift_bound(
        np.array([float(order)]), shift=float(shift), noise_variance=variance
    )[0]
    assert exact_divergence(order, shift, variance) <= bound


@pytest.mark.parametrize(
    ("variance", "order", "excess"),
    [(4, 4, 1.558), (16, 4, 1.113), (16, 16, 1.236), (64, 8, 1.024), (256, 8, 1.005)],
)
def test_theorem_3_5_exceeds_the_exact_divergence_by_recorded_factors(
    variance, order, excess
):
    bound = shift_bound(np.array([float(order)]), shift=1.0, noise_variance=variance)
    assert bound[0] / exact_divergence(order, 1, variance) == pytest.approx(
        excess, abs=2e-3
    )


def test_theorem_3_5_takes_the_smaller_of_its_two_terms():
    # v = 1: the linear term 3D/(2v) is smaller; v = 100: the quadratic one.
    small = shift_bound(np.array([8.0]), shift=2.0, noise_variance=1.0)[0]
    assert small == pytest.approx(8 * 4 / 2 + 3 * 2 / 2)
    large = shift_bound(np.array([8.0]), shift=2.0, noise_variance=100.0)[0]
    assert large == pytest.approx(8 * 4 / 200 + (15 * 4 + 12) / 40_000)


def test_theorem_3_5_is_silent_at_orders_that_are_no_integer_above_one():
    bounds = shift_bound(np.array([1.0, 1.5, 2.0, 2.5]), shift=1.0, noise_variance=9.0)
    assert np.isinf(bounds).tolist() == [True, True, False, True]


def test_corollary_3_6_is_the_sum_of_theorem_3_5_over_coordinates():
    orders = np.arange(2.0, 30.0)
    # Ten coordinates of one: D2² = D1 = 10.
    vector = vector_bound(
        orders, l2_sensitivity=10**0.5, l1_sensitivity=10.0, noise_variance=40.0
    )
    single = shift_bound(orders, shift=1.0, noise_variance=40.0)
    assert np.allclose(vector, 10 * single, rtol=1e-9)


def test_corollary_4_1_is_corollary_3_6_in_other_units():
    orders = np.arange(2.0, 30.0)
    scale = 12.0
    scaled = scaled_vector_bound(
        orders,
        l2_sensitivity=1.3,
        l1_sensitivity=20.0,
        noise_variance=0.7,
        scale_factor=scale,
    )
    grid = vector_bound(
        orders,
        l2_sensitivity=1.3 * scale,
        l1_sensitivity=20.0 * scale,
        noise_variance=0.7 * scale**2,
    )
    assert np.allclose(scaled, grid, rtol=1e-9)


@pytest.mark.parametrize(("dim", "norm"), [(4, 100.0), (65_536, 9.0)])
def test_l1_bound_holds_for_the_integer_vectors_that_attain_it(dim, norm):
    bound = integer_l1_sensitivity(dim=dim, l2_sensitivity=norm)
    entries = np.full(dim, norm / dim**0.5) if norm > dim**0.5 else np.ones(81)
    assert np.abs(entries).sum() == pytest.approx(bound)
    assert np.linalg.norm(entries) == pytest.approx(norm)


def test_accountant_adds_releases_and_ignores_sampling_against_the_server():
    release = SkellamEvent(1024, Fraction(900), 8.0)
    plain = make_accountant("skellam-paper", adversary=Adversary.SERVER)
    plain.compose(Repeated(release, 5))
    sampled = make_accountant("skellam-paper", adversary=Adversary.SERVER)
    sampled.compose(Repeated(PoissonSampled(release, 0.01), 5))
    assert sampled.epsilon(1e-6) == plain.epsilon(1e-6)
    statement = sampled.statement(1e-6)
    assert any(
        "Sampling of users was not counted" in text for text in statement.assumptions
    )
    reader = make_accountant("skellam-paper", adversary=Adversary.MODEL_READER)
    reader.compose(Repeated(PoissonSampled(release, 0.01), 5))
    assert reader.epsilon(1e-6) == plain.epsilon(1e-6)
    published = make_accountant(
        "hypothetical-skellam-paper", adversary=Adversary.MODEL_READER
    )
    published.compose(Repeated(PoissonSampled(release, 0.01), 5))
    assert published.epsilon(1e-6) < 0.5 * plain.epsilon(1e-6)


def test_federated_setting_needs_the_recorded_noise_under_generic_amplification():
    # q = 0.004, 1000 steps, δ = 1e-5, scale 64, conditional rounding in 65 536 dims.
    norm = (5.046875 * 64**2) ** 0.5
    variance = calibrate(
        lambda v: Repeated(PoissonSampled(SkellamEvent(65_536, v, norm), 0.004), 1000),
        accountant="hypothetical-skellam-paper",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.MODEL_READER,
    )
    assert variance / 64**2 == pytest.approx(5.590, rel=1e-3)


def test_replace_one_doubles_the_sensitivities():
    release = SkellamEvent(1024, Fraction(900), 8.0, 40.0)
    doubled = SkellamEvent(1024, Fraction(900), 16.0, 80.0)
    replace = make_accountant(
        "skellam-paper",
        adversary=Adversary.SERVER,
        adjacency=Adjacency.REPLACE_ONE,
    ).compose(release)
    zero = make_accountant("skellam-paper", adversary=Adversary.SERVER).compose(doubled)
    assert replace.epsilon(1e-5) == pytest.approx(zero.epsilon(1e-5), rel=1e-9)
