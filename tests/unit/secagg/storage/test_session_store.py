"""One suite for both stores: whoever passes it can stand behind the runtime."""

import sqlite3

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.base import NumberClaim, Role
from secagg.storage.memory import MemorySessionStore
from secagg.storage.sqlite import SQLiteSessionStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemorySessionStore()
        return
    sqlite_store = SQLiteSessionStore(tmp_path / "state.db")
    yield sqlite_store
    sqlite_store.close()


def assert_storage_failed(caught):
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_records_come_back_in_order(store):
    store.create("a", Role.SERVER, b"header")
    store.append("a", 0, [b"one"])
    store.append("a", 1, [b"two", b"three"])
    stored = store.load("a")
    assert stored.header == b"header"
    assert stored.records == (b"one", b"two", b"three")
    assert not stored.ended


def test_an_unknown_session_loads_as_none(store):
    assert store.load("nobody") is None


@pytest.mark.parametrize("sequence", [0, 2])
def test_a_second_writer_is_refused_and_changes_nothing(store, sequence):
    store.create("a", Role.SERVER, b"")
    store.append("a", 0, [b"one"])
    with pytest.raises(ServiceError, match="numbered") as caught:
        store.append("a", sequence, [b"other"])
    assert_storage_failed(caught)
    assert store.load("a").records == (b"one",)


def test_appending_to_no_session_is_refused(store):
    with pytest.raises(ServiceError, match="does not exist"):
        store.append("a", 0, [b"one"])


def test_a_session_is_created_once(store):
    store.create("a", Role.SERVER, b"first")
    with pytest.raises(ServiceError) as caught:
        store.create("a", Role.SERVER, b"second")
    assert_storage_failed(caught)
    assert store.load("a").header == b"first"


def test_the_end_scrubs_and_leaves_a_tombstone(store):
    store.create("a", Role.CLIENT, b"header")
    store.append("a", 0, [b"seed"])
    store.end("a", b"tombstone")
    stored = store.load("a")
    assert (stored.header, stored.records) == (b"", ())
    assert stored.summary == b"tombstone"
    assert stored.ended
    with pytest.raises(ServiceError):
        store.append("a", 0, [b"again"])
    with pytest.raises(ServiceError):
        store.create("a", Role.CLIENT, b"again")


def test_ending_twice_keeps_the_first_tombstone(store):
    store.create("a", Role.CLIENT, b"")
    store.end("a", b"first")
    store.end("a", b"second")
    assert store.load("a").summary == b"first"


def test_ending_no_session_is_refused(store):
    with pytest.raises(ServiceError):
        store.end("a", b"")


def test_sessions_are_listed_by_role_and_oldest_first(store):
    for key in ("z", "a", "m"):
        store.create(key, Role.SERVER, b"")
    store.create("mine", Role.CLIENT, b"")
    store.end("a", b"")
    assert store.sessions(Role.SERVER) == ("z", "m")
    assert store.sessions(Role.SERVER, include_ended=True) == ("z", "a", "m")
    assert store.sessions(Role.CLIENT) == ("mine",)


def test_a_session_number_is_claimed_once_and_only_upwards(store):
    assert store.highest_session_number("task") == 0
    store.create("a", Role.CLIENT, b"", claim=NumberClaim("task", 5))
    assert store.highest_session_number("task") == 5
    for number in (5, 4, 1):
        with pytest.raises(ServiceError, match="are taken") as caught:
            store.create(
                f"b{number}", Role.CLIENT, b"", claim=NumberClaim("task", number)
            )
        assert_storage_failed(caught)
        assert store.load(f"b{number}") is None
    store.create("c", Role.CLIENT, b"", claim=NumberClaim("task", 6))
    store.create("d", Role.CLIENT, b"", claim=NumberClaim("other", 1))
    assert store.highest_session_number("task") == 6


def test_a_failed_creation_claims_nothing(store):
    store.create("a", Role.CLIENT, b"")
    with pytest.raises(ServiceError):
        store.create("a", Role.CLIENT, b"", claim=NumberClaim("task", 9))
    assert store.highest_session_number("task") == 0


