"""Disks that outlive processes, and stores on them that fail as disks do.

Rule 1: what a process has committed and synced is there for the next one, and nothing
        else is: a kill drops what was not synced, of the store and of the spool.
Rule 2: a disk may refuse before a transaction, and fall silent after it.  Then it has
        happened, and the process does not know.
Rule 3: a disk may be restored to an older state.  Its rollback mark is not restored.
Rule 4: a server may be cut off from its store, which is then a database: nothing comes
        through, in either direction.  What was under way may have happened.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, ServiceError
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.change import Change, Committed, Outcome, Query, StoreUpdate
from secagg.storage.changes import PutTask
from secagg.storage.client_store import ClientStore
from secagg.storage.leases import AcquireLease, Heartbeat, Leases
from secagg.storage.postgres import notifications
from secagg.storage.queries import ReadClock
from secagg.storage.rollback_mark import Mark, RollbackMark
from secagg.storage.rows import Task
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import SQLiteExecutor
from secagg.storage.sqlite.file import SQLiteConnection, SQLiteFile, SQLiteTransactions
from secagg.storage.store import StoreUnavailableError, TableStore, run_inline
from secagg.storage.tables import MILLISECONDS, SESSIONS
from secagg_testing.client_state import LastingStore
from secagg_testing.world.loop import OneThread, Process, VirtualLoop, own_process

_Result = TypeVar("_Result")

# Hints may be late: a store also polls at this interval.
_HINT_SECONDS: Final = 15.0
# `PRAGMA synchronous`: a commit waits for the disk.
_FULL: Final = 2
# Lies in no directory: see `_MarkInMemory`.
_NOWHERE: Final = Path("/the mark of a simulated disk")


class DiskFault(Enum):
    """What a disk does to one transaction."""

    NONE = auto()
    REFUSE = auto()
    FALL_SILENT = auto()


class OnCommit(Protocol):
    """Receives every committed change, and every command of an operator."""

    def __call__(self, disk: "Disk", change: Change | Task) -> None:
        """Record the change."""
        ...


class Disk:
    """The disk of one party: store, rollback mark and, at a server, the spool.

    Args:
        owner: Whose it is, for the trace.
        entropy: Names the store.
        now: The date, in Unix seconds.
        fault: Returns the fault of each transaction.
        on_commit: Receives every committed change.
        on_lost: Called when a kill has dropped commits.
        on_dropped: Receives the objects of the spool that a kill has dropped.
        on_unnoticed: Called when a restored state is opened undetected.
        away: Whether the process that asks is cut off from the store: for how many
            seconds it then waits; None if it is not.
        is_read: Returns whether a read succeeds.
        is_heard: Returns whether a waiting process is notified of a change.
        is_cut_off: Whether the process that asks is cut off from the store.
        is_shared: Whether several processes write to the store.
    """

    def __init__(  # noqa: PLR0913 - what a world decides
        self,
        owner: str,
        *,
        entropy: Entropy,
        now: Callable[[], float],
        fault: Callable[["Disk"], DiskFault],
        on_commit: OnCommit,
        on_lost: Callable[[], None],
        on_dropped: Callable[[frozenset[str]], None],
        on_unnoticed: Callable[[], None],
        away: Callable[[], float | None],
        is_read: Callable[[], bool],
        is_heard: Callable[[], bool],
        is_cut_off: Callable[[], bool],
        is_shared: bool = False,
    ) -> None:
        self.owner: Final = owner
        self.now: Final = now
        self.fault: Final = fault
        self.on_commit: Final = on_commit
        self.on_lost: Final = on_lost
        self.on_dropped: Final = on_dropped
        self.on_unnoticed: Final = on_unnoticed
        self.away: Final = away
        self.is_read: Final = is_read
        self.is_heard: Final = is_heard
        self.is_cut_off: Final = is_cut_off
        self.is_shared: Final = is_shared
        self._alive: int | None = None
        self._holders: dict[str, Process] = {}
        self.leases: Final = Leases(now, lambda name: self._holders[name].is_gone)
        self.hints: list[asyncio.Event] = []
        self._blobs = _Blobs(fail_write=self.fail_write, look=self.check_readable)
        self._entropy = entropy
        self._mark = _MarkInMemory()
        self._file = _File(self._mark, entropy)
        self._backup: bytes | None = None
        self._is_restored = False

    @property
    def is_restored(self) -> bool:
        """Whether the next process finds an older state than the last one left."""
        return self._is_restored

    def open(self, *, accept_restored: bool) -> TableStore:
        """Open the store for one process.

        Raises:
            ServiceError: RESTORED_STATE.
        """
        if self._is_restored:
            self._file.check_mark(self._entropy, accept_restored=accept_restored)
            self._is_restored = False
            if not accept_restored:
                self.on_unnoticed()
        return TableStore(SimulatedExecutor(self))

    def open_client(self, *, accept_restored: bool) -> ClientStore:
        """Open the store of a client; see `open`."""
        self.open(accept_restored=accept_restored)
        return _SimulatedClientStore(self)

    def record_holder(self, name: str) -> None:
        """Record which process holds leases under a name: its end will be detected."""
        process = own_process()
        if process is not None:
            self._holders[name] = process

    @property
    def is_silent(self) -> bool:
        """Whether no server has sent a heartbeat recently."""
        return bool(notifications.downtime_between(self._alive, self._instant()))

    def record_presence(self) -> None:
        """Record a heartbeat; time without any server counts for no deadline."""
        now = self._instant()
        downtime = notifications.downtime_between(self._alive, now)
        self._alive = now
        if downtime:
            with self._file.writing() as database:
                connection = SQLiteConnection(database)
                where = "deadline IS NOT NULL"
                for row in run_inline(SESSIONS.find(connection, where)):
                    deadline = (row.deadline or 0) + downtime
                    later = row._replace(deadline=deadline)
                    run_inline(SESSIONS.update(connection, row, later))

    def _instant(self) -> int:
        return int(self.now() * MILLISECONDS)

    def back_up(self) -> None:
        """Keep a copy of the store as it is now."""
        self._backup = self._file.content()

    def restore(self) -> bool:
        """Restore the copy, if there is one and the store has changed since."""
        if self._backup is None or self._backup == self._file.content():
            return False
        self._file = _File(self._mark, self._entropy, self._backup)
        self._backup, self._is_restored = None, True
        return True

    def lose_power(self) -> None:
        """Drop what is not synced; a database and its spool have their own machines."""
        if self.is_shared:
            return
        self.on_dropped(self._blobs.lose_power())
        content = self._file.synced()
        if content is not None:
            self._file = _File(self._mark, self._entropy, content)
            self._is_restored = True
            self.on_lost()

    def open_spool(self) -> UploadSpool:
        """Open the spool for one process."""
        return UploadSpool(self._blobs)

    @property
    def file(self) -> SQLiteFile:
        """The store's file."""
        return self._file

    async def reach(self) -> None:
        """Reach the store, or raise after a while.

        Raises:
            StoreUnavailableError: The process is cut off.
        """
        seconds = self.away()
        if seconds is not None:
            await asyncio.sleep(seconds)
            raise _unreachable()

    def check_readable(self) -> None:
        """Fail the read, or let it pass.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        if not self.is_read():
            raise _refused()

    def arrived(self, call: Callable[[], _Result]) -> _Result:
        """Carry out a request, unless the link was cut before it arrived."""
        if self.away() is not None:
            raise _unreachable()
        return call()

    def fail_write(self) -> bool:
        """Fail a write, or return whether its acknowledgement is lost.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        fault = self.fault(self)
        if fault is DiskFault.REFUSE:
            raise _refused()
        return fault is DiskFault.FALL_SILENT


