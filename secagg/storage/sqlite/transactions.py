"""Transactions of a store in one SQLite file or in memory; every call blocks.

Rule 1: several changes share one transaction, and each has a savepoint of its own.  A
        refused one takes no other with it, and none is answered before all are on the
        disk, refusals included.
Rule 2: what a change has erased is overwritten before it is answered.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from secagg.runtime.inline import run_inline
from secagg.storage.change import Change, Outcome, Query, Update
from secagg.storage.changes import (
    PlaceTakenError,
    SessionRows,
    apply_change,
    taken_place,
)
from secagg.storage.leases import Leases
from secagg.storage.sqlite.connection import SQLiteConnection
from secagg.storage.sqlite.file import SQLiteFile

_Result = TypeVar("_Result")


class SQLiteTransactions:
    """Runs what a store is told and asked; one call at a time.

    Args:
        file: The file; this closes it.
        now: The store's clock, in Unix seconds.
        leases: Of the process that has the file to itself.
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
        """Apply changes in one transaction; an error is of one change alone.

        Raises:
            ServiceError: STORAGE_FAILED; nothing is known of any of them.
        """
        outcomes: list[Outcome | Exception] = []
        with self.file.writing() as database:
            rows = SessionRows(self.connection)
            for change in changes:
                if change.create is not None:
                    # Before its savepoint, which takes back its own only.
                    run_inline(rows.write())
                # Noted before the commit, whose failure may come after the deed.
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
                        outcome = run_inline(taken_place(rows.connection, change))
                database.execute("RELEASE change")
                outcomes.append(outcome)
            run_inline(rows.write())
        if self._must_erase:
            self.file.erase()
            self._must_erase = False
        return outcomes

    def write(self, update: Update[_Result]) -> _Result:
        """Run an update in a transaction of its own."""
        with self.file.writing():
            return run_inline(update.run(self.connection))

    def read(self, query: Query[_Result]) -> _Result:
        """Return the answer to a query."""
        with self.file.reading():
            return run_inline(query.run(self.connection))
