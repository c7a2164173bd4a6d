"""The published Rényi bounds of the Skellam mixture mechanism.

Numbered rules:

1. [Bao22] writes λ for the rate of *one* Poisson variable of *one* client; the sum
   over n clients has variance 2nλ. Every function here takes that variance.
2. The largest coordinate enters through ⌈|x|⌉, so its bound is an integer. A real
   bound, as the published experiments use, is rounded up by the mechanism and then
   lies outside the theorem.
3. An order outside the theorem gets infinity.

This module deliberately does not weaken the conditions for small scale factors, where
they exclude every coordinate but zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpnoise.accounting.conversion import FloatArray
from dpnoise.accounting.renyi_curve import ROUNDING_MARGIN

__all__ = [
    "PublishedMixtureCurve",
    "integer_shift_bound",
    "largest_linf_bound",
    "least_noise_variance",
    "mixture_bound",
]


def integer_shift_bound(
    orders: FloatArray,
    *,
    l2_sensitivity_squared: float,
    linf_sensitivity: int,
    noise_variance: float,
) -> FloatArray:
    """Bound the Rényi divergence between a Skellam vector and its integer shift.

    Args:
        orders: Rényi orders above 1, shape (n,).
        l2_sensitivity_squared: Bound c on the squared L2 norm of the shift, grid
            steps squared, at least 0.
        linf_sensitivity: Bound Δ∞ on the absolute entries, grid steps, at least 1.
        noise_variance: Variance per coordinate, grid steps squared, above 0.

    Returns:
        Bounds in nats, shape (n,); infinite where the theorem says nothing.

    Source:
        [Bao22] Theorems 3 and 4, Eqs. (1) and (2).
    """
    bounds = (0.545 * orders + 0.455) * l2_sensitivity_squared / noise_variance
    covered = (orders > 1.0) & (orders < noise_variance / linf_sensitivity + 1.0)
    return np.where(covered, bounds * ROUNDING_MARGIN, math.inf)


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
class PublishedMixtureCurve:
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
    def integer_orders(self) -> bool:
        """The theorem covers every real order that its conditions admit."""
        return False

    @property
    def mirrored(self) -> bool:
        """No involution swaps a mixture of two shifts and the plain noise."""
        return False

    @property
    def closed_form(self) -> bool:
        """A value is a few multiplications."""
        return True

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
