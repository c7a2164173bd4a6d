"""Plans at the ends of their range: coarse grids, huge epsilons, long compositions."""

from fractions import Fraction

import pytest

from dpnoise.accounting.calibration import calibrate
from dpnoise.errors import ParameterError
from dpnoise.events import Adversary, GaussianEvent, PoissonSampled
from dpnoise.planning import plan
from dpnoise.samplers.skellam import MIN_TABLE_VARIANCE

CELL = {
    "clients": 100,
    "dimension": 65536,
    "l2_clip": 1.0,
    "epsilon": 1.0,
    "delta": 1e-5,
}


@pytest.mark.parametrize(
    ("epsilon", "scale_factor", "bits", "chosen"),
    [(20.0, 0.25, 8, "mixture-rdp"), (1.0, 4.0, 10, "mixture-contour")],
)
def test_the_certified_accountant_with_the_least_noise_is_chosen(
    epsilon, scale_factor, bits, chosen
):
    asked = CELL | {"epsilon": epsilon, "linf_bound": 1 if epsilon > 1.0 else None}

    def made(accountant):
        return plan(
            **asked, scale_factor=scale_factor, bits=bits, accountant=accountant
        )

    default = made(None)
    assert default.accountant == chosen
    for rival in {"mixture-rdp", "mixture-contour"} - {chosen}:
        assert default.noise_variance <= made(rival).noise_variance


def test_an_epsilon_beyond_the_samplers_is_rejected_with_a_valid_one():
    asked = CELL | {"epsilon": 100.0, "dimension": 256, "mechanism": "skellam"}
    with pytest.raises(ParameterError) as caught:
        plan(**asked)
    assert caught.value.parameter == "epsilon"
    nearest = float(caught.value.nearest)
    made = plan(**asked | {"epsilon": nearest})
    assert 0.99 * nearest < made.statement_server.epsilon <= nearest


def test_a_delta_below_the_sampler_distance_is_rejected_with_a_valid_one():
    asked = CELL | {"dimension": 4096, "scale_factor": 4.0, "delta": 1e-32}
    with pytest.raises(ParameterError, match="draws from the exact law") as caught:
        plan(**asked)
    assert caught.value.parameter == "delta"
    nearest = float(caught.value.nearest)
    assert 1e-32 < nearest < 1e-25
    assert plan(**asked | {"delta": nearest}).epsilon_server <= 1.0
    # Where no delta below one would do, none is offered.
    with pytest.raises(ParameterError) as caught:
        plan(**asked | {"epsilon": 80.0})
    assert caught.value.nearest is None


def test_a_sampled_release_is_calibrated_although_delta_saturates_at_the_rate():
    asked = []

    def sampled(variance):
        asked.append(variance)
        one = GaussianEvent(dim=1, noise_variance=float(variance), l2_sensitivity=1.0)
        return PoissonSampled(one, 0.004)

    # The search starts where delta is flat at the rate, far below the answer.
    found = calibrate(
        sampled,
        accountant="gaussian-pld",
        epsilon=8.0,
        delta=1e-3,
        adversary=Adversary.MODEL_READER,
        bracket=(Fraction(1, 1 << 60), Fraction(1 << 100)),
    )
    assert float(found) == pytest.approx(0.0444545, rel=1e-4)
    # Sixteen where the steps double as they should, 74 where they do not.
    assert len(asked) <= 32


def test_sampling_never_raises_the_reference_gaussian():
    # Loss distributions resolve no delta below 1e-12, and little at it.
    asked = CELL | {"dimension": 16, "epsilon": 8.0, "delta": 1e-12}
    named = {"mechanism": "gaussian", "scale_factor": 16.0}
    without = plan(**asked, **named)
    sampled = plan(**asked, **named, sampling_rate=0.1)
    assert sampled.gaussian_mse <= without.gaussian_mse


@pytest.mark.parametrize(
    ("dimension", "epsilon", "steps"),
    [(1, 0.01, 1), (5, 1.0, 1000), (20, 50.0, 1), (32, 1.0, 10)],
)
def test_few_coordinates_cost_one_percent_at_any_epsilon(dimension, epsilon, steps):
    made = plan(
        clients=100,
        dimension=dimension,
        l2_clip=1.0,
        epsilon=epsilon,
        delta=1e-5,
        steps=steps,
    )
    assert made.accountant == "mixture-gdp"
    assert 1.0 < made.noise_overhead < 1.0105


