"""Errors travel between processes whole, and are made by their code."""

import pickle
import traceback

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


@pytest.mark.parametrize(
    "error",
    [
        InternalError("a", next_step="b"),
        RemoteProtocolError("a", code=ErrorCode.BAD_VECTOR, sender="c"),
        ServiceError("a", code=ErrorCode.STORAGE_FAILED, retry_after_seconds=3.0),
        ThresholdNotMetError(alive=2, needed=3, code=ErrorCode.U2_TOO_SMALL),
    ],
)
def test_an_error_is_the_same_in_another_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_traceback_shows_the_next_step():
    error = pickle.loads(pickle.dumps(InternalError("a", next_step="Read b.")))
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith("InternalError: a\nnext step: Read b.\n")


@pytest.mark.parametrize(
    ("code", "usual"),
    [
        (ErrorCode.BAD_VECTOR, RemoteProtocolError),
        (ErrorCode.DEADLINE, SessionAbortedError),
        (ErrorCode.OVERLOADED, ServiceError),
        (ErrorCode.UNAUTHENTICATED, RemoteProtocolError),
        (ErrorCode.BAD_INPUT, InputError),
        (ErrorCode.INTERNAL, InternalError),
        (ErrorCode.LOCAL_MISUSE, LocalProtocolError),
        (ErrorCode.BAD_SETTINGS, ServiceError),
    ],
)
def test_a_code_makes_its_usual_class(code, usual):
    error = code.error("a", fix="b")
    assert (type(error), error.code, str(error)) == (usual, code, "a")
    assert error.next_step == "b"


def test_another_class_is_named_and_takes_its_attributes():
    error = ErrorCode.UNAUTHENTICATED.error("a", kind=ServiceError, server_time=5)
    assert type(error) is ServiceError
    assert (error.code, error.server_time) == (ErrorCode.UNAUTHENTICATED, 5)
    assert ErrorCode.BAD_VECTOR.error("a", sender="c").sender == "c"
