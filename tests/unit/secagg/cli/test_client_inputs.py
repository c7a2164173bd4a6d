"""What `secagg client` may be told to give, and to how many tasks."""

import asyncio
import json
import os
import select
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import secagg
from secagg.cli import client as command
from secagg.cli import main
from secagg.cli.client_inputs import (
    GivenInput,
    give_to_all,
    read_tasks,
    settings_of_inputs,
    settings_of_task,
    source_of,
)
from secagg.cli.output import Output
from secagg.client import program
from secagg.config import load_client_settings


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "one of --input, --exec and --tasks is needed"),
        (["--input", "x.npy", "--exec", "train {model}"], "exclude each other"),
        (["--tasks", "t.toml", "--output", "sum.npy"], "its file says"),
        (["--tasks", "t.toml", "--service", "--renew-exec", "x"], "goes with one task"),
        (["--input", "x.npy", "--exec-seconds", "3"], "go with --exec"),
        (["--exec", "train {model}", "--payload-out", "x"], "go with --input"),
    ],
)
def test_options_that_exclude_each_other_are_refused(capsys, words, text):
    assert main(["client", "--config", "client.toml", *words]) == 2
    assert text in " ".join(capsys.readouterr().err.replace("│", "").split())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no task"),
        ("[a", "is not TOML"),
        ("a = 1", "has 'a' outside of any task"),
        ("[a]\ninptu = 'x'", "has a.inptu"),
        ("[a]\ninput = 1", "a.input that is not str"),
        ("[a]\nsessions = true", "a.sessions that is not int"),
        ("[a]\noutput = 'x'", "both or neither of a.input and a.exec"),
        ("[a]\ninput = 'x'\nexec = 'y'", "both or neither"),
        ("[a]\ninput = 'x'\nsessions = 0", "a.sessions = 0"),
        ("[a]\nexec = 'x'\npayload_out = 'y'", "a.payload_out, which goes with"),
        ("[a]\nexec = 'x'\nsame_input_again = true", "a.same_input_again, which"),
    ],
)
def test_a_file_of_tasks_that_cannot_work_is_refused(tmp_path, text, fault):
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    with pytest.raises(secagg.ServiceError, match=fault) as caught:
        read_tasks(path)
    assert caught.value.code is secagg.ErrorCode.BAD_SETTINGS
    assert caught.value.next_step
    with pytest.raises(secagg.ServiceError, match="cannot read"):
        read_tasks(tmp_path / "none.toml")


async def test_a_task_that_fails_leaves_the_others(capsys):
    ended = asyncio.Event()

    async def give(number, output):
        if number == 0:
            raise secagg.InputError("no file", next_step="Look.")
        output.line("at work")
        ended.set()
        return {"sessions": [number]}

    with pytest.raises(secagg.InputError, match="no file"):
        await give_to_all(["flu", "beds"], give, Output(as_json=True))
    said = capsys.readouterr().err
    assert "flu: ended: no file" in said
    assert "beds: at work" in said
    assert ended.is_set()

    async def good(number, _):
        return {"sessions": [number]}

    given = await give_to_all(["flu", "beds"], good, Output(as_json=True))
    assert json.dumps(given) == '{"flu": {"sessions": [0]}, "beds": {"sessions": [1]}}'


