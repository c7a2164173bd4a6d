"""What a sum of two aggregators shows, from the draws of both to what clients are told.

Clients contribute zeros to one session with many entries, so that the released sum is
the noise of both aggregators, and every entry is a session of its own with a single
coordinate. An aggregator that colludes takes its own noise out; what is left must
protect as much as the task states of it, and readers as much as it states of them.

Rule 1: probabilities are computed here, from the density of the normal law at integers.
Rule 2: whatever the set S of outcomes, P(S) − e^ε·Q(S) is at most delta, P and Q being
        the worlds with a client's vector and with zeros. S is where the ratio of the
        laws exceeds e^ε, so nothing is lost.
Rule 3: a difference of five standard errors is an alarm, one-sided: 2.9e-7 for each
        comparison if what is stated is exact. Pearson's tests alarm with 1e-7. The
        aggregators' seeds are fixed, so alarms repeat.
"""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import scipy
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import TwoAggregators, noise_for, watched_noise

from dpnoise.encoding import centre
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import AggregatorNoise, fixed_point_parameters
from secagg.two_aggregators import cohort_parameters

ENTRIES, CLIENTS = 1 << 19, 3
LENGTH = 128  # grid steps of the longest vector
RHO = 2
VARIANCE = (2 * LENGTH) ** 2 // (2 * RHO)  # of one aggregator, by the published rule
DELTA, STANDARD_ERRORS, FALSE_ALARM = 0.1, 5.0, 1e-7


@pytest.fixture(name="noises", scope="module")
def _noises():
    """Released noise, and each aggregator's own, as integers."""
    streams = itertools.count()

    def entropy():
        return SeededEntropy(SecretBytes(bytes(32)), b"aggregator %d" % next(streams))

    async def main(clock):
        return await TwoAggregators(clock, task).give([np.zeros(ENTRIES)] * CLIENTS)

    task = noise_for(dim=ENTRIES, rho=RHO, participations=1)
    with (
        mock.patch("secagg.two_aggregators.party.SystemEntropy", entropy),
        watched_noise() as drawn,
    ):
        released, _ = run(main)
    modulus = task.parameters.modulus
    assert len(drawn) == 2
    return tuple(
        centre((residues % modulus).astype(np.uint32), modulus)
        for residues in (released.residues.astype(np.int64), *drawn)
    )


def stated(noise_over_counted=1):
    """What a task of one coordinate states, for a delta that draws can be held to."""
    chosen = fixed_point_parameters(
        dim=1, fixed_point_bits=8, rho=RHO, clients=CLIENTS, aggregators=2
    )
    rule = replace(
        chosen.noise_rule, counted_variance=VARIANCE * Fraction(noise_over_counted)
    )
    return AggregatorNoise.joined(
        replace(chosen, noise_rule=rule),
        cohort_parameters(min_survivors=CLIENTS, max_clients=CLIENTS),
        epsilon=8.0,
        delta=DELTA,
    ).report()


def law(parts):
    """Probabilities of a sum of so many draws, on -k … k."""
    outcomes = np.arange(-2000, 2001)
    one = np.exp(-(outcomes**2) / (2.0 * VARIANCE))
    one /= one.sum()
    whole = one
    for _ in range(parts - 1):
        whole = np.convolve(whole, one)
    return whole


def pearson(noise, expected):
    """Pearson's statistic, and its degrees of freedom."""
    reach = expected.size // 2
    counts = np.bincount(noise + reach, minlength=expected.size)
    expected = expected * noise.size
    thick = expected >= 30
    rest = noise.size - expected[thick].sum()
    statistic = float(((counts - expected)[thick] ** 2 / expected[thick]).sum())
    statistic += float((counts[~thick].sum() - rest) ** 2 / rest)
    return statistic, int(thick.sum())


def lost(noise, epsilon, parts):
    """Return P(S) − e^ε·Q(S) and its standard error; noise is taken from both sides."""
    border = epsilon * parts * VARIANCE / LENGTH + LENGTH / 2
    with_vector = sum((each + LENGTH > border) * 0.5 for each in (noise, -noise))
    with_zeros = sum((each > border) * 0.5 for each in (noise, -noise))
    each = with_vector - math.exp(epsilon) * with_zeros
    return float(each.mean()), float(each.std()) / math.sqrt(each.size)


def assert_no_more_than(delta, measured):
    found, deviation = measured
    assert found - STANDARD_ERRORS * deviation <= delta


def test_the_noise_without_one_aggregators_part_satisfies_the_claim(noises):
    released, of_helper, of_leader = noises
    report = stated()
    alone, both = report.aggregator.epsilon, report.reader.epsilon
    for colluder in (of_helper, of_leader):
        left = released - colluder
        statistic, freedom = pearson(left, law(1))
        assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, freedom)
        measured = lost(left, alone, 1)
        assert_no_more_than(DELTA, measured)
        # Nor is it much less than stated.
        assert measured[0] + STANDARD_ERRORS * measured[1] >= DELTA
        # Both noises counted against who knows one of them: a false claim.
        with pytest.raises(AssertionError):
            assert_no_more_than(DELTA, lost(left, both, 1))


def test_readers_face_the_noise_of_both_aggregators(noises):
    released, of_helper, of_leader = noises
    statistic, freedom = pearson(released, law(2))
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, freedom)
    measured = lost(released, stated().reader.epsilon, 2)
    assert_no_more_than(DELTA, measured)
    assert measured[0] + STANDARD_ERRORS * measured[1] >= DELTA
    # What one aggregator draws says nothing of what the other one does.
    together = np.corrcoef(of_helper, of_leader)[0, 1]
    assert abs(together) < STANDARD_ERRORS / math.sqrt(ENTRIES)


def test_three_percent_less_noise_of_one_aggregator_is_detected(noises):
    released, of_helper, _ = noises
    report = stated(Fraction(100, 97))
    with pytest.raises(AssertionError):
        assert_no_more_than(
            DELTA, lost(released - of_helper, report.aggregator.epsilon, 1)
        )
    with pytest.raises(AssertionError):
        assert_no_more_than(DELTA, lost(released, report.reader.epsilon, 2))
