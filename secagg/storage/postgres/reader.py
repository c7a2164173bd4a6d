"""A book in PostgreSQL that is read without holding it: for people who look.

Rule 1: one snapshot, read-only: what is told stood there at one moment, and whoever
        writes meanwhile is not disturbed.
Rule 2: nothing is made or migrated; a book of another schema is not read.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from secagg.storage.postgres import queries as postgres_queries
from secagg.storage.postgres.address import judged_address
from secagg.storage.postgres.connection import explained_failures, session_settings
from secagg.storage.postgres.migrations import refuse_other_schema
from secagg.storage.reader_protocol import StoreNotFoundError, StoreQueries


class PostgresReader(StoreQueries):
    """Implements `StoreReader` for as long as `reading_postgres` lasts."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - asyncpg has no types
        self._database = connection

    def _instant(self) -> None:
        return None

    async def _ask(self, query: str, *words: object, **more: object) -> Any:  # noqa: ANN401 - as the query says
        return await getattr(postgres_queries, query)(self._database, *words, **more)


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
                    raise StoreNotFoundError("in this database", setting="server.store")
                await refuse_other_schema(connection)
                yield PostgresReader(connection)
        finally:
            connection.terminate()
