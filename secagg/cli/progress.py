"""A line of progress on a terminal, which is rewritten and leaves no trace."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

_WIDTH: Final = 24
_CLEAR: Final = "\r\x1b[K"
# People cannot read more often than that, and writing costs time.
_SECONDS_BETWEEN: Final = 0.1


class ProgressBar:
    """Shows on standard error how far a command is, for people alone.

    It is silent where a program reads, and where standard error is no terminal.

    Args:
        what: The work, in a word or two.
        as_json: Whether a program reads standard output.
        stream: Where it goes; standard error by default.
        clock: Seconds since any moment.
    """

    def __init__(
        self,
        what: str,
        *,
        as_json: bool,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._clock = clock
        self._next = -float("inf")
        self._line = ""
        self._is_shown = not as_json and self._stream.isatty()

    def show(self, state: str, done: int = 0, of: int = 0) -> None:
        """Show a state.

        Args:
            state: What is being done, in a few words.
            done: How many parts of it are done.
            of: How many there are; 0 if that is not known.
        """
        now = self._clock()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _SECONDS_BETWEEN
        self._line = f"{self._what}: {state}"
        if of:
            full = _WIDTH * min(done, of) // of
            bar = "█" * full + "░" * (_WIDTH - full)
            self._line = f"{self._what} {bar} {done} of {of}, {state}"
        self.restore()

    def clear(self) -> None:
        """Remove the line, to print another one."""
        if self._line:
            self._write(_CLEAR)

    def restore(self) -> None:
        """Write the line again, below what was printed."""
        if self._line:
            width = shutil.get_terminal_size().columns - 1
            self._write(_CLEAR + self._line[:width])

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the work continues without its reader
            self._is_shown, self._line = False, ""
