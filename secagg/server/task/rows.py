"""What is said of tasks: the rows of the book, and what this process has heard of them.

Rule 1: what is said is in the row before anything happens, and nobody's word is
        overwritten unseen: a row is written under the version that was read.
Rule 2: what was heard is noted with its version, under which alone sessions open here.
Rule 3: a file proposes.  What is not there yet is added, what is there stays as it is.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from secagg.config import TaskSettings
from secagg.errors import ErrorCode, ServiceError, printable
from secagg.protocol.messages import MAX_REASON_BYTES
from secagg.runtime import log_events as telemetry
from secagg.server.admin.views import find_task
from secagg.server.task.folder import privacy_folder_of
from secagg.server.task.setup import PreparedTask, settle_task
from secagg.server.task.stored import encode_settings, row_of
from secagg.storage.changes import PutTask
from secagg.storage.rows import TaskRow, TaskState
from secagg.storage.store import Store

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)


class ChangedMeanwhileError(ServiceError):
    """Somebody else has changed a task's row: another operator, or another server."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"somebody else has changed task {task_id!r} meanwhile",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Try again.",
        )


class TaskRows:
    """The rows of one server's tasks.

    Args:
        book: Returns the book; only called once the server is open.
        state_dir: Of the server; privacy reports are kept there.
        tell: Told in a sentence what becomes of tasks.
        on_row: Told of every row that was noted.
        check_task: Raises what speaks against a task, before it is planned or run;
            called on a thread.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        state_dir: Path,
        tell: Callable[[str], None],
        on_row: Callable[[TaskRow], None],
        check_task: Callable[[TaskSettings], object],
    ) -> None:
        self._store = store
        self._state_dir = state_dir
        self._tell = tell
        self._on_row = on_row
        self._check_task = check_task
        self._known: dict[str, TaskRow] = {}

    async def get(self, task_id: str) -> TaskRow | None:
        """Return a task's row; None where there is no such task.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return await row_of(self._store(), task_id)

    async def find(self, task_id: str) -> TaskRow:
        """Return a task's row.

        Raises:
            ServiceError: UNKNOWN_SESSION, STORAGE_FAILED.
        """
        return await find_task(self._store(), task_id)

    async def unchanged(self, task_id: str, expect_version: int | None) -> TaskRow:
        """Return a task's row, if it is the one that an operator has seen.

        Args:
            task_id: Which task.
            expect_version: The version that was seen; None for any.

        Raises:
            ServiceError: BAD_SETTINGS for another version; UNKNOWN_SESSION,
                STORAGE_FAILED.
        """
        row = await self.find(task_id)
        refuse_other_version(task_id, row.version, expect_version)
        return row

    async def say(self, row: TaskRow, state: TaskState, reason: str) -> TaskRow:
        """Write what was said of a task into its row, and note it.

        Raises:
            ChangedMeanwhileError: The row is not what the book has.
            ServiceError: STORAGE_FAILED.
        """
        # It is shown wherever the task is, and may be what some peer has said.
        reason = printable(reason, max_bytes=MAX_REASON_BYTES)
        task = replace(row.task, state=state, reason=reason)
        if not await self._store().commit(PutTask(task, expect_version=row.version)):
            raise ChangedMeanwhileError(row.task.task_id)
        telemetry.log_event(
            _LOG,
            logging.INFO,
            telemetry.TASK_CHANGED,
            task=row.task.task_id,
            state=state.value,
            reason=reason,
        )
        self._tell(
            f"task {row.task.task_id!r}: {state.value}{reason and f', {reason}'}"
        )
        row = TaskRow(task, row.version + 1, row.tally)
        self.note(row)
        return row

    async def pause(self, task_id: str, reason: str) -> bool:
        """Pause a task that no operator has paused; False if one has meanwhile.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        while True:
            row = await self.find(task_id)
            if row.task.state is not TaskState.RUNNING:
                return False
            try:
                await self.say(row, TaskState.PAUSED, reason)
            except ChangedMeanwhileError:
                continue  # perhaps another server has paused it for the same reason
            return True

    def note(self, row: TaskRow) -> None:
        """Remember how a task stands."""
        self._known[row.task.task_id] = row
        self._on_row(row)

    def known(self, task_id: str) -> TaskRow | None:
        """Return what was last heard of a task; None for nothing."""
        return self._known.get(task_id)

    def knows(self, row: TaskRow) -> bool:
        """Whether a row is what was last heard of its task."""
        known = self._known.get(row.task.task_id)
        return known is not None and known.version == row.version

    async def propose(self, settings: TaskSettings) -> None:
        """Add a task of a file, or say that the file differs from what was added.

        Raises:
            ServiceError: BAD_SETTINGS, INFEASIBLE, STORAGE_FAILED.
        """
        row = await self.get(settings.task.id)
        if row is None:
            await self.settle(settings)
        elif row.task.settings != encode_settings(settings):
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.TASK_SETTINGS_DIFFER,
                task=settings.task.id,
                next_step="its file says something else; `secagg tasks apply FILE` "
                "changes it",
            )
            self._tell(
                f"task {settings.task.id!r} runs as it was added, its file says "
                "something else: `secagg tasks apply FILE` changes the task"
            )

    async def settle(self, settings: TaskSettings) -> PreparedTask:
        """Have a task in the book that its settings describe; see `settle_task`.

        Every way to a task leads here: a file, an operator, a restart, another server.
        """
        await asyncio.to_thread(self._check_task, settings)
        return await settle_task(
            settings,
            self._store(),
            reports=privacy_folder_of(self._state_dir, settings.task.id),
        )


def refuse_other_version(task_id: str, version: int, expected: int | None) -> None:
    """Refuse to change a task that was changed since an operator has seen it.

    Args:
        task_id: Which task.
        version: The one that it has.
        expected: The one that was seen; None for any.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    if expected is not None and expected != version:
        raise ErrorCode.BAD_SETTINGS.error(
            f"task {task_id!r} has version {version}, not {expected}: somebody has "
            "changed it",
            fix="Look at it with `secagg tasks show`, and decide again.",
        )


def refuse_stopped(row: TaskRow) -> None:
    """Refuse to change a task that was stopped.

    Raises:
        ServiceError: TASK_OVER.
    """
    if row.task.state is TaskState.STOPPED:
        raise ErrorCode.TASK_OVER.error(
            f"task {row.task.task_id!r} was stopped: {row.task.reason}",
            fix="A stopped task stays stopped; add one with a new task.id.",
        )
