"""What the aggregator answers: offers, waits, updates, pieces of large objects.

Rule 1: `decode` functions are total (`secagg.wire.codec`): the aggregator is as
        untrusted as any peer.
Rule 2: an update whose roster or bundles exceed 1 MiB carries a reference instead;
        both sides derive which from the size alone, so that retries agree.
Rule 3: a referenced object is compared with its announced size and digest before
        anything reads it.

It decides nothing: an update that reads well may still violate the protocol.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Final, cast

from secagg.messages import (
    RosterPublished,
    ServerUpdate,
    SessionAborted,
    SharesDelivered,
    SumReleased,
    UnmaskRequested,
)
from secagg.parameters import MAX_CLIENTS
from secagg.v1 import errors_pb2, messages_pb2, secagg_service_pb2
from secagg.wire.codec import (
    DIGEST_BYTES,
    bounded_bytes,
    error_code,
    exact_bytes,
    in_range,
    parse,
    printable,
    refuse,
)
from secagg.wire.limits import (
    MAX_CHUNK_BYTES,
    MAX_DESCRIPTOR_BYTES,
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OBJECT_BYTES,
    MAX_REASON_BYTES,
    MAX_RETRY_AFTER_SECONDS,
    MAX_SET_BYTES,
)
from secagg.wire.requests import FetchChunk

__all__ = [
    "DeferredUpdate",
    "ObjectChunk",
    "Retry",
    "UploadProgress",
    "decode_fetched",
    "decode_nothing",
    "decode_offer",
    "decode_update",
    "decode_upload_progress",
    "decode_watched",
    "encode_fetched",
    "encode_nothing",
    "encode_offer",
    "encode_update",
    "encode_upload_progress",
    "encode_watched",
    "referenced_object",
]

_MILLISECONDS: Final = 1000


@dataclass(frozen=True, slots=True)
class Retry:
    """Not yet: ask again after so many seconds, between 0.001 and 3600."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """How far an upload has come.

    Attributes:
        next_offset: Bytes that lie durably at the aggregator.
        complete: Whether the whole upload is recorded.
    """

    next_offset: int
    complete: bool


@dataclass(frozen=True, slots=True)
class ObjectChunk:
    """A piece of a large object, and the size of the whole."""

    data: bytes = field(repr=False)
    total_size: int


@dataclass(frozen=True, slots=True)
class DeferredUpdate:
    """An update whose large part has yet to be fetched.

    Attributes:
        blob: `FetchChunk.ROSTER` or `FetchChunk.BUNDLES`.
        size: Bytes to fetch; more than 1 MiB, at most `MAX_OBJECT_BYTES`.
        digest: SHA-256 of them.
        sharers: Bitmap of U2 that comes with bundles; b"" with a roster.
    """

    blob: int
    size: int
    digest: bytes
    sharers: bytes = b""

    def complete(self, data: bytes) -> ServerUpdate:
        """Return the update, given the fetched object.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the object is not the announced one.
                Fetch it again or leave the session.
        """
        if len(data) != self.size or hashlib.sha256(data).digest() != self.digest:
            raise refuse(
                f"the object fetched ({len(data)} bytes) is not the one announced "
                f"({self.size} bytes)"
            )
        if self.blob == FetchChunk.ROSTER:
            return RosterPublished(data)
        return SharesDelivered(self.sharers, data)


# --- offers and waits ---------------------------------------------------------------


def _wait_message(retry: Retry) -> messages_pb2.Wait:
    # Rounded up: a wait of zero would be a busy loop at the client.
    milliseconds = math.ceil(min(retry.after_seconds, MAX_RETRY_AFTER_SECONDS) * 1000)
    return messages_pb2.Wait(retry_after_ms=max(1, milliseconds))


def _read_wait(message: messages_pb2.Wait) -> Retry:
    milliseconds = in_range(
        message.retry_after_ms,
        "retry_after_ms",
        at_least=1,
        at_most=int(MAX_RETRY_AFTER_SECONDS * _MILLISECONDS),
    )
    return Retry(milliseconds / _MILLISECONDS)


def encode_offer(answer: bytes | Retry) -> bytes:
    """Encode GetOfferResponse: canonical bytes of a descriptor, or a wait."""
    message = (
        secagg_service_pb2.GetOfferResponse(wait=_wait_message(answer))
        if isinstance(answer, Retry)
        else secagg_service_pb2.GetOfferResponse(descriptor=answer)
    )
    return message.SerializeToString()


def decode_offer(data: bytes) -> bytes | Retry:
    """Read GetOfferResponse; RemoteProtocolError BAD_ENCODING when it is none."""
    message = parse(secagg_service_pb2.GetOfferResponse(), data)
    match message.WhichOneof("answer"):
        case "descriptor":
            return bounded_bytes(
                message.descriptor,
                "descriptor",
                at_least=1,
                at_most=MAX_DESCRIPTOR_BYTES,
            )
        case "wait":
            return _read_wait(message.wait)
        case _:
            raise refuse("GetOfferResponse holds neither a descriptor nor a wait")


def encode_nothing() -> bytes:
    """Encode the responses that only acknowledge; all of them are empty."""
    return b""


def decode_nothing(data: bytes) -> None:
    """Read an acknowledgement; fields that a later release adds are ignored."""
    parse(secagg_service_pb2.AdvertiseKeysResponse(), data)


# --- uploads and large objects ------------------------------------------------------


def encode_upload_progress(progress: UploadProgress) -> bytes:
    """Encode UploadChunkResponse and GetUploadStatusResponse, which are alike."""
    return secagg_service_pb2.UploadChunkResponse(
        status=messages_pb2.UploadStatus(
            next_offset=progress.next_offset, complete=progress.complete
        )
    ).SerializeToString()


def decode_upload_progress(data: bytes) -> UploadProgress:
    """Read UploadChunkResponse or GetUploadStatusResponse.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    message = parse(secagg_service_pb2.UploadChunkResponse(), data)
    if not message.HasField("status"):
        raise refuse("UploadChunkResponse holds no status")
    return UploadProgress(message.status.next_offset, message.status.complete)


