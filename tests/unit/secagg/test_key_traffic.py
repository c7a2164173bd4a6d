"""Bytes that are announced against bytes that are sent."""

from dataclasses import replace

import pytest

from secagg.graph_choice import (
    Adversary,
    GraphChoice,
    GraphDemand,
    choose_graph,
)
from secagg.key_traffic import key_traffic
from secagg.messages import Fate, Released
from secagg.parameters import Graph, ProtocolParameters
from secagg.primitives.entropy import SystemEntropy
from secagg.profiles import HonestTail
from secagg.simulation import LossPlan, simulate_session
from secagg.simulation.driver import InProcessSession


def parameters(clients, degree):
    return ProtocolParameters(
        modulus=1 << 16,
        dimension=10,
        min_clients=clients,
        max_clients=clients,
        threshold=2,
        degree=degree,
        tail=HonestTail(40 if degree else 0),
        min_survivors=clients,
        max_dropouts=0,
        max_losses=0,
    )


@pytest.mark.parametrize(("clients", "degree"), [(9, 0), (17, 0), (17, 6), (40, 12)])
def test_a_session_moves_exactly_what_is_announced(clients, degree):
    configured = parameters(clients, degree)
    costs = simulate_session(
        configured, clients=clients, losses=LossPlan({}), entropy=SystemEntropy()
    ).costs
    kind = Graph.RING if degree else Graph.COMPLETE
    graph = GraphChoice(graph=kind, degree=degree, threshold=2, max_threshold=2)
    announced = key_traffic(graph, clients=clients)
    vector = 20
    assert costs.bytes_up == clients * (announced.up + vector)
    offer = InProcessSession(configured, [], task_id="simulation").descriptor
    ending = len(Released(Fate.INCLUDED, bytes(32), vector, clients, 0).encode())
    down = costs.bytes_down - clients * (ending + len(offer.encode()))
    if degree:  # where neighbours stand decides how many hashes prove them
        assert 0.8 * clients * announced.down <= down <= clients * announced.down
    else:
        assert down == clients * announced.down


@pytest.mark.parametrize(
    ("clients", "at_most"), [(1000, 30 << 20), (10_000, 512 << 20)]
)
def test_a_cohort_on_a_ring_reads_what_it_needs_and_not_n_squared(clients, at_most):
    ring = GraphChoice(graph=Graph.RING, degree=64, threshold=33, max_threshold=33)
    complete = replace(ring, graph=Graph.COMPLETE, degree=0)
    assert clients * key_traffic(ring, clients=clients).down <= at_most
    assert key_traffic(complete, clients=clients).down >= clients * 100


def test_sparse_graphs_cost_less_and_signatures_more():
    demand = GraphDemand(
        min_clients=2000,
        max_clients=2000,
        min_survivors=1800,
        max_losses=200,
        colluders=100,
    )
    ring = key_traffic(choose_graph(demand, Adversary.CURIOUS), clients=2000)
    drawn = key_traffic(choose_graph(demand, Adversary.MALICIOUS), clients=2000)
    full = GraphChoice(
        graph=Graph.COMPLETE, degree=0, threshold=1051, max_threshold=1800
    )
    complete = key_traffic(full, clients=2000)
    assert ring.up < drawn.up < complete.up
    # A quorum of 1051 signatures outweighs what the graph saves on bundles.
    assert ring.down < complete.down < drawn.down
