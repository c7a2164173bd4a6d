"""Cases that cost little: thousands in one test, and lists that need no session played.

What pytest does around a test costs more than a tiny case.
"""

from itertools import product
from pathlib import Path

import pytest
from secagg_testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
)


def recorded_points(name):
    """Return the names of the crash points of one session, as tests/golden has them.

    Every process that collects tests needs them. A test compares them with a session
    that is played, and `make golden` rewrites them.
    """
    path = Path(__file__).parent / "golden" / "points" / f"{name}.txt"
    return path.read_text(encoding="utf-8").splitlines()


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


def cells_from(parameters, first):
    """Run a test on every graph, from this one on.

    The order says which cell is the first, where tests/slow.toml leaves the default
    suite one of four: tests that follow one another begin with different ones.

    Args:
        parameters: By graph, as `on_every_graph` returns them.
        first: The first of them.
    """
    graphs = [*parameters]
    at = graphs.index(first)
    turned = graphs[at:] + graphs[:at]
    return pytest.mark.parametrize(
        "parameters", [parameters[graph] for graph in turned], ids=turned
    )


def on_every_graph(dimension):
    """Return parameters of exact sums for small cohorts, by graph or profile.

    Four clients, and six where the graph is sparse: the first of them keep their names.
    Each cohort tolerates the loss of one client.
    """
    return {
        "complete": parameters_for(4, dimension=dimension, threshold=3),
        "ring": parameters_for(
            6,
            dimension=dimension,
            threshold=4,
            degree=4,
            min_clients=6,
            min_survivors=5,
            max_dropouts=1,
            max_losses=1,
            colluders=1,
        ),
        "signed": signing_parameters_for(4, dimension=dimension),
        "drawn": sparse_parameters_for(6, dimension=dimension, degree=3, losses=1),
    }
