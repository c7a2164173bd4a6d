"""The queries of a store, each with its SQL and the verification of its rows.

A query changes nothing, and neither begins nor ends a transaction: the engine does.
All rows are verified, whichever engine has read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from secagg.errors import ErrorCode, LocalProtocolError
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import (
    ChargeRow,
    ChargeState,
    Claim,
    ClaimAdversary,
    ClaimRow,
    fields_of,
)
from secagg.storage.change import (
    Change,
    Ended,
    MissedRecords,
    NewSession,
    Query,
    Record,
    Side,
)
from secagg.storage.rollback_mark import Mark, mark_in
from secagg.storage.rows import (
    IntegrityFault,
    ReplicaRow,
    SessionRow,
    SessionState,
    SessionTally,
    StoredSession,
    Task,
    TaskRow,
    TaskState,
)
from secagg.storage.store import StateDamagedError, unknown_session
from secagg.storage.tables import (
    CHARGES,
    CLAIMS,
    MILLISECONDS,
    REVOCATIONS,
    SESSIONS,
    TALLIES,
    TASKS,
    Connection,
    Row,
    SessionColumns,
    TallyColumns,
    chain_next,
    chain_start,
)

# Both engines need a number after LIMIT.
_NO_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReadClock(Query[float]):
    """Reads the store's time in Unix seconds."""

    async def run(self, connection: Connection) -> float:
        """Read it."""
        return await connection.now() / MILLISECONDS


@dataclass(frozen=True, slots=True)
class LoadSession(Query[StoredSession | None]):
    """Loads a session with its records from a number on; None if it does not exist.

    Attributes:
        key: Name of the session.
        after: Number of the first record.

    Raises:
        StateDamagedError: Sequence or hash chain are wrong.
    """

    key: str
    after: int = 0

    async def run(self, connection: Connection) -> StoredSession | None:
        """Load it."""
        session = await session_at(connection, self.key)
        if session is None:
            return None
        return await _load_session(connection, session, after=self.after)


