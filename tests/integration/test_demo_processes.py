"""The demo in small: real processes, real pictures, clients killed for real."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("sklearn")

KEYS = {
    "clients",
    "steps",
    "sessions_completed",
    "clients_lost",
    "exact",
    "epsilon",
    "delta",
    "accuracy",
    "baseline_accuracy",
    "nonprivate_accuracy",
    "wall_seconds",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["--profile", "malicious-server"],
        ["--profile", "malicious-server-sparse"],
    ],
    ids=["honest-curious-server", "malicious-server", "malicious-server-sparse"],
)
def test_the_demo_is_exact_with_clients_killed_in_three_rounds(tmp_path, extra):
    words = ["--clients", "10", "--steps", "4", "--round-seconds", "3", *extra]
    done = subprocess.run(
        [sys.executable, "-m", "secagg", "demo", *words, "--json"],
        cwd=tmp_path,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    assert result["exact"] is True
    assert result["profile"] == (extra[1] if extra else "honest-curious-server")
    assert result["clients"] == 10
    assert result["sessions_completed"] == 4
    assert result["clients_lost"] == 3
    assert result["epsilon"] <= 6.0
    # A client killed after its upload is still in the sum; the two others are not.
    assert [each["inputs"] for each in result["sessions"]] == [10, 9, 10, 9]
    assert not list(tmp_path.iterdir())
