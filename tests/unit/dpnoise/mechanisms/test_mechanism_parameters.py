"""The parameter record: canonical, lossless, and strict about every number."""

import dataclasses
import json
import math
from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.mechanisms import MechanismParameters, NoiseRule

GOOD = MechanismParameters(
    mechanism="skellam-mixture",
    dim=10,
    l2_clip=1.5,
    scale_factor=8.0,
    modulus=1 << 16,
    noise_rule=NoiseRule(
        counted_variance=Fraction(7, 4),
        min_survivors=15,
        loss_fraction=Fraction(1, 4),
        colluders=3,
    ),
    num_clients=20,
)


def test_bits_are_the_length_of_the_largest_residue():
    assert GOOD.bits == 16
    assert dataclasses.replace(GOOD, modulus=(1 << 16) + 1).bits == 17
    assert dataclasses.replace(GOOD, modulus=2).bits == 1


def test_the_dictionary_survives_json_without_loss():
    text = json.dumps(GOOD.to_dict())
    assert MechanismParameters.from_dict(json.loads(text)) == GOOD


def test_a_float_survives_json_to_the_last_bit():
    odd = dataclasses.replace(GOOD, l2_clip=0.1 + 0.2, scale_factor=math.pi)
    text = json.dumps(odd.to_dict())
    assert MechanismParameters.from_dict(json.loads(text)) == odd


def test_equal_parameters_give_equal_text_however_their_numbers_were_written():
    entries = GOOD.to_dict()
    entries["l2_clip"] = 2
    entries["noise_rule"]["counted_variance"] = "14/8"
    again = MechanismParameters.from_dict(entries)
    direct = dataclasses.replace(GOOD, l2_clip=2.0)
    assert json.dumps(again.to_dict()) == json.dumps(direct.to_dict())


def test_fields_with_a_default_may_be_missing_and_others_may_not():
    entries = GOOD.to_dict()
    del entries["rounding_bias"]
    assert MechanismParameters.from_dict(entries) == GOOD
    del entries["modulus"]
    with pytest.raises(ParameterError, match="modulus"):
        MechanismParameters.from_dict(entries)


def test_an_unknown_key_is_an_error_with_a_suggestion():
    entries = GOOD.to_dict() | {"modulos": 3}
    with pytest.raises(ParameterError) as caught:
        MechanismParameters.from_dict(entries)
    assert caught.value.parameter == "modulos"
    assert caught.value.nearest == "modulus"


def test_num_clients_below_min_survivors_is_rejected():
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(GOOD, num_clients=14)
    assert (caught.value.parameter, caught.value.nearest) == ("min_survivors", "14")


@pytest.mark.parametrize("noise", [None, [], "noise", 7])
def test_an_invalid_noise_rule_is_rejected(noise):
    with pytest.raises(ParameterError, match="noise"):
        MechanismParameters.from_dict(GOOD.to_dict() | {"noise_rule": noise})


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("mechanism", "skelam", "skellam"),
        ("rotation", "hadamart", "hadamard"),
        ("dim", 0, "1"),
        ("dim", 2.0, None),
        ("dim", True, None),
        ("l2_clip", 0.0, "any number above 0, such as 1.0"),
        ("l2_clip", -1.0, "any number above 0, such as 1.0"),
        ("l2_clip", math.nan, None),
        ("l2_clip", math.inf, None),
        ("l2_clip", "1", None),
        ("scale_factor", math.nan, None),
        ("scale_factor", 1e9, "2.23694e+07"),
        ("modulus", 1, "2"),
        ("modulus", (1 << 62) + 1, str(1 << 62)),
        ("num_clients", 1, "2"),
        ("noise_rule", Fraction(7, 4), None),
        ("rounding_bias", 1.0, "0.9999999999999999"),
        ("rounding_bias", -0.1, "0.0"),
        ("linf_bound", 1, None),
        ("linf_bound", Fraction(0), "1/4096"),
        ("linf_bound", Fraction(1, 4097), "1/4096"),
        ("linf_bound", Fraction(13, 8192), "3/2048"),
        ("linf_bound", Fraction(1 << 26), str(1 << 25)),
        ("clip_flag_amplitude", -1.0, "0.0"),
        ("clip_flag_amplitude", math.inf, None),
    ],
)
def test_a_value_that_cannot_work_is_named_with_the_nearest_that_does(
    field, value, nearest
):
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(GOOD, **{field: value})
    assert caught.value.parameter == field
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_a_huge_integer_is_refused_without_an_overflow_error():
    with pytest.raises(ParameterError, match="l2_clip"):
        dataclasses.replace(GOOD, l2_clip=10**400)


@pytest.mark.parametrize("scale_factor", [1e-9, 1e15])
def test_the_suggested_scale_is_valid(scale_factor):
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(GOOD, l2_clip=1e-6, scale_factor=scale_factor)
    assert caught.value.parameter == "scale_factor"
    nearest = float(caught.value.nearest)
    assert dataclasses.replace(GOOD, l2_clip=1e-6, scale_factor=nearest)
