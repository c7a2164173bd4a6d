"""`secagg client --service`: sums of many sessions, and inputs that come late."""

import asyncio
import logging

import numpy as np
import pytest

from secagg.cli import client as command
from secagg.cli import main
from secagg.cli.output import Output
from secagg.client.client import Client
from secagg.client.input_files import FileInput
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.runtime.files import SessionPath
from secagg.runtime.log_events import CLIENT_LOGGER, SERVICE_BACKOFF
from secagg.server.server import Server
from secagg.server.task.setup import Cohort, PreparedTask

WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
PAIR = ClientPolicy(min_clients=2, min_survivors=2, require_noise=False)
COHORT = Cohort(min_clients=2, max_clients=2, min_survivors=2)


class Waits(logging.Handler):
    """Hears when a service waits."""

    def __init__(self):
        super().__init__()
        self.began, self.said = asyncio.Event(), []

    def emit(self, record):
        if getattr(record, "event", "") == SERVICE_BACKOFF:
            self.said.append(record.getMessage())
            self.began.set()


async def test_every_session_reads_its_input_file_and_writes_its_sum(
    tmp_path,
):
    made, waits = [], Waits()
    logger = logging.getLogger(CLIENT_LOGGER)
    logger.addHandler(waits)

    def client_of(**options):
        made.append(
            Client(
                server.connection("a"),
                task="t",
                privacy_limits=WAIVER,
                cohort=PAIR,
                state_dir=tmp_path / "state",
                rollback_mark=tmp_path / "mark",
                wait_seconds=None,
                **options,
            )
        )
        return made[0]

    np.save(tmp_path / "x-1.npy", [1, 2])
    (tmp_path / "sums").mkdir()
    async with Server(None) as server:
        prepared = PreparedTask.exact(WAIVER, COHORT, dimension=2)
        task = await server.add_task("t", prepared, steps=2)

        async def give():
            async with Client(
                server.connection("b"), task="t", privacy_limits=WAIVER, cohort=PAIR
            ) as other:
                for _ in range(2):
                    given = await other.contribute([10, 20])
                    if given.session_number == 1:
                        # Of the second session there is nothing at first.
                        await waits.began.wait()
                        np.save(tmp_path / "x-2.npy", [3, 4])

        async def receive():
            return [each.values.tolist() async for each in task.sums()]

        serving = command._serve(
            FileInput(tmp_path / "x-{session}.npy", state_dir=tmp_path / "state"),
            command._Files(SessionPath(tmp_path / "sums" / "{session}.npy"), None),
            Output(as_json=True),
            client_of,
            renewal=None,
        )
        async with asyncio.timeout(60):
            outcome, _, sums = await asyncio.gather(
                serving, give(), receive(), return_exceptions=True
            )
    logger.removeHandler(waits)
    assert outcome == 2  # the end of a task in which it has given is no failure
    assert sums == [[11, 22], [13, 24]]
    for number, total in enumerate(sums, 1):
        assert np.load(tmp_path / "sums" / f"{number}.npy").tolist() == total
    assert "x-2.npy" in waits.said[0]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--service", "--input", "x.npy"], "every session would spend budget"),
        (["--input", "x.npy", "--renew-exec", "true"], "goes with --service"),
    ],
)
def test_invalid_service_options_are_reported_at_once(
    words, complaint, tmp_path, capsys
):
    config = tmp_path / "client.toml"
    config.write_text(
        '[client]\nserver = "127.0.0.1:1"\ntask = "t"\n'
        '[tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
        "[policy]\nrequire_noise = false\n"
    )
    assert main(["client", "--config", str(config), *words]) in {2, 72}
    assert complaint in " ".join(capsys.readouterr().err.split())
