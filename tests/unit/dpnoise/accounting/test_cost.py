"""The estimate of an accountant's time: what it grows with, and whom it is asked of."""

from fractions import Fraction

import pytest

from dpnoise.accounting import expected_seconds
from dpnoise.events import GaussianEvent, SkellamEvent, SkellamMixtureEvent


def mixture(variance=200, norm=16.0, largest=1.0):
    return SkellamMixtureEvent(65536, Fraction(variance), norm, largest)


@pytest.mark.parametrize("name", ["mixture-contour", "mixture-pld"])
def test_tables_cost_what_noise_and_coordinates_reach(name):
    usual = expected_seconds(mixture(), name)
    assert 0.0 < usual < 10.0
    assert expected_seconds(mixture(variance=1 << 24), name) > 20 * usual
    assert expected_seconds(mixture(norm=1e6, largest=1000.0), name) > 50 * usual
    # A coordinate is never longer than the vector.
    long = expected_seconds(mixture(largest=1000.0), name)
    assert long == expected_seconds(mixture(largest=4.0), name)


def test_what_a_hostile_description_asks_for_takes_minutes():
    for name in ("mixture-contour", "mixture-pld"):
        assert expected_seconds(mixture(1 << 36, 2.0**32, 1024.0), name) > 100.0
    assert expected_seconds(mixture(1 << 30, 2.0**40, 2.0**20), "mixture-rdp") > 1000.0


def test_vectors_far_shorter_than_the_noise_take_long_tails():
    short = mixture(315, 2.5e-7, 1.0)
    assert expected_seconds(short, "mixture-pld") > 60.0
    assert expected_seconds(mixture(315, 0.01, 1.0), "mixture-pld") < 20.0


def test_a_name_that_counts_sampling_takes_as_long():
    for name in ("mixture-pld", "mixture-rdp"):
        assert expected_seconds(mixture(), "hypothetical-" + name) == expected_seconds(
            mixture(), name
        )


def test_the_others_take_no_time_worth_counting():
    integers = SkellamEvent(10, Fraction(1 << 40), 2.0**25, None, 1 << 25)
    for name in ("skellam-gdp", "skellam-rdp", "skellam-paper", "no such name"):
        assert expected_seconds(integers, name) == 0.0
    assert expected_seconds(GaussianEvent(1, 1.0, 1.0), "mixture-pld") == 0.0
    assert expected_seconds(mixture(norm=0.0), "mixture-pld") == 0.0
    assert expected_seconds(integers, "mixture-contour") > 1000.0
