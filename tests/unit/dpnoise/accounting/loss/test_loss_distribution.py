"""Dominating pairs and their sums, against closed forms and exact enumeration."""

import math

import numpy as np
import pytest

from dpnoise.accounting.gaussian import gaussian_delta
from dpnoise.accounting.loss.composed_loss import DELTA_FLOOR, ComposedLoss
from dpnoise.accounting.loss.dominating_pair import DominatingPair
from dpnoise.accounting.loss.gaussian_pld import gaussian_pair
from dpnoise.errors import CertificateError


def coin_pair(loss):
    """Randomised response: both laws on two outputs, losses ±loss."""
    epsilons = np.array([0.0, loss])
    curve = np.array([math.tanh(loss / 2.0), 0.0])
    return DominatingPair.from_curves(epsilons, curve, curve)


def exact_coin_delta(loss, count, epsilon):
    """Delta of `count` randomised responses, by enumeration of the outcomes."""
    yes = math.exp(loss) / (1.0 + math.exp(loss))
    total = 0.0
    for k in range(count + 1):
        mass = math.comb(count, k) * yes**k * (1 - yes) ** (count - k)
        total += mass * max(0.0, -math.expm1(epsilon - (2 * k - count) * loss))
    return total


def test_randomised_response_becomes_its_two_outputs():
    pair = coin_pair(0.7)
    inside = pair.upper > 1e-12
    np.testing.assert_allclose(pair.losses[inside], [-0.7, 0.7])
    yes = math.exp(0.7) / (1 + math.exp(0.7))
    np.testing.assert_allclose(pair.upper[inside], [1 - yes, yes], rtol=1e-6)
    np.testing.assert_allclose(pair.lower[inside], [yes, 1 - yes], rtol=1e-6)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 8.0, 200.0])
def test_gaussian_pairs_lie_just_above_the_analytic_curve(multiplier):
    pair = gaussian_pair(multiplier)
    assert pair.upper.sum() + pair.upper_infinite == pytest.approx(1.0, abs=1e-6)
    assert pair.lower.sum() + pair.lower_infinite == pytest.approx(1.0, abs=1e-6)
    for deviations in (0.0, 0.4001, 1.7, 3.3, 5.01):
        epsilon = deviations / multiplier
        exact = gaussian_delta(epsilon, noise_multiplier=multiplier)
        for direction in (pair, pair.reversed):
            assert exact <= direction.delta(epsilon) <= exact * (1 + 2e-5)


def test_curves_that_are_not_convex_are_replaced_by_their_minorant():
    epsilons = np.linspace(0.0, 6.0, 200)
    smooth = np.array([gaussian_delta(e, noise_multiplier=1.0) for e in epsilons])
    bumpy = np.minimum(1.0, smooth * (1.1 + 0.1 * np.sin(9.0 * epsilons)))
    pair = DominatingPair.from_curves(epsilons, bumpy, bumpy)
    assert np.all(pair.upper >= 0.0)
    for epsilon, loose in zip(epsilons, bumpy, strict=True):
        exact = gaussian_delta(epsilon, noise_multiplier=1.0)
        assert exact <= pair.delta(epsilon) <= loose * (1 + 1e-6)


def test_negative_epsilons_follow_from_the_other_direction():
    epsilons = np.linspace(0.0, 6.0, 500)
    forward = np.exp(-1.0 - epsilons)
    reverse = np.exp(-1.0 - 2.0 * epsilons)
    pair = DominatingPair.from_curves(epsilons, forward, reverse)
    for epsilon in (0.5, 2.0):
        back = pair.reversed.delta(epsilon)
        implied = -math.expm1(-epsilon) + math.exp(-epsilon) * back
        assert pair.delta(-epsilon) == pytest.approx(implied, rel=1e-6)
        assert back >= math.exp(-1.0 - 2.0 * epsilon)


def test_mass_beyond_the_last_point_counts_as_an_infinite_loss():
    pair = DominatingPair.from_curves(
        np.array([0.0, 1.0]), np.array([0.5, 0.2]), np.array([0.5, 0.1])
    )
    assert pair.upper_infinite == pytest.approx(0.2, rel=1e-6)
    assert pair.lower_infinite == pytest.approx(0.1, rel=1e-6)
    assert pair.delta(50.0) == pytest.approx(0.2, rel=1e-6)


def test_invalid_numbers_are_refused():
    with pytest.raises(CertificateError):
        DominatingPair.from_curves(
            np.array([0.0, 1.0]), np.array([math.nan, 0.1]), np.array([0.5, 0.1])
        )


