"""Workers that may be lost: opened when they are needed, and again after a loss.

Rule 1: a call is a function of this package with plain arguments and no effect but its
        result. It may run twice, or on another worker.
Rule 2: an error that a call raises (`SecAggError`) is its answer.  Any other error
        means that the workers have failed, and becomes `EngineLostError`: the caller
        computes by itself, and the next call opens the workers again.
Rule 3: a call that contains secrets trusts the workers with them, and the network to
        them. Beyond this machine only TLS is used (`secagg.server.engine.opening`).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, Self, TypeVar

from secagg.errors import ErrorCode, SecAggError, ServiceError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# The largest session for a single core, 10^4 masks of 10^6 entries, takes 35 seconds.
# Workers that do not answer for so long are considered lost.
_CALL_SECONDS: Final = 600.0


class EngineLostError(ServiceError):
    """Reports that the workers have failed, not their task."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Holds open workers.

    Attributes:
        executor: Runs calls; `shutdown` releases the workers.
        parts: Number of workers that run at the same time.
    """

    executor: Executor
    parts: int


class Engine:
    """Runs calls on workers; use it as an asynchronous context manager.

    Args:
        name: The name in logs.
        open_pool: Opens the workers; may raise any exception.
    """

    def __init__(self, name: str, open_pool: Callable[[], Awaitable[Pool]]) -> None:
        self.name = name
        self._open_pool = open_pool
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Do nothing yet: the first large job opens the workers."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let running calls end, and release the workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.executor.shutdown)

    async def parts(self) -> int:
        """Return the best number of parts of a large job.

        Raises:
            EngineLostError: The workers cannot be opened.
        """
        return (await self._open_workers()).parts

    async def run(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run a call on a worker.

        Raises:
            EngineLostError: The workers have failed.
            SecAggError: The error that the call itself raised.
        """
        pool = await self._open_workers()
        try:
            future = pool.executor.submit(call, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            self._discard_pool(pool)
            raise self._workers_error(error) from None
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await asyncio.wrap_future(future)
        except SecAggError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the caller itself is cancelled
            failure: BaseException = error
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            failure = error
        self._discard_pool(pool)
        raise self._workers_error(failure)

    async def _open_workers(self) -> Pool:
        """Return the pool of workers, opened at the first call."""
        async with self._opening:
            if self._pool is None:
                try:
                    self._pool = await self._open_pool()
                except Exception as error:  # noqa: BLE001 - as in `run`
                    raise self._workers_error(error) from None
            return self._pool

    def _discard_pool(self, pool: Pool) -> None:
        """Close a pool that has failed; the next job opens another."""
        if self._pool is pool:  # and not a pool that was opened since
            self._pool = None
            asyncio.get_running_loop().run_in_executor(
                None, lambda: pool.executor.shutdown(wait=False, cancel_futures=True)
            )

    def _workers_error(self, error: BaseException) -> EngineLostError:
        """Return the error for workers that have failed."""
        # An engine's message may show its arguments; this message does not.
        told = isinstance(error, SecAggError)
        return ErrorCode.INTERNAL.error(
            f"the workers of {self.name} have failed: "
            + (str(error) if told else type(error).__name__),
            kind=EngineLostError,
            fix="Read the logs of the engine.  The aggregator computes sums by "
            "itself meanwhile.",
        )


def thread_engine(threads: int | None = None) -> Engine:
    """Return threads of this process, by default one for each core."""
    count = threads or os.cpu_count() or 1

    async def opened() -> Pool:
        return Pool(ThreadPoolExecutor(count, "secagg-masks"), count)

    return Engine("threads", opened)
