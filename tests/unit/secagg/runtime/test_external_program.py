"""Programs of an operator: what they are given, and that none of them stays behind.

A program that is at work holds the writing end of a pipe in the file system, so that
its reader sees the end of the last process that holds it.
"""

import os
import select
import subprocess
import sys
import threading

import pytest

from secagg.errors import InputError, ServiceError
from secagg.runtime.external_program import ExternalProgram, split_command


@pytest.fixture
def pipe(tmp_path):
    """The name of a pipe."""
    path = tmp_path / "alive"
    os.mkfifo(path)
    return path


def is_closed_by_all(reader):
    """Whether no process holds the other end; waits only for one that stays behind."""
    ready, _, _ = select.select([reader], [], [], 30.0)
    return bool(ready) and os.read(reader, 1) == b""


def run(words, directory, *, seconds=60.0, places=None, **facts):
    program = ExternalProgram(words)
    program.run(
        places=places or {},
        facts=facts,
        directory=directory,
        seconds=seconds,
        why="a test",
    )


def shell(script):
    return ["/bin/sh", "-c", script]


def test_a_path_is_passed_as_one_argument(tmp_path):
    place = tmp_path / "it's; touch $HOME/broken 'x'"
    words = split_command(
        "--exec", "/bin/sh -c 'printf %s \"$1\" > out' name {payload}"
    )
    run(words, tmp_path, places={"payload": place})
    assert (tmp_path / "out").read_text() == str(place)


def test_a_program_receives_few_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SECAGG_TLS__KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("WANTED", "yes")
    script = 'env > out; read line; echo "$line" >> out'
    run(shell(script), tmp_path, SECAGG_TASK="flu")
    seen = (tmp_path / "out").read_text()
    assert "secret" not in seen
    assert "WANTED" not in seen
    assert "OMP_NUM_THREADS=3" in seen
    assert "SECAGG_TASK=flu" in seen
    ExternalProgram(shell(script), passed_on=frozenset({"WANTED"})).run(
        places={}, facts={}, directory=tmp_path, seconds=60.0, why=""
    )
    assert "WANTED=yes" in (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            shell("echo no data >&2; exit 3"),
            "ended with the code 3; it printed: no data",
        ),
        (shell("kill -9 $$"), "ended with the code 137"),
        (["./absent"], "could not be run; it printed: it cannot be started: No such"),
        (["a\0b"], r"could not be started \(ValueError\)"),
        (["/"], "could not be run; it printed: it cannot be started: Permission"),
    ],
)
def test_a_failure_quotes_the_output_of_the_program(tmp_path, words, text):
    with pytest.raises(InputError, match=text) as caught:
        run(words, tmp_path)
    assert caught.value.next_step


def test_the_output_of_a_program_is_truncated_and_sanitised(tmp_path):
    with pytest.raises(InputError) as caught:
        run(
            shell("yes 'a line' | head -c 3000000; printf '\\033[2J'; exit 1"), tmp_path
        )
    assert len(str(caught.value)) < 2200
    assert "\x1b" not in str(caught.value)
    run(shell("exec >&- 2>&-"), tmp_path)  # its streams end before it does


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path, pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    script = f"trap '' TERM; sh -c 'exec sleep 600' > {pipe} & wait; sleep 600"
    with pytest.raises(InputError, match=r"ended after 1 seconds: a test"):
        run(shell(script), tmp_path, seconds=1.0)
    assert is_closed_by_all(reader)
    os.close(reader)


def test_children_of_a_successful_program_are_killed(tmp_path, pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run(shell(f"exec 3> {pipe}; sleep 600 & exit 0"), tmp_path)
    assert is_closed_by_all(reader)
    os.close(reader)


def test_a_program_is_killed_when_its_caller_stops(tmp_path, pipe):
    program, failed = ExternalProgram(shell(f"exec 3> {pipe}; sleep 600")), []

    def work():
        try:
            program.run(
                places={}, facts={}, directory=tmp_path, seconds=60.0, why="a test"
            )
        except InputError as error:
            failed.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    with pipe.open("rb") as alive:  # waits until the program holds the other end
        program.stop()
        assert is_closed_by_all(alive.fileno())
    thread.join(60.0)
    assert "because this process stops" in failed[0]
    with pytest.raises(InputError, match="was not started"):
        program.run(places={}, facts={}, directory=tmp_path, seconds=1.0, why="")


CALLER = """
import pathlib, sys
from secagg.runtime.external_program import ExternalProgram
ExternalProgram(["/bin/sh", "-c", sys.argv[1]]).run(
    places={}, facts={}, directory=pathlib.Path("."), seconds=60.0, why=""
)
"""


def test_a_program_is_killed_when_its_caller_is_killed(tmp_path, pipe):
    script = f"exec 3> {pipe}; sleep 600"
    caller = subprocess.Popen([sys.executable, "-c", CALLER, script], cwd=tmp_path)
    with pipe.open("rb") as alive:
        caller.kill()
        caller.wait()
        assert is_closed_by_all(alive.fileno())


def test_a_command_that_cannot_be_split_is_refused():
    for command, text in [("train 'it", "No closing quotation"), ("", "no program")]:
        with pytest.raises(ServiceError, match=text):
            split_command("--exec", command)
