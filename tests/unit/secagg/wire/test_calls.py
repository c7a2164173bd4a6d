import hashlib
import math

import pytest
from secagg_testing.cohorts import offer_of

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.messages import (
    KINDS,
    MAX_EDGES_BYTES,
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Envelope,
    Quorum,
    Released,
    Roster,
    Round,
    Shares,
    Survivors,
    Upload,
)
from secagg.protocol.packing import MAX_CHUNK_BYTES
from secagg.protocol.parameters import ProtocolParameters
from secagg.v1 import messages_pb2, secagg_service_pb2
from secagg.wire import calls
from secagg.wire.calls import (
    CALLS,
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OBJECT_BYTES,
    MAX_UPLOAD_BYTES,
    AdvertiseKeys,
    Blob,
    BlobChunk,
    ChooseEdges,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Reference,
    ReportViolation,
    RevealShares,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    UploadStatus,
    Wait,
    WatchSession,
)

SESSION = bytes(range(32))
DIGEST = hashlib.sha256(b"vector").digest()
LARGE = bytes(MAX_INLINE_BYTES + 1)
DESCRIPTOR = offer_of(
    ProtocolParameters(
        modulus=1 << 20,
        dimension=1000,
        min_clients=10,
        max_clients=100,
        threshold=7,
        min_survivors=8,
        max_dropouts=2,
        max_losses=2,
    ),
    task_id="digits",
    session_number=3,
    payload_hash=DIGEST,
)

# --- requests -------------------------------------------------------------------------

# Nothing follows the end, so no client asks for it.
NAMED = (None, *(each for each in Round if each is not Round.FINISHED))

EXAMPLES = [
    GetOffer("digits", 7),
    GetOffer("é" * 128, 0),
    GetOffer("kept", 7, 30_000),
    AdvertiseKeys(SESSION, b"advert"),
    ChooseEdges(SESSION, b"d" * MAX_EDGES_BYTES),
    ShareKeys(SESSION, b"b" * 96 * 3),
    ShareKeys(SESSION, b""),
    GetUploadStatus(SESSION),
    GetUploadStatus(SESSION, b"v" * 32),
    UploadChunk(SESSION, 10, 12, DIGEST, b"xy"),
    UploadChunk(SESSION, 0, MAX_UPLOAD_BYTES, DIGEST, bytes(MAX_CHUNK_BYTES)),
    ReportViolation(SESSION, b"c" * 6),
    SignConsistency(SESSION, b"e" * 64),
    RevealShares(SESSION, b"s" * 34),
    *(GetUpdate(SESSION, after) for after in NAMED),
    *(WatchSession(SESSION, after) for after in NAMED),
    *(FetchChunk(SESSION, blob, 3, MAX_CHUNK_BYTES) for blob in Blob),
]


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda value: str(value)[:60])
def test_a_request_round_trips(request_):
    decoded = type(request_).decode(request_.encode())
    assert decoded == request_
    assert type(getattr(decoded, "after", None)) is type(
        getattr(request_, "after", None)
    )


def test_every_call_has_an_example():
    assert {type(example) for example in EXAMPLES} == set(CALLS)


