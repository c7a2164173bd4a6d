"""The book's tables in SQLite, and what a change does to them.

Rule 1: every row carries a checksum over its types and values, so that a flipped bit
        is an error that says so and never another value.  Records are chained instead,
        headers are bound by the start of the chain.
Rule 2: a time is an INTEGER of milliseconds since 1970.
Rule 3: nothing here begins or ends a transaction.  That is the business of
        `secagg.storage.sqlite_file`.
"""

import dataclasses
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from typing import Final, Generic, TypeAlias, TypeVar

from secagg.errors import InternalError, LocalProtocolError
from secagg.primitives.canonical import Writer
from secagg.storage.book import (
    Behind,
    Change,
    Charge,
    ChargeRow,
    ChargeState,
    Committed,
    Ended,
    Finding,
    NewSession,
    NumberTakenError,
    Record,
    Retention,
    Role,
    SecondRecordError,
    SessionRow,
    SessionsSpentError,
    SessionState,
    Settlement,
    StateDamagedError,
    StoredSession,
    Tally,
    Task,
    TaskRow,
    TaskState,
    chain_next,
    chain_start,
    is_new_charge,
    settled,
    unknown_session,
)

__all__ = [
    "SCHEMA",
    "Outcome",
    "apply_change",
    "find_faults",
    "list_sessions",
    "load_session",
    "mark_restored",
    "purge_receipts",
    "put_task",
    "read_charges",
    "read_tally",
    "read_tasks",
    "settle_charge",
]

Outcome: TypeAlias = Committed | Behind | Ended
_Value: TypeAlias = int | str | bytes | None
_Row = TypeVar("_Row")

_MILLISECONDS: Final = 1000
_SEAL_BYTES: Final = 16
# A receipt is rarely removed; a pause of the writer this long is not noticed.
PURGE_ROWS: Final = 500

_SCHEMA: Final = """
CREATE TABLE book (
    book_id BLOB NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE TABLE session (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    task TEXT NOT NULL,
    peer TEXT NOT NULL,
    number INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    round INTEGER NOT NULL,
    opened INTEGER,
    deadline INTEGER,
    born INTEGER NOT NULL,
    start BLOB NOT NULL,
    chain BLOB NOT NULL,
    ended INTEGER,
    receipt BLOB,
    timeline TEXT NOT NULL,
    spent INTEGER NOT NULL,
    restored INTEGER NOT NULL,
    seal BLOB NOT NULL,
    header BLOB NOT NULL DEFAULT x'',
    UNIQUE (role, task, peer, number)
) STRICT;
CREATE INDEX session_open ON session (role, task) WHERE ended IS NULL;
CREATE TABLE record (
    session INTEGER NOT NULL REFERENCES session (position),
    sequence INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    sender TEXT,
    chain BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (session, sequence)
) STRICT;
CREATE UNIQUE INDEX record_once ON record (session, kind, sender)
    WHERE sender IS NOT NULL;
CREATE TABLE tally (
    role TEXT NOT NULL,
    task TEXT NOT NULL,
    peer TEXT NOT NULL,
    highest_number INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (role, task, peer)
) STRICT;
CREATE TABLE task (
    task_id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    settings TEXT NOT NULL,
    plan BLOB NOT NULL,
    seal BLOB NOT NULL
) STRICT;
CREATE TABLE charge (
    task TEXT NOT NULL,
    session_id BLOB NOT NULL,
    noise_digest BLOB NOT NULL,
    state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (task, session_id)
) STRICT;
"""
SCHEMA: Final = tuple(part.strip() for part in _SCHEMA.split(";")[:-1])
"""The statements that make the tables, one by one."""


# --- rows with a checksum -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Session:
    position: int
    key: str
    role: str
    task: str
    peer: str
    number: int
    sequence: int
    round: int
    opened: int | None
    deadline: int | None
    born: int
    start: bytes
    chain: bytes
    ended: int | None
    receipt: bytes | None
    timeline: str
    spent: int
    restored: int


@dataclass(frozen=True, slots=True)
class _Tally:
    role: str
    task: str
    peer: str
    highest_number: int
    spent: int


@dataclass(frozen=True, slots=True)
class _Task:
    task_id: str
    version: int
    state: str
    settings: str
    plan: bytes


@dataclass(frozen=True, slots=True)
class _Charge:
    task: str
    session_id: bytes
    noise_digest: bytes
    state: int
    at: int


