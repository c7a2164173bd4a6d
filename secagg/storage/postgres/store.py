"""A book in a PostgreSQL database: the state of an aggregator outlives its machine.

Rule 1: one aggregator at a time works with a book, or several that have agreed to
        share it; the database keeps the others out
        (`secagg.storage.postgres.connection`).
Rule 2: the book's clock is the database's.  A machine whose clock is wrong closes no
        round early.
Rule 3: calls take effect in their order, and a caller that goes away takes nothing
        with it.
Rule 4: what was scrubbed is gone from the tables, and not from the database's log, its
        standbys and its backups, nor from dead rows before the next vacuum.  They hold
        seeds and shares of ended sessions: keep them as you keep the database.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import Settlement
from secagg.storage.change import Change, Ended, Lease, MissedRecords
from secagg.storage.data_claims import Claim
from secagg.storage.postgres import changes as postgres_changes
from secagg.storage.postgres import notifications as postgres_sharing
from secagg.storage.postgres import queries as postgres_queries
from secagg.storage.postgres.changes import Outcome
from secagg.storage.postgres.connection import PostgresLink
from secagg.storage.postgres.database import Database
from secagg.storage.reader_protocol import StoreQueries
from secagg.storage.rollback_mark import RollbackMark
from secagg.storage.rows import (
    PurgeResult,
    Replica,
    Retention,
    Task,
)
from secagg.storage.session_columns import MILLISECONDS

_Result = TypeVar("_Result")


class PostgresStore(StoreQueries):
    """Implements `Book`; belongs to one event loop.

    Make it with `open`.
    """

    def __init__(self, link: PostgresLink, now: Callable[[], float] | None) -> None:
        self._link: Final = link
        self._now: Final = now
        self._calls: Final[set[asyncio.Task[Any]]] = set()
        self._is_closed = False

    @classmethod
    async def open(  # noqa: PLR0913 - every part can be exchanged
        cls,
        address: str,
        *,
        mark: RollbackMark | None,
        accept_restored: bool,
        entropy: Entropy,
        now: Callable[[], float] | None,
        is_shared: bool = False,
    ) -> "PostgresStore":
        """Open a book; see `secagg.storage.open_store`."""
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
        """Whether others may write to it at the same time."""
        return self._link.is_shared

    async def commit(self, change: Change) -> Outcome:
        """Apply a change."""

        async def commit(database: Database) -> Outcome:
            written = await postgres_changes.apply_change(
                database, change, instant=self._instant()
            )
            if written.generation is not None:
                self._link.committed(written.generation)
            return written.outcome

        return await self._read(commit)

    async def touch(self) -> None:
        """Commit a transaction that only counts itself."""

        async def touch(_: Database) -> None:
            pass

        await self._write(touch)

    async def now(self) -> float:
        """Return the book's time: the database's."""
        instant = await self._read(
            lambda database: postgres_queries.read_instant(database, self._instant())
        )
        return instant / MILLISECONDS

    async def missed(
        self, key: str, *, expect: int, previous: bytes, restored: bool = False
    ) -> MissedRecords | Ended:
        """Return what a writer does not know of a session."""
        return await self._read(
            lambda database: postgres_queries.missed(
                database,
                key,
                expect=expect,
                previous=previous,
                restored=restored,
                instant=self._instant(),
            )
        )

    async def put_task(self, task: Task, *, expect_version: int) -> bool:
        """Store a task, if it still has this version."""
        return await self._write(
            lambda database: postgres_changes.put_task(
                database, task, expect_version=expect_version
            )
        )

    async def put_facts(self, task: str, facts: bytes, *, instead_of: bytes) -> bool:
        """Store what a task knows from its sessions, if it knew nothing else."""
        return await self._write(
            lambda database: postgres_changes.put_facts(
                database, task, facts, instead_of=instead_of
            )
        )

    async def take(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take a lease."""
        return await self._read(
            lambda database: postgres_sharing.take_lease(
                database,
                name,
                holder=holder,
                seconds=seconds,
                instant=self._instant(),
            )
        )

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Hold a lease for longer."""
        return await self._read(
            lambda database: postgres_sharing.renew_lease(
                database, lease, seconds=seconds, instant=self._instant()
            )
        )

    async def give_back(self, lease: Lease) -> None:
        """Let others have a lease."""
        await self._read(
            lambda database: postgres_sharing.give_lease_back(database, lease)
        )

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever others may have written."""
        if self.is_shared:
            async for _ in self._link.hints():
                if self._is_closed:
                    return
                yield

    async def blobs_name(self, proposed: bytes | None) -> bytes | None:
        """Return the name of the store that keeps this book's blobs."""
        return await self._write(
            lambda database: postgres_sharing.name_blobs(database, proposed)
        )

    async def heartbeat(self, replica: Replica) -> None:
        """Say that a replica is at work."""

        async def heartbeat(database: Database) -> None:
            async with database.transaction():
                await postgres_sharing.heartbeat(
                    database, replica, instant=self._instant()
                )

        if self.is_shared:
            await self._read(heartbeat)

    async def settle(self, settlement: Settlement) -> None:
        """Settle the charge of a session that has ended without an answer."""
        await self._write(
            lambda database: postgres_changes.settle_charge(
                database, settlement, instant=self._instant()
            )
        )

    async def put_claim(self, claim: Claim, *, after: int) -> bool:
        """Add a claim, if nobody else has made one meanwhile."""
        return await self._write(
            lambda database: postgres_changes.put_claim(
                database, claim, after=after, instant=self._instant()
            )
        )

    async def seen_revocations(
        self, enrolment_key: bytes, trust_domain: str
    ) -> Trust | None:
        """Return the newest revocation list that was read."""
        return await self._read(
            lambda database: postgres_queries.read_revocations(
                database, enrolment_key, trust_domain
            )
        )

    async def see_revocations(self, trust: Trust) -> None:
        """Remember a revocation list that was read whole."""
        await self._write(
            lambda database: postgres_changes.see_revocations(database, trust)
        )

    async def purge(self, policy: Retention) -> PurgeResult:
        """Remove receipts, in transactions of bounded size."""
        keys: list[str] = []
        while True:
            removed = await self._write(
                lambda database: postgres_changes.purge_receipts(
                    database, policy, instant=self._instant()
                )
            )
            if not removed:
                return PurgeResult(tuple(keys))
            keys.extend(removed)

    async def close(self) -> None:
        """Finish what is under way and let go of the book; twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._calls:
                await asyncio.wait(set(self._calls))
        finally:  # cancelled, too: the book is let go
            await self._link.close()

    # --- calls ------------------------------------------------------------------------

    def _instant(self) -> int | None:
        return None if self._now is None else int(self._now() * MILLISECONDS)

    async def _read(self, query: Callable[[Database], Awaitable[_Result]]) -> _Result:
        async def call() -> _Result:
            async with self._link.using() as database:
                return await query(database)

        return await self._run(call())

    async def _ask(self, query: str, *words: object, **more: object) -> Any:  # noqa: ANN401 - as the query says
        asked = getattr(postgres_queries, query)
        return await self._look(lambda database: asked(database, *words, **more))

    async def _look(self, query: Callable[[Database], Awaitable[_Result]]) -> _Result:
        """Read what takes several statements, all of one moment."""

        async def look(database: Database) -> _Result:
            async with postgres_queries.snapshot(database):
                return await query(database)

        return await self._read(look)

    async def _write(self, work: Callable[[Database], Awaitable[_Result]]) -> _Result:
        async def call() -> _Result:
            async with self._link.using() as database:
                async with database.transaction():
                    result = await work(database)
                    generation = await postgres_changes.count_commit(database)
                self._link.committed(generation)
            return result

        return await self._run(call())

    async def _run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Make a call, and finish it even if nobody waits any more."""
        if self._is_closed:
            call.close()
            raise ServiceError(
                "the book is closed",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Open it again.",
            )
        running = asyncio.get_running_loop().create_task(call)
        self._calls.add(running)
        running.add_done_callback(self._finished)
        return await asyncio.shield(running)

    def _finished(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen, though its caller may have gone away
