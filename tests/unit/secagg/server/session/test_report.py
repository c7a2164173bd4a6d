"""What is left of a session for its operator to read: whole, dated, and private."""

import asyncio
import json
import os
import re
import stat

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of
from secagg_testing.lossy_connection import Fault

from secagg.cli.output import Output
from secagg.client.client import Client
from secagg.config import load_task_settings
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.server.admin.printed import print_session
from secagg.server.admin.views import StoreViews
from secagg.server.server import OperatedServer
from secagg.server.session.report import SessionReports, report_of, reports_in
from secagg.server.task.setup import Cohort, PreparedTask
from secagg.server.task.stored import encode_settings
from secagg.simulation import identity_of
from secagg.storage.changes import PutTask
from secagg.storage.rows import Retention, Task, TaskState
from secagg.wire.calls import AdvertiseKeys, UploadChunk

FOUR = parameters_for(4, dimension=9, threshold=3)


def report_of_run(**options):
    """Run one session of four and return its only report."""
    found = []

    async def on_ended(receipt, progress):
        report = report_of(receipt, progress, opened=1e9, ended=1e9 + 61.5)
        found.append(json.loads(json.dumps(report)))

    async def main(clock):
        await Deployment(
            clock, FOUR, 4, max_attempts=1, on_ended=on_ended, **options
        ).run()

    manual_clock.run(main)
    (report,) = found
    return report


def test_a_released_sum_has_a_dated_report_with_every_round():
    report = report_of_run()
    assert report["outcome"] == "released"
    assert report["opened"] == "2001-09-09T01:46:40+00:00"
    assert report["ended"] == "2001-09-09T01:47:41+00:00"
    assert report["seconds"] == 61.5
    assert set(report["counts"].values()) == {
        4,
        0,
    }  # clients do not sign in this profile
    assert report["counts"]["in_the_sum"] == 4
    assert {"ADVERTISE_KEYS", "UNMASKING", "SUMMING"} <= set(
        report["seconds_of_rounds"]
    )
    assert report["lost"] == []
    assert "next_step" not in report


def test_the_report_of_an_aborted_session_names_dropouts_and_the_next_step():
    report = report_of_run(
        fault_of=lambda number, call, _: (
            Fault.LOSE_REQUEST if number > 1 and call is UploadChunk else Fault.NONE
        )
    )
    assert report["outcome"] == "U3_TOO_SMALL"
    assert report["reason"] == "2 clients uploaded their input, 3 are needed"
    assert "rounds.masked_input" in report["next_step"]
    assert report["counts"]["in_the_sum"] == 0
    assert [(lost["client"], lost["round"]) for lost in report["lost"]] == [
        (identity_of(2), "uploading"),
        (identity_of(3), "uploading"),
    ]
    assert all(lost["reason"] for lost in report["lost"])


TASK_FILE = f"""
[task]
id = "{TASK_ID}"
invited = {[identity_of(n) for n in range(6)]}
[vector]
dimension = 4
[cohort]
min_clients = 4
max_clients = 4
min_survivors = 3
[noise]
none = "{NO_NOISE_ACKNOWLEDGEMENT}"
"""


def page_of(deployment, tmp_path, capsys):
    """Return what `secagg sessions show` prints of the first session."""
    store = deployment.server_store
    (tmp_path / "task.toml").write_text(TASK_FILE)
    settings = load_task_settings(tmp_path / "task.toml")
    task = Task(TASK_ID, TaskState.RUNNING, encode_settings(settings), b"", "")
    assert answer_of(store.commit(PutTask(task, expect_version=0)))
    shown = answer_of(StoreViews(store, tmp_path).session(TASK_ID, 1))
    assert shown["report"] is None
    print_session(json.loads(json.dumps(shown)), Output(as_json=False))
    return capsys.readouterr().out


def losing(lost, clock, *, first):
    """A session in which one call of each client from `first` on never arrives."""
    return Deployment(
        clock,
        FOUR,
        4,
        max_attempts=1,
        fault_of=lambda number, call, _: (
            Fault.LOSE_REQUEST if number >= first and call is lost else Fault.NONE
        ),
    )


def test_the_page_of_a_session_is_built_from_the_store_alone(tmp_path, capsys):
    """Another aggregator has ended it, or its disk is lost: there is no report here."""

    async def main(clock):
        deployment = losing(UploadChunk, clock, first=2)
        await deployment.run()
        return deployment

    page = page_of(manual_clock.run(main), tmp_path, capsys)
    assert re.search(r"outcome +U3_TOO_SMALL\n", page)
    for number in (2, 3):
        assert re.search(rf"{identity_of(number)} +uploading +\w+", page)
    assert re.search(rf"did not join +{identity_of(4)}, {identity_of(5)}\n", page)
    assert "next step: Compare rounds.masked_input" in page
    assert not re.search(r"^(report|receipt)", page, re.MULTILINE)
    rounds = re.findall(r"^seconds in (\w+)", page, re.MULTILINE)
    assert rounds == ["ADVERTISE_KEYS", "SHARE_KEYS", "MASKED_INPUT_COLLECTION"]


