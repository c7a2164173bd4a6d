"""Exact Rényi divergence of integer shifts of Skellam noise.

* The divergence of a vector is the sum over its coordinates. So it is at most its
  squared L2 norm times the largest D(s)/s² over integer shifts s that can occur. That
  maximum is finite and is computed, not argued.
* Shifts beyond those summed exactly, and variances beyond the tables, are bounded by
  [Aga21] Theorem 3.5, interpolated between integer orders.

It applies no L1 sensitivity: the squared norm is enough.
"""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.renyi.accountant import RenyiAccountant
from dpnoise.accounting.renyi.curve import RenyiCurve
from dpnoise.accounting.renyi.skellam_lattice import (
    MAX_LATTICE_VARIANCE,
    SUM_MARGIN,
    lattice_for,
    shift_bound,
)
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    NoiseEvent,
    SkellamEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below

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
