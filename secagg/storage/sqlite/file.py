"""One SQLite file as the disk of a store: its lock, connection and transactions.

Rule 1: write-ahead log and `synchronous=FULL`: a committed transaction has reached the
        disk.  Both settings are read back after they are set.
Rule 2: one process at a time.  The file is locked for as long as it is open, because
        two processes that drive the same session could answer it twice.  The operating
        system drops the lock when the process dies.
Rule 3: only the owner may read the file, which holds seeds; deleted data are
        overwritten, in the log too.
Rule 4: a file of a newer schema, of another program or with a damaged structure is
        refused, and not one byte of it is changed.
Rule 5: every transaction raises the generation, and the rollback mark follows before
        the caller gets its answer.
Rule 6: only the process that opened the file uses it.  A fork has the descriptors and
        the locks of its parent. Both would continue from one state, and the mark cannot
        tell which of the two has sent something.

Calls block and belong on one thread.  The file is not encrypted: use an encrypted disk
where the machine may be stolen.

The statements of a store are coroutines because PostgreSQL waits for its network.  Here
nothing waits, so one step runs such a coroutine from its beginning to its end.

Transactions, of a file or in memory:
Rule 7: several changes share one transaction, and each has a savepoint of its own.  A
        refused one does not affect the others. None is answered before all are on the
        disk, refusals included.
Rule 8: data that a change erases are overwritten before it is answered.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar, get_args

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, SecAggError
from secagg.storage.change import Change, Outcome, Query, StoreUpdate
from secagg.storage.changes import (
    PlaceTakenError,
    SessionRows,
    apply_change,
    mark_restored,
    place_taken,
    skip_numbers,
)
from secagg.storage.directories import refuse_network_disk
from secagg.storage.leases import Leases
from secagg.storage.queries import ReadMark
from secagg.storage.rollback_mark import (
    STORE_ID_BYTES,
    Mark,
    RollbackMark,
    mark_in,
    refuse_restored,
)
from secagg.storage.store import StateDamagedError, run_inline
from secagg.storage.tables import (
    CHARGES,
    CLAIMS,
    MILLISECONDS,
    REVOCATIONS,
    SESSIONS,
    TALLIES,
    TASKS,
    ChecksummedTable,
    Row,
    Sharing,
)

_Value: TypeAlias = Any  # the types that SQLite accepts, which `object` does not state


@cache
def _numbered(sql: str) -> str:
    """Return a statement with its arguments in SQLite's numbering."""
    return sql.replace("$", "?")


class SQLiteConnection:
    """Implements `Connection` without waiting; see `secagg.storage.store.run_inline`.

    Args:
        database: The connection; in a transaction, where something is written.
        now: The store's clock, in Unix seconds.
        leases: Leases of the process that has the store open.
    """

    is_checksummed = True
    is_attended = True
    duplicate_error: type[Exception] = sqlite3.IntegrityError

    def __init__(
        self,
        database: sqlite3.Connection,
        now: Callable[[], float] = time.time,
        leases: Sharing | None = None,
    ) -> None:
        self._database = database
        self._now = now
        self.sharing: Sharing = leases or Leases(now)

    async def execute(self, sql: str, *arguments: _Value) -> None:
        """Run a statement."""
        self._database.execute(_numbered(sql), arguments)

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each sequence of arguments."""
        self._database.executemany(_numbered(sql), rows)

    async def fetch(self, sql: str, *arguments: _Value) -> Sequence[Row]:
        """Return the rows of a query."""
        return self._database.execute(_numbered(sql), arguments).fetchall()

    async def fetchrow(self, sql: str, *arguments: _Value) -> Row | None:
        """Return the first row of a query, or None."""
        row: Row | None = self._database.execute(_numbered(sql), arguments).fetchone()
        return row

    async def now(self) -> int:
        """Return the store's time in milliseconds."""
        return int(self._now() * MILLISECONDS)

    async def lock(self, name: str) -> None:
        """Do nothing: a transaction that writes has the file to itself."""

    async def next_position(self) -> int:
        """Return the position of a new session."""
        query = "SELECT coalesce(max(position), 0) + 1 FROM session"
        (position,) = self._database.execute(query).fetchone()
        return int(position)

    async def timeline(self) -> str:
        """Return nothing: a file does not fail over."""
        return ""

    async def notify(self) -> None:
        """Do nothing: no other process reads."""

    async def faults(self) -> list[str]:
        """Return the faults of the structure of SQLite's file."""
        found = self._database.execute("PRAGMA integrity_check").fetchall()
        faults = [complaint for (complaint,) in found if complaint != "ok"]
        for table, row, *_ in self._database.execute("PRAGMA foreign_key_check"):
            faults.append(f"row {row} of {table!r} belongs to nothing")
        return faults


