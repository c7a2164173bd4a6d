"""A session store in one SQLite file: the default of every deployment.

Rule 1: write-ahead log and `synchronous=FULL`: a returned call has reached the disk.
Rule 2: one process at a time.  The file is locked for as long as the store is open,
        because two processes that drive the same session could answer it twice.  The
        operating system drops the lock when the process dies.
Rule 3: only the owner may read the file, which holds seeds; what is deleted is
        overwritten, in the log too.
Rule 4: a file of a newer schema is refused.

It does not encrypt: use an encrypted disk where the machine may be stolen.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.base import (
    NumberClaim,
    Role,
    StoredSession,
    already_claimed,
    out_of_step,
    unknown_session,
)

__all__ = ["SCHEMA_VERSION", "SQLiteSessionStore"]

SCHEMA_VERSION: Final = 1

# Long enough for the exit of a predecessor that was told to stop, short enough for a
# person who started the second process by mistake.
LOCK_TIMEOUT_SECONDS: Final = 2.0

_SCHEMA: Final = """
CREATE TABLE sessions (
    session_key TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    header BLOB NOT NULL,
    summary BLOB
);
CREATE TABLE records (
    session_key TEXT NOT NULL REFERENCES sessions (session_key),
    sequence INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (session_key, sequence)
);
CREATE TABLE counters (
    counter TEXT PRIMARY KEY,
    highest INTEGER NOT NULL
);
"""


class SQLiteSessionStore:
    """Implements `SessionStore`; safe to call from several threads, one at a time.

    Args:
        path: The file; created with mode 0600 when it does not exist.

    Raises:
        ServiceError: STORAGE_FAILED when the file cannot be opened, is no such
            database, is in use by another process or has a newer schema.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._create_private_file()
        try:
            self._database = sqlite3.connect(
                path,
                timeout=LOCK_TIMEOUT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._failure(error) from None
        try:
            self._prepare()
        except ServiceError:
            self._database.close()
            raise
        except sqlite3.Error as error:
            self._database.close()
            raise self._failure(error) from None

    def __repr__(self) -> str:
        return f"SQLiteSessionStore({str(self._path)!r})"

    def create(
        self,
        session_key: str,
        role: Role,
        header: bytes,
        *,
        claim: NumberClaim | None = None,
    ) -> None:
        """Begin the records of a session."""
        with self._transaction() as database:
            if claim is not None:
                highest = _highest(database, claim.counter)
                if claim.number <= highest:
                    raise already_claimed(claim, highest=highest)
                database.execute(
                    "INSERT INTO counters VALUES (?1, ?2) "
                    "ON CONFLICT (counter) DO UPDATE SET highest = ?2",
                    (claim.counter, claim.number),
                )
            database.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, NULL)",
                (session_key, role.value, header),
            )

    def append(
        self, session_key: str, first_sequence: int, records: Sequence[bytes]
    ) -> None:
        """Append records in one atomic write."""
        with self._transaction() as database:
            row = database.execute(
                "SELECT summary IS NULL,"
                " (SELECT coalesce(max(sequence) + 1, 0) FROM records"
                " WHERE session_key = ?1) FROM sessions WHERE session_key = ?1",
                (session_key,),
            ).fetchone()
            if row is None or not row[0]:
                raise unknown_session(session_key)
            if row[1] != first_sequence:
                raise out_of_step(session_key, expected=row[1], found=first_sequence)
            database.executemany(
                "INSERT INTO records VALUES (?, ?, ?)",
                [
                    (session_key, sequence, record)
                    for sequence, record in enumerate(records, first_sequence)
                ],
            )

    def load(self, session_key: str) -> StoredSession | None:
        """Return what is stored about a session, or None."""
        with self._transaction() as database:
            row = database.execute(
                "SELECT header, summary FROM sessions WHERE session_key = ?",
                (session_key,),
            ).fetchone()
            if row is None:
                return None
            records = database.execute(
                "SELECT record FROM records WHERE session_key = ? ORDER BY sequence",
                (session_key,),
            ).fetchall()
        return StoredSession(session_key, row[0], tuple(r[0] for r in records), row[1])

    def end(self, session_key: str, summary: bytes) -> None:
        """Scrub a session and leave `summary`."""
        with self._transaction() as database:
            known = database.execute(
                "SELECT 1 FROM sessions WHERE session_key = ?", (session_key,)
            ).fetchone()
            if known is None:
                raise unknown_session(session_key)
            database.execute(
                "UPDATE sessions SET header = x'', summary = ?2"
                " WHERE session_key = ?1 AND summary IS NULL",
                (session_key, summary),
            )
            database.execute(
                "DELETE FROM records WHERE session_key = ?", (session_key,)
            )
        # secure_delete overwrote the pages; their old content is still in the log.
        with self._lock:
            try:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                raise self._failure(error) from None

    def sessions(self, role: Role, *, include_ended: bool = False) -> tuple[str, ...]:
        """Return the keys of a role's sessions, oldest first."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT session_key FROM sessions"
                " WHERE role = ? AND (? OR summary IS NULL) ORDER BY rowid",
                (role.value, include_ended),
            ).fetchall()
        return tuple(row[0] for row in rows)

    def highest_session_number(self, counter: str) -> int:
        """Return the highest number claimed under a counter, or 0."""
        with self._transaction() as database:
            return _highest(database, counter)

    def forget(self, session_key: str) -> None:
        """Remove the tombstone of a session that has ended."""
        with self._transaction() as database:
            cursor = database.execute(
                "DELETE FROM sessions WHERE session_key = ? AND summary IS NOT NULL",
                (session_key,),
            )
            if cursor.rowcount == 0:
                raise unknown_session(session_key)

    def close(self) -> None:
        """Fold the log into the file and release the lock."""
        with self._lock:
            self._database.close()

    def _create_private_file(self) -> None:
        # SQLite gives its log the mode of the database, so this covers both.
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise self._failure(error) from None

    def _prepare(self) -> None:
        # The order matters: in exclusive mode from the start, no shared memory file
        # is made, and the first write takes the lock of rule 2.
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = FULL",
            "secure_delete = ON",
            "foreign_keys = ON",
        ):
            self._database.execute(f"PRAGMA {pragma}").fetchall()
        with self._transaction() as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _SCHEMA.split(";")[:-1]:
                    database.execute(statement)
            elif version != SCHEMA_VERSION:
                raise ServiceError(
                    f"{self._path} has schema version {version}, this release reads "
                    f"version {SCHEMA_VERSION}",
                    code=ErrorCode.STORAGE_FAILED,
                    next_step="Upgrade this side, or point it at another state file.",
                )
            # Written again in any case: only a write takes the lock.
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise self._failure(error) from None
            try:
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self._failure(error) from None
            except BaseException:  # a cancelled caller leaves nothing open either
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        # A full disk may have rolled back already.
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _failure(self, error: sqlite3.Error | OSError) -> ServiceError:
        text = str(error)
        if "locked" in text:
            next_step = "Another process uses this file; stop it, or use another file."
        elif "full" in text:
            next_step = "Free disk space and restart; no session data is lost."
        elif "not a database" in text:
            next_step = (
                "Point the state path at another file; this one is something else."
            )
        else:
            next_step = "Check that the directory exists and that its owner can write."
        return ServiceError(
            f"the state file {self._path} cannot be used: {text}",
            code=ErrorCode.STORAGE_FAILED,
            next_step=next_step,
        )


def _highest(database: sqlite3.Connection, counter: str) -> int:
    row = database.execute(
        "SELECT highest FROM counters WHERE counter = ?", (counter,)
    ).fetchone()
    return 0 if row is None else int(row[0])
