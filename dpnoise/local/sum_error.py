"""Bounds on the norm of a sum of randomised vectors.

Outputs Z_1 … Z_n of independent draws have the inputs as their means, so that μ = Σ E Z
is a sum of true vectors. The error X = Σ (Z − E Z) has independent parts and grows like
√n, even if the inputs agree. With E exp⟨θ, Z − E Z⟩ ≤ exp(θᵀQθ/2) for every θ (a
sub-Gaussian vector), tr Q ≤ T and ‖Q‖ ≤ P for each part, and L = log(2/β),

    ‖μ + X‖² ≤ ‖μ‖² + 2‖μ‖·√(2nPL) + (√(nT) + √(2nPL))²        with probability 1 − β.

Proof: ⟨μ, X⟩ is sub-Gaussian with nP‖μ‖², so it exceeds ‖μ‖·√(2nPL) with probability
β/2. ‖X‖² exceeds n·(T + 2√(TPL) + 2PL), which is less than the last square, with
probability β/2 [HKZ12] Theorem 1, as tr Q² ≤ ‖Q‖·tr Q.

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
  the point: by turning a short vector round, or by a random length.
* *Signs that agree with others, Z = B/√d·(A∘S)*, ∘ entry by entry. The signs S are
  independent with means y, entries in [−1, 1]. The signs A are uniform given their mean
  t, and t = 2K/d − 1 for K ~ Binomial(d, 1/2), on one side of the edge or the other.
  Scale by √d/B and take the draws in reverse order.
  (1) *S, given A.* A sign of mean y has the variance proxy y/artanh y [KS98]; together
  Σ θ_j²·y_j/artanh y_j, whatever A. The mean ⟨φ, A⟩ remains, with φ = θ∘y.
  (2) *A, given t.* Reveal its entries in some order. With n entries to come, their φ
  being ψ on average, the mean of ⟨φ, A⟩ takes one of two values 2·|φ_j − ψ| apart: by
  Hoeffding's lemma the proxy is Σ (φ_j − ψ)². The squares times n/(n + 1) are those of
  an orthogonal transform of φ but for its mean. Averaged over all orders each of these
  d − 1 squares is the same, so some order has no more than c·‖φ‖², c = 1 + h/(d − 1)
  with h = 1 + 1/2 + … + 1/(d − 1) ≤ 1 + log(d − 1).
  (3) *t, given its side.* The sum of C(d, k)·e^(θk) over k ≥ L is (1 + e^θ)^d times the
  probability of L successes or more in d trials of logit θ. That is a distribution
  function of θ with the log-concave density proportional to e^(Lθ)/(1 + e^θ)^(d+1). So
  it is log-concave itself, and the second derivative of the logarithm is d/4 at most,
  as without the edge: t has 1/d. Below the edge, exchange successes and failures.
  (4) The side: Δ²/4, as for the sphere.
  As y/artanh y + y² ≤ 1.43 for every y, together

      Q = B²/d · (0.43 + c) · 1 + B²/d · (1/d + Δ²/4) · yyᵀ,    ‖y‖² ≤ d.

It determines utility only: a sum that is longer than a plan assumes may wrap around the
modulus, and wrapping does not affect privacy.

Sources: [HKZ12], [McD89], [BL76], [KS98]; putting them together is ours.
"""

import math
from dataclasses import dataclass
from typing import Final

from dpnoise.local.sphere_cap import CubeCap, SphereCap

_ROUNDED_SIGN: Final = 0.43
"""The largest y/artanh y + y², at y = 0.927, less 1, rounded up."""


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
        """Return the bound for an output within a ball around zero.

        Args:
            radius: B, caller's units.
        """
        return cls(radius * radius, radius * radius)

    @classmethod
    def cap_bound(cls, cap: SphereCap, radius: float, moved: float) -> "Scatter":
        """Return the bound for a point of a cap or of the rest of the sphere.

        Args:
            cap: Of the unit sphere, in at least 4 dimensions.
            radius: B, largest length of a point, caller's units.
            moved: w of the module, caller's units.
        """
        cosine = 1.0 / (cap.dim - 3) + _agreement_proxy(cap)
        along = radius * radius * cosine + moved * moved
        across = radius * radius / (cap.dim - 1)
        return cls(cap.dim * across + along, across + along)

    @classmethod
    def of_signs(cls, cap: CubeCap, radius: float) -> "Scatter":
        """Return the bound for a vector of signs in a cap of the cube, or outside.

        Args:
            cap: Of the cube.
            radius: B, length of all these vectors, caller's units.
        """
        rest = max(1, cap.dim - 1)
        given_mean = _ROUNDED_SIGN + 1.0 + (1.0 + math.log(rest)) / rest
        along = radius * radius * (1.0 / cap.dim + _agreement_proxy(cap))
        across = radius * radius * given_mean / cap.dim
        return cls(cap.dim * across + along, across + along)


def _agreement_proxy(cap: SphereCap | CubeCap) -> float:
    """Return Δ²/4, the proxy of the mean agreement's two values."""
    apart = cap.mean / -math.expm1(cap.log_tail)
    return apart * apart / 4.0


def largest_sum(
    scatter: Scatter, *, vectors: float, mean_norm: float, failure: float
) -> float:
    """Return a norm that a sum of outputs exceeds with a small probability only.

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
