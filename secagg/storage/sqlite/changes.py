"""What a change does to the tables of a book.

Rule 1: nothing here begins or ends a transaction: that is the business of
        `secagg.storage.sqlite.file`.  Whoever gets an error rolls back.
Rule 2: the session's position is compared before anything is written.
Rule 3: a transaction reads and writes a session's row once, however many changes of it
        come together.
"""

import dataclasses
import sqlite3
from typing import Final, TypeAlias

from secagg.errors import InternalError
from secagg.protocol.enrolment.revocation_list import refuse_older
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import (
    Charge,
    ChargeState,
    Settlement,
    is_new_charge,
    settled,
)
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
from secagg.storage.rows import Retention, Task
from secagg.storage.session_columns import (
    MILLISECONDS,
    PURGE_ROWS,
    SessionColumns,
    behind,
    chain_start_of,
    refuse_beyond,
    seconds_left,
)
from secagg.storage.sqlite.queries import (
    chain_at,
    read_charges,
    read_claims,
    read_revocations,
    records_of,
    session_at,
    tally_at,
)
from secagg.storage.sqlite.rows import (
    CHARGES,
    CLAIMS,
    REVOCATIONS,
    SESSIONS,
    TALLIES,
    TASKS,
    ChargeColumns,
    ClaimColumns,
    RevocationColumns,
    TaskColumns,
)
from secagg.storage.store import unknown_session

Outcome: TypeAlias = Committed | MissedRecords | Ended


