"""`Client`, `Server` and `local` for scripts and notebooks without an event loop.

The names and the arguments are those of `secagg`; what is awaited there is called
here.  It works beside a running event loop, too, as in a notebook.

Rule 1: each object has a thread and an event loop of its own; they end with it.
Rule 2: an interrupt (Ctrl-C) cancels the call that is under way and waits until it has
        tidied up; its state stays resumable.
Rule 3: what would wait for ever is refused: a call by a function that the object itself
        calls on its thread, and a call in a fork of the process, which has no thread.

``progress=True`` shows a `ProgressLine` on standard error: it stands for
``on_progress=ProgressLine()``.

Example:
    from secagg import blocking

    with blocking.local(plan) as people:
        print(people.sum(vectors))
"""

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import wraps
from types import TracebackType
from typing import (
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TextIO,
    TypeVar,
    cast,
    overload,
)

import numpy.typing as npt

from secagg.client.client import Client as AsyncClient
from secagg.client.client import VectorMaker
from secagg.client.contribution import Contribution, Participation
from secagg.client.gate import SessionInfo
from secagg.client.session_driver import ClientPhase, ClientProgress
from secagg.distributed_dp import Plan
from secagg.errors import ErrorCode
from secagg.protocol.arguments import check_kind, says_how_to_open
from secagg.server.server import RunningTask
from secagg.server.server import Server as AsyncServer
from secagg.server.session.events import SessionPhase, SessionProgress
from secagg.server.task.outputs import ReleasedSum
from secagg.server.task.setup import PreparedTask
from secagg.simulation.in_process import InProcessCohort
from secagg.simulation.in_process import local as async_local
from secagg.transport.address import Address

__all__ = [
    "BlockingClient",
    "BlockingCohort",
    "BlockingServer",
    "BlockingTask",
    "Client",
    "ProgressLine",
    "Server",
    "local",
]

_ENDS: Final = frozenset({SessionPhase.COMPLETED, SessionPhase.ABORTED})
_ENDS_OF_A_CLIENT: Final = frozenset({ClientPhase.COMPLETED, ClientPhase.ABORTED})
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Opened = TypeVar("_Opened")
_Inner = TypeVar("_Inner")
_Made_co = TypeVar("_Made_co", covariant=True)


class ProgressLine:
    """Shows where a session is in one line, which is written again with each change.

    Give it as `on_progress` to `Client`, `Server` or `local`. A line that does not
    change is not repeated; a pipe gets a line for each change. A stream that takes
    nothing any more ends no session.

    Args:
        stream: Where it goes; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        # A program may run without standard error, whatever its type says.
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._shown = ""

    def __call__(self, progress: SessionProgress | ClientProgress) -> None:
        """Show one moment of a session."""
        words = [progress.phase.value]
        if isinstance(progress, SessionProgress):
            is_over = progress.phase in _ENDS
            if not is_over:
                words = [progress.round.name.lower().replace("_", " ")]
                words.append(f"{progress.answered} of {progress.expected}")
        else:
            is_over = progress.phase in _ENDS_OF_A_CLIENT
            if progress.needed:
                words.append(f"{progress.joined} of {progress.needed}")
            if progress.total_bytes:
                words.append(f"{progress.sent_bytes} of {progress.total_bytes} bytes")
        line = f"session {progress.session_number}: {', '.join(words)}"
        if line == self._shown or self._stream is None:
            return
        with suppress(OSError, ValueError):  # the stream is closed, or has no reader
            is_terminal = self._stream.isatty()
            rest = " " * (len(self._shown) - len(line)) if is_terminal else ""
            self._stream.write("\r" * is_terminal + line + rest)
            self._stream.write("\n" if is_over or not is_terminal else "")
            self._stream.flush()
        self._shown = "" if is_over else line


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name="secagg-loop", daemon=True
        )
        self._thread.start()
        self._process = os.getpid()

    def _run(self) -> None:
        """Run until it is closed; what ends a program comes out of its own call."""
        while not self._is_closing:
            # An exception that comes out of the loop makes it forget that it stops.
            with suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()

    def close(self) -> None:
        """End loop and thread; a fork has neither."""
        if os.getpid() != self._process:
            return
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run to the end; an interrupt of this thread cancels the work.

        Raises:
            LocalProtocolError: Nothing would ever run it.
        """
        if os.getpid() != self._process or threading.current_thread() is self._thread:
            work.close()
            raise ErrorCode.LOCAL_MISUSE.error(
                "it was opened by another process, and this one is a fork of it"
                if os.getpid() != self._process
                else "it is called by a function that it calls itself, and waits for",
                fix="Call it where it was opened.",
            )
        has_ended = threading.Event()

        async def whole() -> _Result:
            try:
                return await work
            finally:
                has_ended.set()

        running = asyncio.run_coroutine_threadsafe(whole(), self._loop)
        try:
            return running.result()
        finally:
            if not running.done():  # Ctrl-C: nothing continues unseen
                running.cancel()
                has_ended.wait()


