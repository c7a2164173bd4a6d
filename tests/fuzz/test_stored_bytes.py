"""Damaged storage gives one error, whatever the damage."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_testing.cohorts import offer_of, parameters_for
from secagg_testing.stored_header import stored_header

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Aborted, Fate, Released
from secagg.server.session.report import SessionReceipt
from secagg.server.session.state import SessionRecord
from secagg.server.task.history import TaskHistory
from secagg.server.task.stored import StoredTask
from secagg.storage import journal
from secagg.storage.change import Record

DESCRIPTOR = offer_of(parameters_for(3, dimension=4, threshold=2))
RECEIPTS = [
    SessionReceipt(
        descriptor=DESCRIPTOR,
        outcome=outcome,
        members=("a", "b"),
        survivors=("a",),
        disputes=(("a", "b", 10),),
        was_unmasked=isinstance(outcome, Aborted),
        lost=(("b", "uploading", "sent no input in time"),),
        finishers=("a",),
        contexts=(bytes(32),),
        seconds=(("UNMASKING", 0.5),),
    )
    for outcome in (
        Released(Fate.INCLUDED, bytes(32), 10, 2, 0),
        Aborted(Fate.NOT_INCLUDED, ErrorCode.DEADLINE, "late"),
    )
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def as_record(data):
    return Record(int.from_bytes(data[:2], "big"), None, data[2:])


@contextlib.contextmanager
def only_storage_errors():
    codes = []
    try:
        yield
    except ServiceError as error:
        codes.append(error.code)
    assert codes in ([], [ErrorCode.STORAGE_FAILED])


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: journal.decode_server_event(as_record(data)),
        lambda data: journal.decode_client_event(as_record(data)),
        journal.decode_offer,
        journal.decode_ending,
        lambda data: journal.decode_evidence(as_record(data)),
        SessionReceipt.decode,
        StoredTask.decode,
        lambda data: SessionRecord.decode(stored_header(data)),
        TaskHistory.decode,
    ],
    ids=[
        "server event",
        "client event",
        "offer",
        "ending",
        "evidence",
        "receipt",
        "plan",
        "session",
        "facts",
    ],
)
@given(data=st.binary(max_size=200), tag=st.integers(0, 80))
def test_arbitrary_bytes_decode_to_a_value_or_a_storage_error(decode, data, tag):
    for candidate in (data, tag.to_bytes(2, "big") + data):
        with only_storage_errors():
            decode(candidate)


@pytest.mark.parametrize("receipt", RECEIPTS, ids=["sum", "abort"])
def test_a_receipt_survives_storage(receipt):
    assert SessionReceipt.decode(receipt.encode()) == receipt


@pytest.mark.parametrize("receipt", RECEIPTS, ids=["sum", "abort"])
@given(value=anything, place=st.integers(0, 20))
def test_a_receipt_with_any_field_replaced_decodes_or_raises_a_storage_error(
    receipt, value, place
):
    fields = json.loads(receipt.encode())
    fields[sorted(fields)[place % len(fields)]] = value
    with only_storage_errors():
        SessionReceipt.decode(json.dumps(fields).encode())


def test_a_session_header_survives_storage():
    for invited in (None, frozenset(), frozenset({"a", "ü"})):
        record = SessionRecord(
            DESCRIPTOR,
            invited,
            excluded=frozenset({"out", "b"}),
            finished=frozenset({"c"}),
            attempt=3,
            revocations=b"a list",
        )
        assert SessionRecord.decode(stored_header(record.encode_header())) == record
