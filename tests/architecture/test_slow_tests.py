"""The list of slow tests names tests that exist, and what stands for each of them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = tomllib.loads((ROOT / "tests" / "slow.toml").read_text())


def test_every_slow_test_exists_and_is_not_in_the_default_suite():
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    files = sorted({node.partition("::")[0] for node in SLOW})
    ran = subprocess.run(
        [*words, "-m", "slow", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    slow = [line for line in ran.stdout.splitlines() if "::" in line]
    for node in SLOW:
        assert any(line.startswith(node) for line in slow), node
    assert all(line.startswith(tuple(SLOW)) for line in slow)


def test_what_stands_for_a_slow_test_exists():
    for node, instead in SLOW.items():
        for place in re.findall(r"[\w/]+\.py", instead):
            assert (ROOT / "tests" / place).exists(), (node, place)
