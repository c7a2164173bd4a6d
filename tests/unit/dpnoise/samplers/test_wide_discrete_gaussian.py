"""The block sampler: the law for every block size, floats that never decide wrongly."""

import math
from bisect import bisect_right
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy
from secagg_testing import reference_samplers as reference

from dpnoise.errors import CertificateError, ParameterError
from dpnoise.samplers import (
    BitSource,
    InversionTable,
    discrete_gaussian_sampler,
    wide_discrete_gaussian,
)
from dpnoise.samplers.wide_discrete_gaussian import WideDiscreteGaussian

SEED = bytes(range(32))
FALSE_ALARM = 1e-6


@pytest.mark.parametrize(
    ("variance", "block_bits"),
    [(Fraction(40), 0), (Fraction(40), 1), (Fraction(71, 2), 1), (Fraction(300), 3)],
)
def test_every_block_size_gives_the_discrete_gaussian(variance, block_bits):
    count = 1 << 15
    sampler = WideDiscreteGaussian.with_blocks(variance, block_bits)
    samples = sampler.draw(SEED, b"law", count)
    reach = 2 * math.isqrt(math.ceil(variance))
    pmf = reference.discrete_gaussian_pmf
    cells = range(-reach, reach + 1)
    expected = np.array([float(pmf(k, variance)) for k in cells]) * count
    observed = np.array([np.count_nonzero(samples == k) for k in cells])
    rest = count - expected.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    statistic += (count - observed.sum() - rest) ** 2 / rest
    assert expected.min() > 20
    assert rest > 20
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, len(cells))


def by_hand(sampler, thresholds, label, coordinate):
    """One draw with big integers and high precision, attempt after attempt."""
    size = 1 << sampler.block_bits
    wide = len(thresholds) >= 12_000
    for number in range(100):
        prefix = label + b"/attempt " + str(number).encode()
        refinement = BitSource(SEED, prefix + b"/refinement")
        cells = BitSource(SEED, prefix + b"/cells")
        first, *others = refinement.uint64(4 * coordinate, 4).tolist()
        if wide:
            leading = int(cells.uint32(coordinate, 1)[0]) >> 12
            uniform = (leading << 44) | (first >> 20)
        else:
            uniform = (int(cells.uint16(coordinate, 1)[0]) << 48) | (first >> 16)
        for word in others:
            uniform = (uniform << 64) | word
        block = bisect_right(thresholds, uniform)
        words = BitSource(SEED, prefix + b"/words").uint64(2 * coordinate, 2).tolist()
        offset = words[0] % size
        negative = words[0] >> 63
        k = block * size + offset
        coin = words[1]
        for word in BitSource(SEED, prefix + b"/further").uint64(3 * coordinate, 3):
            coin = (coin << 64) | int(word)
        with mpmath.workdps(120):
            two = 2 * sampler.variance_parameter
            x = Fraction(offset * (2 * block * size + offset)) / two
            keep = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)
            kept = coin < mpmath.floor(keep * mpmath.mpf(2) ** 256)
        if kept and not (negative and k == 0):
            return -k if negative else k
    raise AssertionError("never kept")


@pytest.mark.parametrize(
    ("made", "start"),
    [
        (lambda: WideDiscreteGaussian.with_blocks(Fraction(16), 1), 5),
        (lambda: WideDiscreteGaussian.with_blocks(Fraction(1 << 20), 9), 0),
        (lambda: discrete_gaussian_sampler(3 << 28), 123_456_789),
    ],
    ids=["half the draws rejected", "large blocks", "as chosen"],
)
def test_draws_equal_those_made_by_hand_in_high_precision(made, start):
    count, sampler = 60, made()
    samples = sampler.draw(SEED, b"hand", count, start=start)
    table = sampler._blocks
    thresholds = [table.threshold(index) for index in range(table.num_thresholds)]
    expected = [by_hand(sampler, thresholds, b"hand", start + i) for i in range(count)]
    assert samples.tolist() == expected


@pytest.mark.parametrize("block_bits", [0, 4, 9])
def test_the_exact_decision_agrees_with_the_float_decision(monkeypatch, block_bits):
    sampler = WideDiscreteGaussian.with_blocks(Fraction(1 << 20), block_bits)
    by_float = sampler.draw(SEED, b"band", 1500)
    monkeypatch.setattr(wide_discrete_gaussian, "_BAND", 2.0)
    assert np.array_equal(sampler.draw(SEED, b"band", 1500), by_float)


def test_further_bits_are_read_at_the_offset_of_the_coordinate(monkeypatch):
    monkeypatch.setattr(wide_discrete_gaussian, "_BAND", 2.0)
    sampler = WideDiscreteGaussian.with_blocks(Fraction(1 << 20), 9)
    attempt = wide_discrete_gaussian._Attempt(SEED, b"band", 0)
    source, asked = attempt.further, []

    class Recorder:
        def uint64(self, start, count):
            asked.append((start, count))
            return source.uint64(start, count)

    attempt.further = Recorder()
    sampler._try(attempt, 1000, 3)
    assert asked == [(3000, 3), (3003, 3), (3006, 3)]


