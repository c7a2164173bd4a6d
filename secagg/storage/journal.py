"""Events as bytes: what a journal holds.

Rule 1: a record is a tag, which names class and version of the event, and its fields in
        canonical encoding.  A tag is never given a second meaning.
Rule 2: vectors are not journalled.  Of a client's input only the digest is
        (`InputBound`), of an upload sender, digest and size.
Rule 3: a record that cannot be read is a failure of the storage, not of a peer.

Which events are journalled, and when, is the business of `secagg.runtime`.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.messages import SessionAborted, SumReleased
from secagg.parameters import SessionDescriptor
from secagg.primitives.canonical import Reader, Writer
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.events import (
    AbortRequested,
    BundlesSent,
    ClientEvent,
    InputBound,
    InputUploaded,
    KeysAdvertised,
    NoisedInputReady,
    PlainInputReady,
    RosterReceived,
    RoundClosed,
    ServerEvent,
    SessionEnded,
    SessionOffered,
    SharesReceived,
    SharesRevealed,
    SumComputed,
    SurvivorsReceived,
)
from secagg.protocol.rounds import Round

__all__ = [
    "decode_client_event",
    "decode_outcome",
    "decode_server_event",
    "encode_client_event",
    "encode_outcome",
    "encode_server_event",
]

# The journal is our own: the limit only stops a damaged length from taking all memory.
_MAX_FIELD_BYTES: Final = (1 << 32) - 1
_DIGEST_BYTES: Final = 32
_SEED_BYTES: Final = 32

_KEYS_ADVERTISED: Final = 0x0101
_BUNDLES_SENT: Final = 0x0102
_INPUT_UPLOADED: Final = 0x0103
_SHARES_REVEALED: Final = 0x0104
_ROUND_CLOSED: Final = 0x0105
_SUM_COMPUTED: Final = 0x0106
_ABORT_REQUESTED: Final = 0x0107

_SESSION_OFFERED: Final = 0x0201
_ROSTER_RECEIVED: Final = 0x0202
_SHARES_RECEIVED: Final = 0x0203
_INPUT_BOUND: Final = 0x0204
_SURVIVORS_RECEIVED: Final = 0x0205
_SESSION_ENDED: Final = 0x0206

_SUM_RELEASED: Final = 0x0301
_SESSION_ABORTED: Final = 0x0302

_Event = TypeVar("_Event")


def encode_server_event(event: ServerEvent) -> bytes:
    """Return the record of a server event."""
    writer = Writer()
    match event:
        case KeysAdvertised():
            writer.u16(_KEYS_ADVERTISED).text(event.sender).blob(event.advert)
        case BundlesSent():
            writer.u16(_BUNDLES_SENT).text(event.sender).blob(event.bundles)
        case InputUploaded():
            writer.u16(_INPUT_UPLOADED).text(event.sender)
            writer.fixed(event.digest).u64(event.size)
        case SharesRevealed():
            writer.u16(_SHARES_REVEALED).text(event.sender).blob(event.shares)
        case RoundClosed():
            writer.u16(_ROUND_CLOSED).u8(event.round).blob(event.graph_seed)
        case SumComputed():
            writer.u16(_SUM_COMPUTED).fixed(event.sum_hash).u64(event.size)
        case AbortRequested():
            writer.u16(_ABORT_REQUESTED).u16(event.code).text(event.reason)
    return writer.getvalue()


def decode_server_event(record: bytes) -> ServerEvent:
    """Read what `encode_server_event` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _read(record, "event of a server", _SERVER_EVENTS)


def encode_client_event(event: ClientEvent) -> bytes:
    """Return the record of a client event.

    Raises:
        TypeError: The event holds a vector; journal its `InputBound` instead.
    """
    writer = Writer()
    match event:
        case SessionOffered():
            writer.u16(_SESSION_OFFERED).blob(event.descriptor.encode())
            writer.text(event.identity).fixed(event.seed.reveal())
        case RosterReceived():
            writer.u16(_ROSTER_RECEIVED).blob(event.roster)
        case SharesReceived():
            writer.u16(_SHARES_RECEIVED).blob(event.sharers).blob(event.bundles)
        case InputBound():
            writer.u16(_INPUT_BOUND).fixed(event.digest)
        case SurvivorsReceived():
            writer.u16(_SURVIVORS_RECEIVED).blob(event.survivors)
        case SessionEnded():
            writer.u16(_SESSION_ENDED).blob(encode_outcome(event.outcome))
        case PlainInputReady() | NoisedInputReady():
            raise TypeError("a vector is not journalled; journal its digest")
    return writer.getvalue()


def decode_client_event(record: bytes) -> ClientEvent:
    """Read what `encode_client_event` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _read(record, "event of a client", _CLIENT_EVENTS)


def encode_outcome(outcome: SumReleased | SessionAborted) -> bytes:
    """Return the record of how a session ended."""
    writer = Writer()
    match outcome:
        case SumReleased():
            writer.u16(_SUM_RELEASED).fixed(outcome.sum_hash)
            writer.u64(outcome.size).u32(outcome.survivors)
        case SessionAborted():
            writer.u16(_SESSION_ABORTED).u16(outcome.code).text(outcome.reason)
    return writer.getvalue()


def decode_outcome(record: bytes) -> SumReleased | SessionAborted:
    """Read what `encode_outcome` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _read(record, "outcome of a session", _OUTCOMES)


def _read(
    record: bytes, what: str, readers: Mapping[int, Callable[[Reader], _Event]]
) -> _Event:
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


# Arguments are evaluated from left to right, which is the order of the fields.
_SERVER_EVENTS: Final[Mapping[int, Callable[[Reader], ServerEvent]]] = {
    _KEYS_ADVERTISED: lambda r: KeysAdvertised(_text(r), _blob(r)),
    _BUNDLES_SENT: lambda r: BundlesSent(_text(r), _blob(r)),
    _INPUT_UPLOADED: lambda r: InputUploaded(_text(r), r.fixed(_DIGEST_BYTES), r.u64()),
    _SHARES_REVEALED: lambda r: SharesRevealed(_text(r), _blob(r)),
    _ROUND_CLOSED: lambda r: RoundClosed(Round(r.u8()), _blob(r)),
    _SUM_COMPUTED: lambda r: SumComputed(r.fixed(_DIGEST_BYTES), r.u64()),
    _ABORT_REQUESTED: lambda r: AbortRequested(ErrorCode(r.u16()), _text(r)),
}

_OUTCOMES: Final[Mapping[int, Callable[[Reader], SumReleased | SessionAborted]]] = {
    _SUM_RELEASED: lambda r: SumReleased(r.fixed(_DIGEST_BYTES), r.u64(), r.u32()),
    _SESSION_ABORTED: lambda r: SessionAborted(ErrorCode(r.u16()), _text(r)),
}

_CLIENT_EVENTS: Final[Mapping[int, Callable[[Reader], ClientEvent]]] = {
    _SESSION_OFFERED: lambda r: SessionOffered(
        SessionDescriptor.decode(_blob(r)),
        _text(r),
        SecretBytes(r.fixed(_SEED_BYTES)),
    ),
    _ROSTER_RECEIVED: lambda r: RosterReceived(_blob(r)),
    _SHARES_RECEIVED: lambda r: SharesReceived(_blob(r), _blob(r)),
    _INPUT_BOUND: lambda r: InputBound(r.fixed(_DIGEST_BYTES)),
    _SURVIVORS_RECEIVED: lambda r: SurvivorsReceived(_blob(r)),
    _SESSION_ENDED: lambda r: SessionEnded(decode_outcome(_blob(r))),
}
