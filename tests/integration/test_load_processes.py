"""A load test in small: an aggregator and a crowd of clients as real processes."""

import json
import os
import subprocess
import sys

KEYS = {
    "exact",
    "clients_completed",
    "server_cpu_ms_per_client",
    "server_peak_rss_bytes",
    "bytes_down_per_client",
    "wall_seconds",
}


def test_the_sum_of_a_crowd_is_exact_and_nothing_is_left_behind(tmp_path):
    words = ["--clients", "8", "--dimension", "50", "--lost", "0.25"]
    done = subprocess.run(
        [sys.executable, "-m", "secagg", "load", *words, "--round-seconds=2", "--json"],
        cwd=tmp_path,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    assert result["exact"] is True
    assert (result["clients_completed"], result["clients_lost"]) == (6, 2)
    assert result["clients_failed"] == 0
    assert result["survivors"] == 6
    # A packed sum of 32 bits an entry and what else a session says.
    assert 200 < result["bytes_down_per_client"] < 20_000
    assert result["server_cpu_seconds"] > 0
    assert not list(tmp_path.iterdir())
