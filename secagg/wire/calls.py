"""The table of calls: requests, their answers, the encoding of both, and its limits.

Rule 1: a call is a row of `CALLS`.  It states its request, the encoding of its answer,
        whether it is a stream, its callers and the time limit of its answer.  Stubs,
        servicers and test doubles iterate over the table; none lists the calls again.
Rule 2: a request is a frozen class with the fields of its protobuf message, by the same
        names.  It knows the type of its answer, so that `await call(GetOffer(t))` is
        typed.
Rule 3: decoders are total, and their results are within the limits below.  The
        aggregator is as untrusted as any peer.
Rule 4: no request names its sender; the transport authenticates the caller.
Rule 5: messages of the protocol pass as canonical bytes; this module does not open
        them.

`secagg.runtime` decides whether a request is acceptable.

Every decoder reads protobuf strictly:

Rule 6: decoders are total.  They return a value or raise `RemoteProtocolError` with
        BAD_ENCODING, whatever the bytes.
Rule 7: the size is checked before anything is parsed.  No message has a repeated
        field, so parsing takes memory of the order of the bytes.
Rule 8: unknown fields are ignored, as in every protobuf reader.  Only canonical bytes
        are hashed or compared (R3.1-2).
Rule 9: error messages name fields, lengths and limits, never contents.

Failures are in `secagg.wire.errors`.

The size of all data on the wire has limits, each number with its reason:

Rule 10: a limit that needs no session is a constant; another is computed from the
        session's parameters and from nothing else.
Rule 11: sizes are checked on the bytes, before anything is parsed from them.

`secagg.protocol.parameters` limits what a task may configure, `secagg.protocol.policy`
what one client accepts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum, auto, unique
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from google.protobuf import message as protobuf

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import (
    MAX_AGGREGATOR_BYTES,
    MAX_NOISE_TERMS_BYTES,
    MAX_TASK_ID_BYTES,
    SessionDescriptor,
)
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    DIGEST_BYTES,
    KINDS,
    MAX_ADVERT_BYTES,
    MAX_EDGES_BYTES,
    MAX_REASON_BYTES,
    NO_VIEW,
    SIGNATURE_BYTES,
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Envelope,
    Message,
    Quorum,
    Released,
    Roster,
    Round,
    Shares,
    Survivors,
    is_neighbourhood,
)
from secagg.protocol.packing import MAX_CHUNK_BYTES
from secagg.protocol.parameters import (
    MAX_CLIENTS,
    MAX_DIMENSION,
    MAX_MODULUS,
    MAX_NOISE_BLOCK_BYTES,
    MAX_TAIL_BYTES,
    ProtocolParameters,
)
from secagg.protocol.profiles import MAX_DEADLINE_SECONDS, SparseParameters
from secagg.v1 import messages_pb2, secagg_service_pb2

# The largest message that every gRPC implementation accepts by default.
MAX_MESSAGE_BYTES: Final = 4 << 20

# Above this, an update carries a reference and the client reads the object in
# chunks: a phone on a bad link resumes a chunk, not a roster.
MAX_INLINE_BYTES: Final = MAX_CHUNK_BYTES

# 2^30 coordinates of at most 62 bits: the largest packed vector of any session.
MAX_UPLOAD_BYTES: Final = MAX_DIMENSION * (MAX_MODULUS - 1).bit_length() // 8

SESSION_ID_BYTES: Final = 32

# Revealed share (PROTOCOL §7.2), and revealed seed of a layer of noise (§5.1).
_SHARE_BYTES: Final = 34
NOISE_SEED_BYTES: Final = 32

# The largest object that a reference may name: a full roster is larger than the
# bundles of a full complete graph.  Four bytes of length precede each advert;
# one of form, four of count and 4 + 32 of graph seed surround them.
MAX_OBJECT_BYTES: Final = MAX_CLIENTS * (MAX_ADVERT_BYTES + 4) + 41

# Two names with their lengths, session number, nonce, end, payload hash and the fixed
# part of the parameters, 87 bytes, around what varies; four are a length of its own.
MAX_DESCRIPTOR_BYTES: Final = (
    4 + MAX_AGGREGATOR_BYTES + 4 + MAX_TASK_ID_BYTES + 8 + 32 + 8 + 4 + 32
) + (91 + MAX_NOISE_TERMS_BYTES + MAX_NOISE_BLOCK_BYTES + MAX_TAIL_BYTES)

# Error details travel in trailing metadata, of which gRPC takes 8 KiB by default.
MAX_DETAIL_BYTES: Final = 4096
MAX_ERROR_TEXT_BYTES: Final = 1000
MAX_NEXT_STEP_BYTES: Final = 500

# No client is asked to wait longer than an hour: by then the address, the certificate
# or the task may have changed.
MAX_RETRY_AFTER_SECONDS: Final = 3600.0

# How long a request may be kept until there is an answer.  A proxy ends quiet calls
# after a minute, and the request of a client that has vanished is kept no longer.
MAX_HELD_MS: Final = 30_000

# A stream whose other end has vanished looks like a quiet one.  So each pause has a
# limit: the stated one, or the first of these before any statement and behind an
# update.  A shorter limit costs the aggregator work and mistakes a brief fault of the
# link for the end.  More than the second gains nothing.
LEAST_QUIET_SECONDS: Final = 20.0
MAX_QUIET_SECONDS: Final = 240.0

# Session id, tags and lengths around the payload of a request.
_ENVELOPE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Bytes of one client's messages in a full session, without transport overhead.

    The packed vector is not included: `secagg.protocol.packing` has its size.

    Attributes:
        roster: At most, and whole; to every client that reads it.
        edges: The drawn edges that one client is shown; 0 without drawn edges.
        bundles: From one client.
        shares: From one client.
        quorum: At most, to every client of U3; 0 if clients do not sign.
        neighbourhood: At most, to one client; 0 on graphs without one.
        delivery: At most, to one client.
        survivors: U3 in a full session; to every client of it.
    """

    roster: int
    edges: int
    bundles: int
    shares: int
    neighbourhood: int
    delivery: int
    quorum: int
    survivors: int


