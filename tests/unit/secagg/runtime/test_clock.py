import asyncio

import pytest
from secagg_testing import manual_clock
from secagg_testing.manual_clock import DeadlockError, ManualClock

from secagg.runtime.clock import SystemClock, finish_before, wait_set
from secagg.storage.sqlite.executor import InlineExecutor


def test_work_that_finishes_in_time_returns_its_result():
    async def work():
        return 7

    async def main(clock):
        return await finish_before(clock, clock.now() + 5, work())

    assert manual_clock.run(main) == 7


def test_work_beyond_its_deadline_is_cancelled_and_cleans_up():
    trace = []

    async def work(clock):
        try:
            await clock.sleep_until(clock.now() + 100)
        finally:
            trace.append("cleaned up")

    async def main(clock):
        started = clock.now()
        with pytest.raises(TimeoutError):
            await finish_before(clock, started + 5, work(clock))
        return clock.now() - started

    assert manual_clock.run(main) == 5
    assert trace == ["cleaned up"]


def test_errors_of_the_work_are_raised():
    async def work():
        raise KeyError("x")

    async def main(clock):
        with pytest.raises(KeyError):
            await finish_before(clock, clock.now() + 5, work())

    manual_clock.run(main)


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_caller_cancels_its_work(times):
    ended = []

    async def work(clock):
        try:
            await clock.sleep_until(clock.now() + 100)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def main(clock):
        task = asyncio.ensure_future(
            finish_before(clock, clock.now() + 50, work(clock))
        )
        await clock.sleep_until(clock.now() + 1)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)  # it cleans up
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)  # one turn of the loop for what it has cancelled
        assert ended == [True]

    manual_clock.run(main)


def test_a_flag_is_awaited_until_the_deadline():
    async def main(clock):
        flag = asyncio.Event()
        assert not await wait_set(clock, clock.now() + 1, flag)
        flag.set()
        assert await wait_set(clock, clock.now() + 1, flag)

    manual_clock.run(main)


async def test_the_system_clock_advances():
    clock = SystemClock()
    before = clock.now()
    await clock.sleep_until(before + 0.001)
    assert clock.now() >= before + 0.001
    await clock.sleep_until(before)


def test_time_jumps_to_the_nearest_sleeper():
    order = []

    async def sleeper(clock, seconds):
        await clock.sleep_until(clock.now() + seconds)
        order.append((seconds, clock.now()))

    async def main(clock):
        await asyncio.gather(*(sleeper(clock, s) for s in (3600, 5, 60)))

    manual_clock.run(main, ManualClock(0.0))
    assert order == [(5, 5.0), (60, 60.0), (3600, 3600.0)]


def test_a_program_that_can_never_end_raises_a_deadlock_error():
    async def main(_clock):
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        manual_clock.run(main)


def test_advancing_wakes_due_sleepers():
    async def main(clock):
        task = asyncio.ensure_future(clock.sleep_until(clock.now() + 5))
        await asyncio.sleep(0)
        clock.advance(4.9)
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.1)
        await task

    manual_clock.run(main)


def test_the_inline_executor_reports_errors_through_its_future():
    def fail():
        raise KeyError("x")

    future = InlineExecutor().submit(fail)
    with pytest.raises(KeyError):
        future.result()
    assert InlineExecutor().submit(divmod, 7, 2).result() == (3, 1)
