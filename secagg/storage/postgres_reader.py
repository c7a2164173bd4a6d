"""A book in PostgreSQL that is read without holding it: for people who look.

Rule 1: one snapshot, read-only: what is told stood there at one moment, and whoever
        writes meanwhile is not disturbed.
Rule 2: nothing is made or migrated; a book of another schema is not read.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from secagg.storage import postgres_queries
from secagg.storage.book_reader import NoBookError
from secagg.storage.change import Role
from secagg.storage.charges import ChargeRow
from secagg.storage.postgres_address import judged_address
from secagg.storage.postgres_link import explained_failures, session_settings
from secagg.storage.postgres_migrations import refuse_other_schema
from secagg.storage.stored import (
    Finding,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
    TaskRow,
)

__all__ = ["PostgresReader", "reading_postgres"]


class PostgresReader:
    """Implements `ReadsBook` for as long as `reading_postgres` lasts."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - asyncpg has no types
        self._database = connection

    async def sessions(
        self,
        *,
        role: Role,
        task: str | None = None,
        state: SessionState = SessionState.RUNNING,
        before: int | None = None,
        limit: int | None = None,
    ) -> tuple[SessionRow, ...]:
        """Return sessions, the newest first."""
        return await postgres_queries.list_sessions(
            self._database,
            role=role,
            task=task,
            state=state,
            before=before,
            limit=limit,
        )

    async def load(self, key: str, *, after: int = 0) -> StoredSession | None:
        """Return a session."""
        return await postgres_queries.load_session(
            self._database, key, after=after, instant=None
        )

    async def tasks(self) -> tuple[TaskRow, ...]:
        """Return the tasks."""
        return await postgres_queries.read_tasks(self._database)

    async def tally(self, role: Role, task: str, *, peer: str = "") -> Tally:
        """Return what the sessions of a task leave behind for good."""
        return await postgres_queries.read_tally(self._database, role, task, peer=peer)

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """Return the charges of a task."""
        return await postgres_queries.read_charges(self._database, task)

    async def check(self) -> tuple[Finding, ...]:
        """Verify headers and chains."""
        return await postgres_queries.find_faults(self._database)


@asynccontextmanager
async def reading_postgres(url: str) -> AsyncIterator[PostgresReader]:
    """Open a book to read it, as it is at one moment.

    Args:
        url: Its address.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the address must not be dialled.
        StateDamagedError: What is stored does not fit together.
        ServiceError: STORAGE_FAILED; the database cannot be used, or has no book of
            this release.
    """
    with explained_failures():
        connection = await asyncpg.connect(
            judged_address(url), server_settings=session_settings(), timeout=10.0
        )
        try:
            async with connection.transaction(
                isolation="repeatable_read", readonly=True
            ):
                if await connection.fetchval("SELECT to_regclass('book')") is None:
                    raise NoBookError("in this database", setting="server.store")
                await refuse_other_schema(connection)
                yield PostgresReader(connection)
        finally:
            connection.terminate()
