"""Errors on the wire: a numbered detail, the same over every transport.

Rule 1: the client receives class and number of an error as the aggregator raised it.
        The party at fault determines what the client may do.
Rule 2: a fault of the aggregator itself travels as INTERNAL without its text.
Rule 3: text of a peer is truncated, and control characters are removed, before it is
        shown.

Beside the detail travels google.rpc.Status, which is written and never read.  Gateways,
command-line clients and the wrappers of other languages know its trailer, `STATUS_KEY`.
They show reason and wait; the detail of this package is opaque to them.

Rule 4: it repeats what the detail states of the same error, and nothing else.
"""

from typing import Final, cast

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message

from secagg.errors import (
    FIRST_LOCAL,
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
    ThresholdNotMetError,
    error_code,
    printable,
)
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.v1 import errors_pb2, google_status_pb2
from secagg.wire.calls import (
    MAX_DETAIL_BYTES,
    MAX_ERROR_TEXT_BYTES,
    MAX_NEXT_STEP_BYTES,
    MAX_RETRY_AFTER_SECONDS,
    MAX_UPLOAD_BYTES,
)

# The errors that a peer may receive.
TRAVELLING: Final = frozenset(code for code in ErrorCode if code < FIRST_LOCAL)


def encode_error(error: SecAggError) -> bytes:
    """Return the wire's form of `error`, without the aggregator's own facts."""
    detail = errors_pb2.ErrorDetail()
    match error:
        case RemoteProtocolError(code=ErrorCode.DEADLINE):
            detail.fault = errors_pb2.FAULT_TIMING
            detail.sender = error.sender or ""
        case RemoteProtocolError():
            detail.fault = errors_pb2.FAULT_CALLER
            # A longer text is not a name.
            if error.sender and len(error.sender.encode()) <= MAX_IDENTITY_BYTES:
                detail.sender = error.sender
        case SessionAbortedError():
            detail.fault = errors_pb2.FAULT_SESSION
            if isinstance(error, ThresholdNotMetError):
                detail.alive, detail.needed = error.alive, error.needed
        case ServiceError() if error.code in TRAVELLING:
            detail.fault = errors_pb2.FAULT_SERVICE
            if error.retry_after_seconds is not None:
                seconds = min(error.retry_after_seconds, MAX_RETRY_AFTER_SECONDS)
                detail.retry_after_ms = max(1, round(seconds * 1000))
            if error.next_offset is not None:
                detail.next_offset = error.next_offset
            if error.server_time is not None:
                detail.server_time = error.server_time
        case _:
            # Rule 2: misuse, defects and settings of the aggregator appear in its log
            #         only.
            detail.fault = errors_pb2.FAULT_AGGREGATOR
            detail.code = errors_pb2.ERROR_CODE_INTERNAL
            detail.message = "the aggregator has a defect; see its log"
            return detail.SerializeToString()
    detail.code = cast("errors_pb2.ErrorCode", int(error.code))
    detail.message = printable(str(error), max_bytes=MAX_ERROR_TEXT_BYTES)
    detail.next_step = printable(error.next_step, max_bytes=MAX_NEXT_STEP_BYTES)
    return detail.SerializeToString()


def decode_error(data: bytes) -> SecAggError | None:
    """Return the error of a detail; None if the bytes are not a detail."""
    detail = errors_pb2.ErrorDetail()
    if len(data) > MAX_DETAIL_BYTES:
        return None
    try:
        detail.ParseFromString(data)
    except DecodeError:
        return None
    code = error_code(detail.code)
    message = printable(detail.message, max_bytes=MAX_ERROR_TEXT_BYTES)
    next_step = printable(detail.next_step, max_bytes=MAX_NEXT_STEP_BYTES)
    if detail.fault in {errors_pb2.FAULT_CALLER, errors_pb2.FAULT_TIMING}:
        sender = printable(detail.sender, max_bytes=MAX_IDENTITY_BYTES)
        return code.error(
            message, kind=RemoteProtocolError, sender=sender or None, fix=next_step
        )
    if detail.fault == errors_pb2.FAULT_SESSION:
        if detail.needed:
            return ThresholdNotMetError(
                alive=detail.alive, needed=detail.needed, code=code
            )
        return code.error(message, kind=SessionAbortedError, fix=next_step)
    retry: float | None = None
    if detail.HasField("retry_after_ms"):
        retry = min(detail.retry_after_ms / 1000, MAX_RETRY_AFTER_SECONDS)
    # A byte of an upload, or a number that this reader must not trust.
    has_offset = detail.HasField("next_offset") and (
        detail.next_offset <= MAX_UPLOAD_BYTES
    )
    return code.error(
        message,
        kind=ServiceError,
        fix=next_step,
        retry_after_seconds=retry,
        next_offset=detail.next_offset if has_offset else None,
        server_time=detail.server_time if detail.HasField("server_time") else None,
    )


def fault_name(error: SecAggError) -> str:
    """Return the wire's name of the party at fault."""
    detail = errors_pb2.ErrorDetail()
    detail.ParseFromString(encode_error(error))
    return errors_pb2.Fault.Name(detail.fault)


def as_seen_by_peer(error: SecAggError) -> SecAggError:
    """Return `error` as its receiver sees it."""
    seen = decode_error(encode_error(error))
    return error if seen is None else seen


# The suffix makes it a binary header in gRPC; the name is gRPC's own.
STATUS_KEY: Final = "grpc-status-details-bin"
# The domain of these reasons.
DOMAIN: Final = "secagg"
_TYPE_URL: Final = "type.googleapis.com/google.rpc."


def encode_google_status(error: SecAggError, number: int) -> bytes:
    """Return a serialised google.rpc.Status.

    Args:
        error: The error as its reader sees it (`secagg.wire.errors.as_seen_by_peer`).
        number: The call's gRPC status.
    """
    details = [
        _packed(google_status_pb2.ErrorInfo(reason=error.code.name, domain=DOMAIN))
    ]
    if isinstance(error, ServiceError) and error.retry_after_seconds is not None:
        wait = Duration()
        wait.FromMilliseconds(max(1, round(error.retry_after_seconds * 1000)))
        details.append(_packed(google_status_pb2.RetryInfo(retry_delay=wait)))
    return google_status_pb2.Status(
        code=number,
        message=printable(str(error), max_bytes=MAX_ERROR_TEXT_BYTES),
        details=details,
    ).SerializeToString()


def _packed(detail: Message) -> Any:
    """Wrap a detail under the type name that its readers know."""
    return Any(
        type_url=_TYPE_URL + detail.DESCRIPTOR.name, value=detail.SerializeToString()
    )
