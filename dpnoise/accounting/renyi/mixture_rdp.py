"""The Rényi accountant of stochastically rounded vectors.

* A vector of squared norm at most C and coordinates at most X costs at most
  κ·min(C, d·X²) at every order, with κ from `mixture_divergence`. No special clip, no
  condition on orders, no L1 norm.
* The publication's own clip bounds the plain squared norm too, since x² + f − f² is at
  least x²; its releases are covered with C = c and X = Δ∞.
* Skellam, discrete and continuous Gaussian releases compose along.

It claims zero-out adjacency only: the theorem compares a rounded vector with zeros.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.accountant import ReleaseSize
from dpnoise.accounting.conversion import renyi_epsilons
from dpnoise.accounting.renyi.accountant import RenyiAccountant
from dpnoise.accounting.renyi.concentrated import gaussian_curve
from dpnoise.accounting.renyi.curve import RenyiCurve
from dpnoise.accounting.renyi.mixture_divergence import mixture_divergence_per_square
from dpnoise.accounting.renyi.skellam_rdp import exact_skellam_curve
from dpnoise.accounting.renyi.subsampling import MAX_SAMPLED_ORDER
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    DiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below

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
# What the search for the best order behind a coin looks at beyond it, and what each
# takes: calls, an integer of the window at each point of a cell, or a term of the
# closed form. Points are those of `mixture_divergence`.
_SAMPLED_SEARCH: Final = (1.5, 16.0)
_PER_SAMPLED_ORDER: Final = 1e5
_PER_SAMPLED_POINT: Final = 40.0
_PER_SAMPLED_TERM: Final = 900.0
_POINTS_PER_FOLD: Final = 1.0 / math.log(1.05)
_FIRST_POINTS: Final = (32.0, 256.0)  # one over them: of usual noise, and of little
_SMALL_VARIANCE: Final = 4.0
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
        This project; proof in `mixture_divergence`, behind a coin in `subsampling`.
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
        if size is None:
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
        """Return the epsilon of the largest order behind a coin, at no divergence."""
        if rate == 1.0:
            return 0.0
        largest = np.array([float(MAX_SAMPLED_ORDER)])
        return float(renyi_epsilons(largest, np.zeros(1), delta)[0])

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        if isinstance(release, SkellamEvent):
            return exact_skellam_curve(release, self.adjacency)
        if isinstance(release, SkellamMixtureEvent):
            squared_norm = release.l2_clip_squared_steps
        elif isinstance(release, SkellamMixtureClippedEvent):
            squared_norm = release.mixture_norm_bound
        else:
            raise self._refuse(release)
        return ExactMixtureCurve(
            squared_norm=min(squared_norm, release.dim * float(release.linf_bound) ** 2)
            * ROUNDING_MARGIN,
            # A coordinate is no longer than its vector.
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
    """Estimate how many orders behind a coin are looked at; each needs a moment.

    The best order is that of a Gaussian whose shift the coin has shortened, but not
    beyond that at which the moment of a release that is surely seen outweighs the
    chance α·log(1/rate) of as many coins; nor below that of such releases alone.

    Args:
        noise: Variance over squared norm.
        times: Releases.
        delta: Of the whole.
        rate: Of the coin.
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
