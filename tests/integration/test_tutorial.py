"""Every command of the pages for shells runs, and prints what the page shows.

A line `machine$ command` runs in the directory of that machine, one below a directory
of the test's own.  Lines below it are what the command prints: numbers may differ, and
a line of dots stands for any lines.  `secagg server` and `secagg client` are processes;
all other commands of secagg run in this one, which has loaded the libraries already.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from secagg_testing.programs import Programs

from secagg.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["tutorial.md", "train-from-the-shell.md"]
BLOCK = re.compile(r"(?:Save as `([^`]+)`[^\n]*\n\n)?```(\w+)\n(.*?)```", re.DOTALL)
PROMPT = re.compile(r"^([\w-]+)\$ (.*)$")


NUMBER = r"-?\d[\d.]*(?:e[+-]?\d+)?"


def pattern_of(shown):
    """Return what matches lines as shown, whatever their numbers and gaps are."""
    parts = []
    for line in shown.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*?")
            continue
        for part in re.split(rf"({NUMBER})|( +)", line):
            if part is None or not part:
                continue
            if part.isspace():
                parts.append(" *")
            elif re.fullmatch(NUMBER, part):
                parts.append(rf" *{NUMBER} *")  # numpy aligns what it prints
            else:
                parts.append(re.escape(part))
        parts.append(r" *\n")
    return re.compile("".join(parts))


def assert_shown(shown, printed):
    assert pattern_of(shown).match(printed), f"{shown}\n--- is not ---\n{printed}"


def steps(block):
    """Yield (machine, command, what is shown below it)."""
    lines = block.splitlines()
    starts = [at for at, line in enumerate(lines) if PROMPT.match(line)]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        machine, command = PROMPT.match(lines[begin]).groups()
        yield machine, command, "".join(f"{row}\n" for row in lines[begin + 1 : end])


class Machines:
    """Directories that stand for machines, and what runs in them."""

    def __init__(self, programs, capsys, monkeypatch):
        self.programs, self.capsys, self.monkeypatch = programs, capsys, monkeypatch
        self.running = {}
        self.has_clients = False

    def run(self, machine, command, shown):
        place = self.programs.directory / ("" if machine == "laptop" else machine)
        words = shlex.split(command)
        if words[:2] in (["secagg", "server"], ["secagg", "client"]):
            self.start(machine, place, words[1:], shown)
            return
        if self.has_clients:  # until then the server waits for them
            self.finish(machine)
        if words[0] == "secagg":
            self.monkeypatch.chdir(place)
            self.capsys.readouterr()
            assert main(words[1:]) == 0
            said = self.capsys.readouterr()
            printed = said.out + said.err
            assert pattern_of(shown).match(printed) or pattern_of(shown).match(
                said.err + said.out
            ), f"{shown}\n--- is not ---\n{printed}"
            return
        command = re.sub(r"^python ", f"{sys.executable} ", command)
        done = subprocess.run(
            command, shell=True, cwd=place, capture_output=True, text=True, check=True
        )
        assert_shown(shown, done.stdout)

    def start(self, machine, place, words, shown):
        """Start a process, and wait for the last line that is shown of a server."""
        process = self.programs.start(*words, cwd=place)
        said, matches = [], threading.Event()

        def read():
            for line in process.stdout:
                said.append(line)
                if pattern_of(shown).match("".join(said)):
                    matches.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self.running[machine] = process, reader, said, shown
        if words[0] == "server":
            assert matches.wait(60), "".join(said)
        self.has_clients |= words[0] == "client"

    def finish(self, machine):
        """Wait for what runs on a machine, and look at what it has printed."""
        if machine not in self.running:
            return
        process, reader, said, shown = self.running.pop(machine)
        reader.join(60)
        assert process.wait(60) == 0, "".join(said)
        assert "zeros were given" not in "".join(said)
        if shown:
            assert_shown(shown, "".join(said))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_prints_what_the_page_shows(
    page, tmp_path, capsys, monkeypatch, unused_tcp_port
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    port = str(unused_tcp_port)
    # Programs of --exec are found as in an environment that is active.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with Programs(tmp_path, {"PATH": path}) as programs:
        machines = Machines(programs, capsys, monkeypatch)
        printed = ""
        for path, kind, text in BLOCK.findall((DOCS / page).read_text("utf-8")):
            block = text.replace("7400", port)
            if path:
                (tmp_path / path).write_text(block)
            elif kind == "python":
                exec(compile(block, page, "exec"), {})
                printed = capsys.readouterr().out
            elif kind == "text":
                assert_shown(block, printed)
            else:
                for machine, command, shown in steps(block):
                    machines.run(machine, command, shown)
        for machine in list(machines.running):
            machines.finish(machine)


def test_a_shown_line_that_is_not_printed_is_noticed():
    printed = "first  1.5\nsecond\nthird -2\n"
    assert pattern_of("first 2.25\n…\nthird 3\n").match(printed)
    assert pattern_of("…\nthird 3\n").match(printed)
    assert pattern_of("[1.5 -2.5]\n").match("[ 18.1  95. ]\n")
    assert pattern_of("[1.5 -2.5]\n").match("[ 58. -2.00e+01 ]\n")
    assert not pattern_of("first 2\nthird 3\n").match(printed)
    assert not pattern_of("…\nfourth\n").match(printed)
