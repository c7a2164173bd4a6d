"""One suite for both spools."""

import errno
import hashlib
import os
import pickle
import shutil
from collections import namedtuple

import pytest

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.storage.blobs import FileBlobs, MemoryBlobs
from secagg.storage.spool import (
    MIN_CHUNK_BYTES,
    PAYLOAD,
    SHORT_CHUNKS,
    SUM,
    UploadSpool,
)

SESSION = bytes(range(32))
OTHER = bytes(32)
DATA = bytes(range(256)) * 10
DIGEST = hashlib.sha256(DATA).digest()


@pytest.fixture(params=["memory", "disk"])
def spool(request, tmp_path):
    return (
        UploadSpool(MemoryBlobs())
        if request.param == "memory"
        else disk_spool(tmp_path)
    )


def disk_spool(tmp_path, min_free_bytes=0):
    return UploadSpool(FileBlobs(tmp_path / "spool"), min_free_bytes=min_free_bytes)


def send(spool, offset, data, sender="u", **other):
    arguments = {"digest": DIGEST, "total_size": len(DATA), **other}
    digest = arguments.pop("digest")
    return spool.append(SESSION, sender, digest, offset=offset, data=data, **arguments)


def is_stored(spool, digest=DIGEST, *, beyond=0):
    return not spool.missing_uploads(SESSION, {digest}, len(DATA) + beyond)


def test_an_upload_in_chunks_becomes_visible_at_once(spool):
    assert spool.received(SESSION, "u") == 0
    assert send(spool, 0, DATA[:1000]) == 1000
    assert send(spool, 1000, DATA[1000:]) == len(DATA)
    assert not is_stored(spool)
    spool.commit(SESSION, "u", DIGEST)
    assert is_stored(spool)
    assert spool.read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA
    assert spool.read_upload(SESSION, DIGEST, 700, 5) == DATA[700:705]


def test_repeated_and_overlapping_chunks_have_no_effect(spool):
    send(spool, 0, DATA[:1000])
    assert send(spool, 0, DATA[:1000]) == 1000
    assert send(spool, 500, DATA[500:800]) == 1000
    assert send(spool, 900, DATA[900:]) == len(DATA)
    spool.commit(SESSION, "u", DIGEST)
    spool.commit(SESSION, "u", DIGEST)
    assert spool.read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA


def test_a_gap_is_rejected_and_the_next_offset_stated(spool):
    send(spool, 0, DATA[:10])
    with pytest.raises(ServiceError, match="only 10 have arrived") as caught:
        send(spool, 11, DATA[11:20])
    assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
    assert spool.received(SESSION, "u") == 10


def test_bytes_beyond_the_total_are_rejected(spool):
    with pytest.raises(RemoteProtocolError) as caught:
        send(spool, 0, DATA, total_size=len(DATA) - 1)
    assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
    assert spool.received(SESSION, "u") == 0


def test_a_corrupt_upload_is_discarded_and_can_be_repeated(spool):
    send(spool, 0, DATA[:10])
    send(spool, 10, DATA[10:-1] + b"\x00")
    with pytest.raises(ServiceError, match="digest") as caught:
        spool.commit(SESSION, "u", DIGEST)
    assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
    assert spool.received(SESSION, "u") == 0
    assert not is_stored(spool)
    send(spool, 0, DATA)
    spool.commit(SESSION, "u", DIGEST)


def test_a_single_chunk_upload_is_stored_only_with_its_digest(spool):
    with pytest.raises(ServiceError, match="digest") as caught:
        send(spool, 0, DATA[:-1] + b"\x00")
    assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
    assert caught.value.next_offset == 0
    assert spool.session_ids() == ()  # nothing has touched the disk
    for _ in range(2):
        assert send(spool, 0, DATA) == len(DATA)
        spool.commit(SESSION, "u", DIGEST)
    assert spool.received(SESSION, "u") == 0  # nothing of it is unfinished
    assert spool.read_upload(SESSION, DIGEST, 700, 5) == DATA[700:705]


def test_a_whole_upload_after_a_chunk_of_it_is_accepted(spool):
    send(spool, 0, DATA[:10])
    assert send(spool, 0, DATA) == len(DATA)
    spool.commit(SESSION, "u", DIGEST)
    assert spool.read_upload(SESSION, DIGEST, 5, 10) == DATA[5:15]


