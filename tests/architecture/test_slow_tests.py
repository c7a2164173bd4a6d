"""The list of slow tests names tests that exist, and what stands for each of them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = tomllib.loads((ROOT / "tests" / "slow.toml").read_text())
MATRICES = SLOW.pop("matrices")


def file_of(node):
    return node.partition("::")[0]


def test_every_slow_test_exists_and_is_not_in_the_default_suite(collected_tests):
    """Of all files that this run has collected: the whole list in a whole run."""
    files = {file_of(node) for node in collected_tests}
    for node in (node for node in SLOW if file_of(node) in files):
        found = [
            slow for each, slow in collected_tests.items() if each.startswith(node)
        ]
        assert found, node
        assert all(found), node


def test_every_matrix_exists_and_has_cells_in_the_default_suite(collected_tests):
    files = {file_of(node) for node in collected_tests}
    for node in (node for node in MATRICES if file_of(node) in files):
        cells = [
            is_slow
            for each, is_slow in collected_tests.items()
            if node in {each.partition("[")[0], file_of(each)}
        ]
        assert True in cells, node
        assert False in cells, node


def test_the_substitutes_named_for_slow_tests_exist():
    for node, instead in [*SLOW.items(), *((n, m["why"]) for n, m in MATRICES.items())]:
        assert (ROOT / file_of(node)).exists(), node
        for place in re.findall(r"[\w/]+\.py", instead):
            assert (ROOT / "tests" / place).exists(), (node, place)
