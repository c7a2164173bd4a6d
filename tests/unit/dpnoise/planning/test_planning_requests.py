"""What a plan refuses, and how it says so."""

import math
from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.events import Adjacency, Adversary
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import PlanRequest, plan

GOOD = {
    "clients": 100,
    "dimension": 1000,
    "l2_clip": 1.0,
    "epsilon": 1.0,
    "delta": 1e-5,
    "bits": 16,
    "mechanism": "skellam",
    "accountant": "skellam-paper",
}


@pytest.mark.parametrize(
    ("parameter", "value", "nearest"),
    [
        ("clients", 1, "2"),
        ("clients", 2.5, None),
        ("dimension", 0, "1"),
        ("l2_clip", 0.0, "any number above 0, such as 1.0"),
        ("l2_clip", -3.0, "any number above 0, such as 1.0"),
        ("l2_clip", math.nan, None),
        ("l2_clip", 1e300, repr(2.0**256)),
        ("l2_clip", 1e-300, repr(2.0**-256)),
        ("sum_l2_norm", 1e300, repr(2.0**256)),
        ("l2_clip", math.inf, None),
        ("epsilon", 0.0, "any number above 0, such as 1.0"),
        ("epsilon", -1.0, "any number above 0, such as 1.0"),
        ("epsilon", math.nan, "any number above 0, such as 1.0"),
        ("epsilon", math.inf, "10000.0"),
        ("delta", 0.0, "any number above 0, such as 1e-06"),
        ("delta", 1.0, "any number below 1, such as 1e-06"),
        ("delta", math.nan, "any number below 1, such as 1e-06"),
        ("bits", 0, "1"),
        ("bits", 63, "62"),
        ("scale_factor", 0.0, "any number above 0, such as 1.0"),
        ("scale_factor", math.nan, None),
        ("steps", 0, "1"),
        ("sampling_rate", 0.0, "any number above 0, such as 0.01"),
        ("sampling_rate", 1.5, "1.0"),
        ("sampling_rate", math.nan, None),
        ("selection_rate", 0.0, "any number above 0, such as 0.01"),
        ("selection_rate", 1e-9, "any number above 0, such as 1/10"),
        ("selection_rate", 1.5, "1.0"),
        ("selection_rate", Fraction(3, 2), "1"),
        ("selection_rate", Fraction(1, 1_000_001), "1/1000000"),
        ("colluders", -1, "0"),
        ("colluders", 99, "98"),
        ("min_survivors", 1, "2"),
        ("min_survivors", 101, "100"),
        ("mechanism", "skelam", "skellam"),
        ("accountant", "skellam-gpd", "skellam-gdp"),
        ("rotation", "hadmard", "hadamard"),
        ("adjacency", "zero-out", "Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE"),
        ("clip_flag_amplitude", -1.0, "0.0"),
        ("sum_l2_norm", 0.0, "any number above 0, such as 1.0"),
        ("sum_l2_failure", 1e-6, "0.0"),  # of no stated sum
        ("sum_l2_failure", math.nan, None),
        ("max_wrap_probability", 0.0, "any number above 0, such as 0.01"),
        ("rounding_bias", 1.0, "0.9999999999999999"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_the_nearest_that_does(
    parameter, value, nearest
):
    with pytest.raises(ParameterError) as caught:
        plan(**(GOOD | {parameter: value}))
    assert caught.value.parameter == parameter
    if nearest is not None:
        assert caught.value.nearest == nearest


@pytest.mark.parametrize("mechanism", ["skellam-mixture", "smm"])
def test_randomly_rounded_vectors_give_no_replace_one_guarantee(mechanism):
    asked = {"mechanism": mechanism, "accountant": None}
    with pytest.raises(ParameterError, match="hard bounds") as caught:
        plan(**(GOOD | asked | {"adjacency": Adjacency.REPLACE_ONE}))
    assert caught.value.nearest == "zero-out, or the mechanism skellam"


def test_survivors_must_outnumber_colluders_by_two():
    with pytest.raises(ParameterError) as caught:
        plan(**(GOOD | {"colluders": 30, "min_survivors": 31}))
    assert caught.value.parameter == "min_survivors"
    assert caught.value.nearest == "32"


def test_counted_shares_exclude_losses_colluders_and_the_client_itself():
    request = PlanRequest(**(GOOD | {"colluders": 10, "min_survivors": 80}))
    assert request.counted_shares == 69
    # Losses are tolerated, so a base and five layers are drawn by default.
    assert request.sent_draws == 600
    assert PlanRequest(**GOOD).sent_draws == 100
    assert request.surplus_factor == pytest.approx(100 / 69)
    assert PlanRequest(**GOOD).counted_shares == 99


@pytest.mark.parametrize("parameter", ["mechanism", "accountant"])
def test_an_error_shows_the_given_value(parameter):
    with pytest.raises(ParameterError, match="got 'skellam_x'") as caught:
        PlanRequest(**(GOOD | {parameter: "skellam_x"}))
    assert caught.value.value == "skellam_x"
    assert caught.value.nearest.startswith("skellam")


def test_the_failure_probability_of_the_sum_norm_counts_as_wrapping():
    told = GOOD | {"sum_l2_norm": 10.0, "mechanism": "skellam", "scale_factor": 4.0}
    told |= {"bits": 16}
    sure = plan(**told).forecast
    given = plan(**told, sum_l2_failure=1e-3).forecast
    assert given.wrap_probability == pytest.approx(sure.wrap_probability + 1e-3)
    more = given.expected_wrapped_coordinates - sure.expected_wrapped_coordinates
    assert more == pytest.approx(
        1e-3 * make_mechanism(plan(**told).parameters).encoded_dim
    )
    assert given.expected_mse == sure.expected_mse
    # It is a part of what wrapping is allowed, and never all of it.
    with pytest.raises(ParameterError, match="part of max_wrap_probability"):
        plan(**told, sum_l2_failure=0.01)


def test_only_central_noise_is_calibrated_for_model_readers():
    assert PlanRequest(**GOOD).calibrated_for is Adversary.SERVER
    central = PlanRequest(**(GOOD | {"mechanism": "discrete-gaussian"}))
    assert central.calibrated_for is Adversary.MODEL_READER


def test_a_delta_too_small_for_the_samplers_suggests_a_valid_one():
    asked = {"clients": 10, "dimension": 16, "l2_clip": 1.0, "epsilon": 3.0}
    with pytest.raises(ParameterError, match="finite samplers") as refused:
        plan(**asked, delta=1e-40)
    nearest = float(refused.value.nearest)
    assert 0.0 < plan(**asked, delta=nearest).epsilon_server <= 3.0


def test_counts_without_max_nonzero_name_the_missing_argument():
    with pytest.raises(
        ParameterError, match="max_nonzero, the number of entries"
    ) as no:
        PlanRequest(
            clients=10,
            dimension=16,
            epsilon=1.0,
            delta=1e-5,
            mechanism="skellam-counts",
        )
    assert no.value.nearest.startswith("1")