_SCHEMA_VERSION: Final = 1

# Long enough for a predecessor that drains or for an operator's command that reads.
LOCK_TIMEOUT_SECONDS: Final = 10.0

# "secA": distinguishes a store from every other database with some version number.
_APPLICATION_ID: Final = 0x73656341
_MEMORY: Final = ":memory:"
# A process may hold a thousand stores in memory, most of whose tables stay empty; each
# table and index has at least one page.
_MEMORY_PAGE_BYTES: Final = 1024

_JOURNAL: Final = "journal_mode"
_PRAGMAS: Final = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "foreign_keys = ON",
    "cell_size_check = ON",
)
# Settings that must be read back: `synchronous` 2 is FULL.
_NEEDED: Final = {_JOURNAL: "wal", "synchronous": 2, "secure_delete": 1}

# What a column of a type of `secagg.storage.tables` holds.
_STORAGE_CLASSES: Final = {
    int: "INTEGER",
    bool: "INTEGER",
    float: "REAL",
    str: "TEXT",
    bytes: "BLOB",
}


def _columns_of(table: ChecksummedTable[Any]) -> str:
    """Return the definitions of a table's columns, and that of their checksum."""
    lines = []
    for name, type_ in table.types.items():
        known = get_args(type_) or (type_,)  # with None among them, for an optional one
        required = "" if NoneType in known else " NOT NULL"
        lines.append(f"{name} {_STORAGE_CLASSES[known[0]]}{required}")
    return ",\n    ".join([*lines, "seal BLOB NOT NULL"])


_SCHEMA: Final = f"""
CREATE TABLE store (
    store_id BLOB NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE TABLE session (
    {_columns_of(SESSIONS)},
    header BLOB NOT NULL,
    PRIMARY KEY (position),
    UNIQUE (key),
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
    {_columns_of(TALLIES)},
    UNIQUE (role, task, peer)
) STRICT;
CREATE TABLE task (
    {_columns_of(TASKS)},
    UNIQUE (task_id)
) STRICT;
CREATE TABLE charge (
    ordinal INTEGER PRIMARY KEY,
    {_columns_of(CHARGES)},
    UNIQUE (trust_domain, aggregator, task, session_id)
) STRICT;
CREATE TABLE claim (
    ordinal INTEGER PRIMARY KEY,
    {_columns_of(CLAIMS)},
    UNIQUE (data, holder, trust_domain, aggregator, task, noise_digest)
) STRICT;
CREATE TABLE revocation (
    {_columns_of(REVOCATIONS)},
    UNIQUE (enrolment_key, trust_domain)
) STRICT;
"""
SCHEMA: Final = tuple(part.strip() for part in _SCHEMA.split(";")[:-1])
"""The statements that make the tables, one by one."""


