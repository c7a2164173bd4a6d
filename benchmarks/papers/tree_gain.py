"""What a tree of noise over the steps gains for running sums, and when it does not.

One member takes part in 1, 4, 10 or all of T steps, as far apart as they can be. At
the same privacy the variance of a running sum, averaged over all steps, is compared
with that of fresh noise in every step. Both are Gaussian figures: integer noise changes
both alike.
"""

import itertools
import sys
from typing import Final

from figure import Curve, Figure, Panel
from reproduction import Options, Reproduction, Usual, run

from dpnoise.step_tree import StepTree

STEPS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BRANCHINGS: Final = (2, 3, 4, 6, 8)
PARTICIPATIONS: Final = (1, 4, 10, 0)
"""Zero stands for all steps."""

_FAMILIES: Final = ("skellam-ours", "skellam", "ddgauss", "other")


SETTINGS: Final = {
    "steps": Usual(STEPS, tiny=STEPS[:2]),
    "branchings": Usual(BRANCHINGS),
    "participations": Usual(PARTICIPATIONS),
}


def gain(steps: int, branching: int, participations: int) -> float:
    """Return the variance of fresh noise over that of a tree, at the same privacy.

    Args:
        steps: Number of steps T.
        branching: Of the tree.
        participations: Of one member, equally far apart; 0 for all steps.
    """
    taken = participations or steps
    tree = StepTree(steps, branching)
    weight = tree.heaviest_weight(participations=taken, separation=steps // taken)
    # Fresh noise: the member weighs on each of its steps, a prefix of t steps has the
    # noise of t.
    fresh = taken * (steps + 1) / 2.0
    nodes = sum(len(list(tree.nodes_of_prefix(t))) for t in range(1, steps + 1)) / steps
    return fresh / (weight * nodes)


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    rows: list[dict[str, object]] = []
    curves = []
    branchings = options.counts("branchings")
    members = zip(
        options.counts("participations"), itertools.cycle(_FAMILIES), strict=False
    )
    for taken, family in members:
        x, y = [], []
        for steps in options.counts("steps"):
            if taken > steps:
                continue
            found = {way: gain(steps, way, taken) for way in branchings}
            best = max(found, key=found.__getitem__)
            x.append(float(steps))
            y.append(found[best])
            rows.append(
                {
                    "participations": taken or "all",
                    "steps": steps,
                    "branching": best,
                    "gain": found[best],
                }
            )
        label = f"{taken} participations" if taken else "every step"
        curves.append(Curve("1 participation" if taken == 1 else label, family, x, y))
    return Reproduction(
        name="tree_gain",
        stated={},
        assumed={"steps": options.counts("steps"), "branchings": branchings},
        rows=rows,
        findings=[
            f"{row['participations']} participations in {row['steps']} steps: "
            f"{float(str(row['gain'])):.3g} times less variance (branching "
            f"{row['branching']})"
            for row in rows
            if row["steps"] in {128, 1024}
        ],
        figure=Figure(
            "Running sums on a tree",
            [
                Panel(
                    title="variance, same privacy, best branching",
                    curves=curves,
                    x_label="steps",
                    y_label="fresh noise over tree",
                    log_x=True,
                    log_y=True,
                )
            ],
            columns=1,
        ),
    )


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
