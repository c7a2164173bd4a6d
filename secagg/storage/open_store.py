"""The one way to a store: by URL, to use it, or to read one that no process has open.

Commands read a store without changing it:

Rule 1: read and close.  While a store is read no server can start with it. So the rows
        are copied, the file is closed, and then they are evaluated and printed.
Rule 2: not one byte of the store changes, and the rollback mark is not asked: a reader
        sends nothing.  The doctor asks it, because a start would.
Rule 3: what is read is verified as an open store verifies it.
"""

import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.storage.change import Query
from secagg.storage.directories import STORE_FILE, check_mark_place, state_directory
from secagg.storage.rollback_mark import RollbackMark, default_mark
from secagg.storage.sqlite.executor import SQLiteExecutor
from secagg.storage.sqlite.file import (
    SQLiteConnection,
    mapped_errors,
    refuse_foreign,
    stored_text,
)
from secagg.storage.store import Store, StoreNotFoundError, StoreReader, TableStore

POSTGRESQL: Final = "postgresql:"
_SQLITE: Final = "sqlite:"
_MEMORY: Final = "sqlite::memory:"


async def open_store(  # noqa: PLR0913 - every part can be exchanged
    url: str,
    *,
    mark: Path | None = None,
    accept_restored: bool = False,
    entropy: Entropy | None = None,
    now: Callable[[], float] | None = None,
    thread: Executor | None = None,
    is_shared: bool = False,
) -> Store:
    """Open the durable store of one party, and make it if it does not exist.

    Args:
        url: `sqlite:/absolute/path.db`; `sqlite::memory:` for a store that lasts as
            long as the object; or `postgresql://user@host/database`, see
            `secagg.storage.postgres.address`.
        mark: File of the rollback mark, in another directory than the store.  Without
            it a restored store is not detected: for tests and simulations.
        accept_restored: Accept, this once, that the store may have lost what was sent.
            Sessions that are open in it are marked from then on.
        entropy: Source of a new store's name; the operating system's by default.
        now: The store's clock, in Unix seconds; by default the machine's, and with
            PostgreSQL the database's.
        thread: Runs all blocking calls of SQLite, one after the other. By default a new
            thread, and none for memory, where nothing blocks.
        is_shared: Whether other processes that state the same may use the store at the
            same time.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the URL or the place of the mark cannot be
            used.
        StateDamagedError: Stored data contradict each other.
        ServiceError: RESTORED_STATE for a store that was restored, copied or exchanged;
            STORAGE_FAILED when it cannot be opened or is in use; StoreUnavailableError
            for a database that was unavailable for ten minutes.
    """
    held_mark = None if mark is None else RollbackMark(mark)
    entropy = entropy or SystemEntropy()
    if url.startswith(POSTGRESQL):
        from secagg.storage.postgres.address import checked_address  # noqa: PLC0415 - for a database alone

        address = checked_address(url)
        try:
            from secagg.storage.postgres.executor import PostgresExecutor  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise _missing_package(error) from None
        return TableStore(
            await PostgresExecutor.open(
                address,
                mark=held_mark,
                accept_restored=accept_restored,
                entropy=entropy,
                now=now,
                is_shared=is_shared,
            )
        )
    path = _path_of(url)
    if is_shared:
        raise ErrorCode.BAD_SETTINGS.error(
            "a store in a file cannot be shared by several aggregators",
            kind=LocalProtocolError,
            fix="Set server.store to a PostgreSQL database, or remove server.blobs.",
        )
    if mark is not None and path is not None:
        check_mark_place(mark, path)
    return TableStore(
        await SQLiteExecutor.open(
            path,
            mark=held_mark,
            accept_restored=accept_restored,
            entropy=entropy,
            now=now or time.time,
            thread=thread,
        )
    )


