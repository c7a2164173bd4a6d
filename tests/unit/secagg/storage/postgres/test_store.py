"""What only a store in PostgreSQL can get wrong; the rest is in the contract suite."""

import asyncio
import importlib.resources
import math
import socket
import sys
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.server.server import Server
from secagg.storage.budget_ledger import BudgetKey, Claim, ClaimAdversary
from secagg.storage.change import (
    Change,
    Committed,
    MissedRecords,
    NewSession,
    NumberTakenError,
    Record,
    SessionsSpentError,
    Side,
)
from secagg.storage.changes import PutClaim, Touch
from secagg.storage.leases import AcquireLease, Heartbeat, RenewLease
from secagg.storage.open_store import open_reader, open_store
from secagg.storage.postgres import connection as postgres_link
from secagg.storage.postgres.address import checked_address
from secagg.storage.postgres.connection import IDLE_SECONDS, UNHEARD_MILLISECONDS
from secagg.storage.queries import (
    FindFaults,
    ListCharges,
    ListClaims,
    ListReplicas,
    ListSessions,
    ListTasks,
    LoadSession,
    ReadMissed,
    ReadTally,
)
from secagg.storage.rollback_mark import refuse_restored
from secagg.storage.rows import Replica, SessionTally
from secagg.storage.store import (
    StateDamagedError,
    StoreFailoverError,
    StoreNotFoundError,
    StoreUnavailableError,
)

SECRET = "correct-horse"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database()"
)


@pytest.fixture
async def empty(postgres_url):
    """The address of a database without a store, and the next test finds nothing."""
    await sql(postgres_url, "DROP SCHEMA IF EXISTS secagg CASCADE")
    yield postgres_url
    await sql(postgres_url, "DROP SCHEMA IF EXISTS secagg CASCADE")


async def sql(url, *statements):
    database = await asyncpg.connect(url)
    try:
        for statement in statements:
            rows = await database.fetch(statement)
    finally:
        await database.close()
    return [tuple(row) for row in rows]


def record(number):
    return Record(1, f"client-{number}", bytes([number]))


async def begin(store, key="a", number=1, **more):
    new = NewSession(role=Side.SERVER, task="task", number=number, header=b"header")
    return await store.commit(Change(key=key, create=new, **more))


async def append(store, at, *records, key="a", **more):
    return await store.commit(
        Change(key=key, expect=at.sequence, previous=at.chain, records=records, **more)
    )


async def generation(url):
    return (await sql(url, "SELECT generation FROM secagg.store"))[0][0]


# --- one aggregator at a time ---------------------------------------------------------


async def test_a_second_aggregator_is_rejected_and_sessions_are_unharmed(
    empty, monkeypatch
):
    monkeypatch.setattr(postgres_link, "LOCK_TIMEOUT_SECONDS", 0.0)
    first = await open_store(empty)
    at = await begin(first)
    with pytest.raises(ServiceError, match="another process uses the store") as caught:
        await open_store(empty)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "database of its own" in caught.value.next_step
    assert isinstance(await append(first, at, record(1)), Committed)
    await first.close()
    monkeypatch.undo()
    await (await open_store(empty)).close()


async def test_five_processes_that_start_together_migrate_once(empty):
    async def visit():
        store = await open_store(empty)
        await store.close()

    await asyncio.gather(*(visit() for _ in range(5)))
    assert await sql(empty, "SELECT number FROM secagg.migration") == [
        (1,),
        (2,),
        (3,),
        (4,),
        (5,),
        (6,),
    ]
    assert await sql(empty, "SELECT count(*) FROM secagg.store") == [(1,)]


async def cut_off(url, store):
    """End the store's connection, as a network or a restart of the database does."""
    is_cut = asyncio.Event()
    store.engine.link._connection.add_termination_listener(lambda _: is_cut.set())
    await sql(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'secagg'",
    )
    await is_cut.wait()


async def test_a_lost_connection_is_restored_without_losing_records(empty):
    store = await open_store(empty)
    at = await append(store, await begin(store), record(1))
    await cut_off(empty, store)
    at = await append(store, at, record(2))
    assert (await store.read(LoadSession("a"))).records == (record(1), record(2))
    await store.close()


