"""What is written about the protocol is in step with the code."""

import re
from pathlib import Path

from secagg_testing.state_diagrams import state_diagrams

from secagg.conformance import VECTOR_FILES, read_vectors
from secagg.errors import ErrorCode

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


def test_every_cited_rule_is_in_the_specification():
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


# Rules without a vector that must fail, and why no bytes that a party is sent break
# them.
BEYOND_BYTES = {
    "R2-1": "R3.2-2 is its row",
    "R2.1-1": "R5.1-5 and R5.2-9 are its rows",
    "R2.1-8": "what is remembered",
    "R3.1-2": "what is never hashed",
    "R3.5-2": "the client's own coin",
    "R3.5-5": "the client's own vector",
    "R4-1": "what is computed: all sessions rest on it",
    "R5-2": "what a server says, not what it refuses",
    "R5-4": "who is left out of the next attempt",
    "R5-5": "what an operator may not do",
    "R5-6": "a state that was put back",
    "R5-7": "a clock",
    "R5.0-4": "the client's own policy",
    "R5.0-5": "what is not remembered",
    "R5.0-6": "who answers: the transport's",
    "R5.1-1": "who is invited",
    "R5.2-7": "R3.2-8 and R5.2-2 refuse all of it",
    "R5.2-8": "R3.2-7 and R5.2-2 refuse all of it",
    "R5.3-1": "the client's own input",
    "R5.3-2": "the client's own input",
    "R5.3-7": "a complaint, and no refusal: the rows of `complaints`",
    "R5.4-6": "the order of storing and sending",
    "R5.5-5": "what is erased",
    "R5.5-9": "the form of an answer: all sessions have it",
    "R5.6-3": "the client's own book",
    "R5.7-1": "who is named, after the sum",
    "R5.8-2": "what is said of a receipt that passes",
    "R5.9-1": "the client's own draw",
    "R5.9-12": "what is computed: all sessions of profile 3 rest on it",
    "R6-1": "R5.2-4 and R5.1-6 are its rows",
    "R6.1-1": "what a client that starts again sends: the rows of `restarts`",
    "R6.4-1": "R3.2-3 refuses all of it",
    "R6.4-2": "what is never sent",
    "R6.6-2": "how signatures are checked: keys with torsion are rows of R6.6-1",
    "R6.7-1": "what is subtracted",
    "R7.1-1": "the client's own polynomials",
    "R7.1-2": "the client's own polynomials",
    "R7.3-1": "R7.3-2 is its row",
    "R8-1": "R5.3-8 is its row",
    "R10-1": "the round of the client's own question",
    "R10-2": "trailing bytes of R5.2-1, R5.3-3, R5.4-1 and R5.5-1 have its code",
    "R10-3": "what is fetched: the transport's",
    "R10.1-1": "what TLS negotiates",
    "R10.3-1": "the client's own TLS",
    "R10.3-2": "what a client does not do",
    "R10.3-3": "the client's own clock",
    "R10.3-4": "what is offered, and where TLS ends",
    "R10.3-14": "a rate",
    "R10.3-16": "the encoding of protobuf",
    "R10.3-17": "what is not remembered",
    "R10.3-18": "a file, and a minute",
    "R11.2-1": "how odds are computed",
    "R11.3-1": "the client's own count",
    "R14.1-2": "what is read of a sum: the rows of `exact`",
    "R14.3-1": "the client's own vector: the rows of `encoded`",
    "R14.3-2": "the client's own vector: the rows of `encoded`",
    "R14.4-1": "what is computed: the rows of `rotations`",
    "R14.5-1": "the client's own vector: the rows of `encoded`",
    "R14.5-2": "the client's own vector: the rows of `encoded`",
    "R14.5-4": "the client's own vector: the rows of `encoded`",
    "R14.5-5": "the client's own vector: the rows of `encoded`",
    "R14.6-1": "what is computed: the rows of `rounded`",
    "R14.6-2": "what is computed: the rows of `rounded`",
    "R14.7-1": "what is computed: the rows of `selections`",
    "R14.7-2": "what is computed: the rows of `draws`",
    "R14.7-3": "the client's own vector: the rows of `encoded`",
    "R14.8-1": "what is computed: the rows of `tables`",
    "R14.8-2": "what is computed: the rows of `tables`",
    "R14.8-4": "what is computed: the rows of `blocks` and `encoded`",
    "R14.9-1": "what is read of a sum: the rows of `decoded`",
    "R14.9-2": "what is read of a sum: the rows of `decoded`",
}


def refused_rules():
    """Rules that some vector breaks, and is refused for."""
    found, left = set(), [read_vectors(name) for name in VECTOR_FILES]
    while left:
        match left.pop():
            case {"rule": rule, "success": False}:
                found.add(rule)
            case dict() as more:
                left.extend(more.values())
            case list() as more:
                left.extend(more)
    return found


def test_every_rule_has_a_rejection_vector_or_a_stated_reason():
    assert stated_rules() - refused_rules() - set(BEYOND_BYTES) == set()


def test_no_rule_with_a_rejection_vector_also_has_a_reason():
    assert refused_rules() & set(BEYOND_BYTES) == set()
    assert set(BEYOND_BYTES) <= stated_rules()
    named = {rule for why in BEYOND_BYTES.values() for rule in cited_rules(why)}
    assert named - refused_rules() == set()


def test_every_check_of_a_client_has_a_vector_that_must_fail():
    """The tables of checks: none of them may be beyond bytes but what others imply."""
    rounds = PROTOCOL.split("## 5 Rounds")[1].split("## 6 ")[0]
    row = re.compile(r"^\| (R5\.[023459]-\d+) \|.*\| [A-Z0-9_, a-z]+ \|$", re.MULTILINE)
    checks = set(row.findall(rounds))
    assert len(checks) > 35
    assert checks & set(BEYOND_BYTES) == {"R5.0-4", "R5.2-7", "R5.2-8"}


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


def test_every_must_sentence_cites_a_rule():
    """A line that demands something has a name, or stands in a row that has one."""
    nameless = [
        line
        for line in PROTOCOL.splitlines()
        if re.search(r"\bMUST\b", line)
        and not RULE.search(line)
        and "RFC 2119" not in line
    ]
    assert nameless == []
