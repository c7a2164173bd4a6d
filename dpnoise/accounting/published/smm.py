"""The published Rényi bounds of the Skellam mixture mechanism.

* [Bao22] writes λ for the rate of *one* Poisson variable of *one* client; the sum
  over n clients has variance 2nλ. Every function here takes that variance.
* The largest coordinate enters through ⌈|x|⌉, so its bound is an integer. A real
  bound, as the published experiments use, is rounded up by the mechanism and then
  lies outside the theorem.
* An order outside the theorem gets infinity.

It does not weaken the conditions for small scale factors, where they exclude every
coordinate but zero.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from dpnoise.accounting.renyi.accountant import RenyiAccountant, RenyiCurve
from dpnoise.accounting.statement import Proof, Status
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import Adjacency, NoiseEvent, SkellamMixtureClippedEvent
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below


def mixture_bound(
    orders: FloatArray,
    *,
    mixture_norm_bound: float,
    linf_bound: int,
    noise_variance: float,
) -> FloatArray:
    """Bound the Rényi divergence of the Skellam mixture.

    Args:
        orders: Rényi orders above 1, shape (n,).
        mixture_norm_bound: Bound c on Σ(x² + f − f²), grid steps squared, at least 0.
        linf_bound: Integer bound Δ∞ on every ⌈|x|⌉, at least 1.
        noise_variance: Variance of the summed noise per coordinate, grid steps
            squared, above 0.

    Returns:
        Bounds in nats, shape (n,); infinite where the theorem says nothing.

    Source:
        [Bao22] Theorem 5, Corollary 1, Eq. (3).
    """
    covered = (
        (orders > 1.0)
        & (orders < noise_variance / linf_bound + 1.0)
        & (_condition(orders) < 2.0 * noise_variance / linf_bound**2)
    )
    bounds = _formula_only_divergences(orders, mixture_norm_bound, noise_variance)
    return np.where(covered, bounds * ROUNDING_MARGIN, math.inf)


def largest_linf_bound(order: float, *, noise_variance: float) -> int:
    """Return the largest integer Δ∞ that the theorem admits.

    Args:
        order: Rényi order above 1.
        noise_variance: Variance of the summed noise per coordinate, grid steps
            squared, above 0.

    Returns:
        The bound in grid steps; 0 if the theorem covers the zero vector only.

    Source:
        [Bao22] Eq. (3), with the bound rounded down to an integer.
    """
    condition = float(_condition(np.array([order]))[0])
    limit = noise_variance / (order - 1.0)
    if condition > 0.0:
        limit = min(limit, math.sqrt(2.0 * noise_variance / condition))
    # Both conditions are strict, hence the largest integer *below* the limit.
    return max(0, math.ceil(limit) - 1)


def least_noise_variance(order: float, *, linf_bound: int) -> Fraction:
    """Return a noise variance just above the least that the theorem demands.

    Args:
        order: Rényi order above 1.
        linf_bound: Integer bound Δ∞ on every ⌈|x|⌉, at least 1.

    Returns:
        A dyadic variance, grid steps squared, within 0.1 % of the least.

    Source:
        [Bao22] Eq. (3).
    """
    condition = float(_condition(np.array([order]))[0])
    least = max(linf_bound * (order - 1.0), 0.5 * linf_bound**2 * condition)
    return Fraction(math.floor(least * 1024.0) + 1, 1024)


@dataclass(frozen=True, slots=True)
class PublishedMixtureCurve(RenyiCurve):
    """Corollary 1 of [Bao22] as a curve.

    Args:
        mixture_norm_bound: Bound c on Σ(x² + f − f²), grid steps squared.
        linf_bound: Integer bound Δ∞ on every ⌈|x|⌉, at least 1.
        noise_variance: Variance per coordinate, grid steps squared, above 0.
    """

    mixture_norm_bound: float
    linf_bound: int
    noise_variance: float

    @property
    def largest_order(self) -> float:
        """The supremum of the orders that Eq. (3) admits, less a hair."""
        # The positive root of 10.9α² − 1.8α − 9.1 = 2v/Δ∞².
        right = 2.0 * self.noise_variance / self.linf_bound**2
        root = (1.8 + math.sqrt(1.8**2 + 43.6 * (9.1 + right))) / 21.8
        return min(root, self.noise_variance / self.linf_bound + 1.0) * (1.0 - 1e-9)

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence; see `mixture_bound`."""
        return mixture_bound(
            orders,
            mixture_norm_bound=self.mixture_norm_bound,
            linf_bound=self.linf_bound,
            noise_variance=self.noise_variance,
        )


def _condition(orders: FloatArray) -> FloatArray:
    """The left-hand side of the second condition of Eq. (3)."""
    return 10.9 * orders * orders - 1.8 * orders - 9.1


def _formula_only_divergences(
    orders: FloatArray, mixture_norm_bound: float, noise_variance: float
) -> FloatArray:
    """Evaluate the formula of Theorem 5 without its conditions: not a valid bound.

    The figures of [Bao22] use it at settings that the conditions exclude. It is here
    for reproductions of those figures and is reachable by no accountant.
    """
    return (0.6 * orders + 0.5) * mixture_norm_bound / noise_variance


class SMMPaperAccountant(RenyiAccountant):
    """The Skellam mixture bound of [Bao22], Corollary 1 and Theorem 6.

    The largest coordinate must be an integer bound, and the orders obey Eq. (3). At
    small scale factors that excludes the orders which the published figures use.
    """

    name = "smm-paper"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    proof_of_theorem: ClassVar[Proof] = Proof.PUBLISHED

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if not isinstance(release, SkellamMixtureClippedEvent):
            return super()._curve(release)
        return PublishedMixtureCurve(
            mixture_norm_bound=release.mixture_norm_bound,
            linf_bound=release.linf_bound,
            noise_variance=float_below(release.aggregate_noise_variance),
        )

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        curve = self._curve(release)
        # Theorem 6 needs an integer order of at least 2. Without sampling, an order
        # below 2 gives an epsilon above log(1/delta), which is no useful protection.
        if isinstance(release, SkellamMixtureClippedEvent) and not math.isfinite(
            curve.divergences(np.array([2.0]))[0]
        ):
            least = least_noise_variance(2.0, linf_bound=release.linf_bound)
            raise TheoremNotApplicableError(
                "smm-paper: at order 2 the theorem needs an aggregate noise variance "
                f"of {float(least):.6g} grid steps squared for coordinates up to "
                f"{release.linf_bound}, got "
                f"{float(release.aggregate_noise_variance):.6g}; raise scale_factor "
                "or the noise, or take the mechanism skellam-mixture",
                theorem="Theorem 5 [Bao22]",
                parameter="aggregate_noise_variance",
                value=str(release.aggregate_noise_variance),
                nearest=str(least),
            )
        super()._add(release, sampling_rate, count)

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "Every scaled vector went through the publication's clip.",
            "Its coordinates were clipped at the stated integer.",
        )
