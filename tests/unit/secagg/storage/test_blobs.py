"""One suite for all stores of immutable objects; the bucket is a real HTTP server."""

import logging
import os
import pickle
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.inline_store import inline_store
from secagg_testing.lossy_connection import Fault
from secagg_testing.replicas import Replicas

from secagg.errors import ErrorCode, InternalError, LocalProtocolError, ServiceError
from secagg.protocol.packing import packed_size
from secagg.storage.blobs import FileBlobs, MemoryBlobs, StoredBlob
from secagg.storage.open_blobs import BlobBindingFile, open_blobs, refuse_other_blobs
from secagg.storage.s3_blobs import S3Blobs
from secagg.storage.spool import UploadSpool
from secagg.wire.calls import UploadChunk

HOME = "0" * 64


@pytest.fixture(scope="module")
def bucket_server():
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - of dev-services

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).read()
    yield url
    server.stop()


@pytest.fixture
def keys(bucket_server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture(params=["memory", "directory", "bucket"])
def blobs(request, tmp_path):
    if request.param == "memory":
        return MemoryBlobs()
    if request.param == "directory":
        return open_blobs(f"file:{tmp_path}/blobs")
    request.getfixturevalue("keys")
    return open_blobs(f"s3://bucket/{tmp_path.name}")


class Between:
    """A connection whose chunks of uploads are noted, and who took them."""

    def __init__(self, inner, chunks):
        self.inner, self.chunks = inner, chunks

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def call(self, request):
        if isinstance(request, UploadChunk):
            self.chunks.append((len(request.data), self.inner._inner._service))
        return await self.inner.call(request)


def test_a_client_switched_to_another_aggregator_repeats_one_chunk(blobs, monkeypatch):
    """Each call goes to either of two; half-way the answer to a chunk is lost."""
    monkeypatch.setattr("secagg.client.calls.MAX_CHUNK_BYTES", 2)
    parameters = parameters_for(4, dimension=7, threshold=3, colluders=1)
    size = packed_size(parameters.dimension, parameters.bits)
    chunks = {number: [] for number in range(4)}

    def fault_of(_number, call, count):
        is_half_way = call is UploadChunk and count == size // 4
        return Fault.LOSE_ANSWER if is_half_way else Fault.NONE

    async def main(clock):
        deployment = Replicas(
            clock,
            parameters,
            4,
            server_store=inline_store(now=clock.date),
            spool=UploadSpool(blobs),
            fault_of=fault_of,
            tamper=lambda number, inner: Between(inner, chunks[number]),
        )
        await deployment.run()
        return deployment

    (total,) = manual_clock.run(main).sums
    assert total.survivors == 4
    for sent in chunks.values():
        assert size < sum(length for length, _ in sent) <= size + 2
        assert len({acquire for _, acquire in sent}) == 2


def test_an_object_is_created_once_and_never_changes(blobs):
    assert blobs.read(f"{HOME}/a") is None
    assert blobs.create(f"{HOME}/a", b"12345")
    assert not blobs.create(f"{HOME}/a", b"12345")
    assert not blobs.create(f"{HOME}/a", b"others")
    blobs.sync(HOME)
    assert blobs.read(f"{HOME}/a") == (b"12345", 5)
    assert blobs.create(f"{HOME}/b", b"")
    assert blobs.read(f"{HOME}/b") == (b"", 0)


def test_of_many_concurrent_creations_of_one_object_one_succeeds(blobs):
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(lambda n: blobs.create(f"{HOME}/x", bytes([n])), range(8))
        )
    assert sum(made) == 1
    assert blobs.read(f"{HOME}/x") == (bytes([made.index(True)]), 1)


@pytest.mark.parametrize(
    ("offset", "count", "piece"),
    [
        (0, None, b"12345"),
        (0, 0, b""),
        (0, 2, b"12"),
        (1, 3, b"234"),
        (3, None, b"45"),
        (3, 99, b"45"),
        (5, 1, b""),
        (9, None, b""),
    ],
)
def test_any_range_of_an_object_can_be_read(blobs, offset, count, piece):
    blobs.create(f"{HOME}/a", b"12345")
    assert blobs.read(f"{HOME}/a", offset, count) == (piece, 5)


def test_objects_are_listed_by_prefix(blobs):
    for name in (f"{HOME}/u/b", f"{HOME}/u/a.x", f"{HOME}/uu/c", f"{'1' * 64}/sum"):
        blobs.create(name, name.encode())
    assert [each.name for each in blobs.list_prefix(f"{HOME}/u")] == [
        f"{HOME}/u/a.x",
        f"{HOME}/u/b",
    ]
    assert blobs.list_prefix(f"{HOME}/uu") == (StoredBlob(f"{HOME}/uu/c", 69),)
    assert len(blobs.list_prefix(HOME)) == 3
    assert blobs.list_prefix(f"{HOME}/nothing") == ()
    assert blobs.first_parts() == (HOME, "1" * 64)
    assert 0.0 <= blobs.age_seconds(HOME) < 60.0
    assert blobs.age_seconds("2" * 64) == 0.0  # removed meanwhile


