"""Exact Rényi divergence of integer shifts of Skellam noise.

* The divergence of a vector is the sum over its coordinates. So it is at most its
  squared L2 norm times the largest D(s)/s² over integer shifts s that can occur. That
  maximum is finite and is computed, not argued.
* Shifts beyond those summed exactly, and variances beyond the tables, are bounded by
  [Aga21] Theorem 3.5, interpolated between integer orders.

It applies no L1 sensitivity: the squared norm is enough.

Skellam noise tabulated on an interval, for sums of likelihood-ratio functions.

Notation: q is the pmf of Skellam noise of variance v, ρ_s(y) = q(y−s)/q(y), r_k =
I_{k+1}(v)/I_k(v).

Rule 1: No Bessel function is called. Ratios come from the backward recurrence r_{k−1} =
        1/(2k/v + r_k), which is stable; weights are their running products.
Rule 2: Functions of a likelihood ratio L are summed as excesses: because E_Q[L] = 1,
        E_Q[L^a] − 1 = E_Q[L^a − 1 − a(L−1)], whose terms have one sign. Nothing
        cancels, however close the two laws are.
Rule 3: Whatever lies outside the interval is bounded, not dropped: the right tail of
        E_Q[ρ_s^a] by E_Q[ρ_s^b]/ρ_s(W)^(b−a) for an integer b above a, with [Aga21]
        Theorem 3.5 for the moment, or by a geometric series; plain tails by Chernoff's
        bound.
Rule 4: Sums carry the factor `SUM_MARGIN`. Forward error analysis: every ratio is off
        by at most 3·2^-53 per step of the recurrence (its error shrinks on the way
        down), at most 10^4 steps, so weights are off by at most 1e-8 relative and
        excesses of mixtures down to a sixty-fourth of a step by 1e-7, if exp and log
        are accurate to 4 units.

It serves variances up to `MAX_LATTICE_VARIANCE` only.

The module also holds the published bounds of [Aga21], to which exact sums fall back.
Their second parameter is the noise *variance*, twice the rate of either Poisson
variable. The theorems hold for integer orders above 1; other orders get infinity.
Sensitivities are norms of the *rounded* integer vector.
"""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.renyi.accountant import RenyiAccountant, RenyiCurve
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    DistributedDiscreteGaussianEvent,
    NoiseEvent,
    SkellamEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below


def shift_bound(
    orders: FloatArray, *, shift: float, noise_variance: float
) -> FloatArray:
    """Bound the Rényi divergence between Skellam noise and its integer shift.

    Args:
        orders: Rényi orders, shape (n,).
        shift: Largest absolute integer shift, grid steps, at least 0.
        noise_variance: Variance of the noise, grid steps squared, above 0.

    Returns:
        Bounds in nats, shape (n,); infinite at orders that are not integers above 1.

    Source:
        [Aga21] Theorem 3.5, Eq. (3.1).
    """
    return vector_bound(
        orders,
        l2_sensitivity=shift,
        l1_sensitivity=shift,
        noise_variance=noise_variance,
    )


def vector_bound(
    orders: FloatArray,
    *,
    l2_sensitivity: float,
    l1_sensitivity: float,
    noise_variance: float,
) -> FloatArray:
    """Bound the Rényi divergence between a Skellam vector and its integer shift.

    Args:
        orders: Rényi orders, shape (n,).
        l2_sensitivity: Bound on the L2 norm of the shift, grid steps, at least 0.
        l1_sensitivity: Bound on the L1 norm of the shift, grid steps, at least 0.
        noise_variance: Variance per coordinate, grid steps squared, above 0.

    Returns:
        Bounds in nats, shape (n,); infinite at orders that are not integers above 1.

    Source:
        [Aga21] Corollary 3.6, Eq. (3.2).
    """
    return scaled_vector_bound(
        orders,
        l2_sensitivity=l2_sensitivity,
        l1_sensitivity=l1_sensitivity,
        noise_variance=noise_variance,
        scale_factor=1.0,
    )


