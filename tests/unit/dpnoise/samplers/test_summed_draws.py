"""Noise too wide for one table, against the laws it claims, with tables made small."""

from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.errors import ParameterError
from dpnoise.samplers import binomial_sampler, skellam_sampler
from dpnoise.samplers import summed_draws as added_draws
from dpnoise.samplers.binomial import binomial_table
from dpnoise.samplers.skellam import skellam_table

SEED = bytes(range(32))
COUNT = 200_000


@pytest.fixture
def small_tables(monkeypatch):
    monkeypatch.setattr(added_draws, "MAX_TABLE_VARIANCE", Fraction(4))
    monkeypatch.setattr(added_draws, "MAX_ADDED_VARIANCE", Fraction(64))
    monkeypatch.setattr(added_draws, "MAX_NUM_TRIALS", 16)
    monkeypatch.setattr(added_draws, "MAX_ADDED_TRIALS", 256)
    added_draws._skellam.cache_clear()
    yield
    added_draws._skellam.cache_clear()


def drawn(sampler, seed=SEED):
    found = np.zeros(COUNT, np.int64)
    sampler.add_to(found, seed, b"noise")
    return found


def chance(found, law):
    """Return Pearson's probability of draws as far from a law, cells of 50 and more."""
    reach = np.arange(found.min(), found.max() + 1)
    expected = COUNT * law.pmf(reach)
    kept = expected >= 50
    seen = np.array([np.count_nonzero(found == each) for each in reach[kept]])
    rest = COUNT - expected[kept].sum(), COUNT - seen.sum()
    square = ((seen - expected[kept]) ** 2 / expected[kept]).sum()
    square += (rest[1] - rest[0]) ** 2 / rest[0]
    return scipy.stats.chi2.sf(square, kept.sum())


SMALL = pytest.mark.usefixtures("small_tables")


# False alarms: once in 10^6 for each, and seeds are fixed.
@SMALL
def test_added_skellam_draws_have_the_law_of_the_sum():
    sampler = skellam_sampler(Fraction(23, 2))
    assert len(sampler.tables) == 4
    assert sampler.variance == Fraction(23, 2)
    found = drawn(sampler)
    assert chance(found, scipy.stats.skellam(23 / 4, 23 / 4)) > 1e-6
    # The same draw four times, and a share less, are other laws.
    once = np.zeros(COUNT, np.int64)
    sampler.tables[0].add_to(once, SEED, b"noise/\x00")
    assert chance(4 * once, scipy.stats.skellam(23 / 4, 23 / 4)) < 1e-9
    less = np.zeros(COUNT, np.int64)
    for index in range(3):
        sampler.tables[0].add_to(less, SEED, b"noise/" + bytes([index]))
    assert chance(less, scipy.stats.skellam(23 / 4, 23 / 4)) < 1e-9


@SMALL
def test_added_rounding_bits_have_the_law_of_the_sum():
    sampler = binomial_sampler(46)
    assert [int(4 * table.variance) for table in sampler.tables] == [16, 16, 14]
    assert sampler.variance == Fraction(46, 4)
    assert chance(drawn(sampler), scipy.stats.binom(46, 0.5, loc=-23)) > 1e-6


@SMALL
def test_narrow_noise_comes_from_its_table_alone():
    assert skellam_sampler(4) is skellam_table(4)
    assert binomial_sampler(16) is binomial_table(16)


@SMALL
def test_laws_without_a_sampler_are_rejected():
    for ask, value in (
        (skellam_sampler, Fraction(65)),
        (binomial_sampler, 258),
        (binomial_sampler, 47),
        (skellam_sampler, 5.0),
    ):
        with pytest.raises(ParameterError):
            ask(value)


@SMALL
def test_draws_can_start_anywhere_and_depend_on_seed_and_law():
    sampler = skellam_sampler(10)
    whole, tail = drawn(sampler), np.zeros(500, np.int64)
    sampler.add_to(tail, SEED, b"noise", start=COUNT - 500)
    assert np.array_equal(whole[-500:], tail)
    assert not np.array_equal(whole, drawn(sampler, seed=bytes(32)))
    assert sampler.digest != skellam_sampler(11).digest
    assert sampler.digest not in {table.digest for table in sampler.tables}
    one = sampler.tables[0].distance_bound
    assert 4 * one <= sampler.distance_bound < 4.001 * one


def test_the_widest_share_needs_sixteen_draws():
    assert added_draws.MAX_ADDED_VARIANCE == 16 * 2**28
    assert added_draws.MAX_ADDED_TRIALS == 4 * added_draws.MAX_ADDED_VARIANCE
