"""Bounds of moments on cells against moments at random points inside the cells."""
# ruff: noqa: TID251 - numpy.random makes test data here, never noise

import numpy as np
import pytest
import scipy

from dpnoise.accounting.contour.lattice import ContourLattice
from dpnoise.accounting.contour.moment_table import (
    CoordinateGrid,
    CoordinateNorm,
    MomentTable,
)

CASES = [
    # variance, largest coordinate, exponent
    (0.9, 0.25, 12.0),
    (0.9, 1.0, -9.0),
    (49.0, 1.0, 4.3),
    (49.0, 1.0, -3.3),
    (227.0, 1.0, 16.0),
    (227.0, 4.0, -15.0),
    (900.0, 2.6, 9.0),
]


def log_moment_per_norm(variance, x, z, norm):
    """Sum the moment directly, from another library's Bessel functions."""
    reach = int(14 * variance**0.5 + 30 * abs(z.real) ** 0.5 + 80)
    y = np.arange(-reach, reach + 1)
    whole = np.floor(x)
    weights = {
        j: scipy.special.ive(np.abs(y - j), variance) for j in (0, whole, whole + 1)
    }
    keep = weights[0] > 1e-290
    base = weights[0][keep]
    mixed = (1 - (x - whole)) * weights[whole] + (x - whole) * weights[whole + 1]
    ratio = mixed[keep] / base
    moment = np.sum(base * np.exp(z * np.log(ratio)))
    size = x * x
    if norm is CoordinateNorm.MIXTURE:
        size += (x - whole) * (1 - (x - whole))
    return np.log(np.abs(moment)) / size


def table(variance, largest, exponent, norm, near_zero=0.05):
    lattice = ContourLattice.build(variance, int(40 * variance**0.5) + 400)
    grid = CoordinateGrid.build(
        norm,
        largest=largest,
        near_zero=near_zero * min(1.0, variance**0.5 / (abs(exponent) + 4.0) * 2.0),
        relative_width=1 / 32,
        largest_width=0.03,
    )
    return MomentTable(lattice, grid, exponent=exponent)


@pytest.mark.parametrize("norm", [CoordinateNorm.SQUARE, CoordinateNorm.MIXTURE])
@pytest.mark.parametrize(("variance", "largest", "exponent"), CASES)
def test_bounds_hold_at_random_points_of_every_cell(variance, largest, exponent, norm):
    generator = np.random.default_rng(1)
    edges = np.linspace(0.0, 12.0 * variance**0.5 / max(1.0, largest), 61)
    left, right = table(variance, largest, exponent, norm).bounds(edges, precision=1e-9)
    for _ in range(250):
        j = int(generator.integers(60))
        share = generator.choice([0.0, 1.0, generator.random()])
        w = edges[j] + share * (edges[j + 1] - edges[j])
        x = largest * generator.choice([1.0, generator.random(), 0.02])
        found = log_moment_per_norm(variance, x, exponent + 1j * w, norm)
        assert found <= left[j] + share * (right[j] - left[j]) + 1e-9


@pytest.mark.parametrize(("variance", "largest", "exponent"), CASES)
def test_bounds_are_tight_where_the_integral_has_its_mass(variance, largest, exponent):
    norm = CoordinateNorm.SQUARE
    edges = np.linspace(0.0, 1.0 * variance**0.5 / max(1.0, largest), 13)
    left, _ = table(variance, largest, exponent, norm).bounds(edges, precision=1e-9)
    points = largest * np.append(np.linspace(0.01, 1.0, 80), 1e-4)
    best = max(log_moment_per_norm(variance, x, exponent + 0j, norm) for x in points)
    assert best <= left[0] <= best * 1.03


def test_integer_coordinates_are_bounded_one_by_one():
    variance, exponent = 30.0, 7.0
    lattice = ContourLattice.build(variance, 300)
    grid = CoordinateGrid.build(
        CoordinateNorm.INTEGER,
        largest=3.4,
        near_zero=0.1,
        relative_width=0.1,
        largest_width=0.1,
    )
    np.testing.assert_array_equal(grid.centres, [1.0, 2.0, 3.0])
    edges = np.linspace(0.0, 10.0, 101)
    left, _ = MomentTable(lattice, grid, exponent=exponent).bounds(
        edges, precision=1e-10
    )
    for j in (0, 20, 40):
        z = exponent + 1j * edges[j]
        exact = max(
            log_moment_per_norm(variance, x, z, CoordinateNorm.INTEGER)
            for x in (1.0, 2.0, 3.0)
        )
        assert exact <= left[j] <= exact + 2e-3


def test_coarse_expansions_cost_tightness_and_never_soundness():
    edges = np.linspace(0.0, 30.0, 31)
    fine = table(49.0, 1.0, 4.3, CoordinateNorm.SQUARE).bounds(edges, precision=1e-12)
    rough = table(49.0, 1.0, 4.3, CoordinateNorm.SQUARE).bounds(edges, precision=0.3)
    exact = [
        max(
            log_moment_per_norm(49.0, x, 4.3 + 1j * w, CoordinateNorm.SQUARE)
            for x in np.linspace(0.05, 1.0, 15)
        )
        for w in edges[:-1]
    ]
    assert np.all(rough[0] >= np.array(exact) - 1e-9)
    assert np.all(fine[0] <= rough[0] + 1e-9)