@pytest.mark.parametrize(
    ("mechanism", "changes", "bits"),
    [
        ("ddgauss", {}, 16),
        ("ddgauss", {"epsilon": 0.1}, 19),
        ("ddgauss", {"steps": 1000}, 21),
        ("binomial", {}, 16),
        ("binomial", {"epsilon": 40.0}, 13),
        ("binomial", {"steps": 1000}, 21),
        ("skellam", {"steps": 1000}, 21),
        ("skellam", {"epsilon": 5.0}, 14),
        ("discrete-gaussian", {}, 16),
    ],
)
def test_rounding_all_entries_together_costs_one_percent_with_the_fewest_bits(
    mechanism, changes, bits
):
    made = plan(mechanism=mechanism, **CELL | changes)
    assert made.parameters.bits == bits
    assert made.noise_overhead <= 1.01
    if mechanism != "discrete-gaussian":  # no norm bound: noise is as on any grid
        fewer = plan(mechanism=mechanism, bits=bits - 1, **CELL | changes)
        assert fewer.noise_overhead > 1.01


@pytest.mark.parametrize("mechanism", ["skellam", "binomial"])
def test_noise_beyond_the_samplers_suggests_a_mechanism_that_needs_less(mechanism):
    asked = CELL | {"clients": 5, "epsilon": 0.02, "steps": 5000}
    with pytest.raises(ParameterError, match="coarsest grid") as caught:
        plan(mechanism=mechanism, **asked)
    assert caught.value.parameter == "mechanism"
    assert plan(mechanism=caught.value.nearest, **asked).noise_overhead < 1.06


def test_the_largest_cohort_is_planned():
    made = plan(**CELL | {"clients": 1 << 24}, min_survivors=1000, loss_fraction=0.3)
    assert made.noise_overhead < 1.01
    assert made.share_at_smallest > 10_000 * made.share_at_largest


def test_short_vectors_are_accounted_for_by_the_integral_if_it_is_fast():
    made = plan(
        clients=1000, dimension=250, l2_clip=10.0, epsilon=6.0, delta=1e-5, bits=14
    )
    assert made.accountant == "mixture-contour"
    assert made.noise_overhead < 1.006  # the closed form would ask for 1.18


def test_for_given_bits_the_grid_of_the_closed_form_is_used_if_it_needs_less_noise():
    made = plan(
        clients=100,
        dimension=64,
        l2_clip=1.0,
        epsilon=0.02,
        delta=1e-6,
        bits=18,
    )
    assert made.accountant == "mixture-gdp"
    assert made.noise_overhead < 1.02


def test_a_wasteful_grid_is_skipped_even_if_the_next_is_expensive():
    """On the coarsest grid noise is 1.6 times a Gaussian's, and eight bits hold it."""
    made = plan(
        clients=235,
        dimension=12404,
        l2_clip=1.0,
        epsilon=0.059,
        delta=2.1e-12,
        rotation="none",
        colluders=60,
        max_wrap_probability=1e-4,
    )
    assert made.noise_overhead < 1.06


def test_a_selection_rate_of_one_is_treated_as_no_selection():
    # Tasks always state a rate; with a real selection this accountant costs too much.
    asked = CELL | {"dimension": 32, "scale_factor": 27.0, "bits": 16}
    made = plan(**asked, accountant="mixture-rdp", selection_rate=Fraction(1))
    assert made.noise_variance == plan(**asked, accountant="mixture-rdp").noise_variance
    with pytest.raises(ParameterError, match="table cells to check it"):
        plan(**asked, accountant="mixture-rdp", selection_rate=Fraction(1, 2))


def test_noise_shares_at_the_minimum_variance_are_planned_and_reported():
    asked = CELL | {"clients": 1 << 20, "scale_factor": 0.125, "epsilon": 8.0}
    made = plan(**asked)
    assert made.noise_variance == ((1 << 20) - 1) * MIN_TABLE_VARIANCE
    assert made.parameters.noise_rule.counted_variance == made.noise_variance
    assert made.epsilon_server < 8.0