class _SealedTable(Generic[_Row]):
    """A table whose rows are sealed: written and read whole."""

    def __init__(self, name: str, kind: type[_Row], *unique: str) -> None:
        columns = tuple(kind.__annotations__)
        self._name = name
        self._kind = kind
        self._values = attrgetter(*columns)
        names, marks = ", ".join((*columns, "seal")), ", ".join("?" * len(columns))
        self._select = f"SELECT {names} FROM {name} WHERE "  # noqa: S608 - our names
        self._put = (
            f"INSERT INTO {name} ({names}) VALUES ({marks}, ?) "  # noqa: S608 - ditto
            f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET "
            + ", ".join(
                f"{column} = excluded.{column}" for column in (*columns, "seal")
            )
        )

    def put(self, database: sqlite3.Connection, row: _Row) -> None:
        """Insert a row, or replace the one with the same key."""
        values = self._values(row)
        database.execute(self._put, (*values, self._seal(values)))

    def find(
        self, database: sqlite3.Connection, where: str, *arguments: _Value
    ) -> Iterator[_Row]:
        """Yield the rows that fulfil a condition.

        Raises:
            StateDamagedError: A row does not have its checksum.
        """
        for found in database.execute(self._select + where, arguments).fetchall():
            if found[-1] != self._seal(found[:-1]):
                named = found[1] if self._kind is _Session else ""
                raise StateDamagedError(
                    f"a row of the table {self._name!r} does not have its checksum",
                    key=named if isinstance(named, str) else repr(named),
                )
            yield self._kind(*found[:-1])

    def _seal(self, values: tuple[object, ...]) -> bytes:
        writer = Writer().text("secagg book row v1").text(self._name)
        for value in values:
            match value:
                case None:
                    writer.u8(0)
                case int():
                    writer.u8(1).text(str(value))
                case str():
                    writer.u8(2).blob(value.encode(errors="surrogateescape"))
                case bytes():
                    writer.u8(3).blob(value)
                case _:  # a REAL: nothing of ours
                    writer.u8(4)
        return sha256(writer.getvalue()).digest()[:_SEAL_BYTES]


_SESSIONS: Final = _SealedTable("session", _Session, "position")
_TALLIES: Final = _SealedTable("tally", _Tally, "role", "task", "peer")
_TASKS: Final = _SealedTable("task", _Task, "task_id")
_CHARGES: Final = _SealedTable("charge", _Charge, "task", "session_id")


# --- one change -----------------------------------------------------------------------


def apply_change(
    database: sqlite3.Connection, change: Change, *, now: float
) -> Outcome:
    """Apply a change inside a transaction; whoever gets an error must roll it back.

    Raises:
        SecAggError: See `Book.commit`.
    """
    instant = int(now * _MILLISECONDS)
    if change.create is not None:
        session = _created(database, change.key, change.create, instant)
    else:
        standing = _standing(database, change, instant)
        if not isinstance(standing, _Session):
            return standing
        session = standing
    _apply_to_budgets(database, session, change, now)
    session = _continued(database, session, change)
    if change.spend:
        session = dataclasses.replace(session, spent=1)
    if change.round is not None:
        session = dataclasses.replace(session, round=change.round, opened=instant)
    if change.deadline_seconds is not None:
        deadline = int((now + change.deadline_seconds) * _MILLISECONDS)
        session = dataclasses.replace(session, deadline=deadline)
    if change.end is not None:
        session = dataclasses.replace(session, ended=instant, receipt=change.end)
    _SESSIONS.put(database, session)
    return Committed(session.sequence, session.chain, _seconds_left(session, instant))


def _standing(
    database: sqlite3.Connection, change: Change, instant: int
) -> _Session | Behind | Ended:
    """Return the session, if it stands where the writer believes."""
    found = _session(database, change.key)
    if found is None:
        raise unknown_session(change.key)
    if found.receipt is not None:
        return Ended(found.receipt)
    if (found.sequence, found.chain) != (change.expect, change.previous):
        # The count alone would not do: another history may be as long.
        whole = _chain_at(database, found, change.expect) != change.previous
        missed = _records(database, found, after=0 if whole else change.expect)
    elif change.due and (found.deadline is None or found.deadline > instant):
        whole, missed = False, ()
    else:
        return found
    return Behind(
        records=missed,
        whole=whole,
        sequence=found.sequence,
        chain=found.chain,
        round=found.round,
        seconds_left=_seconds_left(found, instant),
    )


