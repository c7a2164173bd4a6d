"""The tables of missing noise fit the code, and what was found the tables."""

import ast
import functools
import importlib.util
import json
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
FAULTS = {table: less_noise.faults(table) for table in less_noise.TABLES}
ALL = [fault for table in FAULTS.values() for fault in table]


@functools.cache
def tree_of(file):
    return ast.dump(ast.parse((less_noise.ROOT / file).read_text("utf-8")))


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.what)
def test_each_fault_changes_one_place_and_its_tests_exist(fault):
    source = (less_noise.ROOT / fault.file).read_text("utf-8")
    assert source.count(fault.old) == 1
    broken = fault.broken(source)
    assert ast.dump(ast.parse(broken)) != tree_of(fault.file)
    for test in fault.tests:
        assert (less_noise.ROOT / test).exists()


def test_every_accountant_has_a_fault():
    assert set(accountant_names()) <= {fault.what for fault in FAULTS["less_noise"]}


@pytest.mark.parametrize("table", less_noise.TABLES)
def test_every_fault_was_tested_and_detected(table):
    found = json.loads(less_noise.FOUND.read_text("utf-8"))[table]
    assert list(found) == [fault.what for fault in FAULTS[table]]
    assert all(row["noticed_by"] for row in found.values())


def test_the_page_states_the_number_of_faults():
    page = (less_noise.ROOT / "docs" / "status.md").read_text("utf-8")
    noise, claims = (len(FAULTS[table]) for table in less_noise.TABLES)
    assert f"all {noise} places and all {claims} false claims are noticed" in page


def test_failing_tests_are_read_from_the_output_of_pytest(tmp_path):
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
