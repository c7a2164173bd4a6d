"""What a store can be told to write: each command with its SQL and its rules.

Rule 1: nothing here begins or ends a transaction: that is the engine's, which rolls
        back after any error.
Rule 2: the session's position is compared before anything is written.
Rule 3: a transaction reads and writes a session's row once, however many changes of it
        come together.
Rule 4: what is read before a decision is locked first, by the name of its task, or of
        its table (`Connection.lock`).
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.enrolment import refuse_older
from secagg.protocol.profiles import Trust
from secagg.runtime import log_events as telemetry
from secagg.storage.budget_ledger import (
    Charge,
    ChargeState,
    Claim,
    Settlement,
    columns_of,
    is_new_charge,
    settled,
)
from secagg.storage.change import (
    Change,
    Committed,
    DuplicateRecordError,
    NewSession,
    NumberTakenError,
    Outcome,
    Record,
    SessionConflictError,
    SessionsSpentError,
    Side,
    StoreUpdate,
    first_number_after_restore,
)
from secagg.storage.queries import (
    ListCharges,
    ListClaims,
    ReadRevocations,
    chain_start_of,
    conflict_for,
    seconds_left,
    session_at,
    tally_at,
)
from secagg.storage.rows import Retention, Task
from secagg.storage.store import StateDamagedError, unknown_session
from secagg.storage.tables import (
    CHARGES,
    CLAIMS,
    MILLISECONDS,
    REVOCATIONS,
    SESSIONS,
    TALLIES,
    TASKS,
    ChargeColumns,
    ClaimColumns,
    Connection,
    RevocationColumns,
    SessionColumns,
    TaskColumns,
    chain_start,
    chains_after,
)

if TYPE_CHECKING:
    from secagg.storage.client_store import ClientRecords

# A receipt is rarely removed; a pause of the writer this long is not noticed.
PURGE_ROWS: Final = 500


# --- between the steps of sessions ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Touch(StoreUpdate[None]):
    """Write as a change does, without changing anything, to test the store."""

    async def run(self, connection: Connection) -> None:
        """Write."""
        await connection.execute("UPDATE store SET generation = generation")


@dataclass(frozen=True, slots=True)
class PutTask(StoreUpdate[bool]):
    """Store a task if its version is still this one; else False.

    Attributes:
        task: The task.
        expect_version: Its version; 0 for a new task.
    """

    task: Task
    expect_version: int

    async def run(self, connection: Connection) -> bool:
        """Store it."""
        task = self.task
        await connection.lock(task.task_id)
        found = await TASKS.one(connection, "task_id = $1", task.task_id)
        if (0 if found is None else found.version) != self.expect_version:
            return False
        named = asdict(task) | {"state": task.state.value}
        row = TaskColumns(version=self.expect_version + 1, **named)
        await TASKS.put(connection, row)
        await connection.notify()
        return True


@dataclass(frozen=True, slots=True)
class PutFacts(StoreUpdate[bool]):
    """Store the history of a task as `Change.facts` does; False if it has changed.

    It serves changes between sessions.

    Attributes:
        task: Name of the task.
        facts: The new history.
        instead_of: The history that must be stored until now.
    """

    task: str
    facts: bytes
    instead_of: bytes

    async def run(self, connection: Connection) -> bool:
        """Store them."""
        await connection.lock(self.task)
        tally = await tally_at(connection, Side.SERVER.value, self.task, "")
        if tally.facts != self.instead_of:
            return False
        await TALLIES.put(connection, tally._replace(facts=self.facts))
        return True


@dataclass(frozen=True, slots=True)
class PutClaim(StoreUpdate[bool]):
    """Add a claim if its data have as many as the caller has seen; else return False.

    Attributes:
        claim: The claim.
        after: Number of claims on the data that the caller has seen.
    """

    claim: Claim
    after: int

    async def run(self, connection: Connection) -> bool:
        """Add it."""
        await connection.lock("claim")
        if len(await ListClaims(self.claim.data).run(connection)) != self.after:
            return False
        at = await connection.now()
        await CLAIMS.put(connection, ClaimColumns(**columns_of(self.claim), at=at))
        return True


@dataclass(frozen=True, slots=True)
class RecordRevocations(StoreUpdate[None]):
    """Record a revocation list that was read completely; it is never deleted.

    Attributes:
        trust: The list.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION; a newer list, or another one of the same
            number, was recorded before.
    """

    trust: Trust

    async def run(self, connection: Connection) -> None:
        """Record it."""
        trust = self.trust
        await connection.lock("revocation")
        query = ReadRevocations(trust.enrolment_key, trust.trust_domain)
        seen = await query.run(connection)
        if seen is not None:
            refuse_older(trust, seen=seen)
        if seen != trust:
            row = RevocationColumns(
                trust.enrolment_key,
                trust.trust_domain,
                trust.revocation_number,
                trust.revocation_hash,
            )
            await REVOCATIONS.put(connection, row)


@dataclass(frozen=True, slots=True)
class PurgeReceipts(StoreUpdate[tuple[str, ...]]):
    """Delete up to `PURGE_ROWS` receipts; the answer names their sessions.

    Attributes:
        policy: Which receipts are kept.
    """

    policy: Retention

    async def run(self, connection: Connection) -> tuple[str, ...]:
        """Delete them."""
        days = self.policy.keep_receipts_days
        rows = await SESSIONS.find(
            connection,
            "position IN (SELECT position FROM (SELECT position, ended, row_number() "
            "OVER (PARTITION BY role, task ORDER BY position DESC) AS place "
            "FROM session WHERE ended IS NOT NULL) AS old WHERE ended < $1 "
            "OR place > $2 ORDER BY position LIMIT $3) ORDER BY position",
            await connection.now() - int(days * 86400 * MILLISECONDS),
            self.policy.keep_receipts,
            PURGE_ROWS,
        )
        await connection.executemany(
            "DELETE FROM session WHERE position = $1", [(row.position,) for row in rows]
        )
        return tuple(row.key for row in rows)


async def purge_once(
    store: "ClientRecords", policy: Retention, log: logging.Logger
) -> None:
    """Purge a store, and log how many receipts were deleted.

    A disk that refuses is logged and tried again at the next turn; no session notices.

    Args:
        store: Store of a client or an aggregator.
        policy: What is kept.
        log: Log of that party.
    """
    purged, removed = 0, PURGE_ROWS
    try:
        while removed == PURGE_ROWS:
            removed = len(await store.commit(PurgeReceipts(policy)))
            purged += removed
    except ServiceError as error:
        telemetry.log_event(
            log, logging.ERROR, telemetry.STORAGE_WRITE_FAILED, reason=error
        )
    if purged:
        telemetry.log_event(log, logging.INFO, telemetry.RECEIPTS_PURGED, count=purged)


async def mark_restored(connection: Connection, *, everything: bool) -> bool:
    """Mark open sessions as restored: what was sent for them may be missing.

    Args:
        connection: A connection in a transaction.
        everything: Whether all open sessions are marked; else those that an older
            timeline has written.

    Returns:
        Whether any session was marked.
    """
    timeline = await connection.timeline()
    where = "ended IS NULL AND (timeline <> $1 OR $2 = 1)"
    sessions = await SESSIONS.find(connection, where, timeline, int(everything))
    for session in sessions:
        marked = session._replace(restored=True, timeline=timeline)
        await SESSIONS.update(connection, session, marked)
    return bool(sessions)


async def skip_numbers(connection: Connection) -> None:
    """Let a server number its sessions above every number that a backup may lack.

    The backup may lack whole tasks, too. So the tally of no task also holds the first
    number of new tasks.
    """
    role, least = Side.SERVER.value, first_number_after_restore()
    await TALLIES.put(connection, await tally_at(connection, role, "", ""))
    for tally in await TALLIES.find(connection, "role = $1", role):
        number = max(tally.highest_number, least)
        await TALLIES.put(connection, tally._replace(highest_number=number))


# --- the steps of sessions ------------------------------------------------------------


class SessionRows:
    """Holds the rows of sessions in one transaction: read once, written at its end.

    Args:
        connection: A connection in a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection: Final = connection
        self._stored: dict[str, SessionColumns] = {}
        self._rows: dict[str, SessionColumns] = {}

    async def at(self, key: str) -> SessionColumns | None:
        """Return the row of a session as the earlier changes have left it, or None."""
        row = self._rows.get(key)
        return row or await SESSIONS.one(self.connection, "key = $1", key)

    def put(self, row: SessionColumns, *, stored: SessionColumns) -> None:
        """Record a changed row.

        Args:
            row: The new row.
            stored: The row before this change.
        """
        self._stored.setdefault(row.key, stored)
        self._rows[row.key] = row

    async def write(self) -> None:
        """Write the recorded rows."""
        for key, row in self._rows.items():
            await SESSIONS.update(self.connection, self._stored[key], row)
        self._stored.clear()
        self._rows.clear()


