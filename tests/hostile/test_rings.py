"""A ring is unmasked only where its numbers allow it, on both sides (PROTOCOL §11)."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import LENIENT_POLICY, one_hot, parameters_for

from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import checks
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import Received
from secagg.protocol.messages import Envelope, Round, Survivors
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.server import handlers as server_rounds
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.simulation import InProcessSession, identity_of

CLIENTS, DEGREE, MODULUS = 12, 4, 1 << 20


def ring(**overrides):
    fields = {
        "dimension": CLIENTS,
        "threshold": 2,
        "degree": DEGREE,
        "min_clients": 6,
        "min_survivors": 3,
    }
    return InProcessSession(
        parameters_for(CLIENTS, **(fields | overrides)),
        [one_hot(number, CLIENTS, MODULUS) for number in range(CLIENTS)],
    )


def at_places(session, places):
    return {session.roster[place] for place in places}


def uploading(session, lost_places=()):
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    lost = at_places(session, lost_places)
    which = Round.MASKED_INPUT_COLLECTION
    session.play(which, [n for n in session.clients if n not in lost])
    return lost


def ended(session):
    assert isinstance(session.server_state, server.Failed)
    return session.server_state.outcome.code


@pytest.mark.parametrize(
    ("colluders", "lost_places", "code"),
    [
        (0, (0, 1), None),  # a gap, which is no cut
        (0, (0, 1, 6, 7), ErrorCode.TOO_MANY_DROPOUTS),
        (1, (0, 5), None),  # one more cannot make two gaps of them
        (1, (0, 1, 6), ErrorCode.TOO_MANY_DROPOUTS),  # the colluder next to place 6
    ],
)
def test_losses_are_checked_before_u3_is_fixed(colluders, lost_places, code):
    session = ring(colluders=colluders)
    uploading(session, lost_places)
    session.close(Round.MASKED_INPUT_COLLECTION)
    if code is None:
        assert isinstance(session.server_state, server.Unmasking)
    else:
        assert ended(session) is code
        assert session.server_state.survivors == frozenset()


def test_a_client_checks_u3_by_its_own_ring_before_it_answers():
    session = ring(colluders=1)
    uploading(session)
    for lost_places, answers in (((0, 5), True), ((0, 1, 6), False)):
        survivors = frozenset(range(CLIENTS)) - set(lost_places)
        number = session.roster[min(survivors)]
        bitmap = encode_set(survivors, CLIENTS)
        event = Received(Envelope.of(Survivors(bitmap)))
        state = client_machine.step(
            session.clients[number], event, policy=LENIENT_POLICY
        ).state
        if answers:
            assert isinstance(state, client.Answered)
        else:
            assert state.code is ErrorCode.TOO_MANY_DROPOUTS


def test_a_dealer_without_holders_ends_the_attempt():
    """Leaving it out would let colluders choose who is lost on the ring."""
    session = ring()
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    (stranded,) = at_places(session, (3,))
    silent = at_places(session, (1, 2, 4))  # place 3 keeps the holder at place 5
    session.play(Round.SHARE_KEYS, [n for n in session.clients if n not in silent])
    session.close(Round.SHARE_KEYS)
    assert ended(session) is ErrorCode.DISPUTED
    assert identity_of(stranded) in session.server_state.outcome.reason


# --- colluders that outnumber the threshold ------------------------------------------

WIDE = {
    "dimension": 4,
    "threshold": 12,
    "degree": 20,
    "min_survivors": 24,
    "colluders": 12,
    "graph_bits": 14,
}


def wide(clients, **overrides):
    fields = WIDE | {"min_clients": clients} | overrides
    return parameters_for(clients, **fields)


def test_more_colluders_than_the_threshold_need_a_wide_enough_ring():
    wide(200).validate()
    with pytest.raises(RemoteProtocolError, match="colluders reach") as caught:
        wide(30).validate()
    assert caught.value.code is ErrorCode.BAD_CONFIG
    with pytest.raises(RemoteProtocolError, match="colluders") as caught:
        wide(200, degree=0, graph_bits=0).validate()
    assert caught.value.code is ErrorCode.BAD_CONFIG


def offer_of(parameters):
    return replace(InProcessSession(wide(200), []).descriptor, parameters=parameters)


def test_the_server_demands_more_graph_bits_than_a_client(monkeypatch):
    asked = []

    def demanded(bits):
        asked.append(bits)
        return bits + 1000.0

    for module in (server_machine, server_rounds):
        monkeypatch.setattr(module, "server_demand", demanded)
    with pytest.raises(RemoteProtocolError) as caught:
        server_machine.start(offer_of(wide(200)), packed_bytes=1)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert asked == [14]


def test_a_client_computes_the_failure_bounds_for_its_own_roster(monkeypatch):
    """R5.2-8: an offer speaks of the smallest roster, a roster of itself."""
    session = ring()
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    monkeypatch.setattr(checks, "holder_bits", lambda *_, **__: 40.9)
    session.update(0)
    assert session.clients[0].code is ErrorCode.POLICY_VIOLATION


def test_a_client_joins_a_ring_only_if_its_policy_allows_it():
    offer = offer_of(wide(200))
    lenient = replace(LENIENT_POLICY, min_graph_bits=14)
    lenient.check(offer)
    for policy, complaint in (
        (replace(lenient, graphs=ClientPolicy().graphs), "ring"),
        (replace(lenient, min_graph_bits=15), "graph_bits"),
    ):
        with pytest.raises(RemoteProtocolError, match=complaint) as caught:
            policy.check(offer)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert ClientPolicy().graphs == {Graph.COMPLETE}
    assert ClientPolicy().min_graph_bits == 40
