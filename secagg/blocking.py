"""Clients, servers and local cohorts for scripts and notebooks that have no event loop.

The names are those of `secagg`, and so are the arguments; what is awaited there is
called here.  Works beside a running event loop, too, as in a notebook.

Rule 1: everything runs on one thread and one event loop of its own, per object.
Rule 2: an interrupt (Ctrl-C) cancels what is under way; its state stays resumable.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy.typing as npt

from secagg.client.client import Client as AsyncClient
from secagg.client.client import Contribution, VectorMaker
from secagg.client.judge import SessionInfo

__all__ = ["Client", "LocalCohort", "RunningTask", "Server", "local"]

_Result = TypeVar("_Result")


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="secagg-loop", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run to the end, or cancel when this thread is interrupted."""
        running = asyncio.run_coroutine_threadsafe(_shielded(work), self._loop)
        try:
            return running.result()
        except BaseException:
            if not running.done():
                running.cancel()
                # The loop lets the work tidy up before it does anything else for us.
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()
            raise


async def _shielded(work: Coroutine[Any, Any, _Result]) -> _Result:
    return await work


class Client:
    """One client of one task; takes the arguments of `secagg.Client`.

    Example:
        with secagg.blocking.Client(server, task="digits", floors=floors, ...) as one:
            print(one.contribute(vector).values)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the other's
        self._client = AsyncClient(*args, **kwargs)
        self._stack = ExitStack()
        self._loop = _Loop()

    def __enter__(self) -> Self:
        """Open storage and connection."""
        with ExitStack() as stack:
            stack.enter_context(self._loop)
            self._loop.run(self._client.__aenter__())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close both."""
        with self._stack:
            self._loop.run(self._client.__aexit__(kind, error, traceback))

    def contribute(
        self,
        vector: npt.ArrayLike | VectorMaker,
        *,
        accept: Callable[[SessionInfo], None] | None = None,
    ) -> Contribution:
        """Give one vector to one session; see `secagg.Client.contribute`."""
        return self._loop.run(self._client.contribute(vector, accept=accept))
