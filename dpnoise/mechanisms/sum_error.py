"""How exact a decoded sum is: noise, rounding and selection, and how far they reach.

* An error is stated where it can be bounded: noise that is in the sum, rounding of the
  vectors that arrived, secret selection, local randomisers. What a clip takes off a
  vector, and what wraps around the modulus, is in no figure here.
* An interval exists where all error is noise and rounding, and holds for every entry,
  whatever the vectors are. Rotated entries need noise enough for the normal law.
* A rotation spreads variance over all entries, but no bias: rounding that shortens
  vectors is a flaw unless noise hides its most in one entry.
* A sum with another error has its reason in `flaws`, and no interval. A bound that
  holds for any data would be too wide to be useful.
* Figures are rounded up. Noise of less variance than stated is nearer to zero. So an
  interval for the most noise that may be in a sum holds for every other.

It knows no privacy loss and no mechanism.
"""

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import InputError, ParameterError
from dpnoise.floats import FloatArray, sqrt_above
from dpnoise.samplers.skellam import skellam_weights

_PRECISION: Final = 256
_SKELLAM_UP_TO: Final = 1 << 16
"""Beyond this variance the normal law has the same quantiles to one part in 10^4."""

_NORMAL_MARGIN: Final = 1.001
_DIGITS: Final = 1 << 20  # variances are read to so many parts of one step²
_LARGEST_ROUNDING: Final = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class SumError:
    """The error of a decoded sum against the sum of the vectors that arrived.

    Args:
        mean_square: Expected squared error, averaged over the entries, at most,
            caller's units squared. 0 for an exact sum.
        grid: Caller's units of one step of the grid on which every entry lies. None
            where a rotation has mixed the entries, so the normal law holds.
        flaws: Why the error is not noise and rounding alone, each a clause.
    """

    mean_square: Fraction
    grid: Fraction | None = None
    flaws: tuple[str, ...] = ()

    @classmethod
    def of_noise(
        cls, noise_variance: float, *, grid: Fraction | None = Fraction(1)
    ) -> Self:
        """Return the error of a sum that is known by the variance of its noise alone.

        Args:
            noise_variance: Of all noise, per entry, caller's units squared.
            grid: As in the class.

        Raises:
            ParameterError: The variance is not above 0 or not finite.
        """
        _check_variance(noise_variance)
        return cls(Fraction(noise_variance), grid)

    @property
    def standard_error(self) -> float:
        """Root mean square error over the entries, at most, caller's units."""
        return sqrt_above(self.mean_square)

    def with_flaw(self, flaw: str) -> Self:
        """Return the same error with one more reason against intervals."""
        return replace(self, flaws=(*self.flaws, flaw))

    def times(self, entries: int) -> Self:
        """Return the error of a sum of so many entries, whose noise is independent."""
        return replace(self, mean_square=entries * self.mean_square)

    def half_width(self, confidence: float = 0.95, *, counts: int = 1) -> float:
        """Return how far the error carries one entry, or any of several.

        Args:
            confidence: Probability that none is farther off, in (0, 1).
            counts: Number of entries that are all to hold together; 1 for each by
                itself.

        Returns:
            Half the width of the intervals, caller's units. On a grid they are whole
            steps, and hold at least as often as asked for.

        Raises:
            InputError: The sum has a flaw, which the message names.
            ParameterError: The confidence is not in (0, 1).
        """
        if self.flaws:
            raise InputError(f"this sum has no interval: {'; '.join(self.flaws)}")
        _check_confidence(confidence)
        if self.mean_square == 0:
            return 0.0
        if self.grid is None:
            return _normal_reach(confidence, counts) * self.standard_error
        steps = float(self.mean_square / self.grid**2)
        reach = noise_quantile(steps, confidence=confidence, counts=counts)
        return float(reach * self.grid)


def rounding_variance_bound(mean_square: Fraction) -> Fraction:
    """Bound what stochastic rounding of one vector adds to the variance of an entry.

    Args:
        mean_square: Mean of the squared coordinates before rounding, at most, grid
            steps².

    Returns:
        The bound on the mean over all coordinates, grid steps²; attained by vectors
        whose coordinates are all of one size.
    """
    # Proof. A coordinate x adds f − f² for its fractional part f. That is at most
    # g(|x|) with g(t) = t − t² up to 1/2 and 1/4 beyond, which is concave and does not
    # fall: the mean of g is at most g of the mean, which the root mean square bounds.
    size = Fraction(sqrt_above(mean_square))
    return size - size * size if 2 * size < 1 else _LARGEST_ROUNDING


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
    _check_variance(noise_variance)
    _check_confidence(confidence)
    if noise_variance > _SKELLAM_UP_TO:
        reach = _normal_reach(confidence, counts) * _NORMAL_MARGIN
        return math.ceil(reach * math.sqrt(noise_variance))
    tails = _tails(Fraction(math.ceil(noise_variance * _DIGITS), _DIGITS))
    return int(np.flatnonzero(tails <= (1.0 - confidence) / counts)[0])


def _normal_reach(confidence: float, counts: int) -> float:
    """Return the deviations beyond which a normal law lies with a given chance."""
    # Bonferroni: entries may err together.
    return -NormalDist().inv_cdf(0.5 * (1.0 - confidence) / counts)


def _check_variance(noise_variance: float) -> None:
    """Refuse a variance that is not above 0 and finite."""
    if not 0.0 < noise_variance < math.inf:
        raise ParameterError.of(
            "noise_variance", noise_variance, "must be above 0 and finite"
        )


def _check_confidence(confidence: float) -> None:
    """Refuse a confidence outside of (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ParameterError.of(
            "confidence", confidence, "must lie in (0, 1)", nearest="0.95"
        )


@functools.lru_cache(maxsize=64)
def _tails(variance: Fraction) -> NDArray[np.float64]:
    """P(|noise| > h) for h = 0, 1, … of Skellam noise, the last of them nearly 0."""
    weights = skellam_weights(variance, _PRECISION)
    masses = np.array([weight / weights.centre_upper for weight in weights.right.upper])
    beyond: FloatArray = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    return 2.0 * beyond / (1.0 + 2.0 * float(beyond[0]))
