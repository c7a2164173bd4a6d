"""The example that compares the mechanisms does what it says."""

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "examples" / "compare_mechanisms.py"


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("compare", PROGRAM)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_example_compares_the_default_with_published_baselines(example, capsys):
    example.CLIENTS = 50
    example.main()
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names == [*example.ACCOUNTANTS]
    assert not any("refused" in line for line in lines)


def test_the_example_measures_what_was_forecast(example):
    # A mean of 1024 squares of a normal variable has a relative deviation of 0.045;
    # it leaves the interval once in ten million runs.
    example.CLIENTS = 100
    _, measured, forecast, gaussian = example.measured_error("skellam-mixture")
    assert 0.78 * forecast < measured < 1.25 * forecast
    assert gaussian < forecast < 1.06 * gaussian
