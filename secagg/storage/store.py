"""The durable store of one party: its interface, its rules, and its implementation.

Rule 1: a `Change` is everything that one step does.  It is applied whole or not at all.
        `Store.commit` returns when it is on the disk and, where one exists, in the
        rollback mark.  After any exception nothing is known: load, and decide again.
Rule 2: a change names the position that its writer knows, by count *and* chain value. A
        writer that is behind is told what it missed, and nothing is written.
Rule 3: whatever happens to a session, its number stays claimed, a spent session stays
        spent, a charge stays and a task keeps its history.
Rule 4: every record is chained to those before it and to the header, every other row
        carries a checksum.  What does not fit is this machine's fault, never a peer's.
Rule 5: a session that has ended is erased: header and records, which hold seeds and
        shares, are overwritten; its receipt stays.
Rule 6: no replica of a shared store owns a session.  Rule 2 keeps their steps in one
        order; a lease only keeps them from doing the same work twice.

A store does not read headers, bodies and receipts.  Vectors do not belong here but
into `secagg.storage.spool`.  Stores are opened by `secagg.storage.open_store`.

`TableStore` keeps a store in the tables of a database.  What it writes and reads stands
in `secagg.storage.changes` and `secagg.storage.queries`.  An engine runs them in
transactions: `secagg.storage.sqlite.executor` and `secagg.storage.postgres.executor`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.storage.change import Change, Command, Outcome, Query, StoreUpdate

_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result")

STORE_RETRY_SECONDS: Final = 2.0
"""Seconds between two attempts to reach a store that is unavailable."""


class StoreReader(Protocol):
    """The part of a store that changes nothing."""

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Return the answer to a query; all of it is of one moment.

        Args:
            query: See `secagg.storage.queries`.

        Raises:
            StateDamagedError: What is stored does not fit together.
            ServiceError: STORAGE_FAILED.
        """


class Store(StoreReader, Protocol):
    """The durable store of one party."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time."""

    @property
    def retains_erased_data(self) -> bool:
        """Whether row versions, a log or backups hold what was erased."""

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """Write what a command says, whole or not at all.

        A `Change` is answered with `Committed`; or with `MissedRecords` or `Ended`,
        where the session is at another position and nothing was written.

        Args:
            command: A `Change`; or see `secagg.storage.changes` and
                `secagg.storage.leases`.

        Raises:
            NumberTakenError: The number of a new session was claimed before.
            SessionConflictError: Another session of the new session's task is open, or
                the task was changed.
            SessionsSpentError: A new session would exceed the task's budget.
            LeaseLostError: The change's lease is no longer held.
            BudgetSpentError: The charge exceeds the client's budget for the task.
            NoiseChangedError: The task was charged with other noise before.
            DuplicateRecordError: A second record of one kind from one sender: the
                caller should have noticed.  Commit the others without it.
            StateDamagedError: What is stored does not fit together.
            StoreFailoverError: The session was begun before a fail-over.
            ServiceError: STORAGE_FAILED; also for a session that does not exist.
                Nothing is known of the change: load, and decide again.
        """

    def changes(self) -> AsyncIterator[None]:
        """Yield whenever other processes may have written; ends with the store.

        A hint: several changes may come as one, and nothing may have changed.
        """

    async def close(self) -> None:
        """Finish what is under way and release the store."""


class StoreNotFoundError(ServiceError):
    """Reports that a store does not exist at the given place."""

    def __init__(self, where: str, *, setting: str) -> None:
        super().__init__(
            f"no state exists {where}",
            code=ErrorCode.STORAGE_FAILED,
            next_step=f"Check {setting} in the settings; a program that has never run "
            "has no state yet.",
        )


class StoreUnavailableError(ServiceError):
    """Reports that the store is unavailable: its database is down, or has moved.

    It is not known whether the last change was written.  The store may be back at any
    moment, and a process that waits for it needs no restart.
    """

    def __init__(self, complaint: str, *, next_step: str) -> None:
        super().__init__(
            complaint,
            code=ErrorCode.STORAGE_FAILED,
            next_step=next_step,
            retry_after_seconds=STORE_RETRY_SECONDS,
        )


class StateDamagedError(ServiceError):
    """Reports that stored data contradict each other.

    Attributes:
        key: The session, or "" for the store as a whole.
        record: Number of the first wrong record, or None.
    """

    def __init__(
        self, complaint: str, *, key: str = "", record: int | None = None
    ) -> None:
        where = f"session {key}: " if key else ""
        super().__init__(
            f"the state is damaged: {where}{complaint}",
            code=ErrorCode.STATE_DAMAGED,
            next_step="This machine's disk or a foreign program changed it; no peer "
            "can. Check the disk, then move the state away: a client needs a new "
            "enrolment, a server a new task id.",
        )
        self.key: Final = key
        self.record: Final = record


class StoreFailoverError(ServiceError):
    """Reports that a session was begun before the database's fail-over.

    The new primary may have lost a step that clients know: a further write would then
    begin a second history.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"session {key} was begun before the database failed over: what was sent "
            "for it may be lost",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Wait: the aggregator ends the session, and its inputs count as "
            "summed.",
        )


def unknown_session(key: str) -> SecAggError:
    """Build the error for a change of a session that was never created."""
    return ErrorCode.STORAGE_FAILED.error(
        f"session {key} does not exist here",
        fix="Do not delete or exchange the state of a running session.",
    )


class StoreEngine(Protocol):
    """Runs the transactions of one store in a database.

    Attributes:
        retains_erased_data: Whether row versions, a log or backups keep erased data.
    """

    retains_erased_data: ClassVar[bool]

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time."""

    async def apply(self, change: Change) -> Outcome:
        """Apply a change; see `secagg.storage.changes.apply_change`."""

    async def write(self, update: StoreUpdate[_Answer]) -> _Answer:
        """Run an update in a transaction."""

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Run a query on one snapshot."""

    def hints(self) -> AsyncGenerator[None]:
        """Yield whenever another process may have written."""

    async def close(self) -> None:
        """Finish pending work and release the database."""


class TableStore:
    """Implements `secagg.storage.store.Store`; belongs to one event loop at a time.

    Args:
        engine: The database.
    """

    def __init__(self, engine: StoreEngine) -> None:
        self.engine: Final = engine
        self._is_closed = False

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time."""
        return self.engine.is_shared

    @property
    def retains_erased_data(self) -> bool:
        """Whether row versions, a log or backups keep erased data."""
        return self.engine.retains_erased_data

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """Execute a command."""
        self._check_open()
        if isinstance(command, Change):
            return cast(_Answer, await self.engine.apply(command))
        update: StoreUpdate[Any] = cast("StoreUpdate[_Answer]", command)
        return cast(_Answer, await self.engine.write(update))

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Return the answer to a query."""
        self._check_open()
        return await self.engine.read(query)

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever other processes may have written."""
        async with aclosing(self.engine.hints()) as hints:
            async for _ in hints:
                if self._is_closed:
                    return
                yield

    async def close(self) -> None:
        """Finish pending work and release the database; twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            await self.engine.close()

    def _check_open(self) -> None:
        """Refuse a store that is closed."""
        if self._is_closed:
            raise ErrorCode.STORAGE_FAILED.error(
                "the store is closed", fix="Open it again."
            )


def run_inline(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that waits for its store alone, without an event loop.

    A store in a file returns at once, so that such a coroutine never waits.

    Raises:
        InternalError: It waits.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    coroutine.close()
    raise ErrorCode.INTERNAL.error("a call without an event loop waited")