async def test_the_lease_of_a_lost_replica_is_released_once_a_replica_is_connected(
    empty,
):
    """A holder is known by its connection; a database that starts again has none."""
    started = (
        await sql(empty, "SELECT extract(epoch FROM pg_postmaster_start_time())::float")
    )[0][0]
    at = started + 3600.0

    async def take(store, holder, seconds=60.0):
        return await store.commit(AcquireLease("sum/a", holder=holder, seconds=seconds))

    one, other = [
        await open_store(empty, is_shared=True, now=lambda: at) for _ in range(2)
    ]
    first = await take(one, "A")
    assert await take(other, "B") is None
    await cut_off(empty, one)
    at = started + 59.0
    assert await take(other, "B") is None  # A may be about to come back
    at = started + 61.0
    assert await one.commit(RenewLease(first, seconds=60.0))  # and is back
    assert await take(other, "B") is None
    await one.close()
    second = await take(other, "B")
    assert second.token > first.token
    assert not await take(other, "C")
    await other.close()


async def test_one_caller_at_a_time_dials_an_unavailable_database(empty, monkeypatch):
    store = await open_store(empty)
    await begin(store)
    attempts = []

    async def refused(*_, **__):
        attempts.append(1)
        raise ConnectionRefusedError(111, "Connection refused")

    await cut_off(empty, store)
    with monkeypatch.context() as away:
        away.setattr(postgres_link.asyncpg, "connect", refused)
        for _ in range(5):
            with pytest.raises(StoreUnavailableError, match="refused") as caught:
                await store.read(LoadSession("a"))
            assert caught.value.code is ErrorCode.STORAGE_FAILED
            assert caught.value.retry_after_seconds
        assert len(attempts) == 1
    monkeypatch.setattr(store.engine.link, "_next_attempt", 0.0)
    assert (await store.read(LoadSession("a"))).sequence == 0
    await store.close()


