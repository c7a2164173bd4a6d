"""What all questions share: bounds for the planner, and how far noise reaches.

* `bounds` are keywords of `dpnoise.plan`, so that a question and its task cannot
  disagree about the vectors: `plan(**question.bounds, clients=..., epsilon=...)`.
* An answer is stated with the noise that may be in it. Whoever knows only the most
  noise that can arrive, as a plan does, gets intervals that are too wide, never too
  narrow: Skellam noise of less variance is nearer to zero.
* Intervals hold for all counts of an answer together.

It knows no privacy loss.
"""

import abc
import functools
import math
from fractions import Fraction
from statistics import NormalDist
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import InputError, ParameterError
from dpnoise.floats import FloatArray
from dpnoise.samplers.skellam import skellam_weights

_PRECISION: Final = 256
_SKELLAM_UP_TO: Final = 1 << 16
"""Beyond this variance the normal law has the same quantiles to one part in 10^4."""

_NORMAL_MARGIN: Final = 1.001
_DIGITS: Final = 1 << 20  # variances are read to so many parts of one step²


class CountBounds(TypedDict):
    """Keywords of `dpnoise.plan` that a question decides."""

    mechanism: str
    dimension: int
    max_nonzero: int
    linf_bound: int
    signed: bool


class Question(abc.ABC):
    """A question to which one person's answer is a vector of few whole numbers."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """Entries of the vector."""

    @property
    @abc.abstractmethod
    def max_nonzero(self) -> int:
        """Entries of one person that may differ from zero."""

    @property
    def signed(self) -> bool:
        """Whether entries may be below 0."""
        return False

    @property
    def bounds(self) -> CountBounds:
        """The bounds of the vectors, as keywords of `dpnoise.plan`."""
        return CountBounds(
            mechanism="skellam-counts",
            dimension=self.dimension,
            max_nonzero=self.max_nonzero,
            linf_bound=1,
            signed=self.signed,
        )


def check_total(total: NDArray[np.floating], dimension: int) -> NDArray[np.float64]:
    """Return a noisy sum as floats, or refuse it.

    Args:
        total: Decoded sum of the vectors, shape (dimension,).
        dimension: Of the question.

    Raises:
        InputError: It has another shape, or an entry is not finite.
    """
    counts = np.asarray(total, dtype=np.float64)
    if counts.shape != (dimension,) or not bool(np.all(np.isfinite(counts))):
        raise InputError(
            f"the sum must be {dimension} finite numbers, got shape {counts.shape}"
        )
    return counts


def noise_quantile(
    noise_variance: float, *, confidence: float = 0.95, counts: int = 1
) -> int:
    """Say how far noise carries any of several counts.

    Args:
        noise_variance: Variance of all noise in the sum, per count: the most that a
            plan knows of (`Plan.most_noise_mse`), or a session's certificate.
        confidence: Probability that no count is farther off, in (0, 1).
        counts: Number of counts.

    Returns:
        The least whole number h with P(|noise| > h) ≤ (1 − confidence)/counts.

    Raises:
        ParameterError: The variance is not above 0, or the confidence not in (0, 1).
    """
    if not 0.0 < noise_variance < math.inf:
        raise ParameterError(
            f"noise_variance must be above 0 and finite, got {noise_variance!r}",
            parameter="noise_variance",
            value=noise_variance,
        )
    if not 0.0 < confidence < 1.0:
        raise ParameterError(
            f"confidence must lie in (0, 1), got {confidence!r}",
            parameter="confidence",
            value=confidence,
            nearest="0.95",
        )
    # Bonferroni: counts may err together.
    beyond = (1.0 - confidence) / counts
    if noise_variance > _SKELLAM_UP_TO:
        deviations = -NormalDist().inv_cdf(0.5 * beyond) * _NORMAL_MARGIN
        return math.ceil(deviations * math.sqrt(noise_variance))
    tails = _tails(Fraction(math.ceil(noise_variance * _DIGITS), _DIGITS))
    return int(np.flatnonzero(tails <= beyond)[0])


@functools.lru_cache(maxsize=64)
def _tails(variance: Fraction) -> NDArray[np.float64]:
    """P(|noise| > h) for h = 0, 1, … of Skellam noise, the last of them nearly 0."""
    weights = skellam_weights(variance, _PRECISION)
    masses = np.array([weight / weights.centre_upper for weight in weights.right.upper])
    beyond: FloatArray = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    return 2.0 * beyond / (1.0 + 2.0 * float(beyond[0]))