BAD = [
    (GetOffer("", 0), "task_id"),
    (GetOffer("a" * 257, 0), "task_id"),
    (GetOffer("a", 0, 30_001), "wait_ms"),
    (GetUpdate(SESSION, None, 30_001), "wait_ms"),
    (AdvertiseKeys(SESSION[:31], b"advert"), "session_id"),
    (AdvertiseKeys(SESSION + b"x", b"advert"), "session_id"),
    (AdvertiseKeys(SESSION, b"a" * 1100), "message"),
    (ChooseEdges(SESSION, bytes(MAX_EDGES_BYTES + 1)), "message"),
    (ShareKeys(b"", b"b"), "session_id"),
    (GetUploadStatus(b"x"), "session_id"),
    (UploadChunk(SESSION, 0, 10, DIGEST, b""), "data"),
    (UploadChunk(SESSION, 0, 0, DIGEST, b"x"), "total_size"),
    (UploadChunk(SESSION, 0, MAX_UPLOAD_BYTES + 1, DIGEST, b"x"), "total_size"),
    (UploadChunk(SESSION, 10, 10, DIGEST, b"x"), "end of a chunk"),
    (UploadChunk(SESSION, (1 << 64) - 1, 10, DIGEST, b"x"), "end of a chunk"),
    (UploadChunk(SESSION, 0, 10, DIGEST[:5], b"x"), "digest"),
    (UploadChunk(SESSION, 0, 10, DIGEST, b"x", b""), "view"),
    (GetUploadStatus(SESSION, DIGEST[:5]), "view"),
    (
        UploadChunk(SESSION, 0, 2 << 20, DIGEST, b"x" * (MAX_CHUNK_BYTES + 1)),
        "data",
    ),
    (SignConsistency(SESSION, bytes(65)), "message"),
    (RevealShares(b"", b""), "session_id"),
    (ReportViolation(SESSION, b"c" * 7), "message"),
    (GetUpdate(b"", None), "session_id"),
    (GetUpdate(SESSION, 8), "round"),
    (GetUpdate(SESSION, -2), "round"),
    (WatchSession(SESSION, 77), "round"),
    (WatchSession(b"x", None), "session_id"),
    (FetchChunk(b"x", Blob.SUM, 0, 1), "session_id"),
    (GetUpdate(SESSION, Round.FINISHED), "nothing follows"),
    (WatchSession(SESSION, Round.FINISHED), "nothing follows"),
    (FetchChunk(SESSION, 0, 0, 1), "blob"),
    (FetchChunk(SESSION, 9, 0, 1), "blob"),
    (FetchChunk(SESSION, Blob.SUM, 0, 0), "max_bytes"),
    (FetchChunk(SESSION, Blob.SUM, 0, MAX_CHUNK_BYTES + 1), "max_bytes"),
]


@pytest.mark.parametrize(("request_", "named"), BAD, ids=lambda value: str(value)[:60])
def test_a_request_outside_its_limits_is_rejected_with_the_field_name(request_, named):
    with pytest.raises(RemoteProtocolError, match=named) as caught:
        type(request_).decode(request_.encode())
    assert caught.value.code is ErrorCode.BAD_ENCODING


@pytest.mark.parametrize(
    "request_",
    [
        UploadChunk(SESSION, -1, 10, DIGEST, b"x"),
        FetchChunk(SESSION, Blob.SUM, -1, 1),
    ],
)
def test_an_offset_that_cannot_be_encoded_is_rejected_by_the_check(request_):
    with pytest.raises(RemoteProtocolError, match="offset"):
        request_.check()


def test_a_message_over_the_limit_is_rejected_before_it_is_parsed():
    # Valid protobuf, so that only the size can be the reason.
    data = secagg_service_pb2.ShareKeysRequest(
        session_id=SESSION, message=b"b" * MAX_MESSAGE_BYTES
    ).SerializeToString()
    with pytest.raises(RemoteProtocolError, match=str(MAX_MESSAGE_BYTES)):
        ShareKeys.decode(data)


def test_a_field_of_a_later_release_is_ignored():
    # R3.1-2: what is outside the canonical bytes changes nothing
    # Field 100, a varint: what a client of a later release may add.
    data = GetUploadStatus(SESSION).encode() + b"\xa0\x06\x01"
    assert GetUploadStatus.decode(data).session_id == SESSION


def test_request_reprs_contain_no_secret_bytes():
    for example in EXAMPLES:
        for name in ("message", "data"):
            assert f"{name}=" not in repr(example)


