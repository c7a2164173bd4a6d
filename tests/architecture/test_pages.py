"""Pages are short sentences that name what exists (docs/check_pages.py).

`long_sentences.toml` has the pages that are still above: how many long sentences, and
the mean.  It only shrinks; `make golden` lowers it.
"""

import importlib.util
import math
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT = Path(__file__).with_name("long_sentences.toml")
SPEC = importlib.util.spec_from_file_location(
    "check_pages", ROOT / "docs" / "check_pages.py"
)
check_pages = importlib.util.module_from_spec(SPEC)
sys.modules["check_pages"] = check_pages
SPEC.loader.exec_module(check_pages)
HEAD = """\
# Pages with sentences of more than 25 words, or a mean above 16: number and mean.
# tests/architecture/test_pages.py lets neither grow. `make golden` lowers both.

"""


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def above():
    """Return page -> [long sentences, mean] of the pages that are above a limit."""
    found = {}
    for path in check_pages.pages():
        prose = check_pages.prose_of(path.read_text("utf-8"))
        if prose.long or prose.mean > check_pages.MOST_MEAN:
            found[name_of(path)] = [len(prose.long), math.ceil(prose.mean * 10) / 10]
    return found


def grown(allowed, found):
    """Return a line for each page that is above what it may be."""
    return [
        f"{name}: {count} sentences of more than {check_pages.MOST_WORDS} words, "
        f"mean {mean}; run `python docs/check_pages.py {name}`"
        for name, (count, mean) in found.items()
        if count > allowed.get(name, (0, 0))[0]
        or mean > max(allowed.get(name, (0, 0))[1], check_pages.MOST_MEAN)
    ]


def lowered(allowed, found):
    """Return what is allowed from now on: no number is higher than before."""
    return {
        name: [min(new, old) for new, old in zip(found[name], before, strict=True)]
        for name, before in allowed.items()
        if name in found
    }


@pytest.mark.golden
def test_no_page_has_more_long_sentences(pytestconfig):
    allowed, found = tomllib.loads(LEFT.read_text("utf-8")), above()
    if pytestconfig.getoption("--rewrite-golden"):
        allowed = lowered(allowed, found)
        rows = [f'"{name}" = {numbers}\n' for name, numbers in sorted(allowed.items())]
        LEFT.write_text(HEAD + "".join(rows), encoding="utf-8")
    assert not grown(allowed, found)


def test_a_page_may_only_become_shorter():
    allowed = {"a.md": [3, 17.0], "b.md": [1, 12.0]}
    found = {"a.md": [2, 18.0], "c.md": [1, 9.0]}
    assert lowered(allowed, found) == {"a.md": [2, 17.0]}
    assert [line.split(":")[0] for line in grown(allowed, found)] == ["a.md", "c.md"]


def test_every_relative_link_leads_to_a_file_and_a_heading():
    faults = [
        f"{name_of(path)}: {fault}"
        for path in check_pages.pages()
        for fault in check_pages.link_faults(path)
    ]
    assert not faults


def test_every_named_command_setting_and_metric_exists():
    faults = [
        f"{name_of(path)}: {fault}"
        for path in check_pages.pages()
        for fault in check_pages.name_faults(path.read_text("utf-8"))
    ]
    assert not faults


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One two. Three four five.", [2, 3]),
        ("One `two three` four.", [3]),
        ("See [the page](a/b.md) of i.e. words.", [6]),
        ("* one\n* two three\n\nfour", [1, 2, 1]),
        ("# Five words of a heading\n\nOne.", [1]),
        ("```\nmany words of code\n```\nOne two.", [2]),
        ("One two\nthree. Version 1.2 of it", [3, 4]),
    ],
)
def test_sentences_are_counted(text, words):
    prose = check_pages.prose_of(text)
    assert [count for count, _ in prose.running] == words


def test_cells_are_no_part_of_the_mean():
    prose = check_pages.prose_of("| a b | c |\n|---|---|\n\nOne two three four.")
    assert prose.mean == 4.0
    assert [count for count, _ in prose.cells] == [2, 1]
    assert check_pages.prose_of(f"| {'word ' * 26}|").long


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`secagg statuss`", "no such command: statuss"),
        ("`secagg tasks remove beds`", "no such command: remove"),
        ("`secagg plan --epsilonn 1`", "no such option: --epsilonn"),
        ("`task.spare_session`", "no such setting: task.spare_session"),
        ("`server.listn = 1`", "no such setting: server.listn = 1"),
        ("```console\n$ secagg plan \\\n  --epsilonn 1\n```", "no such option"),
        ("```console\nserver$ secagg serve\n```", "no such command: serve"),
        ("`secagg_store_errors`", "no such metric: secagg_store_errors"),
    ],
)
def test_a_name_that_does_not_exist_is_noticed(text, fault):
    assert any(each.startswith(fault) for each in check_pages.name_faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "`secagg tasks pause beds --reason x`",
        "`secagg_store_errors_total`",
        "`task.steps = 3`",
        "`client.toml`",
        "`numpy.load`",
    ],
)
def test_a_name_that_exists_is_accepted(text):
    assert not list(check_pages.name_faults(text))


def test_a_link_that_leads_nowhere_is_noticed(tmp_path):
    (tmp_path / "b.md").write_text("# The `first` part\n")
    page = tmp_path / "a.md"
    page.write_text("[x](b.md#the-first-part) [y](c.md) [z](b.md#other) [w](#none)")
    assert [fault.split(": ")[1] for fault in check_pages.link_faults(page)] == [
        "c.md",
        "b.md#other",
        "#none",
    ]
