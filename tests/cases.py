"""Thousands of tiny cases as one test each, which names every case that fails.

What pytest does around a test costs more than such a case.
"""

from itertools import product


def each_of(*columns, name=str):
    """Run a test for every case, or every combination of several columns.

    Args:
        columns: The cases; of several columns each combination is one.
        name: Gives the text by which a case is named in a failure.
    """
    cases = list(product(*map(list, columns)))

    def decorate(check):
        def test():
            assert cases, "there is no case"
            failures = {}
            for case in cases:
                try:
                    check(*case)
                except Exception as error:  # noqa: BLE001 - checked below, all together
                    failures[", ".join(map(name, case))] = error
            if failures:
                first = next(iter(failures.values()))
                shown = "".join(f"\n  {case}: {why}" for case, why in failures.items())
                raise AssertionError(
                    f"{len(failures)} of {len(cases)} cases fail:{shown}"
                ) from first

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.__module__, test.__qualname__ = check.__module__, check.__qualname__
        return test

    return decorate