class SQLiteFile:
    """Opens, locks and writes the file of one store.

    Args:
        path: The file, made with mode 0600 when it does not exist; None for memory.
        mark: The rollback mark; None for a store without one.
        accept_restored: Whether the operator accepts a restored store: it becomes a new
            one under the mark, and open sessions are marked.
        entropy: Source of the name of a new store.

    Raises:
        StateDamagedError: The file's structure is damaged.
        ServiceError: BAD_SETTINGS on a network file system; RESTORED_STATE when store
            and mark do not fit; STORAGE_FAILED when the file cannot be opened, is not a
            store, is in use or has a newer schema.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        mark: RollbackMark | None,
        accept_restored: bool,
        entropy: Entropy,
    ) -> None:
        self._name: Final = _MEMORY if path is None else str(path)
        self._mark = mark
        self._marked: Mark | None = None
        self._process: Final = os.getpid()
        if path is not None:
            refuse_network_disk(path.parent)
        with ExitStack() as undo:
            if mark is not None:
                # This precedes any access to the file. Two connections that open it at
                # once would each wait for the other. In one process, closing a second
                # descriptor drops the locks of the first.
                mark.hold(wait_seconds=LOCK_TIMEOUT_SECONDS)
                undo.callback(mark.release)
            with self._mapping_failures():
                if path is not None:
                    # SQLite gives its log the mode of the database: this covers both.
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
                self.database = sqlite3.connect(
                    self._name,
                    timeout=LOCK_TIMEOUT_SECONDS,
                    isolation_level=None,
                    # Calls come one after the other, but not all from one thread.
                    check_same_thread=False,
                )
                undo.callback(self.database.close)
                self._prepare(entropy)
                self._state = self._read_state()
                self._check_mark(entropy, accept_restored=accept_restored)
                # A predecessor may have died before it had erased its log.
                self._checkpoint()
            undo.pop_all()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the database for reading.

        Raises:
            ServiceError: STORAGE_FAILED, also while the mark is behind: the caller
                might send what it reads.
        """
        self._refuse_fork()
        with self._mapping_failures():
            self._write_mark()
            yield self.database

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the database for one transaction, which ends with the block.

        Raises:
            ServiceError: STORAGE_FAILED; it is not known whether the transaction is on
                the disk.
        """
        self._refuse_fork()
        with self._mapping_failures():
            self._write_mark()
            self.database.execute("BEGIN IMMEDIATE")
            try:
                before = self.database.total_changes
                yield self.database
                if self.database.total_changes == before:
                    return
                state = self._count_commit()
                self.database.execute("COMMIT")
            finally:
                # All or nothing; a full disk may have rolled back already.
                if self.database.in_transaction:
                    self.database.execute("ROLLBACK")
            self._state = state
            self._write_mark()

    def erase(self) -> None:
        """Overwrite deleted data on the disk, the log included.

        Raises:
            ServiceError: STORAGE_FAILED; the next erasure tries again.
        """
        self._refuse_fork()
        with self._mapping_failures():
            self._checkpoint()

    def close(self) -> None:
        """Merge the log into the file and release the locks; a fork does neither."""
        with self._mapping_failures():
            self._release()

    def _release(self) -> None:
        """Close the file and release its mark, in the process that opened it."""
        try:
            if os.getpid() == self._process:  # its log is still the parent's
                self.database.close()
        finally:
            if self._mark is not None:
                self._mark.release()

    def _refuse_fork(self) -> None:
        """Refuse a process other than the one that opened the file."""
        if os.getpid() != self._process:
            raise _file_error(
                self._name,
                f"process {self._process} has opened it, and this one is a fork of it",
                "Use it in the process that opened it, or start the other process "
                "before it is opened.",
            )

    # --- opening ----------------------------------------------------------------------

    def _prepare(self, entropy: Entropy) -> None:
        """Lock the file, check it, and make the tables of a new one."""
        # The order matters. In exclusive mode from the start, no shared memory file is
        # made, and the first write takes the lock of rule 2.
        self._pragma("locking_mode = EXCLUSIVE")
        self.database.text_factory = stored_text
        if self._name == _MEMORY:
            self._pragma(f"page_size = {_MEMORY_PAGE_BYTES}")
        # Only a reader's lock: nothing in a foreign file may change.
        self.database.execute("BEGIN IMMEDIATE")
        try:
            is_new = self._is_new()
        finally:
            self.database.execute("ROLLBACK")
        for pragma in _PRAGMAS:
            self._pragma(pragma)
        self._check_pragmas()
        self.database.execute("BEGIN IMMEDIATE")
        if is_new:
            for statement in SCHEMA:
                self.database.execute(statement)
            self.database.execute(
                "INSERT INTO store VALUES (?, 0)", (entropy.token(STORE_ID_BYTES),)
            )
            self.database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        # Written in any case: only a write takes the lock.
        self.database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        self.database.execute("COMMIT")

    def _is_new(self) -> bool:
        """Return whether the file is empty; refuse it if it is not a sound store."""
        stamp = (self._pragma("application_id"), self._pragma("user_version"))
        if stamp == (0, 0) and not _schema_of(self.database):
            return True
        refuse_foreign(self._name, self.database)
        complaint = self._pragma("integrity_check(1)")
        if complaint != "ok":
            raise StateDamagedError(f"{self._name}: {complaint}")
        return False

    def _check_pragmas(self) -> None:
        """Refuse a connection whose commits may be lost or whose deleted data stay.

        SQLite ignores an unsupported pragma without an error.
        """
        for name, needed in _NEEDED.items():
            found = self._pragma(name)
            wanted = "memory" if (self._name, name) == (_MEMORY, _JOURNAL) else needed
            if found != wanted:
                raise _file_error(
                    self._name,
                    f"SQLite runs with {name} = {found}, and durable commits need "
                    f"{wanted}",
                    "Put the state directory on a local disk, and use the SQLite "
                    "library of the distribution.",
                )

    def _pragma(self, text: str) -> object:
        row = self.database.execute(f"PRAGMA {text}").fetchone()
        return None if row is None else row[0]

    # --- generation and mark ----------------------------------------------------------

    def _count_commit(self) -> Mark:
        """Raise the generation and return it."""
        raised = "UPDATE store SET generation = generation + 1"
        found = self.database.execute(f"{raised} RETURNING store_id, generation")
        return self._require_mark(mark_in(found))

    def _read_state(self) -> Mark:
        return self._require_mark(
            run_inline(ReadMark().run(SQLiteConnection(self.database)))
        )

    def _require_mark(self, mark: Mark | None) -> Mark:
        """Return a mark, which every store must have."""
        if mark is None:
            raise StateDamagedError(f"{self._name} does not say which store it is")
        return mark

    def _check_mark(self, entropy: Entropy, *, accept_restored: bool) -> None:
        """Compare store and mark, or accept a restored store once."""
        if accept_restored:
            # The old mark stays until the store records that it was accepted: a crash
            # in between must not look like an untouched store.
            self._marked = self._state
            # A new name: copies of the old store never fit the mark again.
            with self.writing() as database:
                database.execute(
                    "UPDATE store SET store_id = ?", (entropy.token(STORE_ID_BYTES),)
                )
                connection = SQLiteConnection(database)
                run_inline(mark_restored(connection, everything=True))
                run_inline(skip_numbers(connection))
        elif self._mark is not None:
            self._marked = self._mark.read()
            refuse_restored(self._state, self._marked, self._mark.path)
        self._write_mark()

    def _write_mark(self) -> None:
        if self._mark is not None and self._marked != self._state:
            self._mark.write(self._state)
            self._marked = self._state

    def _checkpoint(self) -> None:
        self._pragma("wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _mapping_failures(self) -> Iterator[None]:
        """Turn a failure of SQLite into an error with the next step."""
        with mapped_errors(self._name):
            yield


def refuse_foreign(name: str, database: sqlite3.Connection) -> None:
    """Refuse a database that is not a store of this release.

    Args:
        name: Name of the file.
        database: Open connection to it.

    Raises:
        StateDamagedError: Its tables are not those of a store.
        ServiceError: STORAGE_FAILED; it is another database, or of a newer release.
        sqlite3.Error: It cannot be read.
    """
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{name} is a database, but not a store of this program",
            fix="Point the state path at another file; this one is something "
            "else, or of another release.",
        )
    if version > _SCHEMA_VERSION:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{name} has schema version {version}, this release reads version "
            f"{_SCHEMA_VERSION}",
            fix="Upgrade this side, or point it at another state file.",
        )
    if version != _SCHEMA_VERSION or _schema_of(database) != set(SCHEMA):
        raise StateDamagedError(f"the tables of {name} are not those of a store")


@contextmanager
def mapped_errors(name: str) -> Iterator[None]:
    """Turn every failure of SQLite or the disk into an error that states the next step.

    Args:
        name: Name of the file.

    Raises:
        StateDamagedError: The file's structure is damaged, or a text in it.
        ServiceError: STORAGE_FAILED.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _failure(name, error) from None
    except UnicodeError:
        # SQLite's own message about a name that is not valid text.
        raise StateDamagedError(f"{name} contains invalid UTF-8") from None
    except OSError as error:
        raise _file_error(name, error.strerror or str(error), _CHECK_OWNER) from None