class SessionRows:
    """The rows of sessions in one transaction: read once, written in its end.

    Args:
        database: In a transaction.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database: Final = database
        self._stored: dict[str, SessionColumns] = {}
        self._rows: dict[str, SessionColumns] = {}

    def at(self, key: str) -> SessionColumns | None:
        """Return the row of a session as the changes before have left it, or None."""
        return self._rows.get(key) or session_at(self.database, key)

    def put(self, row: SessionColumns, *, stored: SessionColumns) -> None:
        """Note what has become of a row.

        Args:
            row: As it is to be.
            stored: As it was before this change.
        """
        self._stored.setdefault(row.key, stored)
        self._rows[row.key] = row

    def write(self) -> None:
        """Write what was noted."""
        for key, row in self._rows.items():
            SESSIONS.update(self.database, self._stored[key], row)
        self._stored.clear()
        self._rows.clear()


def apply_change(rows: SessionRows, change: Change, *, now: float) -> Outcome:
    """Apply a change inside a transaction; whoever gets an error must roll it back.

    Args:
        rows: Of the transaction.  The caller writes them at its end, and before any
            change that makes a session, which looks through all of them.
        change: The change.
        now: The book's time, in Unix seconds.

    Raises:
        SecAggError: See `Book.commit`.
    """
    database, instant = rows.database, int(now * MILLISECONDS)
    if change.create is not None:
        session = _created(database, change.key, change.create, instant)
    else:
        standing = _standing(rows, change, instant)
        if not isinstance(standing, SessionColumns):
            return standing
        session = standing
    stored = session
    _apply_to_budgets(database, session, change, now)
    session = _continued(database, session, change)
    if change.spend:
        session = dataclasses.replace(session, spent=1)
    if change.round is not None:
        session = dataclasses.replace(session, round=change.round, opened=instant)
    if change.deadline_seconds is not None:
        deadline = int((now + change.deadline_seconds) * MILLISECONDS)
        if change.extend:
            deadline = max(deadline, session.deadline or 0)
        session = dataclasses.replace(session, deadline=deadline)
    if change.end is not None:
        session = dataclasses.replace(session, ended=instant, receipt=change.end)
    rows.put(session, stored=stored)
    return Committed(session.sequence, session.chain, seconds_left(session, instant))


def _standing(
    rows: SessionRows, change: Change, instant: int
) -> SessionColumns | MissedRecords | Ended:
    """Return the session, if it stands where the writer believes."""
    database, found = rows.database, rows.at(change.key)
    if found is None:
        raise unknown_session(change.key)
    if found.receipt is not None:
        return Ended(found.receipt)
    if (found.sequence, found.chain) != (change.expect, change.previous):
        # The count alone would not do: another history may be as long.
        whole = chain_at(database, found, change.expect) != change.previous
        missed = records_of(database, found, after=0 if whole else change.expect)
    elif change.due and (found.deadline is None or found.deadline > instant):
        whole, missed = False, ()
    else:
        return found
    return behind(found, missed, whole=whole, instant=instant)


def missed(
    database: sqlite3.Connection, key: str, *, expect: int, previous: bytes, now: float
) -> MissedRecords | Ended:
    """See `Book.missed`."""
    instant = int(now * MILLISECONDS)
    change = Change(key=key, expect=expect, previous=previous)
    standing = _standing(SessionRows(database), change, instant)
    if isinstance(standing, SessionColumns):
        return behind(standing, (), whole=False, instant=instant)
    return standing


def _apply_to_budgets(
    database: sqlite3.Connection, session: SessionColumns, change: Change, now: float
) -> None:
    is_spent = change.spend and not session.spent
    if is_spent or change.facts is not None:
        tally = tally_at(database, session.role, session.task, session.peer)
        facts = tally.facts if change.facts is None else change.facts
        spent = tally.spent + is_spent
        TALLIES.put(database, dataclasses.replace(tally, spent=spent, facts=facts))
    if change.charge is not None:
        _charge(database, change.charge, now)
    if change.settle is not None:
        settle_charge(database, change.settle, now=now)


def _continued(
    database: sqlite3.Connection, session: SessionColumns, change: Change
) -> SessionColumns:
    if change.end is not None:
        _replace(database, session, b"")
    if change.reseal is None:
        return _appended(database, session, change.records)
    _replace(database, session, change.reseal.header)
    start = chain_start_of(session, change.reseal.header)
    afresh = dataclasses.replace(session, sequence=0, start=start, chain=start)
    return _appended(database, afresh, change.reseal.records)


def _created(
    database: sqlite3.Connection, key: str, new: NewSession, instant: int
) -> SessionColumns:
    tally = tally_at(database, new.role.value, new.task, new.peer)
    if new.number <= tally.highest_number:
        raise NumberTakenError(new, highest=tally.highest_number)
    # Before it is counted: the session that stands in the way may be the last allowed.
    _refuse_overtaken(database, new)
    if new.allowed is not None:
        # A session that runs may yet be spent: it must not be promised twice.
        which = (new.role.value, new.task, new.peer)
        (running,) = database.execute(
            "SELECT count(*) FROM session WHERE role = ? AND task = ? AND peer = ? "
            "AND ended IS NULL AND spent = 0",
            which,
        ).fetchone()
        used = running + tally.spent
        if used >= new.allowed:
            raise SessionsSpentError(new, used=used)
    if session_at(database, key) is not None:
        raise InternalError(f"session {key} is created twice under two numbers")
    TALLIES.put(database, dataclasses.replace(tally, highest_number=new.number))
    (position,) = database.execute(
        "SELECT coalesce(max(position), 0) + 1 FROM session"
    ).fetchone()
    start = chain_start(key, new)
    session = SessionColumns(
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
    SESSIONS.put(database, session)
    _set_header(database, session, new.header)
    return session


def _refuse_overtaken(database: sqlite3.Connection, new: NewSession) -> None:
    where = "role = ? AND task = ? AND ended IS NULL"
    if new.alone and any(SESSIONS.find(database, where, new.role.value, new.task)):
        raise SessionConflictError(new, complaint="another one of the task is open")
    if new.task_version is not None:
        row = next(TASKS.find(database, "task_id = ?", new.task), None)
        if row is None or row.version != new.task_version:
            raise SessionConflictError(new, complaint="the task was changed meanwhile")


def _charge(database: sqlite3.Connection, charge: Charge, now: float) -> None:
    budget = charge.budget
    if is_new_charge(read_charges(database, budget.task), charge):
        CHARGES.put(
            database,
            ChargeColumns(
                budget.trust_domain,
                budget.aggregator,
                budget.task,
                charge.session_id,
                charge.noise_digest,
                ChargeState.BOUND.value,
                charge.allowed,
                charge.refunds,
                int(now * MILLISECONDS),
            ),
        )


def settle_charge(
    database: sqlite3.Connection, settlement: Settlement, *, now: float
) -> None:
    """See `Book.settle`."""
    instant = int(now * MILLISECONDS)
    where = "task = ? AND session_id = ?"
    for row in CHARGES.find(database, where, settlement.task, settlement.session_id):
        state = settled(ChargeState(row.state), settlement.state)
        if state != row.state:
            CHARGES.put(
                database, dataclasses.replace(row, state=state.value, at=instant)
            )


def put_claim(
    database: sqlite3.Connection, claim: Claim, *, after: int, now: float
) -> bool:
    """See `Book.put_claim`."""
    if len(read_claims(database, claim.data)) != after:
        return False
    CLAIMS.put(database, ClaimColumns(**columns_of(claim), at=int(now * MILLISECONDS)))
    return True


def _appended(
    database: sqlite3.Connection, session: SessionColumns, records: tuple[Record, ...]
) -> SessionColumns:
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
                raise refuse_beyond(session.key, sequence) from None
            raise DuplicateRecordError(session.key, record) from None
        sequence += 1
    return dataclasses.replace(session, chain=chain, sequence=sequence)


def _replace(
    database: sqlite3.Connection, session: SessionColumns, header: bytes
) -> None:
    """Remove all records and exchange the header; `secure_delete` overwrites both."""
    database.execute("DELETE FROM record WHERE session = ?", (session.position,))
    _set_header(database, session, header)


def _set_header(
    database: sqlite3.Connection, session: SessionColumns, header: bytes
) -> None:
    database.execute(
        "UPDATE session SET header = ? WHERE position = ?", (header, session.position)
    )


def put_task(database: sqlite3.Connection, task: Task, *, expect_version: int) -> bool:
    """See `Book.put_task`."""
    found = next(TASKS.find(database, "task_id = ?", task.task_id), None)
    if (0 if found is None else found.version) != expect_version:
        return False
    TASKS.put(
        database,
        TaskColumns(
            task.task_id,
            expect_version + 1,
            task.state.value,
            task.settings,
            task.plan,
            task.reason,
        ),
    )
    return True


def see_revocations(database: sqlite3.Connection, trust: Trust) -> None:
    """See `Book.see_revocations`."""
    seen = read_revocations(database, trust.enrolment_key, trust.trust_domain)
    if seen is not None:
        refuse_older(trust, seen=seen)
    if seen != trust:
        REVOCATIONS.put(
            database,
            RevocationColumns(
                trust.enrolment_key,
                trust.trust_domain,
                trust.revocation_number,
                trust.revocation_hash,
            ),
        )


def touch(database: sqlite3.Connection) -> None:
    """See `Book.touch`."""
    database.execute("UPDATE book SET generation = generation")


def put_facts(
    database: sqlite3.Connection, task: str, facts: bytes, *, instead_of: bytes
) -> bool:
    """See `Book.put_facts`."""
    tally = tally_at(database, Role.SERVER.value, task, "")
    if tally.facts != instead_of:
        return False
    TALLIES.put(database, dataclasses.replace(tally, facts=facts))
    return True


def purge_receipts(
    database: sqlite3.Connection, policy: Retention, *, now: float
) -> tuple[str, ...]:
    """Remove up to `PURGE_ROWS` receipts that a policy does not keep."""
    oldest = int((now - policy.keep_receipts_days * 86400) * MILLISECONDS)
    rows = tuple(
        SESSIONS.find(
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
    """Note of every open session that it comes from a state that was put back.

    A server goes on with session numbers that nobody has seen, in tasks that are
    forgotten as a whole, too: the tally of no task says where new ones begin.
    """
    for session in tuple(SESSIONS.find(database, "ended IS NULL")):
        SESSIONS.update(database, session, dataclasses.replace(session, restored=1))
    role = Role.SERVER.value
    least = first_number_after_restore()
    TALLIES.put(database, tally_at(database, role, "", ""))
    for tally in tuple(TALLIES.find(database, "role = ?", role)):
        number = max(tally.highest_number, least)
        TALLIES.put(database, dataclasses.replace(tally, highest_number=number))
