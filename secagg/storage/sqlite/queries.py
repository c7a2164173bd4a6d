"""What a book says, read from its tables and verified.

Nothing here changes anything, and nothing begins or ends a transaction: that is the
business of `secagg.storage.sqlite.file`.
"""

import dataclasses
import sqlite3

from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import BudgetKey, ChargeRow, ChargeState
from secagg.storage.change import Record, Role
from secagg.storage.data_claims import ClaimRow, claim_of
from secagg.storage.rollback_mark import Mark, mark_in
from secagg.storage.rows import (
    Finding,
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
    session_row,
    stored_session,
    verified_header,
    verified_records,
)
from secagg.storage.sqlite.rows import (
    CHARGES,
    CLAIMS,
    REVOCATIONS,
    SESSIONS,
    TALLIES,
    TASKS,
    TallyColumns,
)
from secagg.storage.store import StateDamagedError


def load_session(
    database: sqlite3.Connection, key: str, *, after: int, instant: int
) -> StoredSession | None:
    """See `Book.load`."""
    session = session_at(database, key)
    return None if session is None else _stored(database, session, after, instant)


def _stored(
    database: sqlite3.Connection, session: SessionColumns, after: int, instant: int
) -> StoredSession:
    header = b""
    records: tuple[Record, ...] = ()
    if session.receipt is None:
        stored: object = database.execute(
            "SELECT header FROM session WHERE position = ?", (session.position,)
        ).fetchone()[0]
        header = verified_header(session, stored)
        records = records_of(database, session, after=after)
    return stored_session(session, header, records, instant)


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
    rows = SESSIONS.find(
        database,
        f"role = ?1 AND {condition} AND (?2 IS NULL OR task = ?2) "
        "AND (?3 IS NULL OR position < ?3) ORDER BY position DESC LIMIT ?4",
        role.value,
        task,
        before,
        -1 if limit is None else limit,
    )
    return tuple(map(session_row, rows))


def read_tally(
    database: sqlite3.Connection, role: Role, task: str, *, peer: str
) -> Tally:
    """See `Book.tally`."""
    found = tally_at(database, role.value, task, peer)
    return Tally(found.highest_number, found.spent, found.facts)


def read_tasks(database: sqlite3.Connection) -> tuple[TaskRow, ...]:
    """See `Book.tasks`."""
    return tuple(
        TaskRow(
            Task(
                row.task_id,
                TaskState(row.state),
                row.settings,
                row.plan,
                row.reason,
            ),
            row.version,
            read_tally(database, Role.SERVER, row.task_id, peer=""),
        )
        for row in TASKS.find(database, "true ORDER BY task_id")
    )


def list_replicas(_: sqlite3.Connection, *, instant: int) -> tuple[ReplicaRow, ...]:  # noqa: ARG001 - as in PostgreSQL
    """See `Book.replicas`: whoever has a file has it alone."""
    return ()


def read_charges(database: sqlite3.Connection, task: str) -> tuple[ChargeRow, ...]:
    """See `Book.charges`."""
    return tuple(
        ChargeRow(
            BudgetKey(
                trust_domain=row.trust_domain,
                aggregator=row.aggregator,
                task=row.task,
            ),
            row.session_id,
            row.noise_digest,
            ChargeState(row.state),
            row.allowed,
            row.refunds,
            row.at / MILLISECONDS,
        )
        for row in CHARGES.find(database, "task = ? ORDER BY rowid", task)
    )


def read_claims(database: sqlite3.Connection, data: str | None) -> tuple[ClaimRow, ...]:
    """See `Book.claims`."""
    where = "?1 IS NULL OR data = ?1 ORDER BY rowid"
    return tuple(
        ClaimRow(
            claim_of(dataclasses.asdict(row)),
            row.at / MILLISECONDS,
        )
        for row in CLAIMS.find(database, where, data)
    )


def read_revocations(
    database: sqlite3.Connection, enrolment_key: bytes, trust_domain: str
) -> Trust | None:
    """See `Book.seen_revocations`."""
    where = "enrolment_key = ? AND trust_domain = ?"
    row = next(REVOCATIONS.find(database, where, enrolment_key, trust_domain), None)
    if row is None:
        return None
    return Trust(row.trust_domain, row.enrolment_key, row.number, row.digest)


def read_mark(database: sqlite3.Connection) -> Mark | None:
    """Return how far the book has come; None when it does not say so."""
    return mark_in(database.execute("SELECT book_id, generation FROM book"))


def find_faults(database: sqlite3.Connection) -> tuple[Finding, ...]:
    """Verify the file's structure, every row and every chain."""
    faults = [
        Finding("", complaint)
        for (complaint,) in database.execute("PRAGMA integrity_check").fetchall()
        if complaint != "ok"
    ]
    for table, rowid, *_ in database.execute("PRAGMA foreign_key_check").fetchall():
        faults.append(Finding("", f"row {rowid} of {table!r} belongs to nothing"))
    for table in (TALLIES, TASKS, CHARGES, CLAIMS, REVOCATIONS):
        try:
            tuple(table.find(database, "true"))
        except StateDamagedError as error:
            faults.append(Finding("", str(error)))
    for (position,) in database.execute("SELECT position FROM session").fetchall():
        try:
            for session in SESSIONS.find(database, "position = ?", position):
                _stored(database, session, 0, 0)
        except StateDamagedError as error:
            faults.append(Finding(error.key, str(error)))
    return tuple(faults)


def session_at(database: sqlite3.Connection, key: str) -> SessionColumns | None:
    """Return the row of a session, or None."""
    return next(SESSIONS.find(database, "key = ?", key), None)


def tally_at(
    database: sqlite3.Connection, role: str, task: str, peer: str
) -> TallyColumns:
    """Return the row of a tally; one that is not stored when there is none.

    It then begins with the numbers of the role's new tasks (`mark_restored`).
    """
    where = "role = ? AND task = ? AND peer = ?"
    found = next(TALLIES.find(database, where, role, task, peer), None)
    if found is not None:
        return found
    new = next(TALLIES.find(database, where, role, "", ""), None)
    highest_number = 0 if new is None else new.highest_number
    return TallyColumns(role, task, peer, highest_number, 0, b"")


def records_of(
    database: sqlite3.Connection, session: SessionColumns, *, after: int
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
    chain = chain_at(database, session, after)
    return verified_records(session, rows, after=after, chain=chain)


def chain_at(
    database: sqlite3.Connection, session: SessionColumns, sequence: int
) -> bytes | None:
    """Return the chain value before a record, or None if it is not so far yet."""
    if sequence == 0:
        return session.start
    row = database.execute(
        "SELECT chain FROM record WHERE session = ? AND sequence = ?",
        (session.position, sequence - 1),
    ).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else None
