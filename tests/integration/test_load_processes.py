"""A load test in small: two aggregators and a client pool as real processes."""

import asyncio
import json

import asyncpg
import pytest
from secagg_testing.programs import Programs

KEYS = {
    "exact",
    "clients_completed",
    "server_cpu_ms_per_client",
    "server_peak_rss_bytes",
    "bytes_down_per_client",
    "wall_seconds",
}


async def empty(url):
    database = await asyncpg.connect(url)
    try:
        await database.execute("DROP SCHEMA IF EXISTS secagg CASCADE")
    finally:
        await database.close()


def test_the_sum_of_a_client_pool_is_exact_and_no_files_remain(postgres_url, tmp_path):
    asyncio.run(empty(postgres_url))
    words = ["--clients=8", "--dimension=50", "--lost=0.25", "--servers=2"]
    words += ["--store", postgres_url]
    programs = Programs(tmp_path, {"TMPDIR": str(tmp_path)})
    done = programs.run("load", *words, "--round-seconds=2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    assert result["exact"] is True
    assert (result["clients_completed"], result["clients_lost"]) == (6, 2)
    assert result["clients_failed"] == 0
    assert result["survivors"] == 6
    # A packed sum of 32 bits an entry and what else a session says.
    assert 200 < result["bytes_down_per_client"] < 20_000
    # Every other client at the second aggregator, whose work is counted with it.
    for server in result["servers"]:
        assert server["bytes_up"] == pytest.approx(
            4 * result["bytes_up_per_client"], 0.3
        )
    cpu = [server["cpu_seconds"] for server in result["servers"]]
    assert result["server_cpu_seconds"] == sum(cpu) > max(cpu) > 0
    assert result["database_cpu_seconds"] is None  # not a server of its own
    assert not list(tmp_path.iterdir())
