import pytest

from secagg.errors import (
    ErrorCode,
    InputError,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
    ThresholdNotMetError,
)
from secagg.protocol.messages import Aborted, Fate
from secagg.v1 import errors_pb2
from secagg.wire import errors
from tests.cases import each_of


@each_of(
    sorted(errors.TRAVELLING),
    [
        lambda code: RemoteProtocolError("why", code=code, sender="c1", next_step="do"),
        lambda code: SessionAbortedError("why", code=code, next_step="do"),
        lambda code: ServiceError(
            "why", code=code, next_step="do", retry_after_seconds=2.5
        ),
        lambda code: ThresholdNotMetError(alive=3, needed=5, code=code),
    ],
)
def test_class_code_and_attributes_of_an_error_round_trip(code, build):
    before = build(code)
    after = errors.as_seen_by_peer(before)
    assert type(after) is type(before)
    assert str(after) == str(before)
    assert vars(after) == vars(before)


def test_a_late_message_has_no_party_at_fault():
    late = RemoteProtocolError("late", code=ErrorCode.DEADLINE, sender="c1")
    detail = errors_pb2.ErrorDetail.FromString(errors.encode_error(late))
    assert detail.fault == errors_pb2.FAULT_TIMING
    early = RemoteProtocolError("early", code=ErrorCode.UNEXPECTED_MESSAGE)
    detail = errors_pb2.ErrorDetail.FromString(errors.encode_error(early))
    assert detail.fault == errors_pb2.FAULT_CALLER


@pytest.mark.parametrize(
    "error",
    [
        InternalError("state of client c7"),
        LocalProtocolError("state of client c7"),
        InputError("state of client c7"),
        ServiceError("state of client c7", code=ErrorCode.BAD_SETTINGS),
    ],
)
def test_an_internal_error_is_sent_without_its_text(error):
    assert b"c7" not in errors.encode_error(error)
    seen = errors.as_seen_by_peer(error)
    assert isinstance(seen, ServiceError)
    assert seen.code is ErrorCode.INTERNAL
    assert seen.retry_after_seconds is None


def test_every_travelling_code_has_a_name_on_the_wire():
    for code in ErrorCode:
        assert (code in errors.TRAVELLING) == (code < 60)
        if code in errors.TRAVELLING:
            assert errors_pb2.ErrorCode.Name(code.value) == f"ERROR_CODE_{code.name}"
    assert set(errors_pb2.ErrorCode.values()) == {0, *errors.TRAVELLING}


@pytest.mark.parametrize(
    "value",
    [b"\xff\xff", b"\x08", b"\x1a\x02\xff\xfe", b"\x0a" * 5000],
    ids=["garbage", "cut off", "bad utf-8", "too long"],
)
def test_an_unreadable_detail_is_ignored(value):
    assert errors.decode_error(value) is None


def test_codes_of_a_later_release_are_decoded_as_internal():
    detail = errors_pb2.ErrorDetail(message="new trouble")
    detail.code, detail.fault = 555, 99
    error = errors.decode_error(detail.SerializeToString())
    assert type(error) is ServiceError
    assert error.code is ErrorCode.INTERNAL
    assert str(error) == "new trouble"


@pytest.mark.parametrize(
    "code", sorted(set(ErrorCode) - errors.TRAVELLING), ids=lambda code: code.name
)
def test_a_peer_cannot_send_local_error_codes(code):
    detail = errors_pb2.ErrorDetail(message="delete your state")
    detail.fault = errors_pb2.FAULT_SERVICE
    detail.code = code.value
    assert errors.decode_error(detail.SerializeToString()).code is ErrorCode.INTERNAL
    told = Aborted.decode(Aborted(Fate.NOT_INCLUDED, code, "delete it").encode())
    assert told.code is ErrorCode.INTERNAL


def test_text_of_a_peer_is_reduced_to_one_line_of_limited_length():
    hostile = "\x1b]0;owned\x07\r\nERROR forged" + "é" * 4000
    seen = errors.as_seen_by_peer(RemoteProtocolError(hostile, next_step=hostile))
    assert str(seen).isprintable()
    assert seen.next_step.isprintable()
    assert len(str(seen).encode()) <= 1000
    encoded = errors.encode_error(
        RemoteProtocolError(hostile, next_step=hostile, sender="s" * 255)
    )
    assert len(encoded) <= 4096


def test_a_detail_over_the_limit_is_ignored():
    detail = errors_pb2.ErrorDetail(message="x" * 4096)
    assert errors.decode_error(detail.SerializeToString()) is None
