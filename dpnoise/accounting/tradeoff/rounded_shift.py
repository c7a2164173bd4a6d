"""How well Skellam noise hides a rounded coordinate, measured as a Gaussian shift.

A real vector x is rounded stochastically, coordinate by coordinate, and Skellam noise
is added. The neighbouring world holds zeros. Notation as in `unit_shift`: F is the cdf
of the noise, z = Φ^(−1)∘F, M bounds every increment of z. C bounds ‖x‖², X every |x_j|,
and S = ⌈min(X, √C)⌉ the integers that they are rounded to. W > S is any integer, and

    G = g((W + ½)·M²)·e^(M²/2) with g(t) = (eᵗ − 1)/t,   τ = P(noise > W − S).

Theorem. In any dimension d, δ(ε) ≤ δ_μ(ε) + d·τ·(1 + e^ε) with μ = √C·M·G, δ_μ being
the curve of two unit normals μ apart. For T adaptive releases it is √T·μ and T·d·τ.

Rule 1: *Clamp.* Take x_j ≥ 0; a reflection serves the others. Replace outputs above W
        by W. For either input the noise must exceed W − S for that, so each law moves
        by at most τ. This costs τ·(1 + e^ε) by the triangle inequality. Left are
        threshold tests at t < W: the likelihood ratio of the rounded coordinate against
        zero, a mixture of increasing ones, increases.
Rule 2: *One threshold.* As for integers (`unit_shift`, rule 1) the trade-off function
        is piecewise linear and G_μ convex, so it suffices that z(t) − Φ^(−1)(F_x(t)) ≤
        M·G·x_j for every t < W, F_x being the cdf of the rounded, noisy coordinate.
        Write x_j = k + p with k = ⌊x_j⌋, a = z(t−k), b = z(t−k−1) and h = a − b ≤ M.
        Then z(t) − a ≤ k·M and F_x(t) = (1−p)·Φ(a) + p·Φ(b).
Rule 3: *a ≤ 0.* Φ is convex on (−∞, 0], so F_x(t) ≥ Φ(a − p·h): at most p·M is added.
Rule 4: *a > 0.* F_x(t) = Φ(a − s) with 0 ≤ s ≤ h. Since φ(a − u) = φ(a)·e^(au − u²/2),

            ∫_0^s e^(au − u²/2) du = p·∫_0^h e^(au − u²/2) du.

        The left side is at least s·e^(−M²/2); the right one at most p·(e^(ah) − 1)/a =
        p·h·g(ah), and g increases. From 2·z(0) = inc(0) ≤ M follows z(t) ≤ (t + ½)·M,
        so a·h ≤ (W + ½)·M² and s ≤ p·M·G. Together: (k + p·G)·M ≤ M·G·x_j.
Rule 5: *Vectors and releases.* Coordinates must be rounded independently of each other,
        as stochastic rounding does and conditional rounding does not. Trade-off
        functions of independent coordinates then multiply, and Gaussian shifts combine
        by the root of the sum of squares [DRS22], which also composes adaptive
        releases. A shorter vector only has a smaller shift.
        Under a selection, [Bla53] turns two normals μ apart into both clamped laws of
        the whole vector. The mixture moves by at most as much, so τ stays charged.

Rules 1 to 4 are elementary and ours. Two traps: Chernoff's bound on τ is even in W − S,
hence tiny and false for W ≪ S. And d·τ·(1 + e^ε) grows with ε, so the sum does not fall
everywhere.

It covers `Adjacency.ZERO_OUT` only: no theorem here compares two mixtures.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.accounting.tradeoff.unit_shift import skellam_shift_closed_form
from dpnoise.events import SkellamMixtureClippedEvent, SkellamMixtureEvent
from dpnoise.floats import float_below

REACHES: Final = (
    *(2.0 + step / 16.0 for step in range(225)),
    *(16.5 + step / 2.0 for step in range(96)),
)
"""Where to clamp, in standard deviations of the noise: 2, 2 1/16, … 16, 16 1/2, … 64.

Beyond 16 only where one coordinate may be many deviations long, at a large epsilon.
"""

_MARGIN: Final = 1.0 + 2.0**-44  # some fifteen floating-point operations
_LARGEST_EXPONENT: Final = 700.0  # beyond, G overflows a float


@dataclass(frozen=True, slots=True)
class RoundedShift:
    """A Gaussian shift that is hidden no better than a rounded vector.

    Args:
        gaussian_shift: Upper bound on μ; infinite where nothing is known.
        distance: Upper bound on d·τ, per world; to be charged to delta.
    """

    gaussian_shift: float
    distance: float


def largest_rounded(norm_squared: float, linf_bound: float) -> int:
    """Return S, the largest absolute integer that a coordinate is rounded to.

    Args:
        norm_squared: Bound C on the squared norm before rounding, grid steps squared.
        linf_bound: Bound X on every absolute coordinate before rounding, grid steps.

    Returns:
        ⌈min(X, √C)⌉, exactly; 0 if C is 0.
    """
    if norm_squared <= 0.0:
        return 0
    return min(math.ceil(linf_bound), math.isqrt(math.ceil(norm_squared) - 1) + 1)


def rounded_shift(
    release: SkellamMixtureEvent | SkellamMixtureClippedEvent, reach: float
) -> RoundedShift:
    """Bound one release for one place to clamp.

    Args:
        release: The release. Of the special clip of [Bao22] only Σx² ≤ c is used.
        reach: Standard deviations z of the noise, above 0; W = ⌈z·√v⌉.

    Returns:
        The bound; infinite for variances below 4, and where W ≤ S.
    """
    if isinstance(release, SkellamMixtureEvent):
        norm_squared = release.l2_clip_squared_steps
    else:
        norm_squared = release.mixture_norm_bound
    largest = largest_rounded(norm_squared, release.linf_bound)
    if largest == 0:
        return RoundedShift(0.0, 0.0)
    unit = skellam_shift_closed_form(release.aggregate_noise_variance)
    if math.isinf(unit):
        return RoundedShift(math.inf, 0.0)
    variance = float_below(release.aggregate_noise_variance)
    last = math.ceil(reach * math.sqrt(variance))
    exponent = (last + 0.5) * unit * unit
    if last <= largest or exponent > _LARGEST_EXPONENT:
        return RoundedShift(math.inf, 0.0)
    growth = math.expm1(exponent) / exponent * math.exp(0.5 * unit * unit)
    tail = _tail_bound(release.aggregate_noise_variance, last - largest)
    return RoundedShift(
        # exp turns the rounding of its argument into a relative error.
        gaussian_shift=(
            math.sqrt(norm_squared) * unit * growth * (_MARGIN + exponent * 2.0**-50)
        ),
        distance=release.dim * tail,
    )


def _tail_bound(noise_variance: Fraction, threshold: int) -> float:
    """Bound P(noise ≥ threshold) for a threshold above 0 by Chernoff, upwards."""
    variance = float_below(noise_variance)
    # threshold·asinh − √(threshold² + v²) + v, without its cancellation.
    rate = threshold * math.asinh(threshold / variance) - threshold * threshold / (
        math.hypot(threshold, variance) + variance
    )
    return math.nextafter(math.exp(-rate * (2.0 - _MARGIN)), 1.0)
