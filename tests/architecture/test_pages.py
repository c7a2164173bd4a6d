"""Pages are short sentences that name what exists (docs/check_pages.py)."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location(
    "check_pages", ROOT / "docs" / "check_pages.py"
)
check_pages = importlib.util.module_from_spec(SPEC)
sys.modules["check_pages"] = check_pages
SPEC.loader.exec_module(check_pages)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def test_no_page_exceeds_the_sentence_length_or_the_mean():
    above = [
        f"{name_of(path)}: run `python docs/check_pages.py {name_of(path)}`"
        for path in check_pages.pages()
        for prose in [check_pages.prose_of(path.read_text("utf-8"))]
        if prose.long or prose.mean > check_pages.MOST_MEAN
    ]
    assert not above


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


def test_table_cells_do_not_count_in_the_mean_sentence_length():
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
        ("```toml\n[task]\nstep = 3\n```", "no such setting: task.step"),
        ("```toml\n[tasks]\nsteps = 3\n```", "no such setting: tasks.steps"),
        ("`secagg_store_errors`", "no such metric: secagg_store_errors"),
        ("`x = secagg.ClientEnrolment(1)`", "no such name in Python: secagg.Client"),
        ("`secagg.nothing.Client`", "no such name in Python: secagg.nothing.Client"),
    ],
)
def test_an_unknown_name_on_a_page_is_detected(text, fault):
    assert any(each.startswith(fault) for each in check_pages.name_faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "`secagg tasks pause beds --reason x`",
        "`secagg_store_errors_total`",
        "`task.steps = 3`",
        "`client.toml`",
        "`numpy.load`",
        "`secagg.advanced.ClientEnrolment(…)` and `secagg.v1.SecAggService/Watch`",
    ],
)
def test_a_name_that_exists_is_accepted(text):
    assert not list(check_pages.name_faults(text))


def test_a_broken_link_is_detected(tmp_path):
    (tmp_path / "b.md").write_text("# The `first` part\n")
    page = tmp_path / "a.md"
    page.write_text("[x](b.md#the-first-part) [y](c.md) [z](b.md#other) [w](#none)")
    assert [fault.split(": ")[1] for fault in check_pages.link_faults(page)] == [
        "c.md",
        "b.md#other",
        "#none",
    ]
