"""What a local level means for an attacker who wants the data back."""

import math

import numpy as np
import pytest
import scipy

from dpnoise.errors import ParameterError
from dpnoise.local import (
    LocalParameters,
    epsilon_against_reconstruction,
    make_randomiser,
    reconstruction_probability,
)


def test_without_a_release_the_reconstruction_probability_is_that_of_the_prior():
    for features, cosine in ((2, 0.3), (10, 0.5), (784, 0.1)):
        half = (features - 1) / 2
        prior = scipy.stats.beta.sf((1 + cosine) / 2, half, half)
        stated = reconstruction_probability(0.0, features=features, cosine=cosine)
        assert stated == pytest.approx(prior, rel=1e-7)


def test_an_excess_of_the_prior_adds_to_epsilon():
    together = reconstruction_probability(3.0, features=50, cosine=0.8)
    apart = reconstruction_probability(1.0, features=50, cosine=0.8, prior_excess=2.0)
    assert together == pytest.approx(apart)
    assert reconstruction_probability(1e6, features=50, cosine=0.8) == 1.0


def test_epsilon_against_reconstruction_inverts_the_probability():
    level = epsilon_against_reconstruction(features=64, cosine=0.9, probability=1e-3)
    again = reconstruction_probability(level, features=64, cosine=0.9)
    assert again == pytest.approx(1e-3)


def test_a_probability_below_that_of_guessing_is_rejected():
    with pytest.raises(ParameterError, match="guessing alone"):
        epsilon_against_reconstruction(features=3, cosine=0.2, probability=0.1)


def test_the_best_attack_stays_below_the_bound():
    # The point itself is the best guess of the direction; 4000 trials, whose share lies
    # above the bound by five standard errors once in 10^6 if the bound is the truth.
    features, cosine, epsilon = 8, 0.8, 3.0
    made = make_randomiser(
        LocalParameters(
            randomiser="privunit2", dim=features, bound=1.0, epsilon=epsilon
        )
    )
    truth = np.eye(features)[0]  # by symmetry one direction stands for all
    found = 0
    for each in range(4000):
        guess = made.randomise(truth, private_seed=each.to_bytes(32, "big"))
        found += truth @ guess >= cosine * np.linalg.norm(guess)
    bound = reconstruction_probability(epsilon, features=features, cosine=cosine)
    assert found / 4000 < bound + 5 * math.sqrt(bound / 4000)
    assert found / 4000 > bound / 20  # the bound is not idle


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"features": 1}, "features"),
        ({"cosine": 1.0}, "cosine"),
        ({"cosine": -0.1}, "cosine"),
        ({"prior_excess": -1.0}, "prior_excess"),
        ({"probability": 0.0}, "probability"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(changed, parameter):
    threat = {"features": 8, "cosine": 0.8, "probability": 0.5} | changed
    with pytest.raises(ParameterError) as refused:
        epsilon_against_reconstruction(**threat)
    assert refused.value.parameter == parameter
