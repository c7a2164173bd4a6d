"""Compare the mechanisms on one budget: plan, encode, sum, decode, measure.

Run it with no arguments. Every mechanism is planned for the same (ε, δ) and measured by
a few sums of a hundred clients each, added up as a secure aggregation would. The table
compares measured errors with the forecast and the central Gaussian's. With a directory
as its argument it also writes the table and the picture there.
"""

import sys
from pathlib import Path

from dpnoise import bench

CLIENTS, DIMENSION, REPEATS = 100, 1024, 5
SEED = b"compare mechanisms, one budget.."  # 32 bytes: the same table every time
MECHANISMS = ("skellam-mixture", "skellam", "smm", "ddgauss", "binomial", "gaussian")


def compared() -> bench.Comparison:
    """Plan and measure every mechanism at one budget."""
    return bench.compare(
        mechanisms=MECHANISMS,
        epsilons=[1.0],
        clients=CLIENTS,
        dimension=DIMENSION,
        delta=1e-5,
        repeats=REPEATS,
        seed=SEED,
    )


def main(directory: str | None = None) -> None:
    """Print the table, and write its forms if a directory is given."""
    table = compared()
    print(table)
    if directory is not None:
        table.to_csv(Path(directory) / "mechanisms.csv")
        table.to_svg(Path(directory) / "mechanisms.svg")


if __name__ == "__main__":
    main(*sys.argv[1:2])
