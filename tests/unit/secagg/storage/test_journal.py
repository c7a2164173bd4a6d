from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of

from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.client import machine as client
from secagg.protocol.client.states import Completed, Failed
from secagg.protocol.enrolment import VerifiedCredentials
from secagg.protocol.events import (
    AbortRequested,
    InputBound,
    InputReady,
    PlainVector,
    Received,
    RoundClosed,
    SessionOffered,
    SumComputed,
)
from secagg.protocol.membership import Membership
from secagg.protocol.messages import (
    KINDS,
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Envelope,
    Fate,
    Quorum,
    Released,
    Roster,
    Round,
    Shares,
    Survivors,
    Upload,
)
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome, WrittenBy
from secagg.protocol.refund import ChargeOutcome
from secagg.simulation.driver import identity_in_simulation
from secagg.storage import journal
from secagg.storage.change import Record

DESCRIPTOR = offer_of(
    ProtocolParameters(
        modulus=1 << 20,
        dimension=10,
        min_clients=3,
        max_clients=5,
        threshold=3,
        min_survivors=3,
        max_dropouts=2,
        max_losses=2,
    ),
    task_id="täsk",
    session_number=7,
    server_nonce=bytes(range(32)),
    payload_hash=b"\x01" * 32,
)

SERVER_EVENTS = [
    Received(Envelope(Advert, b"advert"), "cl\u00efent"),
    Received(Envelope(Bundles, b"\x00" * 1000), "c"),
    Received(Envelope.of(Complaint(ErrorCode.SHARE_CONFUSION, 3)), "c"),
    Received(Envelope.of(Upload((1 << 40) + 1, b"\x02" * 32)), "c"),
    Received(Envelope.of(Edges((1, 5), b"\x06" * 64)), "c"),
    Received(Envelope.of(Consistency(b"\x06" * 64)), "c"),
    Received(Envelope(Shares, b""), "c"),
    *(RoundClosed(closed) for closed in Round),
    RoundClosed(Round.ADVERTISE_KEYS, b"\x03" * 32),
    SumComputed(b"\x04" * 32, 0),
    journal.SumAttempt(is_begun=True),
    journal.SumAttempt(is_begun=False),
    journal.RefusalNoted("cl\u00efent", ErrorCode.VIEW_DIFFERS),
    journal.RefusalNoted("c", ErrorCode.BAD_SIGNATURE),
    SumComputed(b"\x04" * 32, 7, 1_800_000_000),
    AbortRequested(ErrorCode.STORAGE_FAILED, "the disk is full"),
    AbortRequested(ErrorCode.CANCELLED, "never mind", discard_unmasked=True),
]

OFFERED = SessionOffered(
    DESCRIPTOR, "me", "them", SecretBytes(b"\x05" * 32), now=1_800_000_000
)
CLIENT_EVENTS = [
    Received(Envelope(Roster, b"roster")),
    Received(Envelope.of(Delivery(b"\x07", b"bundles"))),
    InputBound(b"\x08" * 32),
    Received(Envelope(Survivors, b"\x03")),
    Received(Envelope(EdgesPublished, b"edges")),
    Received(Envelope.of(Quorum(((1, b"\x07" * 64),)))),
    Received(Envelope.of(Released(Fate.INCLUDED, b"\x09" * 32, 25, 3, 1_800_000_000))),
    Received(Envelope.of(Aborted(Fate.NOT_INCLUDED, ErrorCode.DEADLINE, "too late"))),
]


def test_a_refusal_without_a_client_is_a_storage_failure():
    record = journal.record_of(journal.RefusalNoted("c", ErrorCode.VIEW_DIFFERS))
    with pytest.raises(ServiceError) as caught:
        journal.decode_server_event(replace(record, sender=None))
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_every_message_has_a_sample():
    sampled = {
        event.envelope.kind
        for event in SERVER_EVENTS + CLIENT_EVENTS
        if isinstance(event, Received)
    }
    assert sampled == set(KINDS.values())


@pytest.mark.parametrize("event", SERVER_EVENTS, ids=lambda e: type(e).__name__)
def test_a_server_event_survives_the_journal(event):
    record = journal.record_of(event)
    assert journal.decode_server_event(record) == event


@pytest.mark.parametrize("event", CLIENT_EVENTS, ids=lambda e: type(e).__name__)
def test_a_client_event_survives_the_journal(event):
    record = journal.record_of(event)
    assert journal.decode_client_event(record) == event


def test_no_two_events_share_a_record():
    records = [journal.record_of(event) for event in SERVER_EVENTS]
    records += [journal.record_of(event) for event in CLIENT_EVENTS]
    assert len(set(records)) == len(records)


def test_a_vector_is_never_journalled():
    event = InputReady(PlainVector(np.zeros(3, np.uint32)))
    with pytest.raises(TypeError, match="InputReady"):
        journal.record_of(event)


OWN_EVENTS = [e for e in SERVER_EVENTS if not isinstance(e, Received)]