def encode_fetched(chunk: ObjectChunk) -> bytes:
    """Encode FetchChunkResponse."""
    return secagg_service_pb2.FetchChunkResponse(
        data=chunk.data, total_size=chunk.total_size
    ).SerializeToString()


def decode_fetched(data: bytes) -> ObjectChunk:
    """Read FetchChunkResponse; RemoteProtocolError BAD_ENCODING when it is none."""
    message = parse(secagg_service_pb2.FetchChunkResponse(), data)
    bounded_bytes(message.data, "data", at_most=MAX_CHUNK_BYTES)
    if len(message.data) > message.total_size:
        raise refuse(
            f"a piece of {len(message.data)} bytes is longer than the whole of "
            f"{message.total_size} bytes"
        )
    return ObjectChunk(message.data, message.total_size)


# --- updates ------------------------------------------------------------------------


def referenced_object(update: ServerUpdate, blob: int) -> bytes | None:
    """Return the large part of `update` that FetchChunk serves as `blob`, if any."""
    if blob == FetchChunk.ROSTER and isinstance(update, RosterPublished):
        return update.roster
    if blob == FetchChunk.BUNDLES and isinstance(update, SharesDelivered):
        return update.bundles
    return None


def _reference(data: bytes) -> messages_pb2.BlobReference:
    return messages_pb2.BlobReference(
        digest=hashlib.sha256(data).digest(), size=len(data)
    )


def _update_message(update: ServerUpdate) -> messages_pb2.ServerUpdate:
    message = messages_pb2.ServerUpdate()
    match update:
        case RosterPublished(roster):
            if len(roster) > MAX_INLINE_BYTES:
                message.roster_published.roster_reference.CopyFrom(_reference(roster))
            else:
                message.roster_published.roster = roster
        case SharesDelivered(sharers, bundles):
            message.shares_delivered.sharers = sharers
            if len(bundles) > MAX_INLINE_BYTES:
                message.shares_delivered.bundles_reference.CopyFrom(_reference(bundles))
            else:
                message.shares_delivered.bundles = bundles
        case UnmaskRequested(survivors):
            message.unmask_requested.survivors = survivors
        case SumReleased(sum_hash, size, survivors=count):
            message.sum_released.sum_hash = sum_hash
            message.sum_released.size = size
            message.sum_released.survivors = count
        case SessionAborted(code, reason):
            message.session_aborted.code = cast("errors_pb2.ErrorCode", int(code))
            message.session_aborted.reason = printable(
                reason, max_bytes=MAX_REASON_BYTES
            )
    return message