class PlaceTakenError(Exception):
    """Reports that a record's place is taken; `place_taken` then names the record."""


async def apply_change(rows: SessionRows, change: Change) -> Outcome:
    """Apply a change inside a transaction; after an error the caller rolls it back.

    Args:
        rows: Rows of the transaction.  The caller writes them at its end, and before
            any change that creates a session, which searches all of them.
        change: The change.

    Raises:
        SecAggError: See `Store.commit`.
        PlaceTakenError: See `place_taken`.
    """
    connection = rows.connection
    instant = await connection.now()
    if change.create is not None:
        session = await _created(connection, change.key, change.create, instant)
    else:
        found = await rows.at(change.key)
        if found is None:
            raise unknown_session(change.key)
        missed = await conflict_for(connection, found, change, instant)
        if missed is not None:
            return missed
        session = found
    stored = session
    await _apply_to_budgets(connection, session, change, instant)
    session = await _continued(connection, session, change)
    if change.spend:
        session = session._replace(spent=True)
    if change.round is not None:
        session = session._replace(round=change.round, opened=instant)
    if change.deadline_seconds is not None:
        deadline = instant + int(change.deadline_seconds * MILLISECONDS)
        if change.extend:
            deadline = max(deadline, session.deadline or 0)
        session = session._replace(deadline=deadline)
    if change.end is not None:
        session = session._replace(ended=instant, receipt=change.end)
    rows.put(session, stored=stored)
    return Committed(session.sequence, session.chain, seconds_left(session, instant))


