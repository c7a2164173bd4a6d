"""Caps of the sphere and of the hypercube: their probability and mean agreement.

A mechanism sends a uniform point of a cap around its input with probability p, and one
of the rest otherwise. Two numbers of the cap describe it. One is its probability q
under the uniform law. The other is the mean M of the agreement between a point of the
cap and its centre. With the cosine t as agreement (sphere), or the mean of the products
of signs (cube), and c = 1/(e^ε − 1):

* The density relative to the uniform law is p/q inside and (1 − p)/(1 − q) outside. So
  the mechanism is exactly ε-private for ε = log(p/(1 − p)) + log((1 − q)/q).
* The mean agreement is m = M·(p − q)/(1 − q); the point divided by m is unbiased.
* For p that spends all of ε, m = q·M/(q + c). Lowering the edge of the cap from t by a
  mass dq adds t·dq to q·M, so m grows while t > m. The best edge is the agreement t* =
  m(t*), which is unique.

Sphere. With a = (d − 1)/2, edge t = 1 − h and T_n the product over i < n of
(2a + i)/(a + 1 + i)·h/2, Euler's transformation of the incomplete beta function gives

    q·M = Γ(a + 1/2)/(2a·√π·Γ(a)) · (h(2 − h))^a,     q = q·M · Σ T_n,
    q·(M − t) = q·M · h·Σ T_n·(n + 2)/(2(a + 1 + n)).

All terms are positive, so nothing cancels, even for caps of 10^-300 or in 10^6
dimensions. The condition of the best edge is q·(M − t) = c·t.

Cube. With L agreements of d: q = 2^-d·Σ_{l ≥ L} C(d, l) and q·M = 2^-d·C(d − 1, L − 1).

Sources: [Bho18] Algorithms 1 and 2 with equations (14), (15), (18) and (19). That the
density is exact instead of the sufficient conditions (16), (20) and (21), the series
and the optimal edge are ours. The optimum of the sphere is that of [AFT22].
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from dpnoise.errors import ParameterError
from dpnoise.searches import halve

MIN_EPSILON: Final = 1e-3
MAX_EPSILON: Final = 1000.0
"""At higher levels caps fall below e^-1000, out of range; they hide nothing anyway."""

LOG_TAIL_ERROR: Final = 1e-9
"""Bound on the error of `log_tail`, for d up to 2^24. It covers the rounding of
logarithms up to 1000, products a·log(...) of that size, and 10^5 positive terms."""

_NEGLIGIBLE: Final = 2.0**-60
_STIRLING_FROM: Final = 200.0


@dataclass(frozen=True, slots=True)
class SphereCap:
    """The points of the unit sphere whose cosine with a direction is at least 1 − h.

    Attributes:
        dim: d, at least 2.
        height: h in (0, 1], so that the cap is at most half of the sphere.
        log_tail: log q, to within `LOG_TAIL_ERROR`.
        mean: M, the mean cosine of a point of the cap.
    """

    dim: int
    height: float
    log_tail: float
    mean: float

    @classmethod
    def of_height(cls, dim: int, height: float) -> "SphereCap":
        """Evaluate the cap of height h in (0, 1]."""
        total, _ = _series(dim, height)
        log_tail = _log_moment(dim, height) + math.log(total)
        return cls(dim, height, log_tail, 1.0 / total)

    @property
    def edge(self) -> float:
        """The cosine at the edge, 1 − h."""
        return 1.0 - self.height


@dataclass(frozen=True, slots=True)
class CubeCap:
    """The sign vectors that agree with another one in at least L places of d.

    Attributes:
        dim: d, at least 1.
        level: L, more than d/2.
        log_tail: log q, to within `LOG_TAIL_ERROR`.
        mean: M, the mean product of signs.
    """

    dim: int
    level: int
    log_tail: float
    mean: float

    @classmethod
    def of_level(cls, dim: int, level: int) -> "CubeCap":
        """Evaluate the cap of L agreements, d/2 < L ≤ d."""
        term = total = 1.0
        agreeing = level
        while term > _NEGLIGIBLE * total and agreeing < dim:
            term *= (dim - agreeing) / (agreeing + 1)
            total += term
            agreeing += 1
        log_tail = _log_binomial(dim, level) + math.log(total)
        return cls(dim, level, log_tail, level / (dim * total))

    @property
    def edge(self) -> float:
        """The mean product of signs at the edge, 2L/d − 1."""
        return (2 * self.level - self.dim) / self.dim


def best_sphere_cap(dim: int, epsilon: float) -> SphereCap:
    """Return the cap of the most accurate mechanism of its kind.

    Args:
        dim: d, at least 2.
        epsilon: Privacy level in nats, in [MIN_EPSILON, MAX_EPSILON].

    Returns:
        The cap whose edge is its own mean agreement, see the module. Its accuracy is
        flat there: the last bits of the height do not matter.

    Raises:
        ParameterError: A number is out of range.
    """
    rest_logit = _rest_logit(epsilon)

    def too_high(log_height: float) -> bool:
        height = math.exp(log_height)
        _, excess = _series(dim, height)
        left = _log_moment(dim, height) + math.log(excess)
        return left >= rest_logit + math.log1p(-height)

    # Within 1e-12 of the logarithm the accuracy is flat.
    low, _ = halve(too_high, -700.0, math.log1p(-(2.0**-40)), width=1e-12)
    return SphereCap.of_height(dim, math.exp(low))


def best_cube_cap(dim: int, epsilon: float) -> CubeCap:
    """Return the cap of the most accurate mechanism of its kind.

    Args:
        dim: d, at least 1.
        epsilon: Privacy level in nats, in [MIN_EPSILON, MAX_EPSILON].

    Returns:
        The lowest level that still gains: the level below would not, see the module.

    Raises:
        ParameterError: A number is out of range.
    """
    rest_logit = _rest_logit(epsilon)

    def gains(level: int) -> bool:
        above = CubeCap.of_level(dim, level + 1)
        # m = q·M/(q + c) of the cap above, which the level would join.
        kept = math.exp(-_softplus(rest_logit - above.log_tail))
        return (2 * level - dim) / dim > above.mean * kept

    # The level `dim` is good; half of it has no positive agreement to add.
    level = bisect_left(range(dim), x=True, lo=dim // 2 + 1, key=gains)
    return CubeCap.of_level(dim, level)


def log_rest(log_tail: float) -> float:
    """Return log(1 − q) for the log q of a cap."""
    return math.log1p(-math.exp(log_tail))


def check_epsilon(parameter: str, epsilon: float) -> float:
    """Return a privacy level, or refuse it by name.

    Raises:
        ParameterError: It lies outside [MIN_EPSILON, MAX_EPSILON].
    """
    kind: object = epsilon
    if (
        isinstance(kind, bool)
        or not isinstance(kind, int | float)
        or not MIN_EPSILON <= epsilon <= MAX_EPSILON
    ):
        raise ParameterError.of(
            parameter, kind, f"must lie in [{MIN_EPSILON:g}, {MAX_EPSILON:g}]"
        )
    return float(epsilon)


def _series(dim: int, height: float) -> tuple[float, float]:
    """Return Σ T_n and h·Σ T_n·(n + 2)/(2(a + 1 + n)), see the module."""
    twice, rest, ratio = dim - 1, (dim + 1) / 2, height / 2
    term = total = 1.0
    excess = 1.0 / rest
    n = 0
    while term > _NEGLIGIBLE * total:
        term *= (twice + n) / (rest + n) * ratio
        n += 1
        total += term
        excess += term * (n + 2) / (2.0 * (rest + n))
    return total, height * excess


def _log_moment(dim: int, height: float) -> float:
    """Return log(q·M) of a cap of the sphere."""
    half = (dim - 1) / 2
    if height > 0.5:  # noqa: PLR2004  # 1 − h is exact there, and h(2 − h) is near 1
        edge = 1.0 - height
        log_square = math.log1p(-edge * edge)
    else:
        log_square = math.log(height) + math.log(2.0 - height)
    return (
        half * log_square
        + _log_gamma_step(half)
        - math.log(2.0 * half)
        - 0.5 * math.log(math.pi)
    )


def _log_gamma_step(x: float) -> float:
    """Return log(Γ(x + 1/2)/Γ(x)) without the cancellation of two large logarithms."""
    if x < _STIRLING_FROM:
        return math.lgamma(x + 0.5) - math.lgamma(x)
    # The next term is below 2·10^-3/x^5.
    u = 1.0 / x
    series = 1.0 - u / 8 + u**2 / 128 + 5 * u**3 / 1024 - 21 * u**4 / 32768
    return 0.5 * math.log(x) + math.log(series)


def _log_binomial(trials: int, heads: int) -> float:
    """Return log(2^-n·C(n, k)), k > n/2, by the deviations of Stirling's formula."""
    if heads == trials:
        return -trials * math.log(2.0)
    lean = (2 * heads - trials) / trials
    divergence = (1 + lean) * math.log1p(lean) + (1 - lean) * math.log1p(-lean)
    return (
        _stirling_error(trials)
        - _stirling_error(heads)
        - _stirling_error(trials - heads)
        - trials / 2 * divergence
        - 0.5 * math.log(2 * math.pi * heads * (trials - heads) / trials)
    )


def _stirling_error(n: int) -> float:
    """Return log(n!) minus Stirling's formula for it, n at least 1."""
    if n < _STIRLING_FROM:
        formula = (n + 0.5) * math.log(n) - n + 0.5 * math.log(2 * math.pi)
        return math.lgamma(n + 1.0) - formula
    return (1 / 12 - (1 / 360 - 1 / (1260 * n * n)) / (n * n)) / n


def _rest_logit(epsilon: float) -> float:
    """Return log c, c = 1/(e^ε − 1)."""
    level = check_epsilon("epsilon", epsilon)
    return -level - math.log(-math.expm1(-level))


def _softplus(x: float) -> float:
    """Return log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
