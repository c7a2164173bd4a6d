"""Files that an aggregator owes its operator, on a disk that takes none for now.

Rule 1: what must not be lost is tried again for as long as it takes.  Until then its
        session is not over in the book, so that a process which ends meanwhile owes it
        still, and the next session of its task does not open.
Rule 2: other tasks do not wait, and no process ends by it.
Rule 3: an operator is told: at once and then now and again in the log, and in
        everything that shows a task.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from secagg import telemetry
from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.clock import Clock, SystemClock

__all__ = ["OwedFiles"]

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Somebody makes room and looks: the files should be there by then.
RETRY_SECONDS: Final = 5.0
# A log on the same disk must not be what fills it.
SAY_EVERY_SECONDS: Final = 600.0


class OwedFiles:
    """Writes files, patiently.

    Args:
        clock: How to wait.

    Attributes:
        refused: Why the files of a task's latest session could not be written, by
            task; empty on a good day.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.refused: Final[dict[str, str]] = {}

    async def write(self, task_id: str, write: Callable[[], Awaitable[object]]) -> None:
        """Write a task's files, again and again until the disk takes them.

        Args:
            task_id: Which task.
            write: Writes them; doing it twice must be harmless.

        Raises:
            ServiceError: Not STORAGE_FAILED: what no patience mends.
        """
        began = self._clock.now()
        say_next = began
        try:
            while True:
                try:
                    await write()
                except ServiceError as error:
                    if error.code is not ErrorCode.STORAGE_FAILED:
                        raise
                    self.refused[task_id] = str(error)
                    if self._clock.now() >= say_next:
                        say_next = self._clock.now() + SAY_EVERY_SECONDS
                        self._say_refused(task_id, error)
                else:
                    if task_id in self.refused:
                        self._say_written(task_id, self._clock.now() - began)
                    return
                await self._clock.sleep_until(self._clock.now() + RETRY_SECONDS)
        finally:
            self.refused.pop(task_id, None)

    def _say_refused(self, task_id: str, error: ServiceError) -> None:
        telemetry.log_event(
            _LOG,
            logging.ERROR,
            telemetry.FILES_REFUSED,
            task=task_id,
            reason=error,
            next_step=f"{error.next_step} It is tried again every "
            f"{RETRY_SECONDS:g} seconds; the task waits for it.",
        )

    def _say_written(self, task_id: str, seconds: float) -> None:
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.FILES_WRITTEN,
            task=task_id,
            seconds=round(seconds, 1),
        )
