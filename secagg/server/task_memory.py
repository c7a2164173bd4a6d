"""Remembers what a task was planned to be, so that a restart runs the same task.

Rule 1: parameters belong to the settings they were made from; other settings are
        planned afresh.
Rule 2: within one task, noise never changes by itself: a newer planner that would
        choose differently is not asked again.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from secagg.config import ServerSettings
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.parameters import ProtocolParameters
from secagg.primitives.canonical import Reader
from secagg.storage.book import Book
from secagg.storage.stored import Task, TaskRow, TaskState

__all__ = ["RememberedTask", "digest_of", "recall", "remember"]

# What decides the parameters; where to listen and store does not.
_DECISIVE = ("task", "vector", "cohort", "noise", "rounds")


@dataclass(frozen=True, slots=True)
class RememberedTask:
    """Parameters of a task as they were first worked out.

    Attributes:
        parameters: Of every session.
        forecast_rmse: Expected error of one entry of a sum, with the most noise that
            can be left in it, caller's units; None without noise.
    """

    parameters: ProtocolParameters
    forecast_rmse: float | None

    def encode(self) -> bytes:
        """Return the plan to store."""
        document = {
            "parameters": self.parameters.encode().hex(),
            "forecast_rmse": self.forecast_rmse,
        }
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def decode(cls, plan: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            ServiceError: STORAGE_FAILED; it is of another release.
        """
        try:
            document = json.loads(plan)
            reader = Reader(bytes.fromhex(document["parameters"]), "parameters")
            parameters = ProtocolParameters.decode_from(reader)
            reader.end()
            rmse = document["forecast_rmse"]
            return cls(parameters, None if rmse is None else float(rmse))
        except (ValueError, KeyError, TypeError, RemoteProtocolError):
            raise ServiceError(
                "the stored plan of the task cannot be read",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Finish the task with the release that began it, or choose a "
                "new task.id.",
            ) from None


async def recall(book: Book, settings: ServerSettings) -> RememberedTask | None:
    """Return what was remembered for these settings, if anything.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    row = await _row_of(book, settings)
    if row is None or row.task.settings != digest_of(settings):
        return None
    return RememberedTask.decode(row.task.plan)


async def remember(
    book: Book, settings: ServerSettings, planned: RememberedTask
) -> None:
    """Remember the parameters for these settings.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    row = await _row_of(book, settings)
    task = Task(
        settings.task.id, TaskState.RUNNING, digest_of(settings), planned.encode()
    )
    version = 0 if row is None else row.version
    if not await book.put_task(task, expect_version=version):
        raise ServiceError(
            f"somebody else has changed task {settings.task.id!r} meanwhile",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Start again.",
        )


async def _row_of(book: Book, settings: ServerSettings) -> TaskRow | None:
    for row in await book.tasks():
        if row.task.task_id == settings.task.id:
            return row
    return None


def digest_of(settings: ServerSettings) -> str:
    """Return a digest of everything that decides a task's parameters."""
    decisive: Mapping[str, object] = {
        name: dataclasses.asdict(getattr(settings, name)) for name in _DECISIVE
    }
    text = json.dumps(decisive, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()
