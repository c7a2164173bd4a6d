"""What a change does to the tables of a book in PostgreSQL.

Rule 1: a plain step, which is nearly every one, is *one statement*: it compares count,
        chain, timeline and deadline, appends and counts the commit.  A process that is
        stopped in the middle holds no lock.
Rule 2: whatever else a change does happens behind the same statement, in one
        transaction with it.
Rule 3: nothing is written where the session stands elsewhere; the reason is asked for
        afterwards, and told apart (`MissedRecords`, `Ended`, too early,
        `StoreFailoverError`).
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import asyncpg

from secagg.errors import InternalError
from secagg.protocol.enrolment.revocation_list import refuse_older
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import Charge, ChargeState, Settlement, is_new_charge
from secagg.storage.change import (
    Change,
    Committed,
    DuplicateRecordError,
    Ended,
    MissedRecords,
    NewSession,
    NumberTakenError,
    Record,
    Role,
    SessionConflictError,
    SessionsSpentError,
    first_number_after_restore,
)
from secagg.storage.data_claims import Claim, columns_of
from secagg.storage.hash_chain import chain_next, chain_start
from secagg.storage.postgres.database import Database
from secagg.storage.postgres.notifications import (
    CHANNEL,
    SOMEBODY_WAS_THERE,
    forget_leases,
    notify,
)
from secagg.storage.postgres.queries import (
    FIRST_NUMBER,
    INSTANT,
    TIMELINE,
    held_lease,
    lease_words,
    read_charges,
    read_claims,
    read_revocations,
    session_at,
    why_not,
)
from secagg.storage.rows import Retention, Task
from secagg.storage.session_columns import (
    MILLISECONDS,
    PURGE_ROWS,
    chain_start_of,
    refuse_beyond,
)
from secagg.storage.store import StateDamagedError, unknown_session

Outcome: TypeAlias = Committed | MissedRecords | Ended


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a change has led to.

    Attributes:
        outcome: The answer.
        generation: How many commits the book has seen with it; None where nothing was
            written.
    """

    outcome: Outcome
    generation: int | None


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
        AND timeline = {TIMELINE} AND (NOT restored OR $14::boolean)
        AND (NOT $12::boolean OR (deadline <= instant AND {SOMEBODY_WAS_THERE}))
        AND {held_lease(15)}
    RETURNING position, deadline - instant AS milliseconds_left
),
r AS (
    INSERT INTO record (session, sequence, kind, sender, chain, body)
    SELECT s.position, $11::bigint + u.o - 1, u.kind, u.sender, u.chain, u.body
    FROM s, unnest($7::bigint[], $8::text[], $9::bytea[], $10::bytea[])
        WITH ORDINALITY AS u (kind, sender, chain, body, o)
),
g AS (UPDATE book SET generation = generation + 1 FROM s RETURNING generation)
SELECT s.position, s.milliseconds_left, g.generation,
    CASE WHEN $4::integer IS NOT NULL THEN pg_notify('{CHANNEL}', '') END FROM s, g
"""  # noqa: S608 - our own words


async def apply_change(
    database: Database, change: Change, *, instant: int | None
) -> CommitResult:
    """Apply a change whole, or say why not.

    Args:
        database: The book's.
        change: What one step does.
        instant: A test's clock in milliseconds, or None for the database's.

    Raises:
        SecAggError: See `Book.commit`; also `StoreFailoverError`.
    """
    try:
        if _is_plain(change):
            written = await _append(database, change, change.previous, instant)
        else:
            async with database.transaction():
                written = await _apply(database, change, instant)
    except asyncpg.UniqueViolationError:
        raise await _second(database, change) from None
    if written is None:
        return CommitResult(await why_not(database, change, instant=instant), None)
    return written


def _is_plain(change: Change) -> bool:
    others = (change.create, change.reseal, change.charge, change.settle)
    lasting = (change.end, change.facts)
    return not change.spend and all(each is None for each in (*others, *lasting))


async def _append(
    database: Database, change: Change, previous: bytes, instant: int | None
) -> CommitResult | None:
    """Append the change's records, if the session stands where the writer believes."""
    chains = _chains(previous, change.expect, change.records)
    last = chains[-1] if chains else previous
    seconds = change.deadline_seconds
    row = await database.fetchrow(
        _APPEND,
        instant,
        change.key,
        previous,
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
        *lease_words(change.lease),
    )
    if row is None:
        return None
    _, left, generation, _ = row
    seconds_left = None if left is None else left / MILLISECONDS
    sequence = change.expect + len(change.records)
    return CommitResult(Committed(sequence, last, seconds_left), generation)


