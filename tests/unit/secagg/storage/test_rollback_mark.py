"""A restored, copied or exchanged store is detected before it answers."""

import asyncio
import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.storage.change import (
    Change,
    Committed,
    MissedRecords,
    NewSession,
    Record,
    Side,
)
from secagg.storage.changes import PutTask, Touch
from secagg.storage.open_store import open_state, open_store
from secagg.storage.queries import ListSessions, LoadSession, ReadTally
from secagg.storage.rollback_mark import (
    SLOT_BYTES,
    Mark,
    RollbackMark,
    default_mark,
    lock_of,
    refuse_restored,
)
from secagg.storage.rows import Task, TaskState
from secagg.storage.sqlite import file as sqlite_file


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "elsewhere" / "mark"


def opening(state, mark, **options):
    return open_store(f"sqlite:{state}/store.db", mark=mark, **options)


# In Unix seconds: no task has had as many sessions.
YEAR_2020 = 1_577_836_800


async def begin(store, key="a", number=1, role=Side.CLIENT):
    create = NewSession(role=role, task="task", number=number, header=b"h")
    return await store.commit(Change(key=key, create=create))


async def step(store, at, key="a", **more):
    return await store.commit(
        Change(key=key, expect=at.sequence, previous=at.chain, **more)
    )


def record(number):
    return Record(number, None, b"body")


async def used_store(state, mark):
    """A store that was used and closed; return the position of its session."""
    store = await opening(state, mark)
    at = await begin(store)
    await store.close()
    return at


async def assert_refused(state, mark, complaint):
    with pytest.raises(ServiceError, match=complaint) as caught:
        await opening(state, mark)
    assert caught.value.code is ErrorCode.RESTORED_STATE
    assert "no peer" in str(caught.value)
    assert "start again" in caught.value.next_step
    assert "accept the risk explicitly" in caught.value.next_step


def generation(mark):
    return RollbackMark(mark).read().generation


def padded(mark):
    return mark.encode().ljust(SLOT_BYTES, b"\0")


def slots(data):
    return data[:SLOT_BYTES], data[SLOT_BYTES:]


def flipped(data, position):
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


async def test_an_unchanged_store_opens_again(state, mark):
    at = await used_store(state, mark)
    for _ in range(2):
        store = await opening(state, mark)
        assert (await store.read(LoadSession("a"))).sequence == at.sequence
        assert not (await store.read(LoadSession("a"))).restored
        await store.close()


async def test_a_restored_directory_is_rejected(state, mark, tmp_path):
    at = await used_store(state, mark)
    shutil.copytree(state, tmp_path / "backup")
    store = await opening(state, mark)
    await step(store, at, records=(record(1),))
    await store.close()
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    await assert_refused(state, mark, "an older state was restored")


async def test_a_store_on_another_machine_is_rejected(state, mark, tmp_path):
    await used_store(state, mark)
    await assert_refused(state, tmp_path / "another machine" / "mark", "is missing")


async def test_a_replaced_or_recreated_store_is_rejected(state, mark, tmp_path):
    await used_store(state, mark)
    (tmp_path / "new").mkdir()
    await assert_refused(tmp_path / "new", mark, "belongs to another state")


async def test_a_damaged_mark_is_rejected(state, mark):
    await used_store(state, mark)
    data = mark.read_bytes()
    first, second = slots(data)
    another = padded(Mark(bytes(8), 0))
    for position in (0, 15, 31):
        both = flipped(flipped(data, position), SLOT_BYTES + position)
        for content in (both, first[:31], another + second, b""):
            mark.write_bytes(content)
            await assert_refused(state, mark, "is damaged")
    mark.write_bytes(data)
    await (await opening(state, mark)).close()