def test_forgetting_removes_the_tombstone_but_not_the_number(store):
    store.create("a", Role.CLIENT, b"", claim=NumberClaim("task", 5))
    with pytest.raises(ServiceError):
        store.forget("a")
    store.end("a", b"")
    store.forget("a")
    assert store.load("a") is None
    assert store.highest_session_number("task") == 5
    with pytest.raises(ServiceError):
        store.forget("a")


def test_an_empty_summary_is_still_an_end(store):
    store.create("a", Role.CLIENT, b"")
    store.end("a", b"")
    assert store.load("a").ended


# --- what only a file can do ----------------------------------------------------------


def test_everything_is_there_after_reopening(tmp_path):
    path = tmp_path / "state.db"
    first = SQLiteSessionStore(path)
    first.create("a", Role.SERVER, b"h", claim=NumberClaim("task", 3))
    first.append("a", 0, [b"one", b"two"])
    first.close()
    second = SQLiteSessionStore(path)
    assert second.load("a").records == (b"one", b"two")
    assert second.highest_session_number("task") == 3
    second.close()


def test_a_record_is_durable_before_the_store_is_closed(tmp_path):
    path = tmp_path / "state.db"
    store = SQLiteSessionStore(path)
    store.create("a", Role.SERVER, b"h")
    store.append("a", 0, [b"one"])
    # What a kill leaves behind: the files as they are now.
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    (tmp_path / "copy.db-wal").write_bytes((tmp_path / "state.db-wal").read_bytes())
    store.close()
    survivor = SQLiteSessionStore(copy)
    assert survivor.load("a").records == (b"one",)
    survivor.close()


def test_a_second_process_is_kept_out(tmp_path, monkeypatch):
    monkeypatch.setattr("secagg.storage.sqlite.LOCK_TIMEOUT_SECONDS", 0.0)
    first = SQLiteSessionStore(tmp_path / "state.db")
    with pytest.raises(ServiceError, match="locked") as caught:
        SQLiteSessionStore(tmp_path / "state.db")
    assert "Another process" in caught.value.next_step
    first.close()
    SQLiteSessionStore(tmp_path / "state.db").close()


def test_only_the_owner_can_read_the_files(tmp_path):
    store = SQLiteSessionStore(tmp_path / "state.db")
    store.create("a", Role.CLIENT, b"seed")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600}
    store.close()


def test_no_byte_of_a_scrubbed_session_is_left_in_the_files(tmp_path):
    secret = b"\xa5secret seed\x5a" * 3
    store = SQLiteSessionStore(tmp_path / "state.db")
    store.create("a", Role.CLIENT, b"header " + secret)
    store.append("a", 0, [secret, secret * 1000])
    assert any(secret in path.read_bytes() for path in tmp_path.iterdir())
    store.end("a", b"tombstone")
    assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())
    store.close()


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "state.db"
    SQLiteSessionStore(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(ServiceError, match="schema version 2") as caught:
        SQLiteSessionStore(path)
    assert_storage_failed(caught)
    assert "Upgrade" in caught.value.next_step


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"my precious notes\n" * 100)
    with pytest.raises(ServiceError, match="not a database") as caught:
        SQLiteSessionStore(path)
    assert_storage_failed(caught)
    assert path.read_bytes() == b"my precious notes\n" * 100


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(ServiceError, match="absent") as caught:
        SQLiteSessionStore(tmp_path / "absent" / "state.db")
    assert_storage_failed(caught)


def test_a_full_disk_is_named_and_loses_nothing(tmp_path):
    store = SQLiteSessionStore(tmp_path / "state.db")
    store.create("a", Role.SERVER, b"")
    store.append("a", 0, [b"one"])
    database = store._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    with pytest.raises(ServiceError, match="full") as caught:
        store.append("a", 1, [b"x" * 100_000])
    assert_storage_failed(caught)
    assert "disk space" in caught.value.next_step
    database.execute(f"PRAGMA max_page_count = {pages + 1000}").fetchall()
    store.append("a", 1, [b"two"])
    assert store.load("a").records == (b"one", b"two")
    store.close()
