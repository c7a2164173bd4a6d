"""`secagg client` with a file that cannot be used: before it joins, and after."""

import asyncio
import logging
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import secagg
from secagg.cli import client as command
from secagg.cli.output import Output
from secagg.client.client import Client
from secagg.client.input_files import FileInput
from secagg.errors import InputError
from secagg.protocol.policy import ClientPolicy, PrivacyLimits
from secagg.runtime.files import SessionPath
from secagg.runtime.log_events import CLIENT_LOGGER, SERVICE_BACKOFF
from secagg.server.server import Server
from secagg.testbed.connections import PausingConnection

LIMITS = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
PAIR = ClientPolicy(min_clients=3, min_survivors=3)
COHORT = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)
OTHERS = ("b", "c")


@pytest.fixture(scope="module")
def prepared():
    return planned(2)


def planned(steps):
    made = secagg.plan(
        clients=3, dimension=2, l2_clip=1.0, epsilon=8.0, delta=1e-5, steps=steps
    )
    return secagg.PreparedTask.from_plan(made, COHORT)


class Command:
    """`secagg client` of "a", and the others."""

    def __init__(self, server, tmp_path):
        self.server, self.home = server, tmp_path
        self.way = server.connection("a")
        self.sessions = 1

    def _client(self, *, is_service=False, **options):
        return Client(
            self.way,
            task="t",
            privacy_limits=LIMITS,
            cohort=PAIR,
            state_dir=self.home / "state",
            rollback_mark=self.home / "mark",
            wait_seconds=None if is_service else 60.0,
            **options,
        )

    def _parts(self, name):
        files = command._Files(SessionPath(self.home / "sum-{session}.npy"), None)
        return (
            SimpleNamespace(client=SimpleNamespace(sessions=self.sessions, task="t")),
            FileInput(self.home / name, state_dir=self.home / "state"),
            files,
            Output(as_json=True),
        )

    async def once(self, name):
        """Run it; return what `--json` says of each session."""
        settings, source, files, output = self._parts(name)
        given, last = await command._contribute(
            settings, source, files, output, self._client
        )
        return command._result_values(given, last, files, output)["sessions"]

    async def serve(self, name):
        client = partial(self._client, is_service=True)
        return await command._serve(*self._parts(name)[1:], client, renewal=None)

    async def contribute_as(self, name, sessions=1):
        async with Client(
            self.server.connection(name), task="t", privacy_limits=LIMITS, cohort=PAIR
        ) as other:
            return [await other.contribute(np.ones(2)) for _ in range(sessions)]


@pytest.fixture
async def run(tmp_path):
    async with Server(None) as server:
        yield Command(server, tmp_path)


async def receive(task):
    return [total.inputs async for total in task.sums()]


async def test_an_unusable_file_is_an_error_before_any_call(run, tmp_path):
    np.save(tmp_path / "x.npy", [1.0, np.nan])
    with pytest.raises(InputError, match="NaN or infinity, first at entry 1"):
        await run.once("x.npy")  # there is no task, and none was asked for
    with pytest.raises(InputError, match="cannot be read"):
        await run.serve("absent.npy")


async def test_a_file_damaged_during_a_session_contributes_zeros_and_succeeds(
    run, tmp_path, capsys
):
    """The process was ended after it had joined, and the file written again."""
    task = await run.server.add_task("t", planned(1), steps=1)
    np.save(tmp_path / "x.npy", [1.0, 0.0])
    stopped = asyncio.Event()
    direct, run.way = (
        run.way,
        PausingConnection(
            run.way, session_number=1, before="share", on_pause=stopped.set
        ),
    )
    others = asyncio.gather(*map(run.contribute_as, OTHERS), receive(task))
    first = asyncio.create_task(run.once("x.npy"))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})

    np.save(tmp_path / "x.npy", [1.0, np.nan])
    run.way = direct
    (session,) = await run.once("x.npy")
    *_, sums = await others
    assert sums == [3]
    assert session["inputs"] == 3
    assert "x.npy has NaN or infinity" in session["replaced"]
    assert session["shortened_by"] is None
    assert "zeros were given: the input" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "sum-1.npy").exists()


class Waits(logging.Handler):
    """Hears when a service waits."""

    def __init__(self):
        super().__init__()
        self.began, self.said = asyncio.Event(), []

    def emit(self, record):
        if getattr(record, "event", "") == SERVICE_BACKOFF:
            self.said.append(record.getMessage())
            self.began.set()


async def test_a_service_with_a_bad_file_waits_and_retries(run, prepared, tmp_path):
    """The file of the second session becomes a good one while it waits."""
    waits, logger = Waits(), logging.getLogger(CLIENT_LOGGER)
    logger.addHandler(waits)
    task = await run.server.add_task("t", prepared, steps=2)
    np.save(tmp_path / "x-1.npy", [1.0, 0.0])
    np.save(tmp_path / "x-2.npy", [np.nan, 0.0])

    async def repair():
        await waits.began.wait()
        np.save(tmp_path / "x-2.npy", [0.0, 1.0])

    async with asyncio.timeout(60):
        count, *_, sums, _ = await asyncio.gather(
            run.serve("x-{session}.npy"),
            *(run.contribute_as(name, 2) for name in OTHERS),
            receive(task),
            repair(),
        )
    logger.removeHandler(waits)
    assert (count, sums) == (2, [3, 3])
    assert "x-2.npy has NaN or infinity" in waits.said[0]


async def test_a_service_continues_after_contributing_zeros(
    run, prepared, tmp_path, monkeypatch
):
    """A file that vanished after it was checked is no reason to be missing."""
    task = await run.server.add_task("t", prepared, steps=2)
    np.save(tmp_path / "x-1.npy", [1.0, 0.0])
    np.save(tmp_path / "x-2.npy", [1.0, 0.0])
    read, replaced = FileInput.vector, []

    def vanishing(source, session):
        if session.session_number == 1:
            raise InputError("the input x-1.npy cannot be read: no such file")
        return read(source, session)

    def note(given, *_):
        replaced.append(given.replaced)

    monkeypatch.setattr(FileInput, "vector", vanishing)
    monkeypatch.setattr(command, "_write_given", note)
    count, *_, sums = await asyncio.gather(
        run.serve("x-{session}.npy"),
        *(run.contribute_as(name, 2) for name in OTHERS),
        receive(task),
    )
    assert (count, sums) == (2, [3, 3])
    assert replaced == ["the input x-1.npy cannot be read: no such file", None]
