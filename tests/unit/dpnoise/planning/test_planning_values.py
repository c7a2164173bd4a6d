"""Plans in two published settings, compared with values computed elsewhere.

The values come from an independent prototype of the analyses: exact Fourier inversion
for the contour accountant, direct evaluation of the published formulas, and an
independent implementation of the Gaussian's privacy loss distribution.
"""

from pathlib import Path

import pytest

from dpnoise.errors import ParameterError
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import plan

DOCS = Path(__file__).parents[4] / "docs"

# [Bao22] section 6.1: distributed mean estimation.
ESTIMATION = {
    "clients": 100,
    "dimension": 65536,
    "l2_clip": 1.0,
    "epsilon": 1.0,
    "delta": 1e-5,
}


def noise_per_unit(made):
    return float(made.noise_variance) / made.parameters.scale_factor**2


@pytest.mark.parametrize(
    ("scale_factor", "bits", "limit"),
    [(4.0, 10, 1.010), (2.0, 9, 1.022), (1.0, 8, 1.058)],
)
def test_coarse_grids_cost_a_few_percent_over_the_central_gaussian(
    scale_factor, bits, limit
):
    made = plan(**ESTIMATION, bits=bits, scale_factor=scale_factor)
    assert made.parameters.mechanism == "skellam-mixture"
    assert made.accountant == "mixture-contour"
    assert made.statement_model_reader.status.value == "certified"
    assert made.gaussian_mse == pytest.approx(13.92, abs=0.005)
    # At least the lower limit, or the accountant would claim too little noise.
    assert made.gaussian_mse < noise_per_unit(made) <= limit * made.gaussian_mse


def test_the_exact_renyi_analysis_costs_a_fifth():
    made = plan(**ESTIMATION, bits=10, scale_factor=4.0, accountant="mixture-rdp")
    assert 1.1 < noise_per_unit(made) / made.gaussian_mse <= 1.22


def test_skellam_with_the_certified_accountant_approaches_the_gaussian_on_fine_grids():
    made = plan(**ESTIMATION, bits=18, mechanism="skellam")
    assert made.accountant == "skellam-gdp"
    assert 1.0 < noise_per_unit(made) / made.gaussian_mse < 1.02


@pytest.mark.parametrize(("bits", "limit"), [(8, 1.02), (10, 1.01), (16, 1.01)])
def test_the_chosen_scale_costs_at_most_a_few_percent(bits, limit):
    made = plan(**ESTIMATION, bits=bits)
    # The shares of all 100 clients arrive, 99 are counted.
    assert made.forecast.expected_mse * 0.99 / made.gaussian_mse < limit


@pytest.mark.parametrize(
    ("changes", "bits"),
    [({}, 6), ({"epsilon": 0.1}, 6), ({"epsilon": 5.0}, 7), ({"steps": 1000}, 6)],
)
def test_without_bits_the_fewest_within_five_percent_of_the_gaussian_are_chosen(
    changes, bits
):
    made = plan(**(ESTIMATION | changes))
    assert made.parameters.bits == bits
    # The shares of all 100 clients arrive, 99 are counted.
    assert made.forecast.expected_mse * 0.99 <= 1.05 * made.gaussian_mse


@pytest.mark.parametrize(
    ("accountant", "bits"),
    [(None, 6), *(("mixture-simple", bits) for bits in (6, 7, 8, 9, 10))],
)
def test_the_page_for_small_clients_prints_the_ratios_of_plans(accountant, bits):
    page = (DOCS / "rule-for-small-clients.md").read_text(encoding="utf-8")
    made = plan(**ESTIMATION, bits=bits, accountant=accountant)
    assert f"{made.forecast.expected_mse / made.gaussian_mse:.3f}" in page


@pytest.mark.parametrize("dimension", [1, 10, 32])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_short_vectors_need_at_most_two_percent_more_noise(dimension, epsilon):
    made = plan(**ESTIMATION | {"dimension": dimension, "epsilon": epsilon})
    assert made.accountant == "mixture-gdp"
    assert 1.0 < noise_per_unit(made) / made.gaussian_mse <= 1.02
    assert made.parameters.bits * make_mechanism(made.parameters).encoded_dim <= 4096


def test_four_bits_give_a_plan_with_an_honest_forecast():
    made = plan(**ESTIMATION, bits=4)
    assert made.forecast.wrap_probability <= 0.01
    assert made.forecast.expected_mse < 2.0 * made.gaussian_mse


@pytest.mark.parametrize("mechanism", ["skellam", "ddgauss", "binomial"])
def test_one_coordinate_under_much_noise_is_not_rounded_to_zero(mechanism):
    """Zeros for every vector would have the smaller error, and no budget at all."""
    made = plan(
        clients=100,
        dimension=1,
        l2_clip=1.0,
        epsilon=0.01,
        delta=1e-7,
        mechanism=mechanism,
    )
    assert made.statement_server.epsilon > 0.0099
    assert 1.0 < made.forecast.expected_mse / made.gaussian_mse < 1.05


def test_grids_dominated_by_rounding_can_be_compared():
    made = plan(
        clients=1000,
        dimension=2,
        l2_clip=1.0,
        epsilon=8.0,
        delta=5e-9,
        mechanism="ddgauss",
        bits=8,
        max_wrap_probability=1.0,  # the plan is hopeless, and refused unless asked for
    )
    assert made.statement_server.epsilon <= 8.0


def test_a_grid_that_rounds_every_vector_to_zeros_is_rejected():
    with pytest.raises(ParameterError, match="every vector would be sent as zeros"):
        plan(**ESTIMATION | {"dimension": 1}, mechanism="skellam", scale_factor=0.01)
