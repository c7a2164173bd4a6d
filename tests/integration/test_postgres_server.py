"""An aggregator whose book is in PostgreSQL, as processes: kill -9, and a successor."""

import asyncio
import json
import os
import subprocess
import sys
import time

import asyncpg
import numpy as np
import pytest

from secagg.cli import main
from secagg.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.transport.certificates import Authority

# Far beyond what is needed: only a hang reaches it.
PATIENCE_SECONDS = 120
SERVER = f"""
[server]
listen = "%s"
state_dir = "server-state"
store = "%s"
keep_seconds = 30
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "one"
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
CLIENT = """
[client]
server = "%s"
task = "one"
state_dir = "state-%d"
[tls]
ca = "pki/ca.pem"
certificate = "pki/client-%d.pem"
key = "pki/client-%d.key"
[policy]
require_noise = false
min_clients = 2
min_survivors = 2
"""


@pytest.fixture
def start(tmp_path):
    started = []
    environment = {
        **{key: value for key, value in os.environ.items() if "SECAGG" not in key},
        "OPENBLAS_NUM_THREADS": "1",
    }

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "secagg", *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


async def fetch(url, query):
    database = await asyncpg.connect(url)
    try:
        return await database.fetchval(query)
    finally:
        await database.close()


def drop(url):
    asyncio.run(fetch(url, "DROP SCHEMA IF EXISTS secagg CASCADE"))


def until(process, words):
    """Read what a process says until these words; return the line."""
    heard = ""
    for line in process.stdout:
        heard += line
        if words in line:
            return line
    raise AssertionError(f"it never said {words!r}: {heard}")


def test_a_killed_aggregator_is_followed_by_one_that_knows_its_sessions(
    postgres_url, tmp_path, start, monkeypatch, capsys
):
    drop(postgres_url)
    authority = Authority.create()
    authority.issued().write(tmp_path / "pki", "ca")
    authority.issue_server("server", ["127.0.0.1"]).write(tmp_path / "pki", "server")
    (tmp_path / "server.toml").write_text(SERVER % ("127.0.0.1:0", postgres_url))
    serving = ("server", "--config", "server.toml", "--until-done")
    first = start(*serving)
    address = until(first, "listening on ").split("listening on ")[1].split()[0]
    (tmp_path / "server.toml").write_text(SERVER % (address, postgres_url))
    clients = []
    for number in (1, 2):
        authority.issue_client(f"client-{number}").write(
            tmp_path / "pki", f"client-{number}"
        )
        np.save(tmp_path / f"n-{number}.npy", np.full(16, number))
        (tmp_path / f"client-{number}.toml").write_text(
            CLIENT % (address, number, number, number)
        )
    give = [
        ("client", "--config", f"client-{number}.toml", "--input", f"n-{number}.npy")
        for number in (1, 2)
    ]
    clients.append(start(*give[0]))
    give_up = time.monotonic() + PATIENCE_SECONDS
    # The first advert is in the book, the round waits for the second.
    while asyncio.run(fetch(postgres_url, "SELECT count(*) FROM secagg.record")) != 1:
        assert time.monotonic() < give_up
    first.kill()
    first.wait()
    second = start(*serving)
    clients.append(start(*give[1]))
    for process in (*clients, second):
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, said
    # The sum of the session that the first one opened, and no other session.
    assert np.array_equal(np.load(tmp_path / "sums" / "sum-1.npy"), np.full(16, 3))
    assert asyncio.run(fetch(postgres_url, "SELECT count(*) FROM secagg.session")) == 1
    assert not (tmp_path / "server-state" / "book.sqlite3").exists()
    # An operator reads the same book when nothing runs.
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for verb in (("status",), ("state", "check")):
        assert main([*verb, "--config", "server.toml", "--json"]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        if verb == ("status",):
            (task,) = said["tasks"]
            assert (task["task"], task["sums"]) == ("one", 1)
        else:
            assert said["ok"]
