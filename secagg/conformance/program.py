"""The program under test: one child process, one JSON object a line each way.

Rule 1: nothing that the program does ends more than its own case: it may be silent,
        write without end, write what is no answer, or die.
Rule 2: every number that it controls has a limit: the length of a line, the lines of an
        answer, the time of an answer, what is kept of its error output, its restarts.
Rule 3: the process is ended as a group by the pid that was started here.
"""

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

STATE_VARIABLE: Final = "SECAGG_KIT_STATE"
"""Environment variable that names the directory for the program's own state."""

# The longest sum, read, has a few hundred kilobytes; parsed, JSON takes fifty times its
# length, and the lines of a case are kept until its end.
MAX_LINE_BYTES: Final = 1 << 22
_KEPT_ERROR_BYTES: Final = 1 << 14
_PIECE: Final = 1 << 16
_LONGEST_END: Final = 10.0


class ProgramFailedError(Exception):
    """The program gave no answer; the sentence says what it did instead.

    Attributes:
        is_timeout: It was silent for too long, which is counted apart.
    """

    def __init__(self, what: str, *, is_timeout: bool = False) -> None:
        super().__init__(what)
        self.is_timeout = is_timeout


class Tested(Protocol):
    """What a case talks to: a child process, or an object in this one."""

    def call(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line and return the answer.

        Raises:
            ProgramFailedError: There is no answer.
        """
        ...

    def restart(self) -> None:
        """End the program without a warning, and start it on the same state."""
        ...


class Program:
    """A child process that is started when it is asked, and again after it has failed.

    Args:
        command: Program and arguments.
        timeout: Seconds that one answer may take.
        state: Directory that the program may keep its state in.
        max_restarts: How often it is started again after a failure of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        state: Path,
        max_restarts: int = 20,
    ) -> None:
        self._command = tuple(command)
        self._timeout = timeout
        self._state = state
        self._left = max_restarts
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._errors = bytearray()

    def read_errors(self) -> bytes:
        """Return the last of its error output since this was asked before."""
        found = bytes(self._errors)
        self._errors.clear()
        return found

    def call(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line and return the answer.

        Raises:
            ProgramFailedError: There is no answer; the program is ended.
        """
        process = self._started()
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            return self._read(self._exchanged(process, data))
        except ProgramFailedError:
            self._left -= 1
            self.end()
            raise

    def restart(self) -> None:
        """End the process by SIGKILL; the next line starts another."""
        self.end()

    def end(self) -> None:
        """End the process and all that it has started."""
        process, self._process = self._process, None
        self._buffer.clear()
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LONGEST_END)

    def _started(self) -> "subprocess.Popen[bytes]":
        """Return the running program, started again if it has ended."""
        if self._process is not None:
            return self._process
        if self._left < 0:
            raise ProgramFailedError("the program has failed too often")
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {STATE_VARIABLE: str(self._state)},
                start_new_session=True,
            )
        except OSError as error:
            self._left = -1
            raise ProgramFailedError(
                f"the program cannot be started: {error.strerror}"
            ) from None
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]  # PIPE
        self._process = process
        return process

    def _exchanged(self, process: "subprocess.Popen[bytes]", data: bytes) -> bytes:
        """Write a line and read one, both within the time of one answer."""
        out, err, into = process.stdout, process.stderr, process.stdin
        if out is None or err is None or into is None:
            raise ProgramFailedError("the program has no pipes")
        # What came after the last answer is an answer to nothing.
        if not self._buffer_output(out.fileno(), is_error=False):
            raise ProgramFailedError("the program ended")
        if self._buffer:
            raise ProgramFailedError("the program said more than one line")
        left = memoryview(data)
        latest = monotonic() + self._timeout
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            selector.register(into, selectors.EVENT_WRITE)
            while (line := self._line(is_asked=not left)) is None:
                for key, _ in selector.select(self._time_left(latest)):
                    if key.fileobj is into:
                        left = self._written(into.fileno(), left)
                        if not left:
                            selector.unregister(into)
                    elif not self._buffer_output(key.fd, is_error=key.fileobj is err):
                        if key.fileobj is out:
                            raise ProgramFailedError("the program ended")
                        selector.unregister(err)
        return line

    def _time_left(self, latest: float) -> float:
        left = latest - monotonic()
        if left <= 0:
            raise ProgramFailedError(
                f"the program was silent for {self._timeout:g} s", is_timeout=True
            )
        return left

    def _line(self, *, is_asked: bool) -> bytes | None:
        """Return the line that was read; None before its end."""
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ProgramFailedError(
                    f"the program's line is longer than {MAX_LINE_BYTES} bytes"
                )
            return None
        if not is_asked or end + 1 != len(self._buffer):
            raise ProgramFailedError("the program said more than one line")
        line = bytes(self._buffer[:end])
        self._buffer.clear()
        return line

    @staticmethod
    def _written(fd: int, left: memoryview) -> memoryview:
        try:
            return left[os.write(fd, left[:_PIECE]) :]
        except BlockingIOError:
            return left
        except OSError:
            raise ProgramFailedError("the program does not read any more") from None

    def _buffer_output(self, fd: int, *, is_error: bool) -> bool:
        """Keep what was read; return whether the pipe is still open."""
        try:
            piece = os.read(fd, _PIECE)
        except BlockingIOError:
            return True
        if is_error:
            self._errors += piece
            del self._errors[:-_KEPT_ERROR_BYTES]
        else:
            self._buffer += piece
        return bool(piece)

    @staticmethod
    def _read(line: bytes) -> dict[str, Any]:
        """Decode one line of the program."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ProgramFailedError("the program's line is no JSON") from None
        if not isinstance(found, dict):
            raise ProgramFailedError("the program's line is no JSON object")
        return found
