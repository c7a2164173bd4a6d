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


def test_the_example_compares_the_default_with_published_baselines(
    example, capsys, tmp_path
):
    example.CLIENTS, example.DIMENSION, example.REPEATS = 20, 256, 2
    example.main(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[2:]]
    assert names == list(example.MECHANISMS)
    written = (tmp_path / "mechanisms.csv").read_text(encoding="utf-8")
    assert all(name in written for name in names)
    assert written.count("\n") == 1 + len(names)
    assert (tmp_path / "mechanisms.svg").read_text(encoding="utf-8").startswith("<svg")
    # Nothing was refused: the last column is empty.
    assert all(line.endswith(",") for line in written.splitlines()[1:])
