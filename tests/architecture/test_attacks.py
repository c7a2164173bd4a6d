"""The catalogue of attacks names tests and rules that exist."""

import ast
import re
from pathlib import Path

import pytest

from secagg.conformance import read_vectors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "attacks.md").read_text()
ROWS = re.findall(r"^\| (A\d+[a-z]?) \|(.*)\|([^|]*)\|$", PAGE, re.MULTILINE)


def names_in(path):
    """Top-level names of a test module."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_attacks_are_numbered_without_a_gap():
    plain = [number for number, _, _ in ROWS if number[-1].isdigit()]
    assert plain == [f"A{place}" for place in range(1, len(plain) + 1)]


@pytest.mark.parametrize("row", ROWS, ids=[number for number, _, _ in ROWS])
def test_every_attack_has_a_test_or_is_not_defended(row):
    _, what, tests = row
    cited = re.findall(r"`([^`]+)::([^`]+)`", tests)
    vectors = re.findall(r"vectors (R[\d.]+-\d+)", tests)
    if not cited and not vectors:
        assert tests.strip() == "–"
        assert "**no**" in what
    for path, name in cited:
        assert name in names_in(ROOT / "tests" / path)
    refusals = read_vectors("refusals")
    cases = [*refusals["client"], *refusals["endings"], *refusals["server"]]
    refused = {case["rule"] for case in cases}
    assert set(vectors) <= refused


def test_every_cell_of_the_claims_table_is_filled():
    """A cell says yes, no or how far; it is never empty."""
    assert all(all(cell.strip() for cell in what.split("|")) for _, what, _ in ROWS)
