"""How an error travels: gRPC status for machines, a numbered detail for clients.

Rule 1: the class and the number of an error survive the way from the aggregator to
        the client: whose fault it is decides what the client may do.
Rule 2: a fault of the aggregator itself travels as INTERNAL without its text.
Rule 3: a client reads any status, with or without a detail, of this release or
        another, from the aggregator or from whatever stands in between.
Rule 4: what a peer wrote is cut to length and freed of control characters before
        anybody prints it.
"""

from collections.abc import Sequence
from typing import Final, cast

import grpc
from google.protobuf.message import DecodeError

from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
    ThresholdNotMetError,
)
from secagg.messages import MAX_IDENTITY_BYTES
from secagg.v1 import errors_pb2
from secagg.wire.codec import error_code, printable
from secagg.wire.limits import (
    MAX_DETAIL_BYTES,
    MAX_NEXT_STEP_BYTES,
    MAX_REASON_BYTES,
    MAX_RETRY_AFTER_SECONDS,
)

__all__ = [
    "DETAIL_KEY",
    "decode_error",
    "encode_error",
    "seen_by_peer",
    "status_code",
]

# The suffix makes it a binary header in gRPC.
DETAIL_KEY: Final = "secagg-error-bin"
# Tells gRPC's own retry layer that the answer is final; the application decides.
_NO_BLIND_RETRY: Final = ("grpc-retry-pushback-ms", "-1")

_Metadata = tuple[tuple[str, str | bytes], ...]

_C = ErrorCode
_S = grpc.StatusCode

# One status for each number that travels.
_STATUS: Final[dict[ErrorCode, grpc.StatusCode]] = {
    # What the caller sent cannot be accepted, now or later.
    _C.BAD_CONFIG: _S.INVALID_ARGUMENT,
    _C.BAD_SIGNATURE: _S.INVALID_ARGUMENT,
    _C.BAD_PUBLIC_KEY: _S.INVALID_ARGUMENT,
    _C.BAD_SHARE_CIPHERTEXT: _S.INVALID_ARGUMENT,
    _C.SHARE_CONFUSION: _S.INVALID_ARGUMENT,
    _C.U3_INVALID: _S.INVALID_ARGUMENT,
    _C.BAD_VECTOR: _S.INVALID_ARGUMENT,
    _C.BAD_NOISE_REVEAL: _S.INVALID_ARGUMENT,
    _C.PAYLOAD_MISMATCH: _S.INVALID_ARGUMENT,
    _C.BAD_ENCODING: _S.INVALID_ARGUMENT,
    # It contradicts what is there.
    _C.DUPLICATE_KEY: _S.ALREADY_EXISTS,
    _C.EQUIVOCATION: _S.ALREADY_EXISTS,
    # It has no place in the present state.
    _C.BAD_VERSION: _S.FAILED_PRECONDITION,
    _C.POLICY_VIOLATION: _S.FAILED_PRECONDITION,
    _C.SELF_MISSING: _S.FAILED_PRECONDITION,
    _C.REPLAYED_SESSION: _S.FAILED_PRECONDITION,
    _C.UNEXPECTED_MESSAGE: _S.FAILED_PRECONDITION,
    _C.SESSION_OVER: _S.FAILED_PRECONDITION,
    # The session is over without a sum.
    _C.ROSTER_TOO_SMALL: _S.ABORTED,
    _C.ROSTER_TOO_LARGE: _S.ABORTED,
    _C.U2_TOO_SMALL: _S.ABORTED,
    _C.U3_TOO_SMALL: _S.ABORTED,
    _C.TOO_MANY_DROPOUTS: _S.ABORTED,
    _C.NO_QUORUM: _S.ABORTED,
    _C.DEADLINE: _S.ABORTED,
    _C.RECONSTRUCTION_FAILED: _S.ABORTED,
    _C.TOO_FEW_ANSWERS: _S.ABORTED,
    # The service around it.
    _C.INTERNAL: _S.INTERNAL,
    _C.UNKNOWN_SESSION: _S.NOT_FOUND,
    _C.UNAUTHENTICATED: _S.UNAUTHENTICATED,
    _C.NOT_INVITED: _S.PERMISSION_DENIED,
    _C.OVERLOADED: _S.RESOURCE_EXHAUSTED,
    _C.STORAGE_FAILED: _S.UNAVAILABLE,
    _C.SHUTTING_DOWN: _S.UNAVAILABLE,
    _C.UPLOAD_CORRUPT: _S.DATA_LOSS,
    _C.UNREACHABLE: _S.UNAVAILABLE,
    _C.CANCELLED: _S.CANCELLED,
}

# A status without our detail was made by gRPC or by a proxy: it speaks of the way
# to the aggregator and is nobody's protocol violation.
_WITHOUT_DETAIL: Final[dict[grpc.StatusCode, tuple[ErrorCode, str]]] = {
    _S.UNAVAILABLE: (
        _C.UNREACHABLE,
        "Check the address, the network and that the aggregator runs; try again.",
    ),
    _S.DEADLINE_EXCEEDED: (
        _C.UNREACHABLE,
        "The aggregator did not answer in time; try again.",
    ),
    _S.UNAUTHENTICATED: (
        _C.UNAUTHENTICATED,
        "Present a client certificate that the aggregator's CA issued.",
    ),
    _S.PERMISSION_DENIED: (
        _C.NOT_INVITED,
        "Ask the operator of the aggregator for access.",
    ),
    _S.UNIMPLEMENTED: (
        _C.BAD_VERSION,
        "Check that the address is an aggregator's; upgrade the older side.",
    ),
    _S.RESOURCE_EXHAUSTED: (
        _C.OVERLOADED,
        "Try again later; if it persists, check the message limits of any proxy.",
    ),
    # Our own cancellation never comes as a status: this is the other side, stopping.
    _S.CANCELLED: (
        _C.UNREACHABLE,
        "The aggregator ended the call, as it does when it stops; try again.",
    ),
}
_RETRIED: Final = frozenset({_C.UNREACHABLE, _C.OVERLOADED})
_DEFAULT_RETRY_SECONDS: Final = 1.0


