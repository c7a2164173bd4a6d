"""Parameters of the laws: what is refused, and what works instead."""

from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.samplers import binomial_table, discrete_gaussian_table, skellam_table
from tests.table_laws import discrete_laplace_table, poisson_table

RATIONAL = [
    (skellam_table, "noise_variance"),
    (discrete_gaussian_table, "variance_parameter"),
    (discrete_laplace_table, "decay_rate"),
    (poisson_table, "poisson_rate"),
]


@pytest.mark.parametrize(("build", "name"), RATIONAL)
@pytest.mark.parametrize("value", [0, -1, Fraction(-1, 3), Fraction(1, 10**9), 1 << 40])
def test_values_out_of_range_are_refused_with_the_nearest_limit(build, name, value):
    with pytest.raises(ParameterError, match=name) as caught:
        build(value)
    assert caught.value.parameter == name
    assert caught.value.value == value
    nearest = Fraction(caught.value.nearest)
    assert abs(nearest - value) == min(
        abs(limit - value) for limit in _limits(caught.value)
    )


@pytest.mark.parametrize(("build", "name"), RATIONAL)
@pytest.mark.parametrize("value", [1.0, float("nan"), "1", None, True, 1 + 0j])
def test_anything_but_an_exact_rational_is_refused(build, name, value):
    with pytest.raises(ParameterError, match="exact rational") as caught:
        build(value)
    assert caught.value.parameter == name


def test_a_float_is_rejected_with_its_exact_fraction():
    with pytest.raises(ParameterError, match=r"Fraction\(2\.5\)"):
        skellam_table(2.5)


def test_a_rational_with_too_many_digits_is_rejected_without_showing_it():
    long = 1 + Fraction(1, (1 << 5000) + 1)
    with pytest.raises(ParameterError, match="4096 bits"):
        skellam_table(long)
    with pytest.raises(ParameterError, match="a rational of 20001 bits"):
        skellam_table(1 << 20_000)
    with pytest.raises(ParameterError, match="an integer of 20001 bits"):
        binomial_table(1 << 20_000)


@pytest.mark.parametrize("value", [0, -2, (1 << 30) + 2])
def test_a_number_of_trials_out_of_range_is_refused(value):
    with pytest.raises(ParameterError, match="num_trials must be between") as caught:
        binomial_table(value)
    assert caught.value.nearest in {"2", str(1 << 30)}


def test_an_odd_number_of_trials_is_refused_with_an_even_one():
    with pytest.raises(ParameterError, match="even") as caught:
        binomial_table(7)
    assert caught.value.nearest == "8"
    for value in (2.0, Fraction(4), True):
        with pytest.raises(ParameterError, match="must be an int"):
            binomial_table(value)


def _limits(error):
    text = str(error)
    inside = text[text.index("[") + 1 : text.index("]")]
    return [Fraction(part) for part in inside.split(", ")]
