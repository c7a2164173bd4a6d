"""The three chances against integer arithmetic and against counting, case by case."""

import math
from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from secagg.protocol.graphs.bounds import (
    bits_of,
    log_corrupt_holders,
    log_planned_cut,
    log_short_of_holders,
)


def log_of(fraction):
    if fraction == 0:
        return -math.inf
    return math.log(fraction.numerator) - math.log(fraction.denominator)


def drawn(hits, population, marked, chosen):
    """P[X in hits], in integers."""
    ways = sum(
        comb(marked, x) * comb(population - marked, chosen - x)
        for x in hits
        if chosen >= x
    )
    return Fraction(ways, comb(population, chosen))


def corrupt_holders(n, k, t, c):
    return (n - c) * drawn(range(t, k + 1), n - 1, c, k)


SIZES = (4, 5, 9, 12, 23, 40, 60)
RINGS = [(n, k) for n in SIZES for k in range(2, n - 1, 2)]


@pytest.mark.parametrize("n", SIZES)
def test_corrupt_holders_agree_with_integers(n):
    for k in range(2, n - 1, 2):
        for t in range(1, k + 1, 2):
            for c in range(0, n, 3):
                found = log_corrupt_holders(
                    clients=n, degree=k, threshold=t, colluders=c
                )
                assert found == pytest.approx(
                    log_of(corrupt_holders(n, k, t, c)), rel=0, abs=1e-12
                ), (n, k, t, c)


@pytest.mark.parametrize("n", SIZES)
def test_lack_of_holders_agrees_with_integers(n):
    for k in range(2, n - 1, 2):
        for t in range(1, k + 1, 2):
            for losses in range(0, n, 3):
                expected = n * drawn(range(t), n - 1, n - 1 - losses, k)
                found = log_short_of_holders(
                    clients=n, degree=k, threshold=t, losses=losses
                )
                assert found == pytest.approx(log_of(expected), rel=0, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), RINGS)
