"""The reference of errors is made from the code's tables, whole and current."""

import ast
import re
import runpy
from pathlib import Path

from secagg.cli.failures import exit_code_of
from secagg.errors import FINAL_CODES, ErrorCode
from secagg.server.http_edge import app
from secagg.wire.errors import TRAVELLING

PAGE = runpy.run_path(
    str(Path(__file__).parents[2] / "docs" / "errors_page.py"), run_name="page"
)
TEXT = PAGE["PAGE"].read_text("utf-8")
EDGE = Path(app.__file__).read_text("utf-8")
PROTOCOL = (Path(__file__).parents[2] / "protos" / "PROTOCOL.md").read_text("utf-8")


def test_the_page_is_current():
    assert PAGE["errors_page"]() == TEXT


def test_every_error_has_its_exit_code_a_meaning_and_a_next_step():
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| `(\w+)` \| (yes|no) \| (.+) \| (.+) \|$",
        TEXT,
        re.MULTILINE,
    )
    assert [row[:4] for row in rows] == [
        (
            str(exit_code_of(code)),
            str(int(code)),
            code.name,
            "no" if code in FINAL_CODES else "yes",
        )
        for code in sorted(ErrorCode)
    ]
    for _, _, name, _, meaning, step in rows:
        assert len(meaning.split()) > 2, name
        assert len(step.split()) > 1, name


def test_every_number_that_travels_has_a_status_over_grpc_and_http():
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \| `([A-Z_]+)` \| (\d{3}) \| `([A-Z]+)` \| \w.* \|$",
        TEXT,
        re.MULTILINE,
    )
    assert [int(row[0]) for row in rows] == sorted(TRAVELLING)
    # Libraries would retry by themselves.
    assert "DEADLINE_EXCEEDED" not in {row[2] for row in rows}
    (legend,) = re.findall(r"\| Fault \| At fault \|\n(.*?)\n\n", TEXT, re.DOTALL)
    named = set(re.findall(r"^\| `(\w+)`", legend, re.MULTILINE))
    assert {row[4] for row in rows} == named


def test_the_statuses_of_requests_that_are_no_calls_are_those_of_the_edge():
    """What `_Refusal` carries at the edge, on the page and in R10.3 is the same."""
    made = {
        int(node.args[0].value)
        for node in ast.walk(ast.parse(EDGE))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_Refusal"
    }
    assert made == set(PAGE["EDGE_REFUSALS"])
    for status, code in PAGE["EDGE_REFUSALS"].items():
        assert f"{status} {code.name}" in PROTOCOL
