"""The chance of a set that stands apart: against integers, counting and simulation."""

import math
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from secagg.protocol.graphs.bounds import (
    EdgeBound,
    bits_of,
    edge_bound,
    log_corrupt_holders,
    log_set_apart,
)


def log_of(fraction):
    if fraction == 0:
        return -math.inf
    return math.log(fraction.numerator) - math.log(fraction.denominator)


def exactly(s, n, k, c, losses):
    """The union bound over sets of s and over losses, in integers."""
    honest = n - c
    within = Fraction(comb(s - 1 + c + losses, k), comb(n - 1, k))
    around = Fraction(comb(n - 1 - s, k), comb(n - 1, k))
    choices = comb(honest, s) * comb(honest - s, losses)
    return choices * min(within, 1) ** s * around ** (honest - losses - s)


@pytest.mark.parametrize("n", [5, 8, 13, 31, 60])
def test_sums_agree_with_integers(n):
    for k in range(1, n, 1 + n // 8):
        for c in range(0, n, 1 + n // 7):
            for losses in range(0, n - c, 1 + n // 6):
                found = log_set_apart(clients=n, degree=k, colluders=c, losses=losses)
                largest = (n - c - losses) // 2
                assert found.shape == (largest + 2,)
                total = Fraction(0)
                assert found[largest + 1] == -math.inf
                for s in range(largest, 0, -1):
                    total += exactly(s, n, k, c, losses)
                    wanted = log_of(total)
                    assert found[s] == pytest.approx(wanted, rel=0, abs=1e-12)
                assert found[0] == found[1]


@pytest.mark.parametrize(
    ("n", "k", "c", "losses"),
    [
        (5, 1, 1, 0),
        (5, 2, 1, 1),
        (5, 2, 0, 1),
        (5, 3, 1, 2),
        (6, 1, 1, 1),
        (6, 2, 2, 1),
    ],
)
def test_the_bound_covers_every_choice_of_edges(n, k, c, losses):
    """The bound is the mean number of (losses, set) pairs without an edge between."""
    honest = range(n - c)  # the last c collude: what they draw changes nothing
    lists = [
        [set(drawn) for drawn in combinations(sorted(set(range(n)) - {v}), k)]
        for v in honest
    ]
    largest = (n - c - losses) // 2
    met, seen, graphs = [0] * (largest + 1), [0] * (largest + 1), 0
    for drawn in product(*lists):
        graphs += 1
        edges = {(v, u) for v in honest for u in drawn[v]}
        here = [0] * (largest + 1)
        for lost in combinations(honest, losses):
            left = set(honest) - set(lost)
            for s in range(1, largest + 1):
                for apart in combinations(sorted(left), s):
                    rest = left - set(apart)
                    here[s] += not any(
                        (a, b) in edges or (b, a) in edges for a in apart for b in rest
                    )
        for s in range(1, largest + 1):
            met[s] += here[s]
            seen[s] += any(here[s:])
    found = log_set_apart(clients=n, degree=k, colluders=c, losses=losses)
    for s in range(1, largest + 1):
        mean = Fraction(sum(met[s:]), graphs)
        assert found[s] == pytest.approx(log_of(mean), rel=0, abs=1e-12)
        assert log_of(Fraction(seen[s], graphs)) <= found[s] + 1e-12


def test_an_adversary_that_isolates_one_client_stays_within_the_bound():
    """Sets of one, found exactly: a client whose living neighbours all can be lost.

    False alarm at most 1e-6: with 400 graphs and a bound of 2^-5, 40 hits or more have
    a chance of 4e-9.
    """
    n, k, c, losses, graphs = 60, 6, 3, 4, 400
    bound = log_set_apart(clients=n, degree=k, colluders=c, losses=losses)[1]
    assert bound < -5 * math.log(2)
    generator = np.random.default_rng(7)  # noqa: TID251 - graphs, not secrets
    hits = 0
    for _ in range(graphs):
        joined = np.zeros((n, n), bool)
        for v in range(n):
            drawn = generator.choice(n - 1, k, replace=False)
            joined[v, drawn + (drawn >= v)] = True
        joined |= joined.T
        hits += bool((joined[: n - c, : n - c].sum(axis=1) <= losses).any())
    assert hits < 40


def test_invalid_graphs_have_the_trivial_bound():
    for degree in (0, -1, 9, 10):
        odds = log_set_apart(clients=9, degree=degree, colluders=2, losses=1)
        assert odds.tolist() == [0, 0, 0, 0, -math.inf]
    # No client is left to stand apart.
    for degree in (0, 4):
        for losses in (3, 4, 6, 20):
            odds = log_set_apart(clients=9, degree=degree, colluders=5, losses=losses)
            assert odds.tolist() == [-math.inf, -math.inf]


def test_more_edges_fewer_colluders_or_fewer_losses_never_weaken_the_bound():
    at = {"clients": 200, "degree": 30, "colluders": 20, "losses": 40}
    here = log_set_apart(**at)
    for change in ({"degree": 32}, {"colluders": 19}, {"losses": 39}):
        safer = log_set_apart(**at | change)
        for s in range(1, 60):
            assert safer[s] <= here[s] or here[s] == -math.inf


@pytest.mark.parametrize("bits", [3, 20, 41, 60])
@pytest.mark.parametrize(
    ("k", "c", "losses"), [(44, 50, 100), (108, 100, 300), (9, 0, 0)]
)
def test_a_bound_names_the_smallest_values_for_its_failure_probability(
    k, c, losses, bits
):
    cohort = {"clients": 1000, "degree": k, "colluders": c}
    judged = edge_bound(**cohort, losses=losses, demanded_bits=bits)
    apart = log_set_apart(**cohort, losses=losses)
    assert judged.cut_bits == bits_of(apart[judged.set_apart + 1]) >= bits
    assert judged.set_apart == 0 or bits_of(apart[judged.set_apart]) < bits
    most = judged.corrupt_holders
    assert bits_of(log_corrupt_holders(**cohort, threshold=most + 1)) >= bits
    assert most == 0 or bits_of(log_corrupt_holders(**cohort, threshold=most)) < bits


def test_a_failure_probability_equal_to_the_demand_is_accepted():
    cohort = {"clients": 200, "degree": 30, "colluders": 20}
    holders = bits_of(log_corrupt_holders(**cohort, threshold=9))
    judged = edge_bound(**cohort, losses=40, demanded_bits=holders)
    assert judged.corrupt_holders == 8
    apart = bits_of(log_set_apart(**cohort, losses=40)[3])
    judged = edge_bound(**cohort, losses=40, demanded_bits=apart)
    assert (judged.set_apart, judged.cut_bits) == (2, apart)


def test_a_threshold_exceeds_the_shares_held_by_a_set_and_the_colluders():
    # Three who stand apart hold each other's shares: two of them, and five corrupt.
    assert EdgeBound(5, 3, 40.0).least_threshold == 5 + 2 + 1
    assert EdgeBound(5, 1, 40.0).least_threshold == 5 + 1
    assert EdgeBound(5, 0, 40.0).least_threshold == 5 + 1
    assert EdgeBound(0, 0, math.inf).least_threshold == 1