@pytest.fixture
async def network(empty):
    """A network between a store and its database, which may swallow everything."""
    place = urlsplit(empty)
    there = f"{parse_qs(place.query)['host'][0]}/.s.PGSQL.5432"
    passes = asyncio.Event()
    passes.set()

    async def carry(reader, writer):
        while data := await reader.read(1 << 16):
            if passes.is_set():  # else it was swallowed
                writer.write(data)
        writer.close()

    async def join(reader, writer):
        inside = await asyncio.open_unix_connection(there)
        await asyncio.gather(carry(reader, inside[1]), carry(inside[0], writer))

    carrying = set()

    def meet(reader, writer):
        carrying.add(asyncio.create_task(join(reader, writer)))

    async with await asyncio.start_server(meet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://{place.username}@127.0.0.1:{port}{place.path}", passes
    for each in carrying:
        each.cancel()
    await asyncio.wait(carrying)


async def test_a_network_that_drops_every_packet_is_reported_as_unavailable(
    network, monkeypatch
):
    url, passes = network
    store = await open_store(url)
    at = await append(store, await begin(store), record(1))
    connection = store.engine.link._connection
    connection._config = connection._config._replace(command_timeout=0.2)
    monkeypatch.setattr(postgres_link, "_CONNECT_SECONDS", 0.2)
    passes.clear()
    with pytest.raises(StoreUnavailableError):
        await store.commit(Touch())
    monkeypatch.setattr(store.engine.link, "_next_attempt", 0.0)
    with pytest.raises(StoreUnavailableError):
        await store.commit(Touch())  # nor can another connection be had
    monkeypatch.setattr(store.engine.link, "_next_attempt", 0.0)
    passes.set()
    monkeypatch.undo()
    await append(store, at, record(2))
    assert (await store.read(LoadSession("a"))).records == (record(1), record(2))
    await store.close()


async def test_both_ends_of_a_connection_detect_a_missing_peer(network):
    url, _ = network
    store = await open_store(url)
    connection = store.engine.link._connection
    link = connection._transport.get_extra_info("socket")
    assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    unheard = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert unheard == UNHEARD_MILLISECONDS
    assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_SECONDS
    # The other end of this one is a socket of a file, which has no such limits.
    asked = postgres_link.session_settings()
    assert asked["tcp_user_timeout"] == str(UNHEARD_MILLISECONDS)
    async for _ in store.changes():
        break
    await store.close()


async def test_a_connection_that_fails_during_a_call_is_discarded(empty):
    store = await open_store(empty)
    at = await begin(store)
    blocker = await asyncpg.connect(empty)
    held = blocker.transaction()
    await held.start()
    await blocker.execute("SELECT 1 FROM secagg.session FOR UPDATE")
    appending = asyncio.create_task(append(store, at, record(1)))
    while await sql(empty, WAITING) != [(1,)]:
        pass
    await cut_off(empty, store)
    with pytest.raises(ServiceError) as caught:
        await appending
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    await held.rollback()
    await blocker.close()
    assert isinstance(await append(store, at, record(1)), Committed)
    await store.close()


async def test_a_connection_with_an_aborted_transaction_is_discarded(
    empty, monkeypatch
):
    """As when the server ends a transaction in which nothing has come for seconds."""
    store = await open_store(empty)
    at = await begin(store)
    connection = store.engine.link._connection

    async def confused(*_, **__):
        raise asyncpg.InternalClientError("cannot switch to state 15")

    monkeypatch.setattr(asyncpg.Connection, "fetchrow", confused)
    with pytest.raises(ServiceError, match="was not expected") as caught:
        await append(store, at, record(1))
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    monkeypatch.undo()
    assert connection.is_closed()
    assert isinstance(await append(store, at, record(1)), Committed)
    await store.close()


async def test_a_replica_that_lost_the_store_does_not_write(empty, monkeypatch):
    zombie = await open_store(empty)
    at = await begin(zombie)
    await cut_off(empty, zombie)
    successor = await open_store(empty)
    monkeypatch.setattr(postgres_link, "LOCK_TIMEOUT_SECONDS", 0.0)
    for _ in range(2):
        with pytest.raises(ServiceError):
            await append(zombie, at, record(1))
    assert isinstance(await append(successor, at, record(2)), Committed)
    await successor.close()
    monkeypatch.undo()
    answer = await append(zombie, at, record(1))  # it has the store again
    assert isinstance(answer, MissedRecords)
    assert answer.records == (record(2),)
    await zombie.close()


# --- restored, exchanged, failed over -------------------------------------------------


async def test_every_commit_is_counted_once(empty):
    store = await open_store(empty)
    starts = [await begin(store, str(n), n) for n in range(1, 9)]
    before = await generation(empty)
    await asyncio.gather(
        *(append(store, at, record(1), key=str(n)) for n, at in enumerate(starts, 1))
    )
    assert await generation(empty) == before + 8
    assert isinstance(await append(store, starts[0], key="1"), MissedRecords)
    assert await generation(empty) == before + 8
    await store.close()


async def test_a_restored_database_is_rejected_until_it_is_accepted(empty, tmp_path):
    mark = tmp_path / "mark"
    store = await open_store(empty, mark=mark)
    at = await append(store, await begin(store), record(1))
    backup = await generation(empty)
    await append(store, at, record(2))
    await store.close()
    await sql(empty, f"UPDATE secagg.store SET generation = {backup}")
    with pytest.raises(ServiceError) as caught:
        await open_store(empty, mark=mark)
    assert caught.value.code is ErrorCode.RESTORED_STATE
    store = await open_store(empty, mark=mark, accept_restored=True)
    assert (await store.read(LoadSession("a"))).restored
    tally = await store.read(ReadTally(Side.SERVER, "task"))
    assert tally.highest_number > 1_577_836_800  # 2020, in Unix seconds
    forgotten = await store.read(ReadTally(Side.SERVER, "later"))
    assert forgotten.highest_number > 1_577_836_800
    new = NewSession(role=Side.SERVER, task="later", number=2, header=b"header")
    with pytest.raises(NumberTakenError):
        await store.commit(Change(key="later", create=new))
    await store.close()
    await (await open_store(empty, mark=mark)).close()


async def test_a_store_with_an_older_generation_is_rejected(empty):
    store = await open_store(empty)
    at = await append(store, await begin(store), record(1))
    await sql(empty, "UPDATE secagg.store SET generation = 0")
    await cut_off(empty, store)
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            await append(store, at, record(2))
        assert caught.value.code is ErrorCode.RESTORED_STATE
    await store.close()


async def test_a_session_of_an_older_timeline_is_not_continued(empty):
    store = await open_store(empty)
    at = await begin(store)
    other = await begin(store, "b", 2)
    await sql(empty, "UPDATE secagg.session SET timeline = '00000000' WHERE key = 'a'")
    with pytest.raises(StoreFailoverError) as caught:
        await append(store, at, record(1))
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "inputs count as summed" in caught.value.next_step
    assert isinstance(await append(store, other, record(1), key="b"), Committed)
    await store.close()
    # The successor knows that it must end it, and can.
    successor = await open_store(empty)
    assert (await successor.read(LoadSession("a"))).restored
    assert not (await successor.read(LoadSession("b"))).restored
    ended = await append(successor, at, end=b"receipt", restored=True)
    assert isinstance(ended, Committed)
    await successor.close()


# --- damage and scrubbing -------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE secagg.record SET body = '' WHERE sequence = 1", "record 1 is change"),
        ("DELETE FROM secagg.record WHERE sequence = 1", "record 1 is missing"),
        ("UPDATE secagg.session SET header = ''", "checksum of its header"),
    ],
)
async def test_a_changed_row_of_a_database_is_detected(empty, statement, complaint):
    store = await open_store(empty)
    at = await append(store, await begin(store), record(1), record(2), record(3))
    assert await store.read(FindFaults()) == ()
    await sql(empty, statement)
    with pytest.raises(StateDamagedError, match=complaint):
        await store.read(LoadSession("a"))
    assert [finding.key for finding in await store.read(FindFaults())] == ["a"]
    assert isinstance(await append(store, at), Committed)  # the position is right
    await store.close()


