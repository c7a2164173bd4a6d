"""What only a file can do: survive a kill, keep others out, be scrubbed or damaged."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from secagg_testing import manual_clock
from secagg_testing.damage import damaged_copies
from secagg_testing.inline_store import inline_store
from secagg_testing.power_cut import PowerCut, shares_a_sqlite_library

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import BudgetKey, Charge, Claim, ClaimAdversary
from secagg.storage.change import (
    Change,
    Committed,
    NewSession,
    Record,
    RewrittenSession,
    Side,
)
from secagg.storage.changes import PurgeReceipts, PutClaim, PutTask, RecordRevocations
from secagg.storage.client_store import ClientStore
from secagg.storage.open_store import open_state, open_store
from secagg.storage.queries import (
    FindFaults,
    ListCharges,
    ListClaims,
    ListSessions,
    ListTasks,
    LoadSession,
    ReadRevocations,
    ReadTally,
)
from secagg.storage.rows import Retention, SessionState, Task, TaskState
from secagg.storage.sqlite import file as sqlite_file
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.store import StateDamagedError, unknown_session

# 1500 of each were tried once.
DAMAGED = int(os.environ.get("SECAGG_DAMAGED_COPIES", "300"))
SECRET = b"\xa5secret seed\x5a" * 3

KEY = BudgetKey(trust_domain="domain", aggregator="aggregator", task="task")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "store.db"


@pytest.fixture(autouse=True)
def directory(path):
    path.parent.mkdir()
    return path.parent


def opening(path, **options):
    return open_store(f"sqlite:{path}", **options)


def record(number, body=b"body"):
    return Record(1, f"client {number}", body)


async def begin(store, key="a", number=1, header=b"header", **more):
    create = NewSession(role=Side.SERVER, task="task", number=number, header=header)
    return await store.commit(Change(key=key, create=create, **more))


async def step(store, at, key="a", **more):
    return await store.commit(
        Change(key=key, expect=at.sequence, previous=at.chain, **more)
    )


def contains(directory, secret):
    return any(secret in path.read_bytes() for path in directory.iterdir())


def copy_as_after_a_kill(path, target):
    """Copy the files as they are now, which is what a kill leaves behind."""
    target.mkdir()
    for file in path.parent.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target / path.name


# --- durability -----------------------------------------------------------------------


async def test_everything_is_stored_after_reopening(path):
    first = await opening(path)
    at = await begin(first, records=(record(1), record(2)))
    charge = Charge(
        budget=KEY,
        session_id=b"s",
        noise_digest=b"n",
        allowed=1,
        refunds=1,
    )
    at = await step(first, at, charge=charge, spend=True)
    await first.commit(
        PutTask(Task("task", TaskState.PAUSED, "settings", b"plan"), expect_version=0)
    )
    seen = (
        await first.read(LoadSession("a")),
        await first.read(ListCharges("task")),
        await first.read(ListTasks()),
    )
    await first.close()
    second = await opening(path)
    assert seen == (
        await second.read(LoadSession("a")),
        await second.read(ListCharges("task")),
        await second.read(ListTasks()),
    )
    assert isinstance(await step(second, at, records=(record(3),)), Committed)
    await second.close()


async def test_a_change_is_durable_before_the_store_is_closed(path, tmp_path):
    store = await opening(path)
    await begin(store, records=(record(1),))
    copy = copy_as_after_a_kill(path, tmp_path / "copy")
    await store.close()
    survivor = await opening(copy)
    assert (await survivor.read(LoadSession("a"))).records == (record(1),)
    await survivor.close()


WRITER = """
import asyncio, sys
from secagg.storage.change import Change, NewSession, Record, Side
from secagg.storage.open_store import open_store

async def main(url):
    store = await open_store(url)
    create = NewSession(role=Side.SERVER, task="task", number=1, header=b"h")
    at = await store.commit(Change(key="a", create=create))
    while True:
        records = (Record(1, f"client {at.sequence}", bytes(2000)),)
        at = await store.commit(
            Change(
                key="a", expect=at.sequence, previous=at.chain, records=records
            )
        )
        print(at.sequence, flush=True)

