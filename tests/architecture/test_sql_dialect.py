"""The SQL of a store is written once: what one engine alone knows is in its folder."""

import ast
import re
from pathlib import Path

import pytest

STORAGE = Path(__file__).parents[2] / "secagg" / "storage"
SHARED = sorted(STORAGE.glob("*.py"))
# A statement begins so.
STATEMENT = re.compile(
    r"\b(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE|PRAGMA)\b",
    re.DOTALL,
)
MAY_HOLD_SQL = {"changes.py", "queries.py", "tables.py"}
# Casts, row locks, functions and types of PostgreSQL; rowid, PRAGMA and `?` of SQLite.
DIALECT = re.compile(
    r"::\w|\bFOR (UPDATE|SHARE)\b|\bOVERRIDING\b|\bpg_|\bunnest\b|\bhashtext\b"
    r"|\bbigint\b|\bbytea\b|\bANY ?\(|\browid\b|\bPRAGMA\b|\bSTRICT\b|\bBLOB\b"
    r"|= ?\?|\?\d|\bILIKE\b|\bRETURNING\b|\bUSING\b|\bclock_timestamp\b"
)


def strings(path):
    """Yield every string of a module that is no docstring."""
    tree = ast.parse(path.read_text())
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in told
        ):
            yield node.value


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.name)
def test_a_shared_module_contains_no_sql_dialect(path):
    found = [text for text in strings(path) if STATEMENT.search(text)]
    if path.name not in MAY_HOLD_SQL:
        assert found == []
        return
    pieces = [text for text in strings(path) if DIALECT.search(text)]
    assert pieces == []


def test_exactly_the_expected_modules_hold_sql():
    found = {
        path.name for path in SHARED for text in strings(path) if STATEMENT.search(text)
    }
    assert found == MAY_HOLD_SQL


@pytest.mark.parametrize("folder", ["sqlite", "postgres"])
def test_the_folders_of_the_engines_hold_dialect(folder):
    """So the test above can fail."""
    texts = [text for path in (STORAGE / folder).glob("*.py") for text in strings(path)]
    assert any(DIALECT.search(text) for text in texts)
