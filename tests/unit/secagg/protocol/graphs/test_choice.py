"""The graph that is chosen: known sizes, a slow search in integers, and `validate`."""

import contextlib
import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.graphs.bounds import (
    bits_of,
    client_demand,
    log_corrupt_holders,
    log_drawn,
    log_planned_cut,
    log_set_apart,
    log_short_of_holders,
    server_demand,
)
from secagg.protocol.graphs.choice import (
    GraphAdversary,
    GraphDemand,
    choose_graph,
    failure_bounds_of,
)
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.profiles import (
    HonestCuriousParameters,
    RoundDeadlines,
    SparseParameters,
    Trust,
)

CURIOUS, SEMI, MALICIOUS = GraphAdversary


def demand(clients, corrupt, dropout, sigma=40, eta=30):
    return GraphDemand.from_rates(
        clients,
        corrupt=Fraction(corrupt),
        dropout=Fraction(dropout),
        graph_bits=sigma,
        liveness_bits=eta,
    )


# --- known sizes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        ((100, ".05", ".1", 40, 30), (16, 6)),
        ((100, ".1", ".1", 40, 30), (22, 11)),
        ((100, ".1", ".3", 40, 30), (36, 11)),
        ((100, ".2", ".3", 40, 30), (50, 21)),
        ((1000, ".05", ".1", 40, 30), (40, 19)),
        ((1000, ".1", ".1", 40, 30), (52, 28)),
        ((1000, ".1", ".3", 40, 30), (102, 39)),
        ((1000, ".2", ".3", 40, 30), (160, 73)),
        ((1000, "1/3", "1/3", 40, 30), (318, 163)),
        ((1000, ".05", ".33", 40, 20), (72, 24)),
        ((1000, ".33", ".05", 40, 20), (78, 60)),
    ],
)
def test_rings_against_a_curious_server_have_their_known_sizes(cohort, expected):
    chosen = choose_graph(demand(*cohort), CURIOUS)
    assert (chosen.graph, chosen.quorum) == (Graph.RING, None)
    assert (chosen.degree, chosen.threshold) == expected


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        ((100, ".05", ".1"), (26, 16)),
        ((100, ".1", ".1"), (32, 22)),
        ((1000, ".05", ".1"), (90, 58)),
        ((1000, ".1", ".1"), (114, 78)),
    ],
)
def test_rings_against_a_semi_malicious_server_have_their_known_sizes(cohort, expected):
    chosen = choose_graph(demand(*cohort), SEMI)
    assert chosen.graph is Graph.RING
    assert (chosen.degree, chosen.threshold) == expected


@pytest.mark.parametrize(
    ("cohort", "sizes", "counts"),
    [
        ((1000, ".05", ".1"), (44, 21), (2, 526)),
        ((1000, ".1", ".1"), (54, 30), (2, 551)),
        ((1000, ".1", ".3"), (108, 42), (3, 551)),
        ((1000, ".2", ".2"), (114, 60), (2, 601)),
        ((1000, ".2", ".3"), (164, 75), (2, 601)),
        ((4000, ".1", ".3"), (142, 59), (10, 2201)),
    ],
)
def test_graphs_of_drawn_edges_have_their_known_sizes(cohort, sizes, counts):
    chosen = choose_graph(demand(*cohort), MALICIOUS)
    assert chosen.graph is Graph.K_OUT
    assert (chosen.degree, chosen.threshold) == sizes
    assert (chosen.unseen, chosen.quorum) == counts


def test_rates_are_rounded_down_as_exact_rationals():
    assert demand(100, ".29", "1/3").colluders == 29  # 28 in binary floats
    assert demand(1000, "1/3", ".58").losses(1000) == 580  # 579 in binary floats
    assert demand(3, "1/3", "2/3").min_survivors == 1


# --- a slow search in integers ------------------------------------------------------


def tail(hits, population, marked, drawn):
    ways = sum(comb(marked, x) * comb(population - marked, drawn - x) for x in hits)
    return Fraction(ways, comb(population, drawn))