def test_every_client_message_except_the_vector_has_one_carrier():
    for kind, request in (
        (Advert, AdvertiseKeys),
        (Edges, ChooseEdges),
        (Bundles, ShareKeys),
        (Complaint, ReportViolation),
        (Consistency, SignConsistency),
        (Shares, RevealShares),
    ):
        carried = calls.carrier_of(SESSION, Envelope(kind, b"bytes"))
        assert carried == request(SESSION, b"bytes")
        assert carried.KIND is kind
    with pytest.raises(KeyError):
        calls.carrier_of(SESSION, Envelope(Upload, b"bytes"))


# --- answers --------------------------------------------------------------------------

UPDATES = [
    Envelope(Roster, b"roster"),
    Envelope(Roster, bytes(MAX_INLINE_BYTES)),
    Envelope(EdgesPublished, b"edges"),
    Envelope(Delivery, b"delivery"),
    Envelope(Survivors, b""),
    Envelope(Quorum, b"quorum"),
    Envelope(Released, b"release"),
    Envelope(Aborted, b"abort"),
    Reference(Roster, DIGEST, len(LARGE), Blob.ROSTER),
    Reference(Roster, DIGEST, len(LARGE), Blob.NEIGHBOURHOOD),
    Reference(EdgesPublished, DIGEST, len(LARGE), Blob.EDGES),
    Reference(Delivery, DIGEST, MAX_OBJECT_BYTES, Blob.DELIVERY),
]
ANSWERS = [
    (GetOffer, DESCRIPTOR),
    (GetOffer, Wait(1.5)),
    (AdvertiseKeys, None),
    (ChooseEdges, None),
    (ShareKeys, None),
    (SignConsistency, None),
    (RevealShares, None),
    (ReportViolation, None),
    (GetUploadStatus, UploadStatus(0)),
    (UploadChunk, UploadStatus(1 << 33, complete=True)),
    (GetUpdate, Wait(0.25)),
    *((GetUpdate, update) for update in UPDATES),
    (WatchSession, Wait(240, joined=7, needed=9, closes_in_seconds=1.5)),
    *((WatchSession, update) for update in UPDATES),
    (FetchChunk, BlobChunk(b"piece", 1 << 40)),
    (FetchChunk, BlobChunk(b"", 0)),
]


@pytest.mark.parametrize(
    ("request_", "answer"), ANSWERS, ids=lambda value: str(value)[:60]
)
def test_an_answer_round_trips(request_, answer):
    row = CALLS[request_]
    assert row.decode(row.encode(answer)) == answer


def test_every_call_has_an_answer():
    assert {request for request, _ in ANSWERS} == set(CALLS)


def test_a_reference_identifies_the_referenced_message():
    neighbourhood = b"\1" + LARGE[1:]
    for kind, data, blob in (
        (Roster, LARGE, Blob.ROSTER),
        (Roster, neighbourhood, Blob.NEIGHBOURHOOD),
        (Delivery, LARGE, Blob.DELIVERY),
        (Delivery, neighbourhood, Blob.DELIVERY),
        (EdgesPublished, neighbourhood, Blob.EDGES),
    ):
        assert Reference.for_message(Envelope(kind, data)) == Reference(
            kind, hashlib.sha256(data).digest(), MAX_INLINE_BYTES + 1, blob
        )


def update(**fields):
    return messages_pb2.ServerUpdate(**fields)


