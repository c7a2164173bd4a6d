"""What a client asks of the aggregator, one frozen class per call.

Rule 1: `decode` is total (`secagg.wire.codec`); what it returns is within the limits
        of `secagg.wire.limits`, so that no later layer repeats them.
Rule 2: no request names its sender.  Who calls is said by the transport.

Whether a request is acceptable now is the business of `secagg.runtime`.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self, cast

from secagg.messages import MAX_ADVERT_BYTES
from secagg.parameters import MAX_TASK_ID_BYTES
from secagg.v1 import messages_pb2, secagg_service_pb2
from secagg.wire.codec import (
    DIGEST_BYTES,
    SESSION_ID_BYTES,
    bounded_bytes,
    exact_bytes,
    in_range,
    parse,
    refuse,
    round_from_wire,
    round_to_wire,
)
from secagg.wire.limits import MAX_CHUNK_BYTES, MAX_MESSAGE_BYTES

__all__ = [
    "AdvertiseKeys",
    "FetchChunk",
    "GetOffer",
    "GetUpdate",
    "GetUploadStatus",
    "RevealShares",
    "ShareKeys",
    "UploadChunk",
    "WatchSession",
]

# Session numbers are u64 (PROTOCOL §4) and so are sizes on the wire.
_MAX_U64: Final = (1 << 64) - 1
# 2^30 coordinates of at most 62 bits: the largest packed vector of any session.
_MAX_UPLOAD_BYTES: Final = (1 << 30) * 62 // 8


def _session_id(value: bytes) -> bytes:
    return exact_bytes(value, SESSION_ID_BYTES, "session_id")


@dataclass(frozen=True, slots=True)
class GetOffer:
    """Before round 0: is a session of the task open to me?

    Attributes:
        task_id: 1 to 256 bytes of UTF-8.
        after_session: Highest session number seen; 0 for none.
    """

    task_id: str
    after_session: int = 0

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        return secagg_service_pb2.GetOfferRequest(
            task_id=self.task_id, after_session=self.after_session
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.GetOfferRequest(), data)
        bounded_bytes(
            message.task_id.encode(), "task_id", at_least=1, at_most=MAX_TASK_ID_BYTES
        )
        return cls(message.task_id, message.after_session)


@dataclass(frozen=True, slots=True)
class AdvertiseKeys:
    """Round 0: my public keys, as canonical bytes of an `Advert`."""

    session_id: bytes
    advert: bytes

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        return secagg_service_pb2.AdvertiseKeysRequest(
            session_id=self.session_id, advert=self.advert
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.AdvertiseKeysRequest(), data)
        return cls(
            _session_id(message.session_id),
            bounded_bytes(
                message.advert, "advert", at_least=1, at_most=MAX_ADVERT_BYTES
            ),
        )


@dataclass(frozen=True, slots=True)
class ShareKeys:
    """Round 1: one sealed bundle for each neighbour, in order of index."""

    session_id: bytes
    bundles: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        return secagg_service_pb2.ShareKeysRequest(
            session_id=self.session_id, bundles=self.bundles
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.ShareKeysRequest(), data)
        return cls(
            _session_id(message.session_id),
            bounded_bytes(message.bundles, "bundles", at_most=MAX_MESSAGE_BYTES),
        )


@dataclass(frozen=True, slots=True)
class GetUploadStatus:
    """Round 2: from where shall I send?"""

    session_id: bytes

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        return secagg_service_pb2.GetUploadStatusRequest(
            session_id=self.session_id
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.GetUploadStatusRequest(), data)
        return cls(_session_id(message.session_id))


@dataclass(frozen=True, slots=True)
class UploadChunk:
    """Round 2: one chunk of my masked input.

    Attributes:
        session_id: 32 bytes.
        offset: Where the data belongs.
        total_size: Bytes of the whole packed vector.
        digest: SHA-256 of the whole packed vector.
        data: 1 byte to 1 MiB.
    """

    session_id: bytes
    offset: int
    total_size: int
    digest: bytes
    data: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        return secagg_service_pb2.UploadChunkRequest(
            session_id=self.session_id,
            offset=self.offset,
            total_size=self.total_size,
            digest=self.digest,
            data=self.data,
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.UploadChunkRequest(), data)
        chunk = bounded_bytes(message.data, "data", at_least=1, at_most=MAX_CHUNK_BYTES)
        total = in_range(
            message.total_size, "total_size", at_least=1, at_most=_MAX_UPLOAD_BYTES
        )
        if message.offset + len(chunk) > total:
            raise refuse(
                f"a chunk of {len(chunk)} bytes at offset {message.offset} ends "
                f"beyond the announced size of {total} bytes"
            )
        return cls(
            _session_id(message.session_id),
            message.offset,
            total,
            exact_bytes(message.digest, DIGEST_BYTES, "digest"),
            chunk,
        )


@dataclass(frozen=True, slots=True)
class RevealShares:
    """Round 4: one share for each client of U2 whose shares I hold."""

    session_id: bytes
    shares: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        return secagg_service_pb2.RevealSharesRequest(
            session_id=self.session_id, shares=self.shares
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.RevealSharesRequest(), data)
        return cls(
            _session_id(message.session_id),
            bounded_bytes(message.shares, "shares", at_most=MAX_MESSAGE_BYTES),
        )


@dataclass(frozen=True, slots=True)
class GetUpdate:
    """Any round: what opens the first round after `after`?

    Attributes:
        session_id: 32 bytes.
        after: A number of `secagg.protocol.rounds.Round`, or None for the first.
    """

    session_id: bytes
    after: int | None

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        message = secagg_service_pb2.GetUpdateRequest(session_id=self.session_id)
        message.after = round_to_wire(self.after)
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.GetUpdateRequest(), data)
        return cls(_session_id(message.session_id), round_from_wire(message.after))


@dataclass(frozen=True, slots=True)
class WatchSession:
    """Any round: send me every update from the first round after `after` on."""

    session_id: bytes
    after: int | None

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        message = secagg_service_pb2.WatchSessionRequest(session_id=self.session_id)
        message.after = round_to_wire(self.after)
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.WatchSessionRequest(), data)
        return cls(_session_id(message.session_id), round_from_wire(message.after))


@dataclass(frozen=True, slots=True)
class FetchChunk:
    """Any round: a piece of a large object.

    Attributes:
        session_id: 32 bytes.
        blob: One of the four class constants, which are the wire's numbers.
        offset: First byte wanted.
        max_bytes: Most bytes wanted, 1 to 1 MiB.
    """

    PAYLOAD: ClassVar[int] = 1
    SUM: ClassVar[int] = 2
    ROSTER: ClassVar[int] = 3
    BUNDLES: ClassVar[int] = 4

    session_id: bytes
    blob: int
    offset: int
    max_bytes: int

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        message = secagg_service_pb2.FetchChunkRequest(
            session_id=self.session_id, offset=self.offset, max_bytes=self.max_bytes
        )
        message.blob = cast("messages_pb2.Blob", self.blob)
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; RemoteProtocolError BAD_ENCODING otherwise."""
        message = parse(secagg_service_pb2.FetchChunkRequest(), data)
        return cls(
            _session_id(message.session_id),
            in_range(message.blob, "blob", at_least=cls.PAYLOAD, at_most=cls.BUNDLES),
            in_range(message.offset, "offset", at_most=_MAX_U64),
            in_range(
                message.max_bytes, "max_bytes", at_least=1, at_most=MAX_CHUNK_BYTES
            ),
        )
