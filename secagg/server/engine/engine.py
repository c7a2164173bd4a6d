"""Workers that may be lost: opened when they are needed, and again after a loss.

Rule 1: a call is a function of this package with plain arguments, which has no effect
        but its result: it may be run twice, or by somebody else.
Rule 2: what a call refuses (`SecAggError`) is its answer.  Everything else means that
        the workers have failed, and is told apart as `EngineLostError`: the caller
        computes by itself, and the next call opens the workers anew.
Rule 3: whoever gives a call its secrets trusts the workers with them, and the network
        to them: beyond this machine only over TLS (`secagg.server.engine.opening`).
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

# The largest session that a single core is asked for, 10^4 masks of 10^6 entries, takes
# it 35 seconds; workers that say nothing for so long are not there.
_PATIENCE_SECONDS: Final = 600.0


class EngineLostError(ServiceError):
    """The workers have failed, not what they were to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Workers that are there.

    Attributes:
        executor: Runs calls; `shutdown` lets the workers go.
        parts: How many of them work at the same time.
    """

    executor: Executor
    parts: int


class Engine:
    """Runs calls on workers; use it as an asynchronous context manager.

    Args:
        name: What logs call it.
        open_pool: Makes the workers; may raise anything.
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
        """Let running calls end, and the workers go."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.executor.shutdown)

    async def parts(self) -> int:
        """Return into how many parts a large job is best split.

        Raises:
            EngineLostError: The workers cannot be opened.
        """
        return (await self._opened()).parts

    async def run(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Run a call on a worker.

        Raises:
            EngineLostError: The workers have failed.
            SecAggError: What the call itself refuses.
        """
        pool = await self._opened()
        try:
            future = pool.executor.submit(call, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            self._throw_away(pool)
            raise self._lost(error) from None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await asyncio.wrap_future(future)
        except SecAggError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # it is the caller that stops
            failure: BaseException = error
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            failure = error
        self._throw_away(pool)
        raise self._lost(failure)

    async def _opened(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                try:
                    self._pool = await self._open_pool()
                except Exception as error:  # noqa: BLE001 - as in `run`
                    raise self._lost(error) from None
            return self._pool

    def _throw_away(self, pool: Pool) -> None:
        if self._pool is pool:  # and not one that was opened since
            self._pool = None
            asyncio.get_running_loop().run_in_executor(
                None, lambda: pool.executor.shutdown(wait=False, cancel_futures=True)
            )

    def _lost(self, error: BaseException) -> EngineLostError:
        # What an engine says may show what it was given; what we say does not.
        told = isinstance(error, SecAggError)
        return EngineLostError(
            f"the workers of {self.name} have failed: "
            + (str(error) if told else type(error).__name__),
            code=ErrorCode.INTERNAL,
            next_step="Look at the logs of the engine.  Sums are computed by the "
            "aggregator itself meanwhile.",
        )


def thread_engine(threads: int | None = None) -> Engine:
    """Return threads of this process, by default one for each core."""
    count = threads or os.cpu_count() or 1

    async def opened() -> Pool:
        return Pool(ThreadPoolExecutor(count, "secagg-masks"), count)

    return Engine("threads", opened)