def test_a_secret_selection_is_planned_close_to_the_gaussian():
    selected = {"clients": 100, "l2_clip": 1.0, "selection_rate": Fraction(1, 10)}
    one = plan(dimension=4096, epsilon=1.0, delta=1e-5, **selected)
    assert one.accountant == "mixture-contour"
    assert 1.0 < one.noise_overhead < 1.03
    few = plan(dimension=2, epsilon=1.0, delta=1e-5, steps=2, **selected)
    assert 1.0 < few.noise_overhead < 1.0125
    with pytest.raises(ParameterError, match="not below the selection rate") as caught:
        plan(dimension=2, epsilon=1.0, delta=0.1, **selected)
    assert caught.value.parameter == "delta"


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam"])
def test_bits_for_which_only_a_useless_grid_fits_are_rejected(mechanism):
    asked = CELL | {"clients": 1000, "dimension": 10, "mechanism": mechanism}
    with pytest.raises(ParameterError, match="times the least") as caught:
        plan(bits=8, **asked)
    assert caught.value.parameter == "bits"
    enough = plan(bits=int(caught.value.nearest), **asked)
    assert enough.forecast.expected_mse < 1.5 * enough.gaussian_mse
    # Who asks for whatever comes out gets it.
    assert plan(bits=8, max_wrap_probability=1.0, **asked).parameters.bits == 8


def test_the_modulus_covers_only_the_selected_vectors():
    asked = CELL | {"clients": 10_000, "scale_factor": 4.0}
    unselected = plan(**asked, selection_rate=None)
    few = plan(**asked, selection_rate=Fraction(1, 100))
    # 100 vectors are expected and 160 held, a 62nd of all: about six bits.
    assert few.request.planned_sum_norm == pytest.approx(160.0, rel=2e-3)
    assert unselected.request.planned_sum_norm is None
    assert 4 <= unselected.parameters.bits - few.parameters.bits <= 6
    assert few.forecast.wrap_probability <= few.request.max_wrap_probability


@pytest.mark.parametrize("bits", [22, 28])
def test_a_tight_coordinate_bound_does_not_lead_to_a_wasteful_grid(bits):
    """A bound shortens vectors; their norm is what noise is still made for."""
    made = plan(
        clients=100,
        dimension=4096,
        l2_clip=1.0,
        epsilon=1.0,
        delta=1e-6,
        bits=bits,
        linf_bound=Fraction(1, 2),
        accountant="mixture-gdp",
    )
    assert made.noise_overhead < 1.1


def test_a_loose_coordinate_bound_does_not_hide_a_finer_grid():
    """Sums over orders win there and waste a quarter of the noise on every grid."""
    made = plan(
        clients=8951,
        dimension=529_824,
        epsilon=0.01,
        delta=4.1473e-10,
        steps=9056,
        colluder_fraction=0.35416,
        l2_clip=1.0,
        linf_bound=Fraction(1, 1024),
        rotation="none",
    )
    assert made.noise_overhead < 1.05


def over_gaussian(made):
    """Error that bits are chosen by, over the Gaussian's with the same shares."""
    gaussian = made.gaussian_mse * made.request.expected_surplus
    return made.forecast.planning_mse / gaussian


def test_a_grid_with_a_jump_of_the_noise_is_skipped():
    """Between its neighbours the sums over orders need twice what a line foretells."""
    asked = {
        "clients": 823,
        "dimension": 23_112_385,
        "epsilon": 0.010379860103152201,
        "delta": 0.0004462409047542652,
        "steps": 10_000,
        "l2_clip": 78.51204141590624,
        "rotation": "dft",
        "min_survivors": 662,
        "loss_fraction": 0.3215543879917177,
        "accountant": "mixture-rdp",
    }
    made, finer = plan(**asked), plan(**asked, bits=11)
    assert made.parameters.bits < 11
    assert over_gaussian(made) <= 1.02 * 1.005 * over_gaussian(finer)


def test_the_rounding_error_of_many_clients_leads_to_a_finer_grid():
    """Rounding of half a million vectors is not hidden by noise behind a rare coin."""
    made = plan(
        clients=548_181,
        dimension=60,
        epsilon=0.46,
        delta=8.3e-4,
        steps=2,
        l2_clip=1.0,
        selection_rate=Fraction(1, 757),
        colluders=4843,
        min_survivors=545_606,
    )
    assert over_gaussian(made) <= 1.05


def test_the_finest_grid_within_a_coordinate_bound_is_tried():
    """Its double would cut every vector, so the model knew of coarser grids alone."""
    made = plan(
        clients=557,
        dimension=25,
        epsilon=0.05135519802649642,
        delta=2.57e-6,
        steps=9,
        l2_clip=1.0,
        linf_bound=Fraction(43, 512),
        rotation="dft",
        bits=25,
        colluders=1,
        min_survivors=132,
        loss_fraction=0.0285,
        clip_flag_amplitude=0.0025,
    )
    assert made.noise_overhead < 1.13
