"""Child processes of one command: start, output, and certain end.

Rule 1: every process is killed by the object that started it, at the latest when the
        command ends, whatever happens.
Rule 2: the starter waits until its process has ended: no process remains, and no pipe
        outlives the event loop.
Rule 3: a process is only ever addressed by its own id.
Rule 4: a process prints one JSON object per line on standard output, with a key
        ``event``; only public facts: names, rounds, counts.  Other output of a library
        goes to the process's log and is not passed on.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from secagg.errors import ErrorCode, SecAggError

Event = Mapping[str, Any]
Listener = Callable[[Event], None]
# A report of a session with a few hundred lost clients fits.
_MAX_LINE_BYTES: Final = 1 << 20


class ChildProcess:
    """One process and the lines that it prints.

    Attributes:
        name: As given to `start_child`.
        was_killed: Whether this object has killed it.
    """

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        listener: Listener,
        log: Path,
    ) -> None:
        self.name = name
        self.was_killed = False
        self._process = process
        self._log = log
        self._listener: Listener | None = listener
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """Hand on events of the process, and write other lines to a log."""
        with ExitStack() as failing:
            failing.callback(self.kill)  # its output has no reader any more
            while line := await self._next_line():
                said = _event(line)
                if said is None:
                    with self._log.open("ab") as log:
                        log.write(line)
                elif self._listener is not None:
                    self._listener(said)
            failing.pop_all()

    async def _next_line(self) -> bytes:
        """Return the next line of the process, or a word for one that is too long."""
        stream = self._process.stdout
        if stream is None:
            return b""
        try:
            return await stream.readline()
        except ValueError:  # longer than any event, hence discarded
            return b"(a line that was too long)\n"

    def kill(self) -> None:
        """End the process at once, as a power cut would: SIGKILL."""
        self.was_killed = True
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """End the process at once, unread; it has ended on return.

        Raises:
            Exception: That of the listener, if it has failed before.
        """
        self._listener = None
        self.kill()
        await self._process.wait()
        await asyncio.wait({self._listening})
        # A loop that ends cancels the reader, too; the process has ended all the same.
        if not self._listening.cancelled():
            self._listening.result()

    async def wait(self) -> int:
        """Wait until the process has ended and all its lines were read."""
        code = await self._process.wait()
        # A cancelled caller must not stop the reader, too.
        await asyncio.shield(self._listening)
        return code


async def start_child(
    name: str,
    words: Sequence[str],
    *,
    log: Path,
    listener: Listener,
    environment: Mapping[str, str],
) -> ChildProcess:
    """Start Python as a process of its own.

    Args:
        name: Its name in messages.
        words: Its command line behind the interpreter.
        log: The file of its standard error.
        listener: Called with every event that it prints.
        environment: All its variables.

    Raises:
        ServiceError: OVERLOADED; the system refuses another process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                limit=_MAX_LINE_BYTES,
                # Ctrl-C reaches the command alone, which ends its children itself.
                start_new_session=True,
            )
    except OSError as error:
        raise ErrorCode.OVERLOADED.error(
            f"process {name} cannot be started: {error.strerror}",
            fix="Run it with fewer --clients.",
        ) from None
    return ChildProcess(name, process, listener, log)


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a child process: this process's without its settings.

    Args:
        more: Variables beside those.
    """
    return {
        **{key: value for key, value in os.environ.items() if "SECAGG_" not in key},
        # Each process has its part of a core, not a thread for each core.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        **(more or {}),
    }


def _event(line: bytes) -> dict[str, object] | None:
    """Return the event of a line; None if it is not an event, or incomplete."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(said, dict) and "event" in said and line.endswith(b"\n")
    return said if is_event else None


def report(event: str, **facts: object) -> None:
    """Report one event to the parent process, at once (rule 4)."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def report_failed(error: SecAggError, **facts: object) -> None:
    """Report to the parent process that this one's work has failed, and why."""
    report(
        "failed",
        code=error.code.name,
        message=str(error),
        next_step=error.at_command or error.next_step,
        **facts,
    )


def run_process(work: Coroutine[Any, Any, None]) -> int:
    """Do the work of this process; return its exit status.

    A failure is reported to the parent process.
    """
    try:
        asyncio.run(work)
    except SecAggError as error:
        report_failed(error)
        return 1
    return 0
