from dataclasses import replace

import pytest
from secagg_testing.cohorts import (
    offer_of,
    signing_parameters_for,
    sparse_parameters_for,
)

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import MAX_NOISE_TERMS_BYTES, MAX_TASK_ID_BYTES
from secagg.protocol.enrolment import Credential
from secagg.protocol.graphs.edge_selection import EdgeTrees
from secagg.protocol.messages import (
    MAX_IDENTITY_BYTES,
    Advert,
    Edges,
    Quorum,
    Roster,
    RosterProof,
)
from secagg.protocol.parameters import (
    MAX_CLIENTS,
    MAX_NOISE_BLOCK_BYTES,
    ProtocolParameters,
)
from secagg.protocol.profiles import SparseParameters
from secagg.simulation.driver import simulated_trust
from secagg.wire import calls


def parameters(**changes):
    fields = {
        "modulus": 1 << 20,
        "dimension": 1000,
        "min_clients": 10,
        "max_clients": 100,
        "threshold": 7,
        "min_survivors": 8,
        "max_dropouts": 2,
        "max_losses": 2,
    }
    return ProtocolParameters(**{**fields, **changes})


def test_message_sizes_are_computed_from_the_parameters():
    complete = calls.message_sizes(parameters())
    assert complete.bundles == 99 * 96
    assert complete.shares == 100 * 34 + 13
    layered = parameters(noise_block=b"{}", noise_layers=5)
    assert calls.message_sizes(layered).shares == 100 * 34 + 13 + 5 * 32
    ring = calls.message_sizes(parameters(degree=8))
    assert ring.bundles == 8 * 96
    assert ring.shares == 9 * 34 + 2
    assert ring.roster == complete.roster
    assert (complete.quorum, ring.quorum) == (0, 0)


@pytest.mark.parametrize("signed", [0, 40, 100])
def test_a_quorum_does_not_exceed_its_announced_size(signed):
    announced = calls.message_sizes(signing_parameters_for(100, dimension=4)).quorum
    assert announced == 8 + 100 * 100
    quorum = Quorum(
        tuple((n, bytes(64)) for n in range(signed)),
        tuple(RosterProof(n, bytes(32), bytes(64)) for n in range(signed, 100)),
    )
    assert len(quorum.encode()) == announced - 32 * signed


def test_messages_about_drawn_neighbours_do_not_exceed_the_announced_size():
    clients, degree = 30, 9
    configured = sparse_parameters_for(clients, dimension=4, degree=degree)
    # All draw the first ones, so that these are drawn as often as can be.
    lists = {
        index: Edges(
            tuple([i for i in range(clients) if i != index][:degree]), bytes(64)
        )
        for index in range(3 * degree + 1)
    }
    trees = EdgeTrees(bytes(32), clients, lists, configured.suite)
    shown = trees.published(0)
    assert len(shown.drawers) == configured.tail.in_cap
    announced = calls.message_sizes(configured)
    # But for proofs that have less to prove.
    assert 0.75 * announced.edges < len(shown.encode()) <= announced.edges
    assert announced.shares == 27 * 34 + 4


def test_oversized_neighbour_lists_are_rejected_with_a_next_step():
    tail = SparseParameters(simulated_trust(), graph_bits=40, in_cap=6000, quorum=6000)
    drawn = {"tail": tail, "max_clients": 10_000, "degree": 2000}
    calls.check_transportable(parameters(**drawn))
    more = drawn | {"tail": replace(tail, in_cap=9000), "degree": 3000}
    with pytest.raises(RemoteProtocolError, match="3000 drawn") as caught:
        calls.check_transportable(parameters(**more))
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert "in_cap" in caught.value.next_step


def test_the_largest_roster_has_the_announced_size():
    adverts = tuple(
        Advert(
            name := f"{i:0255d}",
            bytes(32),
            bytes(32),
            bytes(32),
            (bytes(32),) * 17,
            Credential(
                name=name,
                identity_key=bytes(32),
                not_before=0,
                not_after=0,
                serial=1,
                signature=bytes(64),
            ),
            bytes(64),
        )
        for i in range(100)
    )
    assert len(adverts[0].identity) == MAX_IDENTITY_BYTES
    encoded = Roster(adverts, bytes(32)).encode()
    assert len(encoded) <= calls.message_sizes(parameters()).roster
    assert calls.message_sizes(parameters()).roster - len(encoded) < 100


def test_the_largest_descriptor_fits_into_its_limit():
    descriptor = offer_of(
        parameters(noise_block=bytes(MAX_NOISE_BLOCK_BYTES)),
        task_id="t" * MAX_TASK_ID_BYTES,
        session_number=(1 << 63) - 1,
        payload_hash=bytes(32),
        noise_terms=bytes(MAX_NOISE_TERMS_BYTES),
    )
    assert len(descriptor.encode()) <= calls.MAX_DESCRIPTOR_BYTES


def test_an_oversized_complete_graph_is_rejected_with_a_next_step():
    calls.check_transportable(parameters(max_clients=43_000))
    calls.check_transportable(parameters(max_clients=MAX_CLIENTS, degree=8))
    with pytest.raises(RemoteProtocolError, match="43689 neighbours") as caught:
        calls.check_transportable(parameters(max_clients=MAX_CLIENTS))
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert "degree" in caught.value.next_step
