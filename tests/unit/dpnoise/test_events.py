"""The records of what was released."""

from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.events import (
    Adversary,
    BinomialEvent,
    Composed,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
    flatten,
)

SKELLAM = SkellamEvent(4, Fraction(7, 3), 2.5, None, 2, 1e-30)
A_NOISE = {"aggregate_noise_variance": Fraction(1), "l2_sensitivity": 1.0}
EVERY_KIND = Composed(
    (
        Repeated(PoissonSampled(SKELLAM, 0.1), 3),
        SkellamMixtureEvent(8, Fraction(1, 3), 16.5, 1.0),
        SkellamMixtureClippedEvent(8, Fraction(5), 16.5, 2),
        DistributedDiscreteGaussianEvent(8, 9, Fraction(1, 2), 4.0, 8.0),
        DiscreteGaussianEvent(8, Fraction(11), 4.0),
        BinomialEvent(8, 100, 4.0, 8.0, 2),
        Repeated(Composed((GaussianEvent(8, 1.5, 4.0), SKELLAM)), 2),
    )
)


def test_flattening_multiplies_counts_and_keeps_order_and_rates():
    parts = list(flatten(EVERY_KIND))
    assert parts[0] == (SKELLAM, 0.1, 3, False)
    assert [count for _, _, count, _ in parts] == [3, 1, 1, 1, 1, 1, 2, 2]
    assert parts[-1] == (SKELLAM, 1.0, 2, False)


def test_a_selection_flattens_to_a_rate_slightly_above_its_own():
    """A coin of 256 bits may land on the vector a little more often than stated."""
    tenth = SecretlySelected(SKELLAM, Fraction(1, 10))
    [(release, rate, count, is_secret)] = flatten(Repeated(tenth, 5))
    assert (release, count, is_secret) == (SKELLAM, 5, True)
    assert (
        Fraction(1, 10) < Fraction(rate) <= Fraction(1, 10) * (1 + Fraction(1, 2**51))
    )
    half = SecretlySelected(SKELLAM, Fraction(1, 2))
    assert half.rate_above > 0.5
    certain = SecretlySelected(SKELLAM, Fraction(1))
    assert list(flatten(certain)) == list(flatten(SKELLAM))


@pytest.mark.parametrize(
    ("parameter", "build"),
    [
        ("dim", lambda: SkellamEvent(0, Fraction(1), 1.0)),
        ("dim", lambda: SkellamEvent(1 << 41, Fraction(1), 1.0)),
        ("dim", lambda: SkellamEvent(dim=True, **A_NOISE)),
        ("aggregate_noise_variance", lambda: SkellamEvent(1, Fraction(0), 1.0)),
        ("aggregate_noise_variance", lambda: SkellamEvent(1, 2.0, 1.0)),
        ("l2_sensitivity", lambda: SkellamEvent(1, Fraction(1), float("nan"))),
        ("l2_sensitivity", lambda: SkellamEvent(1, Fraction(1), -1.0)),
        ("l1_sensitivity", lambda: SkellamEvent(1, Fraction(1), 1.0, float("inf"))),
        ("linf_sensitivity", lambda: SkellamEvent(1, Fraction(1), 1.0, None, 1.5)),
        ("sampler_distance", lambda: GaussianEvent(1, 1.0, 1.0, 1.0)),
        ("noise_variance", lambda: GaussianEvent(1, 0.0, 1.0)),
        ("linf_bound", lambda: SkellamMixtureEvent(1, Fraction(1), 1.0, 0.0)),
        ("linf_bound", lambda: SkellamMixtureClippedEvent(1, Fraction(1), 1.0, 0)),
        (
            "num_noise_shares",
            lambda: DistributedDiscreteGaussianEvent(1, 0, Fraction(1), 1.0),
        ),
        ("num_trials", lambda: BinomialEvent(1, 0, 1.0, 1.0, 1)),
        ("sampling_rate", lambda: PoissonSampled(SKELLAM, 0.0)),
        ("sampling_rate", lambda: PoissonSampled(SKELLAM, 1.5)),
        ("event", lambda: PoissonSampled(Repeated(SKELLAM, 2), 0.5)),
        ("selection_rate", lambda: SecretlySelected(SKELLAM, Fraction(0))),
        ("selection_rate", lambda: SecretlySelected(SKELLAM, Fraction(3, 2))),
        ("selection_rate", lambda: SecretlySelected(SKELLAM, 0.5)),
        ("event", lambda: SecretlySelected(Repeated(SKELLAM, 2), Fraction(1, 2))),
        (
            "event",
            lambda: SecretlySelected(PoissonSampled(SKELLAM, 0.5), Fraction(1, 2)),
        ),
        ("count", lambda: Repeated(SKELLAM, 0)),
        ("events", lambda: Composed(())),
    ],
)
def test_an_invalid_release_is_rejected_by_the_name_of_its_parameter(parameter, build):
    with pytest.raises(ParameterError) as caught:
        build()
    assert caught.value.parameter == parameter


def test_only_model_readers_do_not_see_participation():
    assert [who.sees_participation for who in Adversary] == [True, True, False]
