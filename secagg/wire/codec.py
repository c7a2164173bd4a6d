"""Strict reading of protobuf: the checks that every decoder of the wire shares.

Rule 1: decoders are total.  They return a value or raise `RemoteProtocolError` with
        BAD_ENCODING, whatever the bytes.
Rule 2: the size is checked before anything is parsed.  No message has a repeated
        field, so parsing takes memory of the order of the bytes.
Rule 3: unknown fields are ignored, as in every protobuf reader.  Only canonical bytes
        are hashed or compared (R3.1-2).
Rule 4: error messages name fields, lengths and limits, never contents.

Requests and answers are in `secagg.wire.calls`, failures in `secagg.wire.errors`.
"""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from secagg.errors import ErrorCode, SecAggError
from secagg.wire.limits import MAX_MESSAGE_BYTES

_Message = TypeVar("_Message", bound=Message)


def refuse(complaint: str) -> SecAggError:
    """Return the error for malformed bytes."""
    return ErrorCode.BAD_ENCODING.error(complaint)


def parse(
    message: _Message, data: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES
) -> _Message:
    """Fill `message` from `data` and return it.

    Raises:
        RemoteProtocolError: BAD_ENCODING; refuse the message.
    """
    name = message.DESCRIPTOR.name
    if len(data) > max_bytes:
        raise refuse(f"{name} has {len(data)} bytes, at most {max_bytes} are allowed")
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise refuse(f"{name}: {len(data)} bytes are not a protobuf message") from None
    return message


def exact_bytes(value: bytes, size: int, field: str) -> bytes:
    """Return `value` if it has exactly `size` bytes."""
    if len(value) != size:
        raise refuse(f"{field} must have {size} bytes, not {len(value)}")
    return value


def bounded_bytes(
    value: bytes, field: str, *, at_most: int, at_least: int = 0
) -> bytes:
    """Return `value` if its length is within the bounds."""
    if not at_least <= len(value) <= at_most:
        raise refuse(
            f"{field} must have {at_least} to {at_most} bytes, not {len(value)}"
        )
    return value


def in_range(value: int, field: str, *, at_most: int, at_least: int = 0) -> int:
    """Return `value` if it is within the bounds."""
    if not at_least <= value <= at_most:
        raise refuse(f"{field} must be between {at_least} and {at_most}, not {value}")
    return value