async def test_an_ended_session_leaves_no_content_in_the_tables(empty):
    store = await open_store(empty)
    at = await append(store, await begin(store), record(1))
    await append(store, at, end=b"receipt")
    assert await sql(empty, "SELECT count(*) FROM secagg.record") == [(0,)]
    assert await sql(empty, "SELECT header FROM secagg.session") == [(b"",)]
    await store.close()


# --- what is no store, and no server for one ------------------------------------------


async def test_a_newer_schema_of_a_database_is_rejected(empty):
    await (await open_store(empty)).close()
    await sql(empty, "INSERT INTO secagg.migration VALUES (99)")
    with pytest.raises(ServiceError, match="schema version 99") as caught:
        await open_store(empty)
    assert "Upgrade" in caught.value.next_step


async def test_a_failed_migration_leaves_completed_migrations_in_place(
    empty, monkeypatch
):
    steps = importlib.resources.files("secagg.storage") / "migrations" / "postgresql"
    first = (steps / "0001_store.sql").read_text()
    broken = "CREATE TABLE more (x int); SELECT 1 / 0"
    monkeypatch.setattr(
        "secagg.storage.postgres.migrations._steps", lambda: (first, broken)
    )
    with pytest.raises(ServiceError, match="division by zero"):
        await open_store(empty)
    assert await sql(empty, "SELECT number FROM secagg.migration") == [(1,)]
    assert await sql(empty, "SELECT to_regclass('secagg.more')") == [(None,)]


async def test_a_database_without_synchronous_commit_is_rejected(empty):
    await sql(empty, "ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        with pytest.raises(ServiceError, match="synchronous_commit = off"):
            await open_store(empty)
    finally:
        await sql(empty, "ALTER DATABASE postgres RESET synchronous_commit")


async def test_an_unreachable_database_server_is_named_with_what_to_check(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(postgres_link, "START_SECONDS", 0.0)
    with pytest.raises(ServiceError) as caught:
        await open_store(f"postgresql://user@/name?host={tmp_path}")
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "database server runs" in caught.value.next_step


async def test_stored_values_do_not_appear_in_failures(empty):
    store = await open_store(empty)
    at = await begin(store)
    with pytest.raises(ServiceError) as caught:
        await append(store, at, Record(1, f"{SECRET}\0", SECRET.encode()))
    assert SECRET not in str(caught.value) + caught.value.next_step
    await store.close()


# --- addresses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user@localhost/name",
        "postgresql://user@127.0.0.1:5433/name",
        "postgresql://user@[::1]:5433/name",
        "postgresql://user@/name?host=/run/postgresql&passfile=/etc/pass",
        "postgresql://user@db.example:5432/name?sslmode=verify-full",
    ],
)
def test_a_valid_store_address_is_kept(url):
    assert checked_address(url) == url


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (f"postgresql://user:{SECRET}@localhost/name", "holds a password"),
        (f"postgresql://user@localhost/name?password={SECRET}", "not known here"),
        ("postgresql://user@localhost/name?options=-cfsync%3Doff", "not known here"),
        ("postgresql://user@localhost", "names no database"),
        ("postgresql://user@/name", "names no host"),
        ("postgresql://user@db.example/name", "without a check"),
        ("postgresql://user@db.example/name?sslmode=require", "without a check"),
        ("postgresql://user@localhost,db.example/name", "without a check"),
        ("postgresql://user@/name?host=db.example", "without a check"),
        ("postgresql://user@localhost/name?host=db.example", "without a check"),
        ("postgresql://user@127.0.0.1.example/name", "without a check"),
        ("postgresql://user@localhost/name?host", "cannot be read"),
        ("postgresql://user@db.example,x@localhost/name", "more than one @"),
        (f"postgresql://user:{SECRET}@db.example,x@localhost/name", "a password"),
    ],
)
def test_an_invalid_store_address_is_rejected(url, complaint):
    with pytest.raises(LocalProtocolError, match=complaint) as caught:
        checked_address(url)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert SECRET not in str(caught.value) + caught.value.next_step


