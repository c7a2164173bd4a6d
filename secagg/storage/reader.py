"""A store that no process has open, read without changing it: for commands.

Rule 1: read and close.  While a store is read no server can start with it, so the rows
        are copied, the file is closed, and then they are evaluated and printed.
Rule 2: not one byte of the store changes, and the rollback mark is not asked: a reader
        sends nothing.  The doctor asks it, because a start would.
Rule 3: what is read is verified as an open store verifies it.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.change import Query
from secagg.storage.directories import STORE_FILE
from secagg.storage.open_store import missing_package, store_exists
from secagg.storage.sqlite.connection import SQLiteConnection
from secagg.storage.sqlite.file import (
    explained,
    refuse_foreign,
    stored_text,
)
from secagg.storage.store import StoreNotFoundError, StoreReader

_Answer = TypeVar("_Answer")

# A server holds the store for as long as it runs: waiting would not help.
_WAIT_SECONDS: Final = 0.5


class StoreInUseError(ServiceError):
    """A process has the store open."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"a process uses the state {path}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Stop that process first; it resumes from the last committed "
            "record. What an aggregator knows it tells while it runs: `secagg "
            "status`, `sessions`, `budget`. A client says in its output after each "
            "session how many are left in its budget.",
        )


class _SQLiteReader:
    """Implements `StoreReader` while `reading` lasts; blocks while it reads."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._connection = SQLiteConnection(database)
        self._name = name

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Return the answer to a query."""
        with explained(self._name):
            return await query.run(self._connection)


@asynccontextmanager
async def looking(
    directory: Path, *, store: str | None = None
) -> AsyncIterator[StoreReader]:
    """Open the store of a party to read it, wherever it is kept.

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
        from secagg.storage.postgres.executor import reading_postgres  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise missing_package(error) from None
    async with reading_postgres(store) as postgres_reader:
        yield postgres_reader


@contextmanager
def reading(path: Path) -> Iterator[StoreReader]:
    """Open a store to read it, as it is at one moment.

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
            yield _SQLiteReader(database, name)
        finally:
            database.close()


def _begin(database: sqlite3.Connection, path: Path) -> None:
    database.text_factory = stored_text
    try:
        database.execute("BEGIN")
        refuse_foreign(str(path), database)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise StoreInUseError(path) from None
        raise
