"""What a book in PostgreSQL says, read from its tables and verified.

Nothing here changes anything.  What takes more than one statement is read in one
snapshot: others may write meanwhile.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from typing import Final

from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import BudgetKey, ChargeRow, ChargeState
from secagg.storage.change import (
    Change,
    Ended,
    Lease,
    LeaseLostError,
    MissedRecords,
    Record,
    Role,
)
from secagg.storage.data_claims import Claim, ClaimRow, claim_of
from secagg.storage.postgres.database import Database
from secagg.storage.rollback_mark import Mark, mark_in
from secagg.storage.rows import (
    Finding,
    Replica,
    ReplicaRow,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
    Task,
    TaskRow,
    TaskState,
)
from secagg.storage.session_columns import (
    MILLISECONDS,
    SessionColumns,
    behind,
    session_row,
    stored_session,
    verified_header,
    verified_records,
)
from secagg.storage.store import StateDamagedError, StoreFailoverError, unknown_session

INSTANT: Final = (
    "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
)
"""The book's time in milliseconds: the database's, unless argument 1 says otherwise."""

TIMELINE: Final = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
"""The history that the database is on; another one after every fail-over."""

FIRST_NUMBER: Final = (
    "coalesce((SELECT new.highest_number FROM tally AS new "
    "WHERE new.role = $1 AND new.task = '' AND new.peer = ''), 0)"
)
"""Where numbers of a new task begin (`pass_over_numbers`); its role is argument 1."""

_COLUMNS: Final = ", ".join(field.name for field in fields(SessionColumns))
_CLAIM: Final = tuple(
    field.name
    for field in (*fields(BudgetKey), *fields(Claim))
    if field.name != "budget"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM session WHERE "  # noqa: S608 - our names


async def read_instant(database: Database, instant: int | None) -> int:
    """Return the book's time in milliseconds.

    Args:
        database: The book's.
        instant: A test's clock, or None for the database's.
    """
    row = await database.fetchrow(f"SELECT {INSTANT}", instant)
    return 0 if row is None else int(row[0])


async def session_at(database: Database, key: str) -> SessionColumns | None:
    """Return the row of a session, or None."""
    row = await database.fetchrow(_SELECT + "key = $1", key)
    return None if row is None else SessionColumns(*row)


def snapshot(database: Database) -> AbstractAsyncContextManager[object]:
    """Have all that a block reads be of one moment."""
    return database.transaction(isolation="repeatable_read", readonly=True)


async def load_session(
    database: Database, key: str, *, after: int, instant: int | None
) -> StoredSession | None:
    """See `Book.load`; inside a snapshot."""
    session = await session_at(database, key)
    if session is None:
        return None
    now = await read_instant(database, instant)
    return await _stored(database, session, after=after, instant=now)


async def missed(  # noqa: PLR0913 - as `Book.missed`, and whose clock
    database: Database,
    key: str,
    *,
    expect: int,
    previous: bytes,
    restored: bool,
    instant: int | None,
) -> MissedRecords | Ended:
    """See `Book.missed`."""
    nothing = Change(key=key, expect=expect, previous=previous, restored=restored)
    return await why_not(database, nothing, instant=instant)


async def _stored(
    database: Database, session: SessionColumns, *, after: int, instant: int
) -> StoredSession:
    header = b""
    records: tuple[Record, ...] = ()
    if session.receipt is None:
        row = await database.fetchrow(
            "SELECT header FROM session WHERE position = $1", session.position
        )
        header = verified_header(session, None if row is None else row[0])
        records = await _records(database, session, after=after)
    return stored_session(session, header, records, instant)


async def _records(
    database: Database, session: SessionColumns, *, after: int
) -> tuple[Record, ...]:
    rows = await database.fetch(
        "SELECT sequence, kind, sender, chain, body FROM record "
        "WHERE session = $1 AND sequence >= $2 ORDER BY sequence",
        session.position,
        after,
    )
    chain = await _chain_at(database, session, after)
    return verified_records(
        session,
        [(row[0], row[1], row[2], row[3], row[4]) for row in rows],
        after=after,
        chain=chain,
    )


async def _chain_at(
    database: Database, session: SessionColumns, sequence: int
) -> bytes | None:
    """Return the chain value before a record, or None if it is not so far yet."""
    if sequence == 0:
        return session.start
    row = await database.fetchrow(
        "SELECT chain FROM record WHERE session = $1 AND sequence = $2",
        session.position,
        sequence - 1,
    )
    return None if row is None else bytes(row[0])


async def why_not(
    database: Database, change: Change, *, instant: int | None
) -> MissedRecords | Ended:
    """Say why a change of a session was not applied.

    It is what a replica asks for nearly every message while others take some, too: one
    statement, which sees one moment.

    Args:
        database: The book's; no transaction is under way.
        change: The change.
        instant: A test's clock in milliseconds, or None for the database's.

    Raises:
        StateDamagedError: What the writer missed does not fit together.
        LeaseLostError: The change's lease is no longer held.
        StoreFailoverError: The session is of an older timeline, and its writer does not
            know.
        ServiceError: STORAGE_FAILED; there is no such session.
    """
    rows = await database.fetch(
        _MISSED, instant, change.key, change.expect, *lease_words(change.lease)
    )
    if not rows:
        raise unknown_session(change.key)
    session = SessionColumns(*rows[0][:_WIDTH])
    timeline, now, is_held, chain, first = rows[0][_WIDTH : _WIDTH + 5]
    if session.receipt is not None:
        return Ended(session.receipt)
    if session.timeline != timeline or (session.restored and not change.restored):
        raise StoreFailoverError(change.key)
    if change.lease is not None and not is_held:
        raise LeaseLostError(change.lease)
    if (session.sequence, session.chain) == (change.expect, change.previous):
        return behind(session, (), whole=False, instant=now)  # it is not due
    # The count alone would not do: another history may be as long.
    if chain != change.previous:
        return await _all_of_it(database, change.key, instant=now)
    records = [] if first is None else [tuple(row[_WIDTH + 4 :]) for row in rows]
    missed = verified_records(session, records, after=change.expect, chain=chain)
    return behind(session, missed, whole=False, instant=now)


async def _all_of_it(database: Database, key: str, *, instant: int) -> MissedRecords:
    """Return the whole history of a session, for whom it shares none with."""
    async with snapshot(database):
        session = await session_at(database, key)
        if session is None:
            raise unknown_session(key)
        records = await _records(database, session, after=0)
    return behind(session, records, whole=True, instant=instant)


def held_lease(first: int) -> str:
    """Return the condition that a lease is held, or that there is none.

    Args:
        first: Place of its name among the arguments; holder and token follow.
    """
    name, holder, token = (f"${first + place}" for place in range(3))
    return (
        f"({name}::text IS NULL OR EXISTS (SELECT 1 FROM lease WHERE name = {name} "  # noqa: S608 - our own words
        f"AND holder = {holder}::text AND token = {token}::bigint "
        f"AND expires > {INSTANT}))"
    )


def lease_words(lease: Lease | None) -> tuple[str | None, str | None, int | None]:
    """Return the arguments of `held_lease`."""
    return (None,) * 3 if lease is None else (lease.name, lease.holder, lease.token)


_WIDTH: Final = len(fields(SessionColumns))
_MISSED: Final = f"""
SELECT {", ".join(f"s.{field.name}" for field in fields(SessionColumns))},
    {TIMELINE}, {INSTANT}, {held_lease(4)},
    CASE WHEN $3::bigint = 0 THEN s.start ELSE
        (SELECT chain FROM record WHERE session = s.position AND sequence = $3 - 1) END,
    r.sequence, r.kind, r.sender, r.chain, r.body
