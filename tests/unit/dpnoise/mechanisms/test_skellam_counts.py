"""Whole numbers with noise: what is clamped, what is released, what it costs."""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.accounting import make_accountant
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.errors import InputError, ParameterError
from dpnoise.events import Adjacency, Adversary
from dpnoise.mechanisms import MechanismParameters, make_mechanism
from dpnoise.mechanisms.skellam_counts import counts_norm
from dpnoise.planning import plan
from dpnoise.samplers import skellam_table

DELTA = 1e-5
PUBLIC = bytes(32)


@functools.cache
def planned(**changes):
    given = {
        "clients": 20,
        "dimension": 6,
        "mechanism": "skellam-counts",
        "max_nonzero": 1,
        "epsilon": 1.0,
        "delta": DELTA,
    }
    return plan(**(given | changes))


@functools.cache
def real():
    return plan(
        clients=20,
        dimension=4,
        l2_clip=1.0,
        epsilon=1.0,
        delta=DELTA,
        mechanism="skellam",
        scale_factor=16.0,
    )


def counting(**changes):
    return make_mechanism(planned(**changes).parameters)


def noise_of(chosen, index):
    """What the private seed of a client adds, drawn again."""
    drawn = np.zeros(chosen.encoded_dim, np.int64)
    table = skellam_table(chosen.session(20).base)
    table.add_to(drawn, bytes([index]) * 32, b"dpnoise/v1/noise")
    return drawn


def encoded(chosen, vector, index=1):
    return chosen.encode(
        np.asarray(vector),
        private_seed=bytes([index]) * 32,
        public_seed=PUBLIC,
        session_noise=chosen.session(20),
    ).residues


