"""A book in one SQLite file or in memory: the default of every deployment.

Rule 1: one thread does everything that blocks, so that the event loop never does.  A
        book in memory waits for no disk and needs none.
Rule 2: changes that arrive while one commit runs are written in one transaction, across
        sessions: a thousand adverts cost a few writes, not a thousand.
Rule 3: each of them has a savepoint of its own.  A refused one takes no other with it,
        and no answer goes out before all are on the disk, refusals included.
Rule 4: the writer is no task, so that nobody can cancel it: a caller that goes away
        leaves it at work, and what is committed while a loop ends gets its answer.
Rule 5: a cancelled `open` leaves nothing locked.  The thread cannot be stopped, so it
        closes what it opens, after it.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import Settlement
from secagg.storage.change import Change, Ended, Lease, MissedRecords
from secagg.storage.data_claims import Claim
from secagg.storage.leases import Leases
from secagg.storage.reader_protocol import StoreQueries
from secagg.storage.rollback_mark import RollbackMark
from secagg.storage.rows import (
    PurgeResult,
    Replica,
    Retention,
    Task,
)
from secagg.storage.session_columns import MILLISECONDS
from secagg.storage.sqlite import changes as sqlite_changes
from secagg.storage.sqlite import queries as sqlite_queries
from secagg.storage.sqlite.changes import Outcome
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.sqlite.file import SQLiteFile

_Result = TypeVar("_Result")
_Batch = list[tuple[Change, asyncio.Future[Outcome]]]


class SQLiteStore(StoreQueries):
    """Implements `Book`; belongs to one event loop at a time.

    Make it with `open`.
    """

    def __init__(
        self,
        file: SQLiteFile,
        thread: Executor,
        now: Callable[[], float],
        *,
        owns_thread: bool,
    ) -> None:
        self._file: Final = file
        self._thread: Final = thread
        self._owns_thread: Final = owns_thread
        self._now: Final = now
        self._leases: Final = Leases(now)
        self._pending: _Batch = []
        self._all_written: asyncio.Future[None] | None = None
        self._must_scrub = False
        self._is_closed = False

    @classmethod
    async def open(  # noqa: PLR0913 - every part can be exchanged
        cls,
        path: Path | None,
        *,
        mark: RollbackMark | None,
        accept_restored: bool,
        entropy: Entropy,
        now: Callable[[], float],
        thread: Executor | None,
    ) -> "SQLiteStore":
        """Open a book; see `secagg.storage.open_store`."""
        worker = thread or (
            InlineExecutor()  # hundreds of clients of one process need no thread each
            if path is None
            else ThreadPoolExecutor(1, "secagg-book")
        )
        make = partial(
            SQLiteFile,
            path,
            mark=mark,
            accept_restored=accept_restored,
            entropy=entropy,
        )
        opening = worker.submit(make)
        with ExitStack() as undo:
            if thread is None:
                undo.callback(worker.shutdown, wait=False)
            try:
                file = await asyncio.shield(asyncio.wrap_future(opening))
            except asyncio.CancelledError:
                if not opening.cancel():
                    worker.submit(_close_opened, opening)
                raise
            undo.pop_all()
        return cls(file, worker, now, owns_thread=thread is None)

    @property
    def is_shared(self) -> bool:
        """Say that nobody else writes: the file is locked."""
        return False

    async def commit(self, change: Change) -> Outcome:
        """Apply a change together with all others that arrive meanwhile."""
        self._check_open()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        self._pending.append((change, answer))
        if self._all_written is None:
            self._all_written = loop.create_future()
            # In the next turn of the loop: whoever commits in this one comes along.
            loop.call_soon(self._write_batch, self._all_written)
        # A caller that goes away takes neither its own change nor others with it.
        return await answer

    async def touch(self) -> None:
        """Commit a transaction, and have the next generation in the rollback mark."""
        await self._write(sqlite_changes.touch)

    async def now(self) -> float:
        """Return the book's time: this machine's."""
        return self._now()

    async def missed(
        self,
        key: str,
        *,
        expect: int,
        previous: bytes,
        restored: bool = False,  # noqa: ARG002 - a file does not fail over
    ) -> MissedRecords | Ended:
        """Return what a writer does not know of a session."""
        return await self._read(
            lambda database: sqlite_changes.missed(
                database, key, expect=expect, previous=previous, now=self._now()
            )
        )

    async def put_task(self, task: Task, *, expect_version: int) -> bool:
        """Store a task, if it still has this version."""
        return await self._write(
            lambda database: sqlite_changes.put_task(
                database, task, expect_version=expect_version
            )
        )

    async def put_facts(self, task: str, facts: bytes, *, instead_of: bytes) -> bool:
        """Store what a task knows from its sessions, if it knew nothing else."""
        return await self._write(
            lambda database: sqlite_changes.put_facts(
                database, task, facts, instead_of=instead_of
            )
        )

    async def take(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take a lease."""
        return self._leases.take(name, holder=holder, seconds=seconds)

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Hold a lease for longer."""
        return self._leases.renew(lease, seconds=seconds)

    async def give_back(self, lease: Lease) -> None:
        """Let others have a lease."""
        self._leases.give_back(lease)

    async def changes(self) -> AsyncIterator[None]:
        """Yield nothing: nobody else writes."""
        for _ in ():
            yield

    async def blobs_name(self, proposed: bytes | None) -> bytes | None:
        """Return any name: whoever locks the file says where blobs lie."""
        return proposed

    async def heartbeat(self, replica: Replica) -> None:
        """Do nothing: there is nobody to tell."""

    async def settle(self, settlement: Settlement) -> None:
        """Settle the charge of a session that has ended without an answer."""
        await self._write(
            lambda database: sqlite_changes.settle_charge(
                database, settlement, now=self._now()
            )
        )

    async def put_claim(self, claim: Claim, *, after: int) -> bool:
        """Add a claim, if nobody else has made one meanwhile."""
        return await self._write(
            lambda database: sqlite_changes.put_claim(
                database, claim, after=after, now=self._now()
            )
        )

    async def seen_revocations(
        self, enrolment_key: bytes, trust_domain: str
    ) -> Trust | None:
        """Return the newest revocation list that this client has read."""
        return await self._read(
            lambda database: sqlite_queries.read_revocations(
                database, enrolment_key, trust_domain
            )
        )

    async def see_revocations(self, trust: Trust) -> None:
        """Remember a revocation list that was read whole."""
        await self._write(
            lambda database: sqlite_changes.see_revocations(database, trust)
        )

    async def purge(self, policy: Retention) -> PurgeResult:
        """Remove receipts, in transactions of bounded size."""
        keys: list[str] = []
        while True:
            removed = await self._write(
                lambda database: sqlite_changes.purge_receipts(
                    database, policy, now=self._now()
                )
            )
            if not removed:
                return PurgeResult(tuple(keys))
            keys.extend(removed)

    async def close(self) -> None:
        """Finish what is under way and release the file; closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._all_written is not None:
                await asyncio.shield(self._all_written)
        finally:  # cancelled, too: the thread releases the file
            loop = asyncio.get_running_loop()
            closing = loop.run_in_executor(self._thread, self._file.close)
            if self._owns_thread:
                self._thread.shutdown(wait=False)
            await asyncio.shield(closing)

    # --- the writer -------------------------------------------------------------------

    def _write_batch(self, all_written: asyncio.Future[None]) -> None:
        """Have the thread write what is pending; `_answer` goes on from there."""
        batch, self._pending = self._pending, []
        changes = tuple(change for change, _ in batch)
        loop = all_written.get_loop()
        try:
            written = loop.run_in_executor(self._thread, self._commit_all, changes)
        except RuntimeError:  # the thread has ended, and nothing was written
            self._answer(batch, [_not_known()] * len(batch), all_written)
            return
        written.add_done_callback(
            lambda done: self._answer(batch, _outcomes(done, len(batch)), all_written)
        )

    def _answer(
        self,
        batch: _Batch,
        outcomes: Sequence[Outcome | Exception],
        all_written: asyncio.Future[None],
    ) -> None:
        """Answer the callers of one batch, and write the next."""
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            if answer.done():
                continue  # its caller went away
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        if self._pending:
            self._write_batch(all_written)
        else:
            self._all_written = None
            all_written.set_result(None)

    def _commit_all(self, changes: Sequence[Change]) -> list[Outcome | Exception]:
        outcomes: list[Outcome | Exception] = []
        with self._file.writing() as database:
            rows = sqlite_changes.SessionRows(database)
            for change in changes:
                if change.create is not None:
                    rows.write()  # before its savepoint, which takes back its own only
                # Noted before the commit, whose failure may come after the deed.
                self._must_scrub |= change.end is not None or change.reseal is not None
                database.execute("SAVEPOINT change")
                try:
                    self._leases.check(change.lease)
                    outcome: Outcome | Exception = sqlite_changes.apply_change(
                        rows, change, now=self._now()
                    )
                except sqlite3.Error:
                    raise  # the disk's fault, and everybody's
                except Exception as error:  # noqa: BLE001 - of one caller only
                    database.execute("ROLLBACK TO change")
                    outcome = error
                database.execute("RELEASE change")
                outcomes.append(outcome)
            rows.write()
        if self._must_scrub:
            self._file.scrub()
            self._must_scrub = False
        return outcomes

    # --- the thread -------------------------------------------------------------------

    def _instant(self) -> int:
        return int(self._now() * MILLISECONDS)

    async def _ask(self, query: str, *words: object, **more: object) -> Any:  # noqa: ANN401 - as the query says
        asked = getattr(sqlite_queries, query)
        return await self._read(lambda database: asked(database, *words, **more))

    async def _read(self, query: Callable[..., _Result]) -> _Result:
        self._check_open()

        def read() -> _Result:
            with self._file.reading() as database:
                return query(database)

        return await self._run(read)

    async def _write(self, work: Callable[..., _Result]) -> _Result:
        self._check_open()

        def write() -> _Result:
            with self._file.writing() as database:
                return work(database)

        return await self._run(write)

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ServiceError(
                "the book is closed",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Open it again.",
            )


def _close_opened(opening: Future[SQLiteFile]) -> None:
    """Close the file of an `open` that was cancelled, if it was opened at all."""
    if opening.exception() is None:
        opening.result().close()


def _outcomes(
    written: asyncio.Future[list[Outcome | Exception]], count: int
) -> Sequence[Outcome | Exception]:
    """Return the outcome of every change of a batch, whatever became of it."""
    if written.cancelled():
        return [_not_known()] * count
    error = written.exception()
    if error is None:
        return written.result()
    return [error if isinstance(error, Exception) else _not_known()] * count


def _not_known() -> ServiceError:
    return ServiceError(
        "the thread of the book was stopped: whether this is on the disk is not known",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Open the book again: it says what was written.",
    )
