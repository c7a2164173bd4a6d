"""The processes of one run: aggregators, then clients, until the sums are there.

Rule 1: every process of a run is started here, and ended here by its id, at the latest
        when the run ends, whatever happens.
Rule 2: clients are started when every aggregator listens.
Rule 3: a run ends with the failure of an aggregator, and with that of a client once too
        few are left: the aggregator would wait for the others for ever.  It also ends
        with the exception of a listener.
Rule 4: a process fails by the event ``failed`` or by its exit status.  One that was
        killed here has not failed: a fault was injected, and it may be started again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError, ServiceError, printable
from secagg.testbed.child_process import (
    ChildProcess,
    Event,
    Listener,
    child_environment,
    start_child,
)
from secagg.testbed.run_folder import RunFolder

_LAST_WORDS_SECONDS: Final = 3.0
# An exception and its message fit.
_MAX_LINE_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """One process of a run, as it is planned.

    Attributes:
        name: In messages, and of its log.
        module: A Python module that is run with the run's folder as first argument.
        words: Further arguments.
        on_event: Called with every event that it reports.
    """

    name: str
    module: str
    words: Sequence[str]
    on_event: Listener


class Director:
    """The processes of one run; use it as a context manager.

    Args:
        folder: The files of the run.
        tell: Receives lines for people.
        environment: Variables of the processes beside those of this one.

    Attributes:
        failures: Why processes, and clients within them, cannot continue, by name.
    """

    def __init__(
        self,
        folder: RunFolder,
        tell: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._report = tell
        self._environment: Final = child_environment(environment)
        self._children: list[ChildProcess] = []  # including those that were killed
        self._running: dict[str, ChildProcess] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._servers: dict[str, asyncio.Future[str]] = {}
        self._clients: list[str] = []
        self._needed = 0
        self._has_stalled = asyncio.Event()
        self._is_ending = False
        self.failures: dict[str, SecAggError] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_ending = True
        for child in self._children:
            child.kill()
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*self._watching.values(), return_exceptions=True)
        # A listener that has failed must not keep another process from its end.
        ends = (child.end() for child in self._children)
        for failed in await asyncio.gather(*ends, return_exceptions=True):
            if failed is not None:
                raise failed

    async def start_servers(self, programs: Sequence[ChildProgram]) -> list[str]:
        """Start aggregators; return their addresses once all of them listen.

        Raises:
            ServiceError: One of them cannot continue, with its own reason; OVERLOADED
                if the system refuses another process.
        """
        for program in programs:
            address = asyncio.get_running_loop().create_future()
            self._servers[program.name] = address
            await self._start(program)
            ended = self._watching[program.name]
            await asyncio.wait({ended, address}, return_when=asyncio.FIRST_COMPLETED)
            self._check()
            if not address.done():
                raise ErrorCode.INTERNAL.error(
                    f"{program.name} ended before it listened",
                    kind=ServiceError,
                    fix=f"See {self._folder.log(program.name)}.",
                )
            self._report(f"{program.name} listens on {address.result()}")
        return [address.result() for address in self._servers.values()]

    async def start_clients(
        self,
        programs: Sequence[ChildProgram],
        *,
        needed: int,
        started: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Start the processes of all clients.

        Args:
            programs: What to start.
            needed: So many must be able to continue.
            started: Called with the number of those that were started so far.

        Raises:
            ServiceError: OVERLOADED; the system refuses another process.
        """
        self._clients, self._needed = [each.name for each in programs], needed
        for count, program in enumerate(programs, start=1):
            await self._start(program)
            started(count)

    async def until_served(self) -> None:
        """Wait until every aggregator has ended, and so the sessions.

        Raises:
            ServiceError: An aggregator cannot continue, or too few clients can; with
                the reason of the aggregator or of the last client.
        """
        serving = [self._watching[name] for name in self._servers]
        ended = asyncio.create_task(asyncio.wait(serving))
        stuck = asyncio.create_task(self._has_stalled.wait())
        await asyncio.wait({ended, stuck}, return_when=asyncio.FIRST_COMPLETED)
        # An aggregator that is about to end knows better why clients cannot continue.
        await asyncio.wait({ended}, timeout=_LAST_WORDS_SECONDS)
        has_ended = ended.done()
        for task in (ended, stuck):
            task.cancel()
        self._check()
        if not has_ended:
            raise next(
                self.failures[name]
                for name in reversed(self.failures)
                if name in self._clients
            )

    async def until_clients_end(self, seconds: float | None = None) -> None:
        """Let clients learn how the sessions ended.

        Args:
            seconds: How long at most; None to wait for all of them.
        """
        ended = [self._watching[name] for name in self._clients]
        await asyncio.wait(ended, timeout=seconds)

    def kill(self, name: str) -> None:
        """Inject a fault: end a process at once."""
        self._running[name].kill()

    def start_again(self, program: ChildProgram) -> None:
        """Start a process that was killed, unless all are to end."""
        if not self._is_ending:
            task = asyncio.create_task(self._start_again(program))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    # --- the processes ----------------------------------------------------------------

    async def _start(self, program: ChildProgram) -> None:
        """Start a program and watch it."""
        child = await start_child(
            program.name,
            ["-m", program.module, str(self._folder.root), *program.words],
            log=self._folder.log(program.name),
            listener=partial(self._on_event, program),
            environment=self._environment,
        )
        self._children.append(child)
        self._running[program.name] = child
        watching = asyncio.create_task(self._watch(child))
        watching.add_done_callback(self._on_listener_end)
        self._watching[program.name] = watching

    async def _start_again(self, program: ChildProgram) -> None:
        """Start a program again, and record its failure."""
        try:
            await self._start(program)
        except SecAggError as error:
            self._record_failure(program.name, str(error), error.code, error.next_step)

    async def _watch(self, child: ChildProcess) -> None:
        """Detect a process that ends with a fault that it has not reported."""
        code = await child.wait()
        if code and not child.was_killed and child.name not in self.failures:
            how = f"signal {-code}" if code < 0 else f"status {code}"
            last = _last_line(self._folder.log(child.name))
            self._record_failure(
                child.name, f"it ended with {how}{last}", ErrorCode.INTERNAL
            )

    def _on_listener_end(self, watching: asyncio.Task[None]) -> None:
        """End the run where a listener has failed: a fault of this process."""
        if not watching.cancelled() and watching.exception() is not None:
            self._has_stalled.set()

    def _on_event(self, program: ChildProgram, said: Event) -> None:
        """Note the address or the failure of a program, and pass on its event."""
        match said["event"]:
            case "listening":
                self._servers[program.name].set_result(said["address"])
            case "failed":
                code, client = ErrorCode[said["code"]], said.get("name", "")
                words = said["message"], code, said["next_step"]
                self._record_failure(program.name, *words, client=client)
        program.on_event(said)

    def _record_failure(
        self,
        process: str,
        why: str,
        code: ErrorCode,
        next_step: str = "",
        *,
        client: str = "",
    ) -> None:
        """Record the failure of a process, or of one client of many within it."""
        name = client or process
        self.failures[name] = code.error(
            f"{name} cannot continue: {why}",
            kind=ServiceError,
            fix=next_step
            or f"See {self._folder.log(process)}, if the command keeps its files.",
        )
        self._report(str(self.failures[name]))
        left = sum(each not in self.failures for each in self._clients)
        if left < self._needed or process in self._servers:
            self._has_stalled.set()

    def _check(self) -> None:
        """Raise why an aggregator cannot continue, or the fault of a listener."""
        for name in self._servers:
            if name in self.failures:
                raise self.failures[name]
        for watching in self._watching.values():
            if watching.done():
                watching.result()


def _last_line(log: Path) -> str:
    """Return a colon and the last line of a log; nothing if it is empty."""
    try:
        lines = log.read_bytes()[-_MAX_LINE_BYTES:].decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last and f": {printable(last, max_bytes=_MAX_LINE_BYTES)}"