# --- who only looks -------------------------------------------------------------------


async def test_a_store_can_be_read_while_another_process_uses_it(empty, tmp_path):
    store = await open_store(empty)
    at = await append(store, await begin(store, spend=True), record(1))
    async with open_reader(tmp_path, store=empty) as reader:
        assert await append(store, at, record(2))
        (row,) = await reader.read(ListSessions(role=Side.SERVER))
        assert (row.key, row.sequence) == ("a", 1)  # as it stood when it was opened
        assert (await reader.read(LoadSession("a"))).records == (record(1),)
        assert await reader.read(ReadTally(Side.SERVER, "task")) == SessionTally(1, 1)
        assert (
            await reader.read(ListTasks()),
            await reader.read(ListCharges("task")),
        ) == ((), ())
        assert await reader.read(FindFaults()) == ()
    await store.close()


async def test_a_read_creates_nothing(empty, tmp_path):
    with pytest.raises(StoreNotFoundError) as caught:
        async with open_reader(tmp_path, store=empty):
            pass
    assert "server.store" in caught.value.next_step
    assert await sql(empty, "SELECT to_regnamespace('secagg')") == [(None,)]


async def test_a_store_of_another_schema_version_is_not_read(empty, tmp_path):
    await (await open_store(empty)).close()
    await sql(empty, "DELETE FROM secagg.migration")
    with pytest.raises(ServiceError, match="schema version 0") as caught:
        async with open_reader(tmp_path, store=empty):
            pass
    assert "migrates the store" in caught.value.next_step


async def test_a_missing_package_is_named_with_its_installation(monkeypatch, tmp_path):
    for module in ("executor", "statements", "connection"):
        monkeypatch.delitem(
            sys.modules, f"secagg.storage.postgres.{module}", raising=False
        )
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    url = "postgresql://user@localhost/name"
    for attempt in (open_store(url), open_reader(tmp_path, store=url).__aenter__()):
        with pytest.raises(LocalProtocolError, match="asyncpg") as caught:
            await attempt
        assert caught.value.code is ErrorCode.BAD_SETTINGS
        assert "secagg[postgres]" in caught.value.next_step


def test_a_server_with_a_store_requires_a_directory_for_uploads():
    with pytest.raises(LocalProtocolError, match="needs state_dir"):
        Server(None, store="postgresql://user@localhost/name")


# --- several aggregators --------------------------------------------------------------


class Clock:
    def __init__(self):
        self.seconds = 1_000_000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
async def shared(empty, tmp_path):
    """Opens a store that others may have open too, with a mark of each one's own."""
    opened = []

    async def share(name, **more):
        mark = tmp_path / name / "mark"
        store = await open_store(empty, is_shared=True, mark=mark, **more)
        opened.append(store)
        return store

    yield share
    for store in opened:
        await store.close()


def replica(name):
    return Replica(name, "127.0.0.1:1", "1.0", "agg")


async def test_exclusive_and_shared_access_to_a_store_exclude_each_other(
    empty, shared, monkeypatch
):
    monkeypatch.setattr(postgres_link, "LOCK_TIMEOUT_SECONDS", 0.0)
    alone = await open_store(empty)
    assert not alone.is_shared
    with pytest.raises(ServiceError, match="another process uses the store"):
        await shared("one")
    await alone.close()
    one = await shared("one")
    with pytest.raises(ServiceError, match="one aggregator at a time") as caught:
        await open_store(empty)
    assert "server.blobs" in caught.value.next_step
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    assert one.is_shared
    assert two.is_shared