def scaled_vector_bound(
    orders: FloatArray,
    *,
    l2_sensitivity: float,
    l1_sensitivity: float,
    noise_variance: float,
    scale_factor: float,
) -> FloatArray:
    """Bound the same divergence with all lengths in the caller's units.

    Args:
        orders: Rényi orders, shape (n,).
        l2_sensitivity: Bound on the L2 norm of the shift, caller's units.
        l1_sensitivity: Bound on the L1 norm of the shift, caller's units.
        noise_variance: Variance per coordinate, caller's units squared, above 0.
        scale_factor: Grid steps per unit, above 0.

    Returns:
        Bounds in nats, shape (n,); infinite at orders that are not integers above 1.

    Source:
        [Aga21] Corollary 4.1.
    """
    # Notation of [Aga21]: μ = noise_variance, s = scale_factor, α = order.
    squared = l2_sensitivity * l2_sensitivity
    gaussian = orders * squared / (2.0 * noise_variance)
    quadratic = (
        (2.0 * orders - 1.0) * scale_factor * squared + 6.0 * l1_sensitivity
    ) / (4.0 * scale_factor**3 * noise_variance**2)
    linear = 3.0 * l1_sensitivity / (2.0 * scale_factor * noise_variance)
    bounds = (gaussian + np.minimum(quadratic, linear)) * ROUNDING_MARGIN
    covered = (orders > 1.0) & (orders == np.floor(orders))
    return np.where(covered, bounds, math.inf)


def integer_l1_sensitivity(*, dim: int, l2_sensitivity: float) -> float:
    """Bound the L1 norm of an integer vector by its L2 norm.

    Args:
        dim: Number of coordinates, at least 1.
        l2_sensitivity: Bound on the L2 norm, grid steps, at least 0.

    Returns:
        Bound on the L1 norm, grid steps: an integer entry is at most its square, and
        Cauchy's inequality gives the other term.

    Source:
        [Aga21] section 4.
    """
    return l2_sensitivity * min(math.sqrt(dim), l2_sensitivity) * ROUNDING_MARGIN


def sensitivities_of(
    release: SkellamEvent | DistributedDiscreteGaussianEvent, adjacency: Adjacency
) -> tuple[float, float]:
    """Bound how far an integer vector differs between neighbours.

    Args:
        release: Says the norms of one client's vector.
        adjacency: What neighbours are.

    Returns:
        Bounds on the L1 and on the L2 norm, grid steps. The first is what the release
        states, or what the second implies if that is less.
    """
    factor = adjacency.sensitivity_factor
    l2_sensitivity = factor * release.l2_sensitivity
    implied = integer_l1_sensitivity(dim=release.dim, l2_sensitivity=l2_sensitivity)
    if release.l1_sensitivity is None:
        return implied, l2_sensitivity
    return min(implied, factor * release.l1_sensitivity), l2_sensitivity


MAX_LATTICE_VARIANCE: Final = float(1 << 14)
"""Above, published bounds are within some 0.1 % of exact sums and cost nothing."""

SUM_MARGIN: Final = 1.0 + 1e-6

_SLOWEST_LOG_STEP: Final = -0.1  # a tail that falls by less has no bound here
_MAX_POINTS: Final = 1 << 18  # two megabytes per array; more means an absurd order
_WINDOW_STDDEVS: Final = 9.5
_SMALL_EXPONENT: Final = 0.5


