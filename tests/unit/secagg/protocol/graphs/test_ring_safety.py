"""The judgement of a ring against brute force: every survivor set, every colluder.

Rings up to 13 places are enumerated up to rotation; what a rotation changes is tested
apart.  A set of places is an integer with one bit for each.
"""

import functools
import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.crypto.transcript import ClientBitmap, encode_set
from secagg.protocol.graphs.bounds import (
    bits_of,
    client_demand,
    log_corrupt_holders,
    log_planned_cut,
    server_demand,
)
from secagg.protocol.graphs.neighbours import CompleteGraph, sharing_graph
from secagg.protocol.graphs.ring_safety import (
    RingRisk,
    graph_shortcoming,
    holder_bits,
    is_uncuttable,
    is_worst_case_safe,
    log_cut,
    ring_risk,
)

COLLUDERS = range(4)
RINGS = [(n, k) for n in range(4, 14) for k in range(2, n - 1, 2)]
SMALLER_RINGS = [(n, k) for n, k in RINGS if n <= 12]


def places(mask, n):
    return np.array([mask >> place & 1 for place in range(n)], np.bool_)


def turned(mask, n, by):
    return (mask << by | mask >> (n - by)) & ((1 << n) - 1)


@functools.cache
def representatives(n):
    """Of each set, the representative of all its rotations."""
    return [min(turned(mask, n, by) for by in range(n)) for mask in range(1 << n)]


