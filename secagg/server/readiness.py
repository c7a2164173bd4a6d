"""Whether an aggregator can serve clients now, found out by trying.

Rule 1: ready means: a change reaches the disk within two seconds, uploads have room,
        and a task runs.  Nothing of that is assumed from earlier.
Rule 2: however many ask, there is one try at a time, and its answer holds for a moment.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from secagg.errors import SecAggError
from secagg.runtime.clock import Clock, finish_before
from secagg.storage.book import Book
from secagg.storage.spool import MIN_FREE_BYTES

__all__ = ["LOOK_EVERY_SECONDS", "Readiness"]

LOOK_EVERY_SECONDS: Final = 5.0
_WRITE_SECONDS: Final = 2.0


class Readiness:
    """Looks whether an aggregator can serve.

    Args:
        book: Its book.
        state_dir: Where its uploads go.
        runs_tasks: Whether sessions may open.
        clock: Time.
        is_book_elsewhere: The book is no file of this machine: when it hangs, another
            process would wait in the same way.

    Attributes:
        book_answers: Whether the book answered the last time, if only to refuse; one
            elsewhere is not asked about.
    """

    def __init__(
        self,
        book: Book,
        state_dir: Path,
        runs_tasks: Callable[[], bool],
        clock: Clock,
        *,
        is_book_elsewhere: bool = False,
    ) -> None:
        self._book = book
        self._state_dir = state_dir
        self._runs_tasks = runs_tasks
        self._clock = clock
        self._is_book_elsewhere = is_book_elsewhere
        self._one_at_a_time = asyncio.Lock()
        self._looked_at = -LOOK_EVERY_SECONDS
        self._disk = ""
        self.book_answers = True

    async def complaint(self) -> str:
        """Return what is missing, in words; empty when clients can be served."""
        async with self._one_at_a_time:
            now = self._clock.now()
            if now >= self._looked_at + LOOK_EVERY_SECONDS:
                self._disk = await self._complaint_of_disk()
                self._looked_at = self._clock.now()
        if self._disk:
            return self._disk
        return "" if self._runs_tasks() else "no task runs"

    async def _complaint_of_disk(self) -> str:
        self.book_answers = True
        try:
            deadline = self._clock.now() + _WRITE_SECONDS
            await finish_before(self._clock, deadline, self._book.touch())
            free = shutil.disk_usage(self._state_dir).free
        except TimeoutError:
            self.book_answers = self._is_book_elsewhere
            return f"the book took longer than {_WRITE_SECONDS:g} s to write"
        except (SecAggError, OSError) as error:
            return f"storage refuses: {error}"
        if free < MIN_FREE_BYTES:
            return f"{free >> 20} MiB of disk are free, {MIN_FREE_BYTES >> 20} needed"
        return ""