@says_how_to_open
class _Blocking(Generic[_Opened]):
    """Opens something asynchronous on a loop of its own."""

    def __init__(self, asynchronous: AbstractAsyncContextManager[_Opened]) -> None:
        self._asynchronous = asynchronous
        self._running: tuple[_Loop, _Opened] | None = None

    def __enter__(self) -> Self:
        """Open it."""
        with ExitStack() as stack:
            loop = _Loop()
            stack.callback(loop.close)
            opened = loop.run(_entered(self._asynchronous))
            self._running = (loop, opened)
            stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        loop, _ = self._require_open()
        self._running = None
        try:
            loop.run(_exit_context(self._asynchronous, kind, error, traceback))
        finally:
            loop.close()

    def _require_open(self) -> tuple[_Loop, _Opened]:
        """Return the parts of the open object."""
        if self._running is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "it is not open", fix="Use it as a context manager."
            )
        return self._running


async def _entered(manager: AbstractAsyncContextManager[_Opened]) -> _Opened:
    return await manager.__aenter__()


async def _exit_context(
    manager: AbstractAsyncContextManager[_Opened],
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    await manager.__aexit__(kind, error, traceback)


class BlockingClient(_Blocking[AsyncClient]):
    """A `secagg.Client` whose calls block; made by `Client`."""

    def contribute(
        self,
        vector: npt.ArrayLike | VectorMaker,
        *,
        accept: Callable[[SessionInfo], None] | None = None,
    ) -> Contribution:
        """Give one vector to one session; see `secagg.Client.contribute`."""
        loop, client = self._require_open()
        return loop.run(client.contribute(vector, accept=accept))

    def contributions(
        self,
        vector: VectorMaker,
        *,
        accept: Callable[[SessionInfo], None] | None = None,
    ) -> Iterator[Contribution]:
        """Give a vector to every session; see `secagg.Client.contributions`."""
        loop, client = self._require_open()
        given = client.contributions(vector, accept=accept)
        while (one := loop.run(anext(given, None))) is not None:
            yield one

    def last_part(self) -> Participation | None:
        """Return the latest session taken part in; see `secagg.Client.last_part`."""
        loop, client = self._require_open()
        return loop.run(client.last_part())


class BlockingTask:
    """A `RunningTask` whose calls block; made by `BlockingServer.add_task`."""

    def __init__(self, loop: _Loop, task: RunningTask) -> None:
        self._loop = loop
        self._task = task

    def sums(self) -> Iterator[ReleasedSum]:
        """Yield the sums of this process; see `secagg.advanced.RunningTask.sums`."""
        while (released := self._loop.run(self._task.next_sum())) is not None:
            yield released
            self._loop.run(_call(self._task.take))


class BlockingServer(_Blocking[AsyncServer]):
    """A `secagg.Server` whose calls block; made by `Server`."""

    @property
    def address(self) -> Address:
        """Where it listens, with the real port; after the first task was added."""
        return self._require_open()[1].address

    def add_task(  # noqa: PLR0913 - the arguments of the other
        self,
        task_id: str,
        prepared: Plan | PreparedTask,
        *,
        steps: int | None = None,
        payload: bytes | Callable[[int], bytes] | None = None,
        invited: frozenset[str] | None = None,
        attempts: int = 3,
    ) -> BlockingTask:
        """Run a task; see `secagg.Server.add_task`."""
        loop, server = self._require_open()
        task = loop.run(
            server.add_task(
                task_id,
                prepared,
                steps=steps,
                payload=payload,
                invited=invited,
                attempts=attempts,
            )
        )
        return BlockingTask(loop, task)


class BlockingCohort(_Blocking[InProcessCohort]):
    """A `secagg.advanced.InProcessCohort` whose calls block; made by `local`."""

    def sum(self, vectors: Iterable[npt.ArrayLike | VectorMaker | None]) -> ReleasedSum:
        """Let clients give one vector each; see `InProcessCohort.sum`."""
        loop, cohort = self._require_open()
        return loop.run(cohort.sum(vectors))


async def _call(function: Callable[[], None]) -> None:
    function()


class _Maker(Protocol[_Parameters, _Made_co]):
    """Takes the arguments of the asynchronous name, and `progress`."""

    @overload
    def __call__(
        self, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Made_co: ...

    @overload
    def __call__(self, *args: object, progress: bool, **kwargs: object) -> _Made_co: ...


def _with_arguments_of(
    inner: Callable[_Parameters, _Inner], outer: Callable[[_Inner], _Made_co]
) -> _Maker[_Parameters, _Made_co]:
    """Return a function that builds the blocking object with the same arguments."""

    @wraps(inner)
    def make(*args: object, progress: bool = False, **kwargs: object) -> _Made_co:
        check_kind("progress", progress, bool, make="True or False")
        if progress:
            if kwargs.get("on_progress") is not None:
                raise ErrorCode.LOCAL_MISUSE.error(
                    "progress and on_progress are given, and both show the progress",
                    fix="Give either of the two.",
                )
            kwargs["on_progress"] = ProgressLine()
        return outer(cast("Callable[..., _Inner]", inner)(*args, **kwargs))

    signature = inspect.signature(inner)
    shown = inspect.Parameter(
        "progress", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
    )
    vars(make)["__signature__"] = signature.replace(
        parameters=[*signature.parameters.values(), shown]
    )
    return cast("_Maker[_Parameters, _Made_co]", make)


Client = _with_arguments_of(AsyncClient, BlockingClient)
Server = _with_arguments_of(AsyncServer, BlockingServer)
local = _with_arguments_of(async_local, BlockingCohort)
