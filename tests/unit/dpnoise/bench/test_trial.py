"""One sum of a whole cohort: the noise has its law, drawn in shares or at once.

Seeds are fixed; each statistical test was to fail with a chance of 6e-7 (five
deviations) when they were chosen.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from secagg_testing.reference_samplers import skellam_pmf

from dpnoise.bench import noisy_sum
from dpnoise.errors import InputError, ParameterError
from dpnoise.mechanisms import MechanismParameters, NoiseRule, make_mechanism
from dpnoise.mechanisms.skellam import SkellamMechanism

SEED = bytes(range(32))
CLIENTS, DIM, DEVIATIONS = 5, 4096, 5.0
LADDER = {"min_survivors": 3, "loss_fraction": Fraction(2, 5), "ladder": 3}


def mechanism(
    name="skellam", *, variance=Fraction(4), clients=CLIENTS, dim=DIM, **changes
):
    rule = {"counted_variance": variance, "min_survivors": clients} | changes
    return make_mechanism(
        MechanismParameters(
            mechanism=name,
            dim=dim,
            l2_clip=1.0,
            scale_factor=1.0,
            modulus=1001,
            noise_rule=NoiseRule(**rule),
            num_clients=clients,
            rotation="none",
        )
    )


def assert_law(noise, variance):
    """Whole numbers whose variance and number of zeros are those of Skellam noise."""
    assert np.array_equal(noise, np.rint(noise))
    zero = float(skellam_pmf(0, variance))
    variance = float(variance)
    fourth = 3.0 * variance**2 + variance  # of a Skellam variable
    off = DEVIATIONS * math.sqrt((fourth - variance**2) / noise.size)
    assert abs(np.mean(noise**2) - variance) < off
    off = DEVIATIONS * math.sqrt(zero * (1.0 - zero) / noise.size)
    assert abs(np.mean(noise == 0.0) - zero) < off


@pytest.mark.parametrize("one_draw", [False, True])
@pytest.mark.parametrize("rule", [{}, LADDER])
def test_the_noise_of_a_sum_has_the_expected_law(rule, one_draw):
    # So many that 3 % less variance is ten deviations off.
    chosen, many = mechanism(dim=1 << 18, **rule), np.zeros((CLIENTS, 1 << 18))
    noise = noisy_sum(chosen, many, seed=SEED, one_draw=one_draw)
    assert_law(noise, chosen.expected_noise_variance)


def test_a_variance_beyond_one_sampler_is_drawn_in_parts(monkeypatch):
    monkeypatch.setattr(SkellamMechanism, "largest_variance", Fraction(3))
    noise = noisy_sum(mechanism(), np.zeros((CLIENTS, DIM)), seed=SEED, one_draw=True)
    assert_law(noise, Fraction(5))


@pytest.mark.parametrize("one_draw", [False, True])
def test_central_noise_is_added_once(one_draw):
    chosen = mechanism("gaussian", variance=Fraction(100))
    noise = noisy_sum(chosen, np.zeros((CLIENTS, DIM)), seed=SEED, one_draw=one_draw)
    off = DEVIATIONS * math.sqrt(2.0 / DIM)
    assert abs(np.mean(noise**2) / 100.0 - 1.0) < off


def test_shares_of_another_law_are_not_drawn_together():
    chosen = mechanism("ddgauss", variance=Fraction(100))
    vectors = np.zeros((CLIENTS, DIM))
    noisy_sum(chosen, vectors, seed=SEED)
    with pytest.raises(ParameterError, match="another law") as caught:
        noisy_sum(chosen, vectors, seed=SEED, one_draw=True)
    assert caught.value.parameter == "one_draw"


@pytest.mark.parametrize("one_draw", [False, True])
def test_a_selection_leaves_the_estimate_unbiased(one_draw):
    clients, rate = 400, Fraction(1, 4)
    chosen = mechanism("skellam", variance=Fraction(1), clients=clients)
    vectors = np.zeros((clients, DIM))
    vectors[:, 0] = 1.0
    estimate = noisy_sum(
        chosen, vectors, seed=SEED, one_draw=one_draw, selection_rate=rate
    )
    spread = math.sqrt(clients * 3.0 + 16.0 * clients / (clients - 1))
    assert abs(estimate[0] - clients) < DEVIATIONS * spread
    assert estimate[0] != clients  # coins were thrown, and noise was added


def test_a_run_is_determined_by_its_seed():
    chosen, vectors = mechanism(), np.full((CLIENTS, DIM), 0.01)
    first, again, other = (
        noisy_sum(chosen, vectors, seed=seed) for seed in (SEED, SEED, bytes(32))
    )
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_an_invalid_cohort_is_rejected():
    with pytest.raises(InputError, match="matrix"):
        noisy_sum(mechanism(), np.zeros(DIM), seed=SEED)
    with pytest.raises(ParameterError, match="roster"):
        noisy_sum(mechanism(), np.zeros((CLIENTS - 1, DIM)), seed=SEED)
    with pytest.raises(ParameterError, match="seed"):
        noisy_sum(mechanism(), np.zeros((CLIENTS, DIM)), seed=b"seed")
