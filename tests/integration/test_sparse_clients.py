"""Profile `malicious-server-sparse`, end to end: its extra round over a connection.

What the state machines check is tested beside them (tests/hostile/test_drawn_edges.py);
here it is what stands around them: what is sent again, fetched in pieces, counted, and
shown afterwards.  Restarts at any point are in tests/integration/test_crash_matrix.py,
among clients so few that there is nothing to draw.
"""

from dataclasses import replace

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import sparse_parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection, instead

from secagg.client.contribution import SessionOutcome, receipt_of
from secagg.errors import ErrorCode
from secagg.protocol.messages import EdgesPublished, Envelope, Roster
from secagg.protocol.receipts.receipt import WrittenBy
from secagg.protocol.receipts.verifier import Finding, verify_receipt
from secagg.server import aggregator as client_desk
from secagg.simulation.driver import published_in_simulation
from secagg.wire.calls import Blob, ChooseEdges, FetchChunk, GetUpdate, WatchSession

CLIENTS, CRASHING = 5, 2
PUBLISHED = published_in_simulation(2, 98, 99)
PARAMETERS = sparse_parameters_for(
    CLIENTS, dimension=7, degree=3, colluders=1, losses=1
).under(PUBLISHED.trust)


def deploy(parameters=PARAMETERS, *, clients=CLIENTS, **options):
    async def main(clock):
        deployment = Deployment(
            clock, parameters, clients, revocations=PUBLISHED.revocations, **options
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def assert_exact(deployment, numbers):
    assert deployment.contradictions() == {}
    assert len(deployment.sums) == 1
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum(set(numbers))
    )


def verified(data):
    return verify_receipt(data, enrolment_key=PUBLISHED.enrolment_key)


def test_clients_that_draw_their_neighbours_get_a_verifiable_sum():
    deployment, endings = deploy(payload=b"a query")
    assert_exact(deployment, range(CLIENTS))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    # That no client stands apart is probable and never certain.
    assert not any(ending.is_certain for ending in endings.values())
    of_server = verified(deployment.sums[0].audit)
    assert of_server.finding is Finding.AGREED
    for number in range(CLIENTS):
        data = answer_of(receipt_of(deployment.client_stores[number], TASK_ID, 1))
        shown = verified(data)
        assert shown.finding is Finding.AGREED
        own = replace(shown.receipt, writer=WrittenBy.SERVER)
        assert own == of_server.receipt
        assert len(shown.receipt.edge_root) == 32


def test_a_client_without_a_list_is_told_that_it_is_excluded():
    def slow(number, call, count):
        late = number == 0 and call is ChooseEdges and count < 12
        return Fault.LOSE_REQUEST if late else Fault.NONE

    deployment, endings = deploy(fault_of=slow, max_attempts=1)
    assert_exact(deployment, range(1, CLIENTS))
    assert endings[0].code is ErrorCode.SESSION_OVER
    assert all(isinstance(endings[n], SessionOutcome) for n in range(1, CLIENTS))


@pytest.mark.parametrize("watch", [True, False], ids=["streams", "polls"])
def test_large_edge_lists_are_fetched_in_pieces(monkeypatch, watch):
    monkeypatch.setattr(client_desk, "MAX_INLINE_BYTES", 100)
    read = []

    class Reading(LyingConnection):
        async def call(self, request):
            if isinstance(request, FetchChunk):
                read.append(request.blob)
            return await super().call(request)

        async def watch(self, request):
            if not watch:
                return
            async for update in super().watch(request):
                yield update

    deployment, _ = deploy(tamper=lambda _, link: Reading(link, {}))
    assert_exact(deployment, range(CLIENTS))
    for blob in (Blob.ROSTER, Blob.EDGES, Blob.DELIVERY, Blob.QUORUM):
        assert read.count(blob) == CLIENTS
    assert Blob.NEIGHBOURHOOD not in read


def test_a_hidden_edge_ends_the_session_only_for_its_reader():
    def hide(shown):
        return EdgesPublished(
            shown.edge_root,
            shown.drawers[1:],
            shown.own_proof,
            shown.lists,
            shown.leaves_proof,
        )

    lie = instead(EdgesPublished, hide)
    deployment, endings = deploy(
        tamper=lambda number, link: (
            LyingConnection(link, {GetUpdate: lie, WatchSession: lie})
            if number == CRASHING
            else link
        ),
    )
    assert_exact(deployment, set(range(CLIENTS)) - {CRASHING})
    assert endings[CRASHING].code is ErrorCode.SELF_MISSING


@pytest.fixture(scope="module")
def drawn():
    """The crash point before the client says which edges it has drawn."""
    switch = CrashSwitch()
    deploy(client_crash={CRASHING: switch})
    return switch.points.index("before ChooseEdges")


@pytest.mark.parametrize("later", [-1, 0, 1])
def test_a_client_killed_while_choosing_edges_draws_the_same_edges(drawn, later):
    deployment, endings = deploy(client_crash={CRASHING: CrashSwitch(drawn + later)})
    assert_exact(deployment, range(CLIENTS))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


def test_a_different_roster_after_the_list_was_signed_raises_equivocation():
    def lie(answer):
        if isinstance(answer, Envelope) and answer.kind is EdgesPublished:
            return Envelope(Roster, b"another")
        return answer

    _, endings = deploy(
        tamper=lambda number, link: (
            LyingConnection(link, {GetUpdate: lie, WatchSession: lie})
            if number == CRASHING
            else link
        ),
    )
    assert endings[CRASHING].code is ErrorCode.EQUIVOCATION
