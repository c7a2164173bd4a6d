"""Words that docs/glossary.md replaces appear no more often than they did.

`banned_words.toml` has the uses that are left: word, file, count. It only shrinks.
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
LEFT = Path(__file__).with_name("banned_words.toml")
GLOSSARY = "docs/glossary.md"  # names every word that it replaces
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
HEAD = """\
# Uses that are left of the words that docs/glossary.md replaces: word, file, count.
# tests/architecture/test_glossary.py lets no count grow. `make golden` lowers counts
# to what the files hold, and counts a word that has no table here.
"""
TOO_MANY = """\
Words that docs/glossary.md replaces:
{found}
Write the word of the glossary instead. When you have replaced older uses, run
`make golden`: it lowers the counts in tests/architecture/banned_words.toml, and never
raises one."""


@functools.cache
def replacements():
    """Return the forms of each banned word and the better one, by the first form."""
    text = (ROOT / GLOSSARY).read_text()
    table = text.partition("| Not | Write |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    return {
        forms.split(", ")[0]: (tuple(forms.split(", ")), better)
        for forms, better in rows
    }


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


@functools.cache
def uses():
    """Return word -> file -> count, of everything that is searched."""
    found = {word: {} for word in replacements()}
    for path in paths():
        name = path.relative_to(ROOT).as_posix()
        if name != GLOSSARY and "_pb2" not in name:
            for word, number in counts_in(path.read_text(encoding="utf-8")).items():
                found[word][name] = number
    return found


def left():
    return tomllib.loads(LEFT.read_text(encoding="utf-8"))


def lowered(allowed, found):
    """Return what is allowed from now on: no count is higher than before."""
    result = {}
    for word, files in found.items():
        before = allowed.get(word, files)
        result[word] = {
            name: min(number, files[name])
            for name, number in before.items()
            if name in files
        }
    return result


def as_toml(allowed):
    lines = [HEAD.rstrip()]
    for word, files in sorted(allowed.items()):
        lines += ["", f'["{word}"]']
        lines += [f'"{name}" = {number}' for name, number in sorted(files.items())]
    return "\n".join(lines) + "\n"


def excess(allowed, found):
    """Return a line for each file that uses a word more often than it may."""
    return [
        f"  {name}: {number} times {word!r}, {may} allowed; "
        f"write: {replacements()[word][1]}"
        for word, files in found.items()
        for name, number in files.items()
        if number > (may := allowed.get(word, {}).get(name, 0))
    ]


@pytest.mark.golden
def test_no_file_uses_a_banned_word_more_often(pytestconfig):
    if pytestconfig.getoption("--rewrite-golden"):
        LEFT.write_text(as_toml(lowered(left(), uses())), encoding="utf-8")
    found = excess(left(), uses())
    assert not found, TOO_MANY.format(found="\n".join(found))


def test_every_word_has_a_table():
    assert set(left()) == set(replacements())


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
def test_a_banned_word_is_seen(text):
    assert sum(counts_in(text).values()) == 1


@pytest.mark.parametrize(
    "text", ["in vainly", "allowed", "showed", "strangest", "output backup"]
)
def test_a_part_of_a_word_is_not_the_word(text):
    assert counts_in(text) == {}


def test_a_count_is_lowered_and_never_raised():
    allowed = {"whoever": {"a.py": 3, "b.py": 1, "c.py": 2}}
    found = {"whoever": {"a.py": 2, "b.py": 4, "d.py": 1}, "owed": {"a.py": 5}}
    result = lowered(allowed, found)
    assert result == {"whoever": {"a.py": 2, "b.py": 1}, "owed": {"a.py": 5}}
    told = excess(result, found)
    assert [line.split(", write")[0].split(";")[0] for line in told] == [
        "  b.py: 4 times 'whoever', 1 allowed",
        "  d.py: 1 times 'whoever', 0 allowed",
    ]
    assert tomllib.loads(as_toml(result)) == result
