"""While clients draw their neighbours: who may end it, and how many are enough."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import one_hot, sparse_parameters_for

from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import share_bundles
from secagg.protocol.client import states as client_states
from secagg.protocol.client.checks import check_roster
from secagg.protocol.events import AbortRequested, Received
from secagg.protocol.messages import Aborted, Envelope, Fate, Round
from secagg.protocol.server import machine as server
from secagg.protocol.server import states as server_states
from secagg.simulation.driver import InProcessSession

CLIENTS, LOSSES = 12, 3
PARAMETERS = sparse_parameters_for(
    CLIENTS, dimension=CLIENTS, degree=7, colluders=1, losses=LOSSES
)


def rostered(parameters=PARAMETERS):
    session = InProcessSession(
        parameters, [one_hot(n, CLIENTS, 1 << 20) for n in range(CLIENTS)]
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    return session


@pytest.fixture
def session():
    """Return a session whose clients can see the roster, and have drawn no client."""
    return rostered()


@pytest.fixture
def drawn(session):
    """Return what client 0 has drawn, and will send."""
    outputs = session.act(0, Round.CHOOSE_EDGES)
    assert isinstance(session.clients[0], client_states.EdgesChosen)
    return outputs


@pytest.mark.parametrize(("missing", "goes_on"), [(0, True), (1, False)])
def test_the_round_continues_with_as_many_lists_as_min_survivors(
    session, missing, goes_on
):
    # R5.9-11
    needed = PARAMETERS.min_survivors
    assert PARAMETERS.threshold < needed < CLIENTS
    session.play(Round.CHOOSE_EDGES, range(needed - missing))
    assert server.progress(session.server_state).needed == needed
    session.close(Round.CHOOSE_EDGES)
    assert isinstance(session.server_state, server_states.ShareKeys) is goes_on


@pytest.mark.usefixtures("drawn")
def test_a_client_that_chose_edges_accepts_an_abort(session):
    over = Aborted(Fate.NEVER_FIXED, ErrorCode.CANCELLED, "the operator has ended it")
    session.to_client(0, Received(Envelope.of(over)))
    state = session.clients[0]
    assert isinstance(state, client_states.Failed)
    assert (state.code, state.reason) == (over.code, over.reason)


@pytest.mark.usefixtures("drawn")
def test_a_client_that_chose_edges_can_leave(session):
    session.to_client(0, AbortRequested(ErrorCode.DEADLINE, "the round takes too long"))
    state = session.clients[0]
    assert isinstance(state, client_states.Failed)
    assert state.code is ErrorCode.DEADLINE


def test_the_operator_can_end_it(session):
    session.to_server(AbortRequested(ErrorCode.CANCELLED, "not today"))
    outcome = session.server_state.outcome
    assert (outcome.fate, outcome.code) == (Fate.NEVER_FIXED, ErrorCode.CANCELLED)


@pytest.mark.usefixtures("drawn")
def test_the_failure_bounds_are_checked_at_every_roster(session):
    # R5.9-2
    state, data = session.clients[0], session.server_state.opening.data
    tail = replace(PARAMETERS.tail, graph_bits=100)
    advert = state.roster.adverts[0]

    def judged(parameters):
        view = {"ctx0": state.facts.ctx0, "member": None}
        return check_roster(parameters, data, advert, **view)

    assert judged(PARAMETERS).size == CLIENTS
    with pytest.raises(RemoteProtocolError) as caught:
        judged(replace(PARAMETERS, tail=tail))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_an_invalid_encryption_key_names_its_owner(session):
    """The roster's keys were looked at before; the agreement looks again."""
    view = session.act(1, Round.CHOOSE_EDGES) and session.clients[1].roster
    low = replace(view.adverts[0], encryption_key=bytes(32))
    keys = KeyPair.from_private_bytes(SecretBytes(bytes([9]) * 32))
    with pytest.raises(RemoteProtocolError) as caught:
        share_bundles._agreed(keys, low)
    assert caught.value.code is ErrorCode.BAD_PUBLIC_KEY
    assert caught.value.sender == low.identity


def test_a_client_drawn_by_few_peers_stays_in_the_session():
    """How many draw a client is chance: it says nothing of who was shown what."""
    session = rostered(replace(PARAMETERS, threshold=PARAMETERS.degree))
    for which in (Round.CHOOSE_EDGES, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    graph = session.server_state.cohort.graph
    drawers = {n: len(graph.dealers(n)) for n in range(CLIENTS)}
    fewest = min(drawers, key=drawers.get)
    assert drawers[fewest] < PARAMETERS.degree
    session.update(fewest)
    assert isinstance(session.clients[fewest], client_states.Masked)
