"""The Gaussian loss-distribution accountant against an independent library."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.accounting import make_accountant
from dpnoise.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpnoise.accounting.loss.composed_loss import DELTA_FLOOR
from dpnoise.accounting.loss.gaussian_pld import SampledGaussians, gaussian_pair
from dpnoise.errors import ParameterError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    Composed,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SecretlySelected,
    SkellamMixtureEvent,
)


def gaussian(multiplier, rate=1.0, count=1):
    event = GaussianEvent(dim=3, noise_variance=multiplier**2, l2_sensitivity=1.0)
    return Repeated(event if rate == 1.0 else PoissonSampled(event, rate), count)


def account(*events, adversary=Adversary.MODEL_READER, adjacency=Adjacency.ZERO_OUT):
    made = make_accountant("gaussian-pld", adversary=adversary, adjacency=adjacency)
    for event in events:
        made.compose(event)
    return made


def oracle(multiplier, rate, count, delta, interval):
    import dp_accounting  # noqa: PLC0415 - slow import, which collecting shall not wait for
    from dp_accounting import pld  # noqa: PLC0415 - the same

    event = dp_accounting.GaussianDpEvent(multiplier)
    if rate < 1.0:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    made = pld.PLDAccountant(value_discretization_interval=interval)
    made.compose(dp_accounting.SelfComposedDpEvent(event, count))
    return made.get_epsilon(delta)


@pytest.mark.parametrize(
    ("multiplier", "rate", "count", "delta", "interval"),
    [
        (3.73, 1.0, 1, 1e-5, 1e-4),
        (1.0, 0.01, 100, 1e-6, 1e-4),
        (20.0, 1.0, 100, 1e-5, 1e-4),
        (0.4, 0.1, 10, 1e-5, 1e-4),
    ],
)
def test_agrees_with_an_independent_library(multiplier, rate, count, delta, interval):
    ours = account(gaussian(multiplier, rate, count)).epsilon(delta)
    theirs = oracle(multiplier, rate, count, delta, interval)
    assert ours == pytest.approx(theirs, rel=3e-6)


def test_agrees_with_an_independent_library_on_a_training_run():
    ours = account(gaussian(0.8635, 0.004, 1000)).epsilon(1e-5)
    theirs = oracle(0.8635, 0.004, 1000, 1e-5, 1e-4)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours == pytest.approx(1.0, rel=3e-3)


def test_a_single_release_is_the_analytic_gaussian():
    for multiplier in (0.5, 3.0):
        made = account(gaussian(multiplier))
        exact = gaussian_epsilon(1e-7, noise_multiplier=multiplier)
        assert exact <= made.epsilon(1e-7) <= exact * (1 + 1e-12)


@pytest.mark.parametrize(("multiplier", "rate"), [(0.7, 0.01), (2.0, 0.3)])
def test_one_release_with_selection_is_a_closed_form(multiplier, rate):
    made = account(gaussian(multiplier, rate))
    theirs = oracle(multiplier, rate, 1, 1e-6, 1e-4)
    assert made.epsilon(1e-6) == pytest.approx(theirs, rel=1e-5)
    assert made.delta(made.epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-6)
    # No loss distribution resolves such a delta.
    assert 0.0 < made.delta(30.0) < DELTA_FLOOR
    assert made.epsilon(rate) == 0.0


def test_a_rare_huge_loss_does_not_widen_the_window():
    # In one direction the loss ends at −log(1 − q), with a chance far below any δ.
    multiplier, rate, count = 2062.0, 0.5, 100
    made = account(gaussian(multiplier, rate, count))
    limit = 1.0 / (rate * math.sqrt(count * math.expm1(multiplier**-2)))
    expected = gaussian_delta(0.01, noise_multiplier=limit)
    assert made.delta(0.01) == pytest.approx(expected, rel=0.01)


def test_the_fast_curve_equals_the_analytic_one():
    pair = gaussian_pair(2.0)
    for epsilon in pair.losses[pair.losses > 0][::400]:
        exact = gaussian_delta(float(epsilon), noise_multiplier=2.0)
        assert pair.delta(float(epsilon)) == pytest.approx(exact, rel=1e-6, abs=1e-19)


def test_epsilon_is_the_larger_of_both_directions():
    made = account(gaussian(1.0, 0.2, 5))
    forward, reverse = made._loss_sums()
    assert forward.epsilon(1e-5) > reverse.epsilon(1e-5)
    assert made.epsilon(1e-5) == forward.epsilon(1e-5)


@pytest.mark.parametrize("adversary", [Adversary.SERVER, Adversary.PARTICIPANT])
def test_an_observer_of_the_roster_gets_no_amplification(adversary):
    sampled = account(gaussian(2.0, 0.01, 4), adversary=adversary)
    full = account(gaussian(2.0, 1.0, 4), adversary=adversary)
    assert sampled.epsilon(1e-5) == full.epsilon(1e-5)
    sentences = sampled.statement(1e-5).assumptions
    assert any("Sampling of users was not counted" in text for text in sentences)


def test_replace_one_doubles_the_sensitivity():
    replaced = account(gaussian(2.0), adjacency=Adjacency.REPLACE_ONE).epsilon(1e-5)
    assert replaced == pytest.approx(account(gaussian(1.0)).epsilon(1e-5), rel=1e-6)


def test_composition_is_heterogeneous_and_incremental():
    together = account(Composed((gaussian(2.0, 0.1, 3), gaussian(5.0))))
    one_by_one = account(gaussian(5.0), *[gaussian(2.0, 0.1)] * 3)
    assert together.epsilon(1e-6) == pytest.approx(one_by_one.epsilon(1e-6), rel=1e-9)


def test_releases_without_sensitivity_cost_nothing():
    silent = GaussianEvent(dim=1, noise_variance=1.0, l2_sensitivity=0.0)
    assert account(silent).epsilon(1e-9) == 0.0
    assert account(silent).delta(0.0) == 0.0


def test_a_claim_of_three_percent_less_noise_is_detected():
    # The independent library's ε at 3 % less variance exceeds what we state.
    honest = account(gaussian(1.0, 0.01, 100)).epsilon(1e-6)
    less = oracle(math.sqrt(0.97), 0.01, 100, 1e-6, 1e-4)
    assert less > honest * 1.01


def test_deltas_below_the_minimum_and_unsupported_events_are_rejected():
    made = account(gaussian(1.0, count=2))
    with pytest.raises(ParameterError) as caught:
        made.epsilon(DELTA_FLOOR / 2)
    assert made.epsilon(float(caught.value.nearest)) > 0.0
    foreign = SkellamMixtureEvent(1, Fraction(1), 1.0, 1.0)
    with pytest.raises(UnknownEventError, match="default_accountants"):
        made.compose(foreign)


def test_almost_no_noise_with_selection_is_bounded_by_the_selection_rate():
    """A search for the least noise asks about that, too, where shifts are infinite."""
    for shift in (1e200, math.inf):
        coined = SampledGaussians.of([(shift, 0.25, 1)])
        assert coined.estimate(1.0) >= 0.25
        assert coined.delta(1.0) == pytest.approx(0.25)


def test_one_release_with_selection_uses_the_closed_form(monkeypatch):
    def pair(*_):
        raise AssertionError

    monkeypatch.setattr("dpnoise.accounting.loss.gaussian_pld.gaussian_pair", pair)
    one = SecretlySelected(GaussianEvent(1, 3.0, 1.0), Fraction(1, 4))
    made = make_accountant("gaussian-pld", adversary=Adversary.SERVER).compose(one)
    assert 0.0 < made.delta(1.0) < 0.05
    assert 0.5 < made.epsilon(0.001) < 0.6
    nothing = SecretlySelected(GaussianEvent(1, 3.0, 0.0), Fraction(1, 4))
    free = make_accountant("gaussian-pld", adversary=Adversary.SERVER).compose(nothing)
    assert (free.delta(0.0), free.epsilon(1e-6)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("shift", "delta"), [(1.2, 1e-12), (1.5, 1e-12), (1.2255859375, 1e-11)]
)
def test_few_releases_with_rare_selections_are_bounded_closely_far_out(shift, delta):
    """Chernoff's bound is up to 10^7 times too large there, and chose the window."""
    rate, count = Fraction(1, 948), 4
    coined = SampledGaussians.of([(shift, float(rate), count)])
    epsilon = coined.epsilon(delta)
    assert coined.delta(epsilon) == pytest.approx(delta, rel=1e-3)
    least, most = convolved(coined.parts[0][0], float(rate), count, epsilon)
    assert least <= coined.delta(epsilon) <= most


def convolved(shift, rate, count, epsilon, step=2e-3):
    """Bracket delta by plain convolution: sums of positive numbers, no transform."""
    ends = np.linspace(-9.0, 11.0, 200_001)
    loss = np.log1p(rate * np.expm1(shift * ends - 0.5 * shift**2))
    mass = sum(
        weight
        * np.abs(
            np.diff(scipy.special.ndtr(np.where(ends > mean, mean - ends, ends - mean)))
        )
        for mean, weight in ((0.0, 1.0 - rate), (shift, rate))
    )
    beyond = count * scipy.special.ndtr(shift - ends[-1])  # may have any loss
    bounds = []
    for cells in (np.floor(loss[:-1] / step), np.ceil(loss[1:] / step)):
        index = cells.astype(int)
        one = np.bincount(index - index.min(), weights=mass)
        together = one
        for _ in range(count - 1):
            together = np.convolve(together, one)
        losses = step * (np.arange(together.size) + count * index.min())
        larger = losses > epsilon
        gain = -np.expm1(epsilon - losses[larger])
        bounds.append(float((together[larger] * gain).sum()))
    return bounds[0], bounds[1] + beyond
