import hashlib

import pytest

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.v1 import secagg_service_pb2
from secagg.wire import requests
from secagg.wire.limits import MAX_CHUNK_BYTES, MAX_MESSAGE_BYTES

SESSION = bytes(range(32))
DIGEST = hashlib.sha256(b"vector").digest()

EXAMPLES = [
    requests.GetOffer("digits", 7),
    requests.GetOffer("é" * 128, 0),
    requests.AdvertiseKeys(SESSION, b"advert"),
    requests.ShareKeys(SESSION, b"b" * 96 * 3),
    requests.ShareKeys(SESSION, b""),
    requests.GetUploadStatus(SESSION),
    requests.UploadChunk(SESSION, 10, 12, DIGEST, b"xy"),
    requests.RevealShares(SESSION, b"s" * 34),
    *(requests.GetUpdate(SESSION, after) for after in (None, 0, 1, 2, 3, 4, 5)),
    *(requests.WatchSession(SESSION, after) for after in (None, 0, 5)),
    *(requests.FetchChunk(SESSION, blob, 3, MAX_CHUNK_BYTES) for blob in (1, 2, 3, 4)),
]


@pytest.mark.parametrize("request_", EXAMPLES, ids=repr)
def test_a_request_survives_the_wire(request_):
    assert type(request_).decode(request_.encode()) == request_


BAD = [
    (requests.GetOffer("", 0), "task_id"),
    (requests.GetOffer("a" * 257, 0), "task_id"),
    (requests.AdvertiseKeys(SESSION[:31], b"advert"), "session_id"),
    (requests.AdvertiseKeys(SESSION + b"x", b"advert"), "session_id"),
    (requests.AdvertiseKeys(SESSION, b""), "advert"),
    (requests.AdvertiseKeys(SESSION, b"a" * 1000), "advert"),
    (requests.ShareKeys(b"", b"b"), "session_id"),
    (requests.GetUploadStatus(b"x"), "session_id"),
    (requests.UploadChunk(SESSION, 0, 10, DIGEST, b""), "data"),
    (requests.UploadChunk(SESSION, 0, 0, DIGEST, b"x"), "total_size"),
    (requests.UploadChunk(SESSION, 0, (1 << 63) - 1, DIGEST, b"x"), "total_size"),
    (requests.UploadChunk(SESSION, 10, 10, DIGEST, b"x"), "beyond"),
    (requests.UploadChunk(SESSION, (1 << 64) - 1, 10, DIGEST, b"x"), "beyond"),
    (requests.UploadChunk(SESSION, 0, 10, DIGEST[:5], b"x"), "digest"),
    (
        requests.UploadChunk(SESSION, 0, 2 << 20, DIGEST, b"x" * (MAX_CHUNK_BYTES + 1)),
        "data",
    ),
    (requests.RevealShares(b"", b""), "session_id"),
    (requests.GetUpdate(SESSION, 6), "round"),
    (requests.GetUpdate(SESSION, -2), "round"),
    (requests.WatchSession(SESSION, 77), "round"),
    (requests.FetchChunk(SESSION, 0, 0, 1), "blob"),
    (requests.FetchChunk(SESSION, 5, 0, 1), "blob"),
    (requests.FetchChunk(SESSION, 1, 0, 0), "max_bytes"),
    (requests.FetchChunk(SESSION, 1, 0, MAX_CHUNK_BYTES + 1), "max_bytes"),
]


@pytest.mark.parametrize(("request_", "named"), BAD, ids=lambda value: str(value)[:60])
def test_a_request_outside_its_limits_is_refused_by_the_name_of_the_field(
    request_, named
):
    with pytest.raises(RemoteProtocolError, match=named) as caught:
        type(request_).decode(request_.encode())
    assert caught.value.code is ErrorCode.BAD_ENCODING


def test_a_message_over_the_limit_is_refused_before_it_is_parsed():
    # Valid protobuf, so that only the size can be the reason.
    data = secagg_service_pb2.ShareKeysRequest(
        session_id=SESSION, bundles=b"b" * MAX_MESSAGE_BYTES
    ).SerializeToString()
    with pytest.raises(RemoteProtocolError, match=str(MAX_MESSAGE_BYTES)):
        requests.ShareKeys.decode(data)


def test_a_field_of_a_later_release_is_ignored():
    # Field 100, a varint: what a client of a later release may add.
    data = requests.GetUploadStatus(SESSION).encode() + b"\xa0\x06\x01"
    assert requests.GetUploadStatus.decode(data).session_id == SESSION


def test_no_request_shows_secret_bytes_in_its_repr():
    for example in EXAMPLES:
        for name in ("bundles", "shares", "data"):
            assert f"{name}=" not in repr(example)
