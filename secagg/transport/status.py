"""gRPC status codes of errors, and errors of status codes.

Rule 1: the numbered detail of `secagg.wire.errors` travels beside the status and
        decides; a status alone concerns the path to the aggregator.
Rule 2: google.rpc.Status, which common tools know, travels beside it and is never read
        here.
Rule 3: a client reads any status, with or without a detail, of this release or another,
        from the aggregator or from a proxy in between.
"""

from collections.abc import Sequence
from typing import Final

import grpc

from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
    printable,
)
from secagg.wire.calls import MAX_ERROR_TEXT_BYTES
from secagg.wire.errors import (
    STATUS_KEY,
    as_seen_by_peer,
    decode_error,
    encode_error,
    encode_google_status,
)

# The suffix makes it a binary header in gRPC.
DETAIL_KEY: Final = "secagg-error-bin"
# Tells gRPC's own retry layer that the answer is final; the application decides about
# retries.
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
    _C.BAD_CREDENTIAL: _S.INVALID_ARGUMENT,
    _C.BAD_PROOF: _S.INVALID_ARGUMENT,
    _C.BAD_EDGES: _S.INVALID_ARGUMENT,
    _C.VIEW_DIFFERS: _S.INVALID_ARGUMENT,
    # It contradicts the present state.
    _C.DUPLICATE_KEY: _S.ALREADY_EXISTS,
    _C.EQUIVOCATION: _S.ALREADY_EXISTS,
    # It has no place in the present state.
    _C.BAD_VERSION: _S.FAILED_PRECONDITION,
    _C.POLICY_VIOLATION: _S.FAILED_PRECONDITION,
    _C.SELF_MISSING: _S.FAILED_PRECONDITION,
    _C.REPLAYED_SESSION: _S.FAILED_PRECONDITION,
    _C.UNEXPECTED_MESSAGE: _S.FAILED_PRECONDITION,
    _C.SESSION_OVER: _S.FAILED_PRECONDITION,
    _C.TASK_OVER: _S.FAILED_PRECONDITION,
    _C.DEADLINE: _S.FAILED_PRECONDITION,
    _C.BAD_CLOCK: _S.FAILED_PRECONDITION,
    # The session is over without a sum.
    _C.ROSTER_TOO_SMALL: _S.ABORTED,
    _C.ROSTER_TOO_LARGE: _S.ABORTED,
    _C.U2_TOO_SMALL: _S.ABORTED,
    _C.U3_TOO_SMALL: _S.ABORTED,
    _C.TOO_MANY_DROPOUTS: _S.ABORTED,
    _C.NO_QUORUM: _S.ABORTED,
    _C.RECONSTRUCTION_FAILED: _S.ABORTED,
    _C.TOO_FEW_ANSWERS: _S.ABORTED,
    _C.DISPUTED: _S.ABORTED,
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

# The party at fault: the caller, or no party, because the session is over; for all
# other statuses the service.  `usual_error` overrides three numbers.
_KIND_OF_STATUS: Final[dict[grpc.StatusCode, type[SecAggError]]] = {
    **dict.fromkeys(
        (
            _S.INVALID_ARGUMENT,
            _S.ALREADY_EXISTS,
            _S.FAILED_PRECONDITION,
            _S.UNAUTHENTICATED,
            _S.PERMISSION_DENIED,
        ),
        RemoteProtocolError,
    ),
    **dict.fromkeys((_S.ABORTED, _S.CANCELLED), SessionAbortedError),
}
# A status without a detail of this package was made by gRPC or by a proxy.  It concerns
# the path to the aggregator and is no protocol violation.
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
    # A client's own cancellation never arrives as a status: the aggregator is stopping.
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


def usual_error(code: ErrorCode) -> SecAggError:
    """Return the error, without a text, that an aggregator means by a number."""
    if code is ErrorCode.INTERNAL:
        return ErrorCode.INTERNAL.error("")
    if code is ErrorCode.ROSTER_TOO_LARGE:  # the session continues without the caller
        return code.error("", kind=RemoteProtocolError)
    kind = _KIND_OF_STATUS.get(status_code(code))
    if kind is None or code is ErrorCode.TASK_OVER:  # over for every caller
        return code.error("", kind=ServiceError)
    return code.error("", kind=kind)


def status_of(error: SecAggError) -> tuple[grpc.StatusCode, str, _Metadata]:
    """Return status, text and trailing metadata for a failed call."""
    seen = as_seen_by_peer(error)
    status = status_code(seen.code)
    # gRPC knows the number of a status beside its name in lower case.
    number, _ = status.value
    metadata: _Metadata = (
        (DETAIL_KEY, encode_error(error)),
        (STATUS_KEY, encode_google_status(seen, number)),
    )
    if status is grpc.StatusCode.UNAVAILABLE:
        metadata = (*metadata, _NO_BLIND_RETRY)
    return status, str(seen), metadata


def error_of(
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
        if key == DETAIL_KEY and isinstance(value, bytes):
            error = decode_error(value)
            if error is not None:
                return error
    return _from_status(status, text)


def _from_status(status: grpc.StatusCode, text: str) -> SecAggError:
    """Return the error for a status without details of this protocol."""
    shown = printable(text, max_bytes=MAX_ERROR_TEXT_BYTES)
    # gRPC also reports RESOURCE_EXHAUSTED for a message over the limit; a retry would
    # fail again.
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return ErrorCode.BAD_ENCODING.error(
            f"a message was over the size limit: {shown}",
            fix="Both sides must use the limits of docs/transport.md.",
        )
    code, next_step = _WITHOUT_DETAIL.get(
        status,
        (
            ErrorCode.INTERNAL,
            (
                "Read the aggregator's log: no aggregator of this protocol answered, "
                "or a broken one."
            ),
        ),
    )
    return code.error(
        f"the call failed with {status.name}: {shown}",
        kind=ServiceError,
        fix=next_step,
        retry_after_seconds=_DEFAULT_RETRY_SECONDS if code in _RETRIED else None,
    )
