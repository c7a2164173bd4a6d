"""Events as bytes: what a journal holds.

Rule 1: the record of a message is its number, its sender and its own canonical bytes,
        as they were received.
Rule 2: the other events have layouts of their own, with numbers from 64 up.  No
        number is ever given a second meaning.
Rule 3: vectors are not journalled.  Of a client's input only the digest is
        (`InputBound`), of an upload sender, digest and size.
Rule 4: a record that cannot be read is a failure of the storage, not of a peer.

Which events are journalled, and when, is the business of `secagg.runtime`.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.messages import (
    DIGEST_BYTES,
    KINDS,
    Aborted,
    Envelope,
    Message,
    Released,
    Round,
)
from secagg.parameters import SessionDescriptor
from secagg.primitives.canonical import Reader, Writer
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.events import (
    AbortRequested,
    ClientEvent,
    InputBound,
    InputReady,
    Received,
    RoundClosed,
    ServerEvent,
    SessionOffered,
    SumComputed,
)
from secagg.protocol.rounds import FROM_CLIENTS, FROM_SERVER

__all__ = [
    "decode_client_event",
    "decode_outcome",
    "decode_server_event",
    "encode_event",
    "encode_outcome",
]

# The journal is our own: the limit only stops a damaged length from taking all memory.
_MAX_FIELD_BYTES: Final = (1 << 32) - 1
_SEED_BYTES: Final = 32

# 1 to 63 are the numbers of messages (`KINDS`).
_ROUND_CLOSED: Final = 64
_SUM_COMPUTED: Final = 65
_ABORT_REQUESTED: Final = 66
_SESSION_OFFERED: Final = 67
_INPUT_BOUND: Final = 68

_Event = TypeVar("_Event")
_Readers = Mapping[int, Callable[[Reader], _Event]]


def encode_event(event: ServerEvent | ClientEvent) -> bytes:
    """Return the record of an event.

    Raises:
        TypeError: The event holds a vector; journal its `InputBound` instead.
    """
    writer = Writer()
    match event:
        case Received():
            writer.u16(event.envelope.kind.KIND).text(event.sender)
            writer.blob(event.envelope.data)
        case RoundClosed():
            writer.u16(_ROUND_CLOSED).u8(event.round).blob(event.graph_seed)
        case SumComputed():
            writer.u16(_SUM_COMPUTED).fixed(event.sum_hash).u64(event.size)
        case AbortRequested():
            writer.u16(_ABORT_REQUESTED).u16(event.code).text(event.reason)
        case SessionOffered():
            writer.u16(_SESSION_OFFERED).blob(event.descriptor.encode())
            writer.text(event.identity).fixed(event.seed.reveal())
        case InputBound():
            writer.u16(_INPUT_BOUND).fixed(event.digest)
        case InputReady():
            raise TypeError("a vector is not journalled; journal its digest")
    return writer.getvalue()


def decode_server_event(record: bytes) -> ServerEvent:
    """Read what `encode_event` wrote of a server's event.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _read(record, "event of a server", _SERVER_EVENTS)


def decode_client_event(record: bytes) -> ClientEvent:
    """Read what `encode_event` wrote of a client's event.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _read(record, "event of a client", _CLIENT_EVENTS)


def encode_outcome(outcome: Released | Aborted) -> bytes:
    """Return the record of how a session ended."""
    return Writer().u16(outcome.KIND).fixed(outcome.encode()).getvalue()


def decode_outcome(record: bytes) -> Released | Aborted:
    """Read what `encode_outcome` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _read(record, "outcome of a session", _OUTCOMES)


def _read(record: bytes, what: str, readers: _Readers[_Event]) -> _Event:
    reader = Reader(record, "journal record")
    try:
        tag = reader.u16()
        event = readers[tag](reader)
        reader.end()
    except (KeyError, ValueError, RemoteProtocolError) as error:
        raise ServiceError(
            f"a stored record is no {what}: {error}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Use the release that wrote it, or discard the session's state.",
        ) from None
    return event


def _text(reader: Reader) -> str:
    return reader.text(max_bytes=_MAX_FIELD_BYTES)


def _blob(reader: Reader) -> bytes:
    return reader.blob(max_bytes=_MAX_FIELD_BYTES)


def _received(kind: type[Message]) -> Callable[[Reader], Received]:
    def read(reader: Reader) -> Received:
        sender = _text(reader)
        return Received(Envelope(kind, _blob(reader)), sender)

    return read


def _messages(kinds: frozenset[type[Message]]) -> _Readers[Received]:
    return {tag: _received(kind) for tag, kind in KINDS.items() if kind in kinds}


# Arguments are evaluated from left to right, which is the order of the fields.
_SERVER_EVENTS: Final[_Readers[ServerEvent]] = {
    **_messages(FROM_CLIENTS),
    _ROUND_CLOSED: lambda r: RoundClosed(Round(r.u8()), _blob(r)),
    _SUM_COMPUTED: lambda r: SumComputed(r.fixed(DIGEST_BYTES), r.u64()),
    _ABORT_REQUESTED: lambda r: AbortRequested(ErrorCode(r.u16()), _text(r)),
}

_CLIENT_EVENTS: Final[_Readers[ClientEvent]] = {
    **_messages(FROM_SERVER),
    _SESSION_OFFERED: lambda r: SessionOffered(
        SessionDescriptor.decode(_blob(r)),
        _text(r),
        SecretBytes(r.fixed(_SEED_BYTES)),
    ),
    _INPUT_BOUND: lambda r: InputBound(r.fixed(DIGEST_BYTES)),
}

_OUTCOMES: Final[_Readers[Released | Aborted]] = {
    Released.KIND: lambda r: Released.decode(r.fixed(r.remaining)),
    Aborted.KIND: lambda r: Aborted.decode(r.fixed(r.remaining)),
}
