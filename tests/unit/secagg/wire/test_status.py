import grpc
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
from secagg.v1 import errors_pb2
from secagg.wire import status

TRAVELLING = [code for code in ErrorCode if code < 60]


@pytest.mark.parametrize("code", TRAVELLING, ids=lambda code: code.name)
@pytest.mark.parametrize(
    "build",
    [
        lambda code: RemoteProtocolError("why", code=code, sender="c1", next_step="do"),
        lambda code: SessionAbortedError("why", code=code, next_step="do"),
        lambda code: ServiceError(
            "why", code=code, next_step="do", retry_after_seconds=2.5
        ),
        lambda code: ThresholdNotMetError(alive=3, needed=5, code=code),
    ],
    ids=["remote", "aborted", "service", "threshold"],
)
def test_class_number_and_attributes_of_an_error_survive_the_wire(code, build):
    before = build(code)
    after = status.seen_by_peer(before)
    assert type(after) is type(before)
    assert str(after) == str(before)
    assert vars(after) == vars(before)


@pytest.mark.parametrize(
    "error",
    [
        InternalError("state of client c7"),
        LocalProtocolError("state of client c7"),
        InputError("state of client c7"),
        ServiceError("state of client c7", code=ErrorCode.BAD_SETTINGS),
    ],
)
def test_a_fault_of_the_aggregator_itself_travels_without_its_text(error):
    code, text, metadata = status.encode_error(error)
    assert code is grpc.StatusCode.INTERNAL
    assert "c7" not in text + repr(metadata)
    seen = status.decode_error(code, text, metadata)
    assert isinstance(seen, ServiceError)
    assert seen.code is ErrorCode.INTERNAL
    assert seen.retry_after_seconds is None


def test_every_number_that_travels_has_a_status_and_a_name_on_the_wire():
    for code in ErrorCode:
        if code >= 60:
            assert status.status_code(code) is grpc.StatusCode.INTERNAL
            assert code.value not in errors_pb2.ErrorCode.values()
            continue
        final = code is ErrorCode.INTERNAL
        assert (status.status_code(code) is grpc.StatusCode.INTERNAL) == final
        assert errors_pb2.ErrorCode.Name(code.value) == f"ERROR_CODE_{code.name}"
    assert set(errors_pb2.ErrorCode.values()) == {0, *TRAVELLING}


def test_an_answer_that_is_final_is_not_retried_blindly_by_grpc():
    _, _, metadata = status.encode_error(
        ServiceError("stopping", code=ErrorCode.SHUTTING_DOWN)
    )
    assert ("grpc-retry-pushback-ms", "-1") in metadata


@pytest.mark.parametrize(
    ("code", "expected", "retried"),
    [
        (grpc.StatusCode.UNAVAILABLE, ErrorCode.UNREACHABLE, True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ErrorCode.UNREACHABLE, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorCode.OVERLOADED, True),
        (grpc.StatusCode.UNAUTHENTICATED, ErrorCode.UNAUTHENTICATED, False),
        (grpc.StatusCode.PERMISSION_DENIED, ErrorCode.NOT_INVITED, False),
        (grpc.StatusCode.UNIMPLEMENTED, ErrorCode.BAD_VERSION, False),
        (grpc.StatusCode.CANCELLED, ErrorCode.UNREACHABLE, True),
        (grpc.StatusCode.INTERNAL, ErrorCode.INTERNAL, False),
        (grpc.StatusCode.UNKNOWN, ErrorCode.INTERNAL, False),
    ],
)
def test_a_status_without_detail_speaks_of_the_way_there(code, expected, retried):
    error = status.decode_error(code, "text of a proxy", ())
    assert isinstance(error, ServiceError)
    assert error.code is expected
    assert (error.retry_after_seconds is not None) is retried
    assert "text of a proxy" in str(error)


def test_a_message_over_the_limit_is_not_taken_for_overload():
    error = status.decode_error(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SERVER: Received message larger than max (5 vs. 4)",
        (),
    )
    assert isinstance(error, RemoteProtocolError)
    assert error.code is ErrorCode.BAD_ENCODING


@pytest.mark.parametrize(
    "value",
    [b"\xff\xff", b"\x08", "not bytes", b"\x1a\x02\xff\xfe", b"\x0a" * 5000],
    ids=["garbage", "cut off", "text", "bad utf-8", "too long"],
)
def test_an_unreadable_detail_falls_back_to_the_status(value):
    error = status.decode_error(
        grpc.StatusCode.UNAVAILABLE, "", ((status.DETAIL_KEY, value),)
    )
    assert error.code is ErrorCode.UNREACHABLE


def test_numbers_of_a_later_release_become_internal():
    detail = errors_pb2.ErrorDetail(message="new trouble")
    detail.code, detail.fault = 555, 99
    error = status.decode_error(
        grpc.StatusCode.UNKNOWN, "", ((status.DETAIL_KEY, detail.SerializeToString()),)
    )
    assert type(error) is ServiceError
    assert error.code is ErrorCode.INTERNAL
    assert str(error) == "new trouble"


def test_what_a_peer_wrote_is_one_line_of_bounded_length():
    hostile = "\x1b]0;owned\x07\r\nERROR forged" + "é" * 4000
    for seen in (
        status.seen_by_peer(RemoteProtocolError(hostile, next_step=hostile)),
        status.decode_error(grpc.StatusCode.INTERNAL, hostile, ()),
    ):
        assert str(seen).isprintable()
        assert seen.next_step.isprintable()
        assert len(str(seen).encode()) <= 1100
    _, _, metadata = status.encode_error(
        RemoteProtocolError(hostile, next_step=hostile, sender="s" * 255)
    )
    assert len(dict(metadata)[status.DETAIL_KEY]) <= 4096
