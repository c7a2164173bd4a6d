"""No client process of a demo outlives it."""

import asyncio

import pytest

from secagg.testbed.demo import cohort as module
from secagg.testbed.demo.cohort import Cohort
from secagg.testbed.demo.layout import DemoLayout, DemoPlan

PLAN = DemoPlan(
    clients=1,
    steps=2,
    epsilon=4.0,
    delta=1e-5,
    mechanism="skellam",
    round_seconds=1,
    join_seconds=1,
)


class Process:
    """A child that lasts until it is ended."""

    def __init__(self, listener, on_end):
        self.listener = listener
        self._on_end = on_end
        self._ended = asyncio.Event()

    def kill(self):
        self._ended.set()

    async def wait(self):
        await self._ended.wait()
        return -9

    async def end(self):
        self.kill()
        self._on_end()


@pytest.mark.parametrize("is_ending", [False, True])
async def test_no_process_is_started_again_while_all_are_ended(
    tmp_path, monkeypatch, is_ending
):
    """The aggregator may say just then that a session is over."""
    started = []

    def session_over():
        if is_ending:
            cohort.session_over(1)

    async def start(name, *_, listener, **__):
        process = Process(listener, session_over)
        started.append(name)
        children.append(process)
        return process

    children = []
    monkeypatch.setattr(module, "start_child", start)
    cohort = Cohort(
        DemoLayout(tmp_path), PLAN, lambda _: None, enrolment_key="", max_delta=1e-5
    )
    await cohort.start("127.0.0.1:1", {})
    before = asyncio.all_tasks()
    children[0].listener({"event": "paused", "session": 1, "before": "upload"})
    if not is_ending:
        cohort.session_over(1)
        restarts = asyncio.all_tasks() - before
        await asyncio.wait(restarts)
    await cohort.end()
    assert len(started) == (1 if is_ending else 2)
    assert asyncio.all_tasks() == {asyncio.current_task()}
