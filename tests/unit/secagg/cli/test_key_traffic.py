"""Bytes that are announced against bytes that are sent."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import signing_parameters_for, sparse_parameters_for

from secagg.cli.key_traffic import key_traffic
from secagg.crypto.entropy import SystemEntropy
from secagg.protocol.graphs.choice import (
    GraphAdversary,
    GraphChoice,
    GraphDemand,
    choose_graph,
)
from secagg.protocol.messages import Fate, Released
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.simulation import LossPlan, simulate_session
from secagg.simulation.driver import InProcessSession, identity_of


def parameters(clients, degree):
    return ProtocolParameters(
        modulus=1 << 16,
        dimension=10,
        min_clients=clients,
        max_clients=clients,
        threshold=2,
        degree=degree,
        tail=HonestCuriousParameters(40 if degree else 0),
        min_survivors=clients,
        max_dropouts=0,
        max_losses=0,
    )


@pytest.mark.parametrize(("clients", "degree"), [(9, 0), (17, 0), (17, 6), (40, 12)])
def test_the_announced_traffic_of_a_session_is_exact(clients, degree):
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
    ("configured", "kind"),
    [
        (signing_parameters_for(13, dimension=10, modulus=1 << 16), Graph.COMPLETE),
        (
            sparse_parameters_for(40, dimension=10, modulus=1 << 16, degree=12),
            Graph.K_OUT,
        ),
    ],
    ids=["complete", "drawn"],
)
def test_the_announced_traffic_of_a_signed_session_is_exact(configured, kind):
    clients = configured.max_clients
    graph = GraphChoice(
        graph=kind,
        degree=configured.degree,
        threshold=2,
        max_threshold=2,
        quorum=configured.quorum,
    )
    costs = simulate_session(
        configured, clients=clients, losses=LossPlan({}), entropy=SystemEntropy()
    ).costs
    announced, vector = key_traffic(graph, clients=clients), 20
    names = len(identity_of(0)) - len("client-01017")
    up = costs.bytes_up - clients * (vector + names)
    # A bitmap of those who share takes a byte for every eight, begun ones too.
    assert abs(up - clients * announced.up) <= clients
    offer = InProcessSession(configured, [], task_id="simulation").descriptor
    ending = len(Released(Fate.INCLUDED, bytes(32), vector, clients, 0).encode())
    down = costs.bytes_down - clients * (ending + len(offer.encode()))
    down -= clients * clients * names
    if kind is Graph.COMPLETE:
        assert down == clients * announced.down
    else:
        assert 0.8 * clients * announced.down <= down <= clients * announced.down


@pytest.mark.parametrize(
    ("clients", "at_most"), [(1000, 30 << 20), (10_000, 512 << 20)]
)
def test_the_traffic_of_a_ring_grows_linearly_with_the_cohort(clients, at_most):
    ring = GraphChoice(graph=Graph.RING, degree=64, threshold=33, max_threshold=33)
    complete = replace(ring, graph=Graph.COMPLETE, degree=0)
    assert clients * key_traffic(ring, clients=clients).down <= at_most
    assert key_traffic(complete, clients=clients).down >= clients * 100


def test_sparse_graphs_reduce_traffic_and_signatures_increase_it():
    demand = GraphDemand(
        min_clients=2000,
        max_clients=2000,
        min_survivors=1800,
        max_losses=200,
        colluders=100,
    )
    ring = key_traffic(choose_graph(demand, GraphAdversary.CURIOUS), clients=2000)
    drawn = key_traffic(choose_graph(demand, GraphAdversary.MALICIOUS), clients=2000)
    full = GraphChoice(
        graph=Graph.COMPLETE, degree=0, threshold=1051, max_threshold=1800
    )
    complete = key_traffic(full, clients=2000)
    assert ring.up < drawn.up < complete.up
    # The signatures of 2000 outweigh what the graph saves on bundles.
    assert ring.down < complete.down < drawn.down