def _chains(chain: bytes, after: int, records: tuple[Record, ...]) -> list[bytes]:
    chains = []
    for sequence, record in enumerate(records, after):
        chain = chain_next(chain, sequence, record)
        chains.append(chain)
    return chains


async def _apply(
    database: Database, change: Change, instant: int | None
) -> CommitResult | None:
    """Apply a change that is more than its records, inside a transaction."""
    previous = change.previous
    if change.create is not None:
        previous = await _create(database, change.key, change.create, instant)
    written = await _append(database, change, previous, instant)
    if written is None or not isinstance(written.outcome, Committed):
        return None
    await _apply_to_budgets(database, change, instant)
    if change.end is not None:
        await notify(database)
        await forget_leases(database, change.key)
        await _replace(database, change.key, b"")
        await database.execute(
            f"UPDATE session SET ended = {INSTANT}, receipt = $3 WHERE key = $2",  # noqa: S608 - our own words
            instant,
            change.key,
            change.end,
        )
    if change.reseal is None:
        return written
    sequence, last = await _reseal(
        database, change.key, change.reseal.header, change.reseal.records
    )
    left = written.outcome.seconds_left
    return CommitResult(Committed(sequence, last, left), written.generation)


async def _create(
    database: Database, key: str, new: NewSession, instant: int | None
) -> bytes:
    """Begin a session; return the chain value before its first record."""
    numbered = (new.role.value, new.task, new.peer)
    await database.execute(
        "INSERT INTO tally (role, task, peer, highest_number) "  # noqa: S608 - our own words
        f"VALUES ($1, $2, $3, {FIRST_NUMBER}) ON CONFLICT DO NOTHING",
        *numbered,
    )
    row = await database.fetchrow(
        "SELECT highest_number FROM tally "
        "WHERE role = $1 AND task = $2 AND peer = $3 FOR UPDATE",
        *numbered,
    )
    highest = 0 if row is None else int(row[0])
    if new.number <= highest:
        raise NumberTakenError(new, highest=highest)
    # Before it is counted: the session that stands in the way may be the last allowed.
    await _refuse_overtaken(database, new)
    if new.allowed is not None:
        # A session that runs may yet be spent: it must not be promised twice.
        row = await database.fetchrow(
            "SELECT (SELECT count(*) FROM session WHERE role = $1 AND task = $2 "
            "AND peer = $3 AND ended IS NULL AND NOT spent) "
            "+ (SELECT coalesce(sum(spent), 0)::bigint FROM tally "
            "WHERE role = $1 AND task = $2 AND peer = $3)",
            *numbered,
        )
        used = 0 if row is None else int(row[0])
        if used >= new.allowed:
            raise SessionsSpentError(new, used=used)
    await database.execute(
        "UPDATE tally SET highest_number = $4 "
        "WHERE role = $1 AND task = $2 AND peer = $3",
        *numbered,
        new.number,
    )
    start = chain_start(key, new)
    begun = await database.fetchrow(
        "INSERT INTO session (key, role, task, peer, number, sequence, round, born, "
        "start, chain, timeline, spent, restored, header) "
        f"SELECT $2, $3, $4, $5, $6, 0, 0, {INSTANT}, $7, $7, {TIMELINE}, false, "
        "false, $8 ON CONFLICT (key) DO NOTHING RETURNING position",
        instant,
        key,
        *numbered,
        new.number,
        start,
        new.header,
    )
    if begun is None:
        raise InternalError(f"session {key} is created twice under two numbers")
    return start


async def _refuse_overtaken(database: Database, new: NewSession) -> None:
    if new.alone and await database.fetchrow(
        "SELECT 1 FROM session WHERE role = $1 AND task = $2 AND ended IS NULL",
        new.role.value,
        new.task,
    ):
        raise SessionConflictError(new, complaint="another one of the task is open")
    # Locked: who changes the task waits until the session is there to be found.
    if new.task_version is not None and not await database.fetchrow(
        "SELECT 1 FROM task WHERE task_id = $1 AND version = $2 FOR SHARE",
        new.task,
        new.task_version,
    ):
        raise SessionConflictError(new, complaint="the task was changed meanwhile")


