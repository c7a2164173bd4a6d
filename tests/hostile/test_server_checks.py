"""Hostile clients: a bad message is refused, costs no other client, and is no crash."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import one_hot, parameters_for
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.shamir import SHARE_SIZE
from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.protocol.client import machine as client
from secagg.protocol.events import (
    AbortRequested,
    DealerFailed,
    Received,
    RoundClosed,
    ShareDisputed,
    SumComputed,
)
from secagg.protocol.membership import excluded
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    KINDS,
    Aborted,
    Advert,
    Bundles,
    Envelope,
    Fate,
    Released,
    Round,
    Shares,
    Upload,
)
from secagg.protocol.parameters import Profile
from secagg.protocol.rounds import DropReason, rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server import unmasking
from secagg.simulation import identity_of

CLIENT_ROUNDS = rounds_of(Profile.HONEST_CURIOUS_SERVER)

CLIENTS = 7
MODULUS = 1 << 20


def new_session(threshold=3, **overrides):
    return ObservedSession(
        parameters_for(CLIENTS, dimension=CLIENTS, threshold=threshold, **overrides),
        [one_hot(number, CLIENTS, MODULUS) for number in range(CLIENTS)],
    )


def run_until(session, last, tamper=lambda _number, event: event):
    """Deliver everything up to and including a round; `tamper` may replace events."""
    for which in CLIENT_ROUNDS[: CLIENT_ROUNDS.index(last) + 1]:
        for number in session.clients:
            for output in session.act(number, which):
                event = session.message(number, output)
                event = tamper(number, event) if event else None
                if event is not None:
                    session.to_server(event)
        if which is not last:
            session.close(which)


def is_a(kind, event):
    return event.envelope.kind is kind


def without_first(kind):
    """Return a tamper function that holds back client 0's message of one kind."""
    return lambda number, event: None if number == 0 and is_a(kind, event) else event


def sent_by(sender, message):
    return Received(Envelope.of(message), sender)


def refused(session, event):
    """Return the code of a refusal; the state must be as before, and still work."""
    before = session.server_state
    unchanged = server_machine.fork(before)
    with pytest.raises(RemoteProtocolError) as caught:
        session.to_server(event)
    assert session.server_state is before
    assert before == unchanged
    assert caught.value.sender == event.sender
    return caught.value.code


def finish(session, last):
    """Continue from an open round to the end; all inputs must be in the sum."""
    session.close(last)
    for which in CLIENT_ROUNDS[CLIENT_ROUNDS.index(last) + 1 :]:
        session.play(which)
        session.close(which)
    return session.total


ALL_IN = [MODULUS - 1] * CLIENTS


def advert_of(session, number):
    return session.server_state.adverts[identity_of(number)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"masking_key": b"\0" * 32}, ErrorCode.BAD_PUBLIC_KEY),
        ({"encryption_key": b"\1" + b"\0" * 31}, ErrorCode.BAD_PUBLIC_KEY),
        ({"masking_key": b"\xff" * 32}, ErrorCode.BAD_PUBLIC_KEY),
        ({"signature": b"s" * 64}, ErrorCode.BAD_SIGNATURE),
        ({"identity": identity_of(0)}, ErrorCode.UNAUTHENTICATED),
    ],
    ids=["zero key", "order-one key", "non-canonical key", "signature", "identity"],
)
def test_a_bad_advert_is_refused_and_a_good_one_still_accepted(change, code):
    session = new_session()
    outputs = [session.offer(number) for number in session.clients]
    for number in range(CLIENTS - 1):
        session.send(number, outputs[number])
    honest = outputs[-1][0].envelope.open()
    bad = replace(honest, **change)
    sender = identity_of(CLIENTS - 1)
    assert refused(session, sent_by(sender, bad)) is code
    session.send(CLIENTS - 1, outputs[-1])
    assert finish(session, Round.ADVERTISE_KEYS).tolist() == ALL_IN


def test_keys_of_another_client_and_equal_own_keys_are_refused():
    session = new_session()
    run_until(session, Round.ADVERTISE_KEYS)
    honest = advert_of(session, 0)
    stolen = replace(honest, identity="x", encryption_key=bytes(range(32)))
    twice = replace(honest, identity="x", masking_key=honest.encryption_key)
    session.server_state.adverts.pop(identity_of(6))  # make room
    for advert in (stolen, twice):
        assert refused(session, sent_by("x", advert)) is (ErrorCode.DUPLICATE_KEY)


