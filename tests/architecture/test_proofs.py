"""What is claimed names what it rests on: a theorem on a page or an existing test."""

import ast
import re
from pathlib import Path

import pytest

from dpnoise.accounting import Proof, accountant_names
from dpnoise.accounting.catalogue import accountant_class

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text()
OWN = (ROOT / "docs" / "own-theorems.md").read_text()
THEOREMS = set(
    re.findall(
        r"^(?:## \d+ |\*\*)((?:Theorem|Lemma) \d'?)",
        (ROOT / "docs" / "security-proofs.md").read_text(),
        re.MULTILINE,
    )
)
"""Those that stand on the page, such as Theorem 2 and Lemma 1'."""


def rows_of(text, head):
    """Cells of the rows of the table below a heading row that begins so."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith(head))
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


CLAIMS = list(rows_of(SECURITY, "| Claim |"))
GROUNDS = list(rows_of(SECURITY, "| Rests |"))


def names_in(path):
    """Top-level names of a test module."""
    tree = ast.parse(path.read_text())
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, functions)}


def missing_grounds(grounds):
    """Say which of the theorems and tests that a cell names do not exist, or both."""
    named = set(re.findall(r"(?:Theorem|Lemma) \d'?", grounds))
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", grounds)
    missing = [f"{each} is on no page" for each in sorted(named - THEOREMS)]
    for path, name in tests:
        file = ROOT / "tests" / path
        if not file.exists() or name not in names_in(file):
            missing.append(f"{path}::{name} does not exist")
    if not named and not tests:
        missing.append("neither a theorem nor a test is named")
    return missing


def test_the_page_of_proofs_has_its_theorems():
    assert {f"Theorem {number}" for number in (1, 2, 3)} <= THEOREMS
    assert {"Lemma 1", "Lemma 1'", "Lemma 2", "Lemma 3"} <= THEOREMS


def test_every_claim_of_the_security_page_has_its_proof_in_the_same_order():
    assert all(len(row) == 4 for row in CLAIMS)
    assert len(CLAIMS) == len(GROUNDS)
    for (claim, *_), (short, _) in zip(CLAIMS, GROUNDS, strict=True):
        assert claim.startswith(short)


@pytest.mark.parametrize("row", GROUNDS, ids=[short for short, _ in GROUNDS])
def test_every_yes_of_the_security_page_names_a_theorem_or_a_test(row):
    assert not missing_grounds(row[1])


@pytest.mark.parametrize(
    ("grounds", "complaint"),
    [
        ("the masks", "neither a theorem nor a test"),
        ("Theorem 7", "Theorem 7 is on no page"),
        ("`hostile/test_split_views.py::test_none`", "does not exist"),
        ("Theorem 2, `hostile/test_nothing.py::test_none`", "does not exist"),
    ],
)
def test_a_missing_proof_reference_is_detected(grounds, complaint):
    assert any(complaint in each for each in missing_grounds(grounds))


def test_the_page_lists_all_own_accountants_and_no_published_one():
    listed = [row[0].strip("`") for row in rows_of(OWN, "| Accountant |")]
    own = [
        name
        for name in accountant_names()
        if accountant_class(name).proof_of_theorem is Proof.OWN
    ]
    assert sorted(listed) == sorted(own)


@pytest.mark.parametrize("head", ["| Accountant |", "| Theorem |", "| Statement |"])
def test_every_own_theorem_states_its_proof_dates_and_readers(head):
    for row in rows_of(OWN, head):
        *_, proof, dates, readers, gaps = row
        files = re.findall(r"\]\(([^)#]+)", proof)
        assert files
        assert all((ROOT / "docs" / file).exists() for file in files)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d, \d{4}-\d\d-\d\d", dates)
        assert re.search(r"line by line|structure|author", readers)
        assert gaps