@pytest.mark.parametrize("rate", [0.004, 0.3, 0.9])
def test_sampling_matches_the_exact_identities_of_both_directions(rate):
    pair = gaussian_pair(0.9).sampled(rate)
    for t in (0.7, 1.0, 1.02, 1.3, 2.0):
        epsilon = math.log(t)
        lifted = (t - 1.0) / rate
        if lifted >= 0.0:
            exact = rate * gaussian_delta(math.log1p(lifted), noise_multiplier=0.9)
            assert pair.delta(epsilon) == pytest.approx(exact, rel=1e-4)
        rest = 1.0 - (1.0 - rate) * t
        if rest <= 0.0:
            assert pair.reversed.delta(epsilon) == pytest.approx(0.0, abs=1e-12)
        elif t >= 1.0:
            inner = max(0.0, math.log(rate * t / rest))
            exact = rest * gaussian_delta(inner, noise_multiplier=0.9)
            assert pair.reversed.delta(epsilon) == pytest.approx(exact, rel=1e-4)


def test_sampling_keeps_the_mass_of_one_neighbouring_input_only():
    pair = DominatingPair.from_curves(
        np.array([0.0, 1.0]), np.array([0.5, 0.3]), np.array([0.5, 0.2])
    )
    assert pair.lower_infinite > 0.1
    sampled = pair.sampled(0.25)
    assert sampled.upper.sum() + sampled.upper_infinite == pytest.approx(1.0, rel=1e-6)
    assert sampled.lower.sum() == pytest.approx(1.0, rel=1e-6)
    # Under both worlds such outputs are produced whenever the user stays away.
    assert sampled.losses[0] == pytest.approx(math.log(0.75))
    assert sampled.upper[0] == pytest.approx(0.75 * sampled.lower[0])


def test_sampling_at_rate_one_changes_nothing():
    pair = gaussian_pair(1.0)
    assert pair.sampled(1.0) is pair


def test_a_grid_keeps_the_mass_and_never_lowers_delta():
    pair = gaussian_pair(1.0).sampled(0.1)
    step = 0.05
    index, mass = pair.on_grid(step)
    assert mass.sum() == pytest.approx(pair.upper.sum(), rel=1e-12)
    assert np.all(mass >= 0.0)
    # What B keeps on the grid is what it had: A·e^(−loss) is preserved too.
    kept = (mass * np.exp(-step * index)).sum()
    assert kept == pytest.approx(pair.lower[pair.upper > 0].sum(), rel=1e-9)
    for epsilon in (0.0, 0.031, 0.7, 1.234):
        above = step * index > epsilon
        gridded = (mass[above] * -np.expm1(epsilon - step * index[above])).sum()
        assert gridded >= pair.delta(epsilon) * (1 - 1e-12)


@pytest.mark.parametrize("count", [1, 20, 300])
def test_sums_of_randomised_responses_match_enumeration(count):
    loss = 0.05
    composed = ComposedLoss([(coin_pair(loss), count)], relative_variance=1e-6)
    for epsilon in (0.0, 0.3 * loss * count**0.5, 2.1 * loss * count**0.5):
        exact = exact_coin_delta(loss, count, epsilon)
        found = composed.delta(epsilon)
        if exact == 0.0:
            assert found == DELTA_FLOOR
        else:
            assert exact * (1 - 1e-9) <= found <= exact * 1.001 + 1e-9


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9, 2e-12])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_sums_of_gaussians_are_gaussians_far_into_the_tail(count, delta):
    pair = gaussian_pair(5.0 * math.sqrt(count))
    found = ComposedLoss([(pair, count)], relative_variance=1e-6).epsilon(delta)
    exceeded = gaussian_delta(found * (1 - 4e-6), noise_multiplier=5.0)
    assert gaussian_delta(found, noise_multiplier=5.0) <= delta <= exceeded


def test_different_releases_add_up_in_any_order():
    parts = [(gaussian_pair(4.0), 3), (gaussian_pair(2.0), 1)]
    shift = math.sqrt(3 / 16 + 1 / 4)
    for order in (parts, parts[::-1]):
        found = ComposedLoss(order, relative_variance=1e-6).delta(1.5)
        exact = gaussian_delta(1.5, noise_multiplier=1 / shift)
        assert exact <= found <= exact * (1 + 1e-4)


def test_delta_and_epsilon_are_inverse_under_sampling():
    composed = ComposedLoss(
        [(gaussian_pair(1.0).sampled(0.01), 100)], relative_variance=4e-6
    )
    for delta in (1e-3, 1e-6, 1e-10):
        epsilon = composed.epsilon(delta)
        assert composed.delta(epsilon) == pytest.approx(delta, rel=1e-4)


def test_infinite_losses_add_up_and_can_make_a_target_unreachable():
    pair = DominatingPair.from_curves(
        np.array([0.0, 1.0]), np.array([0.5, 1e-4]), np.array([0.5, 1e-4])
    )
    composed = ComposedLoss([(pair, 10)], relative_variance=1e-6)
    assert composed.epsilon(9e-4) == math.inf
    assert composed.epsilon(2e-3) < 10.1
    assert composed.delta(100.0) == pytest.approx(1e-3, rel=1e-3)


def test_no_delta_below_the_minimum_is_reported():
    composed = ComposedLoss([(gaussian_pair(3.0), 1)], relative_variance=1e-6)
    assert composed.delta(9.0) == DELTA_FLOOR