@dataclass(frozen=True, slots=True)
class SkellamLattice:
    """Skellam noise on the integers from −reach to reach.

    Args:
        noise_variance: Variance v, grid steps squared.
        reach: Largest tabulated integer W.
        log_pmf: log q(y), shape (2·reach+1,).
        unit_ratio_excess: ρ_1(y) − 1, shape (2·reach+1,).
        max_shift: Largest shift whose ratios the table supports.
        log_ratios: log r_k, shape (reach + max_shift + 1,).
    """

    noise_variance: float
    reach: int
    log_pmf: FloatArray
    unit_ratio_excess: FloatArray
    max_shift: int
    log_ratios: FloatArray

    def log_ratio(self, shift: int) -> FloatArray:
        """Return log ρ_shift(y) at every tabulated y, shape (2·reach+1,)."""
        if shift == 0:
            return np.zeros_like(self.log_pmf)
        # log ρ_s(y) = Σ_{i<s} log ρ_1(y−i), and log ρ_1(y) is log r_{−y} for y ≤ 0 and
        # −log r_{y−1} for y ≥ 1.
        size = self.reach + self.max_shift
        extended = np.concatenate(
            (self.log_ratios[: size + 1][::-1], -self.log_ratios[: self.reach])
        )
        total = np.zeros_like(self.log_pmf)
        for offset in range(shift):
            first = self.max_shift - offset
            total += extended[first : first + total.size]
        return total

    def ratio_excess(self, shift: int) -> FloatArray:
        """Return ρ_shift(y) − 1 at every tabulated y, shape (2·reach+1,)."""
        if shift == 1:
            return self.unit_ratio_excess
        return np.asarray(np.expm1(self.log_ratio(shift)))

    def excess(
        self, power: float, ratio_excess: FloatArray, log_ratio: FloatArray
    ) -> FloatArray:
        """Sum E_Q[L^power − 1 − power·(L−1)] over the interval.

        Args:
            power: A number of at least 1 or at most 0, so that no term is negative.
            ratio_excess: L(y) − 1, shape (n, 2·reach+1), accurate near 0.
            log_ratio: log L(y), same shape, accurate everywhere.

        Returns:
            The sums, shape (n,), without what lies outside the interval; infinite
            where a term overflows.
        """
        exponents = power * log_ratio
        linear = power * ratio_excess
        pmf = np.exp(self.log_pmf)
        with np.errstate(over="ignore", invalid="ignore"):
            small = pmf * (np.expm1(exponents) - linear)
            # In the log domain, since the pmf may underflow where the power overflows.
            large = np.exp(self.log_pmf + exponents) - pmf * (1.0 + linear)
            terms = np.where(np.abs(exponents) < _SMALL_EXPONENT, small, large)
            sums: FloatArray = np.sum(terms, axis=-1)
        return np.where(np.isfinite(sums), np.maximum(sums, 0.0), math.inf)

    def moment_tail(self, power: float, shift: int) -> float:
        """Bound Σ q(y)·ρ_shift(y)^power over y > reach, for power ≥ 1."""
        return min(
            self._tail_by_higher_moment(power, shift),
            self._tail_by_geometric_series(power, shift),
        )

    def _tail_by_higher_moment(self, power: float, shift: int) -> float:
        """Rule 3: sharp where the reach is small against the variance."""
        variance = self.noise_variance
        log_ratio = self._log_ratio_at_reach(shift)
        best = variance * log_ratio / shift**2 + 0.5
        higher = float(max(math.ceil(power) + 1, math.floor(best), 2))
        bound = shift_bound(
            np.array([higher]), shift=float(shift), noise_variance=variance
        )[0]
        exponent = (higher - 1.0) * float(bound) - (higher - power) * log_ratio
        # The computed ratio is off by far less than this factor.
        return math.exp(min(exponent + 1e-6 * (1.0 + abs(exponent)), 700.0))

    def _tail_by_geometric_series(self, power: float, shift: int) -> float:
        """Rule 3 for small variances: sharp where the reach exceeds the variance.

        Consecutive terms have the ratio r_{y−s}·(r_{y−s}/r_y)^(α−1). From the
        recurrence, r_{y−s} ≤ v/(2(y−s+1)) and 1/r_y ≤ 2(y+1)/v + v/(2(y+2)), so the
        ratio is at most a function of y that falls.
        """
        reach, variance = float(self.reach), self.noise_variance
        below = reach - shift + 1.0
        growth = (reach + 1.0) / below + variance**2 / (4.0 * below * (reach + 2.0))
        log_step = math.log(0.5 * variance / below) + (power - 1.0) * math.log(growth)
        if log_step > _SLOWEST_LOG_STEP:
            return math.inf
        exponent = float(self.log_pmf[-1]) + power * self._log_ratio_at_reach(shift)
        step = math.exp(log_step)
        exponent += 1e-6 * (1.0 + abs(exponent))
        return math.exp(min(exponent, 700.0)) * step / (1.0 - step)

    def _log_ratio_at_reach(self, shift: int) -> float:
        """Return log ρ_shift(reach)."""
        return -float(np.sum(self.log_ratios[self.reach - shift : self.reach]))

    def plain_tail(self, beyond: int) -> float:
        """Bound P(noise > beyond) for beyond ≥ 0 by Chernoff's inequality."""
        threshold = max(beyond + 1.0, 0.0)
        variance = self.noise_variance
        rate = (
            threshold * math.asinh(threshold / variance)
            - math.hypot(threshold, variance)
            + variance
        )
        # hypot − variance cancels for large variances; 2^-40 of it covers that.
        return math.exp(-rate + 2.0**-40 * (1.0 + variance + threshold))


