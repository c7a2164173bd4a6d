"""Conversions between privacy curves and (epsilon, delta).

* A Rényi curve is a pair of arrays: orders above 1 and divergences in nats. An
  infinite divergence marks an order that no theorem covers; it never wins.
* Every order gives a valid bound, so a coarse grid loses tightness and never
  soundness.

It does not choose the orders; `accountant` does.
"""

import math

import numpy as np

from dpnoise.accounting.accountant import check_delta, check_epsilon
from dpnoise.errors import ParameterError
from dpnoise.floats import FloatArray

__all__ = [
    "renyi_delta",
    "renyi_epsilon",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_epsilon_simple",
]

_ORDER_RANGE = (1e-6, 1e9)  # α − 1, for the one-dimensional search of a zCDP curve
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
_GOLDEN_STEPS = 90


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
    delta = check_delta(delta)
    above = orders - 1.0
    # log1p(-1/α) is log((α−1)/α), accurate for every order.
    candidates = divergences + (
        (-math.log(delta) - np.log(orders)) / above + np.log1p(-1.0 / orders)
    )
    return max(0.0, float(np.min(candidates, initial=math.inf)))


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
    epsilon = check_epsilon(epsilon, allow_zero=True)
    above = orders - 1.0
    logs = above * (divergences - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    return math.exp(min(0.0, float(np.min(logs, initial=0.0))))


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Convert zero-concentrated privacy to delta.

    Args:
        rho: zCDP parameter ρ: the Rényi divergence of every order α is at most αρ.
        epsilon: Privacy loss in nats, at least 0.

    Returns:
        The infimum over all orders, in [0, 1].

    Raises:
        ParameterError: An argument is out of range.

    Source:
        [CKS20] Corollary 13.
    """
    rho = _check_rho(rho)
    epsilon = check_epsilon(epsilon, allow_zero=True)
    if rho == 0.0:
        return 0.0

    def log_delta(log_above: float) -> float:
        above = math.exp(log_above)
        order = 1.0 + above
        return above * (order * rho - epsilon + math.log(above / order)) - math.log(
            order
        )

    # The cumulant is convex in the order, so the golden section finds the minimum;
    # wherever it ends, the value there is a valid bound.
    low, high = math.log(_ORDER_RANGE[0]), math.log(_ORDER_RANGE[1])
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    value_left, value_right = log_delta(left), log_delta(right)
    for _ in range(_GOLDEN_STEPS):
        if value_left <= value_right:
            high, right, value_right = right, left, value_left
            left = high - _GOLDEN * (high - low)
            value_left = log_delta(left)
        else:
            low, left, value_left = left, right, value_right
            right = low + _GOLDEN * (high - low)
            value_right = log_delta(right)
    return math.exp(min(0.0, value_left, value_right))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Convert zero-concentrated privacy to epsilon.

    Args:
        rho: zCDP parameter ρ: the Rényi divergence of every order α is at most αρ.
        delta: Failure probability in (0, 1).

    Returns:
        Epsilon in nats, at least 0; for ρ = 0.5 and delta = 1e-5 it is 4.73.

    Raises:
        ParameterError: An argument is out of range.

    Source:
        [CKS20] Corollary 13, solved for epsilon by bisection that ends above it.
    """
    rho = _check_rho(rho)
    delta = check_delta(delta)
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    low, high = 0.0, zcdp_epsilon_simple(rho, delta)
    for _ in range(80):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if zcdp_delta(rho, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def zcdp_epsilon_simple(rho: float, delta: float) -> float:
    """Convert zero-concentrated privacy to epsilon by the looser closed form.

    Args:
        rho: zCDP parameter ρ, at least 0.
        delta: Failure probability in (0, 1).

    Returns:
        ρ + 2√(ρ·log(1/δ)) in nats, never below `zcdp_epsilon`.

    Raises:
        ParameterError: An argument is out of range.

    Source:
        [BS16] Proposition 1.3.
    """
    rho = _check_rho(rho)
    delta = check_delta(delta)
    return rho + 2.0 * math.sqrt(-rho * math.log(delta))


def _check_rho(rho: float) -> float:
    if isinstance(rho, bool) or not 0.0 <= rho < math.inf:
        raise ParameterError(
            f"rho must be finite and at least 0, got {rho!r}",
            parameter="rho",
            value=rho,
            nearest="0.0",
        )
    return float(rho)