async def test_half_a_mark_accepts_nothing_that_a_whole_one_rejects(
    state, mark, tmp_path
):
    """A lost slot may have held a higher generation than the other."""
    at = await used_store(state, mark)
    shutil.copytree(state, tmp_path / "backup")
    store = await opening(state, mark)
    for number in (1, 2):
        at = await step(store, at, records=(record(number),))
    await store.close()
    data = mark.read_bytes()
    newest = RollbackMark(mark).read()
    newer, older = sorted(
        (0, SLOT_BYTES), key=lambda at: -Mark.decode(data[at : at + 32]).generation
    )
    # The newer is lost: the store may be as far as it was, and no less.
    for lost in (flipped(data, newer + 8), data[:newer] if newer else b"?" + data[1:]):
        mark.write_bytes(lost)
        assert RollbackMark(mark).read() == newest
        await (await opening(state, mark)).close()
        await assert_refused(tmp_path / "backup", mark, "older state was restored")
    # The older is lost: who can say that it was the older one?
    mark.write_bytes(flipped(data, older + 20))
    await assert_refused(state, mark, "half of the mark is damaged")


async def test_a_new_store_that_never_committed_needs_no_mark(state, mark):
    store = await opening(state, mark)
    await store.close()
    mark.unlink()
    await (await opening(state, mark)).close()


async def test_the_mark_exists_before_the_first_commit(state, mark):
    """Else a crash right after that commit would look like a copied store."""
    store = await opening(state, mark)
    assert generation(mark) == 0
    await store.close()


async def test_the_mark_is_written_after_every_commit_before_its_answer(state, mark):
    store = await opening(state, mark)
    at = await begin(store)
    assert generation(mark) == 1
    await step(store, at, records=(record(1),))
    assert generation(mark) == 2
    # Nothing was written, so nothing has to be remembered.
    assert isinstance(await step(store, at), MissedRecords)
    await store.read(LoadSession("a"))
    assert generation(mark) == 2
    # A touch writes like any commit: it finds a mark that cannot be kept, too.
    await store.commit(Touch())
    assert generation(mark) == 3
    await store.close()


async def test_one_mark_is_written_per_batch(state, mark, monkeypatch):
    store = await opening(state, mark)
    written = []
    write = RollbackMark.write
    monkeypatch.setattr(
        RollbackMark, "write", lambda self, m: written.append(m) or write(self, m)
    )
    await asyncio.gather(*(begin(store, str(n), n) for n in range(1, 51)))
    assert len(written) == 1
    await store.close()


async def test_a_crash_between_commit_and_mark_is_harmless(
    state, mark, tmp_path, monkeypatch
):
    at = await used_store(state, mark)
    store = await opening(state, mark)

    def crash(*_):
        shutil.copytree(state, tmp_path / "as it was")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("secagg.storage.rollback_mark._write_durably", crash)
        with pytest.raises(ServiceError):
            await step(store, at, records=(record(1),))
    await store.close()
    # The store is ahead of its mark; no process has heard of the record.
    survivor = await opening(tmp_path / "as it was", mark)
    stored = await survivor.read(LoadSession("a"))
    assert stored.records == (record(1),)
    assert not stored.restored
    await survivor.close()


@pytest.mark.parametrize("how", ["_write_durably", "_write_slot"])
async def test_a_full_disk_for_the_mark_fails_the_commit(state, mark, monkeypatch, how):
    at = await used_store(state, mark)
    store = await opening(state, mark)
    if how == "_write_slot":  # only the first is written to a new file
        at = await step(store, at, records=(record(0),))
    before = mark.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(f"secagg.storage.rollback_mark.{how}", full)
        with pytest.raises(ServiceError, match="No space left") as caught:
            await step(store, at, records=(record(1),))
        assert caught.value.code is ErrorCode.STORAGE_FAILED
        assert "free space" in caught.value.next_step
        assert mark.read_bytes() == before
        # Whatever is read now might be told to a client: nothing is.
        with pytest.raises(ServiceError, match="No space left"):
            await store.read(LoadSession("a"))
        with pytest.raises(ServiceError, match="No space left"):
            await step(store, at)
    # Nothing is known, so it is loaded and checked again: it was stored after all.
    stored = await store.read(LoadSession("a"))
    assert mark.read_bytes() != before
    assert stored.records[-1] == record(1)
    assert isinstance(await step(store, stored, records=(record(2),)), Committed)
    assert sorted(each.name for each in mark.parent.iterdir()) == ["mark", "mark.lock"]
    await store.close()


