"""Table 1 of [Bho18]: the numbers of PrivUnit2, as published and at their best.

The publication splits its level and bounds the cap by sufficient conditions. Here both
stand beside the exact level of those numbers and beside the cap of this repository.

Of the table only the column p is left in the text as transcribed; the levels are read
off it. The dimension of the first network is that of the tutorial which it names.
"""

import os
import sys
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from figure import Curve, Figure, Panel
from published_caps import PublishedPrivUnit2, published_probability
from reproduction import Options, Reproduction, Usual, run

from dpnoise.local import LocalParameters
from dpnoise.local.unit_vector import PrivUnit2

TABLE: Final = (
    ("MNIST", 3_274_634, (1000.0, 250.0, 100.0, 50.0)),
    ("CIFAR10", 1_068_298, (1000.0, 500.0, 100.0)),
)
PUBLISHED: Final = {
    ("MNIST", 250.0): 0.924,
    ("MNIST", 100.0): 0.731,
    ("MNIST", 50.0): 0.622,
    ("MNIST", 1000.0): 1.0,
    ("CIFAR10", 1000.0): 1.0,
    ("CIFAR10", 500.0): 0.993,
    ("CIFAR10", 100.0): 0.731,
}
LEAST_ERROR: Final = 0.1
EPSILONS: Final = tuple(10.0 ** (step / 5) for step in range(-3, 16))


SETTINGS: Final = {
    "dimensions": Usual((100, 10_000, 1_000_000), tiny=(100,)),
    "epsilons": Usual(EPSILONS, tiny=EPSILONS[::6]),
}


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    dims, levels = options.counts("dimensions"), options.numbers("epsilons")
    rows: list[dict[str, object]] = []
    for data, dim, epsilons in TABLE if not options.tiny else TABLE[1:]:
        rows += [{"data": data, **row(dim, epsilon)} for epsilon in epsilons]
    rows += [{"data": "", **row(dim, epsilon)} for dim in dims for epsilon in levels]
    return Reproduction(
        name="bho18_table1",
        stated={
            "share of the level for the cap": 0.99,
            "dimension, CIFAR10": 1_068_298,
            "p as printed": [
                [data, epsilon, p] for (data, epsilon), p in PUBLISHED.items()
            ],
        },
        assumed={
            "levels, read off the column p": [1000, 500, 250, 100, 50],
            "dimension, MNIST": 3_274_634,
            "dimensions of the picture": dims,
            "levels of the picture": levels,
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def row(dim: int, epsilon: float) -> dict[str, object]:
    """Return both settings of one level, and the error of a unit vector under each."""
    given = LocalParameters(randomiser="privunit2", dim=dim, bound=1.0, epsilon=epsilon)
    ours, theirs = PrivUnit2(given), PublishedPrivUnit2(given)
    return {
        "dim": dim,
        "epsilon": epsilon,
        "published p": published_probability(epsilon),
        "published edge": theirs.cap.edge,
        "published, exact epsilon": theirs.true_epsilon,
        "published, error": theirs.mse(1.0),
        "ours p": 1.0 - float(ours.lie),
        "ours edge": ours.cap.edge,
        "ours, exact epsilon": ours.exact_epsilon,
        "ours, error": ours.mse(1.0),
        "error ratio": theirs.mse(1.0) / ours.mse(1.0),
    }


def _figure(rows: list[dict[str, object]]) -> Figure:
    panels = []
    here = [each for each in rows if not each["data"]]
    for dim in sorted({int(str(each["dim"])) for each in here}):
        mine = [each for each in here if each["dim"] == dim]
        x = [float(str(each["epsilon"])) for each in mine]

        def column(name: str, mine: list[dict[str, object]] = mine) -> list[float]:
            return [float(str(each[name])) for each in mine]

        panels.append(
            Panel(
                title=f"d = {dim}",
                curves=(
                    Curve("as published", "other", x, column("published, error")),
                    Curve("best cap, exact level", "ours", x, column("ours, error")),
                ),
                x_label="ε of one release",
                y_label="squared error of a unit vector",
                log_x=True,
            )
        )
    return Figure("PrivUnit2: what a level costs ([Bho18] section 4.1)", panels, 3)


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    for data in ("MNIST", "CIFAR10"):
        here = [each for each in rows if each["data"] == data]
        if not here:
            continue
        off = [
            abs(float(str(each["published p"])) - PUBLISHED[data, level])
            for each in here
            if (level := float(str(each["epsilon"])))
        ]
        ratios = [float(str(each["error ratio"])) for each in here]
        found.append(
            f"{data}: the column p comes out to within {max(off):.1g}; the published "
            f"numbers cost {min(ratios):.2f} to {max(ratios):.2f} times the least error"
        )
        used = [
            float(str(each["published, exact epsilon"])) / float(str(each["epsilon"]))
            for each in here
        ]
        found.append(
            f"{data}: they spend {100 * min(used):.0f} to {100 * max(used):.0f} "
            "percent of the level that they are given"
        )
    # Errors of next to nothing have ratios that mean as little.
    small = [
        each
        for each in rows
        if not each["data"] and float(str(each["ours, error"])) > LEAST_ERROR
    ]
    if small:
        worst = max(small, key=lambda each: float(str(each["error ratio"])))
        found.append(
            f"at worst they cost {float(str(worst['error ratio'])):.3g} times the least"
            f" error, at ε = {float(str(worst['epsilon'])):.3g} and d = {worst['dim']}"
        )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