def lattice_for(noise_variance: float, *, order: float, shift: int) -> SkellamLattice:
    """Return a table that is wide enough for an order and a shift.

    Args:
        noise_variance: Variance, grid steps squared, above 0 and at most
            `MAX_LATTICE_VARIANCE`.
        order: Largest Rényi order of interest.
        shift: Largest shift of interest, grid steps, at least 1.

    Returns:
        A table whose tails at that order and shift are negligible, or the widest one
        that is affordable; tails are bounded either way.
    """
    # At order α the mass sits around α·shift.
    centre = order * shift
    wanted = centre + _WINDOW_STDDEVS * math.sqrt(noise_variance + centre) + 32.0
    # Few distinct sizes, so that a search over orders builds few tables.
    rounded = 2.0 ** (math.ceil(4.0 * math.log2(wanted)) / 4.0)
    return _build(noise_variance, min(math.ceil(rounded), _MAX_POINTS), shift)


@functools.lru_cache(maxsize=64)
def _build(noise_variance: float, reach: int, max_shift: int) -> SkellamLattice:
    """Return Skellam probabilities on the lattice, by a continued fraction."""
    size = reach + max_shift + 1
    # Start where the product of the squared ratios has forgotten the start value.
    start = size + math.ceil(10.0 * math.sqrt(noise_variance)) + 64
    ratios = np.empty(start)
    value = 0.0
    for index in range(start, 0, -1):
        value = 1.0 / (2.0 * index / noise_variance + value)
        ratios[index - 1] = value
    log_ratios = np.log(ratios[:size])
    half = np.concatenate(([0.0], np.cumsum(log_ratios)))
    # Sum from the outside inwards. What lies beyond the table is far below rounding,
    # and leaving it out of the total makes the pmf larger, which is the safe side.
    weights = np.exp(half)
    total = 2.0 * float(np.sum(weights[:0:-1])) + 1.0
    positive = half[: reach + 1] - math.log(total)
    excess_left = ratios[: reach + 1] - 1.0
    excess_right = 1.0 / ratios[:reach] - 1.0
    return SkellamLattice(
        noise_variance=noise_variance,
        reach=reach,
        log_pmf=np.concatenate((positive[:0:-1], positive)),
        unit_ratio_excess=np.concatenate((excess_left[::-1], excess_right)),
        max_shift=max_shift,
        log_ratios=log_ratios,
    )


_EXACT_SHIFTS: Final = 32
# The published bound exceeds the truth by a relative 1/v or so, hence the larger the
# variance the fewer shifts deserve an exact sum.
_EXACT_VARIANCE: Final = 8192.0


@functools.lru_cache(maxsize=1 << 14)
def integer_shift_divergence(
    order: float, *, shift: int, noise_variance: float
) -> float:
    """Return the Rényi divergence between Skellam noise and its shift, from above.

    Args:
        order: Rényi order above 1.
        shift: Absolute integer shift, grid steps, at least 0.
        noise_variance: Variance, grid steps squared, above 0.

    Returns:
        The divergence in nats, the same in both directions, within 1e-6 relative; above
        `MAX_LATTICE_VARIANCE` the published bound at the next integer order.

    Source:
        The definition of the divergence; [Aga21] Theorem 3.5 for large variances.
    """
    if shift == 0:
        return 0.0
    if noise_variance > MAX_LATTICE_VARIANCE:
        return published_shift_bound(order, shift=shift, noise_variance=noise_variance)
    lattice = lattice_for(noise_variance, order=order, shift=shift)
    excess = float(
        lattice.excess(
            order,
            lattice.ratio_excess(shift)[np.newaxis],
            lattice.log_ratio(shift)[np.newaxis],
        )[0]
    )
    # Beyond the table L^α − 1 − α(L−1) is at most L^α on the right and α − 1 + L^α,
    # with L ≤ 1, on the left.
    tail = lattice.moment_tail(order, shift) + order * lattice.plain_tail(lattice.reach)
    return math.log1p(excess * SUM_MARGIN + tail) / (order - 1.0) * ROUNDING_MARGIN