@pytest.mark.parametrize("cut", [10, None])
def test_whole_uploads_of_one_sender_are_limited(spool, cut):
    other = DATA[::-1]
    digest = hashlib.sha256(other).digest()
    send(spool, 0, DATA)
    spool.commit(SESSION, "u", DIGEST)
    with pytest.raises(RemoteProtocolError) as caught:
        send(spool, 0, other[:cut], digest=digest)
    assert caught.value.code is ErrorCode.EQUIVOCATION
    assert not is_stored(spool, digest)
    send(spool, 0, other[:cut], digest=digest, sender="v")
    spool.discard(SESSION, "u", DIGEST)  # they were no good: it may begin again
    send(spool, 0, other, digest=digest)


def test_one_sender_cannot_open_a_second_upload(spool):
    send(spool, 0, DATA[:10])
    with pytest.raises(RemoteProtocolError) as caught:
        send(spool, 0, DATA[:10], digest=b"\x01" * 32)
    assert caught.value.code is ErrorCode.EQUIVOCATION
    send(spool, 0, DATA[:10], sender="v", digest=b"\x01" * 32)


def test_the_number_of_chunks_of_an_upload_is_limited(spool):
    data = bytes(2 * MIN_CHUNK_BYTES)
    other = {"digest": OTHER, "total_size": len(data)}
    for offset in range(SHORT_CHUNKS):
        send(spool, offset, data[:1], **other)
    # Neither a short chunk nor a long one of which a byte is new.
    for start in (SHORT_CHUNKS, 1):
        with pytest.raises(RemoteProtocolError, match="cuts its upload") as caught:
            send(spool, start, data[start : SHORT_CHUNKS + 1], **other)
        assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
    middle = send(spool, SHORT_CHUNKS, data[:MIN_CHUNK_BYTES], **other)
    assert middle == SHORT_CHUNKS + MIN_CHUNK_BYTES
    assert send(spool, middle, data[middle:], **other) == len(data)


def test_a_second_upload_never_receives_the_bytes_of_the_first():
    blobs = MemoryBlobs()
    spool = UploadSpool(blobs)
    send(spool, 0, DATA[:10])
    send(spool, 10, DATA[10:])
    spool.commit(SESSION, "u", DIGEST)
    # As if two processes had met two first chunks of one sender at the same moment.
    [stored, _] = blobs.list_prefix(
        f"{SESSION.hex()}/uploads/{hashlib.sha256(b'u').hexdigest()}"
    )
    blobs.create(stored.name.replace(DIGEST.hex(), OTHER.hex()), b"1")
    with pytest.raises(RemoteProtocolError) as caught:
        spool.commit(SESSION, "u", DIGEST)
    assert caught.value.code is ErrorCode.EQUIVOCATION
    assert UploadSpool(blobs).read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA


def test_discarding_removes_finished_and_partial_uploads(spool):
    send(spool, 0, DATA)
    spool.discard(SESSION, "u", DIGEST)
    assert spool.received(SESSION, "u") == 0
    send(spool, 0, DATA)
    spool.commit(SESSION, "u", DIGEST)
    spool.discard(SESSION, "u", DIGEST)
    assert not is_stored(spool)
    spool.discard(SESSION, "u", DIGEST)


def test_reading_beyond_an_upload_is_a_storage_failure(spool):
    send(spool, 0, DATA)
    spool.commit(SESSION, "u", DIGEST)
    with pytest.raises(ServiceError) as caught:
        spool.read_upload(SESSION, DIGEST, 0, len(DATA) + 1)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    with pytest.raises(ServiceError) as caught:
        spool.read_upload(SESSION, OTHER, 0, 1)
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_payload_and_sum_are_read_in_ranges(spool):
    assert spool.read(SESSION, PAYLOAD, 0, 10) is None
    spool.put(SESSION, PAYLOAD, b"payload")
    spool.put(SESSION, PAYLOAD, b"payload")
    with pytest.raises(ServiceError, match="with other bytes"):
        spool.put(SESSION, PAYLOAD, b"another")
    spool.put(SESSION, SUM, b"")
    assert spool.read(SESSION, PAYLOAD, 3, 2) == (b"lo", 7)
    assert spool.read(SESSION, PAYLOAD, 100, 2) == (b"", 7)
    assert spool.read(SESSION, SUM, 0, 10) == (b"", 0)
    assert spool.read(OTHER, PAYLOAD, 0, 10) is None


