"""What is written about the protocol is in step with the code."""

import re
from pathlib import Path

from secagg.conformance import read_vectors
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
# "R5.5-1 to R5.5-4" names four rules.
RANGE = re.compile(r"\b(R\d+(?:\.\d+)?)-(\d+) to (?:\1-)?(\d+)\b")
# Where the text states a rule, and not only refers to it: at the start of a line or
# of a row.
STATED = re.compile(r"^(?:\| )?(R\d+(?:\.\d+)?-\d+)(?:\.| \|)", re.MULTILINE)


def stated_rules():
    return set(STATED.findall(PROTOCOL))


def cited_rules(text):
    found = set(RULE.findall(text))
    for section, first, last in RANGE.findall(text):
        found |= {f"{section}-{n}" for n in range(int(first), int(last) + 1)}
    return found


def cited_in(*folders, suffix=".py"):
    return {
        rule
        for folder in folders
        for path in (ROOT / folder).rglob(f"*{suffix}")
        for rule in cited_rules(path.read_text())
    }


def test_every_rule_that_anybody_cites_is_in_the_specification():
    known = stated_rules()
    missing = {
        f"{path.relative_to(ROOT)}: {cited}"
        for folder in ("secagg", "protos", "docs", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".proto", ".md", ".json"}
        for cited in cited_rules(path.read_text())
        if cited not in known
    }
    assert known
    assert not missing


def test_every_rule_is_enforced_by_a_line_that_names_it():
    assert stated_rules() - cited_in("secagg") == set()


def test_every_rule_is_named_by_a_test_that_fails_without_it():
    """A vector that must fail is a test: each names the rule that refuses it."""
    tests = cited_in("tests/unit", "tests/hostile", "tests/property")
    vectors = cited_in("secagg/conformance/vectors", suffix=".json")
    assert stated_rules() - tests - vectors == set()


# No bytes show these: clocks, memory and policy of the client, what an earlier rule
# has refused already, what is done beside the messages.
BEYOND_BYTES = {
    "R5.2-7",  # R3.2-8 and R5.2-2 refuse all of it
    "R5.2-8",  # R3.2-7 and R5.2-2
}


def test_every_check_of_a_client_has_a_vector_that_must_fail():
    rounds = PROTOCOL.split("## 5 Rounds")[1].split("## 6 ")[0]
    checks = {
        rule
        for rule, code in re.findall(
            r"^\| (R5\.[23459]-\d+) \|.*\| ([A-Z0-9_, a-z]+) \|$", rounds, re.MULTILINE
        )
        if code.isupper() or ", " in code
    }
    refused = {
        case["rule"] for case in read_vectors("refusals")["client"] if case["code"]
    }
    assert len(checks) > 20
    assert checks - refused - BEYOND_BYTES == set()


def test_every_abort_code_has_a_vector():
    # Of those that end no session: a complaint says 11, a report says 23.
    codes = {case["reported"] for case in read_vectors("restarts")["noise_reveals"]}
    for row in read_vectors("refusals")["complaints"]:
        codes |= {int(complaint[:4], 16) for complaint in row["complaints"]}
    for name in ("refusals", "restarts"):
        for rows in read_vectors(name).values():
            if isinstance(rows, list):
                codes |= {row["code"] for row in rows if row.get("code")}
    assert {code for code in ErrorCode if code < 40} - codes == set()


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
