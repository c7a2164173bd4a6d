"""The tasks of an aggregator: rows of its store, run side by side on one port.

Rule 1: a task is a row, and an operator's action is stored before it takes effect, so a
        killed process resumes with it.  A write states the version that was read: no
        operator's action is overwritten unseen.
Rule 2: a task ends by its operator, its end date or its budget.  Repeated failures
        pause the task, with the reason, and end no process.
Rule 3: a task that is stopped during a session runs until that session is over: no
        received input is lost.
Rule 4: several servers may share the store; each applies what operators did at any of
        them. A server remembers the version of each row that it applied. No session
        opens at a server that has not applied the row yet (`TaskSchedule.version`).
Rule 5: a disk that refuses a sum delays its task, and nothing else (`PendingWrites`).
Rule 6: the actions on one task run one after another, and wait for no other task.
        Planning one task may take minutes, in which another must be stopped.
Rule 7: a file proposes tasks.  A new task is added, a stored one stays as it is.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from secagg.config import TaskSettings
from secagg.errors import (
    ErrorCode,
    SecAggError,
    ServiceError,
    SessionAbortedError,
    printable,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import MAX_REASON_BYTES
from secagg.protocol.profiles import Trust
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import background
from secagg.server.admin.views import find_task, short_of_budget, state_of
from secagg.server.server import OperatedServer, RunningTask, TaskOptions
from secagg.server.session.timer import at_end_date
from secagg.server.task.definition import DeliveryDeferredError
from secagg.server.task.outputs import SumWriter, store_receipt
from secagg.server.task.schedule import TaskSchedule
from secagg.server.task.setup import (
    PreparedTask,
    published_enrolment,
    read_payload,
    settle_row,
)
from secagg.server.task.stored import (
    ChangedMeanwhileError,
    decode_settings,
    encode_settings,
    folder_of,
    privacy_folder_of,
    refuse_other_version,
    refuse_stopped,
    row_of,
)
from secagg.storage.change import SessionsSpentError, Side
from secagg.storage.changes import PutTask
from secagg.storage.queries import ListSessions, ListTasks
from secagg.storage.rows import SessionState, TaskRow, TaskState
from secagg.storage.store import Store, StoreUnavailableError

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)
_Result = TypeVar("_Result")

# Such as a missing payload or an invalid revocation list: the server itself is sound.
_ITS_OWN_FAULT: Final = frozenset(
    {ErrorCode.BAD_SETTINGS, ErrorCode.BAD_CREDENTIAL, ErrorCode.BAD_ENCODING}
)


class TaskRows:
    """Reads and writes the rows of one server's tasks.

    Args:
        server: Returns the server; only called once it is open.
        state_dir: State directory of the server; it holds the privacy reports.
        notify: Receives a sentence about each change of a task.
        on_row: Receives every row that was recorded.
        check_task: Raises if a task is invalid, before it is planned or run; called on
            a thread.
    """

    def __init__(
        self,
        server: Callable[[], OperatedServer],
        *,
        state_dir: Path,
        notify: Callable[[str], None],
        on_row: Callable[[TaskRow], None],
        check_task: Callable[[TaskSettings], object],
    ) -> None:
        self._server = server
        self._state_dir = state_dir
        self._notify = notify
        self._on_row = on_row
        self._check_task = check_task
        self._known: dict[str, TaskRow] = {}

    @property
    def _store(self) -> Store:
        return self._server().storage.store

    async def get(self, task_id: str) -> TaskRow | None:
        """Return a task's row, or None.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return await row_of(self._store, task_id)

    async def find(self, task_id: str) -> TaskRow:
        """Return a task's row.

        Raises:
            ServiceError: UNKNOWN_SESSION, STORAGE_FAILED.
        """
        return await find_task(self._store, task_id)

    async def unchanged(self, task_id: str, expect_version: int | None) -> TaskRow:
        """Return a task's row, if it has the version that an operator has seen.

        Args:
            task_id: The task.
            expect_version: The version that the operator has seen; None for any.

        Raises:
            ServiceError: BAD_SETTINGS for another version; UNKNOWN_SESSION,
                STORAGE_FAILED.
        """
        row = await self.find(task_id)
        refuse_other_version(task_id, row.version, expect_version)
        return row

    async def write_state(self, row: TaskRow, state: TaskState, reason: str) -> TaskRow:
        """Write a new state of a task into its row, and record the row.

        Raises:
            ChangedMeanwhileError: The store has another version of the row.
            ServiceError: STORAGE_FAILED.
        """
        # It is shown wherever the task is, and a peer may have chosen its text.
        reason = printable(reason, max_bytes=MAX_REASON_BYTES)
        task = replace(row.task, state=state, reason=reason)
        if not await self._store.commit(PutTask(task, expect_version=row.version)):
            raise ChangedMeanwhileError(row.task.task_id)
        telemetry.log_event(
            _LOG,
            logging.INFO,
            telemetry.TASK_CHANGED,
            task=row.task.task_id,
            state=state.value,
            reason=reason,
        )
        self._notify(
            f"task {row.task.task_id!r}: {state.value}{reason and f', {reason}'}"
        )
        row = TaskRow(task, row.version + 1, row.tally)
        self.record(row)
        return row

    async def pause(self, task_id: str, reason: str) -> bool:
        """Pause a task; return False if an operator has paused it meanwhile.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        while True:
            row = await self.find(task_id)
            if row.task.state is not TaskState.RUNNING:
                return False
            try:
                await self.write_state(row, TaskState.PAUSED, reason)
            except ChangedMeanwhileError:
                continue  # another server may have paused it for the same reason
            return True

    def record(self, row: TaskRow) -> None:
        """Remember the row of a task."""
        self._known[row.task.task_id] = row
        self._on_row(row)

    def recorded(self, task_id: str) -> TaskRow | None:
        """Return the row of a task that was last recorded here; None for none."""
        return self._known.get(task_id)

    def is_recorded(self, row: TaskRow) -> bool:
        """Whether a row is the one that was last recorded here."""
        known = self._known.get(row.task.task_id)
        return known is not None and known.version == row.version

    async def propose(self, settings: TaskSettings) -> None:
        """Add a task of a file, or report that the file differs from the stored task.

        Raises:
            ServiceError: BAD_SETTINGS, INFEASIBLE, STORAGE_FAILED.
        """
        row = await self.get(settings.task.id)
        if row is None:
            try:
                await self.settle(None, settings)
            except ChangedMeanwhileError:  # another server has stored one
                await self.propose(settings)
        elif row.task.settings != encode_settings(settings):
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.TASK_SETTINGS_DIFFER,
                task=settings.task.id,
                next_step="its file differs; `secagg tasks apply FILE` changes it",
            )
            self._notify(
                f"task {settings.task.id!r} runs with its stored settings, its file "
                "differs: `secagg tasks apply FILE` changes the task"
            )

    async def settle(self, row: TaskRow | None, settings: TaskSettings) -> PreparedTask:
        """Store the task that its settings describe; see `settle_row`.

        All callers use this: a file, an operator, a restart, another server.
        """
        await asyncio.to_thread(self._check_task, settings)
        return await settle_row(
            row,
            settings,
            self._store,
            reports=privacy_folder_of(self._state_dir, settings.task.id),
            check=partial(self._server().check_task, settings),
        )


@dataclass(eq=False, slots=True)
class _Kept:
    """Holds a task that runs in this process.

    Attributes:
        running: The task that runs its sessions.
        work: The task that receives its sums, until its end.
        gate: Decides when sessions open.
    """

    running: RunningTask
    work: "asyncio.Task[None]"
    gate: TaskSchedule


class TaskSupervisor:
    """Adds, runs, pauses and stops the tasks of one server.

    Args:
        output_dir: The directory of the sums.
        state_dir: State directory of the server; it holds the privacy reports.
        own_task: The task in the server's own file, whose sums lie in `output_dir`
            itself; None for none.
        notify: Receives a sentence about each change of a task.
        check_task: As for `TaskRows`; by default every task is valid.
    """

    def __init__(
        self,
        output_dir: Path,
        state_dir: Path,
        *,
        own_task: str | None,
        notify: Callable[[str], None],
        check_task: Callable[[TaskSettings], object] = lambda _: None,
    ) -> None:
        self._output_dir = output_dir
        self._own_task = own_task
        self._notify = notify
        self._kept: dict[str, _Kept] = {}
        self._rows = TaskRows(
            lambda: self._server,
            state_dir=state_dir,
            notify=notify,
            on_row=self._apply_row,
            check_task=check_task,
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._started = asyncio.Event()
        self._opened: OperatedServer | None = None
        self._failure: asyncio.Future[None] | None = None
        self._refused_lists: dict[str, str] = {}

    async def start(
        self, server: OperatedServer, proposed: Iterable[TaskSettings]
    ) -> None:
        """Add the proposed tasks, and run the stored ones.

        Args:
            server: The open server; it listens afterwards.
            proposed: Tasks of files.

        Raises:
            ServiceError: BAD_SETTINGS or INFEASIBLE for an invalid task; PORT_IN_USE,
                STORAGE_FAILED.
        """
        self._opened = server
        self._failure = asyncio.get_running_loop().create_future()
        for settings in proposed:
            await self._rows.propose(settings)
        for row in await self._store.read(ListTasks()):
            await self._run_again(row)
        await server.listen()
        self._started.set()
        server.aggregator.when_changed(self._follow_operators)

    async def failed(self) -> None:
        """Wait until a disk failure ends the work.

        Raises:
            ServiceError: STORAGE_FAILED; a restart resumes the tasks.
        """
        if self._failure is not None:
            await asyncio.shield(self._failure)

    async def close(self) -> None:
        """End the work; sessions stay stored for the next process."""
        ended: list[_Kept] = []
        # This also ends operators' actions that are still taking effect.
        while begun := [kept for kept in self._kept.values() if kept not in ended]:
            for kept in begun:
                await self._end_work(kept)
            ended += begun

    async def write_aborted(self, session: SessionDescriptor, audit: bytes) -> None:
        """Write the receipt of a session that released no sum.

        Raises:
            DeliveryDeferredError: The disk refuses it; the session stays open for now.
        """
        folder = self._directory_of(session.task_id)
        await self._server.pending_writes.write(
            session.task_id,
            lambda: asyncio.to_thread(store_receipt, folder, session, audit),
        )

    # --- actions of operators ---------------------------------------------------------

    async def add(self, settings: TaskSettings) -> TaskRow:
        """Add a task and run it.

        Raises:
            ServiceError: BAD_SETTINGS if a task of this name exists or the task is
                invalid. INFEASIBLE, STORAGE_FAILED.
        """
        async with self._exclusive(settings.task.id):
            row = await self._rows.get(settings.task.id)
            # A row that does not run was stored although its disk reported a failure.
            # Adding it again is correct.
            if row is not None and (
                settings.task.id in self._kept
                or row.version > 1
                or row.task.settings != encode_settings(settings)
            ):
                raise ErrorCode.BAD_SETTINGS.error(
                    f"a task {settings.task.id!r} exists already",
                    fix="Choose another task.id, or change that task with "
                    "`secagg tasks apply`.",
                )
            await self._rows.settle(row, settings)
            return await self._run_again_under(settings.task.id)

    async def apply(
        self, settings: TaskSettings, *, expect_version: int | None = None
    ) -> TaskRow:
        """Change the settings of a task; a session that no longer fits ends.

        Calls and connections of clients that are not invited any more end, too.

        Args:
            settings: The new settings.
            expect_version: The version that the operator has seen; another one is
                refused.

        Raises:
            ServiceError: UNKNOWN_SESSION, TASK_OVER; BAD_SETTINGS for invalid settings
                or another version.
        """
        task_id = settings.task.id
        async with self._exclusive(task_id):
            row = await self._rows.unchanged(task_id, expect_version)
            refuse_stopped(row)
            await self._rows.settle(row, settings)
            kept = self._kept.pop(task_id, None)
            if kept is not None:
                await self._end_work(kept)
            changed = await self._run_again_under(task_id)
            self._disconnect_uninvited(row, changed)
            return changed

    async def pause(
        self, task_id: str, *, reason: str, expect_version: int | None = None
    ) -> TaskRow:
        """Open no session of a task until `resume`.

        A session that still waits for clients ends; one that has its cohort continues.

        Raises:
            ServiceError: UNKNOWN_SESSION, TASK_OVER; BAD_SETTINGS for another version.
        """
        async with self._exclusive(task_id):
            row = await self._rows.unchanged(task_id, expect_version)
            refuse_stopped(row)
            row = await self._rows.write_state(row, TaskState.PAUSED, reason)
            await self._server.aggregator.pause_task(task_id, reason)
            return row

    async def resume(
        self, task_id: str, *, expect_version: int | None = None
    ) -> TaskRow:
        """Open sessions of a task again.

        Raises:
            ServiceError: UNKNOWN_SESSION, TASK_OVER; BAD_SETTINGS for another version,
                or for settings that are still invalid: the task stays paused.
        """
        async with self._exclusive(task_id):
            row = await self._rows.unchanged(task_id, expect_version)
            refuse_stopped(row)
            kept = self._kept.get(task_id)
            is_idle = kept is None or kept.running.is_done
            if is_idle:  # the row says that it runs once all checks have passed
                await self._rows.settle(row, decode_settings(row.task))
            row = await self._rows.write_state(row, TaskState.RUNNING, "")
            if is_idle:
                return await self._run_again_under(task_id)
            self._server.aggregator.resume_task(task_id)
            return row

    async def stop(
        self, task_id: str, *, reason: str, expect_version: int | None = None
    ) -> TaskRow:
        """End a task for good.

        A session that still waits for clients ends; one that has its cohort continues.

        Raises:
            ServiceError: UNKNOWN_SESSION; BAD_SETTINGS for another version.
        """
        async with self._exclusive(task_id):
            row = await self._rows.unchanged(task_id, expect_version)
            if row.task.state is not TaskState.STOPPED:
                row = await self._rows.write_state(row, TaskState.STOPPED, reason)
            await self._server.aggregator.end_task(task_id, reason)
            return row

    # --- the server -------------------------------------------------------------------

    @asynccontextmanager
    async def _exclusive(self, task_id: str) -> AsyncIterator[None]:
        """Wait for the start, and for earlier actions on this task (rule 6)."""
        await self._started.wait()
        async with self._locks.setdefault(task_id, asyncio.Lock()):
            yield

    @property
    def _server(self) -> OperatedServer:
        """Return the open server, which may still be starting."""
        if self._opened is None:
            raise ErrorCode.SHUTTING_DOWN.error(
                "the aggregator is starting", fix="Try again in a moment."
            )
        return self._opened

    @property
    def _store(self) -> Store:
        return self._server.storage.store

    def _apply_row(self, row: TaskRow) -> None:
        """Record a row and apply it to the schedule of its task."""
        kept = self._kept.get(row.task.task_id)
        if kept is not None:
            kept.gate.version = row.version

    # --- other servers of the same store ----------------------------------------------

    async def _follow_operators(self) -> None:
        """Apply what operators did at other servers.

        Raises:
            ServiceError: STORAGE_FAILED; the next refresh tries again.
        """
        for row in await self._store.read(ListTasks()):
            if not self._rows.is_recorded(row):
                async with self._exclusive(row.task.task_id):
                    newest = await self._rows.find(row.task.task_id)
                    if not self._rows.is_recorded(newest):
                        await self._apply_foreign(newest)

    async def _apply_foreign(self, row: TaskRow) -> None:
        """Apply a row that another server has written."""
        task_id, known = row.task.task_id, self._rows.recorded(row.task.task_id)
        kept = self._kept.get(task_id)
        is_other = known is None or (known.task.settings, known.task.plan) != (
            row.task.settings,
            row.task.plan,
        )
        must_run = kept is None or kept.running.is_done
        if is_other and kept is not None:
            await self._end_work(self._kept.pop(task_id))
        if known is not None:
            self._disconnect_uninvited(known, row)
        self._notify(f"task {task_id!r}: {row.task.state}, changed at another server")
        if is_other or (must_run and row.task.state is TaskState.RUNNING):
            self._server.aggregator.defer_task(task_id)  # planning may be necessary
            await self._run_again(row)
            return
        self._rows.record(row)
        match row.task.state:
            case TaskState.PAUSED:
                await self._server.aggregator.pause_task(task_id, row.task.reason)
            case TaskState.STOPPED:
                await self._server.aggregator.end_task(task_id, row.task.reason)
            case TaskState.RUNNING:
                self._server.aggregator.resume_task(task_id)

    # --- the issuer's lists -----------------------------------------------------------

    async def renew_lists(self) -> None:
        """Load revocation lists that are newer than those in use.

        A session that gathers its clients ends; one that has its cohort continues under
        the list that it began with.
        """
        for task_id, kept in tuple(self._kept.items()):
            used = kept.running.prepared.enrolment
            if used is None or kept.running.is_done:
                continue
            try:
                async with self._exclusive(task_id):
                    if self._kept.get(task_id) is kept:
                        await self._renew_list(task_id, used.trust)
            except SecAggError as error:
                self._set_failure(error)

    async def _renew_list(self, task_id: str, used: Trust) -> None:
        """Run a task again under a newer list of its issuer."""
        row = await self._rows.find(task_id)
        try:
            found = await asyncio.to_thread(
                published_enrolment, decode_settings(row.task)
            )
        except SecAggError as error:
            self._log_rejected_list(task_id, str(error))
            return
        number = 0 if found is None else found.trust.revocation_number
        if number <= used.revocation_number:
            return
        self._notify(f"task {task_id!r}: revocation list {number}")
        telemetry.log_event(
            _LOG,
            logging.INFO,
            telemetry.REVOCATION_LIST_UPDATED,
            task=task_id,
            number=number,
        )
        await self._end_work(self._kept.pop(task_id))
        await self._run_again(row)

    def _log_rejected_list(self, task_id: str, reason: str) -> None:
        """Log once for each reason that a list cannot be used."""
        if self._refused_lists.get(task_id) != reason:
            self._refused_lists[task_id] = reason
            telemetry.log_event(
                _LOG,
                logging.ERROR,
                telemetry.REVOCATION_LIST_REJECTED,
                task=task_id,
                reason=reason,
                next_step="copy the issuer's newest list again; the one before stays "
                "in use",
            )

    # --- work -------------------------------------------------------------------------

    async def _run_again_under(self, task_id: str) -> TaskRow:
        row = await self._retry_outages(lambda: self._rows.find(task_id))
        await self._retry_outages(lambda: self._run(row))
        return row

    def _disconnect_uninvited(self, before: TaskRow, after: TaskRow) -> None:
        """End calls and connections of clients that a task no longer invites."""
        were, are = (decode_settings(row.task).task.invited for row in (before, after))
        if are:  # otherwise every client is invited
            self._server.end_clients(
                lambda name: name not in are and (not were or name in were)
            )

    async def _retry_outages(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """Retry a call while the store is unavailable; no other caller repeats it."""
        while True:
            try:
                return await call()
            except StoreUnavailableError:
                await self._server.aggregator.wait_for_store()

    async def _run_again(self, row: TaskRow) -> None:
        """Run a task of an earlier process; pause it if its files are missing.

        The other tasks are independent of it, and the operator needs a running
        aggregator.
        """
        try:
            await self._retry_outages(lambda: self._run(row))
        except SecAggError as error:
            if error.code not in _ITS_OWN_FAULT:
                raise
            task = row.task
            if task.state is TaskState.STOPPED:
                await self._server.aggregator.end_task(task.task_id, task.reason)
                return
            if task.state is TaskState.RUNNING:
                await self._rows.write_state(row, TaskState.PAUSED, str(error))
            self._server.aggregator.defer_task(task.task_id)

    async def _run(self, row: TaskRow) -> None:
        """Run a task, unless it is over."""
        task_id = row.task.task_id
        self._rows.record(row)
        settings = decode_settings(row.task)
        state = state_of(row, settings)
        latest = await self._store.read(
            ListSessions(
                role=Side.SERVER, task=task_id, state=SessionState.ALL, limit=1
            )
        )
        is_open = bool(latest) and latest[0].ended is None
        if state == "done" or (state == "stopped" and not is_open):
            await self._server.aggregator.end_task(task_id, row.task.reason)
            because = row.task.reason or "it has released all its sums"
            self._notify(f"task {task_id!r} is over ({state}): {because}")
            return
        prepared = None
        with suppress(ChangedMeanwhileError):
            prepared = await self._rows.settle(row, settings)
        # Settling takes a while and may have changed the row. An operator's action of
        # that time, perhaps at another server, must not be missed.
        newest = await self._rows.find(task_id)
        if prepared is None or _choices_in(newest) != _choices_in(row):
            await self._run(newest)
            return
        self._rows.record(newest)
        files = SumWriter(self._directory_of(task_id), prepared)
        gate = TaskSchedule(
            settings.schedule,
            opened=latest[0].born if latest else None,
            paused=state == "paused",
            ended=newest.task.reason if state == "stopped" else None,
        )
        gate.version = newest.version
        options = TaskOptions(
            steps=settings.task.steps,
            payload=_payload_of(settings),
            invited=frozenset(settings.task.invited) or None,
            attempts=settings.task.attempts,
            gate=gate,
            on_attempts_exhausted=lambda error: self._pause_exhausted(task_id, error),
        )
        running = await self._server.add_gated_task(task_id, prepared, options)
        work = asyncio.create_task(self._receive_sums(settings, running, files))
        work.add_done_callback(self._report_failure)
        self._kept[task_id] = _Kept(running, work, gate)

    def _directory_of(self, task_id: str) -> Path:
        if task_id == self._own_task:
            return self._output_dir
        return self._output_dir / folder_of(task_id)

    async def _receive_sums(
        self, settings: TaskSettings, running: RunningTask, files: SumWriter
    ) -> None:
        """Receive the sums of a task until its end."""
        task_id = settings.task.id
        ending = at_end_date(settings.task, partial(self._stop_automatically, task_id))
        async with background(ending):
            try:
                while (total := await running.next_sum()) is not None:
                    try:
                        await self._server.pending_writes.write(
                            task_id, partial(files.write, total)
                        )
                    except DeliveryDeferredError as error:
                        running.defer(error)
                        continue
                    await self._warn_if_short(task_id)
                    running.take()
                if not self._server.is_draining:
                    self._notify(f"task {task_id!r} has released its last sum")
            except SessionAbortedError as error:
                if not self._server.is_draining:
                    await self._stop_automatically(task_id, str(error))
            except SessionsSpentError as error:
                await self._stop_automatically(task_id, str(error))
            except ServiceError as error:
                await self._handle_failure(task_id, error)

    async def _warn_if_short(self, task_id: str) -> None:
        """Warn when the missing sums need the sessions that were planned for faults."""
        short = short_of_budget(
            await self._retry_outages(lambda: self._rows.find(task_id))
        )
        if short is not None:
            left, spare = short
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.BUDGET_LOW,
                task=task_id,
                left=left,
                spare=spare,
                next_step="Look at `secagg sessions list` for what has failed; add "
                "another task for more sums.",
            )

    async def _stop_automatically(self, task_id: str, reason: str) -> None:
        """Stop a task that no operator has stopped."""
        try:
            while True:
                try:
                    await self._retry_outages(lambda: self.stop(task_id, reason=reason))
                except ChangedMeanwhileError:
                    continue  # another server may have stopped it for the same reason
                return
        except SecAggError as error:
            self._set_failure(error)

    async def _pause_exhausted(self, task_id: str, error: SecAggError) -> None:
        """Pause a task that has used up its attempts at a sum."""
        async with self._exclusive(task_id):
            is_paused = await self._retry_outages(
                lambda: self._rows.pause(task_id, str(error))
            )
            if is_paused:
                await self._server.aggregator.pause_task(task_id, str(error))

    async def _handle_failure(self, task_id: str, error: ServiceError) -> None:
        """Handle an operational failure of a task: pause it, or end the process."""
        if error.code is ErrorCode.CANCELLED:
            return  # the server closes, or the task starts again
        if error.code is not ErrorCode.BAD_SETTINGS:
            self._set_failure(error)
            return
        # Such as a missing payload: the other tasks continue without it.
        try:
            async with self._exclusive(task_id):
                await self._retry_outages(lambda: self._rows.pause(task_id, str(error)))
        except SecAggError as failure:
            self._set_failure(failure)

    def _report_failure(self, work: "asyncio.Task[None]") -> None:
        """Report a failure of a task's work."""
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._set_failure(error)

    def _set_failure(self, error: BaseException) -> None:
        """End the supervisor with an error."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _end_work(self, kept: _Kept) -> None:
        await kept.running.stop()
        kept.work.cancel()
        await asyncio.wait({kept.work})


def _choices_in(row: TaskRow) -> tuple[TaskState, str]:
    """Return what operators decide in a row: the state and the settings."""
    return row.task.state, row.task.settings


def _payload_of(settings: TaskSettings) -> Callable[[int], bytes] | None:
    """Return a function that reads a task's payload for each session."""
    path = settings.task.payload
    fix = "Restore the file, then call `secagg tasks resume`."
    return None if path is None else lambda _: read_payload(path, fix=fix)
