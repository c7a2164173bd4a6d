"""An event loop without time, threads and order of its own.

Rule 1: time stands still while anything can run, then jumps to the next instant that
        a task waits for.  Where no task waits for time, nothing can happen any more.
Rule 2: of the callbacks that are ready, any may be the next: the dice say which.
Rule 3: a call for a thread runs in this one: begun at one instant and answered at
        another, in between which anything may happen.  Calls for one thread of their
        own keep their order.
Rule 4: each callback belongs to a process, or to the world.  Those of a process that
        is stopped wait; what a process that has died asks of threads never happens.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

from secagg.errors import LocalProtocolError
from secagg_testing.manual_clock import DeadlockError
from secagg_testing.world.dice import Dice

_Result = TypeVar("_Result")
_Task = asyncio.Task[Any]

_RUNNING: ContextVar["Process | None"] = ContextVar("process", default=None)
# Timers that are nearer than this are due together.
_RESOLUTION: Final = 1e-6


class OneThread(Executor):
    """Names a thread whose calls run one after the other; runs nothing itself."""

    def submit(self, *_: object, **__: object) -> Future[Any]:
        """Refuse: the loop runs what is meant for this thread."""
        raise LocalProtocolError("a thread of a virtual loop takes no calls itself")


class Process:
    """What starts, may be stopped, and dies.

    Args:
        loop: Where it runs.
        name: For the trace.

    Attributes:
        is_gone: It has died; nothing that it still does has any effect.
        death: Done when it has died.
    """

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self._loop = loop
        self.name: Final = name
        self.is_gone = False
        self.death: Final[asyncio.Future[None]] = loop.create_future()
        self.context: Final = copy_context()
        self.context.run(_RUNNING.set, self)
        self._born = loop.time()
        self._is_stopped = False
        self._stops: list[tuple[float, float]] = []
        self._stopped_at = 0.0
        self._ended: float | None = None
        self._held: list[asyncio.Handle] = []
        self._tasks: dict[_Task, None] = {}

    def start(self, work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
        """Run a coroutine in the process."""
        return self._loop.create_task(work, context=self.context)

    def stop(self) -> None:
        """Stop until `resume`: SIGSTOP."""
        if not self.is_gone and not self._is_stopped:
            self._is_stopped, self._stopped_at = True, self._loop.time()

    def resume(self) -> None:
        """Continue: SIGCONT."""
        if self._is_stopped:
            self._stops.append((self._stopped_at, self._loop.time()))
        self._is_stopped = False
        held, self._held = self._held, []
        for handle in held:
            self._loop.make_ready(handle)

    def kill(self) -> None:
        """Die: SIGKILL.  What was under way unwinds, and has no effect."""
        if self.is_gone:
            return
        self.is_gone = True
        self.end()
        self.resume()
        for task in tuple(self._tasks):
            task.cancel()
        if not self.death.done():
            self.death.set_result(None)

    def end(self) -> None:
        """Record that it has ended."""
        if self._ended is None:
            self._ended = self._loop.time()

    def awake(self) -> list[tuple[float, float]]:
        """Return when it has run, from and to, in order; until now at most."""
        now = self._loop.time() if self._ended is None else self._ended
        began, pieces = self._born, []
        stops = [*self._stops]
        if self._is_stopped:
            stops.append((self._stopped_at, now))
        for stopped, resumed in stops:
            pieces.append((began, min(stopped, now)))
            began = resumed
        pieces.append((began, max(began, now)))
        return pieces

    def awake_since(self, instant: float) -> float:
        """Return how long it has run since an instant, in seconds."""
        began = max(instant, self._born)
        stood = sum(max(0.0, end - max(start, began)) for start, end in self._stops)
        return self._loop.time() - began - stood

    def hold(self, handle: asyncio.Handle) -> bool:
        """Queue a callback while it is stopped."""
        if self._is_stopped:
            self._held.append(handle)
        return self._is_stopped

    def record_task(self, task: _Task) -> None:
        """Record a task of the process, which ends with it."""
        self._tasks[task] = None
        task.add_done_callback(self._remove_task)

    def _remove_task(self, task: _Task) -> None:
        self._tasks.pop(task, None)
        if self.is_gone and not task.cancelled():
            task.exception()  # no task is left that could look at it


def own_process() -> Process | None:
    """Return the process whose code runs now; None for the world."""
    return _RUNNING.get()


def _process_of(handle: asyncio.Handle) -> Process | None:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(_RUNNING)


class _Shuffled:
    """The callbacks that are ready, in place of the deque of asyncio's loop."""

    def __init__(self, dice: Dice, nothing: asyncio.Handle) -> None:
        self._dice = dice
        self._handles: list[asyncio.Handle] = []
        self._nothing = nothing
        self.is_ordered = False

    def append(self, handle: asyncio.Handle) -> None:
        self._handles.append(handle)

    def popleft(self) -> asyncio.Handle:
        """Return any of them; one that does nothing if its process is stopped."""
        handles = self._handles
        if self.is_ordered or len(handles) == 1:
            handle = handles.pop(0)
        else:
            chosen = self._dice.below(len(handles))
            handles[chosen], handles[-1] = handles[-1], handles[chosen]
            handle = handles.pop()
        process = _process_of(handle)
        if process is not None and process.hold(handle):
            return self._nothing
        return handle

    def clear(self) -> None:
        self._handles.clear()

    def __len__(self) -> int:
        return len(self._handles)


