"""The one way to a store: by URL, whatever keeps it."""

import stat
import time
from collections.abc import Callable
from concurrent.futures import Executor
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.storage.directories import (
    STORE_FILE,
    check_mark_place,
    state_directory,
)
from secagg.storage.postgres.address import POSTGRESQL, checked_address
from secagg.storage.rollback_mark import RollbackMark, default_mark
from secagg.storage.sqlite.executor import SQLiteExecutor
from secagg.storage.store import Store
from secagg.storage.table_store import TableStore

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
            it a restore from a backup is not noticed: for tests and simulations.
        accept_restored: A person accepts, this once, that the store may have forgotten
            what was sent.  Sessions that are open in it say so from then on.
        entropy: Names a new store; the operating system's by default.
        now: The store's clock, in Unix seconds; by default the machine's, and with
            PostgreSQL the database's.
        thread: Runs everything in SQLite that blocks, one call after the other; when
            left out one thread is made here, and none for memory, where nothing blocks.
        is_shared: Others that say the same may use the store at the same time.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the URL or the place of the mark cannot be
            used.
        StateDamagedError: What is stored does not fit together.
        ServiceError: RESTORED_STATE for a store that was restored, copied or exchanged;
            STORAGE_FAILED when it cannot be opened or is in use; StoreUnavailableError
            for a database that was unavailable for ten minutes.
    """
    held_mark = None if mark is None else RollbackMark(mark)
    entropy = entropy or SystemEntropy()
    if url.startswith(POSTGRESQL):
        address = checked_address(url)
        try:
            from secagg.storage.postgres.executor import PostgresExecutor  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise missing_package(error) from None
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
            "a book in a file cannot be shared by several aggregators",
            kind=LocalProtocolError,
            fix="Set server.store to a PostgreSQL database, or leave server.blobs out.",
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
        directory: Made, readable by its owner only, when it does not exist; None for a
            store that lasts as long as the object.
        store: URL of a store that is kept elsewhere, as for `open_store`; by default it
            is a file of the directory.
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
        ServiceError: STORAGE_FAILED; this user may not look, or something else lies in
            its place.
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
        raise missing_package(ModuleNotFoundError(name="asyncpg"))


def missing_package(error: ModuleNotFoundError) -> LocalProtocolError:
    """Build the error for a store whose extra is not installed."""
    return ErrorCode.BAD_SETTINGS.error(
        f"a book in PostgreSQL needs a package that is not installed: {error.name}",
        kind=LocalProtocolError,
        fix="Install it: pip install 'secagg[postgres]'.",
    )


def _path_of(url: str) -> Path | None:
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