def test_a_full_session_and_an_uninvited_client_are_refused():
    # R5.1-1
    session = new_session()
    run_until(session, Round.ADVERTISE_KEYS)
    late = replace(
        advert_of(session, 0),
        identity="late",
        masking_key=bytes(range(32)),
        encryption_key=bytes(range(1, 33)),
    )
    assert refused(session, sent_by("late", late)) is (ErrorCode.ROSTER_TOO_LARGE)
    for invited, out, is_welcome in (
        ({"other"}, (), False),
        ({"other", "late"}, (), True),
        ({"late"}, {"late"}, False),  # PROTOCOL §5.7
        (None, {"late"}, False),
    ):
        session.server_state = server_machine.start(
            session.descriptor,
            packed_bytes=28,
            invited=invited and frozenset(invited),
            excluded=frozenset(out),
        )
        if is_welcome:
            server_machine.step(session.server_state, sent_by("late", late))
        else:
            assert refused(session, sent_by("late", late)) is ErrorCode.NOT_INVITED


def contradicting(message):
    """Return another message of the same form."""
    match message:
        case Advert():
            return replace(message, self_mask_commitment=b"c" * 32)
        case Bundles(sealed):
            return Bundles(sealed[::-1])
        case Upload(size, digest):
            return Upload(size, digest[::-1])
        case Shares(revealed):
            # another canonical set of shares: rotate whole shares
            return Shares(revealed[SHARE_SIZE:] + revealed[:SHARE_SIZE])


@pytest.mark.parametrize("which", CLIENT_ROUNDS)
def test_a_retry_is_a_no_op_and_a_contradiction_is_a_violation(which):
    session = new_session()
    seen = {}

    def remember(number, event):
        seen[number] = event
        return event

    run_until(session, which, remember)
    event = seen[0]
    before = server_machine.fork(session.server_state)
    session.to_server(event)
    assert session.server_state == before
    other = sent_by(event.sender, contradicting(event.envelope.open()))
    assert refused(session, other) is ErrorCode.EQUIVOCATION
    assert finish(session, which).tolist() == ALL_IN


@pytest.mark.parametrize("change", [-1, 1, BUNDLE_BYTES, -BUNDLE_BYTES])
def test_bundles_of_a_wrong_size_are_refused(change):
    session = new_session()
    run_until(session, Round.SHARE_KEYS, without_first(Bundles))
    sealed = session.clients[0].bundles.sealed
    sized = (sealed + b"\0" * BUNDLE_BYTES)[: len(sealed) + change]
    event = sent_by(identity_of(0), Bundles(sized))
    assert refused(session, event) is ErrorCode.BAD_ENCODING


def test_an_upload_of_a_wrong_size_is_refused_and_costs_no_other_client():
    session = new_session()
    run_until(session, Round.MASKED_INPUT_COLLECTION, without_first(Upload))
    view = client.view(session.clients[0])
    upload = Upload(session.packed_bytes + 1, b"d" * 32, view)
    assert refused(session, sent_by(identity_of(0), upload)) is ErrorCode.BAD_VECTOR
    total = finish(session, Round.MASKED_INPUT_COLLECTION)
    assert total.tolist() == [0, *ALL_IN[1:]]


@pytest.mark.parametrize(
    ("shares", "code"),
    [
        (b"", ErrorCode.BAD_ENCODING),
        (b"\0" * (CLIENTS * SHARE_SIZE), ErrorCode.BAD_ENCODING),
        (b"\0" * (1 + (CLIENTS + 1) * SHARE_SIZE), ErrorCode.BAD_ENCODING),
        (b"\0" + b"\xff" * (CLIENTS * SHARE_SIZE), ErrorCode.BAD_ENCODING),
    ],
    ids=["none", "short", "long", "not canonical"],
)
def test_a_malformed_answer_is_refused_and_the_sum_is_exact(shares, code):
    session = new_session()
    run_until(session, Round.UNMASKING, without_first(Shares))
    assert refused(session, sent_by(identity_of(0), Shares(shares))) is code
    assert finish(session, Round.UNMASKING).tolist() == ALL_IN


