"""Numbers on a known side of the truth: as floats, and as people read them."""

import math
from fractions import Fraction

import pytest

from dpnoise.accounting import PrivacyStatement
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import Adjacency, Adversary
from dpnoise.floats import float_above, float_below, text_above


@pytest.mark.parametrize("number", [Fraction(1, 3), Fraction(2, 3), Fraction(1, 10)])
def test_the_two_floats_beside_a_rational(number):
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
def test_what_is_printed_of_a_bound_is_never_below_it(number, digits, text):
    assert text_above(number, digits) == text


def test_a_statement_prints_no_figure_that_is_too_small():
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
