"""Bounds on delta from an integral along a vertical line in the complex plane.

For a release with likelihood ratio P/Q and c > 0,

    δ(ε) = (1/2πi) ∫ M(s)·e^(−sε) / (s(s+1)) ds,    Re s = c,

with M(s) = E_P[(P/Q)^s]. A product over coordinates has |M| ≤ exp(C·g(c, w)), C the
norm that the coordinates share out and g the largest log-moment per unit of norm, so

    δ(ε) ≤ e^(−cε)·K(c),   K(c) = (1/π) ∫_0^∞ exp(C·g(c,w)) / (|c+iw|·|c+1+iw|) dw.

Rule 1: K(c) does not depend on ε: one evaluation bounds the whole curve, best near one
        ε.
Rule 2: Shorter vectors need no bound of their own. R is non-decreasing in y, so
        threshold tests are optimal for one coordinate. A larger coordinate makes the
        rounded value larger in stochastic order, so every such test gains power. Hence
        a coordinate is a randomised image of a larger one, and a vector of one whose
        norm is exactly C. Where integer vectors cannot reach C, the bound is taken at
        both ends of 0 ≤ C' ≤ C, in which it is convex. The end C' = 0 is at most
        1/(2·√(c(c+1))).
Rule 3: The integral is bounded from above cell by cell. Beyond the last cell an
        auxiliary Gaussian release of squared shift h² is composed with the mechanism.
        Adding a release only weakens privacy, so this is sound; its moments e^(−h²w²/2)
        end the integral.
Rule 4: Both directions, P against Q and Q against P, are bounded apart.

It neither composes releases nor chooses among accountants.

Source: the contour representation is the inverse Laplace transform of the
hockey-stick divergence; the product bound over coordinates is this project's own.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpnoise.accounting.contour.lattice import MAX_CONTOUR_VARIANCE, ContourLattice
from dpnoise.accounting.contour.moment_table import (
    LOG_NEGLIGIBLE_TAIL,
    CoordinateGrid,
    CoordinateNorm,
    MomentTable,
)
from dpnoise.floats import FloatArray
from dpnoise.searches import golden_section


class Direction(enum.Enum):
    """Which world the adversary is in when the loss is measured."""

    FORWARD = "with the user against without"
    REVERSE = "without the user against with"


@dataclass(frozen=True, slots=True)
class ContourResolution:
    """How finely the contour and the coordinates are cut; any choice is sound.

    Lengths along the contour are in units of √(v/C), the width of the main lobe.

    Args:
        main_lobe: End of the finely cut part.
        main_cells: Number of cells up to there.
        end: Where the auxiliary release takes over.
        outer_width: Width of a cell between the two.
        helper_decay: −log of the auxiliary release's moment at `end`.
        relative_width: Width of a coordinate cell relative to the coordinate.
    """

    main_lobe: float = 8.0
    main_cells: int = 192
    end: float = 140.0
    outer_width: float = 0.7
    helper_decay: float = 7.0
    relative_width: float = 1.0 / 40.0

    @property
    def outer_cells(self) -> int:
        """Number of cells between the main lobe and the end."""
        return math.ceil((self.end - self.main_lobe) / self.outer_width)


FINE: Final = ContourResolution()
"""For one release: all slack terms together cost about 0.2 % of the variance."""

COARSE: Final = ContourResolution(
    main_cells=64, end=80.0, outer_width=1.0, relative_width=1.0 / 24.0
)
"""For whole curves, where one of dozens of constants decides about each epsilon."""

_NEAR_ZERO: Final = 0.06  # × √v/(c + 4): the expansion at zero then costs 10^-3
_WIDEST: Final = 0.16  # cell width at which second-order terms cost 10^-3 of δ
_WIDE_WINDOW_FROM: Final = float(1 << 18)
_WIDE_WINDOW_RELATIVE_WIDTH: Final = 1.0 / 16.0
_OUTER_RELATIVE_WIDTH: Final = 0.125
_OUTER_WIDEST: Final = 0.6
_LARGEST_STEEPNESS: Final = 40.0  # c/√(v/C): δ is then below e^-800
_FINEST_STEEPNESS: Final = 12.0  # cells are not cut finer beyond δ = e^-72
_MAIN_PRECISION: Final = 1e-11
_OUTER_PRECISION: Final = 1e-5  # on coarse grids, 1e-3 would cost 5 % of the noise
_ROUNDING: Final = 1e-9  # relative; sums over cells, and rounding C·g, err by less
_UPWARDS: Final = 1.0 + 2.0**-48
_CLEARLY_LESS: Final = 0.05  # of log δ, where estimates tell which direction is worse
_CONSISTENCY_STEPS: Final = 4
_CONSISTENCY_GAIN: Final = 1e-8
_LOG_SEARCH_STEPS: Final = 44
_LOG_SEARCH_WIDTH: Final = 1e-3  # the bound is flat: an error enters squared
_NO_GAP: Final = 1e-300
_RUNGS: Final = 256.0  # contours that are tried, per e-fold
_PROBES: Final = 12
_GUESSES: Final = 129  # points of a quadrature along the contour
_GUESS_END: Final = 9.0  # main lobes; e^(-40) of a Gaussian's moments is left
_STEEPEST: Final = float(1 << 14)  # δ falls by e^-16 per 0.001 of ε; windows grow
_LARGEST_LOG_TERM: Final = 500.0  # steeper contours would overflow in the tables


@dataclass(frozen=True, slots=True)
class CellWidths:
    """How coordinates are cut on one part of a contour; any choice is sound.

    Args:
        near_zero: Where the cells begin, grid steps, before it is clamped.
        relative: Width of a cell in units of its position.
        largest: Absolute bound on the width, grid steps.
    """

    near_zero: float
    relative: float
    largest: float


def cell_widths(
    c: float, variance: float, norm_bound: float, resolution: ContourResolution
) -> tuple[CellWidths, CellWidths]:
    """Choose how coordinates are cut.

    Args:
        c: Real part of the contour, greater than 0.
        variance: Counted variance per coordinate, grid steps squared.
        norm_bound: Bound C on the sum of the norm over the coordinates, above 0.
        resolution: How finely to cut.

    Returns:
        The widths on the main lobe, and beyond.
    """
    root, lobe = math.sqrt(norm_bound), math.sqrt(variance / norm_bound)
    # Wide windows make every coordinate cell expensive; wider cells cost 0.1 % more.
    relative = resolution.relative_width
    if variance > _WIDE_WINDOW_FROM:
        relative = max(relative, _WIDE_WINDOW_RELATIVE_WIDTH)
    steep = min(max(1.0, c / lobe), _FINEST_STEEPNESS)
    near_zero = _NEAR_ZERO * math.sqrt(variance) / (c + 4.0)
    return (
        CellWidths(near_zero, relative, _WIDEST * root / steep**1.5),
        CellWidths(
            min(near_zero, 0.5 * root / resolution.end),
            _OUTER_RELATIVE_WIDTH,
            _OUTER_WIDEST * root / resolution.end,
        ),
    )


class ContourBound:
    """The privacy curve of one release of rounded coordinates with Skellam noise.

    Args:
        noise_variance: Counted variance v per coordinate, grid steps squared. Rounding
            it down is sound, rounding it up is not.
        norm: What the coordinates share out.
        norm_bound: Bound C on the sum of the norm over the coordinates.
        largest_coordinate: Enforced bound on every absolute coordinate, grid steps.
        dim: Number of coordinates.
        resolution: How finely to cut.

    Raises:
        TheoremNotApplicableError: The variance is below the range of the tables.
    """

    def __init__(  # noqa: PLR0913 - the release's five quantities and the effort
        self,
        *,
        noise_variance: float,
        norm: CoordinateNorm,
        norm_bound: float,
        largest_coordinate: float,
        dim: int,
        resolution: ContourResolution = FINE,
    ) -> None:
        # More noise never hurts (Sk(v + w) is Sk(v) plus noise): beyond the tables'
        # end, the loss at the end is claimed.
        self._variance = min(noise_variance, MAX_CONTOUR_VARIANCE)
        self._norm = norm
        self._reaches_bound = True
        if norm is CoordinateNorm.SQUARE:
            self._norm_bound = min(norm_bound, dim * largest_coordinate**2)
        elif norm is CoordinateNorm.MIXTURE:
            whole = math.floor(largest_coordinate)
            self._norm_bound = min(norm_bound, float(dim * whole**2))
        else:
            # A zero can become a one as long as there are zeros.
            self._norm_bound = float(math.floor(norm_bound))
            self._reaches_bound = self._norm_bound <= dim
        self._largest = min(largest_coordinate, math.sqrt(self._norm_bound) * _UPWARDS)
        self._resolution = resolution
        shift = max(1, math.ceil(self._largest))
        reach = int(14.0 * math.sqrt(self._variance)) + 8 * shift + 64
        self._lattice = ContourLattice.build(self._variance, reach)
        self._probes = self._probe(shift)
        self._smallest_growth = self._measure_smallest_coordinates()
        self._constants: dict[tuple[Direction, float], float] = {}
        self._latest: dict[Direction, float] = {}

    @property
    def noise_variance(self) -> float:
        """The variance that is tabulated, grid steps squared."""
        return self._variance

    @property
    def norm_bound(self) -> float:
        """The bound on the norm, after the cap by the dimension."""
        return self._norm_bound

    @property
    def is_constant(self) -> bool:
        """Whether both worlds have the same law, because nothing can be changed."""
        if self._norm is CoordinateNorm.INTEGER:
            return self._largest < 1.0
        return self._norm_bound <= 0.0

    @property
    def lobe(self) -> float:
        """Width √(v/C) of the main lobe: the noise multiplier of a like Gaussian."""
        return math.sqrt(self._variance / self._norm_bound)

    @property
    def helper_variance(self) -> float:
        """Squared shift h² of the auxiliary Gaussian release."""
        end = self._resolution.end * self.lobe
        return 2.0 * self._resolution.helper_decay / (end * end)

    @property
    def contours_bounded(self) -> int:
        """How many contours have been bounded, which is what takes time."""
        return len(self._constants)

    def delta(self, epsilon: float) -> float:
        """Bound delta in both directions.

        Args:
            epsilon: Privacy loss in nats, at least 0.

        Returns:
            The bound, in [0, 1].
        """
        if self.is_constant:
            return 0.0
        return math.exp(min(0.0, max(self._log_delta(epsilon, d) for d in Direction)))

    def likely_delta(self, epsilon: float) -> float:
        """Bound delta in those directions that may be the worse one; for searches.

        Args:
            epsilon: As for `delta`.

        Returns:
            What `delta` returns, or less where an estimate errs about the direction.
        """
        if self.is_constant:
            return 0.0
        estimates = {}
        for direction in Direction:
            c = self.best_contour(direction, epsilon=epsilon)
            estimates[direction] = (
                self._estimated_log_constant(c, direction) - c * epsilon
            )
        least = max(estimates.values()) - _CLEARLY_LESS
        # Where nothing can be estimated, both are infinite, and both are bounded.
        worst = max(
            self._log_delta(epsilon, direction)
            for direction, estimate in estimates.items()
            if not estimate < least
        )
        return math.exp(min(0.0, worst))

    def _log_delta(self, epsilon: float, direction: Direction) -> float:
        c = self.best_contour(direction, epsilon=epsilon)
        self._latest[direction] = c
        return self.log_constant(c, direction) - c * epsilon

    def epsilon(self, delta: float) -> float:
        """Bound epsilon in both directions.

        Args:
            delta: Failure probability in (0, 1).

        Returns:
            The bound in nats, at least 0.
        """
        if self.is_constant:
            return 0.0
        worst = 0.0
        for direction in Direction:
            # What is less than the other direction's is of no matter.
            if worst > 0.0 and self._log_delta(worst, direction) <= math.log(delta):
                continue
            c = self.best_contour(direction, log_delta=math.log(delta))
            found = (self.log_constant(c, direction) - math.log(delta)) / c
            # The slack differs between contours. So the best one for this delta by the
            # estimate may differ from the one that `delta` uses at the epsilon found.
            # Trying that one too makes both functions inverses of each other.
            for _ in range(_CONSISTENCY_STEPS):
                if found <= 0.0:  # less than nothing is nothing
                    break
                other = self.best_contour(direction, epsilon=found)
                better = (self.log_constant(other, direction) - math.log(delta)) / other
                if better >= found:
                    break
                c, gain, found = other, found - better, better
                if gain <= _CONSISTENCY_GAIN * found:
                    break
            self._latest[direction] = c
            worst = max(worst, found)
        return worst

    def details(self) -> dict[str, str]:
        """Return the figures that allow a reviewer to repeat the computation."""
        figures = {
            "noise_variance_used": self._variance.hex(),
            "norm": self._norm.value,
            "norm_bound_used": self._norm_bound.hex(),
            "largest_coordinate": repr(self._largest),
            "auxiliary_gaussian_shift_squared": repr(self.helper_variance),
            "contour_end": repr(self._resolution.end * self.lobe),
            "contour_cells": str(self._resolution.main_cells),
        }
        for direction, c in self._latest.items():
            key = direction.name.lower()
            figures[f"contour_{key}"] = repr(c)
            figures[f"log_constant_{key}"] = repr(self.log_constant(c, direction))
        return figures

    def best_contour(
        self,
        direction: Direction,
        *,
        epsilon: float | None = None,
        log_delta: float | None = None,
    ) -> float:
        """Choose c by a saddle-point estimate; a poor choice loses tightness only.

        Args:
            direction: Which direction to optimise for.
            epsilon: Minimise the bound on delta at this epsilon, or
            log_delta: minimise the bound on epsilon at this log delta.

        Returns:
            A real part c > 0.
        """

        def objective(c: float) -> float:
            constant = self._estimated_log_constant(c, direction)
            if log_delta is not None:
                return (constant - log_delta) / c
            return constant - c * (epsilon or 0.0)

        # What is best for an epsilon and for its delta is then mostly one contour.
        rungs = round(
            _RUNGS * math.log(least_contour(objective, self.lobe) / self.lobe)
        )
        return self.lobe * math.exp(rungs / _RUNGS)

    def log_constant(self, c: float, direction: Direction) -> float:
        """Bound log K(c), so that δ(ε) ≤ K(c)·e^(−cε) in this direction.

        Args:
            c: Real part of the contour, greater than 0.
            direction: Which world the adversary is in.

        Returns:
            The bound; infinite if no bound was found.
        """
        key = (direction, c)
        if key not in self._constants:
            # What overflows becomes infinite or no number, and claims nothing.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                self._constants[key] = self._bound_log_constant(c, direction)
        return self._constants[key]

    def guess_log_constant(self, c: float, direction: Direction) -> float:
        """Guess log K(c) from a few coordinates; no bound, and next to free.

        Args:
            c: Real part of the contour, greater than 0.
            direction: Which world the adversary is in.

        Returns:
            The guess; infinite where the coordinates that are tried say nothing.
        """
        # Laplace's method errs by percents where the contour is near zero. What it
        # should have found is the integral of a Gaussian's moments.
        lobe = self.lobe
        w = c * np.sinh(np.linspace(0.0, math.asinh(_GUESS_END * lobe / c), _GUESSES))
        sides = np.hypot(c, w) * np.hypot(c + 1.0, w)
        heights = np.exp(-0.5 * (w / lobe) ** 2) / sides
        area = float(((heights[1:] + heights[:-1]) * np.diff(w)).sum()) / 2.0
        by_laplace = math.sqrt(0.5 * math.pi / _curvature(c, lobe)) / (c * (c + 1.0))
        return self._estimated_log_constant(c, direction) + math.log(area / by_laplace)

    def _bound_log_constant(self, c: float, direction: Direction) -> float:
        """Bound the logarithm of the integral along one contour."""
        chosen, lobe = self._resolution, self.lobe
        exponent = c + 1.0 if direction is Direction.FORWARD else -c
        self._reach_for(exponent)
        main, outer = (
            CoordinateGrid.build(
                self._norm,
                largest=self._largest,
                near_zero=widths.near_zero,
                relative_width=widths.relative,
                largest_width=widths.largest,
            )
            for widths in cell_widths(c, self._variance, self._norm_bound, chosen)
        )
        inner_edges = np.linspace(0.0, chosen.main_lobe * lobe, chosen.main_cells + 1)
        outer_edges = np.linspace(
            inner_edges[-1], chosen.end * lobe, chosen.outer_cells + 1
        )
        pieces = []
        peak = math.inf
        for grid, edges, precision in (
            (main, inner_edges, _MAIN_PRECISION),
            (outer, outer_edges, _OUTER_PRECISION),
        ):
            table = MomentTable(self._lattice, grid, exponent=exponent)
            left, right = table.bounds(edges, precision=precision)
            left, right = self._norm_bound * left, self._norm_bound * right
            if edges[0] == 0.0:
                # The modulus of a moment is largest on the real axis, and only there.
                # Lattice resonances bring it back after the main lobe. So the bound at
                # the start of the outer cells caps none of them.
                peak = float(left[0])
            capped = np.minimum(np.maximum(left, right), peak)
            exceeds = np.maximum(left, right) > peak
            left = np.where(exceeds, capped, left)
            right = np.where(exceeds, capped, right)
            pieces.append(self._integrate(c, edges, left, right))
        helper = self.helper_variance
        last = chosen.end * lobe
        pieces.append(
            peak + 0.5 * helper * (c * (c + 1.0) - last * last) - math.log(last)
        )
        integral = float(np.logaddexp.reduce(pieces)) - math.log(math.pi)
        if not self._reaches_bound:  # rule 2
            nothing = 0.5 * helper * c * (c + 1.0) - 0.5 * math.log(4.0 * c * (c + 1.0))
            integral = max(integral, nothing)
        found = integral + _ROUNDING
        return math.inf if math.isnan(found) else found

    def _integrate(
        self, c: float, edges: FloatArray, left: FloatArray, right: FloatArray
    ) -> float:
        """Bound the log of the integral over cells, from bounds at their ends."""
        middle = 0.5 * (edges[1:] + edges[:-1])
        half = 0.5 * (edges[1:] - edges[:-1])
        helper = self.helper_variance
        shared = 0.5 * helper * (c * (c + 1.0) - middle**2)
        slope = -helper * middle  # a tangent: −w² is concave
        for side in (c, c + 1.0):
            # −log|side + iw| has a second derivative of at most 1/(8·side²).
            shared = shared - 0.5 * np.log(side**2 + middle**2)
            shared = shared + half**2 / (16.0 * side**2)
            slope = slope - middle / (side**2 + middle**2)
        low, high = left + shared - slope * half, right + shared + slope * half
        # The exponent is convex, so it lies below its chord, whose exponential has the
        # integral 2·half·(e^high − e^low)/(high − low).
        top, gap = np.maximum(low, high), np.abs(high - low)
        gap = np.maximum(gap, _NO_GAP)
        mean = -np.expm1(-gap) / gap
        return float(np.logaddexp.reduce(top + np.log(2.0 * half * mean)))

    def _reach_for(self, exponent: float) -> None:
        """Widen the lattice until the tails at this exponent are negligible."""
        shift = max(1, math.ceil(self._largest))
        need = int(10.0 * math.sqrt(self._variance)) + 4 * shift + 64
        need += int(min(self._largest, shift) * abs(exponent))
        while True:
            if self._lattice.reach < need:
                self._lattice = ContourLattice.build(self._variance, need)
            tails = self._lattice.log_tails(exponent=exponent, largest=self._largest)
            if max(tail[-1] for tail in tails) < LOG_NEGLIGIBLE_TAIL:
                return
            need = self._lattice.reach + self._lattice.reach // 2

    def _probe(self, shift: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Tabulate log R for a few coordinates, to choose contours by."""
        # A sum over every few integers is as good, where the noise spans many more.
        every = max(1, math.floor(math.sqrt(self._variance) / _PROBES))
        reach = self._lattice.reach - shift
        y = np.arange(-float(reach), reach + 1.0, every)
        ratios = self._lattice.shift_ratios(y, shift)
        if self._norm is CoordinateNorm.INTEGER:
            x = np.unique(np.geomspace(1.0, max(1.0, self._largest), _PROBES) // 1.0)
        else:
            x = self._largest * np.linspace(1.0 / _PROBES, 1.0, _PROBES)
        whole = np.ceil(x) - 1.0
        logs = [
            np.log(ratios[int(k)] + (at - k) * (ratios[int(k) + 1] - ratios[int(k)]))
            for at, k in zip(x, whole, strict=True)
        ]
        grid = CoordinateGrid(self._norm, x, np.zeros_like(x), 0.0, self._largest)
        log_weight = self._lattice.log_weight(y) + math.log(every)
        return log_weight, np.stack(logs), grid.norms(whole, x)

    def _measure_smallest_coordinates(self) -> float:
        """Return half of E[(ρ_1 − 1)²], where coordinates near zero may share C.

        To second order their log-moment at a contour is that times c(c + 1)x². Where a
        world without the user is the likelier one, losses of larger coordinates are
        bounded, and the smallest have most for their norm.
        """
        if self._norm is not CoordinateNorm.SQUARE:
            return 0.0
        y = np.arange(1.0 - self._lattice.reach, float(self._lattice.reach))
        change = self._lattice.shift_ratios(y, 1)[1] - 1.0
        return 0.5 * float((np.exp(self._lattice.log_weight(y)) * change**2).sum())

    def _estimated_log_constant(self, c: float, direction: Direction) -> float:
        """Estimate log K(c) by Laplace's method from a few coordinates."""
        exponent = c + 1.0 if direction is Direction.FORWARD else -c
        log_weight, ratios, norms = self._probes
        terms = log_weight + exponent * ratios
        top = terms.max(axis=1)
        rising = (terms[:, -1] > terms[:, -2]) | (terms[:, 0] > terms[:, 1])
        if bool(rising.any()) or float(top.max()) > _LARGEST_LOG_TERM:
            return math.inf  # the moment is concentrated beyond the probes, and is huge
        moments = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
        growth = float(np.max(moments / norms))
        growth = max(growth, c * (c + 1.0) * self._smallest_growth) * self._norm_bound
        return laplace_log_constant(c, growth, self.lobe)


def steepest_contour(lobe: float) -> float:
    """Return the largest real part that is tried for a main lobe of this width."""
    return min(_LARGEST_STEEPNESS * lobe, _STEEPEST)


def least_contour(objective: Callable[[float], float], lobe: float) -> float:
    """Search for the real part at which a function of it is least.

    Args:
        objective: The function, with one minimum.
        lobe: Width of the main lobe, as `ContourBound.lobe`.

    Returns:
        A real part c > 0.
    """
    log_c = golden_section(
        lambda log_c: objective(math.exp(log_c)),
        math.log(1e-3 * lobe / (1.0 + lobe)),
        math.log(steepest_contour(lobe)),
        steps=_LOG_SEARCH_STEPS,
        width=_LOG_SEARCH_WIDTH,
    )
    return math.exp(log_c)


def laplace_log_constant(c: float, growth: float, lobe: float) -> float:
    """Estimate log K(c) by Laplace's method.

    Args:
        c: Real part of the contour, greater than 0.
        growth: Log-moment on the real axis there.
        lobe: Width of the main lobe, as `ContourBound.lobe`.

    Returns:
        The estimate; no bound.
    """
    width = 2.0 * math.pi * _curvature(c, lobe)
    return growth - math.log(c * (c + 1.0)) - 0.5 * math.log(width)


def _curvature(c: float, lobe: float) -> float:
    """Return how fast a Gaussian's integrand bends where the contour meets the axis."""
    return lobe**-2 + c**-2 + (c + 1.0) ** -2
