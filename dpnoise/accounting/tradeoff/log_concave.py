"""Trade-off bounds of a unit shift for sums of discrete Gaussians or Bernoulli trials.

Notation as in `unit_shift`, whose rules 1, 2 and 4 hold for the noises here: it remains
to bound c(t) = log(q(t)²/(q(t−1)·q(t+1))), which bounds M. Far out z(t)² is −2·log q(t)
up to logarithms, so increments tend to 1/√(nσ²) for n shares, and to √c(W) for replaced
ends. Where the supremum of rule 4 is not attained it is this limit, whose square is the
mean of c over a period, or c(W): the claim of rule 4 holds there as well.

*Sums of n discrete Gaussians of parameter σ²*, with β = 2π²σ². A sum of log-concave
variables is log-concave.

Rule 1: *Shape.* q(t) is proportional to e^(−t²/2nσ²)·Θ(t), where Θ(t) is the sum of
        e^(−β·E(m))·cos(2π·t·m̄) over the vectors m of n integers, two of them being the
        same if they differ by a multiple of (1, …, 1); m̄ is the mean of m and E(m) =
        Σ(m_i − m̄)². Proof: by Poisson's summation formula the characteristic function
        of one share is proportional to Σ_k e^(−σ²(θ−2πk)²/2). Its n-th power is
        Σ_m exp(−nσ²(θ−2πm̄)²/2 − β·E(m)). The transform integrates it over one period
        of θ. Moving m along (1, …, 1) moves θ by periods, so each class of vectors is
        integrated over the whole line, a Gaussian integral.
Rule 2: *Curvature.* Let R, Q, P be the sums over m ≠ 0 of e^(−β·E(m)) times 1,
        2 − 2·cos(2πm̄) and |sin(2πm̄)|. With a = Θ(t): a ≥ 1 − R, the second difference
        of Θ is at most Q, half of Θ(t+1) − Θ(t−1) at most P, hence

            c(t) ≤ 1/(nσ²) − log((1 − Q/2a)² − P²/a²),

        since xy = ((x+y)/2)² − ((x−y)/2)². Cauchy and Schwarz give P² ≤ R·Q, because
        sin² x ≤ 2 − 2·cos x.
Rule 3: *One dimension.* 1 = √(βn/π)·∫ e^(−βn(c−m̄)²) dc over the line, which moving m
        along (1, …, 1) cuts into periods: with w(m) = 1 or any weight of a class,

            Σ_classes w·e^(−βE) = √(βn/π)·∫_(−1/2)^(1/2) Σ_m w·∏_i e^(−β(m_i−c)²) dc.

        Take out e^(−βnc²) and put u_r(c) = Σ_(k≠0) k^r·e^(−βk²+2βkc). Integrals being
        against the normal density of variance 1/(2βn), R is that of (1+u_0)^n − 1,
        less the normal mass beyond 1/2, and Q, as 2 − 2·cos x ≤ x², at most 4π²/n²
        times that of n·(1+u_0)^(n−1)·u_2 + n(n−1)·(1+u_0)^(n−2)·u_1². For 0 ≤ c ≤ 1/2
        u_0, |u_1| and u_2 increase: cells with u at their right ends bound from above.
Rule 4: *Branch.* R and Q fall as σ² grows, so the bound on c holds for all larger σ²;
        M is continuous in σ and tends to 0, and below c = 1 the branches do not meet.
Rule 5: *Fewer and wider shares of the same noise.* Let v = nσ² be fixed; the normal
        density of rule 3 then is, too. Let k ≤ n shares have parameter v/k, and thus
        β_k = βn/k ≥ β. All that is used of them is bounded by what is used of n:
        u_0 falls with β, and (1+u_0)^k grows with k. In Q stand (1−1/k)·u_1² and
        u_2/k. Terms of u_2/k are r²·x·e^(−βnax) with x = 1/k and a = r² ∓ 2rc, and
        x·e^(−βnax) is at most its maximum over 1/n ≤ x ≤ 1/2: its value at 1/n if
        βa ≥ 1, as for all terms but r = 1 near c = ½. Terms e^(−βr²)·sinh(2βrc) of u_1
        fall with β where 2c·coth(2βrc) ≤ r, hence for r ≥ 2 at β ≥ 2. For r = 1 half of
        e^(−β(1−2c)) bounds them elsewhere. What bounds both signs of one r together
        grows with c: below βa = 1 the maximum does by at least 2β/e, and the term of
        the other sign falls by at most 2β/e³. The bound on c(t) grows with R and Q. A
        single share has c = 1/v, which is less.

*N fair trials*: c(t) = log(1 + (N+1)/(N²/4 − t²)) exceeds every bound near the ends.

Rule 6: *Replace the ends.* Keep q(t) for |t| ≤ W+1; beyond, let the ratio of neighbours
        fall by the constant factor e^(−c(W)). The new law q' is symmetric, log-concave
        and has c ≤ c(W) everywhere. Its tails are the heavier ones, so it is a mixture
        of q and of the excess. Total variation is at most the new tail, at most
        2·q(W+1)·ρ/(1−ρ) with ρ = q(W+1)/q(W). It is charged to delta, per world and per
        coordinate that differs. By Hoeffding q(W+1) ≤ exp(−2(W+1)²/N).
Rule 7: *Branch.* q' to a power λ ≤ 1, normalised, has c multiplied by λ; M is
        continuous in λ and tends to 0 with it.

All rules are elementary and ours. No bound t on the distance to a discrete Gaussian is
needed, no convolution, and nothing is charged for shares.
"""