def _apply_to_budgets(
    database: sqlite3.Connection, session: _Session, change: Change, now: float
) -> None:
    if change.spend and not session.spent:
        tally = _tally(database, session.role, session.task, session.peer)
        _TALLIES.put(database, dataclasses.replace(tally, spent=tally.spent + 1))
    if change.charge is not None:
        _charge(database, change.charge, now)
    if change.settle is not None:
        settle_charge(database, change.settle, now=now)


def _continued(
    database: sqlite3.Connection, session: _Session, change: Change
) -> _Session:
    if change.end is not None:
        _replace(database, session, b"")
    if change.reseal is None:
        return _appended(database, session, change.records)
    _replace(database, session, change.reseal.header)
    start = _chain_start(session, change.reseal.header)
    afresh = dataclasses.replace(session, sequence=0, start=start, chain=start)
    return _appended(database, afresh, change.reseal.records)


def _created(
    database: sqlite3.Connection, key: str, new: NewSession, instant: int
) -> _Session:
    tally = _tally(database, new.role, new.task, new.peer)
    if new.number <= tally.highest_number:
        raise NumberTakenError(new, highest=tally.highest_number)
    if new.allowed is not None:
        # A session that runs may yet be spent: it must not be promised twice.
        (running,) = database.execute(
            "SELECT count(*) FROM session WHERE role = ? AND task = ? AND peer = ? "
            "AND ended IS NULL AND spent = 0",
            (new.role.value, new.task, new.peer),
        ).fetchone()
        used = tally.spent + running
        if used >= new.allowed:
            raise SessionsSpentError(new, used=used)
    if _session(database, key) is not None:
        raise InternalError(f"session {key} is created twice under two numbers")
    _TALLIES.put(database, dataclasses.replace(tally, highest_number=new.number))
    (position,) = database.execute(
        "SELECT coalesce(max(position), 0) + 1 FROM session"
    ).fetchone()
    start = chain_start(key, new)
    session = _Session(
        position=position,
        key=key,
        role=new.role.value,
        task=new.task,
        peer=new.peer,
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
        timeline="",
        spent=0,
        restored=0,
    )
    _SESSIONS.put(database, session)
    _set_header(database, session, new.header)
    return session


def _charge(database: sqlite3.Connection, charge: Charge, now: float) -> None:
    if is_new_charge(read_charges(database, charge.task), charge):
        _CHARGES.put(
            database,
            _Charge(
                charge.task,
                charge.session_id,
                charge.noise_digest,
                ChargeState.BOUND.value,
                int(now * _MILLISECONDS),
            ),
        )


def settle_charge(
    database: sqlite3.Connection, settlement: Settlement, *, now: float
) -> None:
    """See `Book.settle`."""
    instant = int(now * _MILLISECONDS)
    where = "task = ? AND session_id = ?"
    for row in _CHARGES.find(database, where, settlement.task, settlement.session_id):
        state = settled(ChargeState(row.state), settlement.state)
        if state != row.state:
            _CHARGES.put(
                database, dataclasses.replace(row, state=state.value, at=instant)
            )


def _appended(
    database: sqlite3.Connection, session: _Session, records: tuple[Record, ...]
) -> _Session:
    chain, sequence = session.chain, session.sequence
    for record in records:
        chain = chain_next(chain, sequence, record)
        try:
            database.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)",
                (
                    session.position,
                    sequence,
                    record.kind,
                    record.sender,
                    chain,
                    record.body,
                ),
            )
        except sqlite3.IntegrityError as error:
            # The position has matched, so that it must be the sender's second.
            if "record.sender" not in str(error):
                raise StateDamagedError(
                    f"there is a record {sequence} beyond the last",
                    key=session.key,
                    record=sequence,
                ) from None
            raise SecondRecordError(session.key, record) from None
        sequence += 1
    return dataclasses.replace(session, chain=chain, sequence=sequence)


def _replace(database: sqlite3.Connection, session: _Session, header: bytes) -> None:
    """Remove all records and exchange the header; `secure_delete` overwrites both."""
    database.execute("DELETE FROM record WHERE session = ?", (session.position,))
    _set_header(database, session, header)


