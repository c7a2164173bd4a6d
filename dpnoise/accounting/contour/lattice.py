"""The Skellam law on a window of integers, with a bound on what lies outside.

* Weights come from the ratios r_k = I_{k+1}(v) / I_k(v), enclosed by a backward
  recurrence in 256-bit integers. A float here is the correct rounding of such an
  integer, up to a few units in the last place.
* Nothing is cut off silently: `tail_bound` dominates the part of a sum that lies
  outside the window by a geometric series.
* Only elementary facts are used: r_k decreases in k, stays below one, and satisfies
  r_{k-1} = 1 / (2k/v + r_k).

The Rényi sums have a lattice of their own (`renyi.skellam_rdp`). They add positive
terms, so floats with a margin are enough, and they need thousands of orders quickly.

It depends on no rounding, contour or privacy parameter.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import numpy as np

from dpnoise.errors import CertificateError, ParameterError, TheoremNotApplicableError
from dpnoise.floats import FloatArray

MAX_CONTOUR_VARIANCE: Final = float(1 << 26)
"""Grid variances above this would need windows of more than 10^5 integers. The
moment tables would then take minutes, and no common modulus has room for them."""

MIN_CONTOUR_VARIANCE: Final = 2.0**-10
"""Below this, one unit step has nearly unbounded loss and no table helps."""

_BITS: Final = 256
_ONE: Final = 1 << _BITS
_MAX_RELATIVE_GAP_BITS: Final = 90  # a ratio is known to 2^-90; floats need 2^-53
_MAX_REACH: Final = 1 << 19
_LEAST_DECAY: Final = 1e-9  # of a geometric series, in nats per step


@dataclass(frozen=True, slots=True, eq=False)
class ContourLattice:
    """Probabilities and neighbour ratios of Skellam noise on 0, 1, …, reach.

    Args:
        noise_variance: Variance per coordinate, grid steps squared.
        ratios: r_0 … r_reach, each within 2^-52 of its true value, relatively.
        log_weights: log q(0) … log q(reach), within 2^-52 · (4 + 2·|value|).
    """

    noise_variance: float
    ratios: FloatArray
    log_weights: FloatArray

    @classmethod
    def build(cls, noise_variance: float, reach: int) -> Self:
        """Enclose the law and round it to floats.

        Args:
            noise_variance: Variance per coordinate, grid steps squared, between
                `MIN_CONTOUR_VARIANCE` and `MAX_CONTOUR_VARIANCE`.
            reach: Largest integer whose weight is needed.

        Returns:
            The lattice.

        Raises:
            TheoremNotApplicableError: The variance is outside the range.
            ParameterError: The reach is too large; ask for a larger epsilon.
            CertificateError: The enclosure did not become narrow enough.
        """
        if not MIN_CONTOUR_VARIANCE <= noise_variance <= MAX_CONTOUR_VARIANCE:
            nearest = min(
                max(noise_variance, MIN_CONTOUR_VARIANCE), MAX_CONTOUR_VARIANCE
            )
            raise TheoremNotApplicableError(
                "the contour tables cover noise variances from "
                f"{MIN_CONTOUR_VARIANCE} to {MAX_CONTOUR_VARIANCE} grid steps squared, "
                f"got {noise_variance!r}; choose another scale factor",
                theorem="contour bound",
                parameter="aggregate_noise_variance",
                value=noise_variance,
                nearest=repr(nearest),
            )
        if reach > _MAX_REACH:
            raise ParameterError(
                f"the contour table would need {reach} integers per side, at most "
                f"{_MAX_REACH} are supported; ask for a larger epsilon or a smaller "
                "scale factor",
                parameter="epsilon",
                value=reach,
            )
        # Powers of two of reaches share one enclosure between neighbouring calls.
        rounded = 1 << max(5, math.ceil(math.log2(reach + 1)))
        ratios, log_weights = _enclose(noise_variance, rounded)
        return cls(noise_variance, ratios[: reach + 1], log_weights[: reach + 1])

    @property
    def reach(self) -> int:
        """Largest integer in the window."""
        return self.ratios.size - 1

    def log_weight(self, y: FloatArray) -> FloatArray:
        """Return log q(y) for integers y (as floats) with |y| ≤ reach."""
        found: FloatArray = self.log_weights[np.abs(y).astype(np.int64)]
        return found

    def shift_ratios(self, y: FloatArray, largest_shift: int) -> list[FloatArray]:
        """Return ρ_j(y) = q(y − j) / q(y) for j = 0 … largest_shift.

        Args:
            y: Integers, as floats, with |y| + largest_shift ≤ reach.
            largest_shift: Largest j, at least 0.

        Returns:
            One array per shift, each of y's shape, with a relative error of at most
            (2j + 1) · 2^-52.
        """
        found = [np.ones_like(y)]
        for j in range(largest_shift):
            at = (y - j).astype(np.int64)
            # q(a − 1) / q(a) is 1 / r_{a−1} for a ≥ 1 and r_{−a} for a ≤ 0.
            step = np.where(
                at >= 1,
                1.0 / self.ratios[np.maximum(at - 1, 0)],
                self.ratios[np.maximum(-at, 0)],
            )
            found.append(found[-1] * step)
        return found

    def log_tails(
        self, *, exponent: float, largest: float
    ) -> tuple[FloatArray, FloatArray]:
        """Bound what moments of rounded coordinates miss outside a window.

        Of coordinates x ≤ X with likelihood ratio R and D = ρ_1 − 1, that is q·R^e,
        q·|D| and q·D⁴·R^(e−4), summed over the integers beyond a window's end.

        Args:
            exponent: The e: above 1, or below 0.
            largest: Bound X on the coordinates, grid steps, greater than 0.

        Returns:
            Logs of the bounds for y > Y and for y < −Y, with Y as in `log_tail_bounds`.

        Source:
            ρ_1 on the right, and its inverse on the left, bound everything. Below one
            step R = 1 − x + x·ρ_1 is nearer to 1. It is at most R_X on the right, where
            |D| ≤ ρ_1. It is at least 1 − X on the left, where |D| ≤ 1. On the right the
            recurrence gives 1/r_{y+1} − 1/r_y ≤ 2/v, so R_X(y + 1) = 1 − X + X/r_y
            grows by at most 1 + (2X/v)/R_X(y + 1), which falls in y.
        """
        shift = max(1, math.ceil(largest))
        right = self.log_tail_bounds(exponent=max(exponent, 4.0), shift=shift)
        left = self.log_tail_bounds(exponent=max(4.0 - exponent, 0.0), shift=shift)
        if largest >= 1.0:
            return right, left
        ratio = self.ratios[: right.size]
        above = 1.0 - largest + largest / ratio
        slope = 2.0 / self.noise_variance
        growth = np.log(ratio) + 4.0 * np.log1p(slope * ratio)
        growth += max(exponent, 0.0) * np.log1p(slope * largest / above)
        first = self.log_weights[: right.size] - 4.0 * np.log(ratio)
        first = first + max(exponent, 0.0) * np.log(above)
        nearer = self.log_weights[: right.size] + _log_geometric(np.log(ratio))
        nearer -= max(4.0 - exponent, 0.0) * math.log1p(-largest)
        return (
            np.minimum(right, first + _log_geometric(growth) + math.log(2.0)),
            np.minimum(left, nearer + math.log(2.0)),
        )

    def log_tail_bounds(self, *, exponent: float, shift: int) -> FloatArray:
        """Bound Σ_{y > Y} q(y)·ρ_shift(y)^exponent for every Y at once.

        The bound serves both ends of a window, because ρ_shift(−y)^(−1) equals
        ρ_shift(y + shift).

        Args:
            exponent: Exponent of the ratio, at least 0.
            shift: Number j of steps in the ratio, at least 1.

        Returns:
            log of the bound for Y = 0 … reach − 2·shift − 2; infinite where the
            geometric series does not converge.

        Source:
            r_{y−1}/r_y ≤ 1 + 2·r_{y−1}/v follows from the recurrence and r_{y+1} ≤ r_y.
            So the quotient of consecutive terms is at most r_y · (1 +
            2·r_y/v)^(shift·exponent), which falls in y.
        """
        y = np.arange(0, self.reach - 2 * shift - 1, dtype=np.float64)
        index = y.astype(np.int64)
        # log ρ_shift(y + shift): at least log ρ_shift(y), and it serves both ends.
        log_ratio = np.zeros_like(y)
        steps = -np.log(self.ratios)
        for j in range(shift):
            log_ratio += steps[index + j]
        ratio = self.ratios[index]
        growth = np.log(ratio) + shift * exponent * np.log1p(
            2.0 * ratio / self.noise_variance
        )
        geometric = _log_geometric(growth)
        first = self.log_weights[index] + exponent * log_ratio
        # The logarithms above err by far less than log 2.
        bound: FloatArray = first + geometric + math.log(2.0)
        return bound


def _log_geometric(growth: FloatArray) -> FloatArray:
    """Return log Σ_{n ≥ 1} e^(n·growth); infinite where that does not converge."""
    found: FloatArray = np.where(
        growth < -_LEAST_DECAY,
        growth - np.log(-np.expm1(np.minimum(growth, -_LEAST_DECAY))),
        np.inf,
    )
    return found


@lru_cache(maxsize=64)
def _enclose(noise_variance: float, reach: int) -> tuple[FloatArray, FloatArray]:
    """Round r_0 … r_reach and log q(0) … log q(reach) to floats."""
    numerator, denominator = noise_variance.as_integer_ratio()
    # The recurrence forgets its start like exp(−(start² − k²)/v); sixty nats suffice.
    start = math.isqrt(reach * reach + math.ceil(90.0 * noise_variance)) + 64
    low, high = 0, _ONE
    squared = numerator << (2 * _BITS)
    twice = (2 * denominator) << _BITS
    ratios = [0] * (reach + 1)
    for k in range(start, 0, -1):
        base = k * twice
        low, high = (
            squared // (base + numerator * high),
            -(-squared // (base + numerator * low)),
        )
        if k <= reach + 1:
            if (high - low) << _MAX_RELATIVE_GAP_BITS > low:
                raise CertificateError(
                    f"the Bessel ratio r_{k - 1} at variance {noise_variance!r} is "
                    "enclosed too widely; report this variance"
                )
            ratios[k - 1] = (low + high) >> 1
    mantissa, exponent = 1 << 200, -200
    weights = [(mantissa, exponent)]
    for ratio in ratios[:-1]:
        mantissa = (mantissa * ratio) >> _BITS
        lost = 200 - mantissa.bit_length()
        if lost > 0:  # keep two hundred significant bits
            mantissa, exponent = mantissa << lost, exponent - lost
        weights.append((mantissa, exponent))
    # Beyond the reach the weights fall at least geometrically with r_reach.
    # Weights below 10^-308 of the centre vanish here; they do not move the total.
    total = math.fsum(
        (1 if index == 0 else 2) * math.ldexp(mantissa, exponent)
        for index, (mantissa, exponent) in enumerate(weights)
    )
    # Beyond the reach the weights fall at least geometrically with r_reach.
    rest = ratios[-1] / _ONE
    beyond = 2.0 * math.ldexp(*weights[-1]) * rest / (1.0 - rest)
    if beyond > 2.0**-56:
        raise CertificateError(
            f"a window of {reach} integers misses mass at variance {noise_variance!r}"
        )
    log_total = math.log(total)
    logs = np.array([_log_of(*weight) for weight in weights]) - log_total
    return np.array([ratio / _ONE for ratio in ratios]), logs


def _log_of(mantissa: int, exponent: int) -> float:
    """Return log(mantissa · 2^exponent) without cancelling large logarithms."""
    bits = mantissa.bit_length()
    return math.log(mantissa / (1 << bits)) + (exponent + bits) * math.log(2.0)
