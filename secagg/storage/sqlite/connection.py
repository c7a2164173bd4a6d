"""A connection to SQLite as the statements of a store expect one: it never waits.

The statements are coroutines because PostgreSQL waits for its network.  Here nothing
waits, so that one step runs such a coroutine from its beginning to its end.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

from secagg.storage.leases import Leases
from secagg.storage.tables import MILLISECONDS, Row, Sharing

_Value: TypeAlias = Any  # what SQLite takes, which `object` is not


@cache
def _numbered(sql: str) -> str:
    """Return a statement with its arguments numbered as SQLite numbers them."""
    return sql.replace("$", "?")


class SQLiteConnection:
    """Implements `Connection` without waiting; see `secagg.runtime.inline.run_inline`.

    Args:
        database: The connection; in a transaction, where something is written.
        now: The store's clock, in Unix seconds.
        leases: Of the process that has the store to itself.
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
        """Return what SQLite finds wrong with the structure of its file."""
        found = self._database.execute("PRAGMA integrity_check").fetchall()
        faults = [complaint for (complaint,) in found if complaint != "ok"]
        for table, row, *_ in self._database.execute("PRAGMA foreign_key_check"):
            faults.append(f"row {row} of {table!r} belongs to nothing")
        return faults