async def open_state(
    directory: Path | None,
    *,
    store: str | None = None,
    mark: Path | None = None,
    accept_restored: bool = False,
    is_shared: bool = False,
) -> Store:
    """Open the store of a party that keeps its state in a directory.

    Args:
        directory: The directory, made for its owner only when it does not exist; None
            for a store in memory.
        store: URL of a store elsewhere, as for `open_store`; by default it is a file of
            the directory.
        mark: As for `open_store`; by default one under the user's persistent state.
        accept_restored: As for `open_store`.
        is_shared: As for `open_store`.

    Raises:
        SecAggError: As `open_store`; STORAGE_FAILED also when the directory cannot be
            made.
    """
    if directory is None:
        return await open_store(_MEMORY)
    made = state_directory(directory)
    return await open_store(
        store or f"{_SQLITE}{made / STORE_FILE}",
        mark=mark or default_mark(made),
        accept_restored=accept_restored,
        is_shared=is_shared,
    )


def store_exists(path: Path) -> bool:
    """Return whether a file holds a store.

    An empty file does not: a process that is killed before its first commit leaves one.

    Raises:
        ServiceError: STORAGE_FAILED; this user may not read it, or the path is not a
            file.
    """
    reason = "it is not a file"
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return found.st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        reason = error.strerror or type(error).__name__
    raise ErrorCode.STORAGE_FAILED.error(
        f"the state file {path} cannot be used: {reason}",
        fix="Check state_dir, its owner and its mode.",
    )


def check_postgres_package() -> None:
    """Refuse a store in PostgreSQL where the package for it is not installed.

    Raises:
        LocalProtocolError: BAD_SETTINGS.
    """
    if find_spec("asyncpg") is None:
        raise _missing_package(ModuleNotFoundError(name="asyncpg"))


def _missing_package(error: ModuleNotFoundError) -> LocalProtocolError:
    """Build the error for a store whose extra is not installed."""
    return ErrorCode.BAD_SETTINGS.error(
        f"a store in PostgreSQL needs a package that is not installed: {error.name}",
        kind=LocalProtocolError,
        fix="Install it: pip install 'secagg[postgres]'.",
    )


def _path_of(url: str) -> Path | None:
    """Return the file of a URL; None for memory."""
    if url == _MEMORY:
        return None
    path = Path(url.removeprefix(_SQLITE))
    if url.startswith(_SQLITE) and path.is_absolute():
        return path
    scheme = url.partition(":")[0]
    complaint = (
        "needs an absolute path"
        if scheme == "sqlite"
        else f"names a store, {scheme!r}, that this release does not have"
    )
    raise ErrorCode.BAD_SETTINGS.error(
        f"the address of the state {complaint}",
        kind=LocalProtocolError,
        fix=f"Write {_SQLITE}/absolute/path.db, {POSTGRESQL}//user@host/name, or "
        f"{_MEMORY} for a trial.",
    )


_Answer = TypeVar("_Answer")

# A server holds the store for as long as it runs: waiting would not help.
_WAIT_SECONDS: Final = 0.5


class StoreInUseError(ServiceError):
    """Reports that a process has the store open."""

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
        with mapped_errors(self._name):
            return await query.run(self._connection)


@asynccontextmanager
async def open_reader(
    directory: Path, *, store: str | None = None
) -> AsyncIterator[StoreReader]:
    """Open the store of a party to read it, wherever it is kept.

    Args:
        directory: The party's state directory.
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
        raise _missing_package(error) from None
    async with reading_postgres(store) as postgres_reader:
        yield postgres_reader


@contextmanager
def reading(path: Path) -> Iterator[StoreReader]:
    """Open a store to read it, as it is at one moment.

    Args:
        path: The file of the store.

    Raises:
        StoreInUseError: A process has it open.
        StateDamagedError: The stored data contradict each other.
        ServiceError: STORAGE_FAILED; the file does not exist, or is not a store.
    """
    name = str(path)
    if not store_exists(path):
        raise StoreNotFoundError(name, setting="state_dir")
    with mapped_errors(name):
        database = sqlite3.connect(
            f"file:{quote(name)}?mode=ro",
            uri=True,
            timeout=_WAIT_SECONDS,
            isolation_level=None,
        )
        try:
            _begin_reading(database, path)
            yield _SQLiteReader(database, name)
        finally:
            database.close()


def _begin_reading(database: sqlite3.Connection, path: Path) -> None:
    """Begin to read a file, unless a process has it open."""
    database.text_factory = stored_text
    try:
        database.execute("BEGIN")
        refuse_foreign(str(path), database)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise StoreInUseError(path) from None
        raise