async def test_accepting_a_restored_store_marks_its_open_sessions_permanently(
    state, mark, tmp_path
):
    store = await opening(state, mark)
    open_at = await begin(store)
    over = await begin(store, "over", 2)
    await step(store, over, "over", end=b"receipt")
    await store.close()
    shutil.copytree(state, tmp_path / "backup")
    store = await opening(state, mark)
    await step(store, open_at, records=(record(1),))
    await store.close()
    shutil.copytree(tmp_path / "backup", state, dirs_exist_ok=True)

    await assert_refused(state, mark, "older state")
    accepted = await opening(state, mark, accept_restored=True)
    assert (await accepted.read(LoadSession("a"))).restored
    assert not (await accepted.read(LoadSession("over"))).restored
    await begin(accepted, "new", 3)
    await accepted.close()

    later = await opening(state, mark)
    assert (await later.read(LoadSession("a"))).restored
    assert not (await later.read(LoadSession("new"))).restored
    (new, a) = await later.read(ListSessions(role=Side.CLIENT))
    assert (new.restored, a.restored) == (False, True)
    await step(later, open_at, records=(record(2),))
    assert (await later.read(LoadSession("a"))).restored  # until it ends
    await later.close()


async def test_a_restored_server_skips_session_numbers_that_clients_may_have_seen(
    state, mark
):
    store = await opening(state, mark)
    await begin(store, "server", 5, Side.SERVER)
    await begin(store, "client", 5)
    await store.close()
    accepted = await opening(state, mark, accept_restored=True)
    at_server = await accepted.read(ReadTally(Side.SERVER, "task"))
    assert at_server.highest_number > YEAR_2020
    forgotten = await accepted.read(ReadTally(Side.SERVER, "a task after the backup"))
    assert forgotten.highest_number > YEAR_2020
    # A client does not number sessions: it would wait for those numbers for ever.
    assert (await accepted.read(ReadTally(Side.CLIENT, "task"))).highest_number == 5
    await accepted.close()


async def test_an_accepted_store_invalidates_its_original(state, mark, tmp_path):
    """The one it was copied from, longer as it may be, fits the mark no more."""
    at = await used_store(state, mark)
    shutil.copytree(state, tmp_path / "original")
    original_mark = tmp_path / "original mark" / "mark"
    original_mark.parent.mkdir()
    shutil.copy(mark, original_mark)
    await (await opening(state, mark, accept_restored=True)).close()
    original = await opening(tmp_path / "original", original_mark)
    for number in range(9):
        at = await step(original, at, records=(record(number),))
    await original.close()
    await assert_refused(tmp_path / "original", mark, "belongs to another state")