CLIENT = """
[client]
server = "127.0.0.1:1"
task = "flu"
state_dir = "state"

[tls]
ca = "ca.pem"
certificate = "client.pem"
key = "client.key"

[policy]
data = "wards"
total_epsilon = 20.0
total_delta = 1e-4
max_epsilon = 8.0
max_delta = 1e-5
"""
TASKS = """
[flu]
input = "x.npy"
output = "flu.npy"

["beds/north"]
exec = "python made.py {vector}"
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.toml").write_text(CLIENT)
    (tmp_path / "tasks.toml").write_text(TASKS)
    return load_client_settings(tmp_path / "client.toml", environment={}).settings


def test_each_task_has_a_state_of_its_own_and_all_one_total(settings, tmp_path):
    given = read_tasks(tmp_path / "tasks.toml")
    own = [settings_of_task(settings, *each) for each in given.items()]
    assert [one.client.task for one in own] == ["flu", "beds/north"]
    places = [one.client.state_dir.relative_to(tmp_path) for one in own]
    assert [str(place) for place in places] == [
        "state/tasks/flu",
        "state/tasks/beds%2Fnorth",
    ]
    assert {one.policy.data_dir for one in own} == {tmp_path / "state" / "data"}
    marked = replace(settings.client, rollback_mark=tmp_path / "mark")
    with pytest.raises(secagg.ServiceError, match="is one file, and each task"):
        settings_of_task(replace(settings, client=marked), *next(iter(given.items())))


def test_no_task_has_its_budget_again_with_or_without_a_file_of_tasks(
    settings, tmp_path, capsys
):
    given = GivenInput(None, "x {vector}")
    for name in ("..", ".", "x" * 256, "\u00e9" * 128):
        place = settings_of_task(settings, name, given).client.state_dir
        assert place.resolve().parent == tmp_path / "state" / "tasks"
        place.mkdir(parents=True)
    assert settings_of_inputs(settings, given, {}) == [(settings, given)]
    settings_of_task(settings, "flu", given).client.state_dir.mkdir()
    words = ["client", "--config", "client.toml"]
    assert main([*words, "--input", "x.npy"]) == 72
    assert "started by --tasks, and the budgets" in capsys.readouterr().err
    (tmp_path / "state" / "store.sqlite3").touch()
    assert main([*words, "--tasks", "tasks.toml"]) == 72
    assert "started without --tasks, and the budgets" in capsys.readouterr().err


async def test_one_client_gives_to_two_tasks_side_by_side(
    settings, tmp_path, monkeypatch
):
    (tmp_path / "made.py").write_text(
        "import sys, numpy; numpy.save(sys.argv[1], numpy.full(2, 0.5))"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    np.save(tmp_path / "x.npy", np.ones(2))
    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    plan = secagg.plan(
        clients=3,
        dimension=2,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )
    given = read_tasks(tmp_path / "tasks.toml")
    async with secagg.Server(None) as server:
        running = {name: await server.add_task(name, plan) for name in given}

        def client_of(settings, **_):
            return secagg.Client(
                server.connection("a"),
                task=settings.client.task,
                privacy_limits=limits,
                state_dir=settings.client.state_dir,
                rollback_mark=tmp_path / f"mark-{settings.client.state_dir.name}",
            )

        monkeypatch.setattr(program, "client_of", client_of)
        own = [settings_of_task(settings, *each) for each in given.items()]

        def give(number, output):
            each = list(given.values())[number]
            source = source_of(own[number], each, exec_seconds=None, exec_env=())
            return command._give(
                own[number],
                source,
                command._Files.of_input(each),
                output,
                accept_restored=False,
                service=False,
                renewal=None,
            )

        async def other(name, task):
            async with secagg.Client(
                server.connection(name), task=task, privacy_limits=limits
            ) as one:
                await one.contribute([0.0, 0.0])

        said, *_ = await asyncio.gather(
            give_to_all(list(given), give, Output(as_json=True)),
            *(other(name, task) for name in "bc" for task in given),
            *(one.next_sum() for one in running.values()),
        )
        for one in running.values():
            one.take()
    sessions = [said[name]["sessions"] for name in given]
    assert [[each["replaced"] for each in one] for one in sessions] == [[None], [None]]
    assert (tmp_path / "flu.npy").exists()
    assert not list((tmp_path / "state").rglob("inputs/*"))


async def test_a_client_that_is_stopped_leaves_no_program_behind(
    settings, tmp_path, monkeypatch
):
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    script = tmp_path / "hangs.py"
    script.write_text(f"alive = open({str(pipe)!r}, 'wb')\nwhile True: pass")
    given = GivenInput(None, f"{sys.executable} {script} {{vector}}")
    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    plan = secagg.plan(
        clients=3,
        dimension=2,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )
    async with secagg.Server(None) as server:
        await server.add_task("flu", plan)

        def client(name):
            return secagg.Client(
                server.connection(name), task="flu", privacy_limits=limits
            )

        async def other(name):
            async with client(name) as one:
                await one.contribute([0.0, 0.0])

        monkeypatch.setattr(program, "client_of", lambda *_, **__: client("a"))
        giving = asyncio.create_task(
            command._give(
                settings,
                source_of(settings, given, exec_seconds=None, exec_env=()),
                command._Files.of_input(given),
                Output(as_json=True),
                accept_restored=False,
                service=False,
                renewal=None,
            )
        )
        others = [asyncio.create_task(other(name)) for name in "bc"]
        with await asyncio.to_thread(pipe.open, "rb") as alive:
            giving.cancel()
            await asyncio.wait({giving})
            ready, _, _ = select.select([alive], [], [], 30.0)
            assert ready
            assert alive.read(1) == b""
        for one in others:
            one.cancel()
        await asyncio.wait(others)
