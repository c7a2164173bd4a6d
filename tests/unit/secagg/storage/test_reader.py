"""Looking into a store that no process has open."""

import sqlite3
from contextlib import closing

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.changes import PutTask
from secagg.storage.open_store import StoreInUseError, open_store, reading
from secagg.storage.queries import (
    FindFaults,
    ListCharges,
    ListSessions,
    ListTasks,
    LoadSession,
    ReadTally,
)
from secagg.storage.rows import SessionState, Task, TaskState
from secagg.storage.store import StateDamagedError, StoreNotFoundError

TASK = Task("t", TaskState.PAUSED, "{}", b"plan", "enough for today")


async def written(path):
    store = await open_store(f"sqlite:{path}")
    await store.commit(PutTask(TASK, expect_version=0))
    new = NewSession(role=Side.SERVER, task="t", number=1, header=b"h")
    await store.commit(Change(key="server/1", create=new, round=1))
    return store


async def test_a_reader_sees_the_content_of_the_store_and_changes_nothing(tmp_path):
    path = tmp_path / "store.sqlite3"
    store = await written(path)
    known = (
        await store.read(ListTasks()),
        await store.read(ListSessions(role=Side.SERVER)),
    )
    await store.close()
    before = path.read_bytes()
    with reading(path) as reader:
        seen = (
            await reader.read(ListTasks()),
            await reader.read(ListSessions(role=Side.SERVER)),
        )
        assert (await reader.read(LoadSession("server/1"))).header == b"h"
        assert await reader.read(FindFaults()) == ()
        assert await reader.read(ListCharges("t")) == ()
        assert (await reader.read(ReadTally(Side.SERVER, "t"))).highest_number == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection._database.execute("DELETE FROM task")
    assert seen == known
    assert path.read_bytes() == before
    # And the next process finds no other in the way.
    store = await open_store(f"sqlite:{path}")
    assert (await store.read(ListTasks()))[0].task == TASK
    await store.close()


async def test_a_store_that_is_in_use_is_not_read(tmp_path):
    store = await written(tmp_path / "store.sqlite3")
    with (
        pytest.raises(StoreInUseError) as caught,
        reading(tmp_path / "store.sqlite3"),
    ):
        pass
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    await store.close()


async def test_a_missing_or_foreign_store_is_reported(tmp_path):
    missing = tmp_path / "store.sqlite3"
    with pytest.raises(ServiceError, match="no state exists"), reading(missing):
        pass
    assert list(tmp_path.iterdir()) == []
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE t (x)")
    with (
        pytest.raises(ServiceError, match="not a store of this program"),
        reading(other),
    ):
        pass


async def test_a_changed_row_is_detected_by_a_reader(tmp_path):
    path = tmp_path / "store.sqlite3"
    await (await written(path)).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE task SET reason = 'nothing'")
        database.commit()
    with reading(path) as reader:
        with pytest.raises(StateDamagedError, match="'task'"):
            await reader.read(ListTasks())
        (found,) = await reader.read(FindFaults())
        assert "task" in found.complaint
        assert (
            await reader.read(ListSessions(role=Side.SERVER, state=SessionState.ENDED))
            == ()
        )


def test_only_a_missing_or_empty_file_counts_as_no_store(tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite3"
    with pytest.raises(StoreNotFoundError), reading(path):
        pass
    path.touch()
    with pytest.raises(StoreNotFoundError), reading(path):
        pass
    path.unlink()
    path.mkdir()
    with pytest.raises(ServiceError, match="it is not a file") as caught, reading(path):
        pass
    assert caught.value.code is ErrorCode.STORAGE_FAILED

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "stat", refused)
    with pytest.raises(ServiceError, match="denied") as caught, reading(path):
        pass
    assert caught.value.code is ErrorCode.STORAGE_FAILED