def test_a_decision_at_the_edge_uses_the_further_bits():
    sampler = WideDiscreteGaussian.with_blocks(Fraction(1 << 20), 9)
    corner, offset = 2048, 300
    with mpmath.workdps(120):
        x = mpmath.mpf(offset * (2 * corner + offset)) / (1 << 21)
        edge = int(mpmath.floor(mpmath.exp(-x) * mpmath.mpf(2) ** 256))
    for uniform, kept in ((edge - 1, True), (edge, False), (edge + 1, False)):
        parts = [(uniform >> shift) & ((1 << 64) - 1) for shift in (192, 128, 64, 0)]
        further = np.array(parts[1:], dtype=np.uint64)
        decided = sampler._decide(corner, offset, parts[0], further)
        assert decided is kept
    ones = np.full(3, (1 << 64) - 1, np.uint64)
    assert sampler._decide(corner, 0, (1 << 64) - 1, ones)


@pytest.mark.parametrize("exponent", [29, 40, 99])
def test_wide_laws_follow_the_normal_law_and_fill_every_residue(exponent):
    # At this width P(X ≤ k) = Φ((k + 1/2)/σ) up to 1e-10.
    sampler = discrete_gaussian_sampler((1 << exponent) + 1)
    count = 1 << 19
    samples = sampler.draw(SEED, b"shape", count)
    cuts = scipy.stats.norm.ppf(np.arange(1, 500) / 500) * 2.0 ** (exponent / 2)
    observed = np.bincount(np.searchsorted(cuts, samples), minlength=500)
    statistic = ((observed - count / 500) ** 2).sum() / (count / 500)
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM / 2, 499)
    low_bits = np.bincount(samples & 255, minlength=256)
    statistic = ((low_bits - count / 256) ** 2).sum() / (count / 256)
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM / 2, 255)


def test_chunks_offsets_and_adding_give_the_same_samples():
    sampler = WideDiscreteGaussian.with_blocks(Fraction(1 << 18), 4)  # some retries
    count = 40_000
    whole = sampler.draw(SEED, b"noise", count)
    pieces = [
        sampler.draw(SEED, b"noise", high - low, start=low)
        for low, high in ((0, 1), (1, 32_767), (32_767, 32_770), (32_770, count))
    ]
    assert np.array_equal(np.concatenate(pieces), whole)
    total = np.full(count - 3, 7, np.int64)
    sampler.add_to(total, SEED, b"noise", start=3)
    assert np.array_equal(total, whole[3:] + 7)
    assert not np.array_equal(sampler.draw(SEED, b"other", 100), whole[:100])


def test_the_chosen_blocks_reject_few_draws():
    sampler = discrete_gaussian_sampler(1 << 50)
    attempt = wide_discrete_gaussian._Attempt(SEED, b"rate", 0)
    _, kept = sampler._try(attempt, 0, 1 << 16)
    assert 0 < np.count_nonzero(~kept) < (1 << 16) // 1000


def test_small_variances_use_a_table_and_large_ones_use_blocks():
    assert isinstance(discrete_gaussian_sampler(1 << 20), InversionTable)
    for parameter in ((1 << 28) + 1, Fraction((1 << 70) + 1, 7), 1 << 100):
        sampler = discrete_gaussian_sampler(parameter)
        assert isinstance(sampler, WideDiscreteGaussian)
        assert sampler.variance == parameter
        coarse = parameter / Fraction(4) ** sampler.block_bits
        assert 1 << 22 <= coarse < 1 << 24
        assert sampler.distance_bound < 2.0**-130
        assert len(sampler.digest) == 32
    assert discrete_gaussian_sampler(1 << 40) is discrete_gaussian_sampler(1 << 40)
    digests = {discrete_gaussian_sampler(1 << e).digest for e in (40, 42, 44)}
    assert len(digests) == 3  # equal coarse laws, different block sizes


def test_variances_out_of_range_and_blocks_too_large_are_refused():
    for bad in (0, Fraction(1, 100), (1 << 100) + 1, 2.0**30):
        with pytest.raises(ParameterError) as caught:
            discrete_gaussian_sampler(bad)
        assert caught.value.parameter == "variance_parameter"
    with pytest.raises(CertificateError, match="half a standard deviation"):
        WideDiscreteGaussian.with_blocks(Fraction(15), 1)
    with pytest.raises(ParameterError, match="coordinates lie in"):
        discrete_gaussian_sampler(1 << 30).draw(SEED, b"noise", 1, start=1 << 48)
