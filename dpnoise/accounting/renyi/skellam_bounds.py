"""The published Rényi bounds of the Skellam mechanism.

* The second parameter of [Aga21] is the noise *variance*, twice the rate of either
  Poisson variable. Every function here takes it under that name.
* The theorems hold for integer orders above 1; other orders get infinity.
* Sensitivities are norms of the *rounded* integer vector.

It holds no composition and no conversion.
"""

import math

import numpy as np

from dpnoise.events import (
    Adjacency,
    DistributedDiscreteGaussianEvent,
    SkellamEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray


def shift_bound(
    orders: FloatArray, *, shift: float, noise_variance: float
) -> FloatArray:
    """Bound the Rényi divergence between Skellam noise and its integer shift.

    Args:
        orders: Rényi orders, shape (n,).
        shift: Largest absolute integer shift, grid steps, at least 0.
        noise_variance: Variance of the noise, grid steps squared, above 0.

    Returns:
        Bounds in nats, shape (n,); infinite at orders that are no integer above 1.

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
        Bounds in nats, shape (n,); infinite at orders that are no integer above 1.

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
        Bounds in nats, shape (n,); infinite at orders that are no integer above 1.

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
        Bounds on the L1 and on the L2 norm, grid steps; the first is what the release
        states, or what the second implies if that is less.
    """
    factor = adjacency.sensitivity_factor
    l2_sensitivity = factor * release.l2_sensitivity
    implied = integer_l1_sensitivity(dim=release.dim, l2_sensitivity=l2_sensitivity)
    if release.l1_sensitivity is None:
        return implied, l2_sensitivity
    return min(implied, factor * release.l1_sensitivity), l2_sensitivity