class _Jump(selectors.SelectSelector):
    """Moves time where a loop would wait; looks at no file."""

    move: Callable[[float], None]

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("all tasks wait, and none of them waits for time")
        self.move(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs a world.

    Args:
        dice: Decide on order and duration.

    Attributes:
        job_seconds: How long a call of a process for a thread takes to begin, and to
            be answered, in seconds.
        on_job: Called when such a call begins, and when it has ended.
    """

    def __init__(self, dice: Dice) -> None:
        jump = _Jump()
        jump.move = self._move
        super().__init__(jump)
        self._instant = 0.0
        self._clock_resolution = _RESOLUTION
        self._nothing = asyncio.Handle(print, (), self)
        self._nothing.cancel()
        self._shuffled = _Shuffled(dice, self._nothing)
        self._ready = self._shuffled  # the base class keeps its callbacks here
        self._queues: dict[OneThread, deque[Callable[[], None]]] = {}
        self.job_seconds: Callable[[], float] = lambda: 0.0
        self.on_job: Callable[[], None] = lambda: None
        self.set_task_factory(_of_its_process)

    def time(self) -> float:
        """Return the present instant, in seconds since the world began."""
        return self._instant

    def keep_order(self) -> None:
        """Run callbacks in the order in which they became ready, as asyncio does."""
        self._shuffled.is_ordered = True

    def make_ready(self, handle: asyncio.Handle) -> None:
        """Run a queued callback."""
        self._shuffled.append(handle)

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[..., _Result],
        *args: object,
    ) -> asyncio.Future[_Result]:
        """Run a call in this thread, some time from now (rule 3)."""
        answer: asyncio.Future[_Result] = self.create_future()
        process = own_process()
        if process is not None and process.is_gone:
            answer.cancel()
            return answer

        def begin() -> None:
            if answer.cancelled() or (process is not None and process.is_gone):
                answer.cancel()  # a thread that has not begun yet never will
                return
            self.on_job()
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - belongs to the caller
                self.call_later(self.job_seconds(), end, answer.set_exception, error)
            else:
                self.call_later(self.job_seconds(), end, answer.set_result, result)

        def end(settle: Callable[[Any], None], outcome: object) -> None:
            self.on_job()
            if not answer.done():
                settle(outcome)

        if isinstance(executor, OneThread):
            begin = self._in_turn(executor, begin)
        self.call_later(self.job_seconds(), begin)
        return answer

    def _in_turn(
        self, thread: OneThread, begin: Callable[[], None]
    ) -> Callable[[], None]:
        """Return what begins the oldest call for a thread, whichever that is then."""
        queue = self._queues.setdefault(thread, deque())
        queue.append(begin)

        def begin_oldest() -> None:
            queue.popleft()()

        return begin_oldest

    def _move(self, seconds: float) -> None:
        self._instant += seconds

    def _write_to_self(self) -> None:
        """Wake no thread: there is no other one."""


def _of_its_process(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: Context | None = None,
) -> "asyncio.Future[Any]":
    task = asyncio.Task(work, loop=loop, context=context)
    process = own_process() if context is None else context.get(_RUNNING)
    if process is not None:
        process.record_task(task)
        if process.is_gone:
            task.cancel()
    return task