def test_uploads_are_removed_first_and_then_the_whole_session(spool):
    spool.put(SESSION, SUM, b"sum")
    send(spool, 0, DATA)
    spool.commit(SESSION, "u", DIGEST)
    send(spool, 0, DATA[:5], sender="v", digest=OTHER)
    assert spool.session_ids() == (SESSION,)
    spool.drop_uploads(SESSION)
    spool.drop_uploads(SESSION)
    assert not is_stored(spool)
    assert spool.received(SESSION, "v") == 0
    assert spool.read(SESSION, SUM, 0, 10) == (b"sum", 3)
    spool.remove(SESSION)
    spool.remove(SESSION)
    assert spool.session_ids() == ()


# --- what only a disk can do ----------------------------------------------------------


def test_an_upload_continues_after_a_restart(tmp_path):
    send(disk_spool(tmp_path), 0, DATA[:1000])
    second = disk_spool(tmp_path)
    assert second.received(SESSION, "u") == 1000
    send(second, 1000, DATA[1000:])
    second.commit(SESSION, "u", DIGEST)
    third = disk_spool(tmp_path)
    assert third.read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA


def test_no_file_name_is_chosen_by_a_sender(tmp_path):
    spool = disk_spool(tmp_path)
    send(spool, 0, DATA[:10], sender="../../../../etc/passwd")
    inside = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in inside] == ["000000000000"]
    assert not any("passwd" in str(path) for path in inside)


def test_a_full_disk_rejects_uploads_with_a_retry_hint(tmp_path, monkeypatch):
    spool = disk_spool(tmp_path, min_free_bytes=1000)
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil's
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 999 + len(DATA)))
    with pytest.raises(ServiceError, match="does not fit") as caught:
        send(spool, 0, DATA[:10])
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert caught.value.retry_after_seconds is not None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1000 + len(DATA)))
    send(spool, 0, DATA[:10])


def test_a_failed_write_leaves_a_resumable_upload(tmp_path, monkeypatch):
    spool = disk_spool(tmp_path)
    send(spool, 0, DATA[:10])
    real_write = os.write

    def write(descriptor, data):
        if len(data) == len(DATA) - 13:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data[:3])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ServiceError, match="No space left") as caught:
        send(spool, 10, DATA[10:])
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    monkeypatch.undo()
    assert spool.received(SESSION, "u") == 10
    send(spool, 10, DATA[10:])
    spool.commit(SESSION, "u", DIGEST)
    assert not list(tmp_path.rglob(".*"))


def test_two_processes_accept_chunks_of_one_upload(tmp_path):
    one, other = disk_spool(tmp_path), disk_spool(tmp_path)
    assert send(one, 0, DATA[:1000]) == 1000
    assert send(other, 1000, DATA[1000:2000]) == 2000
    assert send(one, 1000, DATA[1000:2000]) == 2000
    # Its answer was lost, and the sender continues elsewhere with other cuts.
    assert send(one, 1500, DATA[1500:]) == len(DATA)
    other.commit(SESSION, "u", DIGEST)
    one.commit(SESSION, "u", DIGEST)
    assert one.read_upload(SESSION, DIGEST, 990, 1020) == DATA[990:2010]


def test_a_chunk_stored_by_another_process_meanwhile_is_not_replaced(
    tmp_path, monkeypatch
):
    one, other = disk_spool(tmp_path), disk_spool(tmp_path)
    seen = one._arrived(SESSION, "u")
    send(other, 0, DATA[:10])
    with monkeypatch.context() as late:
        late.setattr(one, "_arrived", lambda *_: seen)
        late.setattr(one, "received", other.received)
        assert send(one, 0, DATA[:500]) == 10
    send(one, 10, DATA[10:])
    one.commit(SESSION, "u", DIGEST)


def test_an_accepted_upload_survives_a_concurrent_one_of_its_sender(tmp_path):
    """Two digests at once, each at another process, so that neither sees the other."""
    one, other = disk_spool(tmp_path), disk_spool(tmp_path)
    seen, wrong = other._arrived(SESSION, "u"), b"\x00" * 32
    send(one, 0, DATA[:10])
    send(one, 10, DATA[10:])
    one.commit(SESSION, "u", DIGEST)
    other._arrived = lambda *_: seen
    send(other, 0, DATA[:10], digest=wrong)
    del other._arrived
    with pytest.raises(ServiceError):
        other.commit(SESSION, "u", wrong)
    assert disk_spool(tmp_path).read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA


