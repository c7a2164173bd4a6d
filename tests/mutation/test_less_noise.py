"""The table of missing noise fits the code, and its page the table."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from dpnoise.accounting import accountant_names

SPEC = importlib.util.spec_from_file_location(
    "less_noise", Path(__file__).with_name("less_noise.py")
)
less_noise = importlib.util.module_from_spec(SPEC)
sys.modules["less_noise"] = less_noise
SPEC.loader.exec_module(less_noise)
FAULTS = less_noise.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_breaks_one_place_and_its_tests_are_there(fault):
    source = (less_noise.ROOT / fault.file).read_text("utf-8")
    assert source.count(fault.old) == 1
    broken = fault.broken(source)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))
    for test in fault.tests:
        assert (less_noise.ROOT / test).exists()


def test_every_accountant_is_broken():
    assert set(accountant_names()) <= {fault.what for fault in FAULTS}


def test_the_page_has_a_row_for_every_fault_and_none_goes_unnoticed():
    page = less_noise.PAGE.read_text("utf-8")
    rows = page.split("<!-- rows -->\n")[1].split("<!-- end of rows -->")[0]
    named = [row.split(" | ")[0].removeprefix("| ") for row in rows.splitlines()]
    assert named == [fault.what for fault in FAULTS]
    assert "**none**" not in rows


def test_who_notices_is_read_from_what_pytest_prints(tmp_path):
    # A test of a tree of its own, which only the fault lets fail.
    (tmp_path / "noise.py").write_text("VARIANCE = 100\n")
    (tmp_path / "test_noise.py").write_text(
        "import noise\n\n\ndef test_it():\n    assert noise.VARIANCE == 100\n"
    )
    fault = less_noise.Fault(
        what="x",
        against="y",
        file="noise.py",
        old="100",
        new="97",
        tests=("test_noise.py",),
    )
    assert fault.noticed_by(tmp_path) == [("test_noise.py", "test_it")]
    assert (tmp_path / "noise.py").read_text() == "VARIANCE = 100\n"