@pytest.mark.parametrize("degree", [0, 4])
@pytest.mark.parametrize("liars", [0, 1, 2])
def test_wrong_shares_are_corrected_and_their_holders_named(liars, degree):
    # R7.3-1
    session = (
        new_session(degree=degree, threshold=3, min_clients=6)
        if degree == 0
        else new_session(degree=degree, threshold=2, min_clients=6)
    )
    liars = min(liars, 1) if degree else liars

    def lie(number, event):
        if is_a(Shares, event) and session.index_of(number) < liars:
            wrong = np.frombuffer(event.envelope.open().revealed, np.uint8).copy()
            wrong[1::SHARE_SIZE] ^= 1  # the low byte of limb 0 of every share
            return sent_by(event.sender, Shares(wrong.tobytes()))
        return event

    run_until(session, Round.UNMASKING, lie)
    assert finish(session, Round.UNMASKING).tolist() == ALL_IN
    assert session.dropped == {
        identity_of(session.roster[place]): DropReason.BAD_SHARES.value
        for place in range(liars)
    }


def test_too_many_wrong_shares_abort_and_release_nothing():
    session = new_session(threshold=5)  # seven answers correct one error

    def lie(number, event):
        if is_a(Shares, event) and number < 3:
            wrong = bytearray(event.envelope.open().revealed)
            wrong[1] ^= 1 + number
            return sent_by(event.sender, Shares(bytes(wrong)))
        return event

    run_until(session, Round.UNMASKING, lie)
    session.close(Round.UNMASKING)
    assert session.server_state.outcome.code is ErrorCode.RECONSTRUCTION_FAILED
    assert session.total is None


@pytest.mark.parametrize("colluders", [0, 1, 2])
@pytest.mark.parametrize("liars", [1, 2])
def test_a_wrong_share_is_disputed_only_if_its_holder_cannot_have_been_framed(
    liars, colluders
):
    # R5.7-1
    session = new_session(threshold=4, colluders=colluders)  # one error is corrected

    def lie(number, event):
        if is_a(Shares, event) and number < liars:
            wrong = bytearray(event.envelope.open().revealed)
            wrong[1 + (CLIENTS - 1) * SHARE_SIZE] ^= 1  # of the last dealer
            return sent_by(event.sender, Shares(bytes(wrong)))
        return event

    run_until(session, Round.UNMASKING, lie)
    found = session.step_server(RoundClosed(Round.UNMASKING))
    dealer = identity_of(CLIENTS - 1)
    disputes = [output for output in found if isinstance(output, ShareDisputed)]
    failures = [output for output in found if isinstance(output, DealerFailed)]
    if liars == 1:
        assert failures == []
        expected = [ShareDisputed(dealer, identity_of(0))]
        assert disputes == (expected if colluders <= 1 else [])
    else:  # more than could be corrected: who dealt well may stand there as a liar
        assert disputes == []
        assert failures == [DealerFailed(dealer, is_proven=colluders <= 1)]
        sure = "it lies, since 1 wrong ones" in session.server_state.outcome.reason
        assert sure is (colluders <= 1)


@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_a_client_that_accuses_all_others_is_the_only_one_excluded(colluders):
    session = new_session(
        threshold=3, colluders=colluders, min_survivors=4, min_clients=4
    )

    def lie(number, event):
        if is_a(Shares, event) and number == 0:
            wrong = np.frombuffer(event.envelope.open().revealed, np.uint8).copy()
            wrong[1::SHARE_SIZE] ^= 1
            return sent_by(event.sender, Shares(wrong.tobytes()))
        return event

    run_until(session, Round.UNMASKING, lie)
    found = session.step_server(RoundClosed(Round.UNMASKING))
    pairs = [(o.dealer, o.holder) for o in found if isinstance(o, ShareDisputed)]
    assert {holder for _, holder in pairs} == {identity_of(0)}
    assert excluded(pairs, colluders=colluders) == {identity_of(0)}


def test_one_holder_alone_proves_nothing_against_a_dealer():
    session = new_session(threshold=6)  # seven answers: a second one could not be told

    def lie(number, event):
        if is_a(Shares, event) and number == 0:
            wrong = bytearray(event.envelope.open().revealed)
            wrong[1] ^= 1
            return sent_by(event.sender, Shares(bytes(wrong)))
        return event

    run_until(session, Round.UNMASKING, lie)
    found = session.step_server(RoundClosed(Round.UNMASKING))
    assert DealerFailed(identity_of(0), is_proven=False) in found


def test_a_dealer_with_inconsistent_shares_is_named():
    session = new_session(threshold=3)
    run_until(session, Round.SHARE_KEYS)
    # The dealer advertised another seed than it shares: nothing can fit.
    cohort = session.server_state.cohort
    index = cohort.index_of[identity_of(2)]
    adverts = list(cohort.roster.adverts)
    adverts[index] = replace(adverts[index], self_mask_commitment=b"\5" * 32)
    roster = replace(cohort.roster, adverts=tuple(adverts))
    session.server_state = replace(
        session.server_state, cohort=replace(cohort, roster=roster)
    )
    finish(session, Round.SHARE_KEYS)
    assert session.server_state.outcome.code is ErrorCode.RECONSTRUCTION_FAILED
    assert repr(identity_of(2)) in session.server_state.outcome.reason


