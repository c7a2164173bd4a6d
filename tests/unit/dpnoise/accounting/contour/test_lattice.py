"""The Skellam window: floats against an independent library, tails against sums."""

import math

import mpmath
import numpy as np
import pytest

from dpnoise.accounting.contour.lattice import ContourLattice
from dpnoise.errors import CertificateError, ParameterError, TheoremNotApplicableError

REACH = 120


def exact_log_weight(y, variance):
    with mpmath.workdps(40):
        return mpmath.log(mpmath.besseli(y, mpmath.mpf(variance))) - variance


@pytest.mark.parametrize("variance", [2.0**-10, 0.3, 5.0, 227.5, 3000.0])
def test_weights_and_ratios_agree_with_bessel_functions(variance):
    lattice = ContourLattice.build(variance, REACH + int(14 * variance**0.5))
    for y in (0, 1, 2, 17, REACH):
        exact = exact_log_weight(y, variance)
        allowed = 2.0**-52 * (4 + 2 * abs(float(exact)))
        assert abs(float(lattice.log_weights[y] - exact)) <= allowed
        with mpmath.workdps(40):
            ratio = mpmath.exp(exact_log_weight(y + 1, variance) - exact)
            assert abs(float(lattice.ratios[y] / ratio - 1)) <= 2.0**-52


def test_weights_on_both_sides_add_up_to_one():
    lattice = ContourLattice.build(227.5, 400)
    y = np.arange(-400.0, 401.0)
    assert math.fsum(np.exp(lattice.log_weight(y))) == pytest.approx(1.0, abs=1e-13)


def test_shift_ratios_are_quotients_of_weights_on_both_sides_of_zero():
    lattice = ContourLattice.build(7.0, 80)
    y = np.arange(-50.0, 51.0)
    for shift, ratio in enumerate(lattice.shift_ratios(y, 3)):
        expected = lattice.log_weight(y - shift) - lattice.log_weight(y)
        np.testing.assert_allclose(np.log(ratio), expected, atol=1e-11)


@pytest.mark.parametrize(
    ("variance", "exponent", "shift"),
    [(0.5, 3.0, 1), (30.0, 0.0, 1), (30.0, 9.0, 2), (227.5, 16.0, 1)],
)
def test_tail_bounds_exceed_the_tails_without_being_vacuous(variance, exponent, shift):
    lattice = ContourLattice.build(variance, 1000)
    bounds = np.exp(lattice.log_tail_bounds(exponent=exponent, shift=shift)[:400])
    y = np.arange(0.0, 900.0)
    right = np.exp(
        lattice.log_weight(y) + exponent * np.log(lattice.shift_ratios(y, shift)[shift])
    )
    left = np.exp(
        lattice.log_weight(-y)
        - exponent * np.log(lattice.shift_ratios(-y, shift)[shift])
    )
    for terms in (right, left):
        tails = np.cumsum(terms[::-1])[::-1][1:401]
        assert np.all(bounds >= tails)
    mean = round(exponent * shift + 5 * math.sqrt(variance)) + 3
    ratio = bounds[mean] / np.cumsum(left[::-1])[::-1][mean + 1]
    assert ratio < 100.0


@pytest.mark.parametrize(
    ("variance", "exponent", "largest"),
    [
        (59.0, 3400.0, 0.0005),
        (59.0, -3400.0, 0.0005),
        (4.5, 12.0, 0.25),
        (4.5, -12.0, 0.9),
        (0.5, 2.0, 0.999),
        (200.0, 400.0, 0.5),
        (200.0, 4000.0, 0.02),
    ],
)
def test_tails_of_coordinates_below_one_step_are_bounded(variance, exponent, largest):
    lattice = ContourLattice.build(variance, 1500)
    right, left = lattice.log_tails(exponent=exponent, largest=largest)
    y = np.arange(0.0, 1400.0)
    for sign, logs in ((1.0, right), (-1.0, left)):
        shifted = lattice.shift_ratios(sign * y, 1)[1]
        weight = lattice.log_weight(y)
        change = shifted - 1.0
        with np.errstate(divide="ignore"):
            size = np.log(np.abs(change))
        for part in (1e-6, 0.3, 0.9, 1.0):
            ratio = np.log1p(part * largest * change)
            for terms in (
                weight + exponent * ratio,
                weight + size,
                weight + 4.0 * size + (exponent - 4.0) * ratio,
            ):
                tails = np.logaddexp.accumulate(terms[::-1])[::-1][1:300]
                assert np.all(logs[:299] >= tails - 1e-9)


def test_windows_of_coordinates_below_one_step_are_narrow():
    lattice = ContourLattice.build(59.0, 1500)
    for exponent in (3400.0, -3400.0):
        # Whole steps would ask for some 3400 integers.
        for logs in lattice.log_tails(exponent=exponent, largest=0.0005):
            assert logs[150] < -55.0


def test_variances_outside_the_tables_are_refused_with_the_nearest_one():
    for variance in (2.0**-11, 2.0**27):
        with pytest.raises(TheoremNotApplicableError) as caught:
            ContourLattice.build(variance, 100)
        assert caught.value.parameter == "aggregate_noise_variance"
        nearest = float(caught.value.nearest)
        reach = 64 + int(10 * nearest**0.5)
        assert ContourLattice.build(nearest, reach).noise_variance == nearest


def test_windows_that_miss_mass_are_rejected_instead_of_renormalised():
    with pytest.raises(CertificateError, match="misses mass"):
        ContourLattice.build(3000.0, 200)


def test_windows_that_are_too_wide_are_rejected():
    with pytest.raises(ParameterError, match="integers per side"):
        ContourLattice.build(1.0, 1 << 20)
