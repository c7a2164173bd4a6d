"""Programs of an operator, such as one that trains: started, limited and ended here.

Rule 1: no shell.  A command is split into words once, before anything is put into it:
        a path with spaces or semicolons stays one argument.
Rule 2: a program sees few variables of the environment, and those that are named for
        it.  Keys and settings of this process are not among them.
Rule 3: what it prints is read to its end and kept to a limit: it cannot block on a full
        pipe, and cannot fill memory or disk.  Errors quote the end of it.
Rule 4: it is one process group with its children, but those that leave the group by
        setsid.  The group is ended when its time is up, when the program has ended,
        when this process stops, and when it is killed.
"""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from secagg.errors import ErrorCode, InputError, ServiceError
from secagg.runtime import program_guard
from secagg.runtime.clock import SystemClock

# What programs need to find their libraries, threads and devices.
_PASSED_ON: Final = frozenset(
    {
        *("PATH", "HOME", "LANG", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHONPATH"),
        *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    }
)
# The end of a traceback; it goes into one line of an error.
_KEPT_BYTES: Final = 2000
_CHUNK: Final = 1 << 16
# Between two looks at a program that prints nothing.
_LOOK_SECONDS: Final = 0.05
# For a program that wants to tidy up before it is killed.
_GRACE_SECONDS: Final = 2.0


def split_command(option: str, command: str) -> tuple[str, ...]:
    """Return the words of a command, by the rules of shells.

    Args:
        option: That it was given by, for the error.
        command: Such as ``python train.py {payload} {model}``.

    Raises:
        ServiceError: BAD_SETTINGS; it has an open quote, or no word.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise _option_error(option, f"cannot be split into words: {error}") from None
    if not words:
        raise _option_error(option, "names no program")
    return words


def _option_error(option: str, fault: str) -> ServiceError:
    """Return the error of an option that names no program."""
    return ErrorCode.BAD_SETTINGS.error(
        f"{option} {fault}",
        kind=ServiceError,
        fix="Write the program and its arguments, in quotes where they have spaces.",
    )


class ExternalProgram:
    """A program that runs once for each session, one at a time.

    Args:
        words: Program and arguments; ``{name}`` in them stands for a path.
        passed_on: Names of further variables that it may see.
    """

    def __init__(
        self, words: Sequence[str], *, passed_on: frozenset[str] = frozenset()
    ) -> None:
        self.words: Final = tuple(words)
        self._passed_on = _PASSED_ON | passed_on
        self._is_stopped = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()

    def __str__(self) -> str:
        """Return the command as it may be shown: its program alone."""
        return self.words[0]

    def uses(self, place: str) -> bool:
        """Say whether ``{place}`` is in the command."""
        return any(f"{{{place}}}" in word for word in self.words)

    def run(
        self,
        *,
        places: Mapping[str, Path],
        facts: Mapping[str, str],
        directory: Path,
        seconds: float,
        why: str,
    ) -> None:
        """Run it to its end.

        Args:
            places: Paths by the names that stand for them in the command.
            facts: Further variables of its environment.
            directory: Where it runs.
            seconds: After which it is ended.
            why: Reason of that limit, as a clause.

        Raises:
            InputError: It could not be started, failed, was too late or was stopped.
        """
        words = [self._filled(word, places) for word in self.words]
        if self._is_stopped.is_set():
            raise self._program_error(
                "was not started, because this process stops", b""
            )
        self._is_idle.clear()
        try:
            self._run(words, facts, directory, seconds, why)
        except InputError:  # a ValueError, too
            raise
        except (OSError, ValueError) as error:  # no process left, a NUL in a word
            fault = f"could not be started ({type(error).__name__})"
            raise self._program_error(fault, b"") from None
        finally:
            self._is_idle.set()

    def stop(self) -> None:
        """End it with its children, if it runs, and start it never again."""
        self._is_stopped.set()
        self._is_idle.wait(2 * _GRACE_SECONDS)

    def _run(
        self,
        words: list[str],
        facts: Mapping[str, str],
        directory: Path,
        seconds: float,
        why: str,
    ) -> None:
        """Run the program once under the guard, and refuse a failure."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if name in self._passed_on or name.startswith("LC_")
        }
        with subprocess.Popen(  # noqa: S603 - the operator's own words, and no shell
            [sys.executable, "-I", "-S", program_guard.__file__, *words],
            cwd=directory,
            env={**passed, **facts},
            stdin=subprocess.PIPE,  # its end tells the guard that this process has gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            printed, fault = b"", ""
            try:
                printed, fault = self._read_output(process, seconds, why)
            finally:
                _end_group(process, signal.SIGKILL)
            code = process.wait()
        if fault:
            raise self._program_error(fault, printed)
        if code == program_guard.NOT_STARTED:
            raise self._program_error("could not be run", printed)
        if code:
            raise self._program_error(f"ended with the code {code}", printed)

    def _read_output(
        self, process: subprocess.Popen[bytes], seconds: float, why: str
    ) -> tuple[bytes, str]:
        """Read what it prints until it ends; return the last of it, and its fault."""
        clock, printed, fault = SystemClock(), b"", ""
        limit = clock.now() + seconds
        assert process.stdout is not None  # noqa: S101 - for the type checker
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            os.set_blocking(process.stdout.fileno(), False)
            while not _has_ended(process):
                if selector.get_map():
                    selector.select(_LOOK_SECONDS)
                    if (chunk := _read_pipe(process.stdout)) is None:
                        selector.unregister(process.stdout)
                    printed = (printed + (chunk or b""))[-_KEPT_BYTES:]
                else:
                    self._is_stopped.wait(_LOOK_SECONDS)
                if fault:
                    if clock.now() >= limit:
                        break
                elif self._is_stopped.is_set() or clock.now() >= limit:
                    fault = (
                        "was ended, because this process stops"
                        if self._is_stopped.is_set()
                        else f"was ended after {seconds:.0f} seconds: {why}"
                    )
                    limit = clock.now() + _GRACE_SECONDS
                    _end_group(process, signal.SIGTERM)
            return (printed + (_read_pipe(process.stdout) or b""))[-_KEPT_BYTES:], fault

    def _program_error(self, fault: str, printed: bytes) -> InputError:
        """Return the error of a program that failed, with what it printed."""
        said = " ".join(printed.decode("utf-8", "replace").split())
        said = "".join(letter if letter.isprintable() else "?" for letter in said)
        return ErrorCode.BAD_INPUT.error(
            f"the program {self} {fault}" + (f"; it printed: {said}" if said else ""),
            kind=InputError,
            fix="Run it by hand on the same files.",
        )

    @staticmethod
    def _filled(word: str, places: Mapping[str, Path]) -> str:
        for name, path in places.items():
            word = word.replace(f"{{{name}}}", str(path))
        return word


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Say so without forgetting its number, by which its group is still known."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, options) is not None


def _end_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a group of processes, if it still exists."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return  # all have ended


def _read_pipe(stream: IO[bytes]) -> bytes | None:
    """Return what a pipe holds now, b"" for nothing, None at its end."""
    try:
        return os.read(stream.fileno(), _CHUNK) or None
    except BlockingIOError:
        return b""
