"""Garbage in place of share bundles: no client leaves, and no client is framed."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import one_hot, parameters_for

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import Received, Send
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Bundles,
    Complaint,
    Envelope,
    Round,
    Shares,
)
from secagg.protocol.rounds import DropReason
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.simulation import InProcessSession, identity_of

CLIENTS, THRESHOLD, MODULUS = 7, 3, 1 << 20
GARBAGE = ErrorCode.BAD_SHARE_CIPHERTEXT


def uploading(victims, dealer=0, threshold=THRESHOLD, **overrides):
    """Return a session in round 4: one dealer has sent some victims garbage."""
    session = InProcessSession(
        parameters_for(CLIENTS, dimension=CLIENTS, threshold=threshold, **overrides),
        [one_hot(number, CLIENTS, MODULUS) for number in range(CLIENTS)],
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    for number in session.clients:
        (output,) = session.update(number)
        sealed = output.envelope.open().sealed
        if number == dealer:
            neighbors = session.server_state.cohort.graph.mask_peers(number)
            for place, holder in enumerate(neighbors):
                if holder in victims:
                    low = place * BUNDLE_BYTES
                    garbage = bytes(BUNDLE_BYTES)
                    sealed = sealed[:low] + garbage + sealed[low + BUNDLE_BYTES :]
        event = Received(Envelope.of(Bundles(sealed)), identity_of(number))
        session.to_server(event)
    session.close(Round.SHARE_KEYS)
    return session


def played(session, *, complain=True, silent=()):
    for number in session.clients:
        outputs = session.update(number)
        if not complain:
            outputs = tuple(o for o in outputs if not isinstance(o, Send))
        if number in silent:  # its complaints arrive, its input does not
            outputs = tuple(o for o in outputs if isinstance(o, Send))
        session.send(number, outputs)
    session.close(Round.MASKED_INPUT_COLLECTION)


def accuse(session, number, accused, code=GARBAGE):
    event = Received(Envelope.of(Complaint(code, accused)), identity_of(number))
    return server_machine.step(session.server_state, event)


@pytest.mark.parametrize("lost", [(), (0,)], ids=["dealer stays", "dealer lost"])
@pytest.mark.parametrize("victims", [(1,), (1, 2, 3)])
def test_the_sum_is_released_despite_a_dealer_of_invalid_bundles(victims, lost):
    session = uploading(victims)
    played(session, silent=lost)
    session.play(Round.UNMASKING, [n for n in session.clients if n not in lost])
    session.close(Round.UNMASKING)
    expected = [0 if n in lost else MODULUS - 1 for n in range(CLIENTS)]
    assert session.total.tolist() == expected
    pairs = {(identity_of(v), 0) for v in victims}
    assert set(session.server_state.session.complaints) == pairs
    assert set(session.dropped) == {identity_of(n) for n in lost}  # no other client


def test_a_dealer_with_too_few_holders_ends_the_attempt_before_u3_is_fixed():
    session = uploading((1, 2, 3, 4), threshold=4)
    played(session)
    assert session.server_state.outcome.code is ErrorCode.DISPUTED
    assert identity_of(0) in session.server_state.outcome.reason
    assert session.server_state.survivors == frozenset()  # it costs no client


def test_complaints_of_dropouts_are_not_counted_twice():
    session = uploading((1, 2, 3), threshold=4)
    played(session, silent=(1,))  # six of seven are left, two have complained
    assert isinstance(session.server_state, server.Unmasking)


def test_a_share_missing_without_a_complaint_is_accepted_and_reported():
    session = uploading((1,))
    played(session, complain=False)
    session.play(Round.UNMASKING)
    session.close(Round.UNMASKING)
    assert session.total.tolist() == [MODULUS - 1] * CLIENTS
    assert session.dropped == {identity_of(1): DropReason.WITHHELD_SHARES.value}


def test_missing_shares_reduce_the_number_of_answers():
    session = uploading((1, 2, 3, 4), threshold=4)
    played(session, complain=False)
    session.play(Round.UNMASKING)
    session.close(Round.UNMASKING)
    assert session.server_state.outcome.code is ErrorCode.TOO_FEW_ANSWERS


@pytest.mark.parametrize(
    ("accuser", "accused", "code"),
    [
        (1, 1, ErrorCode.BAD_ENCODING),  # itself
        (1, CLIENTS, ErrorCode.BAD_ENCODING),  # no client
        (1, 2**32 - 1, ErrorCode.BAD_ENCODING),
        (CLIENTS, 1, ErrorCode.SESSION_OVER),  # an unknown peer
    ],
)
def test_a_complaint_must_name_a_client_that_sent_bundles(accuser, accused, code):
    session = uploading(())
    with pytest.raises(RemoteProtocolError) as caught:
        accuse(session, accuser, accused)
    assert caught.value.code is code
    assert not session.server_state.session.complaints


def test_on_a_ring_only_neighbours_complain():
    session = uploading((), threshold=2, degree=4, min_clients=6)
    accuser = session.index_of(1)
    near = session.server_state.cohort.graph.mask_peers(accuser)
    for accused in set(range(CLIENTS)) - {accuser}:
        if accused in near:
            assert not accuse(session, 1, accused).is_repeat
        else:
            with pytest.raises(RemoteProtocolError):
                accuse(session, 1, accused)


def test_a_complaint_is_repeated_until_acknowledged_and_never_changed():
    session = uploading(())
    assert not accuse(session, 1, 2).is_repeat
    assert accuse(session, 1, 2).is_repeat
    with pytest.raises(RemoteProtocolError) as caught:
        accuse(session, 1, 2, ErrorCode.SHARE_CONFUSION)
    assert caught.value.code is ErrorCode.EQUIVOCATION
    before = server_machine.fork(session.server_state)
    accuse(session, 1, 3)
    assert before != session.server_state  # a fork does not share what grows
    played(session)
    assert accuse(session, 1, 2).is_repeat  # also when the round is over
    with pytest.raises(RemoteProtocolError) as caught:
        accuse(session, 4, 2)
    assert caught.value.code is ErrorCode.DEADLINE


@pytest.mark.parametrize("code", [0, int(ErrorCode.DEADLINE), 65535])
def test_a_complaint_names_what_is_wrong_with_a_bundle(code):
    session = uploading(())
    data = code.to_bytes(2, "big") + (2).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError) as caught:
        server_machine.step(
            session.server_state, Received(Envelope(Complaint, data), identity_of(1))
        )
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_share_declared_absent_must_be_zero():
    session = uploading(())
    played(session)
    (output,) = session.update(0)
    honest = output.envelope.open().revealed
    for head in (b"\x01", b"\x80"):  # an absence with a share, a padding bit
        event = Received(Envelope.of(Shares(head + honest[1:])), identity_of(0))
        with pytest.raises(RemoteProtocolError) as caught:
            session.to_server(event)
        assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_restarted_client_complains_again_also_when_its_input_is_bound():
    session = uploading((1,))
    outputs = session.to_client(1, Received(session.fetch(1)))
    complaint = outputs[0]
    assert client_machine.pending_outputs(session.clients[1]) == (complaint,)
    session.supply_input(1)
    assert isinstance(session.clients[1], client.Masked)
    assert client_machine.pending_outputs(session.clients[1]) == (complaint,)
    assert replace(complaint.envelope.open(), accused=0) == complaint.envelope.open()