async def test_of_two_concurrent_writers_one_receives_the_records_it_missed(shared):
    one = await shared("one")
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    at = await begin(one)
    answers = await asyncio.gather(
        append(one, at, record(1)), append(two, at, record(2))
    )
    (won,) = [each for each in answers if isinstance(each, Committed)]
    (behind,) = [each for each in answers if isinstance(each, MissedRecords)]
    first, second = (
        (record(1), record(2)) if answers[0] is won else (record(2), record(1))
    )
    assert (behind.records, behind.chain) == ((first,), won.chain)
    loser = two if answers[0] is won else one
    assert isinstance(await append(loser, behind, second), Committed)
    assert (await one.read(LoadSession("a"))).records == (first, second)


async def test_concurrent_plain_and_spending_steps_do_not_overwrite_each_other(shared):
    one = await shared("one")
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    at, spends = await begin(one), 0
    for number in range(40):
        answers = await asyncio.gather(
            append(one, at, record(2 * number), spend=True, facts=b"%d" % number),
            append(two, at, record(2 * number + 1)),
        )
        (at,) = [each for each in answers if isinstance(each, Committed)]
        (behind,) = [each for each in answers if isinstance(each, MissedRecords)]
        assert (behind.sequence, behind.chain) == (at.sequence, at.chain)
        spends += answers[0] is at
    assert 0 < spends < 40  # each of them came first at times
    assert len((await one.read(LoadSession("a"))).records) == 40
    assert (await two.read(ReadTally(Side.SERVER, "task"))).spent == 1


async def test_of_two_concurrent_openings_of_the_last_session_one_is_rejected(shared):
    one = await shared("one")
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    for allowed in range(1, 21):
        answers = await asyncio.gather(
            *(
                begin_within(store, f"{name} {allowed}", 2 * allowed + place, allowed)
                for place, (name, store) in enumerate((("one", one), ("two", two)))
            ),
            return_exceptions=True,
        )
        refused = [each for each in answers if isinstance(each, Exception)]
        assert len(refused) == 1
        assert isinstance(refused[0], (SessionsSpentError, NumberTakenError))
    assert len(await two.read(ListSessions(role=Side.SERVER))) == 20


async def begin_within(store, key, number, allowed):
    new = NewSession(
        role=Side.SERVER, task="task", number=number, header=b"", allowed=allowed
    )
    return await store.commit(Change(key=key, create=new))


async def test_of_two_concurrent_claim_checks_one_adds_its_claim(shared):
    one = await shared("one")
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    for number in range(20):
        made = await asyncio.gather(
            *(
                store.commit(PutClaim(claim_of(f"task {number} {name}"), after=number))
                for name, store in (("one", one), ("two", two))
            )
        )
        assert sorted(made) == [False, True]
    assert len(await two.read(ListClaims("patients"))) == 20


def claim_of(task):
    return Claim(
        data="patients",
        holder=bytes(16),
        budget=BudgetKey(trust_domain="domain", aggregator="aggregator", task=task),
        noise_digest=bytes(32),
        against=ClaimAdversary.SERVER,
        epsilon=0.1,
        delta=1e-6,
        shift=None,
        distance=0.0,
        added_delta=0.0,
    )


