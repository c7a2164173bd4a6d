"""The tool that removes checks removes what it says, one at a time."""

import ast
import importlib.util
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest


def loaded(name, file):
    """Return a script of this folder."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(file))
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


mutants = loaded("mutants", "mutants.py")  # under the name by which it is imported
run = loaded("mutation_run", "run.py")

SOURCE = '''
_A, _B = "a", "b"


def _row(name, first):
    return {(name, 1): first}


TABLE = {(1, 2): "x", **_row(3, _A)}


class Offer:
    def check(self, n, most, least):
        """R5.1-1."""
        if n > most or n < least:
            raise ValueError(ErrorCode.BAD)
        check_more(n)  # R5.1-2
        yield (n == max(most, least), f"{n} is wrong")
        try:
            read(n)
        except KeyError:
            raise ValueError from None
'''
FOUND = mutants.mutants_of("offer.py", SOURCE)


def change_of(mutant):
    """Return the lines that a mutant takes away and puts in."""
    before = Counter(ast.unparse(ast.parse(SOURCE)).splitlines())
    after = Counter(ast.unparse(mutants.changed(SOURCE, mutant.number)).splitlines())
    return (
        [line.strip() for line in before - after],
        [line.strip() for line in after - before],
    )


def test_each_mutant_changes_exactly_one_line():
    made = {mutant.change: change_of(mutant) for mutant in FOUND}
    condition, rule = "if n > most or n < least:", "(n == max(most, least), f'{n}"
    expected = {
        "never `if n > most or n < least`": (condition, "if False:"),
        "`n > most` is `n >= most`": (condition, "if n >= most or n < least:"),
        "`n < least` is `n <= least`": (condition, "if n > most or n <= least:"),
        "without `n > most` in `n > most or n < least`": (condition, "if n < least:"),
        "without `n < least` in `n > most or n < least`": (condition, "if n > most:"),
        "`BAD` is INTERNAL": ("ErrorCode.BAD)", "ErrorCode.INTERNAL)"),
        "without `check_more(n)`": ("check_more(n)", "pass"),
        "always `n == max(most, least)`": (rule, "(True, f'{n}"),
        "`max(most, least)` is `most`": (rule, "(n == most, f'{n}"),
        "`max(most, least)` is `least`": (rule, "(n == least, f'{n}"),
        "`except KeyError` raises it again": ("raise ValueError from None", "raise"),
        "without row `(1, 2)`": ("TABLE = {(1, 2)", "TABLE = {**_row(3, _A)}"),
        "without row `_row(3, _A)`": ("**_row(3, _A)}", "TABLE = {(1, 2): 'x'}"),
        "cell 1 of `3`: `_A` is `_B`": ("_row(3, _A)", "_row(3, _B)"),
    }
    assert made.keys() == expected.keys()
    for change, (old, new) in expected.items():
        (gone,), (come,) = made[change]
        assert old in gone, change
        assert new in come, change


def test_a_mutant_records_its_function_and_the_nearest_rule_above():
    by_change = {mutant.change: mutant for mutant in FOUND}
    assert by_change["`BAD` is INTERNAL"].rule == "R5.1-1"
    assert by_change["without `check_more(n)`"].rule == "R5.1-2"
    assert by_change["without `check_more(n)`"].function == ("Offer.check", 13)
    assert by_change["without row `(1, 2)`"].function is None
    assert by_change["without row `(1, 2)`"].scope == "TABLE"


@pytest.mark.parametrize("above", ["# a comment\n", "x = 1\n"])
def test_results_survive_changes_elsewhere_in_the_file(above):
    moved = mutants.mutants_of("offer.py", above + SOURCE)
    assert [(m.name, m.digest) for m in moved] == [(m.name, m.digest) for m in FOUND]


def test_a_changed_function_is_tested_again():
    other = mutants.mutants_of("offer.py", SOURCE.replace("check_more(n)", "more(n)"))
    before = {mutant.digest for mutant in FOUND if mutant.function}
    assert before.isdisjoint(mutant.digest for mutant in other if mutant.function)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""R5.1-1."""', '"""The number is in its range.\n\n        R5.1-1."""'),
        ("raise ValueError from None", "raise ValueError from None  # a comment"),
        (
            "if n > most or n < least:",
            "if (\n            n > most or n < least\n        ):",
        ),
    ],
)
def test_results_survive_changes_of_comments_and_layout(old, new):
    other = mutants.mutants_of("offer.py", SOURCE.replace(old, new))
    assert [(m.name, m.digest) for m in other] == [(m.name, m.digest) for m in FOUND]