async def test_an_interrupted_acceptance_is_rejected_again(
    state, mark, tmp_path, monkeypatch
):
    await used_store(state, mark)
    shutil.copytree(state, tmp_path / "backup")
    await (await opening(state, mark, accept_restored=True)).close()
    shutil.copytree(tmp_path / "backup", state, dirs_exist_ok=True)
    before = mark.read_bytes()

    def crash(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("secagg.storage.sqlite.file.mark_restored", crash)
        with pytest.raises(ServiceError):
            await opening(state, mark, accept_restored=True)
    assert mark.read_bytes() == before
    await assert_refused(state, mark, "belongs to another state")


async def test_two_copies_of_one_store_never_run_concurrently(
    state, mark, tmp_path, monkeypatch
):
    """Else both would answer, each in its way, from the same position."""
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_SECONDS", 0.0)
    at = await used_store(state, mark)
    copy = tmp_path / "copy"
    shutil.copytree(state, copy)
    first = await opening(state, mark)
    with pytest.raises(ServiceError, match="with a copy of it") as caught:
        await opening(copy, mark)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "Stop the other process" in caught.value.next_step
    # Accepting what was restored does not stop a process that still runs, either.
    with pytest.raises(ServiceError, match="is in use"):
        await opening(copy, mark, accept_restored=True)
    await step(first, at, records=(record(1),))
    await first.close()
    await assert_refused(copy, mark, "an older state was restored")


async def test_a_start_waits_for_a_copy_that_is_closing(state, mark):
    await used_store(state, mark)
    going = RollbackMark(mark)
    going.hold(wait_seconds=0.0)
    waiting = asyncio.create_task(opening(state, mark))
    await asyncio.sleep(0)
    going.release()
    await (await waiting).close()


async def test_a_store_that_fails_to_open_releases_the_mark(state, mark):
    await used_store(state, mark)
    right = mark.read_bytes()
    mark.write_bytes(b"")
    await assert_refused(state, mark, "is damaged")
    mark.write_bytes(right)
    await (await opening(state, mark)).close()


@pytest.mark.parametrize("found", ["another", "older", "missing", "damaged"])
async def test_a_mark_exchanged_under_a_running_store_stops_it(state, mark, found):
    store = await opening(state, mark)
    before = mark.read_bytes()
    at = await begin(store)
    if found == "missing":
        mark.unlink()
    else:
        another = 2 * padded(Mark(bytes(8), 9))
        contents = {"another": another, "older": before}
        mark.write_bytes(contents.get(found, b""))
    left = mark.read_bytes() if mark.exists() else None
    for _ in range(2):
        with pytest.raises(ServiceError, match="was replaced while") as caught:
            at = await step(store, at, records=(record(1),))
        assert caught.value.code is ErrorCode.RESTORED_STATE
    assert (mark.read_bytes() if mark.exists() else None) == left
    await store.close()


async def test_a_mark_whose_rename_was_not_synced_is_written_again(mark, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    going = RollbackMark(mark)
    with monkeypatch.context() as patch:
        patch.setattr("secagg.storage.rollback_mark.sync_directory", fail)
        with pytest.raises(ServiceError, match="cannot be written"):
            going.write(Mark(bytes(8), 0))
    assert generation(mark) == 0
    synced = []
    monkeypatch.setattr("secagg.storage.rollback_mark.sync_directory", synced.append)
    going.write(Mark(bytes(8), 3))
    assert synced == [mark.parent]
    assert generation(mark) == 3


@pytest.mark.parametrize("arrived", [0, 9, 20, 32, SLOT_BYTES])
async def test_a_mark_that_did_not_reach_the_disk_is_written_again(
    state, mark, monkeypatch, arrived
):
    """Half a mark of this process's own is no mark that an operator has put there."""
    store = await opening(state, mark)
    await begin(store)

    def fail(descriptor, place, new):
        os.pwrite(descriptor, padded(new)[:arrived], place * SLOT_BYTES)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("secagg.storage.rollback_mark._write_slot", fail)
        for _ in range(2):
            with pytest.raises(ServiceError, match="cannot be written"):
                await begin(store, "b", 2)
    whole = RollbackMark(mark).read().generation
    assert whole == (1 if arrived in {0, 9} else 2)  # nine bytes of both are the same
    assert await store.read(LoadSession("b")) is not None
    assert generation(mark) == 2
    assert None not in [Mark.decode(each[:32]) for each in slots(mark.read_bytes())]
    await store.close()


async def test_a_rollback_mark_inside_the_state_directory_is_rejected(state):
    for inside in (state / "mark", state / "deeper" / "mark", state / "." / "mark"):
        with pytest.raises(LocalProtocolError) as caught:
            await opening(state, inside)
        assert caught.value.code is ErrorCode.BAD_SETTINGS


async def test_a_store_without_a_mark_is_never_rejected(state, mark):
    await used_store(state, mark)
    await (await opening(state, None)).close()
    await (await open_store("sqlite::memory:")).close()


async def test_an_unreadable_mark_is_a_local_failure(state, mark):
    mark.mkdir(parents=True)
    with pytest.raises(ServiceError, match="cannot be read") as caught:
        await opening(state, mark)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    mark.rmdir()  # nothing is left locked
    await (await opening(state, mark)).close()


def test_a_mark_round_trips_and_damaged_bytes_are_rejected(mark):
    wanted = Mark(b"8 bytes.", 2**40)
    assert RollbackMark(mark).read() is None
    RollbackMark(mark).write(wanted)
    assert RollbackMark(mark).read() == wanted
    assert mark.stat().st_mode & 0o777 == 0o600
    assert Mark.decode(wanted.encode()[:-1]) is None
    assert Mark.decode(wanted.encode() + b"\0") is None


def test_a_mark_is_synced_before_and_after_its_rename(mark, monkeypatch):
    steps = []
    fsync, replace = os.fsync, type(mark).replace
    monkeypatch.setattr(os, "fsync", lambda fd: steps.append("sync") or fsync(fd))
    monkeypatch.setattr(
        type(mark), "replace", lambda *a: steps.append("rename") or replace(*a)
    )
    RollbackMark(mark).write(Mark(bytes(8), 1))
    assert steps == ["sync", "rename", "sync"]


def test_a_continued_mark_is_one_synchronous_write(mark, monkeypatch):
    going = RollbackMark(mark)
    going.write(Mark(bytes(8), 1))
    file = mark.stat().st_ino
    opened, written = [], []
    os_open, pwrite = os.open, os.pwrite
    monkeypatch.setattr(
        os, "open", lambda p, flags, *a: opened.append(flags) or os_open(p, flags, *a)
    )
    monkeypatch.setattr(
        os, "pwrite", lambda *a: written.append((len(a[1]), a[2])) or pwrite(*a)
    )
    for number in (2, 3, 4):
        going.write(Mark(bytes(8), number))
        assert generation(mark) == number
    assert [flags & os.O_DSYNC for flags in opened[::2]] == [os.O_DSYNC] * 3
    # One slot after the other, never the one that counts.
    places = [(SLOT_BYTES, SLOT_BYTES), (SLOT_BYTES, 0), (SLOT_BYTES, SLOT_BYTES)]
    assert written == places
    assert (mark.stat().st_ino, mark.stat().st_size) == (file, 2 * SLOT_BYTES)


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_mark_truncated_anywhere_states_at_least_the_last_sent_generation(
    mark, writes
):
    """Whatever arrives of a write, in whatever order: what was sent stays known.

    Counts of commits that are far apart: a slot that was lost makes up for one.
    """
    store_id = bytes(range(8))
    going = RollbackMark(mark)
    for number in range(1, writes + 1):
        going.write(Mark(store_id, 1000 * number))
    sent, cut = Mark(store_id, 1000 * writes), Mark(store_id, 1000 * (writes + 1))
    before = mark.read_bytes()
    going.write(cut)
    after = mark.read_bytes()
    at = writes % 2 * SLOT_BYTES  # of the slot that was written
    end = at + SLOT_BYTES
    assert before[:at] + after[at:end] + before[end:] == after
    for cut_at in range(at, at + 33):
        for content in (
            after[:cut_at] + before[cut_at:],
            before[:cut_at] + after[cut_at:],
            after[:cut_at] + bytes(end - cut_at) + after[end:],
        ):
            mark.write_bytes(content)
            found = RollbackMark(mark).read()
            assert found in (sent, Mark(store_id, sent.generation + 1), cut)
            # The commit came before the write: its store is let in.
            refuse_restored(cut, found, mark)
            with pytest.raises(ServiceError, match="older state was restored"):
                refuse_restored(Mark(store_id, sent.generation - 1), found, mark)
            # And the next one is written over what was cut.
            survivor = RollbackMark(mark)
            survivor.read()
            survivor.write(Mark(store_id, cut.generation + 1))
            assert generation(mark) == cut.generation + 1


def test_the_first_mark_of_a_process_replaces_the_file(mark):
    """What it has found may be in memory only, and the other slot all that lasts."""
    going = RollbackMark(mark)
    for number in (1, 2):
        going.write(Mark(bytes(8), number))
    before, file = mark.read_bytes(), mark.stat().st_ino
    survivor = RollbackMark(mark)
    survivor.read()
    kept = mark.with_name("kept")
    kept.hardlink_to(mark)
    survivor.write(Mark(bytes(8), 3))
    assert kept.read_bytes() == before
    assert mark.stat().st_ino != file
    first, second = slots(mark.read_bytes())
    assert first == second == padded(Mark(bytes(8), 3))
    survivor.write(Mark(bytes(8), 4))
    assert slots(mark.read_bytes())[0] == first


def test_an_unreadable_block_of_a_mark_counts_as_a_lost_slot(mark, monkeypatch):
    going = RollbackMark(mark)
    for number in (1, 2):
        going.write(Mark(bytes(8), number))
    pread, broken = os.pread, SLOT_BYTES

    def read(descriptor, size, offset):
        if offset == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", read)
    assert generation(mark) == 2
    survivor = RollbackMark(mark)
    survivor.read()
    survivor.write(Mark(bytes(8), 3))
    broken = None
    assert generation(mark) == 3


def test_a_mark_of_a_renamed_or_shorter_store_replaces_both_slots(mark):
    going = RollbackMark(mark)
    for new in (Mark(bytes(8), 9), Mark(bytes(range(8)), 1), Mark(bytes(range(8)), 0)):
        going.write(new)
        assert RollbackMark(mark).read() == new
        first, second = slots(mark.read_bytes())
        assert first == second


def test_the_default_mark_of_a_directory_lies_outside_it_and_is_unique(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first, second = default_mark(tmp_path / "a"), default_mark(tmp_path / "b")
    assert first != second
    assert first == default_mark(tmp_path / "b" / ".." / "a")
    assert first.is_relative_to(tmp_path / "state" / "secagg")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_mark(tmp_path).is_relative_to(Path.home() / ".local" / "state")


async def test_a_state_directory_has_a_mark_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    state = tmp_path / "state"
    store = await open_state(state)
    await store.commit(PutTask(Task("t", TaskState.RUNNING, "", b""), expect_version=0))
    await store.close()
    await (await open_state(state)).close()
    copy = tmp_path / "copied" / "state"
    shutil.copytree(state, copy)
    with pytest.raises(ServiceError) as caught:
        await open_state(copy)
    assert caught.value.code is ErrorCode.RESTORED_STATE
    shutil.rmtree(state)
    with pytest.raises(ServiceError) as caught:
        await open_state(state)
    assert caught.value.code is ErrorCode.RESTORED_STATE


def test_no_two_processes_hold_a_mark_while_one_deletes_it(mark):
    """One that has opened the lock and waits holds the same lock as the next one."""
    going = RollbackMark(mark)
    going.write(Mark(bytes(8), 1))
    going.hold(wait_seconds=0)
    going.release()
    waiting = os.open(lock_of(mark), os.O_RDWR)
    assert RollbackMark(mark).delete_mark()
    assert not mark.exists()
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(ServiceError, match="is in use"):
        RollbackMark(mark).hold(wait_seconds=0)
    os.close(waiting)
    assert not RollbackMark(mark).delete_mark()


def test_checks_before_deleting_a_mark_run_under_its_lock(mark):
    RollbackMark(mark).write(Mark(bytes(8), 1))

    def check():
        with pytest.raises(ServiceError, match="is in use"):
            RollbackMark(mark).hold(wait_seconds=0)
        raise LocalProtocolError("there is a state")

    with pytest.raises(LocalProtocolError):
        RollbackMark(mark).delete_mark(check=check)
    assert RollbackMark(mark).read() == Mark(bytes(8), 1)
