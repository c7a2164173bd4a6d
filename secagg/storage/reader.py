"""A book that nobody has open, read without changing it: for people who look.

Rule 1: read and let go.  While a book is read no server can start with it, so the rows
        are copied, the file is closed, and then somebody thinks and prints.
Rule 2: not one byte of the book changes, and the rollback mark is not asked: whoever
        only looks sends nothing.  The doctor asks it, because a start would.
Rule 3: what is read is verified as the book itself verifies it.
"""

import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.budget_ledger import ChargeRow
from secagg.storage.change import Role
from secagg.storage.data_claims import ClaimRow
from secagg.storage.directories import STORE_FILE
from secagg.storage.open_store import missing_package, store_exists
from secagg.storage.reader_protocol import StoreNotFoundError, StoreQueries
from secagg.storage.rows import (
    Finding,
    ReplicaRow,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
    TaskRow,
)
from secagg.storage.session_columns import MILLISECONDS
from secagg.storage.sqlite import queries as sqlite_queries
from secagg.storage.sqlite.file import (
    explained,
    refuse_foreign,
    schema_of,
    stored_text,
)

# A server holds the book for as long as it runs: waiting would not help.
_WAIT_SECONDS: Final = 0.5


class StoreInUseError(ServiceError):
    """A process has the book open."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"a process uses the state {path}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Stop that process first; it goes on where it stood. What an "
            "aggregator knows it tells while it runs: `secagg status`, `sessions`, "
            "`budget`. A client says in its output after each session how many are "
            "left in its budget.",
        )


class StoreReader(Protocol):
    """The part of `secagg.storage.store.Store` that changes nothing."""

    async def sessions(
        self,
        *,
        role: Role,
        task: str | None = None,
        state: SessionState = SessionState.RUNNING,
        before: int | None = None,
        limit: int | None = None,
    ) -> tuple[SessionRow, ...]:
        """See `Book.sessions`."""
        ...

    async def load(self, key: str, *, after: int = 0) -> StoredSession | None:
        """See `Book.load`."""
        ...

    async def tasks(self) -> tuple[TaskRow, ...]:
        """See `Book.tasks`."""
        ...

    async def tally(self, role: Role, task: str, *, peer: str = "") -> Tally:
        """See `Book.tally`."""
        ...

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """See `Book.charges`."""
        ...

    async def claims(self, data: str | None = None) -> tuple[ClaimRow, ...]:
        """See `Book.claims`."""
        ...

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """See `Book.replicas`."""
        ...

    async def check(self) -> tuple[Finding, ...]:
        """See `Book.check`."""
        ...


class SQLiteReader(StoreQueries):
    """Implements `StoreReader` while `reading` lasts; blocks while it reads."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name

    def _instant(self) -> int:
        return int(time.time() * MILLISECONDS)

    async def _ask(self, query: str, *words: object, **more: object) -> Any:  # noqa: ANN401 - as the query says
        with explained(self._name):
            return getattr(sqlite_queries, query)(self._database, *words, **more)


@asynccontextmanager
async def looking(
    directory: Path, *, store: str | None = None
) -> AsyncIterator[StoreQueries]:
    """Open the book of a party to read it, wherever it is kept.

    Args:
        directory: Of the party's state.
        store: As for `secagg.storage.open_store.open_state`.

    Raises:
        SecAggError: As `reading`; BAD_SETTINGS for a store that cannot be used.
    """
    if store is None:
        with reading(directory / STORE_FILE) as reader:
            yield reader
        return
    try:
        from secagg.storage.postgres.reader import (  # noqa: PLC0415 - an extra
            reading_postgres,
        )
    except ModuleNotFoundError as error:
        raise missing_package(error) from None
    async with reading_postgres(store) as postgres_reader:
        yield postgres_reader


@contextmanager
def reading(path: Path) -> Iterator[SQLiteReader]:
    """Open a book to read it, as it is at one moment.

    Args:
        path: The file.

    Raises:
        StoreInUseError: A process has it open.
        StateDamagedError: What is stored does not fit together.
        ServiceError: STORAGE_FAILED; there is no such file, or it is something else.
    """
    name = str(path)
    if not store_exists(path):
        raise StoreNotFoundError(name, setting="state_dir")
    with explained(name):
        database = sqlite3.connect(
            f"file:{quote(name)}?mode=ro",
            uri=True,
            timeout=_WAIT_SECONDS,
            isolation_level=None,
        )
        try:
            _begin(database, path)
            yield SQLiteReader(database, name)
        finally:
            database.close()


def _begin(database: sqlite3.Connection, path: Path) -> None:
    database.text_factory = stored_text
    try:
        database.execute("BEGIN")
        schema = schema_of(database)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise StoreInUseError(path) from None
        raise
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    refuse_foreign(str(path), application, version, schema)
