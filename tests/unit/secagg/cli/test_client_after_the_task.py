"""`secagg client` when its task is over: done for the file that it gave, no other."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from secagg.cli import client as command
from secagg.cli.output import Output
from secagg.client.client import Client
from secagg.client.input_files import FileInput
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.runtime.files import SessionPath
from secagg.server.server import Server
from secagg.server.task.setup import Cohort, PreparedTask

WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
PAIR = ClientPolicy(min_clients=2, min_survivors=2, require_noise=False)
COHORT = Cohort(min_clients=2, max_clients=2, min_survivors=2)


@pytest.fixture
async def running():
    async with Server(None) as server:
        yield server


@pytest.fixture
def run(running, tmp_path):
    """Return what runs the command as one process of client "a" would."""

    def client_of(on_progress):
        return Client(
            running.connection("a"),
            task="t",
            privacy_limits=WAIVER,
            cohort=PAIR,
            state_dir=tmp_path / "state",
            rollback_mark=tmp_path / "mark",
            on_progress=on_progress,
        )

    settings = SimpleNamespace(client=SimpleNamespace(sessions=1, task="t"))

    async def main():
        return await command._contribute(
            settings,
            FileInput(tmp_path / "x.npy", state_dir=tmp_path / "state"),
            command._Files(SessionPath(tmp_path / "sum.npy"), None),
            Output(as_json=True),
            client_of,
        )

    return main


async def test_an_input_changed_after_the_end_of_the_task_is_reported_as_not_used(
    running, run, tmp_path, capsys
):
    np.save(tmp_path / "x.npy", [1, 2])
    task = await running.add_task("t", PreparedTask.exact(WAIVER, COHORT, dimension=2))

    async def give():
        async with Client(
            running.connection("b"), task="t", privacy_limits=WAIVER, cohort=PAIR
        ) as other:
            await other.contribute([1, 2])

    async def receive():
        return [released async for released in task.sums()]

    (first, last), _, sums = await asyncio.gather(run(), give(), receive())
    assert (len(first), last, len(sums)) == (1, None, 1)

    again, last = await run()
    assert (again, last.session_number) == ([], 1)

    np.save(tmp_path / "x.npy", [3, 4, 5])
    with pytest.raises(ServiceError) as caught:
        await run()
    assert caught.value.code is ErrorCode.TASK_OVER
    assert "is not what that session was given" in capsys.readouterr().err