def demand_of(clients, c, losses, sigma, eta):
    return GraphDemand(
        min_clients=clients,
        max_clients=clients,
        min_survivors=clients - losses,
        max_losses=losses,
        colluders=c,
        graph_bits=sigma,
        liveness_bits=eta,
    )


def slow_ring(wanted, adversary):
    """The first degree and threshold that meet all three demands, by trying all."""
    n, c, losses = wanted.min_clients, wanted.colluders, wanted.max_losses
    small = 2.0 ** -server_demand(wanted.graph_bits)
    for k in range(2, n // 2 + 1, 2):
        bad = c + losses
        cut = Fraction(n * (n - k - 1), 2) * Fraction(
            comb(n - k, n - bad), comb(n, bad)
        )
        if bad >= k and cut > small:
            continue
        for t in range(2, k + 1):
            breaking = t if adversary is CURIOUS else 2 * t - k
            broken = (n - c) * tail(range(max(0, breaking), k + 1), n - 1, c, k)
            stuck = n * tail(range(t), n - 1, n - 1 - losses, k)
            if broken <= small and stuck < Fraction(1, 2**wanted.liveness_bits):
                return k, t
    return None


@pytest.mark.parametrize("adversary", [CURIOUS, SEMI])
@pytest.mark.parametrize("clients", [4, 7, 16, 33, 60])
def test_the_ring_is_the_first_that_a_search_in_integers_finds(clients, adversary):
    found = 0
    for c in range(0, clients // 2, 1 + clients // 12):
        for losses in range(0, clients - c - 1, 1 + clients // 12):
            for sigma, eta in ((1, 1), (4, 3), (12, 8)):
                wanted = demand_of(clients, c, losses, sigma, eta)
                expected = slow_ring(wanted, adversary)
                try:
                    chosen = choose_graph(wanted, adversary)
                except ServiceError:
                    assert expected is None
                    continue
                if expected is None:
                    assert chosen.graph is Graph.COMPLETE
                else:
                    assert (chosen.degree, chosen.threshold) == expected
                    found += 1
    assert found


def slow_out_edges(wanted):
    """Degree, threshold and the largest set apart, by trying every degree in turn."""
    n, c, losses = wanted.min_clients, wanted.colluders, wanted.max_losses
    small, eta = server_demand(wanted.graph_bits), wanted.liveness_bits
    for k in range(4, n // 2 + 1, 2):
        at = {"population": n - 1, "drawn": k}
        most = min(
            x for x in range(k + 1)
            if bits_of(math.log(n - c) + log_drawn(range(x + 1, k + 1), marked=c, **at))
            >= small
        )  # fmt: skip
        live = max(
            y for y in range(k + 1)
            if y == 0 or eta < bits_of(
                math.log(n) + log_drawn(range(y), marked=n - 1 - losses, **at)
            )
        )  # fmt: skip
        apart = log_set_apart(clients=n, degree=k, colluders=c, losses=losses)
        first = min(s for s in range(1, len(apart)) if bits_of(apart[s]) >= small)
        threshold = max(2, most + 1, most + first - 1)
        if threshold <= live:
            return k, threshold, first - 1
    return None


@pytest.mark.parametrize(
    "numbers",
    [
        (1000, 0, 0, 40, 30),
        (1000, 3, 10, 40, 30),
        (1000, 300, 100, 40, 30),
        (1100, 150, 450, 20, 10),
        (2500, 50, 1100, 40, 30),
    ],
)
def test_drawn_edges_are_the_first_that_a_search_through_all_degrees_finds(
    numbers,
):
    wanted = demand_of(*numbers)
    chosen = choose_graph(wanted, MALICIOUS)
    expected = slow_out_edges(wanted)
    assert (chosen.degree, chosen.threshold, chosen.unseen) == expected


# --- what is chosen is accepted -----------------------------------------------------


@st.composite
def demands(draw):
    smallest = draw(st.integers(2, 900))
    largest = draw(st.one_of(st.just(smallest), st.integers(smallest, 1200)))
    return GraphDemand(
        min_clients=smallest,
        max_clients=largest,
        min_survivors=draw(st.integers(2, smallest)),
        max_losses=draw(st.integers(0, largest)),
        colluders=draw(st.integers(0, smallest)),
        graph_bits=draw(st.integers(1, 60)),
        liveness_bits=draw(st.integers(1, 40)),
    )


def accepted(wanted, chosen):
    """The parameters of such a cohort, as the stricter of the two sides checks them."""
    losses = min(wanted.max_losses, wanted.max_clients - wanted.min_survivors)
    return ProtocolParameters(
        modulus=1 << 20,
        dimension=8,
        min_clients=wanted.min_clients,
        max_clients=wanted.max_clients,
        threshold=chosen.threshold,
        degree=chosen.degree,
        tail=HonestCuriousParameters(wanted.graph_bits if chosen.degree else 0),
        min_survivors=wanted.min_survivors,
        max_dropouts=losses,
        max_losses=losses,
        colluders=wanted.colluders,
    ).validate(demanded_bits=server_demand)


@settings(max_examples=400, deadline=None)
@given(demands(), st.booleans())
def test_every_chosen_graph_is_accepted_by_server_and_clients(wanted, highest):
    if wanted.colluders + 2 > wanted.min_survivors:
        with pytest.raises(ServiceError, match="fewer than two honest"):
            choose_graph(wanted, CURIOUS)
        return
    chosen = choose_graph(wanted, CURIOUS)
    found = accepted(wanted, chosen)
    assert failure_bounds_of(found) == chosen.failure_bounds
    if highest:  # every threshold up to the largest is as good
        at = choose_graph(wanted, CURIOUS, threshold=chosen.max_threshold)
        assert at.degree == chosen.degree
        accepted(wanted, at)


def drawn(wanted, chosen, **changes):
    """The parameters of a cohort whose clients draw their edges."""
    tail = SparseParameters(
        Trust("trust", bytes(32), 0, bytes(32)),
        graph_bits=wanted.graph_bits,
        in_cap=3 * chosen.degree,
        quorum=changes.pop("quorum", chosen.quorum),
    )
    fields = {
        "tail": tail,
        "modulus": 1 << 20,
        "dimension": 8,
        "min_clients": wanted.min_clients,
        "max_clients": wanted.max_clients,
        "threshold": chosen.threshold,
        "degree": chosen.degree,
        # What noise may count on: signers, without those left out unseen.
        "min_survivors": chosen.quorum - chosen.unseen,
        "max_dropouts": 0,
        "max_losses": wanted.max_losses,
        "colluders": wanted.colluders,
        "deadlines": RoundDeadlines(choose_edges=60, consistency=60),
    }
    return ProtocolParameters(**fields | changes)


@pytest.mark.parametrize(
    ("clients", "corrupt", "dropout"),
    [(1000, ".05", ".1"), (1000, ".2", ".3"), (1500, ".1", ".2"), (4000, ".1", ".3")],
)
def test_chosen_drawn_edges_are_possible_and_minimal(clients, corrupt, dropout):
    wanted = demand(clients, corrupt, dropout)
    chosen = choose_graph(wanted, MALICIOUS)
    found = drawn(wanted, chosen).check_possible(demanded_bits=server_demand)
    assert failure_bounds_of(found) == chosen.failure_bounds
    for change, complaint in (
        ({"threshold": chosen.threshold - 1}, "may stand apart .* threshold must be"),
        (
            {"min_survivors": chosen.quorum - chosen.unseen + 1},
            f"quorum must be at least {chosen.quorum + 1}",
        ),
        ({"colluders": 2 * wanted.colluders, "quorum": clients}, "may stand apart"),
    ):
        with pytest.raises(RemoteProtocolError, match=complaint) as refused:
            drawn(wanted, chosen, **change).check_possible()
        assert refused.value.code is ErrorCode.BAD_CONFIG


@settings(max_examples=200, deadline=None)
@given(demands(), st.sampled_from([CURIOUS, SEMI]))
def test_a_stronger_demand_never_gets_a_sparser_graph(wanted, adversary):
    def size_for(**changes):
        fields = {name: getattr(wanted, name) for name in wanted.__slots__} | changes
        try:
            chosen = choose_graph(GraphDemand(**fields), adversary)
        except ServiceError:
            return math.inf
        return chosen.degree or wanted.max_clients

    here = size_for()
    assert size_for(colluders=wanted.colluders + 1) >= here
    assert size_for(max_losses=wanted.max_losses + 1) >= here
    assert size_for(min_survivors=max(2, wanted.min_survivors - 1)) >= here
    assert size_for(graph_bits=wanted.graph_bits + 1) >= here
    assert size_for(liveness_bits=wanted.liveness_bits + 1) >= here


@pytest.mark.parametrize(
    ("sizes", "losses", "survivors", "colluders"),
    [
        ((200, 1000), 100, 170, 20),  # most in proportion on a roster of 270
        ((300, 1000), 50, 200, 30),
        ((300, 400), 200, 200, 30),
    ],
)
def test_a_ring_is_safe_and_live_on_every_roster_in_the_range(
    sizes, losses, survivors, colluders
):
    wanted = GraphDemand(
        min_clients=sizes[0],
        max_clients=sizes[1],
        min_survivors=survivors,
        max_losses=losses,
        colluders=colluders,
    )
    chosen = choose_graph(wanted, CURIOUS)
    assert chosen.graph is Graph.RING
    live, whole, hidden = [], [], []
    for clients in range(sizes[0], sizes[1] + 1):
        ring = {"clients": clients, "degree": chosen.degree}
        lost = {"losses": wanted.losses(clients)}
        t = {"threshold": chosen.threshold}
        live.append(log_short_of_holders(**ring, **lost, **t))
        whole.append(log_planned_cut(**ring, **lost, colluders=colluders))
        hidden.append(log_corrupt_holders(**ring, **t, colluders=colluders))
    assert bits_of(max(live)) == pytest.approx(chosen.failure_bounds.liveness_bits)
    assert bits_of(max(whole)) == pytest.approx(chosen.failure_bounds.cut_bits)
    assert bits_of(max(hidden)) == pytest.approx(chosen.failure_bounds.holder_bits)
    assert chosen.failure_bounds.liveness_bits > wanted.liveness_bits
    assert min(
        chosen.failure_bounds.cut_bits, chosen.failure_bounds.holder_bits
    ) >= server_demand(wanted.graph_bits)


def test_an_explicit_threshold_is_used_or_rejected():
    wanted = demand(1000, ".1", ".1")
    least = choose_graph(wanted, CURIOUS)
    wider = choose_graph(wanted, CURIOUS, threshold=least.threshold + 6)
    assert wider.threshold == least.threshold + 6
    assert wider.degree > least.degree
    # Too few for any ring that is not cut, and for the complete graph.
    with pytest.raises(ServiceError, match=r"at least 101 shares.*not 5") as refused:
        choose_graph(wanted, CURIOUS, threshold=5)
    assert refused.value.code is ErrorCode.INFEASIBLE


# --- where no sparse graph will do --------------------------------------------------


def test_the_complete_graph_is_chosen_with_a_reason():
    chosen = choose_graph(demand(100, ".33", ".33"), CURIOUS)
    assert (chosen.graph, chosen.degree) == (Graph.COMPLETE, 0)
    assert (chosen.threshold, chosen.max_threshold) == (51, 67)
    assert "no ring with degree up to 50 is safe" in chosen.why
    # Losses leave no majority: what is safe and live wins over what is preferred.
    assert choose_graph(demand(20, ".1", ".7"), CURIOUS).threshold == 6


@pytest.mark.parametrize("adversary", [SEMI, MALICIOUS])
def test_against_malicious_servers_the_complete_graph_needs_two_thirds(adversary):
    chosen = choose_graph(demand(90, "1/3", "1/4"), adversary)
    assert (chosen.graph, chosen.threshold) == (Graph.COMPLETE, 61)
    assert 2 * chosen.threshold > 90 + 30 >= 2 * (chosen.threshold - 1)
    assert chosen.quorum == (61 if adversary is MALICIOUS else None)


def test_malicious_servers_get_the_complete_graph_below_a_thousand_and_beyond_ten():
    small = choose_graph(demand(999, ".1", ".1"), MALICIOUS)
    assert (small.graph, small.threshold) == (Graph.COMPLETE, 550)
    assert "below 1000" in small.why
    large = choose_graph(demand(20_000, ".1", ".1"), MALICIOUS)
    assert (large.graph, large.threshold) == (Graph.COMPLETE, 11_001)
    assert "above 10000" in large.why


@pytest.mark.parametrize(
    ("wanted", "adversary", "reason"),
    [
        (demand(100, ".5", ".5"), CURIOUS, "fewer than two honest"),
        (demand(2, "0", ".5"), CURIOUS, "fewer than two honest"),
        (demand(100, ".3", ".4"), MALICIOUS, "at least 66 shares.*at most 60"),
        (demand(2000, ".3", ".4"), MALICIOUS, "at least 1301 shares"),
        (demand(100_000, ".1", ".1"), MALICIOUS, "ends at 65535 clients"),
        (demand(1_000_000, ".5", ".499"), CURIOUS, "ends at 65535 clients"),
        (demand(1, "0", "0"), CURIOUS, "a cohort has 2 to"),
        (demand(2_000_000, "0", "0"), CURIOUS, "a cohort has 2 to"),
    ],
)
def test_an_infeasible_demand_is_rejected_with_a_reason(wanted, adversary, reason):
    with pytest.raises(ServiceError, match=reason) as refused:
        choose_graph(wanted, adversary)
    assert refused.value.code is ErrorCode.INFEASIBLE
    assert refused.value.next_step


@pytest.mark.parametrize("clients", [10, 1_000, 30_000, 1_000_000])
@pytest.mark.parametrize("adversary", [CURIOUS, SEMI])
def test_a_search_computes_few_failure_probabilities_at_any_size(clients, adversary):
    """A million clients are searched like ten: nothing is as long as the cohort."""
    for corrupt in ("0", ".05", ".3", ".45"):
        log_drawn.cache_clear()
        with contextlib.suppress(ServiceError):  # no ring, and too many for the other
            choose_graph(demand(clients, corrupt, ".3"), adversary)
        assert log_drawn.cache_info().misses < 6_000


# --- simulation ---------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "c", "losses"), [(60, 6, 9), (200, 20, 40)])
def test_drawn_rings_satisfy_the_failure_probability(clients, c, losses):
    """Rings with random colluders and losses, made for 4 bits each.

    False alarm below 1e-6 for each of the three: of 2000 rings at most 1/32 (1/16 for
    liveness) may fail on average, and 105 (190) failures have a chance of 4e-7 (3e-8).
    """
    wanted = demand_of(clients, c, losses, 4, 4)
    chosen = choose_graph(wanted, CURIOUS)
    assert chosen.graph is Graph.RING
    assert client_demand(4) <= chosen.failure_bounds.holder_bits < 12
    reach, rings = chosen.degree // 2, 2000
    generator = np.random.default_rng(11)  # noqa: TID251 - rings, not secrets
    order = generator.permuted(np.tile(np.arange(clients), (rings, 1)), axis=1)
    bad = order < c
    lost = generator.permuted(np.tile(np.arange(clients), (rings, 1)), axis=1) < losses
    near = [s for s in range(-reach, reach + 1) if s]
    corrupt = sum(np.roll(bad, s, axis=1).astype(int) for s in near)
    alive = sum(np.roll(~lost, s, axis=1).astype(int) for s in near)
    gone = bad | lost
    empty = np.logical_and.reduce([np.roll(gone, -s, axis=1) for s in range(reach)])
    # A window counts where it begins right after an honest, live client.
    gaps = (empty & ~np.roll(gone, 1, axis=1)).sum(axis=1)
    broken = ((corrupt >= chosen.threshold) & ~bad).any(axis=1).sum()
    assert broken < 105
    assert (gaps > 1).sum() < 105
    assert (alive < chosen.threshold).any(axis=1).sum() < 190
