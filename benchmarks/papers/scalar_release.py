"""One integer counter plus integer noise: its exact privacy loss, and older bounds.

A scalar release has a loss distribution that can be written down atom by atom, so
every bound can be held against the truth. The pmfs are computed here from their
recurrences, apart from the tables of the accountants that are compared.

* Noise is named by its variance. The shift is the query's sensitivity in grid steps.
* What lies outside the tabulated window counts as lost: its mass goes to infinite
  loss in both directions. The window is wide enough that it is below 1e-20.
* `direct_epsilon` bounds the loss in one step, without Rényi divergences: a bound on
  ratios of neighbouring Bessel functions, and Chernoff's bound for the tail. Composed,
  it needs advanced composition. It stands for the analyses that came before [Aga21].

It treats one coordinate only.
"""

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from figure import Curve

from dpnoise.accounting.loss.composed_loss import ComposedLoss
from dpnoise.accounting.loss.dominating_pair import DominatingPair

LogPmf: TypeAlias = npt.NDArray[np.float64]

COMPARED: Final = (
    ("Skellam, exact loss distribution", "skellam-ours", "-", False),
    ("Skellam, RDP [Aga21] Thm 3.5", "skellam", "-", False),
    ("Skellam, exact RDP (ours)", "ours-rdp", "-", False),
    ("Skellam, Gaussian-DP certificate (ours)", "ours", "-", False),
    ("discrete Gaussian, exact loss distribution", "ddgauss", "-", True),
    ("discrete Gaussian, RDP", "ddgauss", "-.", False),
)
"""What [Aga21] Figures 1 and 2 compare: label, family, line style, whether wide."""

_DEVIATIONS: Final = 14.0
_EXTRA_STEPS: Final = 40
_TAIL: Final = 1e-20
_GRID_SHARE: Final = 1e-7
_BISECTIONS: Final = 80
_LARGEST_LOSS: Final = 60.0


def skellam_log_pmf(noise_variance: float) -> LogPmf:
    """Tabulate log P(X = k) of Skellam noise for |k| up to fourteen deviations.

    Args:
        noise_variance: Variance, grid steps squared.

    Returns:
        Shape (2·reach+1,), normalised.
    """
    reach = _reach(noise_variance)
    ratio, logs = 0.0, np.zeros(reach + 1)
    ratios = np.zeros(reach)
    # r_(k−1) = 1/(2k/v + r_k) for r_k = I_(k+1)(v)/I_k(v): stable from far outside.
    for k in range(2 * reach, 0, -1):
        ratio = 1.0 / (2.0 * k / noise_variance + ratio)
        if k <= reach:
            ratios[k - 1] = ratio
    logs[1:] = np.cumsum(np.log(ratios))
    return _symmetric(logs)


def discrete_gaussian_log_pmf(variance_parameter: float) -> LogPmf:
    """Tabulate log P(X = k) ∝ exp(−k²/2σ²) for |k| up to fourteen deviations.

    Args:
        variance_parameter: σ², grid steps squared.

    Returns:
        Shape (2·reach+1,), normalised.
    """
    k = np.arange(_reach(variance_parameter) + 1, dtype=np.float64)
    return _symmetric(-k * k / (2.0 * variance_parameter))


def loss_pair(log_pmf: LogPmf, shift: int) -> DominatingPair:
    """Return the exact pair (shifted noise, noise) with its losses.

    Args:
        log_pmf: A symmetric, log-concave law on −reach … reach.
        shift: The query's sensitivity, grid steps, at least 1.

    Returns:
        The pair; one direction serves both, by reflection.
    """
    shifted, plain = log_pmf[:-shift], log_pmf[shift:]
    return DominatingPair(
        losses=shifted - plain,
        upper=np.exp(shifted),
        lower=np.exp(plain),
        upper_infinite=_TAIL,
        lower_infinite=_TAIL,
    )