@pytest.mark.parametrize("which", CLIENT_ROUNDS)
def test_no_secret_is_reconstructed_below_the_minimum(which, monkeypatch):
    """A37: reconstruction, the only work quadratic in clients, needs the threshold."""
    calls = []
    monkeypatch.setattr(unmasking, "rebuild", lambda *_, **__: calls.append(1))
    session = new_session(threshold=4)
    run_until(
        session,
        which,
        lambda n, e: e if which > e.envelope.kind.ROUND or n < 3 else None,
    )
    session.close(which)
    assert isinstance(session.server_state, server.Failed)
    assert session.server_state.outcome.code in {
        ErrorCode.ROSTER_TOO_SMALL,
        ErrorCode.U2_TOO_SMALL,
        ErrorCode.U3_TOO_SMALL,
        ErrorCode.TOO_FEW_ANSWERS,
    }
    assert not calls


def test_a_client_declared_dropped_cannot_be_added_later():
    """A10: its upload arrives after U3 is fixed and is refused, unread."""
    session = new_session()
    late = []

    def hold_back(number, event):
        if number == 0 and is_a(Upload, event):
            late.append(event)
            return None
        return event

    run_until(session, Round.MASKED_INPUT_COLLECTION, hold_back)
    session.close(Round.MASKED_INPUT_COLLECTION)
    assert refused(session, late[0]) is ErrorCode.DEADLINE
    assert session.fetch(0).open().code is ErrorCode.SESSION_OVER
    session.play(Round.UNMASKING, range(1, CLIENTS))
    session.close(Round.UNMASKING)
    assert session.total.tolist() == [0, *ALL_IN[1:]]


def test_only_accepted_uploads_can_be_missing_and_all_of_them_may():
    session = new_session()
    run_until(session, Round.MASKED_INPUT_COLLECTION, without_first(Upload))
    with pytest.raises(LocalProtocolError, match="accepted"):
        session.to_server(RoundClosed(Round.MASKED_INPUT_COLLECTION, missing=(0,)))
    gone = tuple(sorted(session.server_state.uploads))
    session.to_server(RoundClosed(Round.MASKED_INPUT_COLLECTION, missing=gone))
    assert session.server_state.outcome.code is ErrorCode.U3_TOO_SMALL


def test_a_stale_or_repeated_close_is_a_local_error():
    session = new_session()
    run_until(session, Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    with pytest.raises(LocalProtocolError):
        session.close(Round.ADVERTISE_KEYS)
    with pytest.raises(LocalProtocolError):
        session.to_server(SumComputed(b"h" * 32, 1))


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"min_survivors": 6, "min_clients": 6}, ErrorCode.U3_TOO_SMALL),
        ({"max_dropouts": 1}, ErrorCode.TOO_MANY_DROPOUTS),
    ],
)
def test_losses_beyond_what_clients_would_unmask_end_the_session(limits, code):
    session = new_session(**limits)
    run_until(
        session,
        Round.MASKED_INPUT_COLLECTION,
        lambda n, e: None if n < 2 and is_a(Upload, e) else e,
    )
    session.close(Round.MASKED_INPUT_COLLECTION)
    assert session.server_state.outcome.code is code


def test_a_ring_client_whose_holders_all_dropped_out_ends_the_session():
    session = ObservedSession(
        parameters_for(
            12, dimension=12, threshold=3, degree=4, min_clients=6, min_survivors=3
        ),
        [one_hot(number, 12, MODULUS) for number in range(12)],
    )
    near = []

    def lose_two_neighbours(number, event):
        if not is_a(Upload, event):
            return event
        place = session.index_of(0)
        near[:] = [session.roster[(place + step) % 12] for step in (-1, 1)]
        return None if number in near else event

    run_until(session, Round.MASKED_INPUT_COLLECTION, lose_two_neighbours)
    session.close(Round.MASKED_INPUT_COLLECTION)
    assert session.server_state.outcome.code is ErrorCode.TOO_MANY_DROPOUTS
    assert identity_of(0) in session.server_state.outcome.reason


