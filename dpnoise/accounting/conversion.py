"""Conversions of privacy curves: to (epsilon, delta), and under one selection.

* A Rényi curve is a pair of arrays: orders above 1 and divergences in nats. An
  infinite divergence marks an order that no theorem covers; it never wins.
* Every order gives a valid bound, so a coarse grid loses tightness and never
  soundness.

It does not choose the orders; `renyi.accountant` does.

A secret selection amplifies one release, in closed form.  Let a release have the pair
of laws (P, Q), and H(ε) bound its hockey-stick divergence in both directions. Selected
at rate q it has the pair (R, Q) with R = (1−q)·Q + q·P. With t = e^ε ≥ 1:

Rule 1: *R against Q.* R − t·Q = q·(P − t'·Q) with t' = 1 + (t − 1)/q. So the divergence
        is q·H(log t'), an identity.
Rule 2: *Q against R.* Q − t·R = a·(Q − (t·q/a)·P) with a = 1 − t·(1 − q). For a ≤ 0
        nothing is positive. Else the divergence is at most a·H(log(t·q/a)). Here
        a = q − (t − 1)·(1 − q) ≤ q, and t·q/a ≥ t' because
        t·q² − a·(q + t − 1) = (1 − q)·(t − 1)² ≥ 0, so rule 1 bounds it: H falls.

So δ(ε) ≤ q·H(ε') with e^ε' − 1 = (e^ε − 1)/q, for both directions.

This holds for one release in the whole account. Each of several releases has its own
selection, and their losses are composed (`composed_loss`).
"""

import math
from typing import Final

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


_ROUNDING: Final = 2.0**-48  # four elementary functions
_LARGE: Final = 1.0  # from here on the exponential factor is taken out


def epsilon_behind(epsilon: float, rate: float) -> float:
    """Return the ε' of the release alone that gives ε under the selection.

    Args:
        epsilon: Privacy loss of the selected release, nats, at least 0.
        rate: Probability q that the release is selected, in (0, 1].

    Returns:
        ε' = log(1 + (e^ε − 1)/q), rounded down; at least ε.
    """
    if rate >= 1.0:
        return epsilon
    if epsilon < _LARGE:
        found = math.log1p(math.expm1(epsilon) / rate)
    else:
        found = epsilon + math.log1p((rate - 1.0) * math.exp(-epsilon)) - math.log(rate)
    return max(epsilon, found * (1.0 - _ROUNDING))


def epsilon_before(epsilon: float, rate: float) -> float:
    """Return the ε under the selection, given the ε' of the release alone.

    Args:
        epsilon: Privacy loss ε' of the release, nats, at least 0; may be infinite.
        rate: Probability q that the release is selected, in (0, 1].

    Returns:
        ε = log(1 + q·(e^ε' − 1)), rounded up; at most ε'.
    """
    if rate >= 1.0 or math.isinf(epsilon):
        return epsilon
    if epsilon < _LARGE:
        found = math.log1p(rate * math.expm1(epsilon))
    else:
        rest = (1.0 - rate) / rate * math.exp(-epsilon)
        found = epsilon + math.log(rate) + math.log1p(rest)
    # Where the logarithm cancels, the rounding is that of its terms.
    return min(epsilon, found + _ROUNDING * (epsilon - math.log(rate)))
