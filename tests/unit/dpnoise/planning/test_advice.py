"""Refusals of plans, read by who made them: what is advised works when it is done."""

from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError, TheoremNotApplicableError
from dpnoise.planning import plan

VECTORS = {"l2_clip": 1.0, "epsilon": 1.0, "delta": 1e-6}


def advice(parameter, **asked):
    with pytest.raises(ParameterError) as caught:
        plan(**asked)
    assert caught.value.parameter == parameter
    return caught.value.nearest


@pytest.mark.parametrize(
    "asked",
    [
        {"clients": 1_658_731, "dimension": 2, "mechanism": "skellam", "bits": 7},
        {"clients": 1937, "dimension": 5, "epsilon": 29.0, "steps": 10_000, "bits": 3},
    ],
)
def test_the_suggested_bits_give_a_plan_that_uses_all_of_them(asked):
    asked = VECTORS | asked
    enough = int(advice("bits", **asked))
    assert plan(**asked | {"bits": enough}).parameters.bits == enough


@pytest.mark.parametrize(
    "asked",
    [
        {
            "clients": 68,
            "dimension": 27_892_305,
            "epsilon": 0.011,
            "scale_factor": 39.0,
        },
        {
            "clients": 2,
            "dimension": 4,
            "epsilon": 0.01,
            "mechanism": "skellam",
            "scale_factor": 12.19,
        },
    ],
)
def test_for_a_grid_too_fine_for_the_samplers_a_coarser_one_is_suggested(asked):
    asked = VECTORS | {"steps": 10_000} | asked
    finest = float(advice("scale_factor", **asked))
    made = plan(**asked | {"scale_factor": finest})
    limit = made.request.mechanism_class.largest_variance
    assert 0.3 * limit < made.noise_variance / made.request.counted_shares <= limit


def test_no_grid_is_suggested_if_none_is_coarse_enough_for_the_samplers():
    asked = VECTORS | {"clients": 10, "dimension": 6_313_158, "mechanism": "skellam"}
    asked |= {"steps": 10_000, "epsilon": 0.05}
    assert advice("epsilon", **asked, scale_factor=68.7) is None
    # Nor does the planner find one.
    with pytest.raises(ParameterError, match="coarsest grid"):
        plan(**asked)


def test_counts_beyond_the_samplers_get_no_suggested_grid():
    """Whole numbers have one grid."""
    asked = {"clients": 2, "dimension": 24_467, "max_nonzero": 24_467, "steps": 49}
    asked |= {"epsilon": 0.067, "delta": 4e-5, "mechanism": "skellam-counts"}
    assert advice("epsilon", **asked) is None
    assert plan(**asked | {"epsilon": 1.0}).epsilon_server <= 1.0


def test_for_a_grid_that_keeps_nothing_a_finer_one_is_suggested():
    asked = VECTORS | {
        "clients": 229,
        "dimension": 1,
        "l2_clip": 5.805310631901308,
        "mechanism": "discrete-gaussian",
        "scale_factor": 0.07,
    }
    finer = float(advice("scale_factor", **asked))
    assert plan(**asked | {"scale_factor": finer}).parameters.scale_factor == finer


def test_two_clients_are_told_to_assume_no_colluders():
    asked = VECTORS | {"clients": 2, "dimension": 118}
    assert advice("colluder_fraction", **asked, colluder_fraction=0.03) == "0"
    assert plan(**asked, colluder_fraction=0.0).epsilon_server <= 1.0


@pytest.mark.parametrize(
    "asked",
    [
        {"scale_factor": 1884.0, "mechanism": "skellam", "accountant": "lattice-pld"},
        {"steps": 100, "accountant": "mixture-contour"},
    ],
)
def test_an_error_of_a_theorem_names_the_arguments_of_the_caller(asked):
    """Its own parameters are those of a release, which no user has typed."""
    asked = VECTORS | {"clients": 100, "dimension": 4096} | asked
    with pytest.raises(TheoremNotApplicableError, match="name no accountant") as caught:
        plan(**asked)
    assert (caught.value.parameter, caught.value.nearest) == ("accountant", None)
    assert plan(**asked | {"accountant": None}).epsilon_server <= 1.0


def test_a_plan_continues_after_noise_too_small_to_clamp():
    made = plan(
        **VECTORS | {"delta": 4.6e-11, "epsilon": 1.41},
        clients=45,
        dimension=615_154,
        selection_rate=Fraction(1, 600),
        scale_factor=1.54,
        linf_bound=Fraction(15041, 1024),
    )
    assert made.epsilon_server <= 1.41


def test_a_loss_fraction_without_effect_is_noted():
    asked = VECTORS | {"clients": 100, "dimension": 64, "loss_fraction": 0.3}
    assert any("no effect" in note for note in plan(**asked).notes)
    tolerant = plan(**asked, min_survivors=70)
    assert not any("no effect" in note for note in tolerant.notes)
