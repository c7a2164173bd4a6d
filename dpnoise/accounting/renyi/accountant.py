"""Accountants that add up Rényi curves.

* Rényi divergences of one order add up over adaptive releases, so the account is a sum
  of curves. The order is chosen last, for each question of epsilon or delta.
* The order is searched on a fixed ladder. Any order is sound; a poor one is loose.
* Bounds jump at the first whole orders, so that there are several minima. The search
  begins with steps across most of them; it may still end some percent above the least.
* Gaussian noise has a straight line through the origin for a curve, in any dimension,
  so every accountant here admits it beside its own releases.
* Integer orders only, as soon as one release is sampled or one theorem demands it.

Subclasses map releases to curves. A curve is that of one release, sampled or not:

* A curve bounds the Rényi divergence in *both* directions between the two worlds.
* A curve answers infinity at an order that its theorem does not cover; it never
  substitutes another theorem.

Poisson subsampling of a curve, in both directions: Q is the world without the user, P
the world with it, q the sampling rate, P' = (1−q)Q + qP the sampled world, u = P/Q.

Rule 1: *Mixture against base.* For an integer order α the binomial theorem gives
        E_Q[(1−q+qu)^α] exactly in terms of the moments E_Q[u^l] = exp((l−1)·D_l(P‖Q)).
        The moments of l = 0 and 1 are one, so only what exceeds one is summed: nothing
        cancels at small rates.
Rule 2: *Base against mixture, mirrored worlds.* The first direction dominates. Proof:
        an involution that swaps P and Q gives E_Q[f(u)] = E_Q[u·f(1/u)], so it is
        enough that, for a = 1−q+qu and b = q+(1−q)u, a^α + b^α·u^(1−α) ≥ a^(1−α) +
        b^(1−α)·u^α. With s = α−1/2 this reads √a·sinh(s·log a) ≥
        √(bu)·sinh(s·log(u/b)). At s = 1/2 both sides are (a−1)/2. From a+b = 1+u and a,
        b between 1 and u follows ab ≥ u, so log a ≥ log(u/b); and sinh(sA)/sinh(sB)
        grows with s for A ≥ B > 0 and falls for A ≤ B, negated likewise.
Rule 3: *Base against mixture, any worlds.* Taylor's theorem with remainder for
        (1+w)^(1−α) at w = q(u−1) ≥ −q, with E_Q[w] = 0 and E_Q[w²] = q²(e^(D_2) − 1).
Rule 4: Amplification is never worse than no sampling: the loss at rate 1 is a valid
        bound too (joint quasi-convexity), and the smaller one is returned.

It does not decide who may claim amplification; the base class of the accountants does.
"""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.conversion import renyi_epsilons, renyi_log_deltas
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import Adjacency, DiscreteGaussianEvent, GaussianEvent, NoiseEvent
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below


class RenyiCurve(abc.ABC):
    """Bounds on the Rényi divergence of one release, as a function of the order.

    A subclass implements `divergences` and replaces what its theorem says otherwise.
    """

    __slots__ = ()

    integer_orders: ClassVar[bool] = False
    """Whether only integer orders are covered."""

    mirrored: ClassVar[bool] = False
    """Whether an involution of the outputs swaps the two worlds. Only then one
    subsampling bound serves both directions (below)."""

    @property
    def closed_form(self) -> bool:
        """Whether a value costs microseconds, so that a dense grid is affordable."""
        return True

    @property
    def largest_order(self) -> float:
        """An order at or just below which the theorem ends; infinite if it does not."""
        return math.inf

    @abc.abstractmethod
    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence in both directions.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,), at least 0; infinite where nothing is known.
        """


MAX_SAMPLED_ORDER: Final = 1024
"""Largest order under sampling: an order costs one moment for every order below it."""

_LARGE_LOG: Final = 40.0  # e^-40 is below half a unit in the last place

_LOG_FACTORIALS: Final = np.concatenate(
    ([0.0], np.cumsum(np.log(np.arange(1, MAX_SAMPLED_ORDER + 1, dtype=np.float64))))
)


def sampled_divergences(
    curve: RenyiCurve,
    sampling_rate: float,
    orders: FloatArray,
    *,
    moment_factor: float = 1.0,
) -> FloatArray:
    """Bound the Rényi divergence of a Poisson-sampled release in both directions.

    Args:
        curve: The release without sampling.
        sampling_rate: Probability q in (0, 1) that a user takes part.
        orders: Integer orders from 2 to `MAX_SAMPLED_ORDER`, shape (n,), as floats.
        moment_factor: Factor of every moment from the third on, at least 1. A factor of
            3 gives the generic published bound [ZW19], which reproductions need.

    Returns:
        Bounds in nats, shape (n,); infinite where the curve has too few orders.

    Source:
        [MTZ19] for mirrored worlds, with the proof of rule 2 above, and rule 3 for
        the others; [Bao22] Lemma 2 is rule 1.
    """
    top = int(np.max(orders, initial=2.0))
    integers = np.arange(2.0, top + 1.0)
    plain = curve.divergences(integers)
    log_moments = (integers - 1.0) * plain
    # log(k·e^m − 1) = log(e^m' − 1) with m' = m + log k, where e^m' may overflow and m'
    # may be 0.
    log_moments[1:] += np.log(moment_factor)
    with np.errstate(over="ignore", divide="ignore"):
        log_excess = np.where(
            log_moments > _LARGE_LOG, log_moments, np.log(np.expm1(log_moments))
        )
    log_rate, log_rest = np.log(sampling_rate), np.log1p(-sampling_rate)
    results = np.empty_like(orders)
    for index, order in enumerate(orders):
        # A loop over at most some hundred orders; each step is one array expression.
        alpha = int(order)
        chosen = integers[: alpha - 1]
        binomial = (
            _LOG_FACTORIALS[alpha]
            - _LOG_FACTORIALS[2 : alpha + 1]
            - _LOG_FACTORIALS[alpha - 2 :: -1][: alpha - 1]
        )
        terms = (
            binomial
            + (alpha - chosen) * log_rest
            + chosen * log_rate
            + log_excess[: alpha - 1]
        )
        log_sum = float(np.logaddexp.reduce(terms))
        if not curve.mirrored:
            log_reverse = (
                np.log(0.5 * alpha * (alpha - 1.0))
                + 2.0 * log_rate
                + log_excess[0]
                - (alpha + 1.0) * log_rest
            )
            log_sum = max(log_sum, float(log_reverse))
        results[index] = np.logaddexp(0.0, log_sum) / (alpha - 1.0)
    unsampled = plain[orders.astype(np.int64) - 2]
    return np.minimum(results * ROUNDING_MARGIN, unsampled)


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
        log_delta = self._minimise_over_orders(
            lambda orders, total: renyi_log_deltas(orders, total, epsilon),
            # Minimises (α−1)(αρ−ε), the Gaussian form of the exponent.
            lambda rho: 0.5 * (epsilon / rho + 1.0),
            most=0.0,
        )
        return math.exp(min(0.0, log_delta))

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        return self._minimise_over_orders(
            lambda orders, total: renyi_epsilons(orders, total, delta),
            # Minimises αρ + log(1/δ)/(α−1), the Gaussian form of epsilon.
            lambda rho: 1.0 + math.sqrt(-math.log(delta) / rho),
            most=_MAX_EPSILON,
        )

    def _minimise_over_orders(
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