def _read_reference(
    message: messages_pb2.BlobReference, blob: int, sharers: bytes = b""
) -> DeferredUpdate:
    size = in_range(
        message.size,
        "size of a referenced object",
        at_least=MAX_INLINE_BYTES + 1,
        at_most=MAX_OBJECT_BYTES,
    )
    return DeferredUpdate(
        blob, size, exact_bytes(message.digest, DIGEST_BYTES, "digest"), sharers
    )


def _read_roster(
    message: messages_pb2.RosterPublished,
) -> RosterPublished | DeferredUpdate:
    match message.WhichOneof("content"):
        case "roster":
            return RosterPublished(
                bounded_bytes(message.roster, "roster", at_most=MAX_INLINE_BYTES)
            )
        case "roster_reference":
            return _read_reference(message.roster_reference, FetchChunk.ROSTER)
        case _:
            raise refuse("RosterPublished holds neither a roster nor a reference")


def _read_shares(
    message: messages_pb2.SharesDelivered,
) -> SharesDelivered | DeferredUpdate:
    sharers = bounded_bytes(message.sharers, "sharers", at_most=MAX_SET_BYTES)
    if message.WhichOneof("content") == "bundles_reference":
        return _read_reference(message.bundles_reference, FetchChunk.BUNDLES, sharers)
    # A client whose neighbours are all lost gets no bundle; that is said by absence.
    return SharesDelivered(
        sharers, bounded_bytes(message.bundles, "bundles", at_most=MAX_INLINE_BYTES)
    )


def _read_update(message: messages_pb2.ServerUpdate) -> ServerUpdate | DeferredUpdate:
    match message.WhichOneof("update"):
        case "roster_published":
            return _read_roster(message.roster_published)
        case "shares_delivered":
            return _read_shares(message.shares_delivered)
        case "unmask_requested":
            return UnmaskRequested(
                bounded_bytes(
                    message.unmask_requested.survivors,
                    "survivors",
                    at_most=MAX_SET_BYTES,
                )
            )
        case "sum_released":
            released = message.sum_released
            return SumReleased(
                exact_bytes(released.sum_hash, DIGEST_BYTES, "sum_hash"),
                released.size,
                in_range(released.survivors, "survivors", at_most=MAX_CLIENTS),
            )
        case "session_aborted":
            aborted = message.session_aborted
            return SessionAborted(
                error_code(aborted.code),
                printable(aborted.reason, max_bytes=MAX_REASON_BYTES),
            )
        case _:
            raise refuse("ServerUpdate holds none of the updates of this release")


def encode_update(answer: ServerUpdate | Retry) -> bytes:
    """Encode GetUpdateResponse."""
    message = (
        secagg_service_pb2.GetUpdateResponse(wait=_wait_message(answer))
        if isinstance(answer, Retry)
        else secagg_service_pb2.GetUpdateResponse(update=_update_message(answer))
    )
    return message.SerializeToString()


def decode_update(data: bytes) -> ServerUpdate | DeferredUpdate | Retry:
    """Read GetUpdateResponse; RemoteProtocolError BAD_ENCODING when it is none."""
    message = parse(
        secagg_service_pb2.GetUpdateResponse(), data, max_bytes=MAX_MESSAGE_BYTES
    )
    match message.WhichOneof("answer"):
        case "update":
            return _read_update(message.update)
        case "wait":
            return _read_wait(message.wait)
        case _:
            raise refuse("GetUpdateResponse holds neither an update nor a wait")


def encode_watched(update: ServerUpdate) -> bytes:
    """Encode WatchSessionResponse."""
    return secagg_service_pb2.WatchSessionResponse(
        update=_update_message(update)
    ).SerializeToString()


def decode_watched(data: bytes) -> ServerUpdate | DeferredUpdate:
    """Read WatchSessionResponse; RemoteProtocolError BAD_ENCODING when it is none."""
    message = parse(secagg_service_pb2.WatchSessionResponse(), data)
    if not message.HasField("update"):
        raise refuse("WatchSessionResponse holds no update")
    return _read_update(message.update)