def status_code(code: ErrorCode) -> grpc.StatusCode:
    """Return the gRPC status of an error; numbers that never travel are INTERNAL."""
    return _STATUS.get(code, grpc.StatusCode.INTERNAL)


def _detail(error: SecAggError) -> errors_pb2.ErrorDetail:
    """Return the wire's form of `error`, without what is nobody else's business."""
    detail = errors_pb2.ErrorDetail()
    match error:
        case RemoteProtocolError():
            detail.fault = errors_pb2.FAULT_CALLER
            # Shorter names than this are the rule; a longer one is not a name.
            if error.sender and len(error.sender.encode()) <= MAX_IDENTITY_BYTES:
                detail.sender = error.sender
        case SessionAbortedError():
            detail.fault = errors_pb2.FAULT_SESSION
            if isinstance(error, ThresholdNotMetError):
                detail.alive, detail.needed = error.alive, error.needed
        case ServiceError() if error.code in _STATUS:
            detail.fault = errors_pb2.FAULT_SERVICE
            if error.retry_after_seconds is not None:
                seconds = min(error.retry_after_seconds, MAX_RETRY_AFTER_SECONDS)
                detail.retry_after_ms = max(1, round(seconds * 1000))
        case _:
            # Rule 2: our own misuse, defects and settings are the log's business.
            detail.fault = errors_pb2.FAULT_AGGREGATOR
            detail.code = errors_pb2.ERROR_CODE_INTERNAL
            detail.message = "the aggregator has a defect; its log says more"
            return detail
    detail.code = cast("errors_pb2.ErrorCode", int(error.code))
    detail.message = printable(str(error), max_bytes=MAX_REASON_BYTES)
    detail.next_step = printable(error.next_step, max_bytes=MAX_NEXT_STEP_BYTES)
    return detail


def encode_error(error: SecAggError) -> tuple[grpc.StatusCode, str, _Metadata]:
    """Return status, text and trailing metadata for a failed call."""
    detail = _detail(error)
    status = status_code(error_code(detail.code))
    metadata: _Metadata = ((DETAIL_KEY, detail.SerializeToString()),)
    if status is grpc.StatusCode.UNAVAILABLE:
        metadata = (*metadata, _NO_BLIND_RETRY)
    return status, detail.message, metadata


def decode_error(
    status: grpc.StatusCode,
    text: str,
    metadata: Sequence[tuple[str, str | bytes]],
) -> SecAggError:
    """Return the error that a failed call means.

    Args:
        status: gRPC status of the call.
        text: Its text; printed only after cleaning.
        metadata: Trailing metadata of the call.
    """
    for key, value in metadata:
        if (
            key == DETAIL_KEY
            and isinstance(value, bytes)
            and len(value) <= MAX_DETAIL_BYTES
        ):
            detail = errors_pb2.ErrorDetail()
            try:
                detail.ParseFromString(value)
            except DecodeError:
                continue
            return _from_detail(detail)
    return _from_status(status, text)


def _from_detail(detail: errors_pb2.ErrorDetail) -> SecAggError:
    code = error_code(detail.code)
    message = printable(detail.message, max_bytes=MAX_REASON_BYTES)
    next_step = printable(detail.next_step, max_bytes=MAX_NEXT_STEP_BYTES)
    if detail.fault == errors_pb2.FAULT_CALLER:
        sender = printable(detail.sender, max_bytes=MAX_IDENTITY_BYTES)
        return RemoteProtocolError(
            message, code=code, sender=sender or None, next_step=next_step
        )
    if detail.fault == errors_pb2.FAULT_SESSION:
        if detail.needed:
            return ThresholdNotMetError(
                alive=detail.alive, needed=detail.needed, code=code
            )
        return SessionAbortedError(message, code=code, next_step=next_step)
    retry: float | None = None
    if detail.HasField("retry_after_ms"):
        retry = min(detail.retry_after_ms / 1000, MAX_RETRY_AFTER_SECONDS)
    return ServiceError(
        message, code=code, next_step=next_step, retry_after_seconds=retry
    )


def _from_status(status: grpc.StatusCode, text: str) -> SecAggError:
    shown = printable(text, max_bytes=MAX_REASON_BYTES)
    # gRPC says RESOURCE_EXHAUSTED for a message over the limit as well; trying that
    # again would fail again.
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return RemoteProtocolError(
            f"a message was over the size limit: {shown}",
            code=ErrorCode.BAD_ENCODING,
            next_step="Both sides must use the limits of docs/transport.md.",
        )
    code, next_step = _WITHOUT_DETAIL.get(
        status,
        (
            ErrorCode.INTERNAL,
            "No aggregator of this protocol answered, or a broken one: see its log.",
        ),
    )
    return ServiceError(
        f"the call failed with {status.name}: {shown}",
        code=code,
        next_step=next_step,
        retry_after_seconds=_DEFAULT_RETRY_SECONDS if code in _RETRIED else None,
    )


def seen_by_peer(error: SecAggError) -> SecAggError:
    """Return `error` as it arrives after the way over the wire."""
    return decode_error(*encode_error(error))