def test_removing_an_object_removes_nothing_else(blobs):
    for name in (f"{HOME}/u/a", f"{HOME}/u/b", f"{HOME}/uu"):
        blobs.create(name, b"1")
    blobs.remove(f"{HOME}/u/a")
    assert blobs.read(f"{HOME}/u/a") is None
    blobs.remove(f"{HOME}/u")
    blobs.remove(f"{HOME}/u")
    assert [each.name for each in blobs.list_prefix(HOME)] == [f"{HOME}/uu"]
    assert blobs.create(f"{HOME}/u/a", b"2")


def test_a_pickled_blob_store_contains_no_keys(blobs):
    blobs.create(f"{HOME}/a", b"12345")
    packed = pickle.dumps(blobs)
    assert b"a secret" not in packed
    assert pickle.loads(packed).read(f"{HOME}/a") == (b"12345", 5)


@pytest.mark.parametrize("name", ["../a", "/a", "a//b", "A", "", "a/../b", "a\0"])
def test_no_object_name_escapes_the_store(blobs, name):
    with pytest.raises(InternalError):
        blobs.create(name, b"1")


@pytest.mark.usefixtures("keys")
def test_a_bucket_that_overwrites_objects_is_rejected(monkeypatch):
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *what, **_: put(*what))
    with pytest.raises(LocalProtocolError, match="replaces objects") as caught:
        open_blobs("s3://bucket/other")
    assert caught.value.code is ErrorCode.BAD_SETTINGS


@pytest.mark.usefixtures("keys")
def test_a_missing_bucket_is_a_storage_failure():
    with pytest.raises(ServiceError) as caught:
        open_blobs("s3://nothing/here")
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "a secret" not in str(caught.value) + caught.value.next_step


@pytest.mark.parametrize(
    "address",
    ["s3:bucket", "s3://", "s3://key:secret@bucket/a", "s3://b", "s3://bucket/a?x=y"],
)
def test_a_bucket_address_with_keys_is_rejected(address):
    with pytest.raises(LocalProtocolError, match="not the address") as caught:
        open_blobs(address)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_a_remote_bucket_requires_tls(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    with pytest.raises(LocalProtocolError, match="without TLS"):
        S3Blobs("s3://bucket/prefix")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example:9000")
    S3Blobs("s3://bucket/prefix")


@pytest.mark.parametrize("address", ["file:relative", "/absolute", "ftp://x/y", ""])
def test_an_invalid_blob_store_address_is_rejected(address):
    with pytest.raises(LocalProtocolError) as caught:
        open_blobs(address)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_partial_files_are_ignored(tmp_path):
    blobs = FileBlobs(tmp_path)
    blobs.create(f"{HOME}/a", b"1")
    (tmp_path / HOME / ".a.partial").write_bytes(b"half")
    assert [each.name for each in blobs.list_prefix(HOME)] == [f"{HOME}/a"]


def test_leftovers_of_a_killed_process_are_never_written_through(tmp_path):
    blobs = FileBlobs(tmp_path)
    blobs.create(f"{HOME}/a", b"12345")
    # Killed between the link and its end, by one of the same numbers: a container.
    left = f".b.{os.getpid()}.{threading.get_ident()}.partial"
    os.link(tmp_path / HOME / "a", tmp_path / HOME / left)
    assert blobs.create(f"{HOME}/b", b"others")
    assert blobs.read(f"{HOME}/a") == (b"12345", 5)


async def test_a_spool_and_its_blob_store_are_bound_to_each_other(blobs, tmp_path):
    one, two = BlobBindingFile(tmp_path / "1"), BlobBindingFile(tmp_path / "2")
    for number in "12":
        (tmp_path / number).mkdir()
    await refuse_other_blobs(blobs, one.bind)
    await refuse_other_blobs(blobs, one.bind)
    with pytest.raises(ServiceError, match="belongs to another store") as caught:
        await refuse_other_blobs(blobs, two.bind)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    # Refused, it is still free to begin with a store of its own, and keeps to it.
    own = MemoryBlobs()
    await refuse_other_blobs(own, two.bind)
    with pytest.raises(ServiceError, match="does not hold"):
        await refuse_other_blobs(own, one.bind)
    with pytest.raises(ServiceError, match="does not hold"):
        await refuse_other_blobs(MemoryBlobs(), one.bind)
    assert len(blobs.list_prefix("store")) == 2
    # Two that began at the same moment: the store is that of one of them.
    (tmp_path / "3").mkdir()
    late, name = BlobBindingFile(tmp_path / "3"), bytes(range(16))
    await late.bind(name)
    blobs.create(f"store/{name.hex()}", b"")
    with pytest.raises(ServiceError, match="belongs to another store"):
        await refuse_other_blobs(blobs, late.bind)
