"""What is written about the protocol is in step with the code."""

import re
from pathlib import Path

from secagg.errors import ErrorCode
from secagg.protocol.diagrams import state_diagrams

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "protos" / "PROTOCOL.md").read_text()


def test_the_state_diagrams_are_those_of_the_tables():
    assert (ROOT / "docs" / "states.md").read_text() == state_diagrams()


def test_every_abort_code_is_in_the_specification_with_its_number():
    section = PROTOCOL.split("## 9 Abort codes")[1].split("## 10")[0]
    written = {
        name: int(number)
        for number, name in re.findall(r"(\d+) ([A-Z][A-Z0-9_]+)", section)
    }
    assert written == {code.name: code.value for code in ErrorCode if code < 40}


def test_every_section_that_the_code_cites_exists():
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?) ", PROTOCOL, re.MULTILINE))
    missing = {
        f"{path.relative_to(ROOT)}: §{cited}"
        for folder in ("secagg", "protos", "docs", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".proto", ".md"} and "v1" not in path.parts[:-2]
        for cited in re.findall(r"PROTOCOL §(\d+(?:\.\d+)?)", path.read_text())
        if cited not in sections
    }
    assert not missing


RULE = re.compile(r"\bR\d+(?:\.\d+)?-\d+\b")
# Where the text states a rule, and not only refers to it: at the start of a line or
# of a row, or in brackets before a clause.
STATED = re.compile(
    r"^(?:\| )?(R\d+(?:\.\d+)?-\d+)(?:\.| \|)|\((R[\d.]+-\d+)\) ", re.MULTILINE
)


def stated_rules():
    return [one or other for one, other in STATED.findall(PROTOCOL)]


def test_every_rule_that_anybody_cites_is_in_the_specification():
    known = set(stated_rules())
    missing = {
        f"{path.relative_to(ROOT)}: {cited}"
        for folder in ("secagg", "protos", "docs", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".proto", ".md"}
        for cited in RULE.findall(path.read_text())
        if cited not in known
    }
    assert known
    assert not missing


def test_every_must_belongs_to_a_rule():
    """A line that demands something has a name, or stands in a row that has one."""
    nameless = [
        line
        for line in PROTOCOL.splitlines()
        if re.search(r"\bMUST\b", line)
        and not RULE.search(line)
        and "RFC 2119" not in line
    ]
    assert nameless == []
