"""The corners of what randomisers take: exact levels and means, finite vectors.

`benchmarks/randomiser_grid.py` computes the same over the whole grid, with many draws.
"""

import importlib.util
import math
import sys
from pathlib import Path

import mpmath
import pytest

from dpnoise.local import make_randomiser

PLACE = Path(__file__).parents[4] / "benchmarks" / "randomiser_grid.py"
SPEC = importlib.util.spec_from_file_location("randomiser_grid", PLACE)
grid = importlib.util.module_from_spec(SPEC)
sys.modules["randomiser_grid"] = grid
SPEC.loader.exec_module(grid)

CORNERS = [
    cell
    for cell in grid.cells((1, 2, 1_000_000))
    # Its level is the sum of its parts', which the others show in as many dimensions.
    if (cell.randomiser, cell.dim) != ("separated", 1_000_000)
]


@pytest.mark.parametrize(
    "cell", CORNERS, ids=lambda cell: f"{cell.randomiser}-{cell.dim}-{cell.epsilon}"
)
def test_levels_and_means_are_exact_at_every_corner(cell):
    made = make_randomiser(cell)
    with mpmath.workdps(50):
        level, bias = grid.exact(made)
    assert level <= cell.epsilon
    assert level > cell.epsilon - grid.MOST_BELOW or grid.LEAST_LIE in grid.lies(made)
    assert abs(bias) < grid.MOST_BIAS
    assert 0.0 <= made.mse(grid.largest_norm(made)) < math.inf
    if cell.dim <= 2:
        assert grid.deviations(made, 50) < grid.MOST_DEVIATIONS