async def test_a_machine_without_a_mark_is_admitted_only_by_running_replicas(
    shared, monkeypatch
):
    monkeypatch.setattr(postgres_link, "NEWCOMER_SECONDS", 0.0)
    clock = Clock()
    one = await shared("one", now=clock)
    await begin(one)
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two", now=clock)
    await begin(two, key="b", number=2)
    clock.seconds += 60  # no process has been heard of
    with pytest.raises(ServiceError, match="rollback mark") as caught:
        await shared("three", now=clock)
    assert caught.value.code is ErrorCode.RESTORED_STATE
    await one.commit(Heartbeat(replica("one")))
    await shared("three", now=clock)
    # All start for the first time, and the one that was here has gone again.
    for store in (one, two):
        await store.close()
    await (await shared("four", now=clock)).close()


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_machine_without_a_mark_waits_for_other_replicas(
    is_open, shared, monkeypatch
):
    """After a restart of the database the new machine may be the first to connect."""
    clock, refused = Clock(), asyncio.Event()

    def judge(*words):
        try:
            refuse_restored(*words)
        except ServiceError:
            refused.set()
            raise

    monkeypatch.setattr(postgres_link, "refuse_restored", judge)
    monkeypatch.setattr(postgres_link, "STORE_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(postgres_link, "NEWCOMER_SECONDS", math.inf)
    one = await shared("one", now=clock)
    await begin(one)
    await one.commit(Heartbeat(replica("one")))
    if not is_open:
        await one.close()
    clock.seconds += 60
    coming = asyncio.create_task(shared("two", now=clock))
    await refused.wait()
    if not is_open:
        one = await shared("one", now=clock)
    await one.commit(Heartbeat(replica("one")))
    two = await coming
    assert (await two.read(LoadSession("a"))).sequence == 0


async def unreachable_for(monkeypatch, attempts, *, error):
    """Have the first attempts to reach the database fail."""
    connect, made = asyncpg.connect, []

    async def refused(*words, **more):
        made.append(1)
        if len(made) <= attempts:
            raise error
        return await connect(*words, **more)

    monkeypatch.setattr(postgres_link.asyncpg, "connect", refused)
    monkeypatch.setattr(postgres_link, "STORE_RETRY_SECONDS", 0.0)
    return made


async def test_a_start_waits_for_a_database_restart(empty, monkeypatch, caplog):
    caplog.set_level("INFO", logger="secagg")
    starting = asyncpg.CannotConnectNowError()
    starting.message = "the database system is starting up"
    made = await unreachable_for(monkeypatch, 5, error=starting)
    store = await open_store(empty)
    await begin(store)
    await store.close()
    assert len(made) == 6
    told = [each for each in caplog.messages if "starting up" in each]
    assert len(told) == 1
    assert any(each.startswith("store_reconnected") for each in caplog.messages)


async def test_the_wait_for_a_database_at_start_is_limited(empty, monkeypatch):
    monkeypatch.setattr(postgres_link, "START_SECONDS", 0.0)
    await unreachable_for(monkeypatch, 10, error=ConnectionRefusedError(111, "refused"))
    with pytest.raises(StoreUnavailableError, match="refused"):
        await open_store(empty)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (asyncpg.InterfaceError(f"cannot {SECRET}"), "connection to the server was"),
        (asyncpg.InternalClientError(SECRET), "an answer that was not expected"),
        (TimeoutError(), "did not answer in time"),
        (ConnectionResetError(), "the connection to the server failed"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
    ],
)
async def test_a_failed_connection_states_its_cause(error, cause, empty, monkeypatch):
    monkeypatch.setattr(postgres_link, "START_SECONDS", 0.0)
    await unreachable_for(monkeypatch, 1, error=error)
    with pytest.raises(StoreUnavailableError, match=cause) as caught:
        await open_store(empty)
    assert SECRET not in str(caught.value)
    assert type(error).__name__ not in str(caught.value)


async def test_an_invalid_store_address_is_not_retried(empty, monkeypatch):
    invalid = asyncpg.exceptions.ClientConfigurationError(SECRET)
    await unreachable_for(monkeypatch, 10, error=invalid)
    with pytest.raises(ServiceError, match="invalid") as caught:
        await open_store(empty)
    assert not isinstance(caught.value, StoreUnavailableError)
    assert SECRET not in str(caught.value)


async def test_time_without_any_replica_does_not_count_towards_deadlines(shared, empty):
    clock = Clock()
    one = await shared("one", now=clock)
    await one.commit(Heartbeat(replica("one")))
    at = await begin(one, round=1, deadline_seconds=60.0)
    clock.seconds += 14
    await one.commit(Heartbeat(replica("one")))
    clock.seconds += 100
    # Its timer fires before it has said that it is back: no process could answer.
    early = await append(one, at, record(1), due=True)
    spent = await append(one, at, record(1), due=True, spend=True)
    assert isinstance(early, MissedRecords)
    assert early.records == ()
    assert spent == early  # more than a plain step is checked by the same rule
    await one.commit(Heartbeat(replica("one")))
    assert (await one.read(LoadSession("a"))).seconds_left == 46.0
    clock.seconds += 46
    for _ in range(4):
        await one.commit(Heartbeat(replica("one")))
    assert isinstance(await append(one, at, record(1), due=True), MissedRecords)
    await sql(empty, "UPDATE secagg.session SET deadline = 0")
    assert isinstance(await append(one, at, record(1), due=True), Committed)


