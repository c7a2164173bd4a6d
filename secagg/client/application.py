"""The application's own code: where it runs, and how long a vector is waited for.

Rule 1: nothing of the application runs on the threads that mask.  A function that
        never returns costs one thread, and no session.
Rule 2: a vector that is not ready when it is due is unusable (R3.5-5).  Its function
        cannot be stopped: one that still waits for a thread never begins, and the
        result of another is dropped.
Rule 3: while a late function runs, or one whose caller has gone, no further one
        begins: the sessions that come meanwhile have no vector.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

from secagg.distributed_dp import Unusable, UnusableKind
from secagg.errors import ErrorCode, SecAggError
from secagg.runtime.clock import Clock

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Made = TypeVar("_Made")

_LATE: Final = Unusable(
    UnusableKind.LATE, "the vector was not ready when it had to leave"
)
_BUSY: Final = Unusable(
    UnusableKind.BUSY,
    "the function that makes vectors is still at work for an earlier session",
)
_NO_THREAD: Final = Unusable(
    UnusableKind.RAISED,
    "the function that makes the vector could not be run on the threads given for it",
)


class DaemonThreads(Executor):
    """Threads that do not keep the process alive.

    Args:
        most: How many calls run at once; None for all, on a thread each.
    """

    def __init__(self, most: int | None = None) -> None:
        self._max_threads = most
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run the call on a thread, when there is one."""
        future: Future[_Result] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._waiting.append(call)
            if self._max_threads is not None and self._running >= self._max_threads:
                return future
            self._running += 1
        try:
            threading.Thread(
                target=self._run_waiting_calls, name="secagg-application", daemon=True
            ).start()
        except RuntimeError:
            with self._lock:
                self._running -= 1
                # Else it would run on the next thread, for a caller that was told no.
                if call not in self._waiting:
                    return future  # another thread has taken it
                self._waiting.remove(call)
            raise
        return future

    def _run_waiting_calls(self) -> None:
        """Run waiting calls until none is left."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
            call()


class Application:
    """Runs the application's code for one client.

    Args:
        threads: Where vectors are made; None takes a daemon thread for each.
    """

    def __init__(self, threads: Executor | None = None) -> None:
        self._own = DaemonThreads()
        self._threads = self._own if threads is None else threads
        self._late: _Making[Any] | None = None

    async def check(
        self,
        call: Callable[_Parameters, object],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> None:
        """Run a call that raises what speaks against a session.

        It has a thread of its own: a late function on the threads of the caller would
        keep this client out of later sessions.
        """
        await _run(self._own, partial(call, *args, **kwargs))

    async def exact_vector(self, make: Callable[[], _Made]) -> _Made:
        """Return a vector of a task without noise, whenever it is ready.

        What `make` raises comes out.
        """
        return await _run(self._threads, make)

    async def vector(
        self, make: Callable[[], _Made], *, clock: Clock, due: float
    ) -> _Made | Unusable:
        """Return a vector when it is ready, or why it is missing.

        Args:
            make: Makes it.
            clock: Time.
            due: Instant of the clock until which it is waited for.

        Returns:
            What `make` returned; or why it cannot be used, at `due` at the latest.
        """
        if self._late is not None and not self._late.has_ended:
            return _BUSY
        making, loop = _Making(make), asyncio.get_running_loop()
        try:
            ready = loop.run_in_executor(self._threads, making)
        except Exception:  # noqa: BLE001 - whatever the executor is out of
            making.cancel()
            return _NO_THREAD
        alarm = asyncio.ensure_future(clock.sleep_until(due))
        either: set[asyncio.Future[Any]] = {ready, alarm}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return _LATE
            # `_Making` raises nothing: what comes out is the executor's.
            has_failed = ready.cancelled() or ready.exception() is not None
            return _NO_THREAD if has_failed else ready.result()
        finally:
            # One that has ended would keep the payload in memory.
            if making.cancel() and not making.has_ended:
                self._late = making
            ready.cancel()
            alarm.cancel()
            await asyncio.wait({alarm})


async def _run(threads: Executor, call: Callable[[], _Result]) -> _Result:
    """Run a function of the application on its threads."""

    def guarded() -> _Result:
        try:
            return call()
        except (StopIteration, KeyboardInterrupt, SystemExit) as error:
            # No future can hold the first; the others would end the event loop.
            raise ErrorCode.LOCAL_MISUSE.error(
                f"a function that makes vectors or checks sessions raised "
                f"{type(error).__name__}",
                fix="Raise an Exception from it, and stop where it was passed.",
            ) from error

    return await asyncio.get_running_loop().run_in_executor(threads, guarded)


class _Making(Generic[_Made]):
    """One call that makes a vector, and whether it runs."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._has_begun = self._is_dropped = False
        self.has_ended = False

    def __call__(self) -> _Made | Unusable:
        with self._lock:
            if self._is_dropped:
                return _LATE
            self._has_begun = True
        try:
            return self._make()
        except BaseException as error:  # noqa: BLE001 - no exception keeps a client away
            return Unusable(UnusableKind.RAISED, _failure_reason(error))
        finally:
            del self._make  # it holds the payload, and a late one is kept for longer
            self.has_ended = True

    def cancel(self) -> bool:
        """Never begin from now on; return whether it has begun."""
        with self._lock:
            self._is_dropped = True
            return self._has_begun


def _failure_reason(error: BaseException) -> str:
    """Return why there is no vector, with no word of an exception that is not ours."""
    if isinstance(error, SecAggError):
        with suppress(Exception):  # its class may be the caller's
            return str(error)
    return f"the function that makes the vector raised {type(error).__name__}"
