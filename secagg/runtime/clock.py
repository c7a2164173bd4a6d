"""Clocks as arguments of the runtime.

Rule 1: the runtime reads no other clock, so that a test can control time.
Rule 2: durations are measured by instants, which never go backwards.  The date serves
        for facts that two hosts must agree on: the latest end of a session.

Deadlines are instants of one clock, in seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")


class Clock(Protocol):
    """A clock that never goes backwards."""

    def now(self) -> float:
        """Return the present instant, in seconds."""

    def date(self) -> float:
        """Return the present time in Unix seconds, by this host's clock."""

    async def sleep_until(self, instant: float) -> None:
        """Return at `instant`, or at once when it has passed."""


class SystemClock:
    """The clocks of the host: the monotonic one, and the one that is set."""

    __slots__ = ()

    def now(self) -> float:
        """Return the present instant, in seconds."""
        return time.monotonic()

    def date(self) -> float:
        """Return the present time in Unix seconds."""
        return time.time()

    async def sleep_until(self, instant: float) -> None:
        """Return at `instant`, or at once when it has passed."""
        await asyncio.sleep(max(0.0, instant - self.now()))


async def finish_before(
    clock: Clock, deadline: float, work: Coroutine[Any, Any, _Result]
) -> _Result:
    """Run `work`, but not beyond a deadline.

    Args:
        clock: The clock of the deadline.
        deadline: When the work is cancelled.
        work: What to run.

    Returns:
        The result of the work.

    Raises:
        TimeoutError: The deadline passed first; the work was cancelled.
    """
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep_until(deadline))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        await _cancel(alarm, task)


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something beside a block; it is cancelled at the block's end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def ends_before(task: asyncio.Future[Any], flag: asyncio.Event) -> bool:
    """Wait until a task ends or a flag is set; return whether the task has ended."""
    waiting = asyncio.ensure_future(flag.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()


async def wait_set(clock: Clock, deadline: float, flag: asyncio.Event) -> bool:
    """Wait for a flag; return whether it was set before the deadline."""
    try:
        await finish_before(clock, deadline, flag.wait())
    except TimeoutError:
        return flag.is_set()
    return True


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, all before the first wait, and let them clean up."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            # Retrieve the exception, so that asyncio does not log it for a caller that
            # was cancelled itself.
            task.exception()
