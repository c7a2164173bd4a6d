import numpy as np
import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.messages import SessionAborted, SumReleased
from secagg.parameters import ProtocolParameters, SessionDescriptor
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.events import (
    AbortRequested,
    BundlesSent,
    InputBound,
    InputUploaded,
    KeysAdvertised,
    PlainInputReady,
    PlainVector,
    RosterReceived,
    RoundClosed,
    SessionEnded,
    SessionOffered,
    SharesReceived,
    SharesRevealed,
    SumComputed,
    SurvivorsReceived,
)
from secagg.protocol.rounds import Round
from secagg.storage import journal

DESCRIPTOR = SessionDescriptor(
    task_id="täsk",
    session_number=7,
    server_nonce=bytes(range(32)),
    payload_hash=b"\x01" * 32,
    parameters=ProtocolParameters(
        modulus=1 << 20,
        dimension=10,
        min_clients=3,
        max_clients=5,
        threshold=3,
        min_survivors=3,
        max_dropouts=2,
    ),
)

SERVER_EVENTS = [
    KeysAdvertised("clïent", b"advert"),
    BundlesSent("c", b"\x00" * 1000),
    InputUploaded("c", b"\x02" * 32, (1 << 40) + 1),
    SharesRevealed("c", b""),
    *(RoundClosed(closed) for closed in Round),
    RoundClosed(Round.ADVERTISE_KEYS, b"\x03" * 32),
    SumComputed(b"\x04" * 32, 0),
    AbortRequested(ErrorCode.STORAGE_FAILED, "the disk is full"),
]

CLIENT_EVENTS = [
    SessionOffered(DESCRIPTOR, "me", SecretBytes(b"\x05" * 32)),
    RosterReceived(b"roster"),
    SharesReceived(b"\x07", b"bundles"),
    InputBound(b"\x08" * 32),
    SurvivorsReceived(b"\x03"),
    SessionEnded(SumReleased(b"\x09" * 32, 25, 3)),
    SessionEnded(SessionAborted(ErrorCode.DEADLINE, "too late")),
]


@pytest.mark.parametrize("event", SERVER_EVENTS, ids=lambda e: type(e).__name__)
def test_a_server_event_survives_the_journal(event):
    record = journal.encode_server_event(event)
    assert journal.decode_server_event(record) == event


@pytest.mark.parametrize("event", CLIENT_EVENTS, ids=lambda e: type(e).__name__)
def test_a_client_event_survives_the_journal(event):
    record = journal.encode_client_event(event)
    assert journal.decode_client_event(record) == event


def test_no_two_events_share_a_record():
    records = [journal.encode_server_event(event) for event in SERVER_EVENTS]
    records += [journal.encode_client_event(event) for event in CLIENT_EVENTS]
    assert len(set(records)) == len(records)


def test_a_vector_is_never_journalled():
    event = PlainInputReady(PlainVector(np.zeros(3, np.uint32)))
    with pytest.raises(TypeError, match="digest"):
        journal.encode_client_event(event)


@pytest.mark.parametrize("event", SERVER_EVENTS, ids=lambda e: type(e).__name__)
def test_a_damaged_record_is_the_storages_fault(event):
    record = journal.encode_server_event(event)
    for damaged in (record[:-1], record + b"\x00", b"\xff\xff" + record[2:], b""):
        with pytest.raises(ServiceError) as caught:
            journal.decode_server_event(damaged)
        assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_records_of_one_role_are_refused_by_the_other():
    with pytest.raises(ServiceError):
        journal.decode_client_event(journal.encode_server_event(SERVER_EVENTS[0]))
    with pytest.raises(ServiceError):
        journal.decode_server_event(journal.encode_client_event(CLIENT_EVENTS[1]))


def test_every_cut_of_a_client_record_is_refused():
    record = journal.encode_client_event(CLIENT_EVENTS[0])
    for size in range(len(record)):
        with pytest.raises(ServiceError):
            journal.decode_client_event(record[:size])


def test_an_outcome_survives_the_journal():
    for outcome in (
        SumReleased(b"\x09" * 32, 25, 3),
        SessionAborted(ErrorCode.TOO_FEW_ANSWERS, "ü"),
    ):
        assert journal.decode_outcome(journal.encode_outcome(outcome)) == outcome
