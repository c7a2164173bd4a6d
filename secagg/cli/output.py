"""Output of a command: tables for people, plain lines for pipes, JSON for programs.

Rule 1: with ``--json`` standard output holds JSON only and its last line is one
        object; everything meant for people goes to standard error.
Rule 2: a command whose only work is to print ends when it cannot print.  One with
        other work continues: no session ends because of a full log.  So does one whose
        output a program reads, when only lines for people are lost.
Rule 3: colours and boxes appear on a terminal only; a pipe gets plain lines.

Failures are written by `secagg.cli.failures`.  Log lines go to standard error, one line
each; `secagg.runtime.log_events` has their names.
"""

import io
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final, TextIO

from secagg.cli.failures import discard, exit_code_of, to_json_line, write_failure
from secagg.errors import SecAggError

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


class Output:
    """The two streams of one command.

    Args:
        as_json: Whether a program reads standard output.
        is_aside: The command has other work than to print.
    """

    def __init__(self, *, as_json: bool, is_aside: bool = False) -> None:
        # Imported here because `secagg --help` prints nothing through it.
        from rich.console import Console

        # A reader of a long command through a pipe needs its lines as they come.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        self.as_json: Final = as_json
        # Prints a failure of any kind to standard error, and as JSON if asked to.
        self.failure: Final = partial(write_failure, as_json=as_json)
        self._is_aside: Final = is_aside
        self._bar: ProgressBar | None = None
        self.console: Final = Console(
            file=sys.stderr if as_json else sys.stdout, highlight=False, markup=False
        )

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[..., None]]:
        """Show the progress of long work: `ProgressBar.show`, for as long as it lasts.

        Args:
            what: The work, in a word or two.
        """
        self._bar = ProgressBar(what, as_json=self.as_json)
        try:
            yield self._bar.show
        finally:
            self._bar.clear()
            self._bar = None

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches, and lines may be redrawn."""
        return self.console.is_terminal

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line for people."""
        with self._printing():
            self.console.print(text, style=style, soft_wrap=True)

    @contextmanager
    def _printing(self) -> Iterator[None]:
        """Hide the progress bar while a line is printed."""
        if self._bar is not None:
            self._bar.clear()
        try:
            yield
        except (OSError, SystemExit):  # the second is rich's, for a pipe without reader
            if not (self._is_aside or self.as_json):
                raise
            discard(self.console.file)
        if self._bar is not None:
            self._bar.restore()

    def heading(self, text: str) -> None:
        """Print a line that opens a section."""
        self.line()
        self.line(text, style="bold")

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        numeric: Iterable[int] = (),
    ) -> None:
        """Print a table, or aligned plain lines where no person watches.

        Args:
            columns: Headings.
            rows: Texts, one per heading.
            title: Line above the table.
            numeric: Columns to align at the right.
        """
        right = frozenset(numeric)
        cells = [tuple(row) for row in rows]
        if title:
            self.heading(title)
        if not self.is_terminal:
            widths = [
                max(len(row[i]) for row in [tuple(columns), *cells])
                for i in range(len(columns))
            ]
            for row in [tuple(columns), *cells]:
                padded = (
                    text.rjust(width) if i in right else text.ljust(width)
                    for i, (text, width) in enumerate(zip(row, widths, strict=True))
                )
                self.line("  ".join(padded).rstrip())
            return
        from rich.table import Table

        table = Table(show_header=any(columns), header_style="bold")
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i in right else "left")
        for row in cells:
            table.add_row(*row)
        with self._printing():
            self.console.print(table)

    def pairs(self, pairs: Iterable[tuple[str, str]], *, title: str = "") -> None:
        """Print names and values."""
        self.table(("", ""), list(pairs), title=title)

    def result(self, payload: Mapping[str, object]) -> None:
        """Print the result for programs; with ``--json`` it is the last line."""
        if self.as_json:
            sys.stdout.write(to_json_line(payload) + "\n")
            sys.stdout.flush()

    def error(self, error: SecAggError) -> None:
        """Print a failure and its next step; JSON too when a program reads."""
        self.failure(
            str(error),
            next_step=error.at_command or error.next_step,
            code=int(error.code),
            name=error.code.name,
            exit_code=exit_code_of(error),
        )


def moment(seconds: float) -> str:
    """Return a moment in Unix seconds for people, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JSONLines(logging.Formatter):
    """Writes a record as one line of JSON.

    `ts` (UTC), `level`, `logger` and `event` are always present; an event's facts stand
    beside them under their own names, numbers as numbers.  A line that is no event of
    `secagg.runtime.log_events` has its text as `message`; a failure has its traceback
    as `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        ts = datetime.fromtimestamp(record.created, UTC)
        event = getattr(record, "event", None)
        facts = getattr(record, "facts", {"message": record.getMessage()})
        line = {
            **facts,
            "ts": ts.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str, style: str) -> None:
    """Send the log lines of this package to standard error.

    Args:
        level: Least severe level: debug, info, warning or error.
        style: text or json.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if style == "json" else logging.Formatter(_TEXT))
    # The handler's level too: other handlers may take less severe lines.
    handler.setLevel(level.upper())
    logger = logging.getLogger("secagg")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
