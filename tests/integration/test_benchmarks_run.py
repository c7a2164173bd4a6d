"""No benchmark has rotted: all run at tiny sizes.  What they measure is not judged."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "run.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_every_benchmark_runs_and_prints_results_beside_a_baseline():
    finished = run("--tiny")
    assert finished.returncode == 0, finished.stderr
    results = [json.loads(line) for line in finished.stdout.splitlines()]
    # The part of a name before the stroke is its hot path.
    paths = {result["name"].split("/")[0] for result in results}
    assert paths >= {"masks", "shamir", "packing", "keys", "noise", "rotation"}
    for result in results:
        assert result["value"] >= 0
        assert result["ratio"] >= 0
        assert result["baseline"]
    # People read the same in columns, below what gRPC has to say.
    heading, *rows = finished.stderr.splitlines()[-len(results) - 1 :]
    assert heading.split() == ["what", "sizes", "measured", "speed", "promise"]
    for row, each in zip(rows, results, strict=True):
        assert row.startswith(each["name"] + " ")


def test_an_unknown_benchmark_is_refused_and_the_known_ones_are_named():
    finished = run("--tiny", "mask")
    assert finished.returncode == 2
    assert "masks" in finished.stderr
    assert "shamir" in finished.stderr