def test_the_page_of_a_session_without_enough_clients_names_those_that_joined(
    tmp_path, capsys
):
    async def main(clock):
        deployment = losing(AdvertiseKeys, clock, first=1)
        running = asyncio.ensure_future(deployment.run())
        await clock.sleep_until(clock.now() + 30)
        await deployment.aggregator.end_task(TASK_ID, "no client joins")
        await running
        return deployment

    page = page_of(manual_clock.run(main), tmp_path, capsys)
    assert re.search(r"outcome +ROSTER_TOO_SMALL\n", page)
    assert re.search(rf"joined +{identity_of(0)}\n", page)
    absent = ", ".join(identity_of(n) for n in range(1, 6))
    assert re.search(rf"did not join +{absent}\n", page)


def test_reports_are_purged_with_their_receipts(tmp_path):
    reports = SessionReports(tmp_path)
    for task in ("a", "b"):
        (tmp_path / task).mkdir()
        for number in range(1, 5):
            path = tmp_path / task / f"{number}.json"
            path.write_text("{}")
            os.utime(path, (number * 86_400.0,) * 2)
    (tmp_path / "a" / "notes.txt").write_text("not ours")
    kept = Retention(keep_receipts_days=2.5, keep_receipts=2)
    assert reports.purge(kept, now=5 * 86_400.0) == 4
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "3.json",
        "4.json",
        "notes.txt",
    ]
    assert reports.purge(kept, now=6 * 86_400.0) == 2  # the third days of both
    assert SessionReports(tmp_path / "none").purge(kept, now=0.0) == 0


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_a_damaged_report_is_reported_as_missing(tmp_path, text):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.json").write_text(text)
    assert SessionReports(tmp_path).read("t", 1) is None
    assert SessionReports(tmp_path).read("../t", 1) is None


async def first_joined(server):
    """Wait until a client waits in a session, and return it."""
    async for progress in server.progress():
        if progress.joined:
            return progress
    raise AssertionError


@pytest.fixture
def contribute_as(monkeypatch, tmp_path):
    monkeypatch.setattr("secagg.server.server.SETTLE_SECONDS", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "marks"))
    waiver = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
    pair = ClientPolicy(min_clients=2, min_survivors=2, require_noise=False)

    async def contribute_as(server, name):
        async with Client(
            server.connection(name), task="t/1", privacy_limits=waiver, cohort=pair
        ) as one:
            await one.contribute([1, 2])

    return contribute_as


EXACT = PreparedTask.exact(
    ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT),
    Cohort(min_clients=2, max_clients=2, min_survivors=2),
    dimension=2,
)


async def test_every_session_of_a_server_leaves_a_private_report_file(
    tmp_path, contribute_as
):
    async with OperatedServer(None, state_dir=tmp_path / "s") as server:
        task = await server.add_task("t/1", EXACT, attempts=2)
        early = asyncio.ensure_future(contribute_as(server, "a"))
        first = await first_joined(server)
        await server.abort_session(first.session_id, "wrong model")
        late = asyncio.ensure_future(contribute_as(server, "b"))
        assert (await task.next_sum()).session_number == 2
        task.take()
        await asyncio.gather(early, late)
        await task.wait()
    one, two = (reports_in(tmp_path / "s").read("t/1", number) for number in (1, 2))
    assert (one["outcome"], one["reason"]) == ("CANCELLED", "wrong model")
    assert one["counts"]["joined"] == 1
    assert two["outcome"] == "released"
    assert two["opened"] >= one["opened"] > "2020"
    folder = tmp_path / "s" / "reports" / "t%2F1"
    assert sorted(path.name for path in folder.iterdir()) == ["1.json", "2.json"]
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


async def test_a_report_that_cannot_be_written_does_not_delay_the_sum(
    tmp_path, contribute_as, caplog
):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "reports").write_text("a file in the way")
    async with OperatedServer(None, state_dir=tmp_path / "s") as server:
        task = await server.add_task("t/1", EXACT)
        given = asyncio.gather(contribute_as(server, "a"), contribute_as(server, "b"))
        assert (await task.next_sum()).inputs == 2
        task.take()
        await given
        await task.wait()
    assert "report_write_failed task=t/1 number=1 reason=" in caplog.text