class Machine(Process):
    """A process with what it finds on its machine.

    Args:
        loop: Where it runs.
        name: For the trace.
        disk: Its party's.
        entropy: Its own, new with every process.
        skew: How far its date is off, in seconds.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        *,
        disk: Disk,
        entropy: Entropy,
        skew: float,
    ) -> None:
        super().__init__(loop, name)
        self.disk: Final = disk
        self.entropy: Final = entropy
        self.skew: Final = skew


class _Transactions(SQLiteTransactions):
    """The product's transactions, on a disk that may fail."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.file, disk.now, disk.leases)
        self._disk = disk

    def apply(self, changes: Sequence[Change]) -> list[Outcome | Exception]:
        """See `SQLiteTransactions.apply`."""
        return self._disk.arrived(lambda: self._apply_arrived(changes))

    def write(self, update: StoreUpdate[Any]) -> Any:
        """See `SQLiteTransactions.write`."""
        if not isinstance(update, PutTask):
            return super().write(update)
        is_silent = self._disk.fail_write()
        is_stored = super().write(update)
        if is_stored:
            self._notify_others()
            self._disk.on_commit(self._disk, update.task)
        if is_silent:
            raise _refused()
        return is_stored

    def read(self, query: Query[Any]) -> Any:
        """See `SQLiteTransactions.read`."""
        self._disk.check_readable()
        return super().read(query)

    def _apply_arrived(self, changes: Sequence[Change]) -> list[Outcome | Exception]:
        is_silent = self._disk.fail_write()
        # Downtime is added before a round closes.
        is_attended = not (self._disk.is_shared and self._disk.is_silent)
        self.connection.is_attended = is_attended
        outcomes = super().apply(changes)
        self._notify_others()
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._disk.on_commit(self._disk, change)
        if is_silent:
            raise _refused()
        return outcomes

    def _notify_others(self) -> None:
        for hint in self._disk.hints:
            if self._disk.is_heard():
                hint.set()


