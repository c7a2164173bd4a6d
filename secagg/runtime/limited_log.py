"""Log lines that unauthenticated peers cause: at most ten in a second."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

# And one with the number of the others.
_LINES_PER_SECOND: Final = 9


class LimitedLog:
    """Writes a line for each event, while there are few.

    A second begins with a line.  If lines were not written, it ends with their number:
    that is its last line, and the only one beyond nine.

    Args:
        loop: The running loop.
        write_count: Writes the line with the number of the others.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, write_count: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._write_count = write_count
        self._ends = -math.inf
        self._lines = 0
        self._unwritten = 0
        self._at_end: asyncio.TimerHandle | None = None

    def write(self, write_line: Callable[[], None]) -> None:
        """Write a line, or count it.

        Args:
            write_line: Writes it.
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
        write_line()

    def flush(self) -> None:
        """End this second; write how many lines were not written."""
        self._ends = -math.inf
        if self._at_end is not None:
            self._at_end.cancel()
            self._at_end = None
            self._write_count(self._unwritten)
            self._unwritten = 0