def _failure(name: str, error: sqlite3.Error) -> SecAggError:
    """Return the error for a failure of SQLite."""
    # The lowest byte is the primary code, the others only refine it.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_CORRUPT:
        return StateDamagedError(f"{name}: {error}")
    return _file_error(name, str(error), _NEXT_STEPS.get(code, _CHECK_OWNER))


def _file_error(name: str, complaint: str, next_step: str) -> SecAggError:
    """Return the error of a state file that cannot be used."""
    return ErrorCode.STORAGE_FAILED.error(
        f"the state file {name} cannot be used: {complaint}", fix=next_step
    )


_CHECK_OWNER: Final = "Check that the directory exists and that its owner can write."
_OTHER_FILE: Final = (
    "Point the state path at another file; this one is something else, or damaged by "
    "this machine's disk or a foreign program."
)
_NEXT_STEPS: Final = {
    sqlite3.SQLITE_BUSY: "Another process uses this file; stop it, or use another.",
    sqlite3.SQLITE_FULL: "Free disk space and restart; no session data is lost.",
    sqlite3.SQLITE_IOERR: "The disk reports errors: check it and its free space.",
    sqlite3.SQLITE_NOTADB: _OTHER_FILE,
}


def _schema_of(database: sqlite3.Connection) -> set[str]:
    """Return the statements that made a database's tables."""
    found = database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return {sql for (sql,) in found}