@pytest.mark.parametrize("event", OWN_EVENTS, ids=lambda e: type(e).__name__)
def test_a_damaged_record_is_a_storage_failure(event):
    record = journal.record_of(event)
    for damaged in (
        replace(record, body=record.body[:-1]),
        replace(record, body=record.body + b"\x00"),
        replace(record, kind=0xFFFF),
        replace(record, body=b""),
    ):
        if damaged == record:
            continue  # its kind and sender say it all
        with pytest.raises(ServiceError) as caught:
            journal.decode_server_event(damaged)
        assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_the_record_of_a_message_holds_kind_sender_and_raw_bytes():
    record = journal.record_of(Received(Envelope(Bundles, b"sealed"), "me"))
    assert record == Record(2, "me", b"sealed")


def test_an_answered_client_state_round_trips_as_a_header():
    state = client.resume_answered(
        DESCRIPTOR,
        "me",
        accepted={Round.SHARE_KEYS: bytes(32), Round.UNMASKING: b"\x01" * 32},
        share_holders=3,
        survivors=b"\x07",
        answer=b"shares",
    )
    header = journal.encode_answered(DESCRIPTOR, state)
    assert journal.is_answered(header)
    assert not journal.is_answered(journal.encode_offer(OFFERED))
    assert journal.decode_answered(header) == (DESCRIPTOR, state)
    for size in range(len(header)):
        with pytest.raises(ServiceError):
            journal.decode_answered(header[:size])


def test_a_client_may_complain_about_several_dealers():
    """The store takes one record of a kind from each sender, but for complaints."""
    complaints = [
        Received(Envelope.of(Complaint(ErrorCode.BAD_SHARE_CIPHERTEXT, accused)), "me")
        for accused in (1, 2)
    ]
    records = [journal.record_of(complaint) for complaint in complaints]
    assert [record.sender for record in records] == [None, None]
    assert [journal.decode_server_event(record) for record in records] == complaints


def test_the_aggregator_does_not_appear_among_the_senders_of_a_client():
    assert journal.record_of(Received(Envelope(Roster, b"roster"))).sender is None


def test_records_of_one_role_are_rejected_by_the_other():
    with pytest.raises(ServiceError):
        journal.decode_client_event(journal.record_of(SERVER_EVENTS[0]))
    with pytest.raises(ServiceError):
        journal.decode_server_event(journal.record_of(CLIENT_EVENTS[0]))


def test_an_offer_round_trips_as_a_header_and_truncation_is_rejected():
    header = journal.encode_offer(OFFERED)
    assert journal.decode_offer(header) == journal.StoredOffer(OFFERED)
    for size in range(len(header)):
        with pytest.raises(ServiceError):
            journal.decode_offer(header[:size])
    with pytest.raises(TypeError, match="SessionOffered"):
        journal.record_of(OFFERED)


def test_an_enrolled_client_stores_its_checks_and_not_its_key():
    own = identity_in_simulation("me", 5)
    verified = VerifiedCredentials()
    membership = Membership(
        trust_domain=own.issued.trust_domain,
        enrolment_key=own.enrolment_key,
        key=own.key,
        credential=own.issued.credential,
        revoked=frozenset({2, (1 << 32) - 1}),
        verified=verified,
    )
    offered = replace(OFFERED, membership=membership)
    header = journal.encode_offer(offered)
    assert own.key.seed().reveal() not in header
    begun = journal.decode_offer(header)
    assert begun.offered == OFFERED
    assert begun.fits(own)
    assert begun.resumed(own, verified) == offered
    assert begun.resumed(own, verified).membership.key is own.key
    # A renewed credential for the same key does no harm: the advert has left.
    renewed = replace(own, issued=identity_in_simulation("me", 6).issued)
    assert begun.fits(renewed)
    assert begun.resumed(renewed, verified) == offered
    for stranger in (None, identity_in_simulation("another", 5)):
        assert not begun.fits(stranger)
    for size in range(len(header)):
        with pytest.raises(ServiceError):
            journal.decode_offer(header[:size])


def test_an_ending_round_trips_through_the_journal():
    released = Released(Fate.INCLUDED, b"\x09" * 32, 25, 3, 1_800_000_000)
    for outcome in (
        Completed(released, ChargeOutcome.KEPT),
        Failed(ErrorCode.TOO_FEW_ANSWERS, "ü", ChargeOutcome.KEPT),
    ):
        ending = journal.Ending(outcome, b"a receipt")
        assert journal.decode_ending(journal.encode_ending(ending)) == ending


def test_evidence_round_trips_through_the_journal_and_is_no_client_event():
    seen = AuditReceipt(
        writer=WrittenBy.CLIENT,
        offer=b"an offer",
        share_holders=b"\x07",
        outcome=Outcome.ABORTED,
    )
    record = journal.evidence_of(seen)
    assert journal.decode_evidence(record) == seen
    with pytest.raises(ServiceError):
        journal.decode_client_event(record)
    with pytest.raises(ServiceError):
        journal.decode_evidence(replace(record, body=record.body[:-1]))