import functools
import math
from fractions import Fraction
from typing import Final

from dpnoise.accounting.tradeoff.unit_shift import (
    ShiftBound,
    discrete_gaussian_shift,
    lower_branch,
)
from dpnoise.floats import float_below

_CELLS: Final = 1024
_MARGIN: Final = 1.0 + 2.0**-30  # some 10^4 floating-point operations, all positive
_LEAST_EXPONENT: Final = 2.0  # β below: R exceeds 1 for any two shares
_LARGEST_LOG: Final = 700.0
_LEAST_MASS: Final = 1e-290
# 10^4 releases of 2^20 entries charge less than 10^-8·(1+e^ε), and with many trials
# less than 10^-27. An epsilon of 40 needs that; it costs at most a thousandth of the
# variance.
_LEAST_CHARGE_BITS: Final = 60
_MOST_CHARGE_BITS: Final = 128
_TRIALS_PER_CHARGE_BIT: Final = 1 << 11


def discrete_gaussian_sum_shift(
    num_noise_shares: int, local_noise_variance: Fraction
) -> float:
    """Bound M for a sum of discrete Gaussians by rules 1 to 5.

    The bound holds for n shares of this parameter or more, and for fewer, equal ones
    whose parameters add up to at least nσ².

    Args:
        num_noise_shares: Number n of independent shares, at least 1.
        local_noise_variance: Variance parameter σ² of one share, grid steps squared.

    Returns:
        Upper bound on M, near 1/√(nσ²); infinite where shares are so narrow (about
        2n·exp(−2π²σ²) ≥ 1) or so few that nothing is known.
    """
    if num_noise_shares == 1:
        return discrete_gaussian_shift(local_noise_variance)
    variance = float_below(local_noise_variance)
    plain, bent = periodic_part(num_noise_shares, variance)
    if plain >= 1.0:
        return math.inf
    least = 1.0 - plain
    # 1 − ((1 − Q/2a)² − RQ/a²), which may be far below the spacing of floats near 1.
    missing = bent / least * (1.0 - 0.25 * bent / least + plain / least)
    if not (bent < 2.0 * least and missing < 1.0):
        return math.inf
    curvature = 1.0 / (num_noise_shares * variance) - math.log1p(-missing)
    return lower_branch(curvature * _MARGIN)


