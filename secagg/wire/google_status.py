"""google.rpc.Status, which gRPC tools show for a failed call: written and never read.

Gateways, command-line clients and the wrappers of other languages know the trailer
`STATUS_KEY`.  They show reason and wait; the detail of this package would stay bytes to
them.

Rule 1: it repeats what `secagg.wire.errors` states of the same error, and nothing else.
"""

from typing import Final

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from secagg.errors import SecAggError, ServiceError, printable
from secagg.v1 import google_status_pb2
from secagg.wire.limits import MAX_ERROR_TEXT_BYTES

# The suffix makes it a binary header in gRPC; the name is gRPC's own.
STATUS_KEY: Final = "grpc-status-details-bin"
# The domain of these reasons.
DOMAIN: Final = "secagg"
_TYPE_URL: Final = "type.googleapis.com/google.rpc."


def encode_google_status(error: SecAggError, number: int) -> bytes:
    """Return a serialised google.rpc.Status.

    Args:
        error: The error as its reader sees it (`secagg.wire.errors.seen_by_peer`).
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