@pytest.mark.parametrize("which", CLIENT_ROUNDS[1:])
def test_messages_of_unknown_and_excluded_clients_are_rejected(which):
    """Client i stops after round i; a client that dropped out cannot rejoin."""
    session = new_session()
    seen = {}

    def lose_one_per_round(number, event):
        seen[number] = event
        done = CLIENT_ROUNDS.index(event.envelope.kind.ROUND)
        return None if number < done else event

    run_until(session, which, lose_one_per_round)
    rounds_done = CLIENT_ROUNDS.index(which)
    excluded = [identity_of(number) for number in range(rounds_done - 1)]
    for sender in ("stranger", *excluded):
        event = replace(seen[6], sender=sender)
        assert refused(session, event) is ErrorCode.SESSION_OVER
        assert server_machine.update_for(session.server_state, sender).kind is Aborted


@pytest.mark.parametrize("seed", [b"", b"s" * 31])
def test_closing_round_0_on_a_ring_requires_a_fresh_seed(seed):
    session = new_session(degree=4, min_clients=6)
    run_until(session, Round.ADVERTISE_KEYS)
    with pytest.raises(LocalProtocolError, match="seed"):
        session.to_server(RoundClosed(Round.ADVERTISE_KEYS, seed))


def test_an_operator_can_abort_in_every_round_and_all_clients_learn_it():
    for which in CLIENT_ROUNDS:
        session = new_session()
        run_until(session, which)
        fate = Fate.INCLUDED if which is Round.UNMASKING else Fate.NEVER_FIXED
        session.to_server(AbortRequested(ErrorCode.CANCELLED, "maintenance"))
        for number in session.clients:
            told = session.fetch(number).open()
            assert told == Aborted(fate, ErrorCode.CANCELLED, "maintenance")
        assert server_machine.pending_outputs(session.server_state) == ()


def test_a_finished_session_rejects_new_messages_and_keeps_no_secret():
    session = new_session()
    seen = []
    run_until(session, Round.UNMASKING, lambda _, e: seen.append(e) or e)
    session.close(Round.UNMASKING)
    for event in seen:  # R5-1: acknowledged once, acknowledged to the end
        assert server_machine.step(session.server_state, event).is_repeat
        other = sent_by(event.sender, contradicting(event.envelope.open()))
        assert refused(session, other) is ErrorCode.EQUIVOCATION
        stranger = replace(event, sender="stranger")
        assert refused(session, stranger) is ErrorCode.DEADLINE
    assert not hasattr(session.server_state, "job")
    assert not hasattr(session.server_state, "shares")
    assert session.fetch(0).kind is Released
    assert server_machine.is_over(session.server_state)


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_event_in_any_state_gives_a_legal_state_or_a_documented_error(_part, data):
    """h2-style: the machine's promise holds for arbitrary bytes."""
    last = data.draw(st.sampled_from(CLIENT_ROUNDS))
    session = new_session()
    run_until(session, last)
    if data.draw(st.booleans()):
        session.close(last)
    sender = data.draw(st.sampled_from([identity_of(0), identity_of(6), "stranger"]))
    blob = data.draw(st.binary(max_size=300))
    event = data.draw(
        st.sampled_from(
            [
                *(Received(Envelope(kind, blob), sender) for kind in KINDS.values()),
                RoundClosed(data.draw(st.sampled_from(list(Round)))),
                SumComputed(blob, len(blob)),
            ]
        )
    )
    before = session.server_state
    try:
        result = server_machine.step(before, event)
    except (RemoteProtocolError, LocalProtocolError):
        return
    what = event.envelope.kind if isinstance(event, Received) else type(event)
    assert (
        type(result.state)
        in server_machine.TRANSITIONS[before.session.descriptor.parameters.profile][
            type(before), what
        ].may_enter
    )


def test_losses_that_cut_the_ring_release_nothing():
    """Each arc's masks would cancel by themselves: sums of few, not of all."""
    clients = 12
    session = ObservedSession(
        parameters_for(
            clients, dimension=clients, threshold=2, degree=4, min_clients=6
        ),
        [one_hot(number, clients, MODULUS) for number in range(clients)],
    )
    run_until(session, Round.SHARE_KEYS)
    session.close(Round.SHARE_KEYS)
    lost = {session.roster[place] for place in (0, 1, 6, 7)}  # two arcs of four stay
    session.play(Round.MASKED_INPUT_COLLECTION, sorted(set(range(clients)) - lost))
    session.close(Round.MASKED_INPUT_COLLECTION)
    assert isinstance(session.server_state, server.Failed)
    assert session.server_state.outcome.code is ErrorCode.TOO_MANY_DROPOUTS
