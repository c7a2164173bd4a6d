import grpc
import pytest

from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.transport import status
from secagg.wire.errors import TRAVELLING


@pytest.mark.parametrize("code", sorted(TRAVELLING), ids=lambda code: code.name)
def test_an_error_round_trips_through_a_status(code):
    before = RemoteProtocolError("why", code=code, sender="c1", next_step="do")
    after = status.error_of(*status.status_of(before))
    assert type(after) is type(before)
    assert str(after) == str(before)
    assert vars(after) == vars(before)


def test_an_internal_error_is_sent_in_a_status_without_its_text():
    told = status.status_of(LocalProtocolError("state of client c7"))
    assert told[0] is grpc.StatusCode.INTERNAL
    assert "c7" not in repr(told)


def test_every_travelling_code_has_a_status():
    for code in ErrorCode:
        is_internal = status.status_code(code) is grpc.StatusCode.INTERNAL
        assert is_internal == (code not in TRAVELLING or code is ErrorCode.INTERNAL)


def test_a_final_answer_disables_grpc_retries():
    _, _, metadata = status.status_of(
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
def test_a_status_without_detail_is_reported_as_a_connection_error(
    code, expected, retried
):
    error = status.error_of(code, "text of a proxy", ())
    assert isinstance(error, ServiceError)
    assert error.code is expected
    assert (error.retry_after_seconds is not None) is retried
    assert "text of a proxy" in str(error)


def test_a_message_over_the_limit_is_not_reported_as_overload():
    error = status.error_of(
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
    error = status.error_of(
        grpc.StatusCode.UNAVAILABLE, "", ((status.DETAIL_KEY, value),)
    )
    assert error.code is ErrorCode.UNREACHABLE


def test_the_text_of_a_status_is_one_line_of_bounded_length():
    hostile = "\x1b]0;owned\x07\r\nERROR forged" + "é" * 4000
    seen = status.error_of(grpc.StatusCode.INTERNAL, hostile, ())
    assert str(seen).isprintable()
    assert len(str(seen).encode()) <= 1100
