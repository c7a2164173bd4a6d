"""The estimate of an accountant's cost: what it grows with, and whom it is asked of."""

from fractions import Fraction

import pytest

from dpnoise.accounting import MAX_ACCOUNTING_COST, accounting_cost
from dpnoise.events import (
    BinomialEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    SkellamEvent,
    SkellamMixtureEvent,
)


def mixture(variance=200, norm=16.0, largest=1.0):
    return SkellamMixtureEvent(65536, Fraction(variance), norm, largest)


@pytest.mark.parametrize("name", ["mixture-contour", "mixture-pld"])
def test_the_cost_of_tables_grows_with_noise_and_coordinates(name):
    usual = accounting_cost(mixture(), name)
    assert 0.0 < usual < MAX_ACCOUNTING_COST
    assert accounting_cost(mixture(variance=1 << 24), name) > 20 * usual
    assert accounting_cost(mixture(norm=1e6, largest=1000.0), name) > 50 * usual
    # A coordinate is never longer than the vector.
    long = accounting_cost(mixture(largest=1000.0), name)
    assert long == accounting_cost(mixture(largest=4.0), name)


def test_sums_over_orders_cost_less_for_repeated_releases_or_a_large_delta():
    """Their best order falls with both, as that of a Gaussian does."""
    faint = mixture(1 << 20, 16.0, 2.0)
    once = accounting_cost(faint, "mixture-rdp")
    assert accounting_cost(faint, "mixture-rdp", times=10**6) < 0.2 * once
    slight = mixture(1 << 15, 2.0**10, 2.0)
    assert accounting_cost(slight, "mixture-rdp", delta=0.1) < 0.9 * accounting_cost(
        slight, "mixture-rdp"
    )


def test_a_hostile_description_exceeds_the_cost_limit_by_far():
    for name in ("mixture-contour", "mixture-pld"):
        assert (
            accounting_cost(mixture(1 << 36, 2.0**32, 1024.0), name)
            > 50 * MAX_ACCOUNTING_COST
        )
    assert (
        accounting_cost(mixture(1 << 30, 2.0**40, 2.0**20), "mixture-rdp")
        > 500 * MAX_ACCOUNTING_COST
    )


def test_vectors_far_shorter_than_the_noise_are_cheap():
    # No coordinate is longer than the vector, so steep contours need no long windows.
    for norm in (2.5e-7, 0.01):
        spread = mixture(315, norm, 0.02 * norm**0.5)
        assert accounting_cost(spread, "mixture-pld") < MAX_ACCOUNTING_COST


def test_a_coordinate_that_may_hold_the_whole_norm_is_expensive():
    for name in ("mixture-contour", "mixture-pld"):
        spread, whole = mixture(770, 50.0, 7.0), mixture(770, 5000.0, 7.0)
        assert accounting_cost(spread, name) > 3 * accounting_cost(whole, name)


def test_a_hypothetical_accountant_costs_as_much_as_its_base():
    for name in ("mixture-pld", "mixture-rdp"):
        assert accounting_cost(mixture(), "hypothetical-" + name) == accounting_cost(
            mixture(), name
        )


def test_the_cost_of_the_other_accountants_is_zero():
    integers = SkellamEvent(10, Fraction(1 << 40), 2.0**25, None, 1 << 25)
    for name in ("skellam-gdp", "skellam-rdp", "skellam-paper"):
        assert accounting_cost(integers, name) == 0.0
    assert accounting_cost(GaussianEvent(1, 1.0, 1.0), "mixture-pld") == 0.0
    assert accounting_cost(mixture(norm=0.0), "mixture-pld") == 0.0
    assert accounting_cost(integers, "mixture-contour") > 500 * MAX_ACCOUNTING_COST


def test_the_forecast_counts_the_norm_that_the_coordinate_bound_allows():
    cut = SkellamMixtureEvent(8, Fraction(100), 1.7, 1 / 1024)
    short = SkellamMixtureEvent(8, Fraction(100), 8 / 1024**2, 1 / 1024)
    for name in ("mixture-pld", "mixture-contour"):
        assert accounting_cost(cut, name) == accounting_cost(short, name)


def test_an_expensive_sum_over_orders_with_selection_is_rejected_in_advance():
    release = SkellamMixtureEvent(12663, Fraction(7292), 0.0243, 0.1558)
    asked = {"times": 1000, "delta": 1e-14}
    assert accounting_cost(release, "mixture-rdp", **asked) < MAX_ACCOUNTING_COST
    behind = accounting_cost(release, "mixture-rdp", rate=1 / 57630, **asked)
    assert behind > MAX_ACCOUNTING_COST