def reference(size, digest=DIGEST, blob=Blob.ROSTER):
    return {"size": size, "digest": digest, "blob": int(blob)}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (update(), "kind 0"),
        (update(kind=77, message=b"x"), "kind 77"),
        *(
            (update(kind=kind, message=b"x"), f"kind {kind}")
            for kind, message in KINDS.items()
            if message in (Advert, Edges, Bundles, Upload, Shares)
        ),
        (update(kind=Roster.KIND), "neither|no message"),
        pytest.param(
            update(kind=Roster.KIND, message=LARGE), "message must have", id="large"
        ),
        (update(kind=Survivors.KIND, reference=reference(2 << 20)), "no message"),
        (update(kind=Aborted.KIND, reference=reference(2 << 20)), "no message"),
        (update(kind=Roster.KIND, reference=reference(2 << 20, b"short")), "digest"),
        *(
            (update(kind=kind.KIND, reference=reference(2 << 20, blob=blob)), "blob")
            for kind, blob in ((Roster, 0), (Roster, 4), (Delivery, 3), (Delivery, 5))
        ),
        *(
            (update(kind=Roster.KIND, reference=reference(size)), "referenced object")
            for size in (0, MAX_INLINE_BYTES, MAX_OBJECT_BYTES + 1, 1 << 60)
        ),
    ],
    ids=lambda value: str(value)[:40].replace("\n", " "),
)
def test_a_malformed_update_is_an_aggregator_error(message, complaint):
    for row, data in (
        (GetUpdate, secagg_service_pb2.GetUpdateResponse(update=message)),
        (WatchSession, secagg_service_pb2.WatchSessionResponse(update=message)),
    ):
        with pytest.raises(RemoteProtocolError, match=complaint) as caught:
            CALLS[row].decode(data.SerializeToString())
        assert caught.value.code is ErrorCode.BAD_ENCODING
        assert caught.value.sender is None


@pytest.mark.parametrize(
    "request_", [GetOffer, GetUpdate, WatchSession, GetUploadStatus, UploadChunk]
)
def test_an_empty_answer_is_rejected(request_):
    with pytest.raises(RemoteProtocolError, match="hold"):
        CALLS[request_].decode(b"")


@pytest.mark.parametrize("row", CALLS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\x05a", bytes(MAX_MESSAGE_BYTES + 1)], ids=range(3)
)
def test_bytes_that_are_no_answer_are_an_aggregator_error(row, data):
    with pytest.raises(RemoteProtocolError) as caught:
        row.decode(data)
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_wait_is_rounded_up_and_limited():
    def through(seconds):
        waited = [
            CALLS[row].decode(CALLS[row].encode(Wait(seconds)))
            for row in (GetOffer, GetUpdate)
        ]
        assert waited[0] == waited[1]
        return waited[0].retry_after_seconds

    assert through(0.0) == 0.001
    assert through(1.5) == 1.5
    assert through(0.0004) == 0.001
    assert through(1e9) == 3600.0
    assert through(math.inf) == 3600.0


@pytest.mark.parametrize("milliseconds", [0, 3_600_001, (1 << 64) - 1])
def test_a_wait_outside_its_range_is_rejected(milliseconds):
    message = secagg_service_pb2.GetUpdateResponse()
    message.wait.retry_after_ms = milliseconds
    message.wait.SetInParent()
    with pytest.raises(RemoteProtocolError, match="retry_after_ms"):
        CALLS[GetUpdate].decode(message.SerializeToString())


@pytest.mark.parametrize("descriptor", [b"", b"none", bytes(10_000)], ids=len)
def test_an_offer_that_is_no_descriptor_is_rejected(descriptor):
    message = secagg_service_pb2.GetOfferResponse(descriptor=descriptor)
    with pytest.raises(RemoteProtocolError, match="descriptor"):
        CALLS[GetOffer].decode(message.SerializeToString())


@pytest.mark.parametrize(("data", "total"), [(b"piece", 4), (LARGE, len(LARGE))])
def test_an_oversized_chunk_is_rejected(data, total):
    row = CALLS[FetchChunk]
    with pytest.raises(RemoteProtocolError):
        row.decode(row.encode(BlobChunk(data, total)))


def test_no_answer_exceeds_the_limit():
    row = CALLS[WatchSession]
    largest = row.encode(Envelope(Delivery, bytes(MAX_INLINE_BYTES)))
    assert len(largest) < MAX_INLINE_BYTES + 100 < MAX_MESSAGE_BYTES
