"""Programs that are stopped end as `docs/commands.md` says, and quietly."""

import json
import os
import signal
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.programs import TIMEOUT_SECONDS, Programs

from secagg.cli import main
from secagg.testbed.child_process import child_environment

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture
def start(tmp_path, settings_texts):
    """Starts `secagg` in a process group of its own; leaves nothing behind."""
    assert main(["pki", "init", str(tmp_path / "pki"), "--clients", "1"]) == 0
    for role, text in settings_texts.items():
        (tmp_path / f"{role}.toml").write_text(text)
    np.save(tmp_path / "x.npy", np.zeros(4))
    with Programs(tmp_path) as programs:
        yield programs.start


def read_until(process, text):
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"{text!r} never came:\n{''.join(seen)}")


def stop(process, *numbers):
    """Send signals as a terminal does, to the whole group; return what was said."""
    for number in numbers:
        os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert "Traceback" not in output
    assert "Exception ignored" not in output
    return output


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    ("words", "moment"),
    [
        # Nothing listens on port 1: the client waits for its server.
        (("client", "--config", "client.toml", "--input", "x.npy"), "waiting"),
        (("server", "--config", "server.toml"), "planning"),
        (("simulate", "--clients", "400", "--dimension", "100000"), "will vanish"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_stopped_command_says_so_and_exits_with_the_code_of_the_signal(
    start, words, moment, number
):
    process = start(*words)
    read_until(process, moment)
    output = stop(process, number)
    assert process.returncode == CODES[number], output
    assert f"stopped by {number.name}" in output
    assert "next step" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_listening_server_drains_on_a_signal(start, number):
    process = start("server", "--config", "server.toml")
    read_until(process, "listening on")
    output = stop(process, number)
    assert process.returncode == 0, output
    assert "start again to resume" in output


def test_with_json_the_last_line_names_the_signal(start):
    words = ("client", "--config", "client.toml", "--input", "x.npy", "--json")
    process = start(*words)
    read_until(process, "waiting")
    said = json.loads(stop(process, signal.SIGTERM).splitlines()[-1])
    assert said["error"]["exit_code"] == 143
    assert said["error"]["name"] == "STOPPED"


@contextmanager
def ignored(number):
    """Let what is started now ignore a signal."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_signal_that_was_ignored_at_the_start_stays_ignored(start):
    # As under nohup, which closes the terminal and not the program.
    with ignored(signal.SIGHUP):
        process = start("server", "--config", "server.toml")
    read_until(process, "planning")
    process.send_signal(signal.SIGHUP)
    read_until(process, "listening on")
    stop(process, signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("moment", "numbers", "start_of"),
    [
        # While its aggregator starts, while its clients start, in the midst of it; as a
        # background job of a shell, which lets it ignore SIGINT.  Once or impatiently.
        ("pictures each", [signal.SIGTERM], nullcontext()),
        ("listens on", [signal.SIGINT] * 3, nullcontext()),
        ("step 1", [signal.SIGTERM] * 3, ignored(signal.SIGINT)),
    ],
)
def test_a_demo_that_is_stopped_leaves_neither_processes_nor_keys(
    start, tmp_path, moment, numbers, start_of
):
    pytest.importorskip("sklearn")
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = child_environment({"TMPDIR": str(folder)})
    with start_of:
        demo = start("demo", "--clients", "8", "--steps", "3", env=environment)
    read_until(demo, moment)
    assert list(folder.glob("secagg-demo-*/**/*.key"))
    output = stop(demo, *numbers)
    assert demo.returncode == CODES[numbers[0]], output
    assert f"stopped by {numbers[0].name}" in output
    assert not list(folder.iterdir())
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            running = process.read_bytes()
        except OSError:
            continue  # it has ended since it was listed
        assert str(folder).encode() not in running
