"""Statements of PostgreSQL alone, and its connection in the form that a store expects.

Rule 1: a plain step, which is nearly every one, is *one statement*: it compares count,
        chain, timeline and deadline, appends and counts the commit.  A process that is
        suspended in the middle holds no lock.
Rule 2: any other change is applied by the rules of `secagg.storage.changes`. Its
        transaction holds the session's row and the lock of its task.
Rule 3: nothing is written where the session is at another position. One further
        statement then reads the reason (`MissedRecords`, `Ended`, too early,
        `StoreFailoverError`).
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import asyncpg

from secagg.storage.change import (
    Change,
    Committed,
    Ended,
    LeaseLostError,
    MissedRecords,
    Outcome,
)
from secagg.storage.changes import (
    PlaceTakenError,
    SessionRows,
    apply_change,
    place_taken,
)
from secagg.storage.postgres.migrations import Database
from secagg.storage.postgres.notifications import (
    CHANNEL,
    INSTANT,
    PostgresSharing,
    attended_sql,
    held_lease,
    lease_arguments,
)
from secagg.storage.queries import behind, records_of, session_at, verified_records
from secagg.storage.store import StateDamagedError, StoreFailoverError, unknown_session
from secagg.storage.tables import (
    MILLISECONDS,
    Row,
    SessionColumns,
    Sharing,
    chains_after,
)

# "task": sets these locks apart from the one of the store and those of replicas.
_TASK_LOCKS: Final = 0x7461736B

_TIMELINE: Final = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
_COLUMNS: Final = SessionColumns._fields

_APPEND: Final = f"""
WITH clock AS MATERIALIZED (SELECT {INSTANT} AS instant),
s AS (
    UPDATE session SET
        sequence = sequence + cardinality($7::bigint[]),
        chain = $6,
        round = coalesce($4::integer, round),
        opened = CASE WHEN $4::integer IS NULL THEN opened ELSE instant END,
        deadline = CASE WHEN $5::bigint IS NULL THEN deadline
            WHEN $13::boolean THEN greatest(deadline, instant + $5)
            ELSE instant + $5 END
    FROM clock
    WHERE key = $2 AND sequence = $11 AND chain = $3 AND ended IS NULL
        AND timeline = {_TIMELINE} AND (NOT restored OR $14::boolean)
        AND (NOT $12::boolean OR (deadline <= instant AND {attended_sql("instant")}))
        AND {held_lease(15)}
    RETURNING position, deadline - instant AS milliseconds_left
),
r AS (
    INSERT INTO record (session, sequence, kind, sender, chain, body)
    SELECT s.position, $11::bigint + u.o - 1, u.kind, u.sender, u.chain, u.body
    FROM s, unnest($7::bigint[], $8::text[], $9::bytea[], $10::bytea[])
        WITH ORDINALITY AS u (kind, sender, chain, body, o)
),
g AS (UPDATE store SET generation = generation + 1 FROM s RETURNING generation)
SELECT s.position, s.milliseconds_left, g.generation,
    CASE WHEN $4::integer IS NOT NULL THEN pg_notify('{CHANNEL}', '') END FROM s, g
"""  # noqa: S608 - our own words

_MISSED: Final = f"""
SELECT {", ".join(f"s.{name}" for name in _COLUMNS)},
    {_TIMELINE}, {INSTANT}, {held_lease(4)},
    CASE WHEN $3::bigint = 0 THEN s.start ELSE
        (SELECT chain FROM record WHERE session = s.position AND sequence = $3 - 1) END,
    r.sequence, r.kind, r.sender, r.chain, r.body
FROM session AS s LEFT JOIN record AS r
    ON r.session = s.position AND r.sequence >= $3 AND s.receipt IS NULL
WHERE s.key = $2 ORDER BY r.sequence
"""  # noqa: S608 - our own words

_STEP: Final = f"""
WITH clock AS MATERIALIZED (SELECT {INSTANT} AS instant)
SELECT instant, {_TIMELINE}, {attended_sql("instant")}, {held_lease(3)},
    s.timeline, s.restored, s.receipt IS NOT NULL
