"""Numbers on a known side of the truth: as floats, and as people read them."""

import math
from fractions import Fraction

import pytest

from dpnoise.accounting import PrivacyStatement
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import Adjacency, Adversary
from dpnoise.floats import (
    float_above,
    float_below,
    plus_minus,
    sqrt_above,
    text_above,
    text_between,
)


@pytest.mark.parametrize("number", [Fraction(1, 3), Fraction(2, 3), Fraction(1, 10)])
def test_the_neighbouring_floats_enclose_a_rational(number):
    assert Fraction(float_below(number)) <= number <= Fraction(float_above(number))
    assert math.nextafter(float_below(number), 2.0) == float_above(number)


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (1.2449, 2, "1.3"),
        (0.123449, 4, "0.1235"),
        (0.99991, 4, "1"),
        (9.9991, 3, "10"),
        (1.00000001, 4, "1.001"),
        (3 * 0.1, 4, "0.3"),  # a sum of floats, not a promise
        (1e-5, 3, "1e-05"),
        (1.0049e-5, 3, "1.01e-05"),
        (123456.0, 2, "1.3e+05"),
        (8.0, 4, "8"),
        (0.0, 4, "0"),
        (math.inf, 4, "inf"),
    ],
)
def test_a_printed_bound_is_rounded_up(number, digits, text):
    assert text_above(number, digits) == text


def test_a_statement_rounds_its_figures_up():
    stated = PrivacyStatement(
        epsilon=1.00049,
        delta=1.004e-5,
        accountant="skellam-gdp",
        status=Status.CERTIFIED,
        proof=Proof.OWN,
        adversary=Adversary.SERVER,
        adjacency=Adjacency.ZERO_OUT,
    )
    assert stated.figures() == "epsilon 1.001, delta 1.01e-05"
    assert stated.figures(added_delta=1e-6) == "epsilon 1.001, delta 1.11e-05"


@pytest.mark.parametrize("number", [0, 4, 2, Fraction(1, 3), 10**300, Fraction(1, 7)])
def test_a_square_root_is_rounded_up_to_the_next_float(number):
    root = sqrt_above(Fraction(number))
    assert Fraction(root) ** 2 >= number
    assert root == 0 or Fraction(math.nextafter(root, 0.0)) ** 2 < number


@pytest.mark.parametrize(
    ("values", "error", "texts"),
    [
        ([9.9612, -10.4], 1.341, ("9.96 ± 1.35", "-10.40 ± 1.35")),
        ([1234.5], 255.2, ("1234 ± 256",)),
        ([0.5], 0.000123, ("0.500000 ± 0.000123",)),
        ([1.0], 0.9999, ("1.000 ± 1.000",)),
        ([5.0], 31234.0, ("5 ± 31300",)),
        ([5.0], 3.1e9, ("5 ± 3.1e+09",)),
        ([12345678, 0.5], 0.0, ("12345678", "0.5")),
    ],
)
def test_a_value_is_printed_with_its_error_rounded_up(values, error, texts):
    assert plus_minus(values, error) == texts


@pytest.mark.parametrize(
    ("lowest", "highest", "text"),
    [
        (38.714, 48.751, "38.7 to 48.8"),
        (-0.0123, 0.0456, "-0.0123 to 0.0456"),
        (-1.23456, -1.2, "-1.2346 to -1.2000"),
        (-3.0, 14.0, "-3 to 14"),
        (2.0, 2.0, "2 to 2"),
        (1.5, math.inf, "1.5 to inf"),
    ],
)
def test_an_interval_is_rounded_outwards(lowest, highest, text):
    assert text_between(lowest, highest) == text
