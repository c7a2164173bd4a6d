"""Every notebook of docs/notebooks runs, cell by cell, and its last cell asserts."""

import ast
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
PICTURES = {
    "comparing_mechanisms": 1,
    "first_sum": 0,
    "histogram": 1,
    "mean": 1,
    "training": 1,
}
"""How many pictures each notebook draws."""


def cells_of(text):
    """Yield (first line, kind, body) of the cells of a percent script."""
    marks = list(re.finditer(r"^# %%(.*)\n", text, re.MULTILINE))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        line = text.count("\n", 0, mark.end())
        yield line, mark[1].strip(), text[mark.end() : end]


def show(value):
    """Show a value as a notebook does; return what it shows."""
    rich = getattr(value, "_repr_html_", None)
    return repr(value) if rich is None else rich()


def run_notebook(path):
    """Run all cells in one namespace; return what their last expressions show."""
    names, shown = {"__name__": "__main__"}, []
    for line, kind, body in cells_of(path.read_text("utf-8")):
        if kind == "[markdown]":
            assert all(row.startswith("#") for row in body.split("\n") if row)
            continue
        tree = ast.parse(body)
        ast.increment_lineno(tree, line)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), path, "eval"), names)
            if value is not None:
                shown.append(show(value))
    return shown


def test_the_list_of_notebooks_is_complete():
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_runs_and_draws_its_pictures(name, tmp_path, capsys):
    """False alarm of all asserts about noisy values together: 1e-12."""
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra

    plt.close("all")  # those of tests that ran before in this process
    try:
        shown = run_notebook(NOTEBOOKS / f"{name}.py")
        for number in plt.get_fignums():
            plt.figure(number).savefig(tmp_path / f"{number}.png")
    finally:
        plt.close("all")
    assert all(shown)
    assert capsys.readouterr().out
    pictures = list(tmp_path.iterdir())
    assert len(pictures) == PICTURES[name]
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_notebook_with_a_failed_assert_is_detected(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("# %% [markdown]\n# text\n\n# %%\nassert 1 == 2\n")
    with pytest.raises(AssertionError):
        run_notebook(path)
