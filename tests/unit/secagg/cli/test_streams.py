"""What becomes of a command whose output goes nowhere."""

import json
import os
import sys
from itertools import product

import pytest

from secagg.cli import main
from secagg.cli.output import Output

GRAPH = [
    *("graph", "--clients", "100", "--corrupt", "0.1", "--dropout", "0.1"),
    *("--sigma", "40", "--eta", "30", "--adversary", "curious"),
]
COMMANDS = [GRAPH, [*GRAPH, "--json"], ["--help"], ["--version"]]


@pytest.fixture
def full():
    """A disk without room."""
    with open("/dev/full", "w", encoding="utf-8") as stream:  # noqa: PTH123 - a device
        yield stream


@pytest.fixture
def unread():
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield stream


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_full_disk_under_standard_output_is_reported(
    command, full, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdout", full)
    assert main(command) == 55
    said = capsys.readouterr().err
    assert "error 55 (STORAGE_FAILED): standard output cannot be written" in said
    assert "No space left" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_closed_pipe_ends_the_command_without_an_error_text(
    command, unread, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdout", unread)
    assert main(command) == 141
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "error" not in said


@pytest.mark.parametrize("where", ["full", "unread"])
def test_a_service_continues_if_its_output_fails(where, request, monkeypatch):
    monkeypatch.setattr(sys, "stdout", request.getfixturevalue(where))
    output = Output(as_json=False, is_aside=True)
    for _ in range(3):
        output.line("joined")
        output.pairs([("a", "b")])


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_works_without_standard_streams(command, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(command) == 0
    for stream in (sys.stdout, sys.stderr):
        stream.close()


FAILURES = [(["nonsense"], 2), (["sessions", "verify", "/nowhere"], 72)]


@pytest.mark.parametrize(
    "case",
    list(product(FAILURES, ("full", "unread"), ("stdout", "stderr"))),
    ids=str,
)
def test_a_failure_keeps_its_exit_code_if_a_stream_fails(
    case, request, monkeypatch, capsys
):
    (command, code), where, stream = case
    monkeypatch.setattr(sys, stream, request.getfixturevalue(where))
    assert main([*command, "--json"]) == code
    said = capsys.readouterr()
    if stream == "stdout":
        assert said.err.startswith("error")
        assert "Traceback" not in said.err
    else:
        assert json.loads(said.out)["error"]["exit_code"] == code


@pytest.mark.parametrize("where", ["full", "unread"])
def test_json_is_printed_even_if_standard_error_fails(
    where, request, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stderr", request.getfixturevalue(where))
    assert main([*GRAPH, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"] == "harary"