async def test_other_replicas_are_notified_of_a_round_at_once(shared, monkeypatch):
    monkeypatch.setattr(postgres_link, "_HINT_SECONDS", 3600.0)
    one = await shared("one")
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    heard = aiter(two.changes())
    waiting = asyncio.ensure_future(anext(heard))
    at = None
    for number in range(1, 100):  # until it listens
        at = await begin(one, key=f"k{number}", number=number, round=1)
        if (await asyncio.wait({waiting}, timeout=0.1))[0]:
            break
    assert waiting.done()
    for change in ({"round": 2}, {"end": b"receipt"}):
        waiting = asyncio.ensure_future(anext(heard))
        await asyncio.sleep(0)
        await append(one, at, key=f"k{number}", **change)
        await waiting
    await heard.aclose()


async def test_a_replica_fetches_missed_records_once(shared):
    """Nearly every message is taken by one that is: each statement is paid for."""
    one, two = await shared("one"), await shared("two")
    at = await begin(one)
    known = await append(one, at, record(1))
    said = []
    at = await append(two, at, record(2))  # and what types the columns have
    known = await append(one, known, record(2), record(3))
    two.engine.link._connection.add_query_logger(lambda each: said.append(each.query))
    behind = await append(two, at, record(4))
    assert (behind.records, behind.chain) == ((record(2), record(3)), known.chain)
    assert len(said) == 2  # what it wanted to write, and what it missed
    assert isinstance(await append(two, behind, record(4)), Committed)
    assert len(said) == 3  # a plain step is one statement
    # Whose own history is another one reads all of this one, of one moment.
    whole = await append(two, Committed(1, bytes(16), None), record(5))
    assert (len(whole.records), whole.whole) == (4, True)


async def test_replicas_are_listed_with_their_downtime(shared):
    clock = Clock()
    one = await shared("one", now=clock)
    await one.commit(Heartbeat(replica("one")))
    clock.seconds += 5
    await one.commit(Heartbeat(replica("two")))
    listed = await one.read(ListReplicas())
    assert [(row.replica, row.silent_seconds) for row in listed] == [
        (replica("one"), 5.0),
        (replica("two"), 0.0),
    ]


async def test_of_two_replicas_with_different_names_one_is_rejected(shared, empty):
    """Both are delayed before their heartbeat, and continue together."""
    clock = Clock()
    stores = [await shared(name, now=clock) for name in ("one", "two")]
    others = [
        Replica(name, "127.0.0.1:1", "1.0", f"agg-{name}") for name in ("one", "two")
    ]
    holding = await asyncpg.connect(empty)
    try:
        async with holding.transaction():
            await holding.execute("SELECT 1 FROM secagg.store FOR UPDATE")
            beating = [
                asyncio.ensure_future(store.commit(Heartbeat(other)))
                for store, other in zip(stores, others, strict=True)
            ]
            while await sql(empty, WAITING) != [(2,)]:
                pass
        answers = await asyncio.gather(*beating, return_exceptions=True)
    finally:
        await holding.close()
    (refused,) = [each for each in answers if each is not None]
    assert refused.code is ErrorCode.BAD_SETTINGS
    (listed,) = await stores[0].read(ListReplicas())
    assert listed.replica == others[answers.index(None)]
    # Who is in stays in; the other may come when it has gone, or was silent for long.
    await stores[answers.index(None)].commit(Heartbeat(listed.replica))
    clock.seconds += 16
    late = answers.index(refused)
    await stores[late].commit(Heartbeat(others[late]))
    with pytest.raises(ServiceError, match="agg-"):
        await stores[1 - late].commit(Heartbeat(others[1 - late]))


async def test_no_writer_changes_a_restored_session_undetected(shared, empty):
    one = await shared("one")
    await one.commit(Heartbeat(replica("one")))
    two = await shared("two")
    at = await begin(one)
    await sql(empty, "UPDATE secagg.session SET timeline = '00000000'")
    with pytest.raises(StoreFailoverError):
        await append(one, at, record(1))
    await cut_off(empty, two)  # on its way back it finds the fail-over
    assert (await two.read(LoadSession("a"))).restored
    with pytest.raises(StoreFailoverError):
        await append(one, at, record(1))
    known = {"expect": at.sequence, "previous": at.chain}
    with pytest.raises(StoreFailoverError):
        await one.read(ReadMissed("a", **known))
    # A process that knows it may read and write.
    assert (await two.read(ReadMissed("a", **known, restored=True))).records == ()
    assert isinstance(await append(two, at, record(1), restored=True), Committed)
