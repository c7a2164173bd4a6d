"""What was said once may be said again in any later state, and means nothing new."""

from dataclasses import replace
from functools import partial

import pytest
from secagg_testing.cohorts import (
    RecordedSession,
    any_noise,
    one_hot,
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
)

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import (
    AbortRequested,
    InputBound,
    InputReady,
    MaskAndUpload,
    NoisyVector,
    PlainVector,
    Received,
    RoundClosed,
    input_digest,
)
from secagg.protocol.messages import Aborted, Envelope, Fate, Released, Round, Shares
from secagg.protocol.refund import ChargeOutcome
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server

CLIENTS = 5
PLAIN = parameters_for(
    CLIENTS, dimension=4, threshold=3, min_survivors=4, min_clients=4
)
CASES = {
    "plain": PLAIN,
    "noised": replace(PLAIN, noise_block=b"block"),
    "signed": signing_parameters_for(CLIENTS, dimension=4),
    "drawn": sparse_parameters_for(CLIENTS, dimension=4, degree=4),
}
EVERY = pytest.mark.parametrize("name", CASES)


class WatchedSession(RecordedSession):
    """Keeps every state of client 0 with the messages that have led to it."""

    def to_client(self, number, event):
        outputs = super().to_client(number, event)
        if number == 0:
            self.told = (*getattr(self, "told", ()), event)
            self.states = (*getattr(self, "states", ()), (self.clients[0], self.told))
        return outputs


def vector_of(parameters, number):
    residues = one_hot(number, 4, parameters.modulus)
    block = parameters.noise_block
    return partial(NoisyVector, residues, block) if block else residues


def played(name, rounds=None):
    parameters = CASES[name]
    session = WatchedSession(
        parameters,
        [vector_of(parameters, number) for number in range(CLIENTS)],
        read_noise=any_noise,
    )
    for which in rounds_of(parameters.profile)[:rounds]:
        session.play(which)
        session.close(which)
    return session


def step(session, state, event):
    return client_machine.step(state, event, policy=session._accepting)


@EVERY
def test_repeats_are_ignored_and_contradictions_rejected_in_every_later_state(name):
    # R5-8
    session, tried = played(name), set()
    for state, told in session.states:
        for event in told:
            if not isinstance(event, Received):
                continue
            again = step(session, state, event)
            assert again.is_repeat
            assert again.state is state
            assert again.outputs == ()
            data = event.envelope.data
            other = replace(event.envelope, data=bytes([data[0] ^ 1]) + data[1:])
            left = step(session, state, Received(other)).state
            assert isinstance(left, client.Failed)
            assert left.code is ErrorCode.EQUIVOCATION
            tried.add((type(state), event.envelope.kind))
    table = client_machine.TRANSITIONS[CASES[name].profile]
    repeats = {
        row for row, edge in table.items() if edge.handler is client_machine.repeat
    }
    unused = (
        client.ReadyForNoisedInput if name != "noised" else client.ReadyForPlainInput
    )
    assert tried == {row for row in repeats if row[0] is not unused}


@EVERY
def test_the_same_input_is_masked_identically_and_another_is_rejected(name):
    # R5.3-2, and a replay that knows the digest alone
    session = played(name)
    ready, masked = (
        next(state for state, _ in session.states if isinstance(state, kind))
        for kind in (client.ReadyForInput, client.Masked)
    )
    given = session.inputs[0]
    ctx2 = ready.delivered.ctx2
    vector = given(ctx2) if callable(given) else PlainVector(given)
    again = step(session, masked, InputReady(vector))
    assert again.is_repeat
    assert [type(output) for output in again.outputs] == [MaskAndUpload]
    replayed = step(session, ready, InputBound(input_digest(vector)))
    assert replayed.state == masked
    assert replayed.outputs == ()