@functools.cache
def parted(n, k):
    """For each set of honest living places: whether masks leave them in parts."""
    near = [
        sum(1 << (place + step) % n for step in range(-(k // 2), k // 2 + 1))
        for place in range(n)
    ]
    answers = np.zeros(1 << n, np.bool_)
    for honest in range(1, 1 << n):
        reached = honest & -honest
        fresh = reached
        while fresh:
            place = fresh.bit_length() - 1
            new = near[place] & honest & ~reached
            reached |= new
            fresh = fresh & ~(1 << place) | new
        answers[honest] = reached != honest
    return answers


@functools.cache
def cutting_choices(n, k):
    """How many choices of c colluders cut each survivor set, for c in COLLUDERS."""
    counts = [parted(n, k).astype(np.int64)]
    every = np.arange(1 << n)
    for c in COLLUDERS[1:]:
        # Every choice is met once for each of its c members.
        total = np.zeros(1 << n, np.int64)
        for place in range(n):
            lives = every >> place & 1 == 1
            total[lives] += counts[-1][every[lives] & ~(1 << place)]
        counts.append(total // c)
    return counts


@functools.cache
def bounds(n, k):
    """`log_cut` of every survivor set, by set and number of colluders."""
    stand_ins = representatives(n)
    known = {
        mask: [log_cut(places(mask, n), degree=k, colluders=c) for c in COLLUDERS]
        for mask in set(stand_ins)
    }
    return np.array([known[mask] for mask in stand_ins])


def pairs_of_windows(n, k):
    """Both windows of every pair that leaves a place or more on either arc."""
    reach = k // 2
    for i in range(n):
        for j in range(i + reach + 1, min(n, i + n - reach)):
            yield [(i + step) % n for step in range(reach)] + [
                (j + step) % n for step in range(reach)
            ]


def log_cut_by_definition(living, k, c):
    """The sum over pairs, one by one, in fractions."""
    m = int(living.sum())
    total = Fraction(0)
    for pair in pairs_of_windows(len(living), k):
        held = int(living[pair].sum())
        if held <= c:
            total += Fraction(comb(m - held, c - held), comb(m, c))
    if not total:
        return -math.inf
    return math.log(total.numerator) - math.log(total.denominator)


def ring_of(size, degree, seed=b"g" * 32):
    parameters = parameters_for(
        size, dimension=1, threshold=2, degree=degree, min_clients=degree + 2
    )
    return sharing_graph(parameters, size, seed)


@pytest.mark.parametrize(("n", "k"), RINGS)
def test_exactly_the_rings_called_uncuttable_cannot_be_cut_by_colluders(n, k):
    cuts = cutting_choices(n, k)
    for mask in set(representatives(n)):
        living = places(mask, n)
        cut_by_fewer = False
        for c in COLLUDERS:
            cut_by_fewer |= cuts[c][mask] > 0
            assert is_uncuttable(living, degree=k, colluders=c) != cut_by_fewer, (
                f"{mask:0{n}b}, {c} colluders"
            )


@pytest.mark.parametrize(("n", "k"), SMALLER_RINGS)
def test_the_bound_is_never_below_the_true_chance(n, k):
    cuts, found = cutting_choices(n, k), bounds(n, k)
    living = np.array([mask.bit_count() for mask in range(1 << n)])
    seen = 0
    for c in COLLUDERS:
        enough = living >= c
        chances = cuts[c][enough] / np.array([comb(m, c) for m in living[enough]])
        # Fewer colluders than assumed must be covered as well.
        for assumed in COLLUDERS[c:]:
            assert (chances <= np.exp(found[enough, assumed]) * (1 + 1e-12)).all()
        seen += np.count_nonzero(chances)
    assert seen or k == n - 2


@pytest.mark.parametrize(("n", "k"), SMALLER_RINGS)
def test_a_colluder_that_drops_out_never_lowers_the_bound(n, k):
    found = bounds(n, k)
    every = np.arange(1 << n)
    for place in range(n):
        lives = every[every >> place & 1 == 1]
        assert (found[lives & ~(1 << place)] >= found[lives] - 1e-12).all()


@pytest.mark.parametrize(("n", "k"), [(n, k) for n, k in RINGS if n in (8, 10)])
def test_colluders_that_choose_their_losses_stay_within_the_bound(n, k):
    """What the bound is for: a cut session passes with at most the chance it allows.

    Colluders see the ring, then drop out in whatever way makes it pass.
    """
    is_parted, found = parted(n, k), bounds(n, k)
    uncuttable = ~np.maximum.accumulate(np.array(cutting_choices(n, k)) > 0)
    passes_at = np.where(uncuttable.T, -math.inf, found)
    for living in set(representatives(n)):
        alive = [place for place in range(n) if living >> place & 1]
        for c in COLLUDERS[1:]:
            at = []
            for choice in combinations(alive, c):
                if is_parted[living & ~sum(1 << place for place in choice)]:
                    lost = [
                        sum(1 << place for place in part)
                        for count in range(c + 1)
                        for part in combinations(choice, count)
                    ]
                    at.append(min(passes_at[living & ~part, c] for part in lost))
            chances = np.arange(1, len(at) + 1) / comb(len(alive), c)
            assert (chances <= np.exp(sorted(at)) * (1 + 1e-12)).all()


@pytest.mark.parametrize(("n", "k"), SMALLER_RINGS)
def test_more_colluders_never_lower_the_bound(n, k):
    found = bounds(n, k)
    assert (found[:, 1:] >= found[:, :-1] - 1e-12).all()


@pytest.mark.parametrize(
    ("n", "k", "c", "lost"),
    [(4, 2, 1, 1), (9, 4, 3, 2), (13, 2, 5, 4), (24, 6, 7, 6), (24, 22, 20, 1),
     (60, 8, 12, 20), (60, 40, 25, 20), (61, 20, 12, 0)],
)  # fmt: skip
def test_the_sum_over_pairs_agrees_with_fractions(n, k, c, lost):
    generator = np.random.default_rng(n)  # noqa: TID251 - losses, not secrets
    for _ in range(8):
        living = np.ones(n, np.bool_)
        living[generator.choice(n, lost, replace=False)] = False
        assert log_cut(living, degree=k, colluders=c) == pytest.approx(
            log_cut_by_definition(living, k, c), rel=0, abs=1e-12
        )


def test_the_bound_does_not_depend_on_where_the_ring_begins():
    generator = np.random.default_rng(5)  # noqa: TID251 - losses, not secrets
    for n, k, c in [(11, 4, 2), (14, 12, 3), (30, 6, 3), (31, 10, 4)]:
        for _ in range(20):
            living = generator.random(n) < 0.75
            safe = {
                is_uncuttable(np.roll(living, by), degree=k, colluders=c)
                for by in range(n)
            }
            logs = [
                log_cut(np.roll(living, by), degree=k, colluders=c) for by in range(n)
            ]
            assert len(safe) == 1
            assert logs == pytest.approx([logs[0]] * n, rel=0, abs=1e-12)


def test_without_losses_the_bound_equals_the_planned_one():
    for n, k, c in [(12, 4, 5), (60, 6, 20), (300, 20, 90), (5000, 60, 1500)]:
        assert log_cut(np.ones(n, np.bool_), degree=k, colluders=c) == pytest.approx(
            log_planned_cut(clients=n, degree=k, colluders=c, losses=0), abs=1e-8
        )


def test_the_bound_after_losses_is_below_the_planned_one_for_all_sizes():
    # R11.2-1
    """Random losses leave the bound below its planned value."""
    generator = np.random.default_rng(3)  # noqa: TID251 - losses, not secrets
    for n, k, c, losses in [(1000, 72, 50, 330), (10_000, 104, 1000, 3000)]:
        living = np.ones(n, np.bool_)
        living[generator.choice(n, losses, replace=False)] = False
        planned = log_planned_cut(clients=n, degree=k, colluders=c, losses=losses)
        assert bits_of(log_cut(living, degree=k, colluders=c)) > bits_of(planned) > 80


@pytest.mark.parametrize(
    ("n", "k", "c", "lost"), [(40, 8, 6, 8), (50, 10, 7, 12), (60, 10, 9, 12)]
)
def test_simulated_cuts_stay_below_the_bound(n, k, c, lost):
    """Bounds of 5 to 8 bits, 40 000 draws of colluders each.

    Five standard deviations above the bound: a false alarm has a chance under 1e-6 in
    each case even if the bound is the truth.  The truth is not far below: it is met
    at least a twentieth as often, so the test looks at real cuts.
    """
    generator = np.random.default_rng(n + c)  # noqa: TID251 - losses, not secrets
    draws = 40_000
    rings = np.ones((200, n), np.bool_)
    for ring in rings:
        ring[generator.choice(n, lost, replace=False)] = False
    living, bound = next(
        (ring, bound)
        for ring in rings
        if 5 <= bits_of(bound := log_cut(ring, degree=k, colluders=c)) <= 8
    )
    alive = np.flatnonzero(living)
    ranks = generator.random((draws, alive.size)).argsort(axis=1)
    honest = np.zeros((draws, n), np.bool_)
    honest[:, alive] = ranks >= c
    # Steps from each honest place to the next: a cut has two of more than k/2.
    far = np.ones((draws, n), np.bool_)
    for step in range(1, k // 2 + 1):
        far &= ~np.roll(honest, -step, axis=1)
    cut = int((np.count_nonzero(far & honest, axis=1) > 1).sum())
    expected = draws * math.exp(bound)
    assert expected / 20 < cut < expected + 5 * math.sqrt(expected)


def test_a_small_ring_is_rejected_exactly_if_one_colluder_could_split_it():
    """Twelve clients, four neighbours, threshold two, one colluder, three losses."""
    n, k = 12, 4
    graph = ring_of(n, k)
    cuts = cutting_choices(n, k)
    split, refused, passed = 0, 0, 0
    for mask in range(1 << n):
        if mask.bit_count() != n - 3:
            continue
        survivors = frozenset(p for p in range(n) if mask >> p & 1)
        if any(graph.count_holders(dealer, survivors) < 2 for dealer in range(n)):
            continue
        split += 0 if cuts[0][mask] else int(cuts[1][mask])
        risk = ring_risk(graph, survivors, colluders=1, threshold=2)
        is_refused = risk.shortcoming(client_demand(40)) is not None
        assert is_refused == bool(cuts[0][mask] or cuts[1][mask])
        assert risk.worst_case_safe != is_refused
        refused += is_refused
        passed += not is_refused
    # The losses alone leave all these rings in one piece; the colluder did not.
    assert split > 0
    assert refused > 0
    assert passed > 0


@pytest.mark.parametrize("degree", [2, 4, 6])
def test_without_colluders_a_ring_is_accepted_exactly_if_it_is_connected(degree):
    """For every set of survivors."""
    graph = ring_of(10, degree)
    for chosen in range(1 << 10):
        survivors = frozenset(p for p in range(10) if chosen >> p & 1)
        risk = ring_risk(graph, survivors, colluders=0, threshold=2)
        whole = not parted(10, degree)[chosen]
        assert risk.worst_case_safe == whole
        assert risk.cut_bits == (math.inf if whole else 0)


def test_the_probabilities_are_those_of_the_ring_and_its_survivors():
    graph = ring_of(40, 6)
    lost = {1, 2, 3, 20, 21, 30}
    risk = ring_risk(graph, frozenset(range(40)) - lost, colluders=5, threshold=4)
    living = np.ones(40, np.bool_)
    living[[1, 2, 3, 20, 21, 30]] = False
    assert risk.cut_bits == bits_of(log_cut(living, degree=6, colluders=5))
    assert 0 < risk.cut_bits < math.inf
    holders = log_corrupt_holders(clients=40, degree=6, threshold=4, colluders=5)
    assert risk.holder_bits == holder_bits(graph, colluders=5, threshold=4)
    assert risk.holder_bits == bits_of(holders)
    assert not risk.worst_case_safe


def test_the_fast_check_agrees_with_the_full_figures():
    """Rings of 24 with up to ten losses, at demands around what they hold."""
    generator = np.random.default_rng(1)  # noqa: TID251 - losses, not secrets
    graph, seen = ring_of(24, 8), set()
    for colluders, lost in product((0, 1, 3, 5), range(11)):
        parameters = parameters_for(
            24, dimension=1, degree=8, threshold=6, colluders=colluders, graph_bits=1
        )
        gone = generator.choice(24, lost, replace=False).tolist()
        survivors = roster_set(set(range(24)) - set(gone), 24)
        risk = ring_risk(graph, survivors, colluders=colluders, threshold=6)
        for demanded in (0.0, 1.0, 5.0, risk.cut_bits - 1e-6, risk.cut_bits + 1e-6):
            expected = risk.shortcoming(demanded)
            found = graph_shortcoming(parameters, graph, survivors, demanded)
            assert found == expected
            seen.add(found is None)
        judged = is_worst_case_safe(parameters, graph, survivors)
        assert judged == risk.worst_case_safe
    assert seen == {True, False}


def test_the_complete_graph_is_not_checked():
    parameters = parameters_for(4, dimension=1, threshold=3)
    all_clients = roster_set(range(4), 4)
    assert graph_shortcoming(parameters, CompleteGraph(4), all_clients, 1.0) is None
    assert is_worst_case_safe(parameters, CompleteGraph(4), all_clients) is None


def roster_set(members, size):
    return ClientBitmap(encode_set(members, size), size)


def test_an_uncuttable_ring_is_unsafe_if_a_secret_can_be_rebuilt():
    graph = ring_of(12, 10)
    all_clients = frozenset(range(12))
    safe = ring_risk(graph, all_clients, colluders=3, threshold=4)
    assert safe == RingRisk(math.inf, math.inf, worst_case_safe=True)
    rebuilt = ring_risk(graph, all_clients, colluders=4, threshold=4)
    assert rebuilt.cut_bits == math.inf
    assert rebuilt.holder_bits < 1
    assert not rebuilt.worst_case_safe
    made = parameters_for(12, dimension=1, degree=10, threshold=4, graph_bits=1)
    for colluders, holds in ((3, True), (4, False)):
        judged = replace(made, colluders=colluders)
        assert is_worst_case_safe(judged, graph, all_clients) is holds


def test_a_client_never_rejects_what_the_server_accepted():
    client, server = client_demand(40), server_demand(40)
    assert client == 41
    # Two libraries' logarithms differ by far less than a thousandth of a bit.
    for holder, cut in [(server, 99.0), (99.0, server), (math.inf, server)]:
        passed = RingRisk(holder, cut, worst_case_safe=False)
        assert passed.shortcoming(server) is None
        seen = RingRisk(holder - 1e-3, cut - 1e-3, worst_case_safe=False)
        assert seen.shortcoming(client) is None


def test_each_probability_alone_is_a_reason_to_reject():
    def shortcoming(holders, cut):
        return RingRisk(holders, cut, worst_case_safe=False).shortcoming(41.0)

    assert "next to it" in shortcoming(40.9, math.inf)
    assert "into parts" in shortcoming(math.inf, 40.9)
    # Exactly the demand is enough.
    assert shortcoming(41.0, 41.0) is None


def test_a_cohort_of_colluders_only_has_no_guarantee():
    ring = np.zeros(12, np.bool_)
    assert bits_of(log_cut(ring, degree=4, colluders=0)) == 0
    ring[[0, 6]] = True
    assert bits_of(log_cut(ring, degree=4, colluders=2)) == 0
    assert not is_uncuttable(ring, degree=4, colluders=0)
    # Neighbours who are all that is left share a mask.
    ring[:] = False
    ring[[0, 1, 11]] = True
    assert is_uncuttable(ring, degree=4, colluders=0)


@pytest.mark.parametrize("size", range(1, 10))
def test_a_ring_in_which_all_clients_are_neighbours_cannot_be_cut(size):
    """Numbers that describe no ring are checked, too, and raise nothing."""
    living = np.ones(size, np.bool_)
    for colluders in (0, 1, size):
        assert is_uncuttable(living, degree=8, colluders=colluders)
        assert log_cut(living, degree=8, colluders=colluders) == -math.inf