async def _apply_to_budgets(
    database: Database, change: Change, instant: int | None
) -> None:
    if change.spend:
        await database.execute(
            "WITH first AS (UPDATE session SET spent = true "
            "WHERE key = $1 AND NOT spent RETURNING role, task, peer) "
            "UPDATE tally SET spent = tally.spent + 1 FROM first "
            "WHERE (tally.role, tally.task, tally.peer) "
            "= (first.role, first.task, first.peer)",
            change.key,
        )
    if change.facts is not None:
        await database.execute(
            "UPDATE tally SET facts = $2 FROM session WHERE session.key = $1 "
            "AND (tally.role, tally.task, tally.peer) "
            "= (session.role, session.task, session.peer)",
            change.key,
            change.facts,
        )
    if change.charge is not None:
        await _charge(database, change.charge, instant)
    if change.settle is not None:
        await settle_charge(database, change.settle, instant=instant)


async def _charge(database: Database, charge: Charge, instant: int | None) -> None:
    budget = charge.budget
    if is_new_charge(await read_charges(database, budget.task), charge):
        await database.execute(
            "INSERT INTO charge (trust_domain, aggregator, task, session_id, "
            "noise_digest, state, allowed, refunds, at) "
            f"SELECT $2, $3, $4, $5, $6, $7, $8, $9, {INSTANT}",
            instant,
            budget.trust_domain,
            budget.aggregator,
            budget.task,
            charge.session_id,
            charge.noise_digest,
            ChargeState.BOUND.value,
            charge.allowed,
            charge.refunds,
        )


async def settle_charge(
    database: Database, settlement: Settlement, *, instant: int | None
) -> None:
    """See `Book.settle`: what is settled stays as it is."""
    await database.execute(
        f"UPDATE charge SET state = $4, at = {INSTANT} "  # noqa: S608 - our own words
        "WHERE task = $2 AND session_id = $3 AND state = $5",
        instant,
        settlement.task,
        settlement.session_id,
        settlement.state.value,
        ChargeState.BOUND.value,
    )


async def put_claim(
    database: Database, claim: Claim, *, after: int, instant: int | None
) -> bool:
    """See `Book.put_claim`."""
    # One at a time: of two that have judged the same claims one would exceed a total.
    await database.execute("LOCK TABLE claim IN EXCLUSIVE MODE")
    if len(await read_claims(database, claim.data)) != after:
        return False
    named = columns_of(claim)
    places = ", ".join(f"${number}" for number in range(2, len(named) + 2))
    await database.execute(
        f"INSERT INTO claim ({', '.join(named)}, at) SELECT {places}, {INSTANT}",
        instant,
        *named.values(),
    )
    return True


async def _reseal(
    database: Database, key: str, header: bytes, records: tuple[Record, ...]
) -> tuple[int, bytes]:
    """Begin the session's journal afresh; return its length and last chain value."""
    session = await session_at(database, key)
    if session is None:
        raise unknown_session(key)
    await _replace(database, key, header)
    start = chain_start_of(session, header)
    chains = _chains(start, 0, records)
    last = chains[-1] if chains else start
    await database.execute(
        "UPDATE session SET start = $2, chain = $3, sequence = $4 WHERE key = $1",
        key,
        start,
        last,
        len(records),
    )
    await database.executemany(
        "INSERT INTO record (session, sequence, kind, sender, chain, body) "
        "VALUES ($1, $2, $3, $4, $5, $6)",
        [
            (session.position, place, record.kind, record.sender, chain, record.body)
            for place, (record, chain) in enumerate(zip(records, chains, strict=True))
        ],
    )
    return len(records), last


async def _replace(database: Database, key: str, header: bytes) -> None:
    """Remove all records and exchange the header."""
    await database.execute(
        "DELETE FROM record USING session "
        "WHERE record.session = session.position AND session.key = $1",
        key,
    )
    await database.execute("UPDATE session SET header = $2 WHERE key = $1", key, header)


async def _second(database: Database, change: Change) -> Exception:
    """Say which record of a change has taken a place that is taken."""
    taken: set[tuple[object, object]] = set()
    records = change.records
    if change.reseal is not None:
        records = change.reseal.records
    elif (session := await session_at(database, change.key)) is not None:
        rows = await database.fetch(
            "SELECT kind, sender FROM record WHERE session = $1", session.position
        )
        taken = {(kind, sender) for kind, sender in rows}
    for record in records:
        named = (record.kind, record.sender)
        if record.sender is not None and named in taken:
            # The position has matched, so that it must be the sender's second.
            return DuplicateRecordError(change.key, record)
        taken.add(named)
    return refuse_beyond(change.key, change.expect)


# --- between sessions -----------------------------------------------------------------