@dataclass(frozen=True, slots=True)
class ReadMissed(Query[MissedRecords | Ended]):
    """Reads what a writer does not know of a session, as a commit answers it.

    `MissedRecords` holds no record if the writer knows all.

    Attributes:
        key: Name of the session.
        expect: How many records the writer knows.
        previous: Value of the hash chain at that position.
        restored: See `Change.restored`.

    Raises:
        StateDamagedError: Sequence or hash chain are wrong.
        ServiceError: STORAGE_FAILED; the session was never created, or is of an older
            timeline.
    """

    key: str
    expect: int
    previous: bytes
    restored: bool = False

    @property
    def change(self) -> Change:
        """The change that a writer at this position would commit."""
        return Change(
            key=self.key,
            expect=self.expect,
            previous=self.previous,
            restored=self.restored,
        )

    async def run(self, connection: Connection) -> MissedRecords | Ended:
        """Read it."""
        session = await session_at(connection, self.key)
        if session is None:
            raise unknown_session(self.key)
        instant = await connection.now()
        missed = await conflict_for(connection, session, self.change, instant)
        return missed or behind(session, (), whole=False, instant=instant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSessions(Query[tuple[SessionRow, ...]]):
    """Lists sessions, the newest first.

    Attributes:
        role: The side.
        task: Only sessions of this task.
        state: Selects open or ended ones.
        before: Only those older than this `SessionRow.position`.
        limit: The largest number of sessions.
    """

    role: Side
    task: str | None = None
    state: SessionState = SessionState.RUNNING
    before: int | None = None
    limit: int | None = None

    async def run(self, connection: Connection) -> tuple[SessionRow, ...]:
        """List them."""
        condition = {
            SessionState.RUNNING: "ended IS NULL",
            SessionState.ENDED: "ended IS NOT NULL",
            SessionState.ALL: "true",
        }[self.state]
        rows = await SESSIONS.find(
            connection,
            # The comparison comes first: it tells PostgreSQL the argument's type.
            f"role = $1 AND {condition} AND (task = $2 OR $2 IS NULL) "
            "AND (position < $3 OR $3 IS NULL) ORDER BY position DESC LIMIT $4",
            self.role.value,
            self.task,
            self.before,
            _NO_LIMIT if self.limit is None else self.limit,
        )
        return tuple(SessionRow(**_selected_columns(row, SessionRow)) for row in rows)


@dataclass(frozen=True, slots=True)
class ReadTally(Query[SessionTally]):
    """Reads what the sessions of a task leave behind for good.

    Attributes:
        role: The side.
        task: Name of the task.
        peer: At a client, the aggregator that numbers the sessions; else empty.
    """

    role: Side
    task: str
    peer: str = ""

    async def run(self, connection: Connection) -> SessionTally:
        """Read it."""
        found = await tally_at(connection, self.role.value, self.task, self.peer)
        return SessionTally(found.highest_number, found.spent, found.facts)


@dataclass(frozen=True, slots=True)
class ListTasks(Query[tuple[TaskRow, ...]]):
    """Lists the tasks in the order of their names."""

    async def run(self, connection: Connection) -> tuple[TaskRow, ...]:
        """List them."""
        rows = []
        for row in await TASKS.find(connection, "true ORDER BY task_id"):
            tally = await ReadTally(Side.SERVER, row.task_id).run(connection)
            named = row._asdict() | {"state": TaskState(row.state)}
            version = named.pop("version")
            rows.append(TaskRow(Task(**named), version, tally))
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class ListCharges(Query[tuple[ChargeRow, ...]]):
    """Lists the charges of a task, in the order in which they were made.

    Attributes:
        task: Name of the task.
    """

    task: str

    async def run(self, connection: Connection) -> tuple[ChargeRow, ...]:
        """List them."""
        return tuple(
            ChargeRow(
                **fields_of(row._asdict())
                | {"state": ChargeState(row.state), "at": row.at / MILLISECONDS}
            )
            for row in await CHARGES.find(
                connection, "task = $1 ORDER BY ordinal", self.task
            )
        )


@dataclass(frozen=True, slots=True)
class ListClaims(Query[tuple[ClaimRow, ...]]):
    """Lists the claims on data, in the order in which they were made.

    Attributes:
        data: Name of the data; None for all.
    """

    data: str | None = None

    async def run(self, connection: Connection) -> tuple[ClaimRow, ...]:
        """List them."""
        where = "data = $1 OR $1 IS NULL ORDER BY ordinal"
        rows = []
        for row in await CLAIMS.find(connection, where, self.data):
            named = fields_of(row._asdict()) | {"against": ClaimAdversary(row.against)}
            at = named.pop("at") / MILLISECONDS
            rows.append(ClaimRow(Claim(**named), at))
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class ListReplicas(Query[tuple[ReplicaRow, ...]]):
    """Lists the present and recent replicas of a shared store."""

    async def run(self, connection: Connection) -> tuple[ReplicaRow, ...]:
        """List them."""
        return await connection.sharing.replicas()


@dataclass(frozen=True, slots=True)
class ReadMark(Query[Mark | None]):
    """Reads name and generation of the store, to compare with its rollback mark."""

    async def run(self, connection: Connection) -> Mark | None:
        """Read it."""
        return mark_in(await connection.fetch("SELECT store_id, generation FROM store"))


@dataclass(frozen=True, slots=True)
class ReadRevocations(Query[Trust | None]):
    """Reads the newest revocation list of an issuer; None before the first.

    Attributes:
        enrolment_key: Public key of the issuer.
        trust_domain: Trust domain of the issuer.
    """

    enrolment_key: bytes
    trust_domain: str

    async def run(self, connection: Connection) -> Trust | None:
        """Read it."""
        where = "enrolment_key = $1 AND trust_domain = $2"
        row = await REVOCATIONS.one(
            connection, where, self.enrolment_key, self.trust_domain
        )
        if row is None:
            return None
        return Trust(row.trust_domain, row.enrolment_key, row.number, row.digest)


@dataclass(frozen=True, slots=True)
class FindFaults(Query[tuple[IntegrityFault, ...]]):
    """Finds faults: in the engine's structures, every checksum and every hash chain."""

    async def run(self, connection: Connection) -> tuple[IntegrityFault, ...]:
        """Verify everything."""
        faults = [
            IntegrityFault("", complaint) for complaint in await connection.faults()
        ]
        for table in (TALLIES, TASKS, CHARGES, CLAIMS, REVOCATIONS):
            try:
                await table.find(connection, "true")
            except StateDamagedError as error:
                faults.append(IntegrityFault("", str(error)))
        for (position,) in await connection.fetch(
            "SELECT position FROM session ORDER BY position"
        ):
            try:
                for session in await SESSIONS.find(
                    connection, "position = $1", position
                ):
                    await _load_session(connection, session, after=0)
            except StateDamagedError as error:
                faults.append(IntegrityFault(error.key, str(error)))
        return tuple(faults)


# --- rows -----------------------------------------------------------------------------


async def session_at(connection: Connection, key: str) -> SessionColumns | None:
    """Return the row of a session, or None."""
    return await SESSIONS.one(connection, "key = $1", key)


async def tally_at(
    connection: Connection, role: str, task: str, peer: str
) -> TallyColumns:
    """Return the row of a tally, or the row of a new one, which is not stored yet.

    A new tally begins with the numbers of the role's new tasks (`mark_restored`).
    """
    # An empty text comes before every other one.
    where = (
        "role = $1 AND (task = $2 AND peer = $3 OR task = '' AND peer = '') "
        "ORDER BY task DESC, peer DESC LIMIT 1"
    )
    found = await TALLIES.one(connection, where, role, task, peer)
    if found is not None and (found.task, found.peer) == (task, peer):
        return found
    highest_number = 0 if found is None else found.highest_number
    return TallyColumns(role, task, peer, highest_number, 0, b"")


async def conflict_for(
    connection: Connection, session: SessionColumns, change: Change, instant: int
) -> MissedRecords | Ended | None:
    """Return why a change must not be applied; None if the writer knows the session.

    Args:
        connection: Reads the records that the writer missed.
        session: The present row.
        change: The change.
        instant: The store's time in milliseconds.

    Raises:
        StateDamagedError: The records that the writer missed contradict each other.
    """
    if session.receipt is not None:
        return Ended(session.receipt)
    if (session.sequence, session.chain) != (change.expect, change.previous):
        # The count alone is not enough: another history may be as long.
        chain = await _chain_at(connection, session, change.expect)
        whole = chain != change.previous
        after = 0 if whole else change.expect
        missed = await records_of(connection, session, after=after)
        return behind(session, missed, whole=whole, instant=instant)
    is_due = session.deadline is not None and session.deadline <= instant
    if change.due and not (is_due and connection.is_attended):
        return behind(session, (), whole=False, instant=instant)
    return None


async def records_of(
    connection: Connection, session: SessionColumns, *, after: int
) -> tuple[Record, ...]:
    """Return records, verified against the chain to the session's last one.

    Raises:
        StateDamagedError: A record is missing, changed or too many.
    """
    rows = await connection.fetch(
        "SELECT sequence, kind, sender, chain, body FROM record "
        "WHERE session = $1 AND sequence >= $2 ORDER BY sequence",
        session.position,
        after,
    )
    chain = await _chain_at(connection, session, after)
    return verified_records(session, rows, after=after, chain=chain)


async def _chain_at(
    connection: Connection, session: SessionColumns, sequence: int
) -> bytes | None:
    """Return the chain value before a record, or None if no such record exists."""
    if sequence == 0:
        return session.start
    row = await connection.fetchrow(
        "SELECT chain FROM record WHERE session = $1 AND sequence = $2",
        session.position,
        sequence - 1,
    )
    return row[0] if row is not None and isinstance(row[0], bytes) else None


async def _load_session(
    connection: Connection, session: SessionColumns, *, after: int
) -> StoredSession:
    """Load a session with its records, all verified."""
    header = b""
    records: tuple[Record, ...] = ()
    if session.receipt is None:
        row = await connection.fetchrow(
            "SELECT header FROM session WHERE position = $1", session.position
        )
        header = _verified_header(session, None if row is None else row[0])
        records = await records_of(connection, session, after=after)
    return StoredSession(
        **_selected_columns(session, StoredSession),
        header=header,
        records=records,
        seconds_left=seconds_left(session, await connection.now()),
    )


def _selected_columns(
    session: SessionColumns, kind: type[SessionRow | StoredSession]
) -> dict[str, Any]:
    """Return the columns of a session that a class has, as it has them."""
    columns = session._asdict() | {
        "role": Side(session.role),
        "spent": bool(session.spent),
        "restored": bool(session.restored),
    }
    for name in ("opened", "deadline", "born", "ended"):
        columns[name] = _seconds(columns[name])
    return {
        each.name: columns[each.name] for each in fields(kind) if each.name in columns
    }


# --- verification ---------------------------------------------------------------------


def behind(
    session: SessionColumns, missed: tuple[Record, ...], *, whole: bool, instant: int
) -> MissedRecords:
    """Return the answer to a writer that assumes another position of the session."""
    return MissedRecords(
        records=missed,
        whole=whole,
        sequence=session.sequence,
        chain=session.chain,
        round=session.round,
        seconds_left=seconds_left(session, instant),
    )


def verified_records(
    session: SessionColumns, rows: Sequence[Row], *, after: int, chain: bytes | None
) -> tuple[Record, ...]:
    """Return records, verified against the chain to the session's last one.

    Args:
        session: The session that they belong to.
        rows: Sequence, kind, sender, chain and body, from number `after` on, in order.
        after: Number of the first record.
        chain: Chain value before it; None if it could not be read.

    Raises:
        StateDamagedError: A record is missing, changed or too many.
        LocalProtocolError: The session has fewer than `after` records.
    """
    if after > session.sequence:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"session {session.key} has {session.sequence} records, none after {after}"
        )
    records = []
    for sequence, (stored, kind, sender, stored_chain, body) in enumerate(rows, after):
        record = _checked_record(kind, sender, body)
        if stored != sequence or sequence >= session.sequence or chain is None:
            raise _broken(session, sequence, "missing, or has a wrong place")
        if record is not None:
            chain = chain_next(chain, sequence, record)
        if record is None or chain != stored_chain:
            raise _broken(session, sequence, "changed: its checksum is wrong")
        records.append(record)
    if after + len(records) != session.sequence or chain != session.chain:
        raise _broken(session, after + len(records), "missing")
    return tuple(records)


