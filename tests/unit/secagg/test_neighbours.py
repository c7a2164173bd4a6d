import pytest
from secagg_testing.cohorts import parameters_for, sparse_parameters_for

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.graphs.neighbours import CompleteGraph, DrawnGraph, sharing_graph


def ring(size=20, degree=6, seed=b"g" * 32):
    parameters = parameters_for(
        size, dimension=1, threshold=2, degree=degree, min_clients=degree + 2
    )
    return sharing_graph(parameters, size, seed)


def test_a_ring_is_symmetric_regular_and_no_member_is_its_own_neighbour():
    graph = ring()
    for index in range(20):
        near = graph.mask_peers(index)
        assert len(set(near)) == 6
        assert index not in near
        assert list(near) == sorted(near)
        assert graph.holders(index) == graph.dealers(index) == near
        assert all(index in graph.mask_peers(other) for other in near)
        assert [graph.place(index, other) for other in near] == list(range(6))
        assert graph.count_holders(index, frozenset(near[:4])) == 4


def test_a_drawn_graph_has_no_edges_before_clients_draw():
    parameters = sparse_parameters_for(5, dimension=1, degree=4)
    graph = sharing_graph(parameters, 5, b"")
    assert isinstance(graph, DrawnGraph)
    assert not graph.has_common_holders
    assert graph == DrawnGraph({}, {})


def test_neighbour_positions_ascend_from_any_ring_start():
    graph = ring(size=9, degree=4)
    assert graph.mask_peers(4) == (2, 3, 5, 6)
    assert graph.mask_peers(1) == (0, 2, 3, 8)
    assert graph.mask_peers(8) == (0, 1, 6, 7)


def test_the_complete_graph_includes_the_clients_own_share():
    graph = CompleteGraph(4)
    assert graph.mask_peers(1) == (0, 2, 3)
    assert graph.holders(1) == graph.dealers(1) == (0, 1, 2, 3)
    assert [graph.place(2, other) for other in graph.mask_peers(2)] == [0, 1, 2]
    assert graph.count_holders(2, frozenset({0, 2})) == 2


def test_the_abscissa_of_a_holder_is_its_rank_among_the_holders():
    graph = ring()
    for dealer in range(20):
        places = [graph.abscissa(dealer, holder) for holder in graph.holders(dealer)]
        assert places == [1, 2, 3, 4, 5, 6]
    full = CompleteGraph(4)
    assert [full.abscissa(1, holder) for holder in full.holders(1)] == [1, 2, 3, 4]


def test_a_self_overlapping_ring_is_rejected():
    parameters = parameters_for(20, dimension=1, threshold=3, degree=6, min_clients=8)
    with pytest.raises(RemoteProtocolError) as caught:
        sharing_graph(parameters, 7, b"g" * 32)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
