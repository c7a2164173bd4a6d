"""How a failed or stopped command ends: its message and its exit code.

Rule 1: a failure names what happened and the next step, in either form, and never
        more than the exception itself says.
Rule 2: a message that cannot be written is lost; the exit code stays what it is.

Exit codes are stable, one per `ErrorCode`.

Rule 3: 0 is success, 2 is a mistake on the command line (as in every Unix tool),
        128 + a number is a signal; every other failure is 10 + the number of its
        `ErrorCode`.
Rule 4: a script may branch on these numbers; `docs/commands.md` and
        `docs/errors.md` explain each.

A command that is stopped ends quietly, with one code per signal.

Rule 5: SIGTERM (a supervisor) and SIGHUP (a closed terminal) act like Ctrl-C:
        the work is cancelled, and all that was opened is closed.  The code is 128 + the
        number of the signal, as shells count: 129, 130, 143.
Rule 6: a signal that was ignored when the process started (`nohup`) stays ignored.
Rule 7: a server that listens is the exception: it takes SIGINT and SIGTERM over, drains
        and ends with 0 (`secagg.server.rpc.grpc_server.run_until_signalled`).
Rule 8: a demo or a load test is stopped by the first signal. Later ones are ignored
        until its processes and threads have ended and the keys of its clients are gone.

Nothing heavy is imported here: signals are caught before the libraries are loaded, and
a command may fail before that.
"""

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, Self, TypeVar

from secagg.errors import ErrorCode, SecAggError

_Result = TypeVar("_Result")


def discard(stream: IO[str]) -> None:
    """Discard further output of a failed stream: it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_failure(  # noqa: PLR0913 - one argument per key of the JSON object
    message: str,
    *,
    next_step: str = "",
    code: int = 0,
    name: str,
    exit_code: int,
    as_json: bool,
) -> None:
    """Print a failure of any kind to standard error, and as JSON if asked to.

    Args:
        message: What happened.
        next_step: What to do now.
        code: Number of the `ErrorCode`; 0 for a failure of another kind.
        name: Of the code, or of the kind of failure.
        exit_code: What the process ends with.
        as_json: Whether standard output gets one JSON object as well.
    """
    label = f"error {exit_code} ({name})" if code else "error"
    step = f"next step: {next_step}\n" if next_step else ""
    _write_text(sys.stderr, f"{label}: {message}\n{step}")
    if as_json:
        error = {
            "code": code,
            "name": name,
            "exit_code": exit_code,
            "message": message,
            "next_step": next_step,
        }
        _write_text(sys.stdout, to_json_line({"error": error}) + "\n")


def _write_text(stream: IO[str], text: str) -> None:
    """Write a text; a stream that refuses gets no more."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        discard(stream)


def to_json_line(payload: Mapping[str, object]) -> str:
    """Return one line of strict JSON; numbers that JSON lacks become null."""
    return json.dumps(_strict(payload), allow_nan=False, ensure_ascii=False)


def _strict(value: object) -> object:
    """Return a value as strict JSON has it: numbers that are not finite are null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return value


EXIT_OK: Final = 0
EXIT_USAGE: Final = 2
# Leaves 3 to 9 for shells and supervisors, which use them for their own purposes.
_FIRST_ERROR_EXIT_CODE: Final = 10
# As shells count: 130 for SIGINT, 143 for SIGTERM.
FIRST_SIGNAL_EXIT_CODE: Final = 128
# SIGPIPE, which Python turns into an error: the reader of the output has closed it.
EXIT_UNREAD: Final = 141


def exit_code_of(error: SecAggError | ErrorCode) -> int:
    """Return the exit code of a failure, 11 to 89."""
    code = error if isinstance(error, ErrorCode) else error.code
    return _FIRST_ERROR_EXIT_CODE + int(code)


_LIKE_CTRL_C: Final = (signal.SIGTERM, signal.SIGHUP)
# Far beyond what a thread needs to close a file.
_THREAD_SECONDS: Final = 10.0


class StopSignals:
    """Lets SIGTERM and SIGHUP do what Ctrl-C does; use it as a context manager.

    Attributes:
        received: The signal that stopped the command; None while it runs.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Python runs handlers on the main thread only, and refuses them elsewhere.
        if threading.current_thread() is threading.main_thread():
            for number in _LIKE_CTRL_C:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._previous_handlers[number] = signal.signal(number, self._stop)
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                # A background job of a shell: SIGINT stays unheard, yet has the
                # handler in whose place asyncio puts its own.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                before = signal.signal(signal.SIGINT, signal.default_int_handler)
                self._previous_handlers[signal.SIGINT] = before
        return self

    def __exit__(self, *_: object) -> None:
        _handle(self._previous_handlers)
        if signal.SIGINT in self._previous_handlers:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Note the signal, and interrupt the program as Ctrl-C does."""
        self.received = signal.Signals(number)
        # asyncio puts a handler there that cancels its main task; else Python's own
        # raises KeyboardInterrupt.
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(number, frame)

    def end(self, *, as_json: bool) -> int:
        """Print that the command was stopped.

        Args:
            as_json: Whether a program reads standard output.

        Returns:
            The exit code.
        """
        received = self.received or signal.SIGINT
        code = FIRST_SIGNAL_EXIT_CODE + received
        write_failure(
            f"stopped by {received.name}",
            next_step="Run it again; a server or a client resumes where it stopped.",
            name="STOPPED",
            exit_code=code,
            as_json=as_json,
        )
        return code


@contextmanager
def removed_directory(
    prefix: str,
) -> Iterator[tuple[Path, Callable[[Coroutine[Any, Any, _Result]], _Result]]]:
    """Make a directory, and remove it at the end, whatever signals come (rule 8).

    Args:
        prefix: Of its name.

    Yields:
        The directory, and what runs a coroutine in place of `asyncio.run`. A signal
        cancels that coroutine alone: with other tasks, asyncio would wait for ever for
        a process that is being started.
    """
    import asyncio
    import tempfile

    is_main = threading.current_thread() is threading.main_thread()
    stops = (signal.SIGINT, *_LIKE_CTRL_C) if is_main else ()
    taken = {each: by for each in stops if callable(by := signal.getsignal(each))}
    ignored = dict.fromkeys(taken, signal.SIG_IGN)
    others = set(threading.enumerate())
    running: list[asyncio.Task[Any]] = []

    def interrupt(*_: object) -> None:
        if not running:
            raise KeyboardInterrupt
        running[0].get_loop().call_soon_threadsafe(running[0].cancel)

    def stop(number: int, frame: FrameType | None) -> None:
        _handle({**ignored, signal.SIGINT: interrupt})  # which `StopSignals` calls
        try:
            {**taken, signal.SIGINT: interrupt}[signal.Signals(number)](number, frame)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def run(work: Coroutine[Any, Any, _Result]) -> _Result:
        running.extend(filter(None, [asyncio.current_task()]))
        try:
            return await work
        finally:
            running.clear()

    try:
        _handle(dict.fromkeys(taken, stop))
        with tempfile.TemporaryDirectory(prefix=prefix) as place:
            try:
                yield Path(place), lambda work: asyncio.run(run(work))
            finally:
                _handle(ignored)
                # A store whose opening was cancelled is closed by its own thread.
                for thread in set(threading.enumerate()) - others:
                    if not thread.daemon:
                        thread.join(_THREAD_SECONDS)
    finally:
        _handle(taken)


def _handle(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
