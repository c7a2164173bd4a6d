"""What an event loop is kept from: blocking calls, and exceptions of those who watch.

Spool, checks and heavy protocol steps share a small pool.  The store and computations
of seconds have a thread of their own each, and masks have an executor of theirs.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from hashlib import sha256
from typing import Any, Final, ParamSpec, Self, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Told = TypeVar("_Told")

# Disk and hash work of concurrent uploads.
_GENERAL_THREADS: Final = 4


class Workers:
    """Runs blocking calls outside the event loop.

    Args:
        general: A few threads; made here by default.
    """

    def __init__(self, *, general: Executor | None = None) -> None:
        # None for the threads of the process that asks.
        self._general: Executor | None = general or ThreadPoolExecutor(
            _GENERAL_THREADS, "secagg-worker"
        )
        self._closing: set[asyncio.Future[None]] = set()

    @classmethod
    def of_process(cls) -> Self:
        """Return workers on threads that all clients of this process share.

        They are never closed, and run no code of an application.  A fork has no thread
        of its parent, and gets its own: what it calls answers or refuses it.
        """
        shared = cls(general=_threads_of(os.getpid()))
        shared._general = None
        return shared

    async def run(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run a blocking call."""
        loop = asyncio.get_running_loop()
        threads = self._general or _threads_of(os.getpid())
        return await loop.run_in_executor(threads, partial(call, *args, **kwargs))

    async def compute(self, call: Callable[[], _Result]) -> _Result:
        """Run a computation of seconds, which no short call waits behind.

        One at a time in a process, so that a peer that causes many takes one core.
        """
        loop = asyncio.get_running_loop()
        threads = self._general or _dedicated_thread(os.getpid())
        return await loop.run_in_executor(threads, call)

    async def open(
        self, begin: Callable[[], object], close: Callable[[], object]
    ) -> None:
        """Open something, and close it again if the caller goes away meanwhile.

        Args:
            begin: Opens it, and may block.
            close: Closes it; called after `begin` has come to its end.
        """
        opening = asyncio.ensure_future(self.run(begin))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self.close_later(close, after=opening)
            raise

    async def close_later(
        self,
        close: Callable[[], object],
        *,
        after: asyncio.Future[Any] | None = None,
    ) -> None:
        """Close something, also where the caller goes away meanwhile.

        Args:
            close: Closes it, and may block.
            after: What has to end first; a thread cannot be stopped.
        """

        async def closed() -> None:
            if after is not None:
                await asyncio.wait({after})
            await self.run(close)

        closing = asyncio.ensure_future(closed())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def sha256(self, data: bytes | bytearray) -> bytes:
        """Hash data that may be large: a gigabyte takes a second."""
        return await self.run(_sha256, data)

    def close(self) -> None:
        """Let running calls finish and release the threads."""
        if self._general is not None:
            self._general.shutdown(wait=True)


def guarded_callback(
    callback: Callable[[_Told], object] | None,
) -> Callable[[_Told], None]:
    """Return a callback whose exceptions end nothing; the event loop reports them.

    Args:
        callback: Of a program that only watches; None for none.
    """

    def call_guarded(moment: _Told) -> None:
        try:
            if callback is not None:
                callback(moment)
        # Of the program, and no session's; the last two would end the event loop.
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - as above
            asyncio.get_running_loop().call_exception_handler(
                {"message": "on_progress has raised", "exception": error}
            )

    return call_guarded


@cache
def _threads_of(_process: int) -> Executor:
    threads = max(_GENERAL_THREADS, os.cpu_count() or 1)
    return ThreadPoolExecutor(threads, "secagg-client")


@cache
def _dedicated_thread(_process: int) -> Executor:
    return ThreadPoolExecutor(1, "secagg-computation")


def _sha256(data: bytes | bytearray) -> bytes:
    return sha256(data).digest()
