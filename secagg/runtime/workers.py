"""Threads for everything that blocks, so that the event loop never does.

Rule 1: storage has one thread of its own: writes keep their order, and a slow disk
        delays nothing but writes.
Rule 2: spool, checks and heavy protocol steps share a small pool.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

__all__ = ["Workers"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Disk and hash work of concurrent uploads; masks have an executor of their own.
GENERAL_THREADS: Final = 4


class Workers:
    """Runs blocking calls outside the event loop.

    Args:
        storage: One thread for a `SessionStore`; made here when left out.
        general: A few threads for the rest; made here when left out.
    """

    def __init__(
        self, *, storage: Executor | None = None, general: Executor | None = None
    ) -> None:
        self._storage = storage or ThreadPoolExecutor(1, "secagg-storage")
        self._general = general or ThreadPoolExecutor(GENERAL_THREADS, "secagg-worker")

    async def store(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run a call of a session store on the thread of the storage."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._storage, partial(call, *args, **kwargs))

    async def run(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run any other blocking call."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._general, partial(call, *args, **kwargs))

    def close(self) -> None:
        """Let running calls finish and release the threads."""
        self._storage.shutdown(wait=True)
        self._general.shutdown(wait=True)
