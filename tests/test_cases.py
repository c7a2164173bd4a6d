"""A test of many cases fails if any of them does, and names all that do."""

import pytest

from tests.cases import each_of


def test_exactly_the_failing_cases_are_named():
    met = []

    @each_of(["a", "b"], [1, 2, 3])
    def check(letter, number):
        met.append((letter, number))
        assert number != 2, "no twos"
        raise_for = {("b", 3): KeyError("missing")}
        if (letter, number) in raise_for:
            raise raise_for[letter, number]

    with pytest.raises(AssertionError, match="3 of 6 cases fail") as caught:
        check()
    assert len(met) == 6
    lines = str(caught.value).splitlines()[1:]
    named = [line.split(":")[0].strip() for line in lines if line.startswith("  ")]
    assert [each for each in named if "," in each] == ["a, 2", "b, 2", "b, 3"]
    assert check.__name__ == "check"


def test_passing_cases_pass_and_an_empty_list_fails():
    each_of([1, 2])(lambda number: number)()
    with pytest.raises(AssertionError, match="no case"):
        each_of([])(lambda number: number)()
