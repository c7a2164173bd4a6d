"""No benchmark has rotted: all run at tiny sizes.  What they measure is not checked."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# What a Python with Flower would print; this environment lacks Flower.
FLOWER = """#!{python}
import json
print("a line of a library")
print(json.dumps({{"version": "1.0", "error": {error}, "client_cpu_seconds_mean": 2.0,
    "server_cpu_seconds": 3.0, "bytes_up": 40, "bytes_down": 50}}))
"""


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "run.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def flower_stub(directory, *, error):
    path = directory / "python"
    path.write_text(FLOWER.format(python=sys.executable, error=error))
    path.chmod(0o700)
    return str(path)


def test_every_benchmark_runs_and_prints_results_beside_a_baseline(tmp_path):
    flower = flower_stub(tmp_path, error=1e-6)
    finished = run("--tiny", SECAGG_FLOWER_PYTHON=flower)
    assert finished.returncode == 0, finished.stderr
    results = [json.loads(line) for line in finished.stdout.splitlines()]
    # The part of a name before the stroke is its hot path.
    paths = {result["name"].split("/")[0] for result in results}
    assert paths >= {"masks", "shamir", "packing", "keys", "noise", "rotation"}
    for result in results:
        assert result["value"] >= 0
        assert result["ratio"] >= 0
        assert result["baseline"]
    theirs = {r["name"]: r for r in results if r["baseline"] == "Flower 1.0, SecAgg+"}
    assert theirs["flower/client, Flower"]["value"] == 2000.0
    assert theirs["flower/client, Flower"]["ratio"] == 1.0
    ours = theirs["flower/client, ours"]
    assert ours["ratio"] == pytest.approx(2000.0 / ours["value"], rel=1e-2)
    draw(finished.stdout, tmp_path)
    tabulate(results, tmp_path)
    # People read the same in columns, below what gRPC has to say.
    heading, *rows = finished.stderr.splitlines()[-len(results) - 1 :]
    assert heading.split() == ["what", "sizes", "measured", "speed", "promise"]
    for row, each in zip(rows, results, strict=True):
        assert row.startswith(each["name"] + " ")


def draw(lines, directory):
    """All figures of the lines, one file each."""
    (directory / "lines").write_text(lines)
    pictures = directory / "pictures"
    pictures.mkdir()
    script = ROOT / "benchmarks" / "cost_figures.py"
    subprocess.run(
        [sys.executable, script, directory / "lines", pictures],
        check=True,
        capture_output=True,
    )
    assert sorted(path.name for path in pictures.iterdir()) == [
        "cost_beside_flower.svg",
        "cost_by_clients.svg",
        "cost_by_entries.svg",
        "cost_by_round.svg",
    ]


def tabulate(results, directory):
    """The tables of the page on performance have these lines; nothing else changes."""
    page = directory / "performance.md"
    before = (ROOT / "docs" / "performance.md").read_text()
    page.write_text(before)
    script = ROOT / "benchmarks" / "cost_tables.py"
    command = [sys.executable, script, directory / "lines", page]
    subprocess.run(command, check=True)
    after = page.read_text()
    subprocess.run(command, check=True)
    assert page.read_text() == after
    rows = after.split("\n")
    measured = {each["name"]: each["value"] for each in results}
    up = f"{measured['round share_keys/up']:,.0f}".replace(",", " ")
    # The first of two tables: the other is of one session of 1,000 clients.
    row, _ = [each for each in rows if each.startswith("| share keys | ")]
    assert up in row.split(" | ")
    (row,) = [each for each in rows if each.startswith("| 6 | 64 | 0 | ")]
    assert row.count(" / 2 000 | ") == row.count(" / 3 000 | ") == 1
    timed = re.compile(r"(.*) \| [\d.]+ ms \| [\d.]+ ms \| [\d ]+ \| [\d ]+ \|")
    sizes = [found[1] for found in map(timed.fullmatch, rows) if found]
    rounds = ["advertise keys", "share keys", "masked input"]
    rounds.append("unmasking, the sum included")
    assert sizes == [f"| {each}" for each in ("6", "12", "64", "256", *rounds)]
    assert "Flower 1.0, ours" in after

    def words(text):
        lines = re.sub(r"Flower [\d.]+, ours", "", text).split("\n")
        return [line for line in lines if not re.match(r"\| .*\d \|$", line)]

    assert words(after) == words(before)


def test_a_missing_flower_skips_the_comparison_and_a_wrong_mean_fails_it(tmp_path):
    alone = run("--tiny", "flower", SECAGG_FLOWER_PYTHON="")
    assert alone.returncode == 0
    assert not alone.stdout
    assert "nothing is compared" in alone.stderr
    wrong = flower_stub(tmp_path, error=0.5)
    refused = run("--tiny", "flower", SECAGG_FLOWER_PYTHON=wrong)
    assert refused.returncode == 1
    assert "mean is wrong by 0.5" in refused.stderr


def test_an_unknown_benchmark_is_rejected_with_the_known_names():
    finished = run("--tiny", "mask")
    assert finished.returncode == 2
    assert "masks" in finished.stderr
    assert "shamir" in finished.stderr
