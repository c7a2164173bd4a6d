"""Exact Rényi divergence of stochastically rounded vectors plus Skellam noise.

Notation: a coordinate x = k + p with k = ⌊x⌋ is rounded to k or k+1, so that P_x =
(1−p)·Q_k + p·Q_{k+1}, Q being the noise; L = dP_x/dQ, A = E_Q[L^α], B = E_Q[L^(1−α)].

Rule 1: Divergences add over coordinates, so the divergence of a vector is at most its
        squared norm times κ = sup over 0 < x ≤ X of max{D(P_x‖Q), D(Q‖P_x)}/x². Other
        users' data and own rounding have the same law for both inputs and are
        independent: reveal them and use quasi-convexity.
Rule 2: L grows with y and Q_{k+1} dominates Q_k, so A and B grow with x and are convex
        in p on every unit cell. Between two grid points they lie below their chord; the
        logarithm of a chord lies below its tangent; and a tangent over x² has its
        maximum at an end or at one stationary point. So each cell's supremum is bounded
        in closed form.
Rule 3: Next to zero, A − 1 = O(x²) by Taylor: with u = dQ_1/dQ, A(p) − 1 ≤ (p²/2)·sup
        of A''(p) = α(α−1)·E_Q[(u−1)²·(1−p+pu)^(α−2)] over p ≤ x0. For α ≥ 3 that is
        convex in p, so an end is largest. For smaller orders the power is at most
        max(1, its value at x0).
Rule 4: On the first cell the mixture against the noise is Poisson subsampling of a unit
        shift at rate p. The laws of the shift are mirror images, so the other
        direction is dominated (`renyi.accountant`, rule 2) and need not be summed.
Rule 5: Above the largest tabulated variance, the first cell is subsampling of the
        published shift bound. On later cells, from a smaller variance on, noise is
        split into two independent parts, one for the shift by k and one for the rest p,
        whose divergences add. The sum of both parts is what is released
        (post-processing). Any split is sound; good ones cost a relative α/v.

* The publication's own clip bounds the plain squared norm too, since x² + f − f² is at
  least x². Its releases are covered with C = c and X = Δ∞. No special clip, no
  condition on orders, no L1 norm is needed.
* Skellam, discrete and continuous Gaussian releases compose along.

It compares with the zero vector only; two mixtures against each other (replace-one) are
not covered.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.accountant import ReleaseSize
from dpnoise.accounting.conversion import renyi_epsilons
from dpnoise.accounting.renyi.accountant import (
    MAX_SAMPLED_ORDER,
    RenyiAccountant,
    RenyiCurve,
)
from dpnoise.accounting.renyi.skellam_rdp import (
    MAX_LATTICE_VARIANCE,
    SUM_MARGIN,
    SkellamLattice,
    exact_skellam_curve,
    lattice_for,
    published_shift_bound,
)
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below

_FIRST_POINT: Final = 1.0 / 32.0
_FIRST_POINT_OF_SMALL_NOISE: Final = 1.0 / 256.0  # skewed ratios need a closer start
_NEAR_ONE: Final = -0.5  # L − 1 above which log1p serves; around here both do
_CONVEX_FROM: Final = 3.0  # from this order on the power α − 2 is convex
_SMALL_VARIANCE: Final = 4.0
_RATIO: Final = 1.05  # neighbouring points of the first cell: costs under 0.2 %
_LATER_CELL_LOSS: Final = 6e-4  # relative, from chords of later cells
_CLOSED_FORM_RATIO: Final = 1.08
_SHARES_PER_OCTAVE: Final = 12
_SPLITS_PER_OCTAVE: Final = 24
_LEAST_SHARE_EXPONENT: Final = -11
_SPLIT_FROM: Final = 256.0  # times the order; splitting costs a relative order/v
_EXACT_CELLS: Final = 32
_MAX_CHUNK: Final = 1 << 20  # numbers per temporary array, eight megabytes
# Beyond, nothing is stated: a sum over so many orders takes a twentieth of a second,
# and one for each of some 300 parts of the noise as long. Larger orders serve an
# epsilon below 0.005, or 0.2 with coordinates above one, where noise is so wide that
# `mixture-gdp` needs less of it.
_LARGEST_ORDER: Final = 1 << 13
_LARGEST_SPLIT_ORDER: Final = 1 << 7


@functools.lru_cache(maxsize=1 << 14)
def mixture_divergence_per_square(
    order: float, *, linf_bound: float, noise_variance: float
) -> float:
    """Bound κ, the divergence of a coordinate per squared grid step.

    Args:
        order: Rényi order above 1.
        linf_bound: Bound X on the absolute coordinate before rounding, grid steps,
            above 0.
        noise_variance: Variance of the summed noise, grid steps squared, above 0.

    Returns:
        A bound in nats per squared step that holds in both directions; within about
        0.3 % of the supremum. Infinite where a sum overflows, and at orders so large
        that it would take seconds.

    Source:
        Rules 1 to 5 of this module.
    """
    cells = math.ceil(linf_bound)
    if noise_variance > MAX_LATTICE_VARIANCE:
        if order > (_LARGEST_ORDER if cells == 1 else _LARGEST_SPLIT_ORDER):
            return math.inf
        worst = _between_integers(
            order,
            lambda integer: _first_cell_in_closed_form(
                integer, min(linf_bound, 1.0), noise_variance
            ),
        )
    else:
        lattice = lattice_for(noise_variance, order=order, shift=1)
        worst = _first_cell(lattice, order, min(linf_bound, 1.0))
    if noise_variance > min(MAX_LATTICE_VARIANCE, _SPLIT_FROM * order):
        later = _between_integers(
            order,
            lambda integer: _later_cells_in_closed_form(integer, cells, noise_variance),
        )
        return max(worst, later) * ROUNDING_MARGIN
    exact = min(cells, _EXACT_CELLS)
    lattice = lattice_for(noise_variance, order=order, shift=exact)
    for cell in range(1, exact):
        worst = max(worst, _later_cell(lattice, order, cell, linf_bound))
    for cell in range(exact, cells):
        # Divergence grows with x; a coordinate this long costs hundreds of nats.
        shift = published_shift_bound(
            order, shift=cell + 1, noise_variance=noise_variance
        )
        worst = max(worst, shift / cell**2)
    return worst * ROUNDING_MARGIN


def _excess(
    lattice: SkellamLattice,
    order: float,
    cell: int,
    coordinates: FloatArray,
    *,
    forward: bool,
) -> FloatArray:
    """Bound E_Q[L^α] − 1, or E_Q[L^(1−α)] − 1, for coordinates of one unit cell.

    Upper bounds within 1e-6 relative, of the shape of the coordinates in [k, k+1].
    """
    shares = (coordinates - cell)[:, np.newaxis]
    low, high = lattice.ratio_excess(cell), lattice.ratio_excess(cell + 1)
    ratio_excess = low + shares * (high - low)
    log_low, log_high = lattice.log_ratio(cell), lattice.log_ratio(cell + 1)
    with np.errstate(divide="ignore"):
        # The logarithm of the mixture, accurate where L is near 1 and where it is tiny.
        log_mixture = np.where(
            ratio_excess > _NEAR_ONE,
            np.log1p(np.maximum(ratio_excess, _NEAR_ONE)),
            np.logaddexp(np.log1p(-shares) + log_low, np.log(shares) + log_high),
        )
    power = order if forward else 1.0 - order
    sums = lattice.excess(power, ratio_excess, log_mixture)
    # Beyond the table, on the side where the power of L is large, it is at most that
    # power of ρ_{k+1} (backwards after a reflection). On the other side it is at most
    # 1, or α·L for the linear term.
    tail = lattice.moment_tail(order, cell + 1) + order * (
        lattice.plain_tail(lattice.reach) + lattice.plain_tail(lattice.reach - cell - 1)
    )
    return sums * SUM_MARGIN + tail


def _first_cell(lattice: SkellamLattice, order: float, end: float) -> float:
    """Bound D/x² over 0 < x ≤ end ≤ 1."""
    is_small = lattice.noise_variance < _SMALL_VARIANCE
    first = min(_FIRST_POINT_OF_SMALL_NOISE if is_small else _FIRST_POINT, end)
    # Rule 3. For u ≥ 1 the summand is at most u^max(α, 2), for u < 1 at most 1.
    excess = lattice.unit_ratio_excess
    exponent = (order - 2.0) * np.log1p(first * excess)
    # In the log domain, since the pmf may underflow where the power overflows: their
    # product would be no number, which `max` does not see.
    with np.errstate(over="ignore"):
        if order >= _CONVEX_FROM:
            ends = lattice.log_pmf, lattice.log_pmf + exponent
            second = max(float(np.sum(np.exp(end) * excess**2)) for end in ends)
        else:
            growth = lattice.log_pmf + np.maximum(0.0, exponent)
            second = float(np.sum(np.exp(growth) * excess**2))
    tail = lattice.moment_tail(max(order, 2.0), 1) + lattice.plain_tail(lattice.reach)
    worst = 0.5 * order * (second * SUM_MARGIN + tail)
    if end > first:
        steps = math.ceil(math.log(end / first) / math.log(_RATIO))
        points = first * (end / first) ** (np.arange(steps + 1) / steps)
        points[-1] = end
        excesses = _excess(lattice, order, 0, points, forward=True)
        worst = max(worst, float(_chord_suprema(order, points, excesses)))
    return worst if math.isfinite(worst) else math.inf


def _later_cell(
    lattice: SkellamLattice, order: float, cell: int, linf_bound: float
) -> float:
    """Bound D/x² in both directions over cell ≤ x ≤ min(cell + 1, linf_bound)."""
    # A chord over a width h loses about h²·(1/(4x²) + α²/(4v)) of the quotient.
    curvature = 0.25 / cell**2 + 0.25 * order**2 / lattice.noise_variance
    count = min(max(2, math.ceil(math.sqrt(curvature / _LATER_CELL_LOSS))), 64)
    points = np.linspace(cell, min(cell + 1.0, linf_bound), count + 1)
    return max(
        float(
            _chord_suprema(
                order,
                points,
                _excess(lattice, order, cell, points, forward=forward),
            )
        )
        for forward in (True, False)
    )


def _chord_suprema(
    order: float, points: FloatArray, excesses: FloatArray
) -> FloatArray:
    """Bound log(1 + chord)/((α−1)·x²) over all cells between neighbouring points.

    Takes excesses of shape (..., n) at points of shape (n,) and returns shape (...).
    """
    left, right = points[:-1], points[1:]
    middle = 0.5 * (left + right)
    # An excess that overflows, or nearly so, makes the bound infinite in the end.
    with np.errstate(all="ignore"):
        slope = (excesses[..., 1:] - excesses[..., :-1]) / (right - left)
        at_middle = 0.5 * (excesses[..., 1:] + excesses[..., :-1])
        # Tangent of log(1 + chord) at the middle: intercept + rise·x.
        rise = slope / (1.0 + at_middle)
        intercept = np.log1p(at_middle) - rise * middle
        stationary = np.nan_to_num(-2.0 * intercept / rise, nan=0.0)
        suprema = [
            np.max((intercept + rise * x) / x**2, axis=-1)
            for x in (left, right, np.clip(stationary, left, right))
        ]
    largest = np.max(suprema, axis=0) / (order - 1.0) * ROUNDING_MARGIN
    return np.where(np.isfinite(largest), largest, math.inf)


def _between_integers(order: float, bound: Callable[[int], float]) -> float:
    """Extend a bound on κ from integer orders to real ones."""
    low, high = max(2, math.floor(order)), max(2, math.ceil(order))
    at_high = bound(high)
    if order >= high or low == high:
        return at_high
    # (α−1)·D is convex in α for every coordinate, hence also its supremum; and D grows
    # with the order, which serves the orders below 2.
    log_moment = (high - order) * (low - 1.0) * bound(low)
    log_moment += (order - low) * (high - 1.0) * at_high
    return log_moment / (order - 1.0) * ROUNDING_MARGIN


@functools.lru_cache(maxsize=1 << 14)
def _first_cell_in_closed_form(order: int, end: float, noise_variance: float) -> float:
    return float(_subsampled_shifts(order, end, np.array([noise_variance]))[0])


@functools.lru_cache(maxsize=1 << 14)
def _later_cells_in_closed_form(order: int, cells: int, noise_variance: float) -> float:
    """Bound D/x² over 1 ≤ x ≤ cells by splitting the noise."""
    if cells <= 1:
        return 0.0
    # A part of less variance than the order has moments without bound, and far from
    # zero a share gets only its fraction of the coordinate.
    smallest = 0.5 * order * cells / noise_variance
    least = max(_LEAST_SHARE_EXPONENT, min(-1, math.log2(smallest)))
    exponents = np.arange(math.floor(_SHARES_PER_OCTAVE * least), 1.0)
    ends = 2.0 ** (exponents / _SHARES_PER_OCTAVE)
    # The first entry also serves the shares before the first end.
    wanted = np.concatenate(([ends[0]], np.sqrt(ends[:-1] * ends[1:])))
    # The variance for the share is proportional to the share, rounded to a grid that
    # all cells have in common.
    lowest = _SPLITS_PER_OCTAVE * (least - 1.0 - math.log2(cells + 1.0))
    grid = np.arange(math.floor(lowest), 0.0)
    variances = noise_variance * 2.0 ** (grid / _SPLITS_PER_OCTAVE)
    rates = _subsampled_shifts(order, 1.0, variances)
    worst = 0.0
    for cell in range(1, cells):
        steps = np.round(_SPLITS_PER_OCTAVE * np.log2(wanted / (cell + wanted)))
        chosen = np.minimum(steps - grid[0], grid.size - 1.0).astype(np.int64)
        rest = noise_variance - variances[chosen]
        # [Aga21] Theorem 3.5 for the shift by k with the rest of the noise.
        shifts = order * cell**2 / (2.0 * rest) + np.minimum(
            ((2.0 * order - 1.0) * cell**2 + 6.0 * cell) / (4.0 * rest**2),
            1.5 * cell / rest,
        )
        # Up to the first share: divergence grows with x.
        start = (shifts[0] + ends[0] ** 2 * rates[chosen[0]]) / cell**2
        # (a + b·p²)/(k + p)² falls, then grows: its maximum is at an end.
        at_ends = [
            (shifts[1:] + share**2 * rates[chosen[1:]]) / (cell + share) ** 2
            for share in (ends[:-1], ends[1:])
        ]
        worst = max(worst, float(start), float(np.max(at_ends)))
    return worst * ROUNDING_MARGIN


def _subsampled_shifts(order: int, end: float, variances: FloatArray) -> FloatArray:
    """Bound D/x² over 0 < x ≤ end ≤ 1 by the binomial expansion, per variance."""
    powers = np.arange(2.0, order + 1.0)
    # Below this point, Σ C(α,l)·p^(l−2)·(moment − 1) exceeds its first term by 1e-3.
    first = min(1e-3 / order, 0.5 * end)
    steps = max(1, math.ceil(math.log(end / first) / math.log(_CLOSED_FORM_RATIO)))
    points = first * (end / first) ** (np.arange(steps + 1) / steps)
    points[-1] = end
    log_factorials = np.concatenate(
        ([0.0], np.cumsum(np.log(np.arange(1.0, order + 1))))
    )
    log_binomial = log_factorials[order] - (
        log_factorials[2:] + log_factorials[: order - 1][::-1]
    )
    column = points[:, np.newaxis]
    # (α − l)·log(1−p) is 0·(−∞) at p = 1, l = α, where it means 0.
    log_weights = (
        log_binomial
        + (order - powers) * np.log1p(-np.minimum(column, 1.0 - 1e-16))
        + powers * np.log(column)
    )
    near_zero = log_binomial + (powers - 2.0) * math.log(first)
    results = np.empty_like(variances)
    chunk = max(1, _MAX_CHUNK // log_weights.size)
    for begin in range(0, variances.size, chunk):
        part = slice(begin, begin + chunk)
        variance = variances[part, np.newaxis]
        # [Aga21] Theorem 3.5 at shift 1 and every order l.
        log_moments = (powers - 1.0) * (
            powers / (2.0 * variance)
            + np.minimum((2.0 * powers + 5.0) / (4.0 * variance**2), 1.5 / variance)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            excess_moments = np.log(np.expm1(log_moments * ROUNDING_MARGIN))
            excesses = np.sum(
                np.exp(excess_moments[:, np.newaxis, :] + log_weights), axis=-1
            )
            beside_zero = np.sum(np.exp(excess_moments + near_zero), axis=-1)
        suprema = _chord_suprema(float(order), points, excesses * SUM_MARGIN)
        results[part] = np.maximum(suprema, beside_zero * SUM_MARGIN / (order - 1.0))
    return np.where(np.isfinite(results), results, math.inf)


# What an answer costs, measured: the supremum over coordinates, cell by cell, at every
# order; beyond 32 a closed form.
_DEVIATIONS: Final = 14.0
_CELLS_PER_COORDINATE: Final = 3e6
_CELLS_PER_EXACT_COORDINATE: Final = 1.5e7
_EXACT_COORDINATES: Final = 32.0
# Noise of less than a grid step: every cell is cut into 64 parts at every order, and
# the search passes all orders, since long coordinates have a bound at none.
_LITTLE_NOISE: Final = 1.0
_CUT_FINELY: Final = 8.0
# Beyond the lattice sums, a term for every order below the best one at 200 coordinates,
# and where a coordinate exceeds one, for each of 312 ways to split the noise. The best
# order is that of a Gaussian, which is largest for one release at a small δ.
_CLOSED_FROM: Final = float(1 << 14)
_CELLS_PER_ORDER: Final = 12 * 30 * 200.0
_SPLITS: Final = 312.0
_LARGEST_ORDERS: Final = (float(1 << 13), float(1 << 7))  # without splits, and with
_LARGEST_SAMPLED_ORDER: Final = 1024.0
# What the search for the best order behind a selection evaluates beyond it, and what
# each takes: calls, an integer of the window at each point of a cell, or a term of the
# closed form. Points are those of the divergences above.
_SAMPLED_SEARCH: Final = (1.5, 16.0)
_PER_SAMPLED_ORDER: Final = 1e5
_PER_SAMPLED_POINT: Final = 40.0
_PER_SAMPLED_TERM: Final = 900.0
_POINTS_PER_FOLD: Final = 1.0 / math.log(1.05)
_FIRST_POINTS: Final = (32.0, 256.0)  # one over them: of usual noise, and of little
_LATER_CURVATURE: Final = 0.25 / 6e-4
_MOST_LATER_POINTS: Final = 64.0


@dataclass(frozen=True, slots=True)
class ExactMixtureCurve(RenyiCurve):
    """The divergence of the worst rounded vector within an L2 ball and a cube.

    Args:
        squared_norm: Bound on the squared norm before rounding, grid steps squared.
        linf_bound: Bound on the absolute coordinates before rounding, grid steps.
        noise_variance: Variance per coordinate, grid steps squared, above 0.
    """

    squared_norm: float
    linf_bound: float
    noise_variance: float

    @property
    def closed_form(self) -> bool:
        """Every value is a search over coordinates."""
        return False

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence in both directions.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,).
        """
        if self.squared_norm == 0.0:
            return np.zeros_like(orders)
        per_square = [
            mixture_divergence_per_square(
                float(order),
                linf_bound=self.linf_bound,
                noise_variance=self.noise_variance,
            )
            for order in orders
        ]
        return np.array(per_square) * (self.squared_norm * ROUNDING_MARGIN)


