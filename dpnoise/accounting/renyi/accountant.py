"""Accountants that add up Rényi curves.

* Rényi divergences of one order add up over adaptive releases, so the account is a sum
  of curves. The order is chosen last, for each question of epsilon or delta.
* The order is searched on a fixed ladder. Any order is sound; a poor one is loose.
* Bounds jump at the first whole orders, so that there are several minima. The search
  begins with steps across most of them; it may still end some percent above the least.
* Gaussian noise has a straight line through the origin for a curve, in any dimension,
  so every accountant here admits it beside its own releases.
* Integer orders only, as soon as one release is sampled or one theorem demands it.

It holds no curve; subclasses map releases to curves.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.conversion import renyi_epsilons, renyi_log_deltas
from dpnoise.accounting.renyi.curve import (
    MAX_SAMPLED_ORDER,
    RenyiCurve,
    sampled_divergences,
)
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    DiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below

_MAX_EPSILON: Final = (
    1000.0  # beyond some order bounds explode, and no slope leads back
)
_RUNG: Final = 1.03  # ratio of neighbouring orders: costs under 0.1 % of epsilon
_MAX_ORDER: Final = 1e5  # best for epsilon near 2·log(1/delta)/order, about 2e-4
_MIN_ABOVE: Final = 1e-3  # best for epsilon near log(1/delta)/1e-3, above 1e4
_INTEGERS_UP_TO: Final = 64
_FIRST_STEP: Final = 4
# Between the first whole orders bounds jump: a longer step leads beyond a minimum.
_STEP_ACROSS: Final = 16
_JUMPS_UP_TO: Final = 8.0
_SAMPLED_START: Final = 8.0
_SAMPLED_STEP: Final = 4


class RenyiAccountant(Accountant):
    """An accountant whose account is a sum of Rényi curves.

    A subclass extends `_curve`, which maps one release to its curve or refuses it.
    One that follows a publication sets `sampling_moment_factor` to 3 if the publication
    amplifies by the generic bound [ZW19] instead of the exact expansion.
    """

    sampling_moment_factor: ClassVar[float] = 1.0

    def _begin(self) -> None:
        self._terms: dict[tuple[NoiseEvent, float], int] = {}
        self._curves: dict[NoiseEvent, RenyiCurve] = {}
        self._best_order: float | None = None

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        """Return the curve of one release, or refuse it; here of Gaussian noise."""
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        raise self._refuse(release)

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the Rényi divergence of everything composed so far.

        Args:
            orders: Rényi orders above 1, shape (n,); integers from 2 to
                `subsampling.MAX_SAMPLED_ORDER` if a release is sampled or a theorem
                demands integers.

        Returns:
            Bounds in nats, shape (n,); infinite where nothing is known.
        """
        total = np.zeros_like(orders)
        for (release, rate), count in self._terms.items():
            curve = self._curves[release]
            if rate < 1.0:
                total += count * sampled_divergences(
                    curve, rate, orders, moment_factor=self.sampling_moment_factor
                )
            else:
                total += count * curve.divergences(orders)
        return total

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        if release not in self._curves:
            self._curves[release] = self._curve(release)
        key = (release, sampling_rate)
        self._terms[key] = self._terms.get(key, 0) + count

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        log_delta = self._best(
            lambda orders, total: renyi_log_deltas(orders, total, epsilon),
            # Minimises (α−1)(αρ−ε), the Gaussian form of the exponent.
            lambda rho: 0.5 * (epsilon / rho + 1.0),
            most=0.0,
        )
        return math.exp(min(0.0, log_delta))

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        return self._best(
            lambda orders, total: renyi_epsilons(orders, total, delta),
            # Minimises αρ + log(1/δ)/(α−1), the Gaussian form of epsilon.
            lambda rho: 1.0 + math.sqrt(-math.log(delta) / rho),
            most=_MAX_EPSILON,
        )

    def _best(
        self,
        values: Callable[[FloatArray, FloatArray], FloatArray],
        gaussian_order: Callable[[float], float],
        *,
        most: float,
    ) -> float:
        """Minimise a conversion over the ladder of orders and remember the order.

        Orders whose value is above `most` are too large to begin at.
        """
        ladder = self._ladder()
        if all(curve.closed_form for curve in self._curves.values()):
            found = values(ladder, self.divergences(ladder))
            rung = int(np.argmin(found))
            self._best_order = float(ladder[rung])
            return float(found[rung])
        # Between two whole orders a bound costs as much time as at both.
        ladder = np.where(ladder < _INTEGERS_UP_TO, ladder, np.floor(ladder))
        seen: dict[int, float] = {}

        def at(index: int) -> float:
            if not 0 <= index < ladder.size:
                return math.inf
            if index not in seen:
                order = ladder[index : index + 1]
                seen[index] = float(values(order, self.divergences(order))[0])
            return seen[index]

        at_two = float(self.divergences(np.array([2.0]))[0])
        guess = gaussian_order(max(0.5 * at_two, 1e-300))
        step = _FIRST_STEP if guess > _JUMPS_UP_TO else _STEP_ACROSS
        if any(rate < 1.0 for _, rate in self._terms):
            # Sampled curves explode beyond some order, and an order costs a sum for
            # every order below it: come from below.
            guess, step = min(guess, _SAMPLED_START), _SAMPLED_STEP
        best = min(int(np.searchsorted(ladder, guess)), ladder.size - 1)
        while best > 0 and at(best) > most:
            best //= 2
            # The best one may be far above: an order costs what all below it cost.
            step = max(step, best // 2)
        best = _descend(at, best, step)
        self._best_order = float(ladder[best])
        return at(best)

    def _ladder(self) -> FloatArray:
        """Return the Rényi orders among which the best one is searched."""
        sampled = any(rate < 1.0 for _, rate in self._terms)
        integers = sampled or any(
            curve.integer_orders for curve in self._curves.values()
        )
        top = float(MAX_SAMPLED_ORDER) if sampled else _MAX_ORDER
        first = float(_INTEGERS_UP_TO) if integers else 1.0 + _MIN_ABOVE
        steps = math.ceil(math.log((top - 1.0) / (first - 1.0)) / math.log(_RUNG))
        rungs: FloatArray = 1.0 + (first - 1.0) * np.power(
            _RUNG, np.arange(steps, dtype=np.float64)
        )
        if integers:
            return np.concatenate((np.arange(2.0, first), np.floor(rungs)))
        # Where a theorem ends below the best order, its last order is the best one.
        ends = [curve.largest_order for curve in self._curves.values()]
        return np.sort([*rungs, *(end for end in ends if 1.0 < end < top)])

    def _details(self) -> Mapping[str, str]:
        order = "none" if self._best_order is None else f"{self._best_order:.6g}"
        return MappingProxyType({"renyi_order": order})


def _descend(at: Callable[[int], float], start: int, step: int) -> int:
    """Walk downhill on a ladder in halving steps; return the rung where it ends."""
    best = start
    while step >= 1:
        candidate = min((best - step, best + step), key=at)
        if at(candidate) < at(best):
            best = candidate
        else:
            step //= 2
    return best


@dataclass(frozen=True, slots=True)
class ConcentratedCurve(RenyiCurve):
    """A release with zero-concentrated privacy: divergence αρ at every order α.

    Args:
        rho: The parameter ρ, at least 0.
    """

    mirrored: ClassVar[bool] = True
    """Symmetric noise, so that a reflection swaps the two worlds."""

    rho: float

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            αρ in nats, shape (n,).

        Source:
            [BS16] Definition 1.1; [CKS20] Theorem 4 for the discrete Gaussian.
        """
        return orders * (self.rho * ROUNDING_MARGIN)


def gaussian_curve(
    release: GaussianEvent | DiscreteGaussianEvent, adjacency: Adjacency
) -> ConcentratedCurve:
    """Return the curve of a continuous or discrete Gaussian release.

    Args:
        release: One release.
        adjacency: Which neighbouring inputs must look alike.

    Returns:
        The curve αρ with ρ = D²/(2σ²).

    Source:
        [BS16] Proposition 1.6 for the continuous, [CKS20] Theorem 4 for the discrete
        Gaussian in any dimension.
    """
    difference = adjacency.sensitivity_factor * release.l2_sensitivity
    variance = release.noise_variance
    if not isinstance(variance, float | int):
        variance = float_below(variance)
    return ConcentratedCurve(rho=difference * difference / (2.0 * variance))


class ZCDPAccountant(RenyiAccountant):
    """Zero-concentrated privacy of continuous and discrete Gaussian noise.

    A composition of unsampled releases is ρ-zCDP with the sum of their parameters;
    `rho` reports it. The conversion minimises over a dense ladder of real orders.
    """

    name = "zcdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    proof_of_theorem: ClassVar[Proof] = Proof.PUBLISHED

    @property
    def rho(self) -> float:
        """The zCDP parameter of everything composed so far; infinite if sampled."""
        if any(rate < 1.0 for _, rate in self._terms):
            # A sampled Gaussian is not zero-concentrated: its curve explodes.
            return math.inf
        return (
            math.fsum(
                count * gaussian_curve(release, self.adjacency).rho
                for (release, _), count in self._terms.items()
                if isinstance(release, GaussianEvent | DiscreteGaussianEvent)
            )
            * ROUNDING_MARGIN
        )