def chain_start_of(session: SessionColumns, header: bytes) -> bytes:
    """Return the chain value before a session's first record."""
    new = NewSession(
        role=Side(session.role),
        task=session.task,
        number=session.number,
        header=header,
        peer=session.peer,
    )
    return chain_start(session.key, new)


def seconds_left(session: SessionColumns, instant: int) -> float | None:
    """Return the seconds from an instant, in milliseconds, to the deadline."""
    if session.deadline is None:
        return None
    return (session.deadline - instant) / MILLISECONDS


def _verified_header(session: SessionColumns, stored: object) -> bytes:
    if isinstance(stored, bytes) and session.start == chain_start_of(session, stored):
        return stored
    raise StateDamagedError("the checksum of its header is wrong", key=session.key)


def _checked_record(kind: object, sender: object, body: object) -> Record | None:
    """Return a record as it was stored, or None for invalid columns."""
    if (
        isinstance(kind, int)
        and isinstance(sender, str | None)
        and isinstance(body, bytes)
    ):
        try:
            return Record(kind, sender, body)
        except LocalProtocolError:
            return None
    return None


def _broken(
    session: SessionColumns, sequence: int, complaint: str
) -> StateDamagedError:
    return StateDamagedError(
        f"record {sequence} is {complaint}", key=session.key, record=sequence
    )


def _seconds(instant: int | None) -> float | None:
    return None if instant is None else instant / MILLISECONDS