@pytest.mark.parametrize("largest", [0.3, 1.0, 3.7])
def test_cells_cover_the_range_and_never_straddle_an_integer(largest):
    grid = CoordinateGrid.build(
        CoordinateNorm.SQUARE,
        largest=largest,
        near_zero=0.07,
        relative_width=0.1,
        largest_width=0.2,
    )
    lower, upper = grid.centres - grid.half_widths, grid.centres + grid.half_widths
    assert lower[0] == pytest.approx(grid.near_zero)
    assert upper[-1] == pytest.approx(largest)
    np.testing.assert_allclose(lower[1:], upper[:-1])
    assert np.all(np.floor(lower + 1e-9) >= np.ceil(upper - 1e-9) - 1)


def moment(variance, x, z):
    whole = np.floor(x)
    y = np.arange(-250, 251)
    base = scipy.special.ive(np.abs(y), variance)
    keep = base > 1e-290
    mixed = (1 - (x - whole)) * scipy.special.ive(np.abs(y - whole), variance)
    mixed += (x - whole) * scipy.special.ive(np.abs(y - whole - 1), variance)
    return np.sum(base[keep] * np.exp(z * np.log(mixed[keep] / base[keep])))


@pytest.mark.parametrize("exponent", [5.0, -4.0])
@pytest.mark.parametrize(
    ("half_x", "half_w"), [(0.1, 1e-6), (1e-7, 4.0), (0.02, 1.0), (0.01, 0.34)]
)
def test_first_order_expansion_errs_by_no_more_than_its_bound(exponent, half_x, half_w):
    variance, x, w = 30.0, 0.6, 20.0
    grid = CoordinateGrid(
        CoordinateNorm.SQUARE, np.array([x]), np.array([half_x]), 0.0, 1.0
    )
    made = MomentTable(ContourLattice.build(variance, 600), grid, exponent=exponent)
    (rows,) = made._rows()
    edges = np.array([w - half_w, w + half_w])
    found = made._expand(rows, edges, 1e-13)
    # The expansion turns with the mean loss; its phase is undone for the comparison.
    weight = np.exp(made._log_weight + exponent * rows.log_ratio[0])
    mean = (weight * rows.log_ratio[0]).sum() / weight.sum()
    errors = []
    for t in (-half_x, 0.0, half_x):
        for u in (-half_w, 0.0, half_w):
            exact = moment(variance, x + t, exponent + 1j * (w + u))
            exact *= np.exp(-1j * (w + u) * mean)
            linear = found.value + found.in_p * t + found.in_w * u
            errors.append(abs(exact - linear[0, 0]))
    allowed = found.error[0, 0]
    assert max(errors) <= allowed
    assert allowed <= 12 * max(errors) + 1e-11


@pytest.mark.parametrize("exponent", [6.0, -5.0])
def test_coordinates_near_zero_are_covered_even_by_a_wide_interval(exponent):
    variance, top = 9.0, 0.25
    grid = CoordinateGrid(CoordinateNorm.SQUARE, np.zeros(0), np.zeros(0), top, top)
    made = MomentTable(ContourLattice.build(variance, 400), grid, exponent=exponent)
    edges = np.linspace(0.0, 8.0, 5)
    left, right = made.bounds(edges, precision=1e-9)
    for p in (1e-3, 0.1, 0.2, top):
        for j in range(4):
            for share in (0.0, 0.5, 1.0):
                z = exponent + 1j * (edges[j] + share * (edges[j + 1] - edges[j]))
                exact = np.log(np.abs(moment(variance, p, z))) / p**2
                assert exact <= left[j] + share * (right[j] - left[j]) + 1e-7


def test_coordinates_near_zero_are_bounded_tightly_by_a_narrow_interval():
    for exponent in (6.0, -5.0):
        grid = CoordinateGrid(
            CoordinateNorm.SQUARE, np.zeros(0), np.zeros(0), 0.02, 0.02
        )
        made = MomentTable(ContourLattice.build(9.0, 400), grid, exponent=exponent)
        left, right = made.bounds(np.array([1.0, 1.01]), precision=1e-9)
        exact = np.log(np.abs(moment(9.0, 0.02, exponent + 1.005j))) / 0.02**2
        assert exact <= 0.5 * (left[0] + right[0]) <= exact * 1.03


def test_near_zero_the_bound_follows_the_contour_within_a_wide_cell():
    grid = CoordinateGrid(CoordinateNorm.SQUARE, np.zeros(0), np.zeros(0), 0.02, 0.02)
    made = MomentTable(ContourLattice.build(9.0, 400), grid, exponent=6.0)
    edges = np.array([0.0, 4.0, 8.0])
    left, right = made.bounds(edges, precision=1e-9)
    for j in (0, 1):
        for w, claimed in ((edges[j], left[j]), (edges[j + 1], right[j])):
            exact = np.log(np.abs(moment(9.0, 0.02, 6.0 + 1j * w))) / 0.02**2
            assert exact <= claimed + 1e-7
