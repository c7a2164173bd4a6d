"""How a session ends for each client: whose input was in U3, and what that costs."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import one_hot, parameters_for, signing_parameters_for

from secagg.errors import ErrorCode, LocalProtocolError
from secagg.protocol.client import states as client_states
from secagg.protocol.events import AbortRequested, Received, RoundClosed, SumComputed
from secagg.protocol.messages import Aborted, Envelope, Fate, Released, Round
from secagg.protocol.parameters import Profile
from secagg.protocol.refund import ChargeOutcome
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server
from secagg.simulation import InProcessSession, identity_of

CLIENT_ROUNDS = rounds_of(Profile.HONEST_CURIOUS_SERVER)

CLIENTS = 6
SUM = Released(Fate.INCLUDED, b"h" * 32, 15, CLIENTS, 0)


def played(before, lost=(), **limits):
    """Return a session in which all but the lost ones play up to a round."""
    session = InProcessSession(
        parameters_for(CLIENTS, dimension=CLIENTS, threshold=3, **limits),
        [one_hot(number, CLIENTS, 1 << 20) for number in range(CLIENTS)],
    )
    for which in CLIENT_ROUNDS:
        if which >= before:
            break
        gone = lost if which is Round.MASKED_INPUT_COLLECTION else ()
        session.play(which, [n for n in session.clients if n not in gone])
        session.close(which)
    return session


def summing(lost=()):
    session = played(Round.UNMASKING, lost)
    session.play(Round.UNMASKING, [n for n in session.clients if n not in lost])
    state = session.server_state
    return session, server.step(state, RoundClosed(Round.UNMASKING)).state


def update_of(state, number):
    return server.update_for(state, identity_of(number)).open()


@pytest.mark.parametrize("which", CLIENT_ROUNDS[1:])
def test_an_abort_states_the_fate_of_each_clients_input(which):
    session = played(which, lost=(0,))
    session.to_server(AbortRequested(ErrorCode.CANCELLED, "enough"))
    fixed = which is Round.UNMASKING
    for number in session.clients:
        fate = Fate.NEVER_FIXED
        if fixed:
            fate = Fate.NOT_INCLUDED if number == 0 else Fate.INCLUDED
        ended = update_of(session.server_state, number)
        assert ended == Aborted(fate, ErrorCode.CANCELLED, "enough")
    stranger = server.update_for(session.server_state, "stranger").open()
    assert stranger.fate is (Fate.NOT_INCLUDED if fixed else Fate.NEVER_FIXED)


@pytest.mark.parametrize("cause", ["silence", "bad dealer"])
def test_a_session_that_fails_after_u3_is_charged_to_its_members(cause):
    """A colluder that says nothing in round 6 must not earn a free sum."""
    session = played(Round.UNMASKING, lost=(0,))
    if cause == "silence":
        session.play(Round.UNMASKING, (1, 2))
        code = ErrorCode.TOO_FEW_ANSWERS
    else:
        session.play(Round.UNMASKING, range(1, CLIENTS))
        cohort = session.server_state.cohort
        adverts = list(cohort.roster.adverts)
        adverts[1] = replace(adverts[1], self_mask_commitment=b"\5" * 32)
        cohort = replace(cohort, roster=replace(cohort.roster, adverts=tuple(adverts)))
        session.server_state = replace(session.server_state, cohort=cohort)
        code = ErrorCode.RECONSTRUCTION_FAILED
    session.close(Round.UNMASKING)
    assert [update_of(session.server_state, n).fate for n in range(CLIENTS)] == [
        Fate.NOT_INCLUDED,
        *[Fate.INCLUDED] * (CLIENTS - 1),
    ]
    assert {update_of(session.server_state, n).code for n in range(CLIENTS)} == {code}


def test_only_members_are_told_of_a_released_sum():
    _, state = summing(lost=(0,))
    state = server.step(state, SumComputed(b"h" * 32, 15, 99)).state
    assert update_of(state, 1) == Released(
        Fate.INCLUDED, b"h" * 32, 15, CLIENTS - 1, 99
    )
    left_out = update_of(state, 0)
    assert (left_out.fate, left_out.code) == (Fate.NOT_INCLUDED, ErrorCode.SESSION_OVER)
    assert server.update_for(state, "stranger").kind is Aborted


def test_an_unmasked_sum_is_discarded_only_on_explicit_request():
    # R5-5
    _, state = summing(lost=(0,))
    with pytest.raises(LocalProtocolError, match="charged"):
        server.step(state, AbortRequested(ErrorCode.CANCELLED, "oops"))
    request = AbortRequested(ErrorCode.CANCELLED, "I mean it", discard_unmasked=True)
    ended = server.step(state, request).state
    assert ended.was_unmasked
    assert update_of(ended, 1).fate is Fate.INCLUDED
    assert update_of(ended, 0).fate is Fate.NOT_INCLUDED
    earlier = played(Round.UNMASKING).server_state
    assert not server.step(earlier, request).state.was_unmasked


# --- what clients believe ------------------------------------------------------------

STATES = {
    client_states.Advertised: (Round.SHARE_KEYS, False),
    client_states.Shared: (Round.MASKED_INPUT_COLLECTION, False),
    client_states.Masked: (Round.UNMASKING, False),
    client_states.Answered: (Round.UNMASKING, True),
}


def in_state(kind):
    before, answers = STATES[kind]
    session = played(before)
    if answers:
        session.play(Round.UNMASKING)
    assert type(session.clients[0]) is kind
    return session


def after(session, message):
    session.to_client(0, Received(Envelope.of(message)))
    return session.clients[0]


@pytest.mark.parametrize("kind", [client_states.Advertised, client_states.Shared])
def test_a_client_accepts_no_sum_before_its_input_is_masked(kind):
    # R5.6-1
    ended = after(in_state(kind), SUM)
    assert isinstance(ended, client_states.Failed)
    assert (ended.code, ended.charge) == (
        ErrorCode.UNEXPECTED_MESSAGE,
        ChargeOutcome.NEVER,
    )


def test_a_client_accepts_a_sum_after_masking_and_after_answering():
    for kind in (client_states.Masked, client_states.Answered):
        assert after(in_state(kind), SUM) == client_states.Completed(
            SUM, ChargeOutcome.KEPT
        )


@pytest.mark.parametrize("fate", [Fate.INCLUDED, Fate.NOT_INCLUDED])
@pytest.mark.parametrize("count", [0, 1, 2, 3, CLIENTS, CLIENTS + 1, 2**32 - 1])
def test_a_masked_client_rejects_an_impossible_sum(fate, count):
    # R5.6-4: the threshold is 3, and all have sent their bundles.
    ended = after(
        in_state(client_states.Masked), replace(SUM, fate=fate, survivors=count)
    )
    if fate is Fate.INCLUDED and 3 <= count <= CLIENTS:
        assert ended.outcome.survivors == count
    else:
        assert (ended.code, ended.charge) == (ErrorCode.U3_INVALID, ChargeOutcome.KEPT)


def test_a_sum_below_min_survivors_is_rejected():
    # R5.6-4: the threshold is 3, and no sum has fewer than 5 inputs.
    for count, is_possible in ((4, False), (5, True)):
        session = played(
            STATES[client_states.Masked][0], min_clients=5, min_survivors=5
        )
        ended = after(session, replace(SUM, survivors=count))
        assert isinstance(ended, client_states.Completed) is is_possible


def test_a_client_outside_the_roster_is_notified_in_every_round():
    for which in CLIENT_ROUNDS[1:]:
        ended = server.update_for(played(which).server_state, "stranger").open()
        assert (ended.code, ended.fate) == (ErrorCode.SESSION_OVER, Fate.NOT_INCLUDED)
        assert ended.reason == "the roster was fixed without this client"


@pytest.mark.parametrize("fate", [Fate.INCLUDED, Fate.NOT_INCLUDED])
@pytest.mark.parametrize("count", [0, 1, 4, 6, 7, 2**32 - 1])
def test_in_signed_profiles_a_client_that_has_not_signed_accepts_no_sum(fate, count):
    # R5.6-4
    session = InProcessSession(
        signing_parameters_for(CLIENTS, dimension=CLIENTS),
        [one_hot(number, CLIENTS, 1 << 20) for number in range(CLIENTS)],
    )
    for which in rounds_of(Profile.MALICIOUS_SERVER):
        if which is Round.CONSISTENCY_CHECK:
            break
        session.play(which)
        session.close(which)
    assert isinstance(session.clients[0], client_states.Masked)
    ended = after(session, replace(SUM, fate=fate, survivors=count))
    is_plausible = fate is Fate.INCLUDED and 4 <= count <= 6
    assert isinstance(ended, client_states.Failed)
    assert ended.charge is ChargeOutcome.KEPT
    assert ended.code is (
        ErrorCode.SESSION_OVER if is_plausible else ErrorCode.U3_INVALID
    )


@pytest.mark.parametrize("count", [0, CLIENTS - 1, CLIENTS + 1])
def test_a_client_that_answered_rejects_a_sum_over_another_number_of_clients(count):
    # R5.6-2
    ended = after(in_state(client_states.Answered), replace(SUM, survivors=count))
    assert isinstance(ended, client_states.Failed)
    assert (ended.code, ended.charge) == (ErrorCode.U3_INVALID, ChargeOutcome.KEPT)


@pytest.mark.parametrize(
    "lie",
    [
        replace(SUM, fate=Fate.NOT_INCLUDED),
        Aborted(Fate.NOT_INCLUDED, ErrorCode.CANCELLED, ""),
        Aborted(Fate.NEVER_FIXED, ErrorCode.CANCELLED, ""),
    ],
    ids=lambda lie: f"{type(lie).__name__} {lie.fate.name}",
)
def test_a_client_that_answered_rejects_the_fate_not_included(lie):
    ended = after(in_state(client_states.Answered), lie)
    assert isinstance(ended, client_states.Failed)
    assert (ended.code, ended.charge) == (ErrorCode.U3_INVALID, ChargeOutcome.KEPT)


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("code", [ErrorCode.CANCELLED, ErrorCode.SESSION_OVER])
def test_the_charge_after_an_abort_depends_on_the_fate_and_not_on_the_code(fate, code):
    charges = {
        client_states.Advertised: ChargeOutcome.NEVER,
        client_states.Shared: ChargeOutcome.NEVER,
        client_states.Masked: ChargeOutcome.KEPT
        if fate is Fate.INCLUDED
        else ChargeOutcome.GIVEN_BACK,
        client_states.Answered: ChargeOutcome.KEPT,
    }
    for kind, charge in charges.items():
        assert after(in_state(kind), Aborted(fate, code, "")).charge is charge


def test_an_end_not_stated_by_the_server_refunds_nothing():
    for kind in (client_states.Masked, client_states.Answered):
        session = in_state(kind)
        session.to_client(0, AbortRequested(ErrorCode.DEADLINE, "unreachable"))
        assert session.clients[0].charge is ChargeOutcome.KEPT
    garbage = after(in_state(client_states.Masked), SUM)
    assert garbage.charge is ChargeOutcome.KEPT
    session = in_state(client_states.Masked)
    session.to_client(0, Received(Envelope(Aborted, b"\0")))
    assert session.clients[0].charge is ChargeOutcome.KEPT
