"""How far a sum of randomised vectors strays from the sum that it estimates.

Outputs Z_1 … Z_n of independent draws have the inputs as their means, so that μ = Σ E Z
is a sum of true vectors. What comes on top, X = Σ (Z − E Z), has independent parts and
grows like √n, however much the inputs agree. With E exp⟨θ, Z − E Z⟩ ≤ exp(θᵀQθ/2) for
every θ (a sub-Gaussian vector), tr Q ≤ T and ‖Q‖ ≤ P for each part, and L = log(2/β),

    ‖μ + X‖² ≤ ‖μ‖² + 2‖μ‖·√(2nPL) + (√(nT) + √(2nPL))²        but with chance β.

Proof: ⟨μ, X⟩ is sub-Gaussian with nP‖μ‖², so it exceeds ‖μ‖·√(2nPL) with chance β/2.
‖X‖² exceeds n·(T + 2√(TPL) + 2PL), which is less than the last square, with chance
β/2 [HKZ12] Theorem 1, as tr Q² ≤ ‖Q‖·tr Q.

* *Any output within a ball of radius B.* T = P = B². ⟨θ, Z⟩ lies in an interval of
  2B‖θ‖: Hoeffding's lemma. One output moves ‖X‖ by 2B at most, and E ‖X‖ ≤ B√n:
  [McD89] gives the last square directly.
* *A point of a cap, Z = B·(t·u + √(1 − t²)·W)*, W uniform on the unit sphere across u,
  in N = d − 1 dimensions. Given t, moments of W are at most those of a normal vector of
  covariance 1/N: (2k − 1)!!/(N(N + 2)⋯(N + 2k − 2)) ≤ (2k − 1)!!/N^k. Given on which
  side of the edge t lies, its log density has a second derivative of −(d − 3) or less,
  and so has that of every law e^(θt) times it: their variance, which is the second
  derivative of the logarithm of the moments of t, is at most 1/(d − 3) [BL76]. The mean
  of t has two values, Δ = M/(1 − q) apart: Δ²/4 by Hoeffding's lemma. Together

      Q = B²/N · 1 + (B²·(1/(d − 3) + Δ²/4) + w²)·uuᵀ,

  w being half of the range over which the mean of Z is moved along u by a draw before
  the point: by turning a short vector round, or by a length that is drawn itself.

It decides about utility only: a sum that is longer than a plan assumes may wrap around
the modulus, and wrapping never costs privacy.

Sources: [HKZ12], [McD89], [BL76]; putting them together is ours.
"""

import math
from dataclasses import dataclass

from dpnoise.local.cap import SphereCap

__all__ = ["Scatter", "largest_sum"]


@dataclass(frozen=True, slots=True)
class Scatter:
    """A bound on the sub-Gaussian covariance Q of one output, caller's units².

    Attributes:
        total: T, bound on the trace of Q.
        along_one: P, bound on its largest eigenvalue.
    """

    total: float
    along_one: float

    @classmethod
    def in_ball(cls, radius: float) -> "Scatter":
        """Return what holds of everything within a ball around zero.

        Args:
            radius: B, caller's units.
        """
        return cls(radius * radius, radius * radius)

    @classmethod
    def around_cap(cls, cap: SphereCap, radius: float, moved: float) -> "Scatter":
        """Return what holds of points of a cap or of the rest of the sphere.

        Args:
            cap: Of the unit sphere, in at least 4 dimensions.
            radius: B, largest length of a point, caller's units.
            moved: w of the module, caller's units.
        """
        apart = cap.mean / -math.expm1(cap.log_tail)
        cosine = 1.0 / (cap.dim - 3) + apart * apart / 4.0
        along = radius * radius * cosine + moved * moved
        across = radius * radius / (cap.dim - 1)
        return cls(cap.dim * across + along, across + along)


def largest_sum(
    scatter: Scatter, *, vectors: float, mean_norm: float, failure: float
) -> float:
    """Return a norm that a sum of outputs exceeds with a small chance only.

    Args:
        scatter: Of one output.
        vectors: n, how many there are at most.
        mean_norm: Bound on ‖μ‖, the norm of the sum of true vectors, caller's units.
        failure: β in (0, 1).

    Returns:
        The bound of the module, caller's units.
    """
    tail = math.sqrt(2.0 * vectors * scatter.along_one * math.log(2.0 / failure))
    across = math.sqrt(vectors * scatter.total) + tail
    return math.sqrt(mean_norm * (mean_norm + 2.0 * tail) + across * across)
