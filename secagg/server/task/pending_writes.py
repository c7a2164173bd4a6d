"""Files that an aggregator owes its operator, on a disk that takes none for now.

Rule 1: what must not be lost is tried again for as long as it takes, here or by another
        aggregator of the same book (`DeliveryDeferredError`).  Until then its session
        is not over in the book, so that a process which ends meanwhile owes it still,
        and the next session of its task does not open.
Rule 2: other tasks do not wait, and no process ends by it.
Rule 3: an operator is told: at once and then now and again in the log, and in
        everything that shows a task.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, SystemClock
from secagg.server.task.definition import DeliveryDeferredError

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Somebody makes room and looks: the files should be there by then.
RETRY_SECONDS: Final = 5.0
# A log on the same disk must not be what fills it.
SAY_EVERY_SECONDS: Final = 600.0


@dataclass(slots=True)
class _Refusal:
    """A disk takes no files of a task.

    Attributes:
        began: Since when.
        say_next: When to say so again.
    """

    began: float
    say_next: float


class PendingWrites:
    """Writes files, and knows which are owed.

    Args:
        clock: Says how long a disk has refused.

    Attributes:
        refused: Why the files of a task's latest session could not be written, by
            task; empty on a good day.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._refusals: dict[str, _Refusal] = {}
        self.refused: Final[dict[str, str]] = {}

    async def write(self, task_id: str, write: Callable[[], Awaitable[object]]) -> None:
        """Write a task's files.

        Args:
            task_id: Which task.
            write: Writes them; doing it twice must be harmless.

        Raises:
            DeliveryDeferredError: The disk refuses them, for now.
            ServiceError: Not STORAGE_FAILED: what no patience mends.
        """
        try:
            await write()
        except ServiceError as error:
            if error.code is not ErrorCode.STORAGE_FAILED:
                raise
            self._note(task_id, error)
            raise DeliveryDeferredError(
                error,
                retry_after_seconds=RETRY_SECONDS,
                settle=lambda: self._settle(task_id),
            ) from None
        refusal = self._refusals.get(task_id)
        self._settle(task_id)
        if refusal is not None:
            self._say_written(task_id, self._clock.now() - refusal.began)

    def _note(self, task_id: str, error: ServiceError) -> None:
        now = self._clock.now()
        self.refused[task_id] = str(error)
        refusal = self._refusals.setdefault(task_id, _Refusal(now, now))
        if now >= refusal.say_next:
            refusal.say_next = now + SAY_EVERY_SECONDS
            self._say_refused(task_id, error)

    def _settle(self, task_id: str) -> None:
        """Note that nothing of a task is owed here."""
        self.refused.pop(task_id, None)
        self._refusals.pop(task_id, None)

    def _say_refused(self, task_id: str, error: ServiceError) -> None:
        telemetry.log_event(
            _LOG,
            logging.ERROR,
            telemetry.OUTPUT_WRITE_FAILED,
            task=task_id,
            reason=error,
            next_step=f"{error.next_step} It is tried again every "
            f"{RETRY_SECONDS:g} seconds; the task waits for it. Another aggregator of "
            "the same book writes it, if its disk has room.",
        )

    def _say_written(self, task_id: str, seconds: float) -> None:
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.OUTPUT_WRITTEN,
            task=task_id,
            seconds=round(seconds, 1),
        )
