"""What a signal asks of an aggregator, and what it says of a budget that gets short."""

import asyncio
import signal
from types import SimpleNamespace

import pytest

from secagg.distributed_dp import NoiseBudget
from secagg.errors import ErrorCode, SessionAbortedError
from secagg.server.admin import views
from secagg.server.admin.views import short_of_budget
from secagg.server.service import Observer, ServiceManager, _Ending, plan_task, serve
from secagg.server.task.history import TaskHistory
from secagg.testbed.load.result import LoadLayout, LoadPlan


async def test_sigusr1_drains_the_server_only_while_it_listens():
    before = signal.getsignal(signal.SIGUSR1)
    ending = _Ending(ServiceManager())
    with ending.on_signal():
        signal.raise_signal(signal.SIGUSR1)
        async with asyncio.timeout(10):
            await ending.requested.wait()
        assert not ending.forced.is_set()
    assert signal.getsignal(signal.SIGUSR1) == before


def row_with(monkeypatch, budget, spent, sums):
    """A task of four sums."""
    settings = SimpleNamespace(task=SimpleNamespace(steps=4))
    noisy = None if budget is None else SimpleNamespace(budget=budget)
    monkeypatch.setattr(views, "decode_settings", lambda _: settings)
    monkeypatch.setattr(views, "_noisy_task", lambda _: noisy)
    tally = SimpleNamespace(spent=spent, facts=TaskHistory(sums=sums).encode())
    return SimpleNamespace(tally=tally, task=SimpleNamespace(task_id="t"))


@pytest.mark.parametrize(
    ("spent", "sums", "short"),
    [
        (0, 0, None),
        (3, 3, None),
        (4, 4, None),  # all there: what is left does not matter
        (3, 1, None),  # two have failed, three are missing, and three are left
        (4, 3, (2, 2)),
        (6, 3, (0, 2)),
        (9, 3, (0, 2)),
    ],
)
def test_a_budget_is_short_when_missing_sums_exceed_the_spare_sessions(
    monkeypatch, spent, sums, short
):
    budget = NoiseBudget(
        epsilon=1.0, delta=1e-5, participations=4, spare=2, accountant="of no matter"
    )
    assert short_of_budget(row_with(monkeypatch, budget, spent, sums)) == short


def test_a_task_without_noise_has_no_budget(monkeypatch):
    assert short_of_budget(row_with(monkeypatch, None, 3, 1)) is None


async def test_an_end_date_ends_a_single_task_server(tmp_path):
    layout = LoadLayout(tmp_path)
    planned = LoadPlan(clients=3, dimension=2, degree=0, lost=0, round_seconds=5)
    layout.issue(planned.clients, enrolled=False)
    tables = planned.settings(layout, None)
    task = {**tables["task"], "ends": "2020-01-01T00:00:00Z"}
    settings = layout.write_settings({**tables, "task": task})
    observer = Observer(print, print, print)
    with pytest.raises(SessionAbortedError, match="the end date of the task") as ended:
        await serve(
            settings, await plan_task(settings), on_sum=print, observer=observer
        )
    assert ended.value.code is ErrorCode.TASK_OVER  # no session had begun