def stored_text(data: bytes) -> str:
    """Return a TEXT value; bytes that are not text then fail its row's checksum."""
    return data.decode(errors="surrogateescape")


_Result = TypeVar("_Result")


class SQLiteTransactions:
    """Runs the commands and queries of a store; one call at a time.

    Args:
        file: The file; this closes it.
        now: The store's clock, in Unix seconds.
        leases: Leases of the process that has the file open.
    """

    def __init__(
        self,
        file: SQLiteFile,
        now: Callable[[], float],
        leases: Leases | None = None,
    ) -> None:
        self.file: Final = file
        self.now: Final = now
        self._leases: Final = leases or Leases(now)
        self.connection: Final = SQLiteConnection(file.database, now, self._leases)
        self._must_erase = False

    def apply(self, changes: Sequence[Change]) -> list[Outcome | Exception]:
        """Apply changes in one transaction; an error affects one change alone.

        Raises:
            ServiceError: STORAGE_FAILED; the outcome of all of them is unknown.
        """
        outcomes: list[Outcome | Exception] = []
        with self.file.writing() as database:
            rows = SessionRows(self.connection)
            for change in changes:
                if change.create is not None:
                    # This precedes its savepoint, which rolls back only its own writes.
                    run_inline(rows.write())
                # It is recorded before the commit, which may fail after it has written.
                self._must_erase |= change.end is not None or change.reseal is not None
                database.execute("SAVEPOINT change")
                try:
                    self._leases.check(change.lease)
                    outcome: Outcome | Exception = run_inline(
                        apply_change(rows, change)
                    )
                except sqlite3.Error:
                    raise  # the disk's fault, and every caller's
                except Exception as error:  # noqa: BLE001 - of one caller only
                    database.execute("ROLLBACK TO change")
                    outcome = error
                    if isinstance(error, PlaceTakenError):
                        outcome = run_inline(place_taken(rows.connection, change))
                database.execute("RELEASE change")
                outcomes.append(outcome)
            run_inline(rows.write())
        if self._must_erase:
            self.file.erase()
            self._must_erase = False
        return outcomes

    def write(self, update: StoreUpdate[_Result]) -> _Result:
        """Run an update in a transaction of its own."""
        with self.file.writing():
            return run_inline(update.run(self.connection))

    def read(self, query: Query[_Result]) -> _Result:
        """Return the answer to a query."""
        with self.file.reading():
            return run_inline(query.run(self.connection))