def test_an_object_is_synced_before_it_is_linked(tmp_path, monkeypatch):
    spool, synced, linked = disk_spool(tmp_path), set(), []
    real_sync, real_link = os.fsync, os.link

    def note_sync(descriptor):
        real_sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def note_link(source, target):
        linked.append(source.stat().st_ino)
        assert linked[-1] in synced
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    send(spool, 0, DATA[:10])
    send(spool, 10, DATA[10:])
    spool.commit(SESSION, "u", DIGEST)
    spool.put(SESSION, SUM, b"sum")
    send(spool, 0, b"1", sender="v", digest=hashlib.sha256(b"1").digest(), total_size=1)
    assert len(linked) == 5
    # And every directory that says where they are.
    home = tmp_path / "spool" / SESSION.hex()
    for directory in (home.parent, home, *(p for p in home.rglob("*") if p.is_dir())):
        assert directory.stat().st_ino in synced


def test_an_unusable_spool_directory_is_reported(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ServiceError, match="file") as caught:
        UploadSpool(FileBlobs(tmp_path / "file" / "spool"))
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_a_spool_can_be_sent_to_a_worker(tmp_path):
    spool = disk_spool(tmp_path)
    spool.put(SESSION, SUM, b"sum")
    copy = pickle.loads(pickle.dumps(spool))
    assert copy.read(SESSION, SUM, 0, 10) == (b"sum", 3)


def test_an_equal_digest_does_not_make_other_bytes_valid(spool):
    send(spool, 0, DATA)
    spool.commit(SESSION, "u", DIGEST)
    with pytest.raises(ServiceError):
        send(spool, 0, DATA[::-1], sender="v")  # with the digest of the other's bytes
    send(spool, 0, DATA[:10], sender="v")
    send(spool, 10, DATA[:-11:-1] + DATA[20:], sender="v")
    with pytest.raises(ServiceError) as caught:
        spool.commit(SESSION, "v", DIGEST)
    assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
    assert spool.read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA
    send(spool, 0, DATA, sender="w")
    spool.commit(SESSION, "w", DIGEST)
    assert spool.read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA


@pytest.mark.parametrize("name", ["lost+found", "z" * 64, "A" * 64])
def test_a_file_of_no_session_is_left_alone_and_named(tmp_path, caplog, name):
    spool = disk_spool(tmp_path)
    spool.put(SESSION, PAYLOAD, b"query")
    (tmp_path / "spool" / name).write_bytes(b"of another program")
    assert spool.session_ids() == (SESSION,)
    assert name in caplog.text
    assert (tmp_path / "spool" / name).exists()


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_missing_or_truncated_upload_can_be_sent_again(chunks, tmp_path):
    spool, cut = disk_spool(tmp_path), len(DATA) // chunks
    for offset in range(0, len(DATA), cut):
        send(spool, offset, DATA[offset : offset + cut])
    spool.commit(SESSION, "u", DIGEST)
    other = hashlib.sha256(b"never sent").digest()
    assert spool.missing_uploads(SESSION, {DIGEST, other}, len(DATA)) == {other}
    assert not is_stored(spool, beyond=1)
    files = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert len(files) == (1 if chunks == 1 else chunks + 1)
    for path in files:
        content = path.read_bytes()
        path.unlink()
        for found in (spool, disk_spool(tmp_path)):
            assert not is_stored(found)
        path.write_bytes(content[:-1])
        for found in (spool, disk_spool(tmp_path)):
            assert not is_stored(found)
        path.write_bytes(content)
        assert is_stored(spool)
    shutil.rmtree(tmp_path / "spool")
    (tmp_path / "spool").mkdir()
    assert not is_stored(spool)
    for offset in range(0, len(DATA), cut):
        send(spool, offset, DATA[offset : offset + cut])
    spool.commit(SESSION, "u", DIGEST)
    assert is_stored(spool)
    assert spool.read_upload(SESSION, DIGEST, 0, len(DATA)) == DATA