@pytest.mark.parametrize(
    ("release", "times", "rate", "seconds"),
    [
        ((0.0061, 0.00276, 1.445), 1, 1 / 892, 0.004),  # its best order is the fourth
        ((151_000, 0.264, 0.514), 2, 0.0014, 1.17),
        ((3840, 0.00873, 0.0935), 5, 0.048, 1.13),
        ((3980, 0.063, 0.251), 2381, 0.003, 2.04),
        ((947_000, 13_100, 1.27), 11, 0.012, 2.06),
        ((24.5, 2.71, 1.64), 3, 0.002, 0.18),
    ],
)
def test_orders_with_selection_cost_what_they_were_measured_to_cost(
    release, times, rate, seconds
):
    """A release is its variance, its squared norm and its largest coordinate."""
    found = accounting_cost(
        mixture(*release), "mixture-rdp", times=times, delta=1e-8, rate=rate
    )
    assert 0.8 * seconds < found / 1e9 < 8.0 * seconds + 0.3


def test_long_coordinates_with_noise_below_one_step_are_rejected():
    # No order has a bound there, and each is looked for in 32 cells of 64 parts.
    for variance, norm, largest in (
        (Fraction(19, 1 << 19), 9.5e9, 51.0),
        (Fraction(1801, 1 << 20), 82174.4, 55.04),
    ):
        little = mixture(variance, norm, largest)
        assert accounting_cost(little, "mixture-rdp") > MAX_ACCOUNTING_COST
        enough = mixture(1, norm, largest)
        assert accounting_cost(enough, "mixture-rdp") < MAX_ACCOUNTING_COST


@pytest.mark.parametrize(
    ("variance", "norm", "largest", "seconds"),
    [
        (200, 64.0, 1.0, 0.3),
        (50, 5e-5, 0.001, 0.25),
        (9000, 5.4e-4, 0.0034, 1.3),
        (70_000, 4.4e-6, 1 / 4096, 3.2),  # steep contours, in windows of 5700
        (9_700_000, 0.032, 6 / 4096, 2.3),  # hardly a cell, in windows of 64 000
        (112, 1116.0, 1.58, 0.4),  # twice as many contours, where noise is little
        (770, 50.0, 7.0, 2.7),  # one coordinate may be the vector
        (0.03125, 8e-8, 1 / 4096, 2.0),  # losses of one step or none: many blocks
    ],
)
def test_the_cost_of_a_curve_matches_its_measured_time(
    variance, norm, largest, seconds
):
    found = accounting_cost(mixture(variance, norm, largest), "mixture-pld")
    assert seconds < found / 1e9 < 3.5 * seconds


@pytest.mark.parametrize(
    ("variance", "norm", "largest", "delta", "seconds"),
    [
        (1217, 263.0, 7.0, 1e-5, 0.15),
        (360_000, 59_200.0, 92.0, 1e-5, 1.2),
        (36_000, 59_200.0, 92.0, 1e-5, 0.6),
        (218_000, 40_600.0, 5.38, 1.3e-12, 0.22),
        (3780, 272.0, 15.8, 0.0016, 1.2),  # one coordinate may be the vector
        (100_000, 0.29, 0.37, 6e-6, 1.5),  # next to no loss: many cells near zero
        (72_000_000, 1.7e5, 0.62, 1.4e-5, 0.5),  # a lattice of a quarter of a million
    ],
)
def test_the_cost_of_an_integral_matches_its_measured_time(
    variance, norm, largest, delta, seconds
):
    release = mixture(Fraction(variance), norm, largest)
    found = accounting_cost(release, "mixture-contour", delta=delta)
    assert 0.8 * seconds < found / 1e9 < 5.5 * seconds


def test_an_integral_with_selection_costs_as_much_as_at_its_inner_delta():
    release = mixture(Fraction(2500), 300.0, 7.0)
    behind = accounting_cost(release, "mixture-contour", delta=1e-8, rate=1e-3)
    assert behind == accounting_cost(release, "mixture-contour", delta=1e-8 / 1e-3)
    assert accounting_cost(release, "mixture-contour", delta=0.1, rate=1e-3) < behind


def test_the_cost_of_atoms_is_bounded_and_multiplied_by_multisets():
    ones = SkellamEvent(10, Fraction(5), 3.0, None, 1)
    longer = SkellamEvent(10, Fraction(5), 3.0, None, 3)
    costs = [accounting_cost(each, "lattice-pld") for each in (ones, longer)]
    assert 0.0 < 3 * costs[0] < costs[1] < MAX_ACCOUNTING_COST
    binomial = BinomialEvent(10, 64, 3.0, 9.0, 3)
    gaussian = DiscreteGaussianEvent(10, Fraction(5), 3.0)
    for each in (binomial, gaussian):
        assert accounting_cost(each, "lattice-pld") == costs[1]
    assert accounting_cost(mixture(), "lattice-pld") == 0.0


def test_a_faint_release_concentrated_in_one_coordinate_is_expensive_for_a_curve():
    norm = 1.3975659385323524e-07
    whole = mixture(Fraction(1.467), norm, 1 / 4096)
    assert accounting_cost(whole, "mixture-pld") > MAX_ACCOUNTING_COST
    spread = mixture(Fraction(1.467), 4 * norm, 1 / 4096)
    assert accounting_cost(spread, "mixture-pld") < 0.6 * MAX_ACCOUNTING_COST
