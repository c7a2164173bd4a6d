"""The Rényi curve of one release: what an accountant adds up, sampled or not.

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
from typing import ClassVar, Final

import numpy as np

from dpnoise.floats import ROUNDING_MARGIN, FloatArray


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