def _set_header(database: sqlite3.Connection, session: _Session, header: bytes) -> None:
    database.execute(
        "UPDATE session SET header = ? WHERE position = ?", (header, session.position)
    )


# --- reading --------------------------------------------------------------------------


def load_session(
    database: sqlite3.Connection, key: str, *, after: int, now: float
) -> StoredSession | None:
    """See `Book.load`."""
    session = _session(database, key)
    return None if session is None else _stored(database, session, after, now)


def _stored(
    database: sqlite3.Connection, session: _Session, after: int, now: float
) -> StoredSession:
    (header,) = database.execute(
        "SELECT header FROM session WHERE position = ?", (session.position,)
    ).fetchone()
    records: tuple[Record, ...] = ()
    if session.receipt is None:
        if not isinstance(header, bytes) or session.start != _chain_start(
            session, header
        ):
            raise StateDamagedError(
                "its header does not have its checksum", key=session.key
            )
        records = _records(database, session, after=after)
    return StoredSession(
        key=session.key,
        role=Role(session.role),
        task=session.task,
        peer=session.peer,
        number=session.number,
        header=header,
        records=records,
        sequence=session.sequence,
        chain=session.chain,
        round=session.round,
        opened=_seconds(session.opened),
        deadline=_seconds(session.deadline),
        seconds_left=_seconds_left(session, int(now * _MILLISECONDS)),
        receipt=session.receipt,
        spent=bool(session.spent),
        restored=bool(session.restored),
        timeline=session.timeline,
    )


