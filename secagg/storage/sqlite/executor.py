"""Runs the blocking calls of a store in one SQLite file or in memory, on one thread.

Rule 1: one thread makes all blocking calls, so the event loop never blocks.  A store in
        memory waits for no disk and needs no thread.
Rule 2: changes that arrive during a commit are written together in the next
        transaction, across sessions. A thousand adverts cost a few writes, not a
        thousand.
Rule 3: the writer is not a task, so nothing can cancel it. It continues when a caller
        goes away, and a commit at the end of a loop still gets its answer.
Rule 4: a cancelled `open` leaves nothing locked.  The thread cannot be stopped, so it
        then closes what it has opened.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, ParamSpec, TypeVar

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, SecAggError
from secagg.storage.change import Change, Outcome, Query, StoreUpdate
from secagg.storage.queries import ReadClock
from secagg.storage.rollback_mark import RollbackMark
from secagg.storage.sqlite.file import SQLiteFile, SQLiteTransactions

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Batch = list[tuple[Change, asyncio.Future[Outcome]]]


class InlineExecutor(Executor):
    """Runs every call at once, in the caller's thread, for calls that do not block."""

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run the call and return its finished future."""
        future: Future[_Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - belongs to the caller
            future.set_exception(error)
        return future


class SQLiteExecutor:
    """Implements `Engine`; belongs to one event loop at a time.

    Make it with `open`.
    """

    retains_erased_data: ClassVar[bool] = False

    def __init__(
        self,
        transactions: SQLiteTransactions,
        thread: Executor,
        *,
        owns_thread: bool,
    ) -> None:
        self.transactions: Final = transactions
        self._thread: Final = thread
        self._owns_thread: Final = owns_thread
        self._pending: _Batch = []
        self._all_written: asyncio.Future[None] | None = None

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
    ) -> "SQLiteExecutor":
        """Open a store; see `secagg.storage.open_store`."""
        worker = thread or (
            InlineExecutor()  # hundreds of clients in one process need no thread each
            if path is None
            else ThreadPoolExecutor(1, "secagg-store")
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
        return cls(SQLiteTransactions(file, now), worker, owns_thread=thread is None)

    @property
    def is_shared(self) -> bool:
        """Return False: other processes never write to it, since the file is locked."""
        return False

    async def apply(self, change: Change) -> Outcome:
        """Apply a change together with all others that arrive meanwhile."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        self._pending.append((change, answer))
        if self._all_written is None:
            self._all_written = loop.create_future()
            # The batch is written in the next turn of the loop, with other commits of
            # this turn.
            loop.call_soon(self._write_batch, self._all_written)
        # A caller that goes away cancels neither its own change nor others.
        return await answer

    async def write(self, update: StoreUpdate[_Result]) -> _Result:
        """Write in a transaction; leases are kept in memory, and need none."""
        if not update.is_counted:
            return await update.run(self.transactions.connection)
        return await self._run(partial(self.transactions.write, update))

    async def read(self, query: Query[_Result]) -> _Result:
        """Return the answer; the clock needs no thread."""
        if isinstance(query, ReadClock):
            return self.transactions.now()  # type: ignore[return-value]  # its answer is a float
        return await self._run(partial(self.transactions.read, query))

    async def hints(self) -> AsyncGenerator[None]:
        """Yield nothing: no other process writes."""
        for _ in ():
            yield

    async def close(self) -> None:
        """Finish pending work and release the file."""
        try:
            if self._all_written is not None:
                await asyncio.shield(self._all_written)
        finally:  # also when cancelled: the thread releases the file
            loop = asyncio.get_running_loop()
            closing = loop.run_in_executor(self._thread, self.transactions.file.close)
            if self._owns_thread:
                self._thread.shutdown(wait=False)
            await asyncio.shield(closing)

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        """Run a call on the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call)

    # --- the writer -------------------------------------------------------------------

    def _write_batch(self, all_written: asyncio.Future[None]) -> None:
        """Let the thread write the pending changes; `_answer_callers` continues."""
        batch, self._pending = self._pending, []
        changes = tuple(change for change, _ in batch)
        loop = all_written.get_loop()
        try:
            written = loop.run_in_executor(
                self._thread, self.transactions.apply, changes
            )
        except RuntimeError:  # the thread has ended, and nothing was written
            self._answer_callers(batch, [_not_known()] * len(batch), all_written)
            return
        written.add_done_callback(
            lambda done: self._answer_callers(
                batch, _outcomes(done, len(batch)), all_written
            )
        )

    def _answer_callers(
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


def _close_opened(opening: Future[SQLiteFile]) -> None:
    """Close the file of a cancelled `open`, if it was opened."""
    if opening.exception() is None:
        opening.result().close()


def _outcomes(
    written: asyncio.Future[list[Outcome | Exception]], count: int
) -> Sequence[Outcome | Exception]:
    """Return the outcome of every change of a batch, also after an error."""
    if written.cancelled():
        return [_not_known()] * count
    error = written.exception()
    if error is None:
        return written.result()
    return [error if isinstance(error, Exception) else _not_known()] * count


def _not_known() -> SecAggError:
    """Return the error of a change whose fate is unknown."""
    return ErrorCode.STORAGE_FAILED.error(
        "the thread of the store was stopped: whether this is on the disk is not known",
        fix="Open the store again: it returns what was written.",
    )
