"""Threads for code that may never return."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class DaemonThreads(Executor):
    """Threads that do not keep the process alive.

    Args:
        most: How many calls run at once; None for all, on a thread each.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
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
            if self._most is not None and self._running >= self._most:
                return future
            self._running += 1
        try:
            threading.Thread(
                target=self._work, name="secagg-application", daemon=True
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

    def _work(self) -> None:
        """Run waiting calls until none is left."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
            call()
