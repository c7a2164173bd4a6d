"""Conversions between privacy curves and (epsilon, delta).

* A Rényi curve is a pair of arrays: orders above 1 and divergences in nats. An
  infinite divergence marks an order that no theorem covers; it never wins.
* Every order gives a valid bound, so a coarse grid loses tightness and never
  soundness.

It does not choose the orders; `renyi.accountant` does.
"""

import math

import numpy as np

from dpnoise.accounting.accountant import check_delta, check_epsilon
from dpnoise.floats import FloatArray


def renyi_epsilon(orders: FloatArray, divergences: FloatArray, delta: float) -> float:
    """Convert a Rényi curve to epsilon.

    Args:
        orders: Rényi orders above 1, shape (n,).
        divergences: Bounds on the Rényi divergence in nats, shape (n,), at least 0;
            infinite where nothing is known.
        delta: Failure probability in (0, 1).

    Returns:
        The least epsilon over the orders, in nats, at least 0; infinite if no order
        has a finite divergence.

    Raises:
        ParameterError: Delta is not in (0, 1).

    Source:
        [Aga21] Lemma 2.3; [Bao22] Lemma 3; [CKS20] Proposition 12.
    """
    return float(np.min(renyi_epsilons(orders, divergences, delta), initial=math.inf))


def renyi_epsilons(
    orders: FloatArray, divergences: FloatArray, delta: float
) -> FloatArray:
    """Return the epsilon of every order, nats, at least 0; see `renyi_epsilon`."""
    delta = check_delta(delta)
    above = orders - 1.0
    # log1p(-1/α) is log((α−1)/α), accurate for every order.
    return np.maximum(
        0.0,
        divergences
        + ((-math.log(delta) - np.log(orders)) / above + np.log1p(-1.0 / orders)),
    )


def renyi_delta(orders: FloatArray, divergences: FloatArray, epsilon: float) -> float:
    """Convert a Rényi curve to delta.

    Args:
        orders: Rényi orders above 1, shape (n,).
        divergences: Bounds on the Rényi divergence in nats, shape (n,), at least 0;
            infinite where nothing is known.
        epsilon: Privacy loss in nats, at least 0.

    Returns:
        The least delta over the orders, in [0, 1].

    Raises:
        ParameterError: Epsilon is negative, infinite or no number.

    Source:
        [CKS20] Proposition 12, solved for delta.
    """
    logs = renyi_log_deltas(orders, divergences, epsilon)
    return math.exp(float(np.min(logs, initial=0.0)))


def renyi_log_deltas(
    orders: FloatArray, divergences: FloatArray, epsilon: float
) -> FloatArray:
    """Return the logarithm of every order's delta; see `renyi_delta`.

    Above 0 where an order says nothing, and falling towards those that say something.
    """
    epsilon = check_epsilon(epsilon, allow_zero=True)
    above = orders - 1.0
    exponents = divergences - epsilon + np.log1p(-1.0 / orders)
    with np.errstate(over="ignore"):  # a divergence near the largest float says nothing
        found: FloatArray = above * exponents - np.log(orders)
        return found