def list_sessions(  # noqa: PLR0913 - one argument per condition
    database: sqlite3.Connection,
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
    rows = _SESSIONS.find(
        database,
        f"role = ?1 AND {condition} AND (?2 IS NULL OR task = ?2) "
        "AND (?3 IS NULL OR position < ?3) ORDER BY position DESC LIMIT ?4",
        role.value,
        task,
        before,
        -1 if limit is None else limit,
    )
    return tuple(
        SessionRow(
            position=row.position,
            key=row.key,
            role=Role(row.role),
            task=row.task,
            number=row.number,
            round=row.round,
            sequence=row.sequence,
            born=row.born / _MILLISECONDS,
            ended=_seconds(row.ended),
            restored=bool(row.restored),
        )
        for row in rows
    )


def read_tally(
    database: sqlite3.Connection, role: Role, task: str, *, peer: str
) -> Tally:
    """See `Book.tally`."""
    found = _tally(database, role.value, task, peer)
    return Tally(found.highest_number, found.spent)


def read_tasks(database: sqlite3.Connection) -> tuple[TaskRow, ...]:
    """See `Book.tasks`."""
    return tuple(
        TaskRow(
            Task(row.task_id, TaskState(row.state), row.settings, row.plan),
            row.version,
            read_tally(database, Role.SERVER, row.task_id, peer=""),
        )
        for row in _TASKS.find(database, "true ORDER BY task_id")
    )


def put_task(database: sqlite3.Connection, task: Task, *, expect_version: int) -> bool:
    """See `Book.put_task`."""
    found = next(_TASKS.find(database, "task_id = ?", task.task_id), None)
    if (0 if found is None else found.version) != expect_version:
        return False
    _TASKS.put(
        database,
        _Task(
            task.task_id,
            expect_version + 1,
            task.state.value,
            task.settings,
            task.plan,
        ),
    )
    return True


def read_charges(database: sqlite3.Connection, task: str) -> tuple[ChargeRow, ...]:
    """See `Book.charges`."""
    return tuple(
        ChargeRow(
            row.session_id,
            row.noise_digest,
            ChargeState(row.state),
            row.at / _MILLISECONDS,
        )
        for row in _CHARGES.find(database, "task = ? ORDER BY rowid", task)
    )


def purge_receipts(
    database: sqlite3.Connection, policy: Retention, *, now: float
) -> tuple[str, ...]:
    """Remove up to `PURGE_ROWS` receipts that a policy does not keep."""
    oldest = int((now - policy.keep_receipts_days * 86400) * _MILLISECONDS)
    rows = tuple(
        _SESSIONS.find(
            database,
            "position IN (SELECT position FROM (SELECT position, ended, row_number() "
            "OVER (PARTITION BY role, task ORDER BY position DESC) AS place "
            "FROM session WHERE ended IS NOT NULL) WHERE ended < ? OR place > ? "
            "ORDER BY position LIMIT ?)",
            oldest,
            policy.keep_receipts,
            PURGE_ROWS,
        )
    )
    database.executemany(
        "DELETE FROM session WHERE position = ?", [(row.position,) for row in rows]
    )
    return tuple(row.key for row in rows)


def mark_restored(database: sqlite3.Connection) -> None:
    """Note of every open session that it comes from a state that was put back."""
    for session in tuple(_SESSIONS.find(database, "ended IS NULL")):
        _SESSIONS.put(database, dataclasses.replace(session, restored=1))


def find_faults(database: sqlite3.Connection) -> tuple[Finding, ...]:
    """Verify the file's structure, every row and every chain."""
    faults = [
        Finding("", complaint)
        for (complaint,) in database.execute("PRAGMA integrity_check").fetchall()
        if complaint != "ok"
    ]
    for table, rowid, *_ in database.execute("PRAGMA foreign_key_check").fetchall():
        faults.append(Finding("", f"row {rowid} of {table!r} belongs to nothing"))
    for table in (_TALLIES, _TASKS, _CHARGES):
        try:
            tuple(table.find(database, "true"))
        except StateDamagedError as error:
            faults.append(Finding("", str(error)))
    for (position,) in database.execute("SELECT position FROM session").fetchall():
        try:
            for session in _SESSIONS.find(database, "position = ?", position):
                _stored(database, session, 0, 0.0)
        except StateDamagedError as error:
            faults.append(Finding(error.key, str(error)))
    return tuple(faults)


def _session(database: sqlite3.Connection, key: str) -> _Session | None:
    return next(_SESSIONS.find(database, "key = ?", key), None)


def _tally(database: sqlite3.Connection, role: str, task: str, peer: str) -> _Tally:
    where = "role = ? AND task = ? AND peer = ?"
    # A plain string: the enum's own name would be stored as such, but be another type.
    found = next(_TALLIES.find(database, where, str(role), task, peer), None)
    return found or _Tally(str(role), task, peer, 0, 0)


def _records(
    database: sqlite3.Connection, session: _Session, *, after: int
) -> tuple[Record, ...]:
    """Return records, verified against the chain to the session's last one.

    Raises:
        StateDamagedError: A record is missing, changed or too many.
    """
    rows = database.execute(
        "SELECT sequence, kind, sender, chain, body FROM record "
        "WHERE session = ? AND sequence >= ? ORDER BY sequence",
        (session.position, after),
    ).fetchall()
    chain = _chain_at(database, session, after)
    records = []
    for sequence, (stored, kind, sender, stored_chain, body) in enumerate(rows, after):
        record = _record(kind, sender, body)
        if stored != sequence or sequence >= session.sequence or chain is None:
            raise _broken(session, sequence, "missing, or stands where none belongs")
        if record is not None:
            chain = chain_next(chain, sequence, record)
        if record is None or chain != stored_chain:
            raise _broken(session, sequence, "changed: its checksum does not fit")
        records.append(record)
    if after + len(records) != session.sequence or chain != session.chain:
        raise _broken(session, after + len(records), "missing")
    return tuple(records)


def _record(kind: object, sender: object, body: object) -> Record | None:
    """Return a record as it was stored, or None for what nobody can have stored."""
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


def _broken(session: _Session, sequence: int, complaint: str) -> StateDamagedError:
    return StateDamagedError(
        f"record {sequence} is {complaint}", key=session.key, record=sequence
    )


def _chain_at(
    database: sqlite3.Connection, session: _Session, sequence: int
) -> bytes | None:
    """Return the chain value before a record, or None if it is not so far yet."""
    if sequence == 0:
        return session.start
    row = database.execute(
        "SELECT chain FROM record WHERE session = ? AND sequence = ?",
        (session.position, sequence - 1),
    ).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else None


def _chain_start(session: _Session, header: bytes) -> bytes:
    return chain_start(
        session.key,
        NewSession(
            role=Role(session.role),
            task=session.task,
            number=session.number,
            header=header,
            peer=session.peer,
        ),
    )


def _seconds_left(session: _Session, instant: int) -> float | None:
    if session.deadline is None:
        return None
    return (session.deadline - instant) / _MILLISECONDS


def _seconds(instant: int | None) -> float | None:
    return None if instant is None else instant / _MILLISECONDS