class MixtureRDPAccountant(RenyiAccountant):
    """Exact Rényi divergence of the Skellam mixture under a plain L2 clip.

    Source:
        This project; proof in the module, behind a selection in `renyi.accountant`.
    """

    name = "mixture-rdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN

    @classmethod
    def cost(
        cls, release: NoiseEvent, *, times: int, delta: float, rate: float
    ) -> float:
        """Estimate the sums over orders."""
        size = ReleaseSize.of(release)
        if not size:
            return 0.0
        norm, largest, variance = size.norm, size.largest, size.variance
        if rate < 1.0:
            orders = _sampled_orders(variance / norm, times, delta, rate)
            return _sampled_cost(largest, variance, orders)
        cells = (1.0 + largest) * _CELLS_PER_COORDINATE
        if variance <= _CLOSED_FROM:
            exact = min(largest, _EXACT_COORDINATES) * (largest > 1.0)
            exact *= _CUT_FINELY if variance < _LITTLE_NOISE else 1.0
            return cells + exact * _CELLS_PER_EXACT_COORDINATE
        order = 1.0 + math.sqrt(-2.0 * math.log(delta) * variance / (norm * times))
        order = min(order, _LARGEST_ORDERS[largest > 1.0])
        splits = 1.0 + _SPLITS * (largest > 1.0)
        return cells + order * splits * _CELLS_PER_ORDER

    @classmethod
    def least_epsilon(cls, delta: float, rate: float) -> float:
        """Return the epsilon of the largest order behind a selection."""
        if rate == 1.0:
            return 0.0
        largest = np.array([float(MAX_SAMPLED_ORDER)])
        return float(renyi_epsilons(largest, np.zeros(1), delta)[0])

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, SkellamEvent):
            return exact_skellam_curve(release, self.adjacency)
        if isinstance(release, SkellamMixtureEvent):
            squared_norm = release.l2_clip_squared_steps
        elif isinstance(release, SkellamMixtureClippedEvent):
            squared_norm = release.mixture_norm_bound
        else:
            return super()._curve(release)
        return ExactMixtureCurve(
            squared_norm=min(squared_norm, release.dim * float(release.linf_bound) ** 2)
            * ROUNDING_MARGIN,
            # A coordinate is at most as long as its vector.
            linf_bound=min(
                float(release.linf_bound), math.sqrt(squared_norm) * ROUNDING_MARGIN
            ),
            noise_variance=float_below(release.aggregate_noise_variance),
        )

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "Every scaled vector obeys the stated L2 bound before rounding.",
            "Every scaled coordinate obeys the stated bound before rounding.",
        )


