"""Whether integers are draws of the noise that was promised: the law of one client.

Rule 1: every statistic is compared with a bound that right noise exceeds with a
        probability below 10^-9, so that a run of all cases blames a right program less
        than once in ten million runs.
Rule 2: what is checked is one client's part alone: all other parts are known.

With d = 16384 entries a variance that is 8 % too small or too large is found.
"""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

LEAST_ENTRIES: Final = 4096
"""Shorter vectors are not checked: their variance says little."""
# P[|N(0, 1)| > 6.5] = 8.1e-11; sample variances of this many entries are as normal.
_SIGMAS: Final = 6.5
_ROUNDING: Final = 0.25  # the most that rounding adds to the variance of an entry
_BINS: Final = 16
# Laurent and Massart (2000), Lemma 1: P[chi2_k >= k + 2 sqrt(k x) + 2 x] <= exp(-x).
_X: Final = 9.0 * math.log(10.0)
_CHI2_BOUND: Final = (_BINS - 1) + 2.0 * math.sqrt((_BINS - 1) * _X) + 2.0 * _X

_Reals = npt.NDArray[np.float64]


def noise_fault(noise: npt.NDArray[Any], variance: float) -> str:
    """Return what is wrong with the noise of a vector, or "".

    Args:
        noise: What the sum holds of the client beside its vector, in grid steps, shape
            (d,), d >= `LEAST_ENTRIES`.
        variance: That each entry must have.
    """
    drawn = noise.astype(np.float64)
    d, stddev = drawn.size, math.sqrt(variance)
    found = float(np.mean(drawn * drawn))
    # An entry of variance v has a fourth moment of 3 v^2 + v: of Skellam noise. The sum
    # of squares is bounded as that of as many normal numbers.
    low = 2.0 * math.sqrt((1.0 + 0.5 / variance) * _X / d)
    least = variance * (1.0 - low)
    most = (variance + _ROUNDING) * (1.0 + low + 2.0 * _X / d)
    if not least <= found <= most:
        return (
            f"the noise has the variance {found:.4g}, and {variance:.4g} is promised: "
            f"by chance {least:.4g} to {most:.4g}"
        )
    if abs(float(drawn.sum())) > _SIGMAS * stddev * math.sqrt(d):
        return f"the noise has the mean {float(drawn.mean()):.4g}, not 0"
    if abs(alike(drawn[1:], drawn[:-1], variance)) > _SIGMAS:
        return "the noise of one entry tells that of the next"
    return ""


def missing_complaint(
    left: npt.NDArray[Any], vector: npt.NDArray[Any], variance: float
) -> str:
    """Return that a sum does not hold a vector, or "".

    Args:
        left: What is left when the vector is subtracted, in grid steps, shape (d,).
        vector: The vector, of any length but 0, shape (d,).
        variance: Of the noise in each entry.
    """
    along = float(np.dot(left, vector)) / float(np.linalg.norm(vector))
    off = along / math.sqrt(variance)
    if abs(off) > _SIGMAS:
        return (
            "the sum does not hold the program's vector: along it, it is off by "
            f"{off:.1f} standard deviations of the noise"
        )
    return ""


def alike(first: npt.NDArray[Any], second: npt.NDArray[Any], variance: float) -> float:
    """Return how alike two vectors of noise are, in standard deviations of chance.

    Args:
        first: Noise, shape (d,).
        second: Noise, shape (d,).
        variance: Of each entry.
    """
    product = float(np.dot(first.astype(np.float64), second.astype(np.float64)))
    return product / (variance * math.sqrt(first.size))


def is_alike(
    first: npt.NDArray[Any], second: npt.NDArray[Any], variance: float
) -> bool:
    """Return whether two vectors of noise were not drawn independently."""
    return abs(alike(first, second, variance)) > _SIGMAS


def law_complaint(noise: npt.NDArray[np.int64], variance: float) -> str:
    """Return why integers are no draws of the Skellam law, or "".

    Args:
        noise: Draws, shape (d,), d >= `LEAST_ENTRIES`.
        variance: Of the law.
    """
    edges, chances = _bins(variance)
    counts = np.bincount(np.searchsorted(edges, noise, side="left"), minlength=_BINS)
    expected = chances * noise.size
    chi2 = float(np.sum((counts - expected) ** 2 / expected))
    if chi2 > _CHI2_BOUND:
        return (
            f"the noise has another law than Skellam's: chi-square {chi2:.0f} over "
            f"{_BINS} bins, at most {_CHI2_BOUND:.0f} by chance"
        )
    return ""


def _bins(variance: float) -> tuple[npt.NDArray[np.int64], _Reals]:
    """Return 15 edges that cut the law into about equal parts, and the parts.

    Source:
        The characteristic function of Skellam's law, exp(v (cos t - 1)).
    """
    half = 1 << max(6, math.ceil(math.log2(12.0 * math.sqrt(variance) + 16.0)))
    angles = 2.0 * math.pi * np.arange(2 * half) / (2 * half)
    law = np.fft.ifft(np.exp(variance * (np.cos(angles) - 1.0))).real
    masses = np.clip(np.roll(law, half), 0.0, None)  # entry i is P[X = i - half]
    below = np.cumsum(masses / masses.sum())
    wanted = np.arange(1, _BINS) / _BINS
    places = np.unique(np.searchsorted(below, wanted))
    parts = np.diff(np.concatenate([[0.0], below[places], [1.0]]))
    edges = places.astype(np.int64) - half
    return edges, parts