async def count_commit(database: Database) -> int:
    """Count a commit that is no step of a session; return how many there were."""
    row = await database.fetchrow(
        "UPDATE book SET generation = generation + 1 RETURNING generation"
    )
    if row is None:
        raise StateDamagedError("the database does not say which book it is")
    return int(row[0])


async def put_task(database: Database, task: Task, *, expect_version: int) -> bool:
    """See `Book.put_task`."""
    columns = (task.task_id, task.state.value, task.settings, task.plan, task.reason)
    if expect_version:
        statement = (
            "UPDATE task SET version = version + 1, state = $2, settings = $3, "
            "plan = $4, reason = $5 WHERE task_id = $1 AND version = $6 RETURNING 1"
        )
    else:
        statement = (
            "INSERT INTO task (task_id, state, settings, plan, reason, version) "
            "VALUES ($1, $2, $3, $4, $5, $6 + 1) ON CONFLICT DO NOTHING RETURNING 1"
        )
    await notify(database)
    return await database.fetchrow(statement, *columns, expect_version) is not None


async def put_facts(
    database: Database, task: str, facts: bytes, *, instead_of: bytes
) -> bool:
    """See `Book.put_facts`."""
    whose = (Role.SERVER.value, task)
    await database.execute(
        "INSERT INTO tally (role, task, peer, highest_number) "  # noqa: S608 - our own words
        f"VALUES ($1, $2, '', {FIRST_NUMBER}) ON CONFLICT DO NOTHING",
        *whose,
    )
    done = await database.fetchrow(
        "UPDATE tally SET facts = $3 WHERE role = $1 AND task = $2 AND peer = '' "
        "AND facts = $4 RETURNING 1",
        *whose,
        facts,
        instead_of,
    )
    return done is not None


async def see_revocations(database: Database, trust: Trust) -> None:
    """See `Book.see_revocations`."""
    seen = await read_revocations(database, trust.enrolment_key, trust.trust_domain)
    if seen is not None:
        refuse_older(trust, seen=seen)
    await database.execute(
        "INSERT INTO revocation (enrolment_key, trust_domain, number, digest) "
        "VALUES ($1, $2, $3, $4) ON CONFLICT (enrolment_key, trust_domain) "
        "DO UPDATE SET number = excluded.number, digest = excluded.digest",
        trust.enrolment_key,
        trust.trust_domain,
        trust.revocation_number,
        trust.revocation_hash,
    )


async def purge_receipts(
    database: Database, policy: Retention, *, instant: int | None
) -> tuple[str, ...]:
    """Remove up to `PURGE_ROWS` receipts that a policy does not keep."""
    rows = await database.fetch(
        "WITH gone AS (DELETE FROM session WHERE position IN (SELECT position FROM "  # noqa: S608 - our own words
        "(SELECT position, ended, row_number() OVER (PARTITION BY role, task "
        "ORDER BY position DESC) AS place FROM session WHERE ended IS NOT NULL) AS old "
        f"WHERE ended < {INSTANT} - $2::bigint OR place > $3 "
        "ORDER BY position LIMIT $4) RETURNING position, key) "
        "SELECT key FROM gone ORDER BY position",
        instant,
        int(policy.keep_receipts_days * 86400 * MILLISECONDS),
        policy.keep_receipts,
        PURGE_ROWS,
    )
    return tuple(key for (key,) in rows)


async def mark_restored(database: Database, *, everything: bool) -> bool:
    """Note of open sessions that what was sent for them may be forgotten.

    Args:
        database: The book's.
        everything: All that are open; else those that an older timeline has written.

    Returns:
        Whether there were any.
    """
    marked = await database.fetch(
        f"UPDATE session SET restored = true, timeline = {TIMELINE} "  # noqa: S608 - our own words
        f"WHERE ended IS NULL AND ($1 OR timeline <> {TIMELINE}) RETURNING 1",
        everything,
    )
    return bool(marked)


async def pass_over_numbers(database: Database) -> None:
    """Have a server go on with session numbers that nobody has seen.

    In tasks that are forgotten as a whole, too: the tally of no task says where new
    ones begin.
    """
    server = Role.SERVER.value
    await database.execute(
        "INSERT INTO tally (role, task, peer) VALUES ($1, '', '') "
        "ON CONFLICT DO NOTHING",
        server,
    )
    await database.execute(
        "UPDATE tally SET highest_number = greatest(highest_number, $1) "
        "WHERE role = $2",
        first_number_after_restore(),
        server,
    )