def without_noise(chosen, vector):
    """The whole numbers that are left of a vector, its noise taken off again."""
    residues = encoded(chosen, vector).astype(np.int64)
    steps = (residues - noise_of(chosen, 1)) % chosen.modulus
    return np.where(steps > chosen.modulus // 2, steps - chosen.modulus, steps).tolist()


def test_a_vector_within_the_bounds_is_released_unchanged():
    assert without_noise(counting(), [0, 0, 1, 0, 0, 0]) == [0, 0, 1, 0, 0, 0]
    votes = counting(max_nonzero=6, signed=True)
    assert without_noise(votes, [1, -1, 0, 0, -1, 1]) == [1, -1, 0, 0, -1, 1]


@pytest.mark.parametrize(
    ("bounds", "vector", "left"),
    [
        ({}, [-1, 0, 7, 0, 1, 0], [0, 0, 1, 0, 0, 0]),
        ({"signed": True}, [-4, 0, 7, 0, 1, 0], [-1, 0, 0, 0, 0, 0]),
        ({"max_nonzero": 2, "linf_bound": 3}, [0, 5, 2, 0, 1, 0], [0, 3, 2, 0, 0, 0]),
        ({"linf_bound": 3}, [1e300, 0, 0, 0, 0, -1e300], [3, 0, 0, 0, 0, 0]),
    ],
)
def test_values_beyond_the_bounds_are_clamped(bounds, vector, left):
    assert without_noise(counting(**bounds), vector) == left


def test_every_small_vector_satisfies_the_bounds_of_the_event():
    chosen = counting(dimension=3, max_nonzero=2, linf_bound=2)
    event = chosen.event()
    assert event.unsigned
    for vector in itertools.product((-3, 0, 1, 2, 3), repeat=3):
        left = np.array(without_noise(chosen, vector))
        assert left.min() >= 0
        assert left.max() <= event.linf_sensitivity == 2
        assert left.sum() <= event.l1_sensitivity == 4.0
        assert (left**2).sum() <= event.l2_squared == 8


@pytest.mark.parametrize(
    ("vector", "complaint"),
    [
        ([0, 0.5, 0, 0, 0, 0], "integer entries"),
        ([0, math.nan, 0, 0, 0, 0], "NaN"),
        ([0, math.inf, 0, 0, 0, 0], "infinite"),
        ([0, 1], "shape"),
    ],
)
def test_a_bad_vector_is_refused_and_not_shown(vector, complaint):
    with pytest.raises(InputError, match=complaint):
        encoded(counting(), vector)


def test_the_decoded_sum_is_the_sum_plus_the_noise():
    chosen = counting()
    total = np.zeros(6, np.uint64)
    expected = np.zeros(6, np.int64)
    for index in range(20):
        vector = np.eye(6)[index % 3]
        total += encoded(chosen, vector, index)
        expected += vector.astype(np.int64) + noise_of(chosen, index)
    found = chosen.decode(total % np.uint64(chosen.modulus), public_seed=PUBLIC)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("max_nonzero", [1, 2, 8, 32])
def test_few_counts_need_no_more_noise_than_the_central_gaussian(max_nonzero):
    made = planned(dimension=32, max_nonzero=max_nonzero)
    central = max_nonzero * analytic_gaussian_stddev(1.0, DELTA, 1.0) ** 2
    assert made.accountant == "lattice-pld"
    assert made.noise_variance <= Fraction(central) * 1001 / 1000
    assert made.epsilon_server <= 1.0
    assert make_mechanism(made.parameters).event().l2_squared == max_nonzero


@pytest.mark.parametrize(
    ("dimension", "signed", "squared"),
    [
        (32, False, 6.0),  # three ones here, three there
        (5, False, 5.0),  # which overlap
        (3, False, 3.0),  # all of them, or none
        (32, True, 12.0),  # the same three, below 0 instead of above
    ],
)
def test_the_reference_gaussian_of_replaced_counts_uses_the_replace_one_distance(
    dimension, signed, squared
):
    made = planned(
        dimension=dimension,
        max_nonzero=3,
        signed=signed,
        adjacency=Adjacency.REPLACE_ONE,
    )
    central = squared * analytic_gaussian_stddev(1.0, DELTA, 1.0) ** 2
    assert made.gaussian_mse == pytest.approx(central, rel=1e-12)
    assert 0.9 < made.noise_overhead < 1.001


def test_one_count_needs_the_noise_of_the_lattice_accountant():
    made = planned(dimension=1)
    assert float(made.noise_variance) == pytest.approx(11.0763, rel=1e-4)
    assert made.count_standard_error == pytest.approx(
        math.sqrt(made.forecast.noise_mse)
    )
    assert "standard error of one count" in str(made)
    assert made.to_dict()["count_standard_error"] == made.count_standard_error


def test_secret_selection_adds_to_the_error_of_a_count():
    made = planned(selection_rate=Fraction(1, 4))
    # Of twenty ones each is there with chance 1/4 and counts four times: variance 3.
    expected = 16 * made.forecast.noise_mse + 20 * 3
    assert made.count_standard_error == pytest.approx(math.sqrt(expected))


def test_a_plan_of_real_vectors_prints_no_error_of_counts():
    made = real()
    assert made.count_standard_error is None
    assert "count" not in {label for label, _ in made.table()}


def test_replacing_one_person_counts_as_two_unit_changes():
    moved = planned(adjacency=Adjacency.REPLACE_ONE)
    assert float(moved.noise_variance) == pytest.approx(26.289, rel=1e-4)
    signed = planned(adjacency=Adjacency.REPLACE_ONE, signed=True)
    assert signed.noise_variance > 1.8 * moved.noise_variance


def test_claiming_three_percent_less_noise_exceeds_the_budget():
    made = planned()
    thinner = dataclasses.replace(
        made.parameters.noise_rule,
        counted_variance=made.parameters.noise_rule.counted_variance
        * Fraction(97, 100),
    )
    weak = dataclasses.replace(made.parameters, noise_rule=thinner)
    account = make_accountant(made.accountant, adversary=Adversary.SERVER)
    assert account.compose(make_mechanism(weak).event()).epsilon(DELTA) > 1.01


def test_the_modulus_holds_all_clients_in_one_bucket_plus_noise():
    made = planned(clients=1000)
    half, largest = made.parameters.modulus // 2, 1000
    assert half > largest
    assert made.forecast.wrap_mse <= 0.05 * made.forecast.noise_mse
    assert made.forecast.wrap_probability < 1e-6
    with pytest.raises(ParameterError) as caught:
        planned(clients=1000, bits=10)
    assert planned(clients=1000, bits=int(caught.value.nearest)).parameters.bits > 10


def test_parameters_survive_a_configuration():
    chosen = counting(max_nonzero=2, linf_bound=2, signed=True)
    again = MechanismParameters.from_dict(chosen.parameters.to_dict())
    assert again == chosen.parameters
    assert chosen.parameters.signed
    assert chosen.parameters.max_nonzero == 2


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("rotation", "hadamard", "none"),
        ("scale_factor", 2.0, "1.0"),
        ("clip_flag_amplitude", 0.5, "0.0"),
        ("l2_clip", 1.5, "1.0"),
        ("linf_bound", Fraction(3, 2), "1"),
        ("linf_bound", None, "1"),
        ("max_nonzero", None, "6"),
        ("max_nonzero", 7, "6"),
        ("signed", 1, "false"),
    ],
)
def test_settings_that_counts_do_not_support_are_rejected(field, value, nearest):
    with pytest.raises(ParameterError) as caught:
        make_mechanism(dataclasses.replace(planned().parameters, **{field: value}))
    assert caught.value.parameter == field
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(("field", "value"), [("max_nonzero", 2), ("signed", True)])
def test_other_mechanisms_reject_the_bounds_of_counts(field, value):
    made = real()
    with pytest.raises(ParameterError, match="skellam-counts"):
        make_mechanism(dataclasses.replace(made.parameters, **{field: value}))


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"max_nonzero": None}, "max_nonzero"),
        ({"max_nonzero": 7}, "max_nonzero"),
        ({"linf_bound": 0}, "linf_bound"),
        ({"linf_bound": 1.5}, "l2_clip"),
        ({"l2_clip": 3.0}, "l2_clip"),
        ({"scale_factor": 2.0}, "scale_factor"),
    ],
)
def test_a_request_that_cannot_be_counted_is_refused(changes, parameter):
    with pytest.raises(ParameterError) as caught:
        planned(**changes)
    assert caught.value.parameter in {parameter, "linf_bound"}


@pytest.mark.parametrize("count", [2, 3, 6, 7, 12, 99, 10**6])
def test_the_norm_is_never_below_its_exact_square(count):
    norm = Fraction(counts_norm(3, count))
    assert 9 * count <= norm**2 < 9 * count * (1 + Fraction(1, 1 << 50))
