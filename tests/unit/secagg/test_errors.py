"""Errors travel between processes whole."""

import pickle

import pytest

from secagg.errors import (
    ErrorCode,
    InternalError,
    RemoteProtocolError,
    ServiceError,
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
