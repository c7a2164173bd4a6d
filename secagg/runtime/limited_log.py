"""Log lines that unauthenticated peers cause: at most ten in a second."""

import asyncio
import logging
import math
from typing import Final

from secagg.runtime.log_events import log_event

# And one that counts the others.
_LINES_PER_SECOND: Final = 9


class LimitedLog:
    """Writes a line for each event, as long as there are few.

    A second begins with a line, and ends with how many lines were left out of it: that
    is its last line, and the only one beyond nine.

    Args:
        loop: The running loop.
        logger: Where the lines go.
        event: Of one line; a constant of `secagg.runtime.log_events`.
        counted: Of the line that counts the others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logger: logging.Logger,
        event: str,
        counted: str,
    ) -> None:
        self._loop = loop
        self._logger = logger
        self._event = event
        self._counted = counted
        self._ends = -math.inf
        self._lines = 0
        self._unwritten = 0
        self._at_end: asyncio.TimerHandle | None = None

    def write(self, **facts: object) -> None:
        """Write a line, or count it.

        Args:
            facts: As for `log_event`.
        """
        now = self._loop.time()
        if now >= self._ends:
            self.flush()
            self._ends, self._lines = now + 1.0, 0
        if self._lines >= _LINES_PER_SECOND:
            if self._at_end is None:
                self._at_end = self._loop.call_at(self._ends, self.flush)
            self._unwritten += 1
            return
        self._lines += 1
        log_event(self._logger, logging.INFO, self._event, **facts)

    def flush(self) -> None:
        """End this second; write how many lines were left out."""
        self._ends = -math.inf
        if self._at_end is not None:
            self._at_end.cancel()
            self._at_end = None
            log_event(self._logger, logging.INFO, self._counted, count=self._unwritten)
            self._unwritten = 0
