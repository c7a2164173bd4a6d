"""The table of rules and entries has no empty cell and no rule without a row."""

import re
import tomllib
from pathlib import Path

from tests.cases import each_of
from tests.rules.breaches import BREACHES
from tests.rules.page import rules_page

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "tests/architecture/rules.toml").read_text())
ENTRIES = TABLE.pop("entries")
OPENED_BY = TABLE.pop("opened_by")
ROWS = [
    (party, name, row) for party, rows in TABLE.items() for name, row in rows.items()
]
CELLS = [
    (f"{party}.{name}.{entry}", row.get(entry, ""))
    for party, name, row in ROWS
    for entry in ENTRIES[party]
]
RULE = re.compile(r"\bR\d+(?:\.\d+)?-\d+\b")
RANGE = re.compile(r"\b(R\d+(?:\.\d+)?)-(\d+) to (?:\1-)?(\d+)\b")
STATED = re.compile(r"^(?:\| )?(R\d+(?:\.\d+)?-\d+)(?:\.| \|)", re.MULTILINE)
# Judged by the state machines, whatever the entry: one row.
CORE = ("protocol", "crypto", "wire")


def rules_in(text):
    found = set(RULE.findall(text))
    for section, first, last in RANGE.findall(text):
        found |= {f"{section}-{n}" for n in range(int(first), int(last) + 1)}
    return found


def rule_of(name):
    """Return the id that a row is named after; None for a promise without an id."""
    found = re.match(r"R\d+(?:_\d+)+", name)
    if found is None:
        return None
    section, _, number = found[0].rpartition("_")
    return f"{section.replace('_', '.')}-{number}"


def test_each_party_has_rows_for_its_own_entries_only():
    assert set(ENTRIES) == set(TABLE)
    for party, _, row in ROWS:
        assert set(row) - {"title", "rules"} <= set(ENTRIES[party])
        assert row["title"]


@each_of(CELLS, name=lambda each: each[0])
def test_a_cell_is_a_breach_a_test_or_an_exemption(each):
    cell, words = each
    kind, _, what = words.partition(": ")
    assert what.strip(), f"{cell} is empty"
    match kind:
        case "breach":
            assert what in BREACHES
        case "test":
            path, _, name = what.partition("::")
            text = (ROOT / "tests" / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)
        case _:
            assert kind == "exempt"


def test_every_module_that_opens_a_client_state_belongs_to_an_entry():
    opens = re.compile(
        r"^ *from secagg\.client\.(?:step_client|durable_client) import"
        r"(?! (\w+) as \1$)",  # that states a public name
        re.MULTILINE,
    )
    found = {
        str(path.relative_to(ROOT / "secagg"))
        for path in (ROOT / "secagg").rglob("*.py")
        if opens.search(path.read_text())
    }
    assert found == set(OPENED_BY)
    entries = {f"{party}.{one}" for party, each in ENTRIES.items() for one in each}
    for behind in OPENED_BY.values():
        assert set(behind.split(", ")) <= entries


def test_every_breach_has_a_cell():
    named = {words.partition(": ")[2] for _, words in CELLS}
    assert set(BREACHES) - named == set()


def test_every_rule_of_the_protocol_is_in_the_core_or_has_a_row():
    stated = set(STATED.findall((ROOT / "protos/PROTOCOL.md").read_text()))
    core = set()
    for path in (ROOT / "secagg").rglob("*.py"):
        if path.relative_to(ROOT / "secagg").parts[0] in CORE:
            core |= rules_in(path.read_text())
    rows = {rule for _, name, _ in ROWS if (rule := rule_of(name)) is not None}
    rows |= {rule for _, _, row in ROWS for rule in row.get("rules", ())}
    assert rows <= stated
    assert stated - core - rows == set()


def test_every_rule_checked_by_the_verifier_has_a_row_of_the_verifier():
    text = (ROOT / "protos/PROTOCOL.md").read_text()
    steps = text.split("R5.8-1. ")[1].split("R5.8-2. ")[0]
    checked = {
        rule for line in steps.splitlines() if "|" in line for rule in rules_in(line)
    }
    rows = {rule_of(name) for party, name, _ in ROWS if party == "verifier"}
    rows |= {
        rule
        for party, _, row in ROWS
        if party == "verifier"
        for rule in row.get("rules", ())
    }
    assert checked - rows == set()


def test_the_page_matches_the_table():
    assert (ROOT / "docs/rules.md").read_text() == rules_page()