def test_planned_cuts_agree_with_integers(n, k):
    for bad in range(n + 1):
        pairs = Fraction(n * (n - k - 1), 2)
        expected = pairs * Fraction(comb(n - k, n - bad), comb(n, bad))
        for colluders in {0, bad // 3, bad}:
            found = log_planned_cut(
                clients=n, degree=k, colluders=colluders, losses=bad - colluders
            )
            assert found == pytest.approx(log_of(expected), rel=0, abs=1e-12)


@pytest.mark.parametrize("n", [6, 9, 10])
def test_the_bound_on_corrupt_holders_covers_every_choice_of_colluders(n):
    """The formula is the mean number of honest clients with t corrupt holders."""
    for k in range(2, n - 1, 2):
        holders = [
            {(dealer + step) % n for step in range(-k // 2, k // 2 + 1)} - {dealer}
            for dealer in range(n)
        ]
        for c in range(n - 1):
            worst = [
                [len(near & set(bad)) for place, near in enumerate(holders)
                 if place not in bad]
                for bad in combinations(range(n), c)
            ]  # fmt: skip
            for t in range(1, k + 1):
                met = sum(count >= t for counts in worst for count in counts)
                bound = corrupt_holders(n, k, t, c)
                assert bound == Fraction(met, len(worst))
                rate = Fraction(sum(max(counts) >= t for counts in worst), len(worst))
                found = log_corrupt_holders(
                    clients=n, degree=k, threshold=t, colluders=c
                )
                assert log_of(rate) <= found + 1e-12


def is_cut(bad, n, k):
    """Whether the good ones left on a ring fall into parts."""
    good = [place for place in range(n) if place not in bad]
    # From one good place to the next in k/2 steps, all but once around.
    steps = [(b - a) % n or n for a, b in zip(good, good[1:] + good[:1], strict=True)]
    return sum(step > k // 2 for step in steps) > 1


@pytest.mark.parametrize("n", [8, 11, 13])
def test_the_bound_on_planned_cuts_covers_every_choice_of_bad_clients(n):
    """The formula is the mean number of pairs of windows without an honest client."""
    for k in range(2, n - 1, 2):
        windows = [
            sum(1 << (start + step) % n for step in range(k // 2)) for start in range(n)
        ]
        # Enough apart for a place on either arc.
        pairs = [
            one | other
            for (a, one), (b, other) in combinations(enumerate(windows), 2)
            if k // 2 < b - a < n - k // 2
        ]
        for count in range(k, n):
            chosen = list(combinations(range(n), count))
            masks = [sum(1 << place for place in bad) for bad in chosen]
            met = sum(pair & mask == pair for pair in pairs for mask in masks)
            cut = sum(is_cut(set(bad), n, k) for bad in chosen)
            found = log_planned_cut(clients=n, degree=k, colluders=count, losses=0)
            assert found == pytest.approx(
                log_of(Fraction(met, len(chosen))), rel=0, abs=1e-12
            )
            assert log_of(Fraction(cut, len(chosen))) <= found + 1e-12


def test_fewer_colluders_or_more_clients_never_weaken_the_bound():
    """While it says anything at all, that is, while it is below 1."""
    for n in range(4, 24):
        for k in range(2, n - 1, 2):
            for t in range(2, k + 1):
                here = [corrupt_holders(n, k, t, c) for c in range(n)]
                grown = [corrupt_holders(n + 1, k, t, c) for c in range(n)]
                for c, bound in enumerate(here):
                    if bound < 1:
                        assert max(here[: c + 1]) == bound
                        assert grown[c] <= bound


def test_impossible_events_have_the_bound_minus_infinity():
    assert log_corrupt_holders(clients=50, degree=8, threshold=4, colluders=3) == (
        -math.inf
    )
    assert log_planned_cut(clients=50, degree=8, colluders=4, losses=3) == -math.inf
    # All clients are neighbours.
    assert log_planned_cut(clients=9, degree=8, colluders=9, losses=0) == -math.inf
    assert log_short_of_holders(clients=50, degree=8, threshold=4, losses=4) == (
        -math.inf
    )


def test_invalid_rings_have_the_trivial_bound():
    """Settings and offers are checked by all rules, also when one has failed."""
    assert log_corrupt_holders(clients=9, degree=8, threshold=4, colluders=9) == 0
    for degree in (9, 10):
        ring = {"clients": 9, "degree": degree, "threshold": 4}
        assert log_corrupt_holders(**ring, colluders=5) == 0
        # However many holders there are, three of them are not four.
        assert log_corrupt_holders(**ring, colluders=3) == -math.inf
        assert log_short_of_holders(**ring, losses=0) == 0
    assert bits_of(log_short_of_holders(clients=9, degree=4, threshold=2, losses=90)
                   ) == 0  # fmt: skip
    all_bad = log_planned_cut(clients=9, degree=4, colluders=9, losses=0)
    assert all_bad == pytest.approx(math.log(9 * 4 / 2))
    for colluders, losses in ((90, 9), (5, 5)):
        bad = {"colluders": colluders, "losses": losses}
        assert log_planned_cut(clients=9, degree=4, **bad) == all_bad


def test_bits_are_the_negative_binary_logarithm():
    assert bits_of(math.log(0.125)) == pytest.approx(3)
    assert bits_of(-math.inf) == math.inf
    assert bits_of(0.0) == bits_of(2.0) == 0


@pytest.mark.parametrize(
    ("n", "k", "t", "c", "losses"),
    [
        (1000, 160, 73, 200, 300),
        (1000, 72, 24, 50, 330),
        (65535, 200, 100, 13000, 3000),
    ],
)
def test_large_rings_keep_forty_bits(n, k, t, c, losses):
    """Sizes that are made for 40 bits, up to the largest roster there is."""
    found = log_corrupt_holders(clients=n, degree=k, threshold=t, colluders=c)
    assert found == pytest.approx(log_of(corrupt_holders(n, k, t, c)), rel=0, abs=1e-8)
    assert bits_of(found) > 41
    assert (
        bits_of(log_planned_cut(clients=n, degree=k, colluders=c, losses=losses)) > 41
    )
