"""Upper bounds of a mean that was estimated from some of a population.

`BOUNDED` assumes nothing of the law but its range [0, 1]. With M the mean of n draws,
the mean lies below the larger root μ of n·kl(M‖μ) = log(1/failure), except with
probability `failure` (Hoeffding 1963, Theorem 1). Section 6 there covers draws without
replacement. Here kl is the relative entropy of two Bernoulli laws.

`STUDENT` is the interval of [TF19] equation (5). It holds for normal draws. Those here
are exponentials of squares. Where a few people are far from the rest, most samples miss
them. The interval then lies below the mean much more often than it states. It is here
to be compared with.
"""

import enum
import math

import numpy as np

from dpnoise.errors import InputError, ParameterError
from dpnoise.floats import FloatArray
from dpnoise.searches import halve
from dpnoise.student_t import student_quantile


class Interval(enum.StrEnum):
    """How the mean of a population is bounded from a sample."""

    BOUNDED = "bounded"
    """For every law on a known range."""

    STUDENT = "student"
    """As published, for comparisons only: fails where rare people are far away."""

    ALL_CLIENTS = "all-clients"
    """The whole population was counted: its mean is known."""


def upper_mean(shares: FloatArray, *, failure: float, interval: Interval) -> float:
    """Bound the mean of a population from above.

    Args:
        shares: Draws in [0, 1], shape (n,).
        failure: Probability that the mean lies above the bound, in (0, 1).
        interval: Which bound.

    Returns:
        The bound; at most 1 but for `STUDENT`.

    Raises:
        InputError: The sample is empty, or a draw lies outside of [0, 1].
        ParameterError: `failure` is out of range.
    """
    if shares.size == 0 or not np.all((shares >= 0.0) & (shares <= 1.0)):
        raise InputError("shares are at least one number between 0 and 1")
    if not 0.0 < failure < 1.0:
        raise ParameterError(
            f"failure must lie in (0, 1), got {failure!r}",
            parameter="failure",
            value=failure,
        )
    mean = math.fsum(shares.tolist()) / shares.size
    if interval is Interval.ALL_CLIENTS:
        return mean
    if interval is Interval.STUDENT:
        return _student(shares, mean, failure)
    wanted = -math.log(failure) / shares.size
    return halve(lambda other: _entropy(mean, other) >= wanted, mean, 1.0)[1]


def _entropy(mean: float, other: float) -> float:
    """Relative entropy of a Bernoulli law of the first mean to one of the second."""
    total = 0.0
    if mean > 0.0:
        total += mean * math.log(mean / other)
    if mean < 1.0:
        total += (1.0 - mean) * (math.log1p(-mean) - math.log1p(-other))
    return total


def _student(shares: FloatArray, mean: float, failure: float) -> float:
    """M + F^-1(1 − failure, n − 1)·S/√(n − 1), S with divisor n: [TF19] (5)."""
    freedom = shares.size - 1
    if freedom < 1:
        raise InputError("Student's interval needs at least two draws")
    spread = float(np.std(shares))
    return mean + student_quantile(failure, freedom) * spread / math.sqrt(freedom)
