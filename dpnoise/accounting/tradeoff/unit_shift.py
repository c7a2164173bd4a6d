"""How well integer noise hides a shift by one, measured as a Gaussian shift.

Notation: F is the cdf of the noise, q its pmf, v its variance, Q_s the noise shifted
by s, z(t) = Φ^(−1)(F(t)), inc(t) = z(t) − z(t−1), M = sup over t of inc(t), and
c(t) = log(q(t)²/(q(t−1)·q(t+1))). T(P, Q) is the trade-off function of two laws and
G_μ that of two unit normals with means μ apart.

Rule 1: *A shift by s is at least as private as a Gaussian shift by |s|·M.* For
        log-concave noise the optimal tests are threshold tests, so T(Q_0, Q_s) is
        piecewise linear with vertices (1−F(t), F(t−s)). G_μ is convex, so it lies below
        T if it does at every vertex, that is, if z(t) − z(t−s) ≤ μ for every t; and the
        left side is a sum of s increments. Reflections serve the other direction and
        negative shifts.
Rule 2: *Vectors.* Trade-off functions of independent coordinates multiply, and Gaussian
        shifts combine by the root of the sum of squares [DRS22]. A shift by an integer
        vector s is therefore hidden like a Gaussian shift by ‖s‖₂·M. There is no L1
        term, no bound on single entries, and no restriction on orders.
Rule 3: *Small variances* are certified at run time (`certificate`).
Rule 4: *All variances:* M²·(1 − M²/4) ≤ sup over t of c(t). Proof: let inc be largest
        at t, and let m be the middle of the interval between z(t−1) and z(t). The two
        neighbouring intervals are not longer, so with J(x) = Φ(x+M/2) − Φ(x−M/2) we
        have q(t) = J(m), q(t+1) ≤ J(m+M) and q(t−1) ≤ J(m−M); hence c(t) ≥ −log J(m+M)
        + 2·log J(m) − log J(m−M). J is M times the density of a normal plus a uniform
        variable U on [−M/2, M/2], so −(log J)'' = 1 − Var(U | sum) ≥ 1 − M²/4.
        Integrate twice. A largest increment exists for Skellam noise, whose increments
        tend to 0. Those of a discrete Gaussian tend to 1/σ; if the supremum is not
        attained it is this limit, and M² = 1/σ² = c satisfies the claim.
Rule 5: *For Skellam noise c is largest at 0.* With r_t = I_{t+1}(v)/I_t(v) it is to be
        shown that r_t² ≤ r_{t−1}·r_{t+1}. By 1/r_{t−1} = 2t/v + r_t and r_{t+1} = 1/r_t
        − 2(t+1)/v this says r_t ≤ ρ, the root of ρ⁴ + 2tρ³/v + 2(t+1)ρ/v = 1. Both
        vanish at v = 0; r obeys r' = 1 − (2t+1)r/v − r², and ρ is a strict
        supersolution: with s = ρ² and D = ts+t+1, ρ' > 1 − (2t+1)ρ/v − ρ² reduces to D
        > t(1+s), which is 1 > 0. The equation is singular at v = 0, so compare there by
        w = ρ − r: (v^(2t+1)·e^(∫(ρ+r))·w)' > 0, and the bracket tends to 0 with v.
Rule 6: *The centre.* c(0) = −2·log r_0 and r_0 ≥ 1 − 1/(2v) − 1/(8v²) − 1/(4v³) for v ≥
        4, since the right side is a subsolution of the same equation there and is
        smaller at v = 4.
Rule 7: *The branch.* Rule 4 leaves M near √c(0) or near 2. M falls with v, because more
        noise is post-processing, and at v = 4 it is certified below 0.53; hence the
        former. For the discrete Gaussian c is the constant 1/σ², M is continuous in σ
        and tends to 0, so for σ² > 1 it never leaves the lower branch.

Rules 1 and 4 to 7 are elementary and ours; rule 2 rests on [DRS22]. For Skellam noise
the closed form exceeds the truth by a relative 0.21/v, while the certificate exceeds it
by less than 1e-12.

It covers symmetric log-concave integer noise only; `log_concave` has further noises.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.accounting.tradeoff.shift_certificate import certify_unit_shift
from dpnoise.floats import float_below

CLOSED_FORM_FROM: Final = 4096
"""From this variance on the closed form loses less than 2.5e-5 of the variance."""

_CERTIFIED_STDDEVS: Final = 8.0
# A certificate examines twice the shift beyond the bulk. Shifts of more standard
# deviations than this make epsilon exceed 30 whatever the bound.

_LEAST_CLOSED_FORM: Final = 4  # rule 6
_MARGIN: Final = 1.0 + 2.0**-45  # some ten floating-point operations


@dataclass(frozen=True, slots=True)
class ShiftBound:
    """A bound on M and what it rests on.

    Args:
        unit_gdp: Upper bound on M. A shift by s grid steps is hidden at least as well
            as a standard normal shifted by s times this number.
        tail: Probability mass per differing coordinate and world that the bound does
            not cover; to be charged to delta.
        method: "certificate" or "closed form".
    """

    unit_gdp: float
    tail: float
    method: str


def skellam_shift(noise_variance: Fraction, *, linf_sensitivity: int) -> ShiftBound:
    """Bound how well Skellam noise hides integer shifts.

    Args:
        noise_variance: Exact variance, grid steps squared, at least 2^-20.
        linf_sensitivity: Largest absolute shift of a coordinate, grid steps, at
            least 1. Only the certificate depends on it.

    Returns:
        The bound: certified for variances below `CLOSED_FORM_FROM` and shifts of few
        standard deviations, in closed form otherwise. The latter is infinite for
        variances below 4, where such shifts are hidden by nothing anyway.

    Raises:
        ParameterError: The variance is below 2^-20.
        CertificateError: A certificate failed; a defect.
    """
    long_shift = _CERTIFIED_STDDEVS * (math.sqrt(float_below(noise_variance)) + 1.0)
    if noise_variance >= CLOSED_FORM_FROM or linf_sensitivity > long_shift:
        return ShiftBound(
            unit_gdp=skellam_shift_closed_form(noise_variance),
            tail=0.0,
            method="closed form",
        )
    certificate = certify_unit_shift(noise_variance, linf_sensitivity)
    return ShiftBound(
        unit_gdp=certificate.unit_gdp, tail=certificate.tail, method="certificate"
    )


def skellam_shift_closed_form(noise_variance: Fraction) -> float:
    """Bound M for Skellam noise by rules 4 to 7.

    Args:
        noise_variance: Exact variance, grid steps squared.

    Returns:
        Upper bound on M, above the truth by a relative 0.21/v; infinite for v < 4.
    """
    if noise_variance < _LEAST_CLOSED_FORM:
        return math.inf
    inverse = 1.0 / float_below(noise_variance)
    gap = inverse * (0.5 + inverse * (0.125 + 0.25 * inverse)) * _MARGIN
    return lower_branch(-2.0 * math.log1p(-gap) * _MARGIN)


def discrete_gaussian_shift(noise_variance: Fraction) -> float:
    """Bound M for discrete Gaussian noise by rules 4 and 7.

    Args:
        noise_variance: Variance parameter σ², grid steps squared.

    Returns:
        Upper bound on M, above 1/σ by a relative 1/(8σ²); infinite for σ² ≤ 1.
    """
    if noise_variance <= 1:
        return math.inf
    return lower_branch(_MARGIN / float_below(noise_variance))


def lower_branch(curvature: float) -> float:
    """Bound M by rule 4, given that it is on the lower branch.

    Args:
        curvature: Upper bound on c(t) for every t.

    Returns:
        The smaller root M of M²·(1 − M²/4) = curvature, rounded upwards; infinite from
        a curvature of 1 on.
    """
    if curvature >= 1.0:
        return math.inf
    # 2·(1 − √(1−c)) without cancellation.
    squared = 2.0 * curvature / (1.0 + math.sqrt(1.0 - curvature))
    return math.sqrt(squared) * _MARGIN