async def place_taken(connection: Connection, change: Change) -> Exception:
    """Return the error for a change whose record has found its place taken.

    Args:
        connection: In which the change was rolled back.
        change: The change.
    """
    taken: set[tuple[object, object]] = set()
    records: Sequence[Record] = change.records
    if change.reseal is not None:
        records = change.reseal.records
    elif (session := await session_at(connection, change.key)) is not None:
        rows = await connection.fetch(
            "SELECT kind, sender FROM record WHERE session = $1", session.position
        )
        taken = {(kind, sender) for kind, sender in rows}
    for record in records:
        named = (record.kind, record.sender)
        if record.sender is not None and named in taken:
            # The position has matched, so that it must be the sender's second.
            return DuplicateRecordError(change.key, record)
        taken.add(named)
    return StateDamagedError(
        f"there is a record {change.expect} beyond the last",
        key=change.key,
        record=change.expect,
    )


async def _created(
    connection: Connection, key: str, new: NewSession, instant: int
) -> SessionColumns:
    """Create a session under its number, if the rules of its task allow it."""
    role, task, peer = new.role.value, new.task, new.peer
    tally = await tally_at(connection, role, task, peer)
    if new.number <= tally.highest_number:
        raise NumberTakenError(new, highest=tally.highest_number)
    # Before it is counted: the session in conflict may be the last allowed.
    await _refuse_conflict(connection, new)
    if new.allowed is not None:
        # A session that runs may yet be spent: it must not be promised twice.
        (running,) = await connection.fetch(
            "SELECT count(*) FROM session WHERE role = $1 AND task = $2 AND peer = $3 "
            "AND ended IS NULL AND NOT spent",
            *(role, task, peer),
        )
        used = running[0] + tally.spent
        if used >= new.allowed:
            raise SessionsSpentError(new, used=used)
    if await session_at(connection, key) is not None:
        raise ErrorCode.INTERNAL.error(
            f"session {key} is created twice under two numbers"
        )
    await TALLIES.put(connection, tally._replace(highest_number=new.number))
    start = chain_start(key, new)
    session = SessionColumns(
        position=await connection.next_position(),
        key=key,
        role=role,
        task=task,
        peer=peer,
        number=new.number,
        sequence=0,
        round=0,
        opened=None,
        deadline=None,
        born=instant,
        start=start,
        chain=start,
        ended=None,
        receipt=None,
        timeline=await connection.timeline(),
        spent=False,
        restored=False,
    )
    await SESSIONS.put(connection, session, header=new.header)
    return session


