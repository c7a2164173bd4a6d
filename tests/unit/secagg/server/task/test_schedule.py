"""When the next session of a task may open."""

import asyncio

import pytest
from secagg_testing.manual_clock import STARTED_AT, DeadlockError, ManualClock, run

from secagg.config.task import Schedule
from secagg.server.task.schedule import TaskSchedule

HOURLY = Schedule(3600, 600)
# Manual clocks start at a full hour.
START = STARTED_AT


def test_without_a_schedule_the_next_session_follows_at_once():
    gate = TaskSchedule(opened=START)
    gate.record_sum()
    assert gate.next_opening(START) == START
    assert gate.closes_in(START) is None


def test_a_slot_is_used_by_its_sum_or_missed_after_its_window():
    gate = TaskSchedule(HOURLY)
    assert gate.next_opening(START + 599) == START + 599
    assert gate.next_opening(START + 600) == START + 3600
    used = TaskSchedule(HOURLY, opened=START + 5)
    assert used.next_opening(START + 6) == START + 3600
    # One that was missed is not made up for: there is one opening, not three.
    assert used.next_opening(START + 3 * 3600 + 700) == START + 4 * 3600


async def test_a_session_without_a_sum_is_followed_by_another_in_the_same_window():
    clock, gate = ManualClock(), TaskSchedule(HOURLY)
    assert await gate.wait(clock, is_futile=lambda: False)
    assert gate.next_opening(clock.date() + 60) == clock.date() + 60
    gate.record_sum()
    assert gate.next_opening(clock.date() + 60) == START + 3600


def test_the_schedule_waits_for_the_next_slot_and_the_end_of_its_window():
    async def main(clock):
        gate = TaskSchedule(HOURLY, opened=START)
        assert await gate.wait(clock, is_futile=lambda: False)
        assert clock.date() == START + 3600
        assert gate.closes_in(clock.date()) == 600
        assert gate.closes_in(clock.date() + 601) == -1
        await gate.window_closes(clock)
        assert clock.date() == START + 3600 + 600

    run(main)


def test_a_paused_task_opens_only_after_it_is_resumed():
    async def main(clock):
        gate = TaskSchedule(HOURLY, paused=True)
        waiting = asyncio.ensure_future(gate.wait(clock, is_futile=lambda: False))
        await clock.sleep_until(clock.now() + 10_000)
        assert gate.is_paused
        assert not waiting.done()
        gate.resume()
        assert await waiting
        # In the window of the third hour after the start, or at the next hour.
        assert clock.date() == START + 10_800

    run(main)


def test_a_futile_wait_for_a_slot_returns_false():
    async def main(clock):
        ended = []
        gate = TaskSchedule(paused=True)
        waiting = asyncio.ensure_future(gate.wait(clock, is_futile=lambda: bool(ended)))
        await clock.sleep_until(clock.now() + 1)
        ended.append(True)
        gate.wake()
        assert not await waiting

    run(main)


def test_without_a_schedule_no_window_closes():
    async def main(_):
        await TaskSchedule().window_closes(ManualClock())

    with pytest.raises(DeadlockError):
        run(main)
