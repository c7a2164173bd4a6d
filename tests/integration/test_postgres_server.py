"""Aggregators whose store is in PostgreSQL, as processes: kill -9 in between."""

import asyncio
import json
import time

import asyncpg
import numpy as np
import pytest
from secagg_testing.programs import TIMEOUT_SECONDS, Programs

from secagg.cli import main
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT

SERVER = f"""
[server]
listen = "%s"
state_dir = "server-%d"
output_dir = "sums-%d"
store = "%s"
blobs = "file:%s"
keep_seconds = 3
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
    with Programs(tmp_path) as programs:
        yield programs.start


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


def test_no_client_notices_a_killed_replica(
    postgres_url, tmp_path, start, monkeypatch, capsys
):
    """Each client knows another replica; the first one dies and comes back."""
    drop(postgres_url)
    authority = CertificateAuthority.create()
    authority.issued().write(tmp_path / "pki", "ca")
    authority.issue_server("server", ["127.0.0.1"]).write(tmp_path / "pki", "server")

    def settings(number, address):
        text = SERVER % (address, number, number, postgres_url, tmp_path / "blobs")
        (tmp_path / f"server-{number}.toml").write_text(text)

    def serve(number):
        return start("server", "--config", f"server-{number}.toml", "--until-done")

    addresses, servers, clients = {}, {}, {}
    for number in (1, 2):
        settings(number, "127.0.0.1:0")
        servers[number] = serve(number)
        line = until(servers[number], "listening on ")
        addresses[number] = line.split("listening on ")[1].split()[0]
        authority.issue_client(f"client-{number}").write(
            tmp_path / "pki", f"client-{number}"
        )
        np.save(tmp_path / f"n-{number}.npy", np.full(16, number))
        (tmp_path / f"client-{number}.toml").write_text(
            CLIENT % (addresses[number], number, number, number)
        )

    def give(number):
        words = ("--config", f"client-{number}.toml", "--input", f"n-{number}.npy")
        clients[number] = start("client", *words)

    give(1)
    give_up = time.monotonic() + TIMEOUT_SECONDS
    # The first advert is in the store, the round waits for the second.
    while asyncio.run(fetch(postgres_url, "SELECT count(*) FROM secagg.record")) != 1:
        assert time.monotonic() < give_up
    servers[1].kill()
    servers[1].wait()
    settings(1, addresses[1])
    give(2)
    servers[1] = serve(1)
    for process in (*clients.values(), *servers.values()):
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, said
    # One session, one sum, written by one of them.
    (total,) = tmp_path.glob("sums-*/sum-1.npy")
    assert np.array_equal(np.load(total), np.full(16, 3))
    assert asyncio.run(fetch(postgres_url, "SELECT count(*) FROM secagg.session")) == 1
    assert not list(tmp_path.glob("server-*/book.sqlite3"))
    # An operator reads the same store when nothing runs.
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for verb in (("status",), ("state", "check")):
        assert main([*verb, "--config", "server-2.toml", "--json"]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        if verb == ("status",):
            (task,) = said["tasks"]
            assert (task["task"], task["sums"]) == ("one", 1)
        else:
            assert said["ok"]
