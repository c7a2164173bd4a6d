"""Whole sessions in memory: any losses give the exact sum or a typed abort."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secagg.errors import ErrorCode
from secagg.protocol import client, server
from secagg.protocol.rounds import Round
from secagg.testing.in_process import (
    ROUNDS,
    InProcessSession,
    one_hot,
    parameters_for,
    run_session,
)

MODULI = [2, 1 << 8, 1 << 16, 1 << 20, 1 << 32, 1 << 48, 1_000_003]
LOSSES = st.sampled_from([*ROUNDS, Round.FINISHED])


def expected_sum(survivors, dimension, modulus):
    total = np.zeros(dimension, object)
    for number in survivors:
        total[number % dimension] = (total[number % dimension] + modulus - 1) % modulus
    return total.tolist()


def survivors_of(clients, lost):
    return tuple(
        number
        for number in range(clients)
        if lost.get(number, Round.FINISHED) >= Round.UNMASKING
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), modulus=st.sampled_from(MODULI))
def test_any_losses_on_the_complete_graph_give_the_survivors_sum(data, modulus):
    clients = data.draw(st.integers(3, 9), label="clients")
    threshold = data.draw(st.integers(2, clients), label="threshold")
    lost = data.draw(
        st.dictionaries(st.integers(0, clients - 1), LOSSES), label="lost before"
    )
    session = InProcessSession(
        parameters_for(clients, dimension=11, threshold=threshold, modulus=modulus),
        [one_hot(number, 11, modulus) for number in range(clients)],
    )
    result = run_session(session, lost)
    answering = clients - sum(1 for which in lost.values() if which < Round.FINISHED)
    if answering >= threshold:
        assert result.code is None
    if result.code is None:
        assert result.survivors == survivors_of(clients, lost)
        assert result.total.tolist() == expected_sum(result.survivors, 11, modulus)
        assert all(
            isinstance(state, client.Finished)
            for number, state in result.client_states.items()
            if number in result.survivors
        )
    else:
        assert answering < threshold
        assert result.total is None
        assert result.code in {
            ErrorCode.ROSTER_TOO_SMALL,
            ErrorCode.U2_TOO_SMALL,
            ErrorCode.U3_TOO_SMALL,
            ErrorCode.TOO_FEW_ANSWERS,
        }
        for state in result.client_states.values():
            # Round 0 can end without a session for a client; everywhere else the
            # client is told.
            assert isinstance(state, client.Aborted)
            assert state.code in {result.code, ErrorCode.SESSION_OVER}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), modulus=st.sampled_from(MODULI))
def test_any_losses_on_a_ring_give_the_survivors_sum_or_a_typed_abort(data, modulus):
    clients = data.draw(st.integers(8, 14), label="clients")
    degree = data.draw(st.sampled_from([4, 6]), label="degree")
    threshold = data.draw(st.integers(2, degree - 1), label="threshold")
    lost = data.draw(
        st.dictionaries(st.integers(0, clients - 1), LOSSES, max_size=6), label="lost"
    )
    session = InProcessSession(
        parameters_for(
            clients,
            dimension=17,
            threshold=threshold,
            modulus=modulus,
            degree=degree,
            min_clients=degree + 2,
        ),
        [one_hot(number, 17, modulus) for number in range(clients)],
    )
    result = run_session(session, lost)
    if result.code is None:
        # A ring may have to leave out a client whose holders are gone (PROTOCOL §11).
        assert set(result.survivors) <= set(survivors_of(clients, lost))
        assert result.total.tolist() == expected_sum(result.survivors, 17, modulus)
    else:
        assert result.total is None
        assert lost


def test_full_attendance_on_a_ring_leaves_nobody_out():
    session = InProcessSession(
        parameters_for(20, dimension=20, threshold=4, degree=6, min_clients=8),
        [one_hot(number, 20, 1 << 20) for number in range(20)],
    )
    result = run_session(session)
    assert result.survivors == tuple(range(20))
    assert result.total.tolist() == [(1 << 20) - 1] * 20


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_duplicates_and_reordering_within_a_round_change_nothing(data):
    clients = 5
    session = InProcessSession(
        parameters_for(clients, dimension=7, threshold=3),
        [one_hot(number, 7, 1 << 20) for number in range(clients)],
    )
    for which in ROUNDS:
        pending = []
        for number in session.clients:
            first = which is Round.ADVERTISE_KEYS
            outputs = session.offer(number) if first else session.update(number)
            events = [session.server_event(number, output) for output in outputs]
            # A repeated update is a no-op at the client.
            if not first:
                before = session.clients[number]
                session.update(number)
                assert session.clients[number] == before
            pending += events * data.draw(st.integers(1, 3), label="copies")
        for event in data.draw(st.permutations(pending), label="order"):
            session.to_server(event)
        session.close(which)
    assert isinstance(session.server_state, server.Completed)
    assert session.total.tolist() == expected_sum(range(clients), 7, 1 << 20)


@pytest.mark.parametrize("cut_after", range(22))
def test_replaying_the_accepted_events_rebuilds_the_server(cut_after):
    clients = 4
    session = InProcessSession(
        parameters_for(clients, dimension=5, threshold=2),
        [one_hot(number, 5, 1 << 20) for number in range(clients)],
    )
    run_session(session, {3: Round.MASKED_INPUT_COLLECTION})
    state = server.start(session.descriptor, packed_bytes=session.packed_bytes)
    for event in session.journal[:cut_after]:
        state = server.step(state, event).state
    again = server.start(session.descriptor, packed_bytes=session.packed_bytes)
    for event in session.journal[:cut_after]:
        again = server.step(again, event).state
    assert state == again
    for event in session.journal[cut_after:]:
        state = server.step(state, event).state
    assert state == session.server_state


def test_replaying_a_clients_journal_gives_the_same_bytes():
    clients = 4
    session = InProcessSession(
        parameters_for(clients, dimension=5, threshold=2),
        [one_hot(number, 5, 1 << 20) for number in range(clients)],
    )
    run_session(session)
    first = [
        client.step(state, event, policy=session.policy)
        for state, event in _walk(session, 0)
    ]
    second = [
        client.step(state, event, policy=session.policy)
        for state, event in _walk(session, 0)
    ]
    sent = [
        (getattr(output, "advert", None), getattr(output, "bundles", None))
        for result in first
        for output in result.outputs
    ]
    resent = [
        (getattr(output, "advert", None), getattr(output, "bundles", None))
        for result in second
        for output in result.outputs
    ]
    assert sent == resent
    assert any(bundles for _, bundles in sent)


def _walk(session, number):
    state = client.start()
    for event in session.client_journals[number]:
        yield state, event
        state = client.step(state, event, policy=session.policy).state