def _sampled_orders(noise: float, times: int, delta: float, rate: float) -> float:
    """Estimate how many orders are evaluated behind a selection.

    Each of them needs a moment.
    The best order is that of a Gaussian whose shift the selection has shortened, but
    not beyond that at which the moment of a release that is surely seen outweighs the
    chance α·log(1/rate) of as many selections; nor below that of such releases alone.

    Args:
        noise: Variance over squared norm.
        times: Releases.
        delta: Of the whole.
        rate: Of the selection.
    """
    certain = math.sqrt(-2.0 * math.log(delta) * noise / times)
    steepest = 1.0 - 2.0 * noise * math.log(rate)
    factor, more = _SAMPLED_SEARCH
    best = max(certain, min(certain / rate, steepest))
    return min(more + factor * best, _LARGEST_SAMPLED_ORDER)


def _sampled_cost(largest: float, variance: float, orders: float) -> float:
    """Estimate moments of all orders up to one; arguments as in `ReleaseSize`."""
    exceeds_one = largest > 1.0
    each = _PER_SAMPLED_ORDER + _CELLS_PER_COORDINATE * largest * exceeds_one
    if variance > _CLOSED_FROM:
        orders = min(orders, _LARGEST_ORDERS[exceeds_one])
        terms = orders * (1.0 + _SPLITS * exceeds_one)
        return orders * (each + terms * _PER_SAMPLED_TERM)
    reach = _FIRST_POINTS[variance < _SMALL_VARIANCE] * min(largest, 1.0)
    points = 1.0 + _POINTS_PER_FOLD * math.log(max(1.0, reach))
    if exceeds_one:
        curvature = _LATER_CURVATURE * (1.0 + orders * orders / variance)
        later = min(math.sqrt(curvature), _MOST_LATER_POINTS)
        points += 2.0 * min(largest, _EXACT_COORDINATES) * later
    window = 2.0 * (_DEVIATIONS * math.sqrt(variance) + 8.0 * (1.0 + largest))
    return orders * (each + _PER_SAMPLED_POINT * window * points)
