"""The tables of a store in PostgreSQL: created, and migrated one step at a time.

Rule 1: the steps are files of this package, applied in the order of their numbers. Each
        runs in one transaction with the row that records it, so a process that dies in
        between leaves only whole steps.
Rule 2: the caller holds the store (`secagg.storage.postgres.connection`): of several
        processes that start together, one does the work.
Rule 3: a store that a newer release has migrated is refused, and not changed.
Rule 4: a published step is never edited; a change is another file.
"""

from importlib.resources import files
from itertools import count
from typing import Any, Final, TypeAlias

from secagg.errors import ErrorCode, SecAggError

Database: TypeAlias = Any
"""A connection of asyncpg, which has no types."""

SCHEMA: Final = "secagg"
"""The tables are in a schema of their own, beside those of other programs."""


async def migrate(database: Database) -> None:
    """Bring the tables to the schema of this release.

    Raises:
        ServiceError: STORAGE_FAILED; a newer release has used the store.
        Exception: The database's own error, from a step that was rolled back
            completely.
    """
    await database.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    await database.execute(
        "CREATE TABLE IF NOT EXISTS migration (number integer PRIMARY KEY, "
        "applied timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    steps = _steps()
    done = await _last_applied(database)
    if done > len(steps):
        raise _other_schema(done, len(steps))
    for number, step in enumerate(steps[done:], done + 1):
        async with database.transaction():
            await database.execute(step)
            await database.execute("INSERT INTO migration VALUES ($1)", number)


async def refuse_other_schema(database: Database) -> None:
    """Refuse a store whose tables are not exactly those of this release.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    done, known = await _last_applied(database), len(_steps())
    if done != known:
        raise _other_schema(done, known)


async def _last_applied(database: Database) -> int:
    """Return the number of the last migration of a database; 0 for none."""
    query = "SELECT coalesce(max(number), 0) FROM migration"
    return int(await database.fetchval(query))


def _other_schema(found: int, known: int) -> SecAggError:
    """Return the error of a store with another schema."""
    return ErrorCode.STORAGE_FAILED.error(
        f"the store has schema version {found}, this release reads version {known}",
        fix="Upgrade this side, or point it at another database."
        if found > known
        else "Start the aggregator of this release once: it migrates the store.",
    )


def _steps() -> tuple[str, ...]:
    """Return the text of every step, in order."""
    found = {
        int(file.name.partition("_")[0]): file
        for file in files("secagg.storage").joinpath("migrations/postgresql").iterdir()
        if file.name.endswith(".sql")
    }
    texts = []
    for number in count(1):
        if number not in found:
            break
        texts.append(found[number].read_text(encoding="utf-8"))
    return tuple(texts)
