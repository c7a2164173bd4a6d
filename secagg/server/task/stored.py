"""Stores the planned parameters of a task, so a restart runs the same task.

Rule 1: stored parameters belong to the settings they were made from; other settings are
        planned again.  Invitations, schedules and payloads decide no parameter.
Rule 2: the noise of a task never changes by itself: a newer planner that would choose
        differently is not asked.
Rule 3: settings are stored completely, so a task needs no file after it was added.
Rule 4: the folders of a task carry its name, whatever characters it contains.
"""

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from secagg.config import TaskSettings, task_from_document
from secagg.config.task import CONTINUOUS, EnrolmentSection
from secagg.crypto.canonical import Reader
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.parameters import ProtocolParameters
from secagg.storage.queries import ListTasks
from secagg.storage.rows import Task, TaskRow, TaskState
from secagg.storage.store import StoreReader

# A file system allows 255 bytes, and a name should fit on a line.
_MAX_FOLDER: Final = 100
# The folder of one task may lie among the files of another
# (`secagg.server.task.outputs`).
_FILES: Final = (".npy", ".json", ".bin")


def folder_of(task_id: str) -> str:
    """Return the folder name of a task: its name, escaped as in a URL, or a hash.

    A hash follows `=`, which no escaped name contains, so no task name collides with
    it.
    """
    name = quote(task_id, safe="")
    if (
        not 0 < len(name) <= _MAX_FOLDER
        or name.startswith(".")
        or name.endswith(_FILES)
    ):
        return "=" + sha256(task_id.encode()).hexdigest()[:32]
    return name


def privacy_folder_of(state_dir: Path, task_id: str) -> Path:
    """Return the folder of a task's privacy report."""
    return state_dir / "tasks" / folder_of(task_id)


@dataclass(frozen=True, slots=True)
class StoredTask:
    """Holds the parameters of a task as they were first planned.

    Attributes:
        parameters: Parameters of every session.
    """

    parameters: ProtocolParameters

    def encode(self) -> bytes:
        """Return the plan to store."""
        return json.dumps({"parameters": self.parameters.encode().hex()}).encode()

    @classmethod
    def decode(cls, plan: bytes) -> Self:
        """Decode what `encode` wrote.

        Raises:
            ServiceError: STORAGE_FAILED; the plan is of another release.
        """
        try:
            document = json.loads(plan)
            reader = Reader(bytes.fromhex(document["parameters"]), "parameters")
            parameters = ProtocolParameters.decode_from(reader)
            reader.end()
            return cls(parameters)
        except (ValueError, KeyError, TypeError, RemoteProtocolError):
            raise ErrorCode.STORAGE_FAILED.error(
                "the stored plan of the task cannot be read",
                fix="Finish the task with the release that began it, or choose a "
                "new task.id.",
            ) from None


def encode_settings(settings: TaskSettings) -> str:
    """Encode a task's settings for its row."""
    return json.dumps(settings.document(), sort_keys=True)


def decode_settings(task: Task) -> TaskSettings:
    """Decode what `encode_settings` returned.

    Raises:
        ServiceError: STORAGE_FAILED; the settings are of another release.
    """
    try:
        return task_from_document(
            json.loads(task.settings), origin=f"the row of task {task.task_id!r}"
        )
    except (ValueError, TypeError, AttributeError, ServiceError) as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"the stored settings of task {task.task_id!r} cannot be read: {error}",
            fix="Finish the task with the release that began it, or choose a "
            "new task.id.",
        ) from None


def lookup(row: TaskRow | None, settings: TaskSettings) -> StoredTask | None:
    """Return the stored parameters for these settings, if any exist.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    if row is None or not row.task.plan:
        return None
    known = decode_settings(row.task)
    if _decisive_settings(known) != _decisive_settings(settings):
        return None
    return StoredTask.decode(row.task.plan)


async def row_of(store: StoreReader, task_id: str) -> TaskRow | None:
    """Return the row of a task, or None."""
    for row in await store.read(ListTasks()):
        if row.task.task_id == task_id:
            return row
    return None


def _decisive_settings(settings: TaskSettings) -> TaskSettings:
    """Return settings without those that decide no parameter."""
    return TaskSettings(
        replace(
            settings.task,
            # With participations of their own, the noise does not depend on the sums.
            steps=settings.task.sums_of_one_client,
            payload=None,
            invited=(),
            ends=None,
            schedule=CONTINUOUS,
            window=None,
        ),
        settings.vector,
        settings.cohort,
        settings.noise,
        settings.rounds,
        EnrolmentSection(),  # read again at every start
    )


class ChangedMeanwhileError(ServiceError):
    """Reports that another operator or another server has changed a task's row."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"another operator or server has changed task {task_id!r} meanwhile",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Try again.",
        )


def refuse_other_version(task_id: str, version: int, expected: int | None) -> None:
    """Refuse to change a task that has another version than the operator has seen.

    Args:
        task_id: The task.
        version: Its version.
        expected: The version that the operator has seen; None for any.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    if expected is not None and expected != version:
        raise ErrorCode.BAD_SETTINGS.error(
            f"task {task_id!r} has version {version}, not {expected}: another operator "
            "has changed it",
            fix="Read it with `secagg tasks show`, and decide again.",
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
