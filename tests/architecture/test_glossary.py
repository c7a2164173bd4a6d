"""Words of replaced_words.toml appear nowhere: docs/glossary.md has the better ones.

A word is looked for in identifiers (`has_failed_over` and `WasPutBack` hold "put
back"), comments, docstrings and texts of the packages, and in docs, deploy and the
pages beside them.
"""

import functools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = Path(__file__).parent / "replaced_words.toml"
FOLDERS = (
    "secagg",
    "dpnoise",
    "docs",
    "deploy",
    "examples",
    "protos",
    "benchmarks",
    "tests/support",
)
ENDINGS = {".md", ".py", ".proto", ".toml", ".yaml", ".yml", ".sh", ".service", ".html"}
ENDINGS |= {".tpl", ".tex", ".pv", ".pml"}
EXCEPTIONS = {
    ("bell", "docs/decisions/0009-server-drawn-ring.md"): "the name of an author",
    ("bell", "protos/PROTOCOL.md"): "the name of an author",
    ("silence", "tests/support/secagg_testing/world/plan.py"): "seeds recorded runs",
}


@functools.cache
def replacements():
    """Return the forms of each banned word and the better one, by the first form."""
    rows = tomllib.loads(WORDS.read_text("utf-8"))["words"]
    return {row["not"][0]: (tuple(row["not"]), row["write"]) for row in rows}


def pattern_of(forms):
    """Return what finds any form of a word, as a whole word, in any line breaks."""
    together = "|".join(re.escape(form).replace(r"\ ", " ") for form in forms)
    return re.compile(rf"(?<![a-z0-9])(?:{together})(?![a-z0-9])")


def words_of(text):
    """Return a text in lower case, its identifiers apart, in one line."""
    text = re.sub(r"\bis (not )?None\b", "", text)  # code, no sentence
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", text)
    text = re.sub(r"\n[ \t]*(?:#:?|//|>)?[ \t]*", " ", text)
    text = re.sub(r"[\"'][ \t]+f?[\"']", "", text)  # one text in two literals
    return re.sub(r"\s+", " ", text.lower().replace("’", "'"))


def counts_in(text):
    """Return how often a text uses each banned word."""
    words = words_of(text)
    found = {}
    for word, (forms, _) in replacements().items():
        if not any(form in words for form in forms):
            continue  # a quick look: most files hold few of them
        if number := len(pattern_of(forms).findall(words)):
            found[word] = number
    return found


def paths():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in ENDINGS and "__pycache__" not in path.parts:
                yield path
    yield from sorted(ROOT.glob("*.md"))
    yield ROOT / "Makefile"


def test_no_file_uses_a_replaced_term():
    found = {}
    for path in paths():
        name = path.relative_to(ROOT).as_posix()
        if "_pb2" not in name:
            for word, number in counts_in(path.read_text(encoding="utf-8")).items():
                better = replacements()[word][1]
                found[word, name] = f"{name}: {number} times {word!r}; write: {better}"
    unused = set(EXCEPTIONS) - set(found)
    assert not unused, unused
    assert not [text for use, text in found.items() if use not in EXCEPTIONS]


@pytest.mark.parametrize(
    "text",
    [
        "whoever calls",
        "Whoever",
        "was_put_back",
        "class WasPutBack",
        "a store that was put\n    back",
        "# a store that was put\n    # back",
        '"a store that was put "\n    "back"',
        "SQLITE_YARDSTICK",
        "strangers",
    ],
)
def test_a_replaced_term_is_found(text):
    assert sum(counts_in(text).values()) == 1


@pytest.mark.parametrize(
    "text", ["in vainly", "allowed", "showed", "strangest", "output backup"]
)
def test_a_part_of_a_longer_word_is_not_found(text):
    assert counts_in(text) == {}