def pair_epsilon(pair: DominatingPair, *, count: int, delta: float) -> float:
    """Return the ε of `count` releases, exact up to the grid of one transform.

    Args:
        pair: One release.
        count: Number of releases, at least 1.
        delta: Failure probability.
    """
    if count == 1:
        low, high = 0.0, _LARGEST_LOSS
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if pair.delta(middle) <= delta:
                high = middle
            else:
                low = middle
        return high
    return ComposedLoss([(pair, count)], relative_variance=_GRID_SHARE).epsilon(delta)


def direct_epsilon(noise_variance: float, delta: float, *, shift: int = 1) -> float:
    """Bound ε of one release by a ratio bound and a tail bound.

    Args:
        noise_variance: Variance v, grid steps squared.
        delta: Failure probability.
        shift: The query's sensitivity D, grid steps, at least 1.

    Returns:
        The bound; infinite beyond 60.

    Source:
        I_(k−1)(v)/I_k(v) ≤ (k + √(k²+v²))/v = exp(asinh(k/v)) (D. E. Amos), so a loss
        above ε at output k needs k > v·sinh(ε/D); and P[X ≥ a] is at most
        exp(v·(cosh θ − 1) − θa) with sinh θ = a/v, for a = v·sinh(ε/D) − D in the
        shifted world.
    """
    low, high = 0.0, _LARGEST_LOSS
    if _direct_delta(high, noise_variance, shift) > delta:
        return math.inf
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _direct_delta(middle, noise_variance, shift) <= delta:
            high = middle
        else:
            low = middle
    return high


def composed_direct_epsilon(
    noise_variance: float, *, count: int, delta: float
) -> float:
    """Compose `direct_epsilon` by the better of basic and advanced composition.

    Args:
        noise_variance: Variance of each release, grid steps squared.
        count: Number of releases, at least 1.
        delta: Failure probability; advanced composition spends half of it itself.

    Source:
        Advanced composition: ε√(2T·log(1/δ')) + Tε(e^ε − 1), Tδ + δ'.
    """
    basic = count * direct_epsilon(noise_variance, delta / count)
    each = direct_epsilon(noise_variance, delta / (2.0 * count))
    if not math.isfinite(each):
        return basic
    advanced = each * math.sqrt(2.0 * count * math.log(2.0 / delta))
    advanced += count * each * math.expm1(each)
    return min(basic, advanced)


def _direct_delta(epsilon: float, noise_variance: float, shift: int) -> float:
    edge = noise_variance * math.sinh(epsilon / shift) - shift
    if edge <= 0.0:
        return 1.0
    tilt = math.asinh(edge / noise_variance)
    return math.exp(noise_variance * (math.cosh(tilt) - 1.0) - tilt * edge)


def _reach(variance: float) -> int:
    # Poissonian tails fall like k·log k, hence the extra steps for small variances.
    return math.ceil(_DEVIATIONS * math.sqrt(variance)) + _EXTRA_STEPS


def _symmetric(logs: LogPmf) -> LogPmf:
    both = np.concatenate((logs[:0:-1], logs))
    return np.asarray(both - np.logaddexp.reduce(both))


def epsilon_curves(
    rows: Sequence[dict[str, object]],
    curves: Sequence[tuple[str, str, str, bool]],
    *,
    x: str,
    relative: bool,
) -> list[Curve]:
    """Return the curves of one panel of [Aga21] Figures 1 and 2.

    Args:
        rows: Of the table, one for each point; each curve is a column.
        curves: As `COMPARED`; the first is the Gaussian's.
        x: The column of abscissae.
        relative: Whether ε is drawn relative to the Gaussian's.
    """

    def column(name: str) -> list[float]:
        return [float(str(row[name])) for row in rows]

    units = column(curves[0][0]) if relative else [1.0] * len(rows)
    return [
        Curve(
            name,
            family,
            column(x),
            [y / unit for y, unit in zip(column(name), units, strict=True)],
            style=style,
            wide=wide,
        )
        for name, family, style, wide in curves
    ]