asyncio.run(main(sys.argv[1]))
"""


def test_changes_acknowledged_by_a_killed_process_are_stored(path):
    arguments = [sys.executable, "-c", WRITER, f"sqlite:{path}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        acknowledged = [int(next(writer.stdout)) for _ in range(25)][-1]
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
    acknowledged = int(rest[-1]) if rest else acknowledged

    async def look():
        survivor = await opening(path)
        assert await survivor.read(FindFaults()) == ()
        stored = await survivor.read(LoadSession("a"))
        await survivor.close()
        return stored.sequence

    # One commit at most was under way and not yet acknowledged.
    assert asyncio.run(look()) - acknowledged in (0, 1)


async def test_concurrent_changes_share_one_transaction(path, monkeypatch):
    syncs = []
    writing = sqlite_file.SQLiteFile.writing
    monkeypatch.setattr(
        sqlite_file.SQLiteFile,
        "writing",
        lambda self: syncs.append(threading.current_thread()) or writing(self),
    )
    store = await opening(path)
    await asyncio.gather(*(begin(store, str(n), n) for n in range(1, 101)))
    assert len(syncs) == 1
    assert syncs[0] is not threading.main_thread()
    assert len(await store.read(ListSessions(role=Side.SERVER))) == 100
    await store.close()


async def test_changes_that_arrive_during_a_write_share_the_next_transaction(
    path, monkeypatch
):
    started, may_go_on, transactions = threading.Event(), threading.Event(), []
    writing = sqlite_file.SQLiteFile.writing

    def slowly(self):
        transactions.append(self)
        started.set()
        may_go_on.wait()
        return writing(self)

    monkeypatch.setattr(sqlite_file.SQLiteFile, "writing", slowly)
    store = await opening(path)
    first = asyncio.create_task(begin(store, "1", 1))
    await asyncio.to_thread(started.wait)
    later = []
    for number in range(2, 30):
        later.append(asyncio.create_task(begin(store, str(number), number)))
        for _ in range(5):
            await asyncio.sleep(0)  # turns of the loop: each arrives alone
    may_go_on.set()
    await asyncio.gather(first, *later)
    assert len(transactions) == 2
    await store.close()


class HeldWriter:
    """Stops every transaction where it begins, until it may continue."""

    def __init__(self, monkeypatch):
        self.started, self.may_go_on = threading.Event(), threading.Event()
        writing = sqlite_file.SQLiteFile.writing

        def slowly(file):
            self.started.set()
            self.may_go_on.wait()
            return writing(file)

        monkeypatch.setattr(sqlite_file.SQLiteFile, "writing", slowly)


async def cancel_other_tasks():
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    return await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("is_written", [False, True])
async def test_a_cancelled_caller_cancels_no_other_commit(
    path, monkeypatch, turns, is_written
):
    """As at the end of a loop, which cancels all its tasks at once."""
    store = await opening(path)
    held = HeldWriter(monkeypatch)
    gone = [asyncio.create_task(begin(store, str(n), n)) for n in (1, 2)]
    for _ in range(turns):
        await asyncio.sleep(0)
    if is_written and turns:
        await asyncio.to_thread(held.started.wait)
        held.may_go_on.set()
    await cancel_other_tasks()
    held.may_go_on.set()
    assert all(one.done() for one in gone)
    async with asyncio.timeout(60):
        assert isinstance(await begin(store, "later", 3), Committed)
        assert len(await store.read(ListSessions(role=Side.SERVER))) == (
            3 if turns else 1
        )
        await store.close()


def test_a_commit_while_a_loop_ends_is_answered(path):
    answers = []

    async def tidy_up(store):
        try:
            await asyncio.Event().wait()
        finally:
            answers.append(await begin(store, "last", 2))
            await store.close()

    async def main():
        store = await opening(path)
        asyncio.create_task(tidy_up(store))  # noqa: RUF006 - cancelled by the loop
        await begin(store)

    asyncio.run(main())
    assert isinstance(answers[0], Committed)


async def test_a_cancelled_close_releases_the_file(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_SECONDS", 0.0)
    store = await opening(path)
    held = HeldWriter(monkeypatch)
    written = asyncio.create_task(begin(store))
    await asyncio.to_thread(held.started.wait)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    held.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert isinstance(await written, Committed)
    await (await opening(path)).close()


async def test_a_terminated_storage_thread_is_reported_and_no_caller_waits(path):
    thread = ThreadPoolExecutor(1)
    store = await opening(path, thread=thread)
    thread.shutdown()
    for number in (1, 2):
        with pytest.raises(ServiceError, match="is not known") as caught:
            await begin(store, str(number), number)
        assert caught.value.code is ErrorCode.STORAGE_FAILED


async def test_a_commit_that_the_thread_never_began_is_reported_as_unknown(path):
    thread = ThreadPoolExecutor(1)
    store = await opening(path, thread=thread)
    started, may_go_on = threading.Event(), threading.Event()

    def occupy():
        started.set()
        may_go_on.wait()

    busy = thread.submit(occupy)
    started.wait()
    waiting = asyncio.create_task(begin(store))
    for _ in range(3):  # turns of the loop: it is given to the thread
        await asyncio.sleep(0)
    thread.shutdown(wait=False, cancel_futures=True)
    may_go_on.set()
    busy.result()
    with pytest.raises(ServiceError, match="is not known"):
        await waiting


async def test_an_in_memory_store_uses_no_thread_and_little_memory():
    before = threading.active_count()
    store = await open_state(None)
    assert (await begin(store)).sequence == 0
    assert threading.active_count() == before
    database = store.engine.transactions.file.database
    pages = (
        database.execute("PRAGMA page_count").fetchone()[0]
        * database.execute("PRAGMA page_size").fetchone()[0]
    )
    # A thousand of them fit into a process.
    assert pages < 50_000
    await store.close()


def test_a_store_works_without_a_thread_on_a_manual_clock():
    async def main(clock):
        store = await open_store(
            "sqlite::memory:", thread=InlineExecutor(), now=clock.now
        )
        at = await begin(store, deadline_seconds=5.0, round=0)
        await clock.sleep_until(clock.now() + 3600.0)
        closing = await step(store, at, due=True, records=(Record(1, None, b""),))
        await store.close()
        return closing.sequence

    assert manual_clock.run(main) == 1


async def test_no_answer_is_sent_before_the_outer_commit(path, monkeypatch):
    store = await opening(path)
    at = await begin(store)

    def full(_):
        raise sqlite3.OperationalError("database or disk is full")

    # Refused inside its own savepoint or not: all share the fate of the transaction.
    monkeypatch.setattr(sqlite_file.SQLiteFile, "_count_commit", full)
    changes = [step(store, at, records=(record(1),)), step(store, at, "unknown")]
    for answer in await asyncio.gather(*changes, return_exceptions=True):
        assert isinstance(answer, ServiceError)
        assert "full" in str(answer)
    monkeypatch.undo()
    # Nothing is known, so it is loaded, and the same step is taken again.
    assert (await store.read(LoadSession("a"))).sequence == 0
    assert (await step(store, at, records=(record(1),))).sequence == 1
    await store.close()


async def test_a_step_writes_only_changed_columns_and_counts_in_one_statement(path):
    """A column that is written has its indexes written, whatever it holds."""
    store = inline_store(path)
    at = await begin(store)
    said = []
    store.engine.transactions.file.database.set_trace_callback(said.append)
    at = await step(store, at, records=(record(1),))
    await step(store, at, records=(record(2),), deadline_seconds=1.0)
    store.engine.transactions.file.database.set_trace_callback(None)
    written = [each.partition(" = ")[0] for each in said if each.startswith("UPDATE")]
    counted = "UPDATE store SET generation"
    assert written == ["UPDATE session SET sequence", counted] * 2
    columns = ("task", "peer", "number", "receipt", "ended")
    assert not any(f"{column} = " in each for column in columns for each in said[1:])
    assert not any("INTO session" in each for each in said)
    assert sum("generation" in each for each in said) == 2
    await store.close()


async def test_a_rejected_change_writes_nothing(path):
    store = await opening(path)
    at = await begin(store)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    assert not isinstance(await step(store, Committed(5, b"", None)), Committed)
    with pytest.raises(ServiceError, match=str(unknown_session("b"))):
        await step(store, at, "b")
    assert before == {file: file.read_bytes() for file in path.parent.iterdir()}
    await store.close()


async def test_a_full_disk_is_reported_and_loses_nothing(path):
    store = await opening(path)
    at = await begin(store, records=(record(1),))
    database = store.engine.transactions.file.database

    def limit(pages):
        count = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {count + pages}").fetchall()

    await store.engine._run(lambda: limit(0))
    with pytest.raises(ServiceError, match="full") as caught:
        await step(store, at, records=(record(2, b"x" * 100_000),))
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "disk space" in caught.value.next_step
    await store.engine._run(lambda: limit(1000))
    at = await step(store, at, records=(record(2),))
    assert (await store.read(LoadSession("a"))).records == (record(1), record(2))
    await store.close()


# --- one process, one owner, nothing left ---------------------------------------------


async def test_a_second_process_is_rejected(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_SECONDS", 0.0)
    first = await opening(path)
    with pytest.raises(ServiceError, match="locked") as caught:
        await opening(path)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "Another process" in caught.value.next_step
    await begin(first)  # the first one is unharmed
    await first.close()
    await (await opening(path)).close()


async def test_a_start_waits_for_readers(path):
    await (await opening(path)).close()
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    reader.execute("SELECT * FROM session").fetchall()
    waiting = asyncio.create_task(opening(path))
    await asyncio.sleep(0)
    reader.close()
    await (await waiting).close()


async def test_only_the_owner_can_read_the_files(path):
    store = await opening(path)
    await begin(store, header=SECRET)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600}
    await store.close()


async def test_no_byte_of_an_ended_session_is_left_in_the_files(path):
    store = await opening(path)
    at = await begin(
        store,
        header=b"h" + SECRET,
        records=(record(1, SECRET), record(2, SECRET * 999)),
    )
    assert contains(path.parent, SECRET)
    await step(store, at, end=b"receipt")
    assert not contains(path.parent, SECRET)
    await store.close()


async def test_no_byte_replaced_by_resealing_is_left_in_the_files(path):
    store = await opening(path)
    at = await begin(
        store,
        header=b"h" + SECRET,
        records=(record(1, SECRET), record(2, SECRET * 999)),
    )
    assert contains(path.parent, SECRET)
    at = await step(
        store, at, reseal=RewrittenSession(b"answer", (record(1, b"sent"),))
    )
    assert not contains(path.parent, SECRET)
    stored = await store.read(LoadSession("a"))
    assert (stored.header, stored.records) == (b"answer", (record(1, b"sent"),))
    await store.close()


async def test_a_log_not_erased_before_a_crash_is_erased_at_the_next_start(
    path, monkeypatch
):
    store = await opening(path)
    at = await begin(store, header=SECRET)
    with monkeypatch.context() as patch:

        def crash(_):
            raise sqlite3.OperationalError("disk I/O error")

        patch.setattr(sqlite_file.SQLiteFile, "_checkpoint", crash)
        with pytest.raises(ServiceError, match="I/O"):
            await step(store, at, end=b"receipt")
    assert contains(path.parent, SECRET)
    copy = copy_as_after_a_kill(path, path.parent.parent / "copy")
    # The living process scrubs with its next write, whatever that is,
    await begin(store, "b", 2)
    assert not contains(path.parent, SECRET)
    await store.close()
    # and a killed one's successor at its start.
    successor = await opening(copy)
    assert (await successor.read(LoadSession("a"))).receipt == b"receipt"
    assert not contains(copy.parent, SECRET)
    await successor.close()


# --- what is no store -----------------------------------------------------------------


async def refused(path, **options):
    with pytest.raises(ServiceError) as caught:
        await opening(path, **options)
    return caught.value


def edit(path, *statements):
    database = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        database.execute(statement)
    database.close()


async def test_a_newer_schema_of_a_store_file_is_rejected(path):
    await (await opening(path)).close()
    edit(path, "PRAGMA user_version = 2")
    error = await refused(path)
    assert error.code is ErrorCode.STORAGE_FAILED
    assert "schema version 2" in str(error)
    assert "Upgrade" in error.next_step


async def test_a_file_that_is_no_database_is_rejected_and_kept(path):
    path.write_bytes(b"my precious notes\n" * 100)
    error = await refused(path)
    assert error.code is ErrorCode.STORAGE_FAILED
    assert "another file" in error.next_step
    assert path.read_bytes() == b"my precious notes\n" * 100


@pytest.mark.parametrize("version", [0, 1])
async def test_another_programs_database_is_rejected_and_kept(path, version):
    edit(path, "CREATE TABLE sessions (x)", f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    error = await refused(path)
    assert error.code is ErrorCode.STORAGE_FAILED
    assert "not a store of this program" in str(error)
    assert "another file" in error.next_step
    assert path.read_bytes() == before


async def test_a_missing_directory_is_named(path):
    error = await refused(path.parent / "absent" / "store.db")
    assert "absent" in str(error)
    assert "directory" in error.next_step


@pytest.mark.parametrize(
    "url", ["sqlite:relative.db", "mysql://host/book", "sqlite:", "/a/path"]
)
async def test_an_address_that_names_no_store_is_rejected(url):
    with pytest.raises(LocalProtocolError) as caught:
        await open_store(url)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "sqlite:/absolute/path.db" in caught.value.next_step


async def test_a_store_of_another_release_is_named():
    with pytest.raises(LocalProtocolError, match="'mysql'"):
        await open_store("mysql://user:password@host/book")
    with pytest.raises(LocalProtocolError) as caught:
        await open_store("mysql://user:password@host/book")
    assert "password" not in str(caught.value) + caught.value.next_step


# --- damage ---------------------------------------------------------------------------


async def filled(path):
    """A store with rows in every table; return its content."""
    store = await opening(path)
    at = await begin(store, deadline_seconds=60.0, round=0)
    at = await step(
        store, at, records=tuple(record(n, bytes([n]) * 4000) for n in range(9))
    )
    charge = Charge(
        budget=KEY,
        session_id=bytes(32),
        noise_digest=bytes(32),
        allowed=1,
        refunds=1,
    )
    await step(store, at, charge=charge, spend=True)
    claim = Claim(
        data="patients",
        holder=bytes(16),
        budget=KEY,
        noise_digest=bytes(32),
        against=ClaimAdversary.SERVER,
        epsilon=0.1,
        delta=1e-6,
        shift=0.3,
        distance=1e-20,
        added_delta=0.0,
    )
    assert await store.commit(PutClaim(claim, after=0))
    ended = await begin(store, "over", 2)
    await step(store, ended, "over", end=b"receipt " * 20)
    await store.commit(
        PutTask(
            Task("task", TaskState.RUNNING, "settings " * 9, b"plan" * 50),
            expect_version=0,
        )
    )
    await store.commit(RecordRevocations(Trust("a.b", bytes(32), 7, bytes(32))))
    await store.close()
    return await everything(path)


async def everything(path):
    store = await opening(path, now=lambda: 0.0)
    try:
        rows = await store.read(ListSessions(role=Side.SERVER, state=SessionState.ALL))
        return (
            rows,
            [await store.read(LoadSession(row.key)) for row in rows],
            await store.read(ListTasks()),
            await store.read(ListCharges("task")),
            await store.read(ListClaims()),
            await store.read(ReadTally(Side.SERVER, "task")),
            await store.read(ReadRevocations(bytes(32), "a.b")),
        )
    finally:
        await store.close()


ONE_MORE = """
INSERT INTO record SELECT session, 9, 7, sender, chain, body FROM record
WHERE sequence = 8
"""


@pytest.mark.parametrize(
    ("statement", "complaint", "number"),
    [
        ("UPDATE record SET body = x'00' WHERE sequence = 4", "record 4 is changed", 4),
        ("UPDATE record SET kind = 2 WHERE sequence = 4", "record 4 is changed", 4),
        ("UPDATE record SET kind = -1 WHERE sequence = 4", "record 4 is changed", 4),
        ("UPDATE record SET sender = '' WHERE sequence = 4", "record 4 is changed", 4),
        ("UPDATE record SET chain = x'00' WHERE sequence = 4", "record 4 is chan", 4),
        (
            "UPDATE record SET sender = CAST(x'ff' AS TEXT) WHERE sequence = 4",
            "record 4 is changed",
            4,
        ),
        ("DELETE FROM record WHERE sequence = 0", "record 0 is missing", 0),
        ("DELETE FROM record WHERE sequence = 4", "record 4 is missing", 4),
        ("DELETE FROM record WHERE sequence = 8", "record 8 is missing", 8),
        (
            ONE_MORE,
            "record 9 is missing, or has a wrong place",
            9,
        ),
        ("UPDATE session SET header = x'00'", "checksum of its header", None),
        ("UPDATE session SET round = round + 1", "'session'", None),
        ("UPDATE session SET deadline = 0", "'session'", None),
        ("UPDATE session SET sequence = sequence - 1", "'session'", None),
        ("UPDATE session SET key = CAST(x'ff' AS TEXT) || key", "'session'", None),
        ("UPDATE session SET receipt = x'00' WHERE key = 'over'", "'session'", None),
        ("UPDATE session SET restored = 1", "'session'", None),
        ("UPDATE tally SET spent = 0", "'tally'", None),
        ("UPDATE tally SET highest_number = 0", "'tally'", None),
        ("UPDATE task SET plan = x'00'", "'task'", None),
        ("UPDATE task SET state = 'stopped'", "'task'", None),
        ("UPDATE charge SET state = 3", "'charge'", None),
        ("UPDATE charge SET state = 9", "'charge'", None),
        ("UPDATE charge SET noise_digest = x'00'", "'charge'", None),
        ("UPDATE claim SET epsilon = 0.01", "'claim'", None),
        ("UPDATE claim SET data = 'others'", "'claim'", None),
        ("UPDATE claim SET shift = NULL", "'claim'", None),
        ("UPDATE revocation SET number = 6", "'revocation'", None),
    ],
)
async def test_a_changed_row_is_reported_as_local_damage_and_located(
    path, statement, complaint, number
):
    await filled(path)
    edit(path, statement)
    with pytest.raises(StateDamagedError, match=complaint) as caught:
        await everything(path)
    error = caught.value
    assert error.code is ErrorCode.STATE_DAMAGED
    assert error.record == number
    assert "This machine's disk or a foreign program" in error.next_step
    assert "no peer" in error.next_step
    if "'" not in complaint:
        assert "session a: " in str(error)
        assert error.key == "a"
    store = await opening(path)
    assert any(
        complaint in finding.complaint for finding in await store.read(FindFaults())
    )
    await store.close()


async def test_a_damaged_tail_is_detected_without_reading_the_beginning(path):
    await filled(path)
    edit(path, "UPDATE record SET body = x'00' WHERE sequence = 8")
    store = await opening(path)
    with pytest.raises(StateDamagedError, match="record 8"):
        await store.read(LoadSession("a", after=7))
    await store.close()


async def test_a_damaged_tail_is_not_returned_to_a_writer(path):
    await filled(path)
    store = await opening(path)
    start = (await store.read(LoadSession("a"))).chain
    await store.close()
    edit(path, "UPDATE record SET body = x'00' WHERE sequence = 8")
    store = await opening(path)
    with pytest.raises(StateDamagedError, match="record 8"):
        await step(store, Committed(3, start, None))
    await store.close()


async def test_a_record_after_the_last_one_is_reported_as_damage(path):
    await filled(path)
    store = await opening(path)
    stored = await store.read(LoadSession("a"))
    await store.close()
    edit(path, ONE_MORE)
    store = await opening(path)
    with pytest.raises(StateDamagedError, match="beyond the last"):
        await step(store, stored, records=(record(77),))
    await store.close()


async def test_damage_to_one_session_does_not_affect_others(path):
    await filled(path)
    store = await opening(path)
    at = await begin(store, "b", 3)
    await store.close()
    edit(path, "UPDATE session SET round = 9 WHERE key = 'a'")
    store = await opening(path)
    answers = await asyncio.gather(
        step(store, at, "a"),
        step(store, at, "b", records=(record(1),)),
        return_exceptions=True,
    )
    assert isinstance(answers[0], StateDamagedError)
    assert isinstance(answers[1], Committed)
    await store.close()


@pytest.mark.parametrize("table", ["charge", "record_once"])
async def test_a_missing_table_or_index_is_reported_as_damage(path, table):
    await filled(path)
    kind = "INDEX" if table == "record_once" else "TABLE"
    edit(path, f"DROP {kind} {table}")
    error = await refused(path)
    assert isinstance(error, StateDamagedError)


async def test_an_index_that_disagrees_with_its_table_is_reported_as_damage(path):
    await filled(path)
    edit(
        path,
        "PRAGMA writable_schema = ON",
        "CREATE TABLE other (key TEXT UNIQUE)",
        "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema "
        "WHERE name = 'sqlite_autoindex_other_1') "
        "WHERE name = 'sqlite_autoindex_session_1'",
        "DELETE FROM sqlite_schema WHERE tbl_name = 'other'",
    )
    assert isinstance(await refused(path), StateDamagedError)


async def attempt(reading):
    try:
        return await reading, None
    except ServiceError as error:
        return None, error


async def test_a_damaged_store_returns_correct_data_or_an_error(path):
    truth = await filled(path)
    noticed = 0
    for number, changed in enumerate(damaged_copies(path.read_bytes(), DAMAGED)):
        copy = path.with_name(f"{number}.db")
        copy.write_bytes(changed)
        said, error = await attempt(everything(copy))
        if error is None:
            assert said == truth
            continue
        assert error.code in (ErrorCode.STATE_DAMAGED, ErrorCode.STORAGE_FAILED)
        assert error.next_step
        noticed += 1
    assert noticed > DAMAGED // 3


async def test_no_field_of_a_record_changes_undetected(path):
    """Every bit of what a session has stored is under its chain, or an index."""
    await filled(path)
    whole, copy = path.read_bytes(), path.with_name("copy.db")
    chooser = SeededEntropy(SecretBytes(bytes(32)), b"fields")
    for _ in range(DAMAGED // 5):
        for old in path.parent.glob("copy.db*"):
            old.unlink()
        copy.write_bytes(whole)
        at, field, place, bit = chooser.token(4)
        name = ("sequence", "kind", "sender", "chain", "body")[field % 5]
        database = sqlite3.connect(copy, isolation_level=None)
        changed = flipped(value_of(database, name, at % 9), place, bit)
        try:
            database.execute(
                f"UPDATE record SET {name} = ? WHERE sequence = ?",
                (changed, at % 9),
            )
        except sqlite3.IntegrityError:
            continue
        finally:
            database.close()
        _, error = await attempt(everything(copy))
        assert isinstance(error, StateDamagedError)


def value_of(database, name, at):
    query = f"SELECT {name} FROM record WHERE sequence = ?"
    return database.execute(query, (at,)).fetchone()[0]


def flipped(value, place, bit):
    if isinstance(value, int):
        return value ^ 1 << bit % 8
    data = bytearray(value if isinstance(value, bytes) else value.encode())
    data[place % len(data)] ^= 1 << bit % (8 if isinstance(value, bytes) else 4)
    return bytes(data) if isinstance(value, bytes) else data.decode()


async def test_a_damaged_file_is_reported_as_local_damage(path):
    await filled(path)
    path.write_bytes(path.read_bytes()[:-4096])
    error = await refused(path)
    assert error.code is ErrorCode.STATE_DAMAGED
    assert "no peer" in error.next_step


async def test_purging_does_not_bypass_the_checksums(path):
    await filled(path)
    edit(path, "UPDATE session SET ended = 1 WHERE key = 'over'")
    store = await opening(path)
    with pytest.raises(StateDamagedError):
        await store.commit(PurgeReceipts(Retention()))
    await store.close()


# --- what reaches the disk ------------------------------------------------------------


async def lose_power(path, into):
    """Commit three times, lose power, and return the chain and the number of syncs."""
    with PowerCut() as disk:
        store = await opening(path, mark=into.parent / "mark")
        at = await begin(store)
        for number in range(3):
            at = await step(store, at, records=(record(number),))
        disk.write_remaining(path.parent, into)
        syncs = disk.syncs
        await store.close()
    return at, syncs


@pytest.mark.skipif(not shares_a_sqlite_library(), reason="SQLite is linked statically")
async def test_committed_changes_survive_a_power_failure(path, tmp_path):
    at, syncs = await lose_power(path, tmp_path / "left")
    store = await opening(tmp_path / "left" / path.name, mark=tmp_path / "mark")
    stored = await store.read(LoadSession("a"))
    assert (stored.sequence, stored.chain) == (at.sequence, at.chain)
    assert syncs >= 4
    await store.close()


@pytest.mark.skipif(not shares_a_sqlite_library(), reason="SQLite is linked statically")
@pytest.mark.parametrize("mode", ["NORMAL", "OFF"])
async def test_a_store_that_does_not_sync_loses_commits(
    mode, path, tmp_path, monkeypatch
):
    """So the test above can fail."""
    without_syncs(monkeypatch, f"synchronous = {mode}")
    monkeypatch.setattr(sqlite_file, "_NEEDED", {})
    await lose_power(path, tmp_path / "left")
    with pytest.raises(ServiceError) as caught:
        await opening(tmp_path / "left" / path.name, mark=tmp_path / "mark")
    assert caught.value.code is ErrorCode.RESTORED_STATE


def without_syncs(monkeypatch, pragma):
    name = pragma.partition(" ")[0]
    others = [each for each in sqlite_file._PRAGMAS if not each.startswith(name)]
    monkeypatch.setattr(sqlite_file, "_PRAGMAS", (*others, pragma))


@pytest.mark.parametrize(
    "pragma",
    [
        "synchronous = OFF",
        "synchronous = NORMAL",
        "journal_mode = DELETE",
        "journal_mode = OFF",
        "secure_delete = OFF",
        "secure_delete = FAST",
    ],
)
async def test_an_ineffective_pragma_is_rejected(pragma, path, monkeypatch):
    without_syncs(monkeypatch, pragma)
    with pytest.raises(ServiceError, match=pragma.partition(" ")[0]) as caught:
        await opening(path)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert caught.value.next_step


async def test_an_in_memory_store_erases_what_it_deletes(monkeypatch):
    await (await open_store("sqlite::memory:")).close()
    without_syncs(monkeypatch, "secure_delete = OFF")
    with pytest.raises(ServiceError, match="secure_delete"):
        await open_store("sqlite::memory:")


async def test_a_client_read_is_cached_until_the_next_command(monkeypatch):
    store = ClientStore.open(
        None,
        mark=None,
        accept_restored=False,
        lock_seconds=0.0,
        entropy=SeededEntropy(SecretBytes(bytes(32)), b"client"),
        now=lambda: 0.0,
    )
    statements = []
    store._transactions.file.database.set_trace_callback(statements.append)
    query = ReadTally(Side.CLIENT, "task", "peer")

    async def claim(number):
        create = NewSession(
            role=Side.CLIENT, task="task", peer="peer", number=number, header=b""
        )
        await store.commit(Change(key=str(number), create=create))

    assert (await store.read(query)).highest_number == 0
    await claim(3)
    statements.clear()
    for _ in range(3):
        assert (await store.read(query)).highest_number == 3
    assert len(statements) == 1
    await claim(7)
    assert (await store.read(query)).highest_number == 7
    for number in range(100):
        assert await store.read(LoadSession(f"of a liar {number}")) is None
    assert len(store._answers) < 50
    # A fork is refused, whatever it could have answered.
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ServiceError, match="is a fork of it"):
        await store.read(query)
    monkeypatch.undo()
    await store.close()