class _SimulatedClientStore(LastingStore):
    """The product's store of a client on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.file, None, disk.now, ExitStack())
        self._transactions = _Transactions(disk)  # type: ignore[misc]


class SimulatedExecutor(SQLiteExecutor):
    """The product's store on a simulated disk, which several processes may share."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(_Transactions(disk), OneThread(), owns_thread=False)
        self._disk = disk

    @property
    def is_shared(self) -> bool:
        """See `Store.is_shared`."""
        return self._disk.is_shared

    async def apply(self, change: Change) -> Outcome:
        """See `Engine.apply`."""
        await self._disk.reach()
        outcome = await super().apply(change)
        await self._disk.reach()  # else it has happened, and the answer is lost
        return outcome

    async def write(self, update: StoreUpdate[Any]) -> Any:
        """See `Engine.write`; a heartbeat takes no time here."""
        if isinstance(update, Heartbeat):
            if self.is_shared and not self._disk.is_cut_off():
                self._disk.record_presence()
            return await super().write(update)
        if isinstance(update, AcquireLease):
            self._disk.record_holder(update.holder)
        if not update.is_counted:
            transactions = self.transactions
            return await self._run(
                lambda: run_inline(update.run(transactions.connection))
            )
        return await super().write(update)

    async def read(self, query: Query[Any]) -> Any:
        """See `Engine.read`."""
        if isinstance(query, ReadClock):
            await self._disk.reach()
        return await super().read(query)

    async def hints(self) -> AsyncGenerator[None]:
        """Yield when others have written; a hint may be late."""
        hint = asyncio.Event()
        self._disk.hints.append(hint)
        try:
            while self.is_shared:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HINT_SECONDS):
                        await hint.wait()
                hint.clear()
                yield
        finally:
            self._disk.hints.remove(hint)

    async def close(self) -> None:
        """Finish what is under way; the disk stays."""
        if self._all_written is not None:
            await asyncio.shield(self._all_written)  # as the product does

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        await self._disk.reach()
        answer = await super()._run(lambda: self._disk.arrived(call))
        await self._disk.reach()
        return answer


@dataclass(frozen=True, slots=True)
class _Blobs(MemoryBlobs):
    """Uploads and sums on a simulated disk.

    Attributes:
        fail_write: Fails a write, or returns whether its acknowledgement is lost.
        look: Fails a read.
    """

    fail_write: Callable[[], bool] = field(kw_only=True, repr=False)
    look: Callable[[], None] = field(kw_only=True, repr=False)
    _unsynced: set[str] = field(default_factory=set, kw_only=True, repr=False)

    def sync(self, prefix: str) -> None:
        """Make objects below a prefix durable."""
        self._unsynced.difference_update(self._names_below(prefix))

    def lose_power(self) -> frozenset[str]:
        """Drop every object that was not synced; return their names."""
        dropped = frozenset(name for name in self._unsynced if self._names_below(name))
        for name in dropped:
            self.remove(name)
        self._unsynced.clear()
        return dropped

    def read(
        self, name: str, offset: int = 0, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Read a piece of an object, unless the disk refuses."""
        self.look()
        return MemoryBlobs.read(self, name, offset, max_bytes)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object, unless the disk refuses."""
        is_silent = self.fail_write()
        is_new = MemoryBlobs.create(self, name, data)
        self._unsynced.update([name] * is_new)
        if is_silent:
            raise _refused()
        return is_new


class _MarkInMemory(RollbackMark):
    """The rollback mark of a simulated disk: a restored state leaves it alone."""

    def __init__(self) -> None:
        super().__init__(_NOWHERE)
        self._mark: Mark | None = None

    def hold(self, *, wait_seconds: float) -> None:
        """Do nothing: no other process has it."""

    def release(self) -> None:
        """Do nothing."""

    def read(self) -> Mark | None:
        """Return the mark."""
        return self._mark

    def write(self, mark: Mark) -> None:
        """Replace the mark."""
        self._mark = mark


class _File(SQLiteFile):
    """A store's file in memory."""

    def __init__(
        self, mark: _MarkInMemory, entropy: Entropy, content: bytes | None = None
    ) -> None:
        new = content is None
        super().__init__(
            None, mark=mark if new else None, accept_restored=False, entropy=entropy
        )
        if content is not None:
            self.database.deserialize(content)
            self._mark, self._marked = mark, None
            self._state = self._read_state()
        self._is_synced = self._pragma("synchronous") == _FULL
        self._unsynced: bytes | None = None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """See `SQLiteFile.writing`; save the synced content first."""
        if not self._is_synced and self._unsynced is None:
            self._unsynced = self.content()
        with super().writing() as database:
            yield database

    def synced(self) -> bytes | None:
        """Return the synced content; None if it equals the current one."""
        return None if self._unsynced == self.content() else self._unsynced

    def content(self) -> bytes:
        """Return its bytes."""
        return self.database.serialize()

    def check_mark(self, entropy: Entropy, *, accept_restored: bool) -> None:
        """Compare it with the mark, as opening a file does."""
        self._check_mark(entropy, accept_restored=accept_restored)


def _unreachable() -> StoreUnavailableError:
    return StoreUnavailableError(
        "the database cannot be reached",
        next_step="Wait: the aggregator continues when it is back.",
    )


def _refused() -> ServiceError:
    return ServiceError(
        "the disk does not answer",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Try again; it may be free by then.",
        retry_after_seconds=1.0,
    )
