"""Processes of one command: started, listened to, killed and never left behind.

Rule 1: every process is killed by the object that started it, at the latest when the
        command ends, whatever happens.
Rule 2: whoever started a process waits until it has ended: none is left behind, and
        none of its pipes outlives the event loop.
Rule 3: a process is only ever addressed by its own id.
Rule 4: a process says one JSON object per line on standard output, with a key
        ``event``; only public facts: names, rounds, counts.  A library below may print
        something else: that goes to the process's log, and nobody is told.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, SecAggError, ServiceError

Listener = Callable[[Mapping[str, object]], None]
# A report of a session with a few hundred lost clients fits.
_MAX_LINE_BYTES: Final = 1 << 20


class ChildProcess:
    """One process and the lines that it says."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        listener: Listener,
        log: Path,
    ) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._listener: Listener | None = listener
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        with ExitStack() as failing:
            failing.callback(self.kill)  # nobody would take what it says
            while line := await self._next_line():
                said = _event(line)
                if said is None:
                    with self._log.open("ab") as log:
                        log.write(line)
                elif self._listener is not None:
                    self._listener(said)
            failing.pop_all()

    async def _next_line(self) -> bytes:
        stream = self._process.stdout
        if stream is None:
            return b""
        try:
            return await stream.readline()
        except ValueError:  # longer than any event; it was thrown away
            return b"(a line that was too long)\n"

    def kill(self) -> None:
        """End the process at once, as a power cut would: SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """End the process at once; nobody listens any more. It has ended on return."""
        self._listener = None
        self.kill()
        await self.wait()

    async def wait(self) -> int:
        """Wait until the process has ended and all its lines were heard."""
        code = await self._process.wait()
        # Whoever stops waiting must not stop the listening, too.
        await asyncio.shield(self._listening)
        return code


async def start_child(  # noqa: PLR0913 - what a process is made of
    name: str,
    module: str,
    arguments: Sequence[str],
    *,
    log: Path,
    listener: Listener,
    environment: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a Python module of this package as a process of its own.

    Args:
        name: What to call it.
        module: For ``python -m``.
        arguments: Its command line.
        log: Where its standard error goes.
        listener: Called with every line that it says.
        environment: Variables beside those of this process.

    Raises:
        ServiceError: The system refuses another process.
    """
    variables = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=variables,
                limit=_MAX_LINE_BYTES,
                # Ctrl-C reaches the command alone, which ends its children itself.
                start_new_session=True,
            )
    except OSError as error:
        raise ServiceError(
            f"process {name} cannot be started: {error.strerror}",
            code=ErrorCode.OVERLOADED,
            next_step="Run it with fewer --clients.",
        ) from None
    return ChildProcess(name, process, listener, log)


def _event(line: bytes) -> dict[str, object] | None:
    """Return what a line says; None if it is no event, or the half of one."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(said, dict) and "event" in said and line.endswith(b"\n")
    return said if is_event else None


def say(event: str, **facts: object) -> None:
    """Tell the parent process one thing, at once (rule 4)."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def say_failed(error: SecAggError, **facts: object) -> None:
    """Tell the parent process that this one's work has failed, and why."""
    say(
        "failed",
        code=error.code.name,
        message=str(error),
        next_step=error.at_command or error.next_step,
        **facts,
    )
