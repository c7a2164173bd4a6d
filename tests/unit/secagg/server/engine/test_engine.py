"""Who stops waiting for workers has stopped, whatever they answer at that moment."""

import asyncio
from concurrent.futures import Executor, Future

import pytest

from secagg.server.engine.engine import Engine, EngineLostError, Pool


class ByHand(Executor):
    """Workers whose answers are given by hand."""

    def __init__(self):
        self.asked, self.answer = asyncio.Event(), Future()
        self.is_shut = False

    def submit(self, *_args, **_kwargs):
        self.asked.set()
        return self.answer

    def shutdown(self, **_):
        self.is_shut = True


def engine_with(workers):
    async def opened():
        return Pool(workers, 1)

    return Engine("by hand", opened)


@pytest.mark.parametrize("turns", range(5))
async def test_a_caller_cancelled_as_the_result_arrives_is_cancelled(turns):
    workers = ByHand()
    async with engine_with(workers) as engine:
        running = asyncio.create_task(engine.run(int))
        await workers.asked.wait()
        workers.answer.set_result(7)
        for _ in range(turns):
            await asyncio.sleep(0)
        if running.done():  # nothing was left to be cancelled
            assert running.result() == 7
            return
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not workers.is_shut  # its answer says that the engine is well


async def test_workers_that_cancel_a_call_count_as_lost():
    workers = ByHand()
    async with engine_with(workers) as engine:
        running = asyncio.create_task(engine.run(int))
        await workers.asked.wait()
        workers.answer.cancel()
        with pytest.raises(EngineLostError):
            await running