FROM clock LEFT JOIN session AS s ON s.key = $2
"""  # noqa: S608 - our own words


class PostgresConnection:
    """Implements `secagg.storage.tables.Connection` on a connection of asyncpg.

    Args:
        database: Of asyncpg.
        instant: A test's clock in milliseconds, or None for the database's.
    """

    is_checksummed = False
    duplicate_error: type[Exception] = asyncpg.UniqueViolationError

    def __init__(self, database: Database, instant: int | None) -> None:
        self._database = database
        self._instant = instant
        self._now: int | None = None
        self._timeline: str | None = None
        self.is_attended = True
        self.sharing: Sharing = PostgresSharing(database, instant)

    async def execute(self, sql: str, *arguments: object) -> None:
        """Run a statement."""
        await self._database.execute(sql, *arguments)

    async def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each sequence of arguments."""
        await self._database.executemany(sql, rows)

    async def fetch(self, sql: str, *arguments: object) -> Sequence[Row]:
        """Return the rows of a query."""
        rows: Sequence[Row] = await self._database.fetch(sql, *arguments)
        return rows

    async def fetchrow(self, sql: str, *arguments: object) -> Row | None:
        """Return the first row of a query, or None."""
        row: Row | None = await self._database.fetchrow(sql, *arguments)
        return row

    async def now(self) -> int:
        """Return the store's time in milliseconds: one for a transaction."""
        if self._now is None:
            now = await self._database.fetchval(f"SELECT {INSTANT}", self._instant)
            self._now = int(now)
        return self._now

    async def lock(self, name: str) -> None:
        """Keep other transactions that lock this name waiting until this one ends."""
        await self._database.execute(f"SELECT {_lock_of('$1')}", name)

    async def next_position(self) -> int:
        """Return the position of a new session."""
        query = "SELECT nextval(pg_get_serial_sequence('session', 'position'))"
        return int(await self._database.fetchval(query))

    async def timeline(self) -> str:
        """Return the history that the database is on; another after each fail-over."""
        if self._timeline is None:
            self._timeline = str(await self._database.fetchval(f"SELECT {_TIMELINE}"))
        return self._timeline

    async def notify(self) -> None:
        """Wake the replicas when the transaction commits."""
        await self._database.execute(f"SELECT pg_notify('{CHANNEL}', '')")

    async def faults(self) -> list[str]:
        """Return the faults of the database, which needs its own checksums."""
        if await self._database.fetchval("SHOW data_checksums") == "on":
            return []
        return ["data checksums are disabled; enable them with pg_checksums"]

    async def begin_step(self, change: Change) -> None:
        """Lock the rows that a change reads, and check that its writer may write.

        Raises:
            StoreFailoverError: The session is of an older timeline, and its writer does
                not know.
            LeaseLostError: The change's lease is no longer held.
        """
        if change.create is None:
            await self._database.execute(
                f"SELECT {_lock_of('task')} FROM session WHERE key = $1 FOR UPDATE",  # noqa: S608 - our own words
                change.key,
            )
        else:
            await self.lock(change.create.task)
        (
            self._now,
            self._timeline,
            self.is_attended,
            is_held,
            timeline,
            is_restored,
            is_over,
        ) = await self._database.fetchrow(
            _STEP, self._instant, change.key, *lease_arguments(change.lease)
        )
        if is_over:
            return
        if timeline is not None:
            _check_failover(change, timeline, self._timeline, is_restored=is_restored)
        if change.lease is not None and not is_held:
            raise LeaseLostError(change.lease)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Holds the result of a change.

    Attributes:
        outcome: The answer.
        generation: Number of commits of the store, with this one; None where nothing
            was written.
    """

    outcome: Outcome
    generation: int | None


async def apply_step(
    database: Database,
    change: Change,
    *,
    instant: int | None,
) -> CommitResult:
    """Apply a change completely, or return why it was not applied.

    Args:
        database: Of asyncpg.
        change: What one step does.
        instant: A test's clock in milliseconds, or None for the database's.

    Raises:
        SecAggError: See `Store.commit`.
    """
    try:
        if _is_plain(change):
            written = await _append(database, change, instant)
        else:
            async with database.transaction():
                return await _apply(database, change, instant)
    except (PlaceTakenError, asyncpg.UniqueViolationError):
        connection = PostgresConnection(database, instant)
        raise await place_taken(connection, change) from None
    if written is None:
        return CommitResult(await rejection_of(database, change, instant=instant), None)
    return written


def _is_plain(change: Change) -> bool:
    others = (change.create, change.reseal, change.charge, change.settle)
    lasting = (change.end, change.facts)
    return not change.spend and all(each is None for each in (*others, *lasting))


async def _append(
    database: Database,
    change: Change,
    instant: int | None,
) -> CommitResult | None:
    """Append the change's records, if the writer knows the session's position."""
    chains = chains_after(change.previous, change.expect, change.records)
    last = chains[-1] if chains else change.previous
    seconds = change.deadline_seconds
    row = await database.fetchrow(
        _APPEND,
        instant,
        change.key,
        change.previous,
        change.round,
        None if seconds is None else int(seconds * MILLISECONDS),
        last,
        [record.kind for record in change.records],
        [record.sender for record in change.records],
        chains,
        [record.body for record in change.records],
        change.expect,
        change.due,
        change.extend,
        change.restored,
        *lease_arguments(change.lease),
    )
    if row is None:
        return None
    _, left, generation, _ = row
    seconds_left = None if left is None else left / MILLISECONDS
    sequence = change.expect + len(change.records)
    return CommitResult(Committed(sequence, last, seconds_left), generation)


async def _apply(
    database: Database,
    change: Change,
    instant: int | None,
) -> CommitResult:
    """Apply a change that is more than its records, inside a transaction."""
    connection = PostgresConnection(database, instant)
    await connection.begin_step(change)
    rows = SessionRows(connection)
    outcome = await apply_change(rows, change)
    if not isinstance(outcome, Committed):
        return CommitResult(outcome, None)
    await rows.write()
    if change.end is not None or change.round is not None:
        await connection.notify()
    if change.end is not None:
        await PostgresSharing(database, instant).delete_leases(change.key)
    return CommitResult(outcome, await count_commit(database))


async def count_commit(database: Database) -> int:
    """Count a commit; return the number of commits."""
    generation: int | None = await database.fetchval(
        "UPDATE store SET generation = generation + 1 RETURNING generation"
    )
    if generation is None:
        raise StateDamagedError("the database does not say which store it is")
    return generation


def snapshot(database: Database) -> AbstractAsyncContextManager[object]:
    """Read everything in a block from one snapshot."""
    context: AbstractAsyncContextManager[object] = database.transaction(
        isolation="repeatable_read", readonly=True
    )
    return context


async def rejection_of(
    database: Database,
    change: Change,
    *,
    instant: int | None,
) -> MissedRecords | Ended:
    """Return why a change of a session was not applied.

    A replica needs it for nearly every message while others accept messages, too. So it
    is one statement, which reads one snapshot.

    Args:
        database: A connection of asyncpg without an open transaction.
        change: The change.
        instant: A test's clock in milliseconds, or None for the database's.

    Raises:
        StateDamagedError: The records that the writer missed contradict each other.
        LeaseLostError: The change's lease is no longer held.
        StoreFailoverError: The session is of an older timeline, and its writer does not
            know.
        ServiceError: STORAGE_FAILED; the session was never created.
    """
    rows = await database.fetch(
        _MISSED, instant, change.key, change.expect, *lease_arguments(change.lease)
    )
    if not rows:
        raise unknown_session(change.key)
    width = len(_COLUMNS)
    session = SessionColumns(*rows[0][:width])
    timeline, now, is_held, chain, first = rows[0][width : width + 5]
    if session.receipt is not None:
        return Ended(session.receipt)
    _check_failover(change, session.timeline, timeline, is_restored=session.restored)
    if change.lease is not None and not is_held:
        raise LeaseLostError(change.lease)
    if (session.sequence, session.chain) == (change.expect, change.previous):
        return behind(session, (), whole=False, instant=now)  # the timer is not due
    # The count alone is not enough: another history may be as long.
    if chain != change.previous:
        return await _whole_history(database, change.key, instant=now)
    records = [] if first is None else [row[width + 4 :] for row in rows]
    missed = verified_records(session, records, after=change.expect, chain=chain)
    return behind(session, missed, whole=False, instant=now)


async def _whole_history(
    database: Database,
    key: str,
    *,
    instant: int,
) -> MissedRecords:
    """Return all records of a session, for a writer with another history."""
    async with snapshot(database):
        connection = PostgresConnection(database, instant)
        session = await session_at(connection, key)
        if session is None:
            raise unknown_session(key)
        records = await records_of(connection, session, after=0)
    return behind(session, records, whole=True, instant=instant)


def _lock_of(name: str) -> str:
    return f"pg_advisory_xact_lock({_TASK_LOCKS}, hashtext({name}))"


def _check_failover(
    change: Change, written: str, current: str | None, *, is_restored: bool
) -> None:
    if written != current or (is_restored and not change.restored):
        raise StoreFailoverError(change.key)
