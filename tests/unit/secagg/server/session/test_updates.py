"""What clients of one session may read, and how often it is put together."""

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.events import AbortRequested
from secagg.protocol.messages import Delivery, Roster, Round
from secagg.protocol.server import machine as server
from secagg.server.session import updates as readable_module
from secagg.server.session.updates import KEPT_UPDATES, ReadableUpdates
from secagg.simulation import InProcessSession, identity_of
from secagg.wire.calls import Blob, FetchChunk, Reference

CLIENTS = KEPT_UPDATES + 2


@pytest.fixture
def masking():
    """Return a session in round 2, and what clients may read of it."""
    parameters = parameters_for(CLIENTS, dimension=4, threshold=CLIENTS - 2)
    session = InProcessSession(parameters, [np.zeros(4, np.uint32)] * CLIENTS)
    readable = ReadableUpdates()
    for opened in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(opened)
        session.close(opened)
        readable.enter(session.server_state)
    return session.server_state, readable


@pytest.fixture
def made(monkeypatch):
    """Return the names of those for whom an update was put together."""
    names = []

    def counted(state, identity):
        names.append(identity)
        return server.update_for(state, identity)

    class Counted:
        def __getattr__(self, name):
            return counted if name == "update_for" else getattr(server, name)

    monkeypatch.setattr(readable_module, "server_machine", Counted())
    return names


def pieces(state, readable, identity, *, max_bytes):
    whole = b""
    while True:
        request = FetchChunk(bytes(32), Blob.DELIVERY, len(whole), max_bytes)
        piece = readable.piece(state, identity, request)
        whole += piece.data
        if len(whole) == piece.total_size:
            return whole


def test_a_delivery_is_encoded_once_for_pieces_of_any_size(masking, made):
    state, readable = masking
    update = readable.update_for(state, identity_of(3))
    assert pieces(state, readable, identity_of(3), max_bytes=7) == update.data
    assert readable.update_for(state, identity_of(3)) is update
    assert made == [identity_of(3)]


def test_one_client_cannot_evict_the_cached_delivery_of_another(masking, made):
    state, readable = masking
    readable.update_for(state, identity_of(0))
    for stranger in range(3 * KEPT_UPDATES):
        readable.update_for(state, identity_of(1))
        refused = readable.update_for(state, f"stranger {stranger}")
        assert refused.kind is not Delivery
    readable.update_for(state, identity_of(0))
    assert made.count(identity_of(0)) == made.count(identity_of(1)) == 1


def test_only_the_latest_deliveries_are_cached_and_all_are_correct(masking, made):
    state, readable = masking
    for _ in range(2):
        for number in range(CLIENTS):
            identity = identity_of(number)
            given = readable.update_for(state, identity)
            assert given == server.update_for(state, identity)
    assert len(made) == 2 * CLIENTS


def test_on_a_ring_each_client_reads_its_part_or_the_whole_roster():
    parameters = parameters_for(
        CLIENTS, dimension=4, threshold=3, degree=4, min_clients=6
    )
    session = InProcessSession(parameters, [np.zeros(4, np.uint32)] * CLIENTS)
    readable = ReadableUpdates()
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    sharing = session.server_state
    readable.enter(sharing)
    session.play(Round.SHARE_KEYS)
    session.close(Round.SHARE_KEYS)
    later = session.server_state  # both stay readable
    for state in (sharing, later):
        readable.enter(state)
        for number in range(CLIENTS):
            name = identity_of(number)
            parts = [
                readable.piece(state, name, FetchChunk(bytes(32), blob, 0)).data
                for blob in (Blob.ROSTER, Blob.NEIGHBOURHOOD)
            ]
            whole, own = (Roster.decode(part) for part in parts)
            assert whole == sharing.cohort.roster
            assert own.reader == sharing.cohort.index_of[name]
            assert set(own.adverts) == {
                own.reader,
                *sharing.cohort.graph.mask_peers(own.reader),
            }
        for blob in (Blob.ROSTER, Blob.NEIGHBOURHOOD):
            with pytest.raises(RemoteProtocolError) as caught:
                readable.piece(state, "stranger", FetchChunk(bytes(32), blob, 0))
            assert caught.value.code is ErrorCode.SESSION_OVER


def test_cached_updates_are_dropped_at_the_end_of_the_session(masking):
    state, readable = masking
    readable.update_for(state, identity_of(0))
    readable.enter(
        server.step(state, AbortRequested(ErrorCode.CANCELLED, "enough")).state
    )
    assert not any(vars(readable).values())


def test_an_update_sent_by_reference_is_hashed_once(masking, monkeypatch):
    state, readable = masking
    update = readable.update_for(state, identity_of(0))
    first = Reference.for_message(update)
    monkeypatch.setattr("secagg.protocol.messages.hashlib", None)
    assert Reference.for_message(readable.update_for(state, identity_of(0))) == first
