"""Whole sessions in memory: any losses give the exact sum or a typed abort.

Whatever happens, server and colluders together know no more than one sum over all
honest survivors.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import RecordedSession, one_hot, parameters_for
from secagg_testing.observed_session import ObservedSession

from secagg.errors import ErrorCode
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import Received, RoundClosed, Send
from secagg.protocol.messages import Advert, Bundles, Round, Shares
from secagg.protocol.parameters import Profile
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.simulation import InProcessSession, run_session
from secagg.simulation.driver import accepting

CLIENT_ROUNDS = rounds_of(Profile.HONEST_CURIOUS_SERVER)

MODULI = [2, 1 << 8, 1 << 16, 1 << 20, 1 << 32, 1 << 48, 1_000_003]
LOSSES = st.sampled_from([*CLIENT_ROUNDS, Round.FINISHED])


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


@pytest.mark.parametrize("_part", range(2))
@settings(max_examples=13, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), modulus=st.sampled_from(MODULI))
def test_any_losses_on_the_complete_graph_give_the_survivors_sum(_part, data, modulus):
    clients = data.draw(st.integers(3, 9), label="clients")
    threshold = data.draw(st.integers(2, clients), label="threshold")
    lost = data.draw(
        st.dictionaries(st.integers(0, clients - 1), LOSSES), label="lost before"
    )
    corrupt = data.draw(
        st.frozensets(st.integers(0, clients - 1), max_size=threshold - 2),
        label="corrupt",
    )
    session = ObservedSession(
        parameters_for(
            clients,
            dimension=11,
            threshold=threshold,
            modulus=modulus,
            colluders=len(corrupt),
        ),
        [one_hot(number, 11, modulus) for number in range(clients)],
        corrupt=corrupt,
    )
    result = run_session(session, lost)
    known = session.check()
    answering = clients - sum(1 for which in lost.values() if which < Round.FINISHED)
    if answering >= threshold:
        assert result.code is None
    if result.code is None:
        assert len(known) == 1
        assert result.survivors == survivors_of(clients, lost)
        assert result.total.tolist() == expected_sum(result.survivors, 11, modulus)
        assert all(
            isinstance(state, client.Completed)
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
            # Round 1 can end without a session for a client; everywhere else the
            # client is told.
            assert isinstance(state, client.Failed)
            assert state.code in {result.code, ErrorCode.SESSION_OVER}


@pytest.mark.parametrize("_part", range(2))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), modulus=st.sampled_from(MODULI))
def test_any_losses_on_a_ring_give_the_survivors_sum_or_a_typed_abort(
    _part, data, modulus
):
    clients = data.draw(st.integers(8, 14), label="clients")
    degree = data.draw(st.sampled_from([4, 6]), label="degree")
    threshold = data.draw(st.integers(2, degree - 1), label="threshold")
    lost = data.draw(
        st.dictionaries(st.integers(0, clients - 1), LOSSES, max_size=6), label="lost"
    )
    numbers = st.integers(0, clients - 1)
    corrupt = data.draw(
        st.frozensets(numbers, max_size=min(2, threshold - 1)), label="corrupt"
    )
    garbage = {
        dealer: data.draw(st.frozensets(numbers, max_size=3), label="garbage to")
        for dealer in sorted(corrupt)
    }
    session = ObservedSession(
        parameters_for(
            clients,
            dimension=17,
            threshold=threshold,
            modulus=modulus,
            degree=degree,
            min_clients=degree + 2,
            min_survivors=max(threshold, len(corrupt) + 2),
            colluders=len(corrupt),
        ),
        [one_hot(number, 17, modulus) for number in range(clients)],
        corrupt=corrupt,
        garbage=garbage,
    )
    result = run_session(session, lost)
    # At 40 bits so small a ring is unmasked only if no colluders at all could cut it.
    session.check()
    if result.code is None:
        # A ring may have to leave out a client whose holders are gone (PROTOCOL §11).
        assert set(result.survivors) <= set(survivors_of(clients, lost))
        assert result.total.tolist() == expected_sum(result.survivors, 17, modulus)
    else:
        assert result.total is None
        assert lost or any(garbage.values())


@pytest.mark.parametrize("_part", range(2))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_ring_emptied_in_two_windows_reveals_no_partial_sums(_part, data):
    clients = data.draw(st.integers(8, 14), label="clients")

    def new_session(corrupt=frozenset()):
        return ObservedSession(
            parameters_for(
                clients,
                dimension=17,
                threshold=3,
                degree=4,
                min_clients=6,
                min_survivors=4,
                colluders=2,
            ),
            [one_hot(number, 17, 1 << 20) for number in range(clients)],
            corrupt=corrupt,
        )

    probe = new_session()
    probe.play(Round.ADVERTISE_KEYS)
    probe.close(Round.ADVERTISE_KEYS)
    order = probe.roster
    first = data.draw(st.integers(0, clients - 1), label="first window")
    apart = data.draw(st.integers(3, clients - 3), label="apart")
    windows = [order[(first + place) % clients] for place in (0, 1, apart, apart + 1)]
    corrupt = data.draw(
        st.frozensets(st.sampled_from(windows), max_size=2), label="corrupt"
    )
    session = new_session(corrupt)
    lost = set(windows) - corrupt
    run_session(session, dict.fromkeys(lost, Round.MASKED_INPUT_COLLECTION))
    session.check()


def test_a_ring_without_dropouts_excludes_no_client():
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
    session = ObservedSession(
        parameters_for(clients, dimension=7, threshold=3),
        [one_hot(number, 7, 1 << 20) for number in range(clients)],
    )
    for which in CLIENT_ROUNDS:
        pending = []
        for number in session.clients:
            outputs = session.act(number, which)
            messages = [session.message(number, output) for output in outputs]
            # A repeated update is a no-op at the client.
            if which is not Round.ADVERTISE_KEYS:
                before = session.clients[number]
                session.update(number)
                assert session.clients[number] == before
            pending += messages * data.draw(st.integers(1, 3), label="copies")
        for message in data.draw(st.permutations(pending), label="order"):
            session.to_server(message)
        session.close(which)
    assert len(session.check()) == 1
    assert isinstance(session.server_state, server.Completed)
    assert session.total.tolist() == expected_sum(range(clients), 7, 1 << 20)


@pytest.mark.parametrize("cut_after", range(22))
def test_replaying_the_accepted_events_rebuilds_the_server(cut_after):
    session = recorded_session()
    run_session(session, {3: Round.MASKED_INPUT_COLLECTION})
    state = replayed(session, session.journal[:cut_after])
    assert state == replayed(session, session.journal[:cut_after])
    for event in session.journal[cut_after:]:
        state = server_machine.step(state, event).state
    assert state == session.server_state


def recorded_session():
    return RecordedSession(
        parameters_for(4, dimension=5, threshold=2),
        [one_hot(number, 5, 1 << 20) for number in range(4)],
    )


def replayed(session, events):
    state = server_machine.start(session.descriptor, packed_bytes=session.packed_bytes)
    for event in events:
        state = server_machine.step(state, event).state
    return state


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), refused=st.sets(st.integers(0, 20)))
def test_batches_on_forks_end_as_events_one_by_one(_part, data, refused):
    """A batch is tried on a fork; one that is not committed leaves no trace."""
    session = recorded_session()
    run_session(session, {3: Round.UNMASKING})
    pending = data.draw(st.permutations(session.journal), label="order")
    pending.sort(key=lambda event: place_of(event, session.journal))
    committed, done, attempt = replayed(session, []), [], 0
    while pending:
        batch = pending[: data.draw(st.integers(1, len(pending)), label="batch")]
        ahead = server_machine.fork(committed)
        assert ahead == committed
        for event in batch:
            ahead = server_machine.step(ahead, event).state
            if isinstance(event, Received):
                assert server_machine.step(ahead, event).is_repeat
        assert committed == replayed(session, done)
        if attempt not in refused:
            committed, done, pending = ahead, done + batch, pending[len(batch) :]
        attempt += 1
    assert committed == session.server_state


def place_of(event, journal):
    """Order by rounds only: within one, clients may be heard in any order."""
    before = journal[: journal.index(event)]
    closed = sum(isinstance(each, RoundClosed) for each in before)
    return closed, isinstance(event, RoundClosed)


def test_a_repeated_message_is_marked_and_changes_nothing():
    session = recorded_session()
    run_session(session)
    state = replayed(session, [])
    for event in session.journal:
        before = state
        state = server_machine.step(before, event).state
        if isinstance(event, Received):
            assert state is before
            again = server_machine.step(server_machine.fork(state), event)
            assert again.is_repeat
            assert again.outputs == ()
            assert again.state == state


def test_replaying_a_clients_journal_gives_the_same_bytes():
    # R6.1-1
    session = recorded_session()
    run_session(session)
    first, second = sent_by(session, 0), sent_by(session, 0)
    assert first == second
    assert [envelope.kind for envelope in first] == [Advert, Bundles, Shares]


def sent_by(session, number):
    state, sent = client_machine.start(), []
    for event in session.client_journals[number]:
        result = client_machine.step(state, event, policy=accepting(session.parameters))
        sent += [each.envelope for each in result.outputs if isinstance(each, Send)]
        state = result.state
    return sent
