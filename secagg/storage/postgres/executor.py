"""A store in a PostgreSQL database: the state of an aggregator outlives its machine.

Rule 1: one aggregator at a time uses a store, or several that have agreed to share it.
        The database excludes all others (`secagg.storage.postgres.connection`).
Rule 2: the store's clock is the database's.  A machine whose clock is wrong closes no
        round early.
Rule 3: calls take effect in their order, and a caller that goes away takes nothing with
        it.
Rule 4: erased data are gone from the tables. They remain in the database's log, its
        standbys and its backups, and in dead rows before the next vacuum.  They contain
        seeds and shares of ended sessions: protect them like the database.
Rule 5: a reader holds no store, makes nothing and migrates nothing.  It reads one
        snapshot, and disturbs no writer.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, TypeVar

import asyncpg

from secagg.crypto.entropy import Entropy
from secagg.storage.change import Change, Outcome, Query, StoreUpdate
from secagg.storage.postgres.address import checked_address
from secagg.storage.postgres.connection import (
    PostgresLink,
    mapped_failures,
    session_settings,
)
from secagg.storage.postgres.migrations import refuse_other_schema
from secagg.storage.postgres.statements import (
    PostgresConnection,
    apply_step,
    count_commit,
    rejection_of,
    snapshot,
)
from secagg.storage.queries import ReadClock, ReadMissed
from secagg.storage.rollback_mark import RollbackMark
from secagg.storage.store import StoreNotFoundError, StoreReader
from secagg.storage.tables import MILLISECONDS

_Result = TypeVar("_Result")


class PostgresExecutor:
    """Implements `secagg.storage.store.StoreEngine`; belongs to one event loop.

    Make it with `open`.
    """

    retains_erased_data: ClassVar[bool] = True

    def __init__(self, link: PostgresLink, now: Callable[[], float] | None) -> None:
        self.link: Final = link
        self._now: Final = now
        self._calls: Final[set[asyncio.Task[Any]]] = set()

    @classmethod
    async def open(  # noqa: PLR0913 - every part can be exchanged
        cls,
        address: str,
        *,
        mark: RollbackMark | None,
        accept_restored: bool,
        entropy: Entropy,
        now: Callable[[], float] | None,
        is_shared: bool,
    ) -> "PostgresExecutor":
        """Open a store; see `secagg.storage.open_store`."""
        link = await PostgresLink.open(
            address,
            mark=mark,
            accept_restored=accept_restored,
            entropy=entropy,
            is_shared=is_shared,
            instant=None if now is None else int(now() * MILLISECONDS),
        )
        return cls(link, now)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time."""
        return self.link.is_shared

    async def apply(self, change: Change) -> Outcome:
        """Apply a change."""

        async def apply() -> Outcome:
            async with self.link.using() as database:
                written = await apply_step(database, change, instant=self._instant())
                if written.generation is not None:
                    self.link.committed(written.generation)
            return written.outcome

        return await self._run(apply())

    async def write(self, update: StoreUpdate[_Result]) -> _Result:
        """Run an update in a transaction; one that is not counted begins its own."""

        async def write() -> _Result:
            async with self.link.using() as database:
                connection = PostgresConnection(database, self._instant())
                if not update.is_counted:
                    return await update.run(connection)
                async with database.transaction():
                    result = await update.run(connection)
                    generation = await count_commit(database)
                self.link.committed(generation)
            return result

        return await self._run(write())

    async def read(self, query: Query[_Result]) -> _Result:
        """Run a query on one snapshot; one statement is one without a transaction."""

        async def read() -> Any:  # noqa: ANN401 - as the query says
            async with self.link.using() as database:
                instant = self._instant()
                if isinstance(query, ReadMissed):
                    return await rejection_of(database, query.change, instant=instant)
                connection = PostgresConnection(database, instant)
                if isinstance(query, ReadClock):
                    return await query.run(connection)
                async with snapshot(database):
                    return await query.run(connection)

        result: _Result = await self._run(read())
        return result

    async def hints(self) -> AsyncGenerator[None]:
        """Yield whenever another process may have written."""
        if self.is_shared:
            async for _ in self.link.hints():
                yield

    async def close(self) -> None:
        """Finish what is under way and release the store."""
        try:
            if self._calls:
                await asyncio.wait(set(self._calls))
        finally:  # cancelled, too: the store is released
            await self.link.close()

    def _instant(self) -> int | None:
        return None if self._now is None else int(self._now() * MILLISECONDS)

    async def _run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Make a call, and finish it even if its caller goes away."""
        running = asyncio.get_running_loop().create_task(call)
        self._calls.add(running)
        running.add_done_callback(self._finished)
        return await asyncio.shield(running)

    def _finished(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen, though its caller may have gone away


class _PostgresReader:
    """Implements `StoreReader` in the transaction of `reading_postgres`."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

    async def read(self, query: Query[_Result]) -> _Result:
        """Return the answer to a query."""
        return await query.run(self._connection)


@asynccontextmanager
async def reading_postgres(url: str) -> AsyncIterator[StoreReader]:
    """Open a store to read it, as it is at one moment.

    Args:
        url: Its address.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the address must not be dialled.
        StateDamagedError: What is stored does not fit together.
        ServiceError: STORAGE_FAILED; the database cannot be used, or has no store of
            this release.
    """
    with mapped_failures():
        database = await asyncpg.connect(
            checked_address(url), server_settings=session_settings(), timeout=10.0
        )
        try:
            async with snapshot(database):
                if await database.fetchval("SELECT to_regclass('store')") is None:
                    raise StoreNotFoundError("in this database", setting="server.store")
                await refuse_other_schema(database)
                yield _PostgresReader(PostgresConnection(database, None))
        finally:
            database.terminate()