def test_a_signed_client_accepts_the_end_without_a_quorum():
    # the answers of others were enough
    session = played("signed")
    signed = next(s for s, _ in session.states if isinstance(s, client.Signed))
    released = Released(Fate.INCLUDED, bytes(32), 10, CLIENTS, 0)
    ended = step(session, signed, Received(Envelope.of(released))).state
    assert isinstance(ended, client.Completed)
    assert ended.charge is ChargeOutcome.KEPT
    aborted = Aborted(Fate.NOT_INCLUDED, ErrorCode.DEADLINE, "late")
    ended = step(session, signed, Received(Envelope.of(aborted))).state
    assert isinstance(ended, client.Failed)
    assert ended.charge is ChargeOutcome.KEPT


def test_a_computable_sum_is_discarded_only_on_explicit_request():
    session = RecordedSession(PLAIN, [vector_of(PLAIN, n) for n in range(CLIENTS)])
    for which in rounds_of(PLAIN.profile):
        session.play(which)
        if which is not Round.UNMASKING:
            session.close(which)
    summing = server_machine.step(
        session.server_state, RoundClosed(Round.UNMASKING)
    ).state
    assert isinstance(summing, server.Summing)
    assert not server_machine.is_round_full(summing)
    late = Received(Envelope(Shares, b"late"), "client-00009")
    with pytest.raises(RemoteProtocolError) as caught:
        server_machine.step(summing, late)
    assert caught.value.code is ErrorCode.DEADLINE
    thrown = AbortRequested(ErrorCode.CANCELLED, "meant", discard_unmasked=True)
    ended = server_machine.step(summing, thrown).state
    assert isinstance(ended, server.Failed)
    assert ended.was_unmasked


@EVERY
def test_a_session_is_spent_from_the_first_round_that_can_reveal_a_sum(name):
    # PROTOCOL §5.6: where the server is not believed, an input that has left stays
    # charged; where it is, nothing is unmasked before U3 is fixed.
    session = RecordedSession(
        CASES[name],
        [vector_of(CASES[name], n) for n in range(CLIENTS)],
        read_noise=any_noise,
    )
    spent = {}
    for which in rounds_of(CASES[name].profile):
        spent[which] = server_machine.spends_session(session.server_state)
        session.play(which)
        session.close(which)
    first = Round.MASKED_INPUT_COLLECTION
    if not CASES[name].profile.has_identities:
        first = Round.UNMASKING
    assert [which for which, is_spent in spent.items() if is_spent] == [first]


@pytest.mark.parametrize("joined", [3, 4])
def test_a_round_needs_as_many_clients_as_the_sum(joined):
    # R5.3-5, R5.4-3: fewer than min_survivors, and enough to rebuild
    session = RecordedSession(PLAIN, [vector_of(PLAIN, n) for n in range(CLIENTS)])
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    session.play(Round.SHARE_KEYS, range(joined))
    now = server_machine.progress(session.server_state)
    assert (now.answered, now.needed) == (joined, 4)
    assert not server_machine.is_round_full(session.server_state)
    session.close(Round.SHARE_KEYS)
    ended = isinstance(session.server_state, server.Failed)
    assert ended == (joined < 4)
    if ended:
        assert session.server_state.outcome.code is ErrorCode.U2_TOO_SMALL


def test_a_round_is_full_once_all_clients_have_answered():
    session = RecordedSession(PLAIN, [vector_of(PLAIN, n) for n in range(CLIENTS)])
    session.play(Round.ADVERTISE_KEYS, range(CLIENTS - 1))
    assert not server_machine.is_round_full(session.server_state)
    session.play(Round.ADVERTISE_KEYS, [CLIENTS - 1])
    assert server_machine.is_round_full(session.server_state)


@pytest.mark.parametrize(("invited", "expected"), [(None, 5), (3, 2), (4, 3), (9, 5)])
def test_uninvited_and_excluded_clients_are_not_waited_for(invited, expected):
    names = invited and frozenset(f"client-{n:05d}" for n in range(invited))
    state = server_machine.start(
        RecordedSession(PLAIN, []).descriptor,
        packed_bytes=10,
        invited=names,
        excluded=frozenset({"client-00000"}),
    )
    assert server_machine.progress(state).expected == expected
