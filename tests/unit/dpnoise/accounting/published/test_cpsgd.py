"""The recalled cpSGD bound: its algebra, its condition, its composition, its status."""

import dataclasses
import math

import pytest

from dpnoise.accounting import default_accountants, make_accountant
from dpnoise.accounting.published.cpsgd import binomial_epsilon
from dpnoise.errors import UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    GaussianEvent,
    PoissonSampled,
    Repeated,
)

RELEASE = BinomialEvent(
    dim=1,
    num_trials=40_000,
    l2_sensitivity=1.0,
    l1_sensitivity=1.0,
    linf_sensitivity=1,
)


def account(event, **changes):
    given = {"adversary": Adversary.SERVER} | changes
    return make_accountant("cpsgd-recalled", **given).compose(event)


def _exact_delta(epsilon, trials, shift):
    """Hockey-stick divergence of Binomial(N, 1/2) and its shift, both directions."""
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        - trials * math.log(2.0)
        for k in range(trials + 1)
    ]

    def mass(k):
        return math.exp(logs[k]) if 0 <= k <= trials else 0.0

    factor = math.exp(epsilon)
    return math.fsum(
        max(0.0, mass(k - shift) - factor * mass(k)) for k in range(trials + shift + 1)
    )


@pytest.mark.parametrize("shift", [1, 5])
def test_the_bound_lies_above_the_exact_divergence_of_one_coordinate(shift):
    release = dataclasses.replace(
        RELEASE,
        num_trials=4000,
        l2_sensitivity=float(shift),
        l1_sensitivity=float(shift),
        linf_sensitivity=shift,
    )
    for delta in (1e-2, 1e-5):
        epsilon = binomial_epsilon(delta, release)
        assert _exact_delta(epsilon, 4000, shift) <= delta


def test_the_leading_term_is_the_classical_gaussian():
    huge = dataclasses.replace(RELEASE, num_trials=4 * 10**12)
    gaussian = math.sqrt(2.0 * math.log(1.25e5)) / 1e6
    assert binomial_epsilon(1e-5, huge) == pytest.approx(gaussian, rel=1e-3)


def test_outside_its_condition_the_bound_is_infinite():
    few = dataclasses.replace(RELEASE, num_trials=1000)
    assert binomial_epsilon(1e-5, few) == math.inf
    assert account(few).epsilon(1e-5) == math.inf


def test_delta_and_epsilon_invert_each_other():
    one = account(RELEASE)
    epsilon = one.epsilon(1e-5)
    assert one.delta(epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_many_releases_compose_by_the_better_theorem():
    single = account(RELEASE).epsilon(1e-5 / 400)
    many = account(Repeated(RELEASE, 400)).epsilon(1e-5)
    assert single < many < 400 * single
    few = account(Repeated(RELEASE, 2)).epsilon(1e-5)
    assert few == pytest.approx(2 * account(RELEASE).epsilon(5e-6), rel=1e-9)


def test_only_the_published_setting_is_amplified_by_sampling():
    sampled = Repeated(PoissonSampled(RELEASE, 0.01), 10)
    server = account(sampled).epsilon(1e-5)
    reader = account(sampled, adversary=Adversary.MODEL_READER).epsilon(1e-5)
    assert server == reader == account(Repeated(RELEASE, 10)).epsilon(1e-5)
    published = make_accountant(
        "hypothetical-cpsgd-recalled", adversary=Adversary.MODEL_READER
    )
    assert published.compose(sampled).epsilon(1e-5) < 0.1 * server


def test_replace_one_doubles_the_sensitivities():
    doubled = dataclasses.replace(
        RELEASE, l2_sensitivity=2.0, l1_sensitivity=2.0, linf_sensitivity=2
    )
    replaced = account(RELEASE, adjacency=Adjacency.REPLACE_ONE).epsilon(1e-5)
    assert replaced == account(doubled).epsilon(1e-5)


def test_the_recalled_bound_is_labelled_and_never_a_default():
    assert account(RELEASE).statement(1e-5).status.value == "recalled"
    assert "cpsgd-recalled" not in default_accountants(RELEASE)


def test_other_noise_is_refused():
    gaussian = GaussianEvent(dim=1, noise_variance=1.0, l2_sensitivity=1.0)
    with pytest.raises(UnknownEventError, match="cpsgd-recalled"):
        account(gaussian)
