"""One aggregator, many tasks, as an operator runs it: processes, commands, kill -9."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
from secagg_testing.programs import TIMEOUT_SECONDS, Programs

from secagg.cli import main
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT

EXAMPLE = Path(__file__).parents[2] / "examples" / "sum_of_vectors"
TASK = f"""
[task]
id = "%s"
steps = 3
[vector]
dimension = 16
modulus_bits = 32
[cohort]
min_clients = 2
max_clients = 2
min_survivors = 2
[noise]
none = "{NO_NOISE_ACKNOWLEDGEMENT}"
"""


class Site(Programs):
    """A machine with an aggregator, its operator and two clients."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {"XDG_STATE_HOME": str(directory / "marks")})
        self.address = "127.0.0.1:0"
        shutil.copy(EXAMPLE / "client.toml", directory)
        (directory / "tasks.d").mkdir()
        (directory / "tasks.d" / "second.toml").write_text(TASK % "second")
        (directory / "third.toml").write_text(TASK % "third")
        self._write_settings()
        authority = CertificateAuthority.create()
        authority.issue_all(directory / "pki", hosts=["127.0.0.1"], clients=2)
        for number in (1, 2):
            np.save(directory / f"n-{number}.npy", np.full(16, number))

    def _write_settings(self) -> None:
        host = f"""
[server]
listen = "{self.address}"
state_dir = "server-state"
tasks_dir = "tasks.d"
metrics_listen = "127.0.0.1:0"
page_listen = "127.0.0.1:0"
log_format = "json"
log_level = "info"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
"""
        (self.directory / "server.toml").write_text(host + TASK % "first")

    def serve(self) -> subprocess.Popen:
        process = self.start("server", "--config", "server.toml")
        self.places, said = [], []
        for line in process.stdout:
            said.append(line)
            if " at http://" in line:
                self.places.append(line.split(" at ")[1].strip())
            if "listening on " in line:
                self.address = line.split("listening on ")[1].strip()
                self._write_settings()  # the next process takes the same port
                return process
        raise AssertionError(f"the server ended: {said}")

    def give(self, task: str) -> list[subprocess.Popen]:
        return [
            self.start(
                *("client", "--config", "client.toml", "--input", f"n-{number}.npy"),
                *(
                    f"--set={item}"
                    for item in (
                        f"client.server={self.address}",
                        f"client.task={task}",
                        f"client.state_dir=client-{number}-{task}",
                        f"tls.certificate=pki/client-{number}.pem",
                        f"tls.key=pki/client-{number}.key",
                        "policy.require_noise=false",
                        "policy.min_clients=2",
                        "policy.min_survivors=2",
                    )
                ),
            )
            for number in (1, 2)
        ]


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path) as site:
        yield site


@pytest.fixture
def run_command(site, capsys, monkeypatch):
    """Run an operator's command in this process; return its last line."""
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    config = str(site.directory / "server.toml")

    def run(*words):
        assert main([*words, "--config", config, "--json"]) == 0, capsys.readouterr()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def finished(processes):
    for process in processes:
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, output


def until_sums(run_command, **wanted):
    """Ask until each task has so many sums; return what was said then."""
    while True:
        tasks = run_command("tasks", "list")["tasks"]
        sums = {each["task"]: each["sums"] for each in tasks}
        if sums == wanted:
            return tasks


def facts_of(tasks):
    """What does not depend on a session that is just being opened."""
    hidden = {"running", "sessions_opened"}
    return [{k: v for k, v in each.items() if k not in hidden} for each in tasks]


def test_tasks_survive_kill_9_and_every_view_agrees_on_them(site, run_command):
    server = site.serve()
    assert (
        run_command("tasks", "add", str(site.directory / "third.toml"))["version"] == 1
    )
    clients = site.give("first") + site.give("third")
    finished(clients)
    until_sums(run_command, first=1, second=0, third=1)
    scraped, page = (httpx.get(place).text for place in site.places)
    assert 'secagg_sessions_total{outcome="released",task="third"} 1.0' in scraped
    assert re.search(r">third</td><td[^>]*><b[^>]*>running<", page)
    shown = run_command("sessions", "show", "1", "--task", "third")
    assert shown["report"]["counts"]["in_the_sum"] == 2
    stopped = run_command("tasks", "stop", "second", "--reason", "enough")
    assert (stopped["state"], stopped["reason"]) == ("stopped", "enough")
    assert run_command("tasks", "pause", "third")["state"] == "paused"

    server.send_signal(signal.SIGKILL)
    server.wait(TIMEOUT_SECONDS)
    # The store of a dead aggregator says what was said, and the socket is dead too.
    dead = run_command("status")
    assert dead["server"]["is_running"] is False
    states = {each["task"]: each["state"] for each in dead["tasks"]}
    assert states == {"first": "running", "second": "stopped", "third": "paused"}
    assert run_command("tasks", "list")["tasks"] == dead["tasks"]
    listed = run_command("sessions", "list", "--outcome", "released")["sessions"]
    assert sorted(each["task"] for each in listed) == ["first", "third"]

    server = site.serve()
    alive = run_command("status")
    assert alive["server"]["address"] == site.address
    assert facts_of(alive["tasks"]) == facts_of(dead["tasks"])
    assert facts_of(run_command("tasks", "list")["tasks"]) == facts_of(alive["tasks"])
    page = httpx.get(site.places[1]).text
    for task, state in states.items():
        assert re.search(rf">{task}</td><td[^>]*><b[^>]*>{state}<", page)
        shown = run_command("tasks", "show", task)
        assert (shown["state"], shown["sums"]) == (state, task != "second")
    run_command("tasks", "resume", "third")
    finished(site.give("third"))
    until_sums(run_command, first=1, second=0, third=2)
    assert run_command("drain", "--finish")["draining"]
    output, _ = server.communicate(timeout=TIMEOUT_SECONDS)
    assert server.returncode == 0, output
    # Nothing is lost, and nothing was summed twice.
    for folder in (".", "third"):
        for number in (1, 2, 3):
            path = site.directory / "sums" / folder / f"sum-{number}.npy"
            if path.exists():
                np.testing.assert_array_equal(np.load(path), np.full(16, 3))
    tasks = {each["task"]: each for each in run_command("tasks", "list")["tasks"]}
    assert {name: each["sums"] for name, each in tasks.items()} == {
        "first": 1,
        "second": 0,
        "third": 2,
    }
    files = sorted(
        str(path.relative_to(site.directory / "sums"))
        for path in (site.directory / "sums").rglob("sum-*.npy")
    )
    assert len(files) == 3, files