def message_sizes(parameters: ProtocolParameters) -> MessageSizes:
    """Return the message sizes of the largest session with these parameters."""
    n = parameters.max_clients
    neighbours = n - 1 if parameters.is_complete_graph else parameters.degree
    # With drawn edges, as many clients as the cap allows may have drawn one.
    tail = parameters.tail
    is_drawn = isinstance(tail, SparseParameters)
    dealers = tail.in_cap if isinstance(tail, SparseParameters) else neighbours + 1
    has_neighbourhood = not (parameters.is_complete_graph or is_drawn)
    return MessageSizes(
        roster=n * (MAX_ADVERT_BYTES + 4) + 41,
        edges=_published_edges(parameters),
        bundles=neighbours * BUNDLE_BYTES,
        # On the complete graph the own share is revealed too; one bit for each absence;
        # at most all seeds of noise.
        shares=dealers * _SHARE_BYTES
        + -(-dealers // 8)
        + parameters.noise_layers * NOISE_SEED_BYTES,
        # Each member of U3 is in one of the two lists, at most in the one with the
        # longer rows: index, digest and signature.
        quorum=8 + n * (4 + DIGEST_BYTES + SIGNATURE_BYTES)
        if parameters.profile.has_identities
        else 0,
        neighbourhood=_neighbourhood(parameters) if has_neighbourhood else 0,
        # Two lengths around the bitmap of U2 and one bundle of each dealer.
        delivery=8 + -(-n // 8) + (dealers if is_drawn else neighbours) * BUNDLE_BYTES,
        survivors=-(-n // 8),  # a bitmap of the roster
    )


def _neighbourhood(parameters: ProtocolParameters) -> int:
    """Return the largest size of a neighbourhood (PROTOCOL §5.1)."""
    shown = parameters.degree + 1
    depth = (parameters.max_clients - 1).bit_length()
    # Head and graph seed; each advert with its index and length; the proof.
    return 53 + shown * (8 + MAX_ADVERT_BYTES) + shown * depth * DIGEST_BYTES


def _published_edges(parameters: ProtocolParameters) -> int:
    """Return the largest size of published edges (PROTOCOL §5.9)."""
    if not isinstance(parameters.tail, SparseParameters):
        return 0
    k, most = parameters.degree, parameters.tail.in_cap
    depth = (parameters.max_clients - 1).bit_length()
    # Each drawer of the reader, with its whole list.  For each client that the reader
    # drew a place and its proof.  The proofs of the reader's leaf and of their leaves.
    return (
        DIGEST_BYTES
        + (4 + most * (4 + 4 + 4 * k + SIGNATURE_BYTES))
        + (4 + k * (1 + DIGEST_BYTES + 4 + 4 + 4 + depth * DIGEST_BYTES))
        + (4 + 4 + (1 + k) * depth * DIGEST_BYTES)
    )


def check_transportable(parameters: ProtocolParameters) -> None:
    """Check that every message of a session fits into one call.

    The roster, the delivered bundles and the vectors travel in chunks and always
    fit; bundles and shares that one client sends travel whole.  Published edges travel
    in chunks, and grow with the square of the degree.

    Raises:
        RemoteProtocolError: BAD_CONFIG, with the largest number of neighbours that
            fits.  Give the task a degree, or fewer clients.
    """
    room, sizes = MAX_MESSAGE_BYTES - _ENVELOPE_BYTES, message_sizes(parameters)
    if sizes.edges > MAX_OBJECT_BYTES:
        raise ErrorCode.BAD_CONFIG.error(
            f"{parameters.degree} drawn neighbours make the published edges of one "
            f"client {sizes.edges} bytes, at most {MAX_OBJECT_BYTES} fit",
            fix="Lower degree or in_cap.",
        )
    if sizes.bundles > room:
        raise ErrorCode.BAD_CONFIG.error(
            f"{parameters.max_clients} clients on the complete graph make the bundles "
            f"of one client larger than {MAX_MESSAGE_BYTES} bytes; at most "
            f"{room // BUNDLE_BYTES} neighbours fit",
            fix="Give the task a degree, or lower max_clients.",
        )


_Message = TypeVar("_Message", bound=protobuf.Message)


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
    except protobuf.DecodeError:
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


_Answer_co = TypeVar("_Answer_co", covariant=True)

_MILLISECONDS: Final = 1000


# --- parts of requests and answers ----------------------------------------------------


@unique
class Blob(IntEnum):
    """Large bytes that a client fetches in chunks.  Numbers are those on the wire."""

    PAYLOAD = 1
    SUM = 2
    ROSTER = 3
    DELIVERY = 4
    NEIGHBOURHOOD = 5
    QUORUM = 6
    REVOCATIONS = 7
    EDGES = 8


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer that there is no update for this client yet.

    Attributes:
        retry_after_seconds: When to ask again; on the wire between 0.001 and 3600.
        joined: In AdvertiseKeys, for clients that have joined: how many have; else 0.
        needed: How many the session needs before that round can close; 0 with `joined`.
        closes_in_seconds: For clients whose answer to the open round is stored: the
            time until that round closes, 0 to 604 800.  AdvertiseKeys closes then only
            if enough have joined.  None for all other clients.
    """

    retry_after_seconds: float
    joined: int = 0
    needed: int = 0
    closes_in_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class UploadStatus:
    """The progress of one client's upload.

    Attributes:
        next_offset: The byte that the next chunk must start with.
        complete: Whether the upload is stored, checked and part of the session.
    """

    next_offset: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class BlobChunk:
    """A piece of a blob.

    Attributes:
        data: The bytes from the offset that was asked for; empty behind the end.
        total_size: Bytes of the whole blob.
    """

    data: bytes = field(repr=False)
    total_size: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a message that is too large for an answer.

    Attributes:
        kind: Class of the message: `Roster`, `EdgesPublished`, `Delivery` or `Quorum`.
        digest: SHA-256 of its canonical bytes.
        size: How many these are; more than 1 MiB, at most `MAX_OBJECT_BYTES`.
        blob: The name under which the message is fetched.
    """

    kind: type[Message]
    digest: bytes
    size: int
    blob: Blob

    @classmethod
    def for_message(cls, update: Envelope) -> Self:
        """Refer to a message that exceeds `MAX_INLINE_BYTES`."""
        blob = _LARGE[update.kind][0]
        if is_neighbourhood(update):
            blob = Blob.NEIGHBOURHOOD
        return cls(update.kind, update.digest, len(update.data), blob)


# The server's messages that grow with the cohort, by the names under which they are
# fetched.
_UPDATES: Final[frozenset[type[Message]]] = frozenset(
    {Roster, EdgesPublished, Delivery, Survivors, Quorum, Released, Aborted}
)
_LARGE: Final[Mapping[type[Message], tuple[Blob, ...]]] = {
    Roster: (Blob.ROSTER, Blob.NEIGHBOURHOOD),
    EdgesPublished: (Blob.EDGES,),
    Delivery: (Blob.DELIVERY,),
    Quorum: (Blob.QUORUM,),
}


# Of updates that no reference names.  A release has a fate, a hash, two integers of 8
# bytes and one of 4; an abort has a fate, a code and a reason with its length.
_RELEASED_BYTES: Final = 1 + DIGEST_BYTES + 8 + 4 + 8
_ABORTED_BYTES: Final = 1 + 2 + 4 + MAX_REASON_BYTES


def check_update_size(update: Envelope | Reference, sizes: MessageSizes) -> None:
    """Refuse an update that no session of these sizes can have (R10-2).

    A call lets 4 MiB through, of which the decoder of a small message would make lists.

    Args:
        update: As it was received, or what is to be fetched.
        sizes: Of the session that it is of.

    Raises:
        RemoteProtocolError: BAD_ENCODING; nothing of it was decoded or fetched.
    """
    if isinstance(update, Reference):
        size, is_part = update.size, update.blob is Blob.NEIGHBOURHOOD
    else:
        size, is_part = len(update.data), is_neighbourhood(update)
    largest = {
        Roster: sizes.roster,
        EdgesPublished: sizes.edges,
        Delivery: sizes.delivery,
        Survivors: sizes.survivors,
        Quorum: sizes.quorum,
        Released: _RELEASED_BYTES,
        Aborted: _ABORTED_BYTES,
    }[update.kind]
    name = update.kind.__name__
    # On a graph without neighbourhoods the session refuses one, by its rule (R5.2-25).
    if is_part and sizes.neighbourhood:
        largest, name = sizes.neighbourhood, "Neighbourhood"
    if size > largest:
        raise ErrorCode.BAD_ENCODING.error(
            f"the server sends a message {name} of {size} bytes; in this session one "
            f"has at most {largest}",
            fix="Tell the operator: the aggregator is broken or lies.",
        )


# --- requests -------------------------------------------------------------------------


class Request(Generic[_Answer_co]):
    """A call with its arguments, answered with an `_Answer_co`.

    Attributes:
        WIRE: Protobuf class with the same fields.
    """

    __slots__ = ()

    WIRE: ClassVar[Callable[..., Any]]

    def encode(self) -> bytes:
        """Return the protobuf bytes."""
        values = {each: getattr(self, each) for each in _field_names(type(self))}
        if "after" in values:
            values["after"] = values["after"] or 0
        return cast("bytes", self.WIRE(**values).SerializeToString())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RemoteProtocolError: BAD_ENCODING, naming the field.
        """
        message = parse(cls.WIRE(), data)
        values = {each: getattr(message, each) for each in _field_names(cls)}
        if "after" in values:
            number = in_range(values["after"], "round", at_most=Round.FINISHED)
            values["after"] = Round(number) if number else None
        if "blob" in values:
            number = in_range(values["blob"], "blob", at_least=1, at_most=len(Blob))
            values["blob"] = Blob(number)
        request = cls(**values)
        request.check()
        return request

    def check(self) -> None:
        """Check the limits of the fields that no session is needed for.

        Raises:
            RemoteProtocolError: BAD_ENCODING, naming the field.
        """
        exact_bytes(getattr(self, "session_id", b""), SESSION_ID_BYTES, "session_id")


def _field_names(request: type[Request[Any]]) -> tuple[str, ...]:
    """Return the names of a request's fields."""
    return tuple(each.name for each in fields(cast("Any", request)))


@dataclass(frozen=True, slots=True)
class GetOffer(Request[SessionDescriptor | Wait]):
    """Before any round: request an open session of the task.

    Attributes:
        task_id: 1 to 256 bytes of UTF-8.
        after_session: Highest session number seen; 0 for none.  Sessions up to this
            number are not offered.
        wait_ms: How long the answer may take if no update exists, 0 to 30 000.
    """

    WIRE = secagg_service_pb2.GetOfferRequest

    task_id: str
    after_session: int = 0
    wait_ms: int = 0

    def check(self) -> None:
        """Check the size of the task id, and the wait."""
        bounded_bytes(
            self.task_id.encode(), "task_id", at_least=1, at_most=MAX_TASK_ID_BYTES
        )
        in_range(self.wait_ms, "wait_ms", at_most=MAX_HELD_MS)


@dataclass(frozen=True, slots=True)
class SendMessage(Request[None]):
    """A request that carries one message of the protocol; answered when it is durable.

    Attributes:
        KIND: Class of the message.
        MAX_BYTES: Its largest size.
        session_id: 32 bytes.
        message: Its canonical bytes.
    """

    KIND: ClassVar[type[Message]]
    MAX_BYTES: ClassVar[int] = MAX_MESSAGE_BYTES

    session_id: bytes
    message: bytes = field(repr=False)

    def check(self) -> None:
        """Check the session id and the size of the message."""
        exact_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        bounded_bytes(self.message, "message", at_most=self.MAX_BYTES)


class AdvertiseKeys(SendMessage):
    """AdvertiseKeys: the client's public keys."""

    __slots__ = ()
    WIRE = secagg_service_pb2.AdvertiseKeysRequest
    KIND = Advert
    MAX_BYTES = MAX_ADVERT_BYTES


class ChooseEdges(SendMessage):
    """ChooseEdges: the clients that the client drew."""

    __slots__ = ()
    WIRE = secagg_service_pb2.ChooseEdgesRequest
    KIND = Edges
    MAX_BYTES = MAX_EDGES_BYTES


class ShareKeys(SendMessage):
    """ShareKeys: one sealed bundle for each neighbour."""

    __slots__ = ()
    WIRE = secagg_service_pb2.ShareKeysRequest
    KIND = Bundles


class ReportViolation(SendMessage):
    """MaskedInputCollection: the client cannot use another client's bundle."""

    __slots__ = ()
    WIRE = secagg_service_pb2.ReportViolationRequest
    KIND = Complaint
    MAX_BYTES = 6


class SignConsistency(SendMessage):
    """Round 5: the client's signature over the sets that it received."""

    __slots__ = ()
    WIRE = secagg_service_pb2.SignConsistencyRequest
    KIND = Consistency
    MAX_BYTES = 64


class RevealShares(SendMessage):
    """Unmasking: one share for each client of U2 whose shares the client holds."""

    __slots__ = ()
    WIRE = secagg_service_pb2.RevealSharesRequest
    KIND = Shares


@dataclass(frozen=True, slots=True)
class GetUploadStatus(Request[UploadStatus]):
    """MaskedInputCollection: request the upload's offset and compare the views.

    Attributes:
        session_id: 32 bytes.
        view: Of the session, 32 bytes (R5.3-14); `NO_VIEW` between two aggregators.
    """

    WIRE = secagg_service_pb2.GetUploadStatusRequest

    session_id: bytes
    view: bytes = NO_VIEW

    def check(self) -> None:
        """Check the session id and the size of the view."""
        exact_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        exact_bytes(self.view, DIGEST_BYTES, "view")


@dataclass(frozen=True, slots=True)
class UploadChunk(Request[UploadStatus]):
    """MaskedInputCollection: one chunk of the client's masked input.

    Attributes:
        session_id: 32 bytes.
        offset: Position of the chunk's first byte.
        total_size: Bytes of the whole packed vector; the same in every chunk.
        digest: SHA-256 of the whole packed vector; the same in every chunk.
        data: 1 byte to 1 MiB.
        view: As in `GetUploadStatus`; the same in every chunk.
    """

    WIRE = secagg_service_pb2.UploadChunkRequest

    session_id: bytes
    offset: int
    total_size: int
    digest: bytes
    data: bytes = field(repr=False)
    view: bytes = NO_VIEW

    def check(self) -> None:
        """Check sizes, and that the chunk lies inside the vector."""
        exact_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        exact_bytes(self.digest, DIGEST_BYTES, "digest")
        exact_bytes(self.view, DIGEST_BYTES, "view")
        bounded_bytes(self.data, "data", at_least=1, at_most=MAX_CHUNK_BYTES)
        in_range(self.total_size, "total_size", at_least=1, at_most=MAX_UPLOAD_BYTES)
        in_range(
            self.offset + len(self.data), "end of a chunk", at_most=self.total_size
        )
        in_range(self.offset, "offset", at_most=self.total_size)


@dataclass(frozen=True, slots=True)
class _AsksForUpdate(Request[Envelope | Reference | Wait]):
    """A request for the update that follows a round.

    Attributes:
        session_id: 32 bytes.
        after: The round that the caller is in, not FINISHED; None for any update.
    """

    session_id: bytes
    after: Round | None

    def check(self) -> None:
        """Check the session id and the round."""
        exact_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        if self.after is Round.FINISHED:
            raise refuse("nothing follows the end of a session")


@dataclass(frozen=True, slots=True)
class GetUpdate(_AsksForUpdate):
    """Any round: the newest update, if it opens a round after `after`.

    Attributes:
        wait_ms: How long the answer may take if no update exists, 0 to 30 000.
    """

    WIRE = secagg_service_pb2.GetUpdateRequest

    wait_ms: int = 0

    def check(self) -> None:
        """Check the session id, the round and the wait."""
        _AsksForUpdate.check(self)  # `super` does not work in a class with slots
        in_range(self.wait_ms, "wait_ms", at_most=MAX_HELD_MS)


class WatchSession(_AsksForUpdate):
    """Any round: the newest update later than `after`, then each later one.

    In between, a `Wait` states until when the next message follows.  After a longer
    pause the other end is unavailable.
    """

    __slots__ = ()
    WIRE = secagg_service_pb2.WatchSessionRequest


@dataclass(frozen=True, slots=True)
class FetchChunk(Request[BlobChunk]):
    """Any round: a piece of a large object.

    Attributes:
        session_id: 32 bytes.
        blob: The object.
        offset: First byte wanted.
        max_bytes: Most bytes wanted, 1 to 1 MiB.
    """

    WIRE = secagg_service_pb2.FetchChunkRequest

    session_id: bytes
    blob: Blob
    offset: int
    max_bytes: int = MAX_CHUNK_BYTES

    def check(self) -> None:
        """Check the session id, the offset and the size."""
        exact_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        in_range(self.offset, "offset", at_most=(1 << 64) - 1)
        in_range(self.max_bytes, "max_bytes", at_least=1, at_most=MAX_CHUNK_BYTES)


# --- answers --------------------------------------------------------------------------


def _encode_wait(wait: Wait) -> messages_pb2.Wait:
    """Encode a wait; its time is rounded up to milliseconds."""
    # Rounded up: a wait of zero would be a busy loop at the client.
    seconds = min(wait.retry_after_seconds, MAX_RETRY_AFTER_SECONDS)
    milliseconds = math.ceil(seconds * _MILLISECONDS)
    message = messages_pb2.Wait(
        retry_after_ms=max(1, milliseconds), joined=wait.joined, needed=wait.needed
    )
    if wait.closes_in_seconds is not None:
        message.closes_in_ms = round(wait.closes_in_seconds * _MILLISECONDS)
    return message


def _decode_wait(message: messages_pb2.Wait) -> Wait:
    """Decode a wait, and refuse values out of range."""
    milliseconds = in_range(
        message.retry_after_ms,
        "retry_after_ms",
        at_least=1,
        at_most=int(MAX_RETRY_AFTER_SECONDS * _MILLISECONDS),
    )
    closes_in = None
    if message.HasField("closes_in_ms"):
        closes_in = in_range(
            message.closes_in_ms,
            "closes_in_ms",
            at_most=MAX_DEADLINE_SECONDS * _MILLISECONDS,
        )
    return Wait(
        milliseconds / _MILLISECONDS,
        joined=in_range(message.joined, "joined", at_most=MAX_CLIENTS),
        needed=in_range(message.needed, "needed", at_most=MAX_CLIENTS),
        closes_in_seconds=None if closes_in is None else closes_in / _MILLISECONDS,
    )


def _encode_offer(answer: SessionDescriptor | Wait) -> bytes:
    """Encode an offer, or the wait for one."""
    message = secagg_service_pb2.GetOfferResponse()
    if isinstance(answer, Wait):
        message.wait.CopyFrom(_encode_wait(answer))
    else:
        message.descriptor = answer.encode()
    return message.SerializeToString()


def _decode_offer(data: bytes) -> SessionDescriptor | Wait:
    """Decode the answer to a call for an offer."""
    message = parse(secagg_service_pb2.GetOfferResponse(), data)
    match message.WhichOneof("answer"):
        case "descriptor":
            return SessionDescriptor.decode(
                bounded_bytes(
                    message.descriptor, "descriptor", at_most=MAX_DESCRIPTOR_BYTES
                )
            )
        case "wait":
            return _decode_wait(message.wait)
        case _:
            raise refuse("GetOfferResponse holds neither a descriptor nor a wait")


def _encode_nothing(_: None) -> bytes:
    return b""


def _decode_nothing(data: bytes) -> None:
    # All acknowledgements are empty; additions of a later release are ignored.
    parse(secagg_service_pb2.AdvertiseKeysResponse(), data)


def _encode_status(status: UploadStatus) -> bytes:
    """Encode how far an upload has come."""
    # UploadChunkResponse and GetUploadStatusResponse are alike.
    return secagg_service_pb2.UploadChunkResponse(
        status=messages_pb2.UploadStatus(
            next_offset=status.next_offset, complete=status.complete
        )
    ).SerializeToString()


def _decode_status(data: bytes) -> UploadStatus:
    """Decode how far an upload has come."""
    message = parse(secagg_service_pb2.UploadChunkResponse(), data)
    if not message.HasField("status"):
        raise refuse("UploadChunkResponse holds no status")
    return UploadStatus(message.status.next_offset, message.status.complete)


def _encode_chunk(chunk: BlobChunk) -> bytes:
    return secagg_service_pb2.FetchChunkResponse(
        data=chunk.data, total_size=chunk.total_size
    ).SerializeToString()


def _decode_chunk(data: bytes) -> BlobChunk:
    """Decode a piece of a larger object."""
    message = parse(secagg_service_pb2.FetchChunkResponse(), data)
    bounded_bytes(message.data, "data", at_most=MAX_CHUNK_BYTES)
    in_range(len(message.data), "length of a piece", at_most=message.total_size)
    return BlobChunk(message.data, message.total_size)


def _update_message(update: Envelope | Reference) -> messages_pb2.ServerUpdate:
    """Encode an update, or the reference to a large one."""
    message = messages_pb2.ServerUpdate(kind=update.kind.KIND)
    if isinstance(update, Envelope):
        message.message = update.data
    else:
        reference = messages_pb2.BlobReference(
            digest=update.digest, size=update.size, blob=f"BLOB_{update.blob.name}"
        )
        message.reference.CopyFrom(reference)
    return message


def _read_update(message: messages_pb2.ServerUpdate) -> Envelope | Reference:
    """Decode an update, or the reference to a large one."""
    kind = KINDS.get(message.kind)
    if kind not in _UPDATES:
        raise refuse(f"a server sends no message of kind {message.kind}")
    match message.WhichOneof("content"):
        case "message":
            return Envelope(
                kind,
                bounded_bytes(message.message, "message", at_most=MAX_INLINE_BYTES),
            )
        case "reference" if kind in _LARGE:
            size = in_range(
                message.reference.size,
                "size of a referenced object",
                at_least=MAX_INLINE_BYTES + 1,
                at_most=MAX_OBJECT_BYTES,
            )
            digest = exact_bytes(message.reference.digest, DIGEST_BYTES, "digest")
            number = int(message.reference.blob)
            if number not in _LARGE[kind]:
                raise refuse(f"a {kind.__name__} is not read as blob {number}")
            return Reference(kind, digest, size, Blob(number))
        case _:
            raise refuse(
                "ServerUpdate holds no message, nor a reference to a large one"
            )


def _encode_update(answer: Envelope | Reference | Wait) -> bytes:
    """Encode an update, or the wait for one."""
    # GetUpdateResponse and WatchSessionResponse are alike.
    message = secagg_service_pb2.GetUpdateResponse()
    if isinstance(answer, Wait):
        message.wait.CopyFrom(_encode_wait(answer))
    else:
        message.update.CopyFrom(_update_message(answer))
    return message.SerializeToString()


def _decode_update(data: bytes) -> Envelope | Reference | Wait:
    """Decode the answer to a call for an update."""
    message = parse(secagg_service_pb2.GetUpdateResponse(), data)
    match message.WhichOneof("answer"):
        case "update":
            return _read_update(message.update)
        case "wait":
            return _decode_wait(message.wait)
        case _:
            raise refuse("GetUpdateResponse holds neither an update nor a wait")


# --- the table ------------------------------------------------------------------------


@unique
class Access(Enum):
    """The callers of a call."""

    CLIENT = auto()
    """A client with a certificate of this trust domain."""
    ANY_CERTIFIED = auto()
    """Any peer that completed the handshake."""


@unique
class Deadline(Enum):
    """How long a client waits for the answer; the transport defines the seconds."""

    SMALL = auto()
    """A few hundred bytes either way."""
    LARGE = auto()
    """Up to 4 MiB, or an answer that may wait."""
    STREAM = auto()
    """A stream, opened again until the session ends."""


@dataclass(frozen=True, slots=True)
class Call:
    """A row of the table.

    Attributes:
        request: The request; the method has the same name.
        encode: Answer to protobuf bytes; of a stream, each of them.
        decode: The reverse; total.
        deadline: How long the answer may take.
        access: Its callers.
    """

    request: type[Request[Any]]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    deadline: Deadline
    access: Access = Access.CLIENT

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.request.__name__

    @property
    def is_stream(self) -> bool:
        """Whether one request has many answers."""
        return self.deadline is Deadline.STREAM


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    call.request: call
    for call in (
        Call(GetOffer, _encode_offer, _decode_offer, Deadline.LARGE),
        Call(AdvertiseKeys, _encode_nothing, _decode_nothing, Deadline.SMALL),
        Call(ChooseEdges, _encode_nothing, _decode_nothing, Deadline.LARGE),
        Call(ShareKeys, _encode_nothing, _decode_nothing, Deadline.LARGE),
        Call(ReportViolation, _encode_nothing, _decode_nothing, Deadline.SMALL),
        Call(GetUploadStatus, _encode_status, _decode_status, Deadline.SMALL),
        Call(UploadChunk, _encode_status, _decode_status, Deadline.LARGE),
        Call(SignConsistency, _encode_nothing, _decode_nothing, Deadline.SMALL),
        Call(RevealShares, _encode_nothing, _decode_nothing, Deadline.LARGE),
        Call(GetUpdate, _encode_update, _decode_update, Deadline.LARGE),
        Call(WatchSession, _encode_update, _decode_update, Deadline.STREAM),
        Call(FetchChunk, _encode_chunk, _decode_chunk, Deadline.LARGE),
    )
}

_CARRIERS: Final[Mapping[type[Message], type[SendMessage]]] = {
    request.KIND: request for request in CALLS if issubclass(request, SendMessage)
}


def carrier_of(session_id: bytes, envelope: Envelope) -> SendMessage:
    """Return the request that carries a client's message."""
    return _CARRIERS[envelope.kind](session_id, envelope.data)
