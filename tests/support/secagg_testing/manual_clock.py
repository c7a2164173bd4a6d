"""Time that moves only when no task has anything left to do.

`run` executes a coroutine on an event loop whose clock is a `ManualClock`.  As soon as
every task waits for something, time jumps to the next instant that a task waits for.
A test of deadlines of hours takes milliseconds and gives the same interleaving every
time.  When all tasks wait and none waits for time, nothing can ever happen again:
`run` raises `DeadlockError` instead of hanging.

That needs a program without threads: use `InlineExecutor` for whatever runs on one.
"""

import asyncio
import heapq
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from secagg.server.engine.engine import Engine, Pool
from secagg.storage.sqlite.executor import InlineExecutor

# The date at which manual clocks start: 2027-01-15, 08:00 UTC.
STARTED_AT: Final = 1_800_000_000.0

_Result = TypeVar("_Result")


class DeadlockError(Exception):
    """All tasks wait, and none of them waits for time."""


class ManualClock:
    """A clock that its owner moves; a `secagg.runtime.clock.Clock`.

    Args:
        start: The instant it shows first.
        date: What time it is then, in Unix seconds.
    """

    def __init__(self, start: float = 1000.0, *, date: float = STARTED_AT) -> None:
        self._now = start
        self._epoch = date - start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        """Return the present instant, in seconds."""
        return self._now

    def date(self) -> float:
        """Return the present time in Unix seconds; it moves with the instants."""
        return self._epoch + self._now

    async def sleep_until(self, instant: float) -> None:
        """Return when time has been moved to `instant`."""
        if instant <= self._now:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (instant, self._count, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move time forward and wake all tasks whose instant has come."""
        self._now += seconds
        self._wake()

    def jump(self) -> bool:
        """Move time to the next instant that a task waits for, if there is one."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)  # cancelled meanwhile
        if not self._sleepers or self._sleepers[0][0] == float("inf"):
            return False
        self._now = max(self._now, self._sleepers[0][0])
        self._wake()
        return True

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


def inline_engine(parts: int) -> Engine:
    """Return an engine that computes at once, in the caller's thread.

    Args:
        parts: Number of workers that it reports.
    """

    async def opened() -> Pool:
        return Pool(InlineExecutor(), parts)

    return Engine("inline", opened)


class _IdleSelector(selectors.DefaultSelector):
    """Detects that a loop is about to wait, and advances time instead."""

    clock: ManualClock

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return []  # nothing comes from outside: a task is ready, ask when none is
        if ready := super().select(0):
            return ready
        if not self.clock.jump():
            raise DeadlockError("all tasks wait, and none of them waits for time")
        return []


def run(
    main: Callable[[ManualClock], Coroutine[Any, Any, _Result]],
    clock: ManualClock | None = None,
) -> _Result:
    """Run a program to its end, moving time whenever it is idle.

    Args:
        main: Gets the clock that it shall use everywhere.
        clock: Continues an earlier run's time, if given.

    Returns:
        What the program returns.

    Raises:
        DeadlockError: The program can never end.
    """
    chosen = clock or ManualClock()
    selector = _IdleSelector()
    selector.clock = chosen
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selector)
    ) as runner:
        return runner.run(_with(main, chosen))


async def _with(
    main: Callable[[ManualClock], Awaitable[_Result]], clock: ManualClock
) -> _Result:
    return await main(clock)