async def _refuse_conflict(connection: Connection, new: NewSession) -> None:
    """Refuse a session beside another of its task, or of a changed task."""
    where = "role = $1 AND task = $2 AND ended IS NULL"
    if new.alone and await SESSIONS.find(connection, where, new.role.value, new.task):
        raise SessionConflictError(new, complaint="another one of the task is open")
    if new.task_version is not None:
        row = await TASKS.one(connection, "task_id = $1", new.task)
        if row is None or row.version != new.task_version:
            raise SessionConflictError(new, complaint="the task was changed meanwhile")


async def _apply_to_budgets(
    connection: Connection, session: SessionColumns, change: Change, instant: int
) -> None:
    """Write what a change spends, charges and settles."""
    is_spent = change.spend and not session.spent
    if is_spent or change.facts is not None:
        tally = await tally_at(connection, session.role, session.task, session.peer)
        facts = tally.facts if change.facts is None else change.facts
        spent = tally.spent + is_spent
        await TALLIES.put(connection, tally._replace(spent=spent, facts=facts))
    if change.charge is not None:
        await _charge(connection, change.charge, instant)
    if change.settle is not None:
        await _settle(connection, change.settle, instant)


async def _charge(connection: Connection, charge: Charge, instant: int) -> None:
    """Store a charge that is not stored yet."""
    if is_new_charge(await ListCharges(charge.budget.task).run(connection), charge):
        state = ChargeState.BOUND.value
        row = ChargeColumns(**columns_of(charge), state=state, at=instant)
        await CHARGES.put(connection, row)


async def _settle(connection: Connection, settlement: Settlement, instant: int) -> None:
    """Settle the open charge of a session."""
    where = "task = $1 AND session_id = $2"
    whose = (settlement.task, settlement.session_id)
    for row in await CHARGES.find(connection, where, *whose):
        state = settled(ChargeState(row.state), settlement.state)
        if state != row.state:
            changed = row._replace(state=state.value, at=instant)
            await CHARGES.put(connection, changed)


async def _continued(
    connection: Connection, session: SessionColumns, change: Change
) -> SessionColumns:
    """Append the records of a change, or replace all of them."""
    if change.end is not None:
        await _replace(connection, session, b"")
    if change.reseal is None:
        return await _appended(connection, session, change.records)
    await _replace(connection, session, change.reseal.header)
    start = chain_start_of(session, change.reseal.header)
    afresh = session._replace(sequence=0, start=start, chain=start)
    return await _appended(connection, afresh, change.reseal.records)


async def _appended(
    connection: Connection, session: SessionColumns, records: Sequence[Record]
) -> SessionColumns:
    """Append records with their chain values."""
    if not records:
        return session
    first = session.sequence
    chains = chains_after(session.chain, first, records)
    rows = [
        (session.position, sequence, each.kind, each.sender, chain, each.body)
        for sequence, (each, chain) in enumerate(
            zip(records, chains, strict=True), first
        )
    ]
    try:
        await connection.executemany(
            "INSERT INTO record (session, sequence, kind, sender, chain, body) "
            "VALUES ($1, $2, $3, $4, $5, $6)",
            rows,
        )
    except connection.duplicate_error:
        raise PlaceTakenError from None
    return session._replace(chain=chains[-1], sequence=first + len(rows))


async def _replace(
    connection: Connection, session: SessionColumns, header: bytes
) -> None:
    """Remove all records and exchange the header; SQLite overwrites both."""
    await connection.execute("DELETE FROM record WHERE session = $1", session.position)
    await connection.execute(
        "UPDATE session SET header = $1 WHERE position = $2", header, session.position
    )