def test_an_instrumented_module_records_the_mutants_reached():
    reached = []
    names = {"mark": reached.append, "check_more": lambda n: n, "read": {}.pop}
    exec(compile(mutants.instrumented(SOURCE, "mark"), "offer.py", "exec"), names)
    assert set(reached) == {mutants.MODULE}  # `_row`, at import
    reached.clear()
    next(names["Offer"]().check(1, 2, 1))
    met = {FOUND[number].change for number in reached if number >= 0}
    assert "without `check_more(n)`" in met
    assert "`BAD` is INTERNAL" not in met


def test_code_run_at_import_is_not_tested_by_exchanging_functions():
    mutant = next(each for each in FOUND if each.function)
    table = next(each for each in FOUND if not each.function)
    site = (mutant.file, mutant.number)
    reach = run.Reach(
        sites={"a.py::t": {site, ("offer.py", mutants.MODULE)}, "b.py::t": {site}},
        seconds={"a.py::t": 0.1, "b.py::t": 0.1},
        imported={"a.py": {site}, "b.py": set()},
    )
    assert reach.tests_for(mutant, None, at_import=False) == ["b.py::t"]
    assert reach.tests_for(mutant, None, at_import=True) == ["a.py::t"]
    assert reach.acts_at_import(mutant)
    assert reach.acts_at_import(table)


def test_a_result_counts_while_its_test_exists():
    reach = run.Reach(sites={"a.py::t": set()}, imported={"a.py": set()})
    assert reach.has("a.py::t")
    assert reach.has("import of a.py")
    assert reach.has(run.CONFTEST)
    assert not reach.has("a.py::gone")
    assert not reach.has("import of gone.py")


def test_the_test_that_caught_a_mutant_last_time_runs_first():
    mutant = next(each for each in FOUND if each.function)
    site = (mutant.file, mutant.number)
    seconds = {"test_offer.py::t": 0.1, "b.py::t": 2.0 * run.MOST_SECONDS}
    reach = run.Reach(sites={test: {site} for test in seconds}, seconds=seconds)
    tests = reach.tests_for(mutant, "b.py::t", at_import=False)
    assert tests == ["b.py::t", "test_offer.py::t"]
    assert reach.tests_for(mutant, None, at_import=False) == ["test_offer.py::t"]


def test_a_mutant_without_its_function_raises_an_error():
    mutant = next(each for each in FOUND if each.function)
    with pytest.raises(RuntimeError, match="no such function"):
        run._exchange(mutant, SOURCE, defaultdict(list))


def test_every_explained_survivor_is_a_current_mutant():
    explained = run._explained()
    for file in sorted({name.split(": ")[0] for name in explained}):
        assert file in sys.modules["targets"].FILES
        text = (run.ROOT / file).read_text("utf-8")
        found = {mutant.name for mutant in mutants.mutants_of(file, text)}
        told = {name for name in explained if name.startswith(f"{file}: ")}
        assert told <= found, told - found


def test_all_mutation_targets_and_their_tests_exist():
    targets = sys.modules["targets"]
    for place in (*targets.FILES, *targets.TESTS, *targets.PASSED_OVER):
        assert (run.ROOT / place).exists(), place