@functools.lru_cache(maxsize=4096)
def periodic_part(num_noise_shares: int, variance: float) -> tuple[float, float]:
    """Bound the sums R and Q of rule 2 by rules 3 and 5.

    The bounds hold for every number of shares from 2 to n whose parameters are equal
    and add up to nσ².

    Args:
        num_noise_shares: Number n of shares, at least 2.
        variance: Variance parameter σ² of one share, at least 0.

    Returns:
        Upper bounds on R and Q; infinite where R exceeds 1 anyway.
    """
    shares, beta = num_noise_shares, 2.0 * math.pi**2 * variance
    if beta < _LEAST_EXPONENT:
        return math.inf, math.inf
    root = math.sqrt(beta * shares)
    plain, bent = 0.0, 0.0
    for cell in range(_CELLS):
        start, end = cell / (2.0 * _CELLS), (cell + 1.0) / (2.0 * _CELLS)
        near = math.erfc(root * start)
        # Both halves of the period; where the mass underflows, its Chernoff bound.
        log_mass = (
            math.log(near - math.erfc(root * end) + 2.0**-50 * near)
            if near > _LEAST_MASS
            else -((root * start) ** 2)
        )
        zeroth, first, second = _moments_beside_zero(shares, beta, end)
        growth = shares * math.log1p(zeroth)
        if log_mass + growth > _LARGEST_LOG:
            return math.inf, math.inf
        plain += (
            math.exp(log_mass) * math.expm1(growth)
            if growth < 1.0
            else math.exp(log_mass + growth)
        )
        bent += math.exp(log_mass + growth) * (second + (shares - 1.0) * first * first)
    return plain * _MARGIN, bent * 4.0 * math.pi**2 / shares * _MARGIN


def _moments_beside_zero(
    shares: int, beta: float, shift: float
) -> tuple[float, float, float]:
    """Return upper bounds on u_0, |u_1| and u_2 at 0 ≤ shift ≤ 1/2.

    Those on |u_1| and u_2/n hold for fewer shares, too (rule 5).
    """
    zeroth, first, second = 0.0, 0.0, 0.0
    index = 1
    while True:
        ahead = math.exp(-beta * index * (index - 2.0 * shift))
        behind = math.exp(-beta * index * (index + 2.0 * shift))
        zeroth += ahead + behind
        if index == 1:
            falls = 2.0 * shift * _MARGIN <= math.tanh(2.0 * beta * shift)
            first += ahead - behind if falls else ahead
            second += _largest_of_fewer(shares, beta * (1.0 - 2.0 * shift)) + behind
        else:
            first += index * (ahead - behind)
            second += index * index * (ahead + behind)
        if index * index * ahead <= 2.0**-60 * second:
            # Terms fall faster than by a half from here on.
            rest = 2.0 * index * index * ahead
            return zeroth + rest, first + rest, second + rest
        index += 1


def _largest_of_fewer(shares: int, exponent: float) -> float:
    """Return the largest n/k·e^(−exponent·n/k) over 2 ≤ k ≤ n, k real."""
    if exponent >= 1.0:
        return math.exp(-exponent)
    widest = 0.5 * shares
    if exponent * widest <= 1.0:
        return widest * math.exp(-exponent * widest)
    return 1.0 / (math.e * exponent)


def binomial_shift(num_trials: int) -> ShiftBound:
    """Bound M for centred binomial noise by rules 6 and 7.

    Args:
        num_trials: Number N of fair Bernoulli trials, at least 1.

    Returns:
        The bound and its charge; infinite for fewer than some hundred trials.
    """
    # z standard deviations, √N/2 each, leave about exp(−z²/2) of the mass and make
    # c(W) larger by z²/N of itself.
    afforded = num_trials // _TRIALS_PER_CHARGE_BIT
    bits = min(max(afforded, _LEAST_CHARGE_BITS), _MOST_CHARGE_BITS)
    deviations = math.sqrt(2.0 * math.log(2.0) * (bits + 8))
    last = math.ceil(0.5 * deviations * math.sqrt(num_trials))
    if 2 * last >= num_trials:
        return ShiftBound(math.inf, 0.0, "none: too few trials")
    # In half steps everything is an integer.
    rest = (num_trials - 2 * last) * (num_trials + 2 * last)
    curvature = math.log1p(4 * (num_trials + 1) / rest)
    ratio = (num_trials - 2 * last) / (num_trials + 2 * last + 2)
    tail = 2.0 * math.exp(-2.0 * (last + 1) ** 2 / num_trials) * ratio / (1.0 - ratio)
    return ShiftBound(lower_branch(curvature * _MARGIN), tail * _MARGIN, "closed form")