FROM session AS s LEFT JOIN record AS r
    ON r.session = s.position AND r.sequence >= $3 AND s.receipt IS NULL
WHERE s.key = $2 ORDER BY r.sequence
"""  # noqa: S608 - our own words


async def list_sessions(  # noqa: PLR0913 - one argument per condition
    database: Database,
    *,
    role: Role,
    task: str | None,
    state: SessionState,
    before: int | None,
    limit: int | None,
) -> tuple[SessionRow, ...]:
    """See `Book.sessions`."""
    condition = {
        SessionState.RUNNING: "ended IS NULL",
        SessionState.ENDED: "ended IS NOT NULL",
        SessionState.ALL: "true",
    }[state]
    rows = await database.fetch(
        f"{_SELECT} role = $1 AND {condition} "
        "AND ($2::text IS NULL OR task = $2) "
        "AND ($3::bigint IS NULL OR position < $3) "
        "ORDER BY position DESC LIMIT $4",
        role.value,
        task,
        before,
        limit,
    )
    return tuple(session_row(SessionColumns(*row)) for row in rows)


async def read_tally(database: Database, role: Role, task: str, *, peer: str) -> Tally:
    """See `Book.tally`."""
    row = await database.fetchrow(
        "SELECT highest_number, spent, facts FROM tally "
        "WHERE role = $1 AND task = $2 AND peer = $3",
        role.value,
        task,
        peer,
    )
    if row is not None:
        return Tally(*row)
    new = await database.fetchrow(f"SELECT {FIRST_NUMBER}", role.value)
    return Tally() if new is None else Tally(highest_number=new[0])


async def read_tasks(database: Database) -> tuple[TaskRow, ...]:
    """See `Book.tasks`."""
    rows = await database.fetch(
        "SELECT task_id, state, settings, plan, reason, version FROM task "
        "ORDER BY task_id"
    )
    return tuple(
        [
            TaskRow(
                Task(task_id, TaskState(state), settings, plan, reason),
                version,
                await read_tally(database, Role.SERVER, task_id, peer=""),
            )
            for task_id, state, settings, plan, reason, version in rows
        ]
    )


async def list_replicas(
    database: Database, *, instant: int | None
) -> tuple[ReplicaRow, ...]:
    """See `Book.replicas`."""
    rows = await database.fetch(
        f"SELECT name, address, version, aggregator, started, {INSTANT} - seen "  # noqa: S608 - our own words
        "FROM replica ORDER BY started, name",
        instant,
    )
    return tuple(
        ReplicaRow(
            Replica(name, address, version, aggregator),
            started / MILLISECONDS,
            max(0.0, silent / MILLISECONDS),
        )
        for name, address, version, aggregator, started, silent in rows
    )


async def read_mark(database: Database) -> Mark | None:
    """Return how far the book has come; None when it does not say so."""
    return mark_in(await database.fetch("SELECT book_id, generation FROM book"))


async def read_charges(database: Database, task: str) -> tuple[ChargeRow, ...]:
    """See `Book.charges`."""
    rows = await database.fetch(
        "SELECT trust_domain, aggregator, session_id, noise_digest, state, allowed, "
        "refunds, at FROM charge "
        "WHERE task = $1 ORDER BY ordinal",
        task,
    )
    return tuple(
        ChargeRow(
            BudgetKey(trust_domain=trust_domain, aggregator=aggregator, task=task),
            session_id,
            noise_digest,
            ChargeState(state),
            allowed,
            refunds,
            at / MILLISECONDS,
        )
        for (
            trust_domain,
            aggregator,
            session_id,
            noise_digest,
            state,
            allowed,
            refunds,
            at,
        ) in rows
    )


async def read_claims(database: Database, data: str | None) -> tuple[ClaimRow, ...]:
    """See `Book.claims`."""
    rows = await database.fetch(
        f"SELECT {', '.join(_CLAIM)}, at FROM claim "  # noqa: S608 - our own names
        "WHERE $1::text IS NULL OR data = $1 ORDER BY ordinal",
        data,
    )
    found = []
    for *words, at in rows:
        named = dict(zip(_CLAIM, words, strict=True))
        found.append(ClaimRow(claim_of(named), at / MILLISECONDS))
    return tuple(found)


async def read_revocations(
    database: Database, enrolment_key: bytes, trust_domain: str
) -> Trust | None:
    """See `Book.seen_revocations`."""
    row = await database.fetchrow(
        "SELECT number, digest FROM revocation "
        "WHERE enrolment_key = $1 AND trust_domain = $2",
        enrolment_key,
        trust_domain,
    )
    return None if row is None else Trust(trust_domain, enrolment_key, row[0], row[1])


async def find_faults(database: Database) -> tuple[Finding, ...]:
    """Verify every header and every chain, and that the rest has checksums too."""
    faults = []
    row = await database.fetchrow("SHOW data_checksums")
    if row is None or row[0] != "on":
        faults.append(
            Finding("", "the database keeps no checksums of its pages (pg_checksums)")
        )
    for (key,) in await database.fetch("SELECT key FROM session ORDER BY position"):
        try:
            await load_session(database, key, after=0, instant=0)
        except StateDamagedError as error:
            faults.append(Finding(error.key, str(error)))
    return tuple(faults)