def published_shift_bound(order: float, *, shift: int, noise_variance: float) -> float:
    """Extend the published bound to real orders.

    Args:
        order: Rényi order above 1.
        shift: Absolute integer shift, grid steps, at least 0.
        noise_variance: Variance, grid steps squared, above 0.

    Returns:
        Bound in nats: (α−1)·D_α is convex in α and 0 at α = 1, so it is interpolated
        linearly between integer orders.

    Source:
        [Aga21] Theorem 3.5; Hölder's inequality between integers.
    """
    low, high = math.floor(order), math.ceil(order)
    ends = shift_bound(
        np.array([max(low, 2), max(high, 2)], dtype=np.float64),
        shift=float(shift),
        noise_variance=noise_variance,
    )
    if low == high:
        return float(ends[0])
    log_low = (low - 1.0) * float(ends[0]) if low > 1 else 0.0
    log_high = (high - 1.0) * float(ends[1])
    log_moment = log_low + (order - low) * (log_high - log_low)
    return log_moment / (order - 1.0) * ROUNDING_MARGIN


@functools.lru_cache(maxsize=1 << 14)
def _per_squared_step(order: float, largest_shift: int, noise_variance: float) -> float:
    """Bound D(s)/s² over 1 ≤ s ≤ largest_shift."""
    affordable = math.ceil(_EXACT_VARIANCE / noise_variance)
    exact = min(largest_shift, _EXACT_SHIFTS, affordable)
    worst = max(
        integer_shift_divergence(order, shift=shift, noise_variance=noise_variance)
        / shift**2
        for shift in range(1, exact + 1)
    )
    if largest_shift > exact:
        # The published bound over s² falls with s, so its first value bounds the rest.
        first = exact + 1
        bound = published_shift_bound(order, shift=first, noise_variance=noise_variance)
        worst = max(worst, bound / first**2)
    return worst


@dataclass(frozen=True, slots=True)
class ExactSkellamCurve(RenyiCurve):
    """The exact divergence of the worst integer shift within an L2 ball.

    Args:
        l2_sensitivity_squared: Bound on the squared L2 norm, grid steps squared.
        linf_sensitivity: Bound on the absolute entries, grid steps, at least 0.
        noise_variance: Variance per coordinate, grid steps squared, above 0.
    """

    mirrored: ClassVar[bool] = True
    """Reflecting every coordinate at half its shift swaps the two worlds."""

    l2_sensitivity_squared: float
    linf_sensitivity: int
    noise_variance: float

    @property
    def closed_form(self) -> bool:
        """Up to the largest tabulated variance every value is a sum."""
        return self.noise_variance > MAX_LATTICE_VARIANCE

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,).
        """
        if self.linf_sensitivity == 0:
            return np.zeros_like(orders)
        worst = [
            _per_squared_step(float(order), self.linf_sensitivity, self.noise_variance)
            for order in orders
        ]
        return np.array(worst) * (self.l2_sensitivity_squared * ROUNDING_MARGIN)


class SkellamRDPAccountant(RenyiAccountant):
    """Exact Rényi divergence of Skellam noise under integer shifts.

    Source:
        This project for the maximum over shifts and the bounds on tails; [Aga21]
        Theorem 3.5 beyond the tables.
    """

    name = "skellam-rdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if not isinstance(release, SkellamEvent):
            return super()._curve(release)
        return exact_skellam_curve(release, self.adjacency)

    def _assumptions(self) -> tuple[str, ...]:
        return ("Every rounded vector obeys the stated L2 bound.",)


def exact_skellam_curve(
    release: SkellamEvent, adjacency: Adjacency
) -> ExactSkellamCurve:
    """Return the exact curve of a Skellam release.

    Args:
        release: One release.
        adjacency: Which neighbouring inputs must look alike.

    Returns:
        The curve.
    """
    factor = adjacency.sensitivity_factor
    l2_sensitivity = factor * release.l2_sensitivity * ROUNDING_MARGIN
    largest = math.floor(l2_sensitivity)
    if release.linf_sensitivity is not None:
        largest = min(largest, round(factor) * release.linf_sensitivity)
    return ExactSkellamCurve(
        l2_sensitivity_squared=l2_sensitivity * l2_sensitivity,
        linf_sensitivity=largest,
        noise_variance=float_below(release.aggregate_noise_variance),
    )
