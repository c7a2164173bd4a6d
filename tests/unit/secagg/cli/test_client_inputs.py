"""What `secagg client` may be told to give, and to how many tasks."""

import asyncio
import json
import os
import select
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import secagg
from secagg.cli import client as command
from secagg.cli import main
from secagg.cli.client_inputs import (
    GivenInput,
    _files_of,
    read_tasks,
    run_all,
    settings_of_inputs,
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
def test_an_invalid_tasks_file_is_rejected(tmp_path, text, fault):
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    with pytest.raises(secagg.ServiceError, match=fault) as caught:
        read_tasks(path)
    assert caught.value.code is secagg.ErrorCode.BAD_SETTINGS
    assert caught.value.next_step
    with pytest.raises(secagg.ServiceError, match="cannot read"):
        read_tasks(tmp_path / "none.toml")


async def test_a_failed_task_does_not_stop_the_others(capsys):
    ended = asyncio.Event()

    async def give(number, output):
        if number == 0:
            raise secagg.InputError("no file", next_step="Look.")
        output.line("at work")
        ended.set()
        return {"sessions": [number]}

    with pytest.raises(secagg.InputError, match="no file"):
        await run_all(["flu", "beds"], give, Output(as_json=True))
    said = capsys.readouterr().err
    assert "flu: ended: no file" in said
    assert "beds: at work" in said
    assert ended.is_set()

    async def good(number, _):
        return {"sessions": [number]}

    given = await run_all(["flu", "beds"], good, Output(as_json=True))
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
ME = SimpleNamespace(name="a", trust_domain="tests")
TASKS = """
[flu]
input = "x.npy"
output = "flu.npy"

["beds/north"]
exec = "python made.py {vector}"
"""


@pytest.fixture(scope="module")
def plan():
    return secagg.plan(
        clients=3,
        dimension=2,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.toml").write_text(CLIENT)
    (tmp_path / "tasks.toml").write_text(TASKS)
    return load_client_settings(tmp_path / "client.toml", environment={}).settings


def test_a_client_of_several_tasks_shares_one_state(settings, tmp_path):
    given = read_tasks(tmp_path / "tasks.toml")
    given["beds/north"] = replace(given["beds/north"], sessions=7)
    own = settings_of_inputs(settings, GivenInput(None, None), given)
    assert [one.client.task for one, _ in own] == ["flu", "beds/north"]
    assert [one.client.sessions for one, _ in own] == [1, 7]
    assert {one.client.state_dir for one, _ in own} == {tmp_path / "state"}
    assert settings_of_inputs(settings, GivenInput(None, "x"), {}) == [
        (settings, GivenInput(None, "x"))
    ]


@pytest.mark.parametrize("task", ["..", ".", "a/b", "x" * 256, "\u00e9" * 128])
def test_files_of_a_task_stay_below_its_folder(task, tmp_path):
    place = _files_of(tmp_path, task)
    assert place.resolve().parent == tmp_path / "tasks"
    place.mkdir(parents=True)


def test_the_aggregator_of_a_shared_state_has_a_name(settings, monkeypatch):
    monkeypatch.setattr(
        program, "_load_certificate", lambda _: SimpleNamespace(identity=ME)
    )
    with pytest.raises(secagg.ServiceError, match="aggregator is empty") as got:
        program.shared_state_of(settings, ["flu"])
    assert got.value.code is secagg.ErrorCode.BAD_SETTINGS


async def test_one_client_contributes_to_two_tasks_concurrently(
    settings, plan, tmp_path, monkeypatch
):
    (tmp_path / "made.py").write_text(
        "import sys, numpy; numpy.save(sys.argv[1], numpy.full(2, 0.5))"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    np.save(tmp_path / "x.npy", np.ones(2))
    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    named = replace(
        settings.client, aggregator="aggregator", rollback_mark=tmp_path / "mark"
    )
    settings = replace(settings, client=named)
    monkeypatch.setattr(
        program, "_load_certificate", lambda _: SimpleNamespace(identity=ME)
    )
    given = read_tasks(tmp_path / "tasks.toml")
    async with secagg.Server(None) as server:
        running = {name: await server.add_task(name, plan) for name in given}
        own = settings_of_inputs(settings, GivenInput(None, None), given)

        def give(number, output):
            one, each = own[number]

            def client(**more):
                link = server.connection("a")
                task = one.client.task
                return secagg.Client(link, task=task, step_client=shared, **more)

            return command._contribute_to_task(
                one,
                source_of(one, each, exec_seconds=None, exec_env=()),
                command._Files.of_input(each),
                output,
                client,
                service=False,
                renewal=None,
            )

        async def other(name, task):
            async with secagg.Client(
                server.connection(name), task=task, privacy_limits=limits
            ) as one:
                await one.contribute([0.0, 0.0])

        shared = program.shared_state_of(settings, given)
        shared._trust_domain = None  # in one process none is proven
        with shared:
            said, *_ = await asyncio.gather(
                run_all(list(given), give, Output(as_json=True)),
                *(other(name, task) for name in "bc" for task in given),
                *(one.next_sum() for one in running.values()),
            )
            claims = shared.data_use().claims
            assert [shared.sessions_left(task) for task in given] == [0, 0]
        for one in running.values():
            one.take()
    sessions = [said[name]["sessions"] for name in given]
    assert [[each["replaced"] for each in one] for one in sessions] == [[None], [None]]
    assert {claim.task for claim in claims} == {"flu", "beds/north"}
    assert (tmp_path / "flu.npy").exists()
    state = tmp_path / "state"
    assert len(list(state.rglob("store.sqlite3"))) == 1
    assert not list(state.rglob("inputs/*"))
    # The same state serves one task alone, which knows what it has given.
    async with (
        secagg.Server(None) as server,
        secagg.Client(
            server.connection("a"),
            task="flu",
            privacy_limits=limits,
            state_dir=state,
            rollback_mark=tmp_path / "mark",
        ) as one,
    ):
        last = await one.last_part()
    assert (last.session_number, last.inputs) == (1, 3)


async def test_a_stopped_client_terminates_its_input_program(settings, plan, tmp_path):
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    script = tmp_path / "hangs.py"
    script.write_text(f"alive = open({str(pipe)!r}, 'wb')\nwhile True: pass")
    given = GivenInput(None, f"{sys.executable} {script} {{vector}}")
    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    async with secagg.Server(None) as server:
        await server.add_task("flu", plan)

        def client(name):
            return secagg.Client(
                server.connection(name), task="flu", privacy_limits=limits
            )

        async def other(name):
            async with client(name) as one:
                await one.contribute([0.0, 0.0])

        giving = asyncio.create_task(
            command._contribute_to_task(
                settings,
                source_of(settings, given, exec_seconds=None, exec_env=()),
                command._Files.of_input(given),
                Output(as_json=True),
                lambda **_: client("a"),
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


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ("input = 'y.npy'\noutput = 'x.npy'", "[flu] --input"),
        ("input = 'y.npy'\npayload_out = 'x.npy'", "[flu] --input"),
        ("input = 'y.npy'\noutput = './flu.npy'", "[flu] --output"),
        ("input = 'flu.npy'\noutput = 'z.npy'", "[flu] --output"),
        ("input = 'y.npy'\noutput = 'tasks.toml'", "--tasks"),
        ("input = 'y.npy'\noutput = 'state/tasks/flu/s.npy'", "client.state_dir"),
    ],
)
@pytest.mark.usefixtures("settings")
def test_no_task_overwrites_a_file_of_another(tmp_path, capsys, other, names):
    for name in ("x.npy", "y.npy"):
        np.save(tmp_path / name, np.ones(2))
    before = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "tasks.toml").write_text(
        f"[flu]\ninput = 'x.npy'\noutput = 'flu.npy'\n\n[beds]\n{other}\n"
    )
    words = ["client", "--config", "client.toml", "--tasks", "tasks.toml"]
    assert main(words) == 72
    said = capsys.readouterr().err
    assert names in said
    assert "[beds]" in said
    assert main([*words, "--show-settings"]) == 72
    assert (tmp_path / "x.npy").read_bytes() == before


@pytest.mark.usefixtures("settings")
def test_one_vector_can_be_used_for_two_tasks(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones(2))
    one = "input = 'x.npy'\noutput = 'NAME.npy'\n"
    (tmp_path / "tasks.toml").write_text(
        "".join(f"[{name}]\n{one.replace('NAME', name)}" for name in ("flu", "beds"))
    )
    words = ["client", "--config", "client.toml", "--tasks", "tasks.toml"]
    main([*words, "--show-settings"])
    assert "--input" not in capsys.readouterr().err
