"""The error forecast: how far the decoded sum will be from the true sum.

Numbered rules:

1. A forecast counts all noise that can arrive: every client of the cohort sends its
   share. (Privacy counts only the shares that must arrive.)
2. Coordinates of a rotated vector are treated as normal with variance
   flatness · ‖x‖² / dim. Without a rotation nothing is known about single
   coordinates, and the worst case takes the place of the average.
3. Wrapping around the modulus is an error of its own: its whole displacement is added.
   In truth it partly cancels noise, because a wrapped sum is bounded by the modulus; a
   sum that is wrapped all the time even has a small squared error, and no content.
   Counting that as a gain would reward useless moduli.
4. Forecasts decide about utility only. No privacy figure depends on one.

This module deliberately draws no samples and knows no mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np

__all__ = [
    "ErrorForecast",
    "Rounding",
    "forecast_error",
    "mixture_clip_shrinkage",
    "normal_tail",
    "rounding_variance",
    "wrap_error",
]

_SMALL_STDDEV: Final = 0.1  # a normal of this deviation exceeds 1 once in 10^23 draws
_NEGLIGIBLE_EXPONENT: Final = 40.0  # e^-40 is below the last digit of the sum
_NODES: Final = 1024  # the shrinkage is then right to a tenth of a percent
_MAX_WRAPS: Final = 1000  # terms of the wrap series; beyond, the sum is uniform


class Rounding(StrEnum):
    """How a mechanism turns reals into integers."""

    STOCHASTIC = "stochastic"
    """Up with probability equal to the fractional part: unbiased."""

    CONDITIONAL = "conditional"
    """Stochastic, repeated until a norm bound holds: slightly biased."""

    TOWARD_ZERO = "toward-zero"
    """Truncation: never lengthens, biased towards zero."""


@dataclass(frozen=True, slots=True)
class ErrorForecast:
    """The forecast for one sum, per coordinate.

    Args:
        expected_mse: Expected squared error of the decoded sum, caller's units
            squared: noise, rounding, clipping bias and wrapping together.
        noise_mse: The part due to noise.
        rounding_mse: The part due to rounding.
        bias_mse: The part due to a clip that shortens vectors inside the ball.
        wrap_mse: The part due to wrapping around the modulus, counted in full.
        sum_stddev: Standard deviation of the integer sum, grid steps.
        wrap_probability: Probability that one coordinate wraps.
        expected_wrapped_coordinates: `wrap_probability` times the encoded dimension.
    """

    expected_mse: float
    noise_mse: float
    rounding_mse: float
    bias_mse: float
    wrap_mse: float
    sum_stddev: float
    wrap_probability: float
    expected_wrapped_coordinates: float


def normal_tail(deviations: float) -> float:
    """Return the upper tail of the standard normal law, P(Z > deviations)."""
    return 0.5 * math.erfc(deviations / math.sqrt(2.0))


def rounding_variance(coordinate_stddev: float) -> float:
    """Return E[f − f²] for the fractional part f of a centred normal coordinate.

    Args:
        coordinate_stddev: Standard deviation τ of the coordinate, grid steps, ≥ 0.

    Returns:
        Variance that stochastic rounding adds to the coordinate, in [0, 1/4].
    """
    if coordinate_stddev < _SMALL_STDDEV:
        # Inside (−1, 1), f − f² = |x| − x² up to reflection.
        deviation = coordinate_stddev
        return deviation * math.sqrt(2.0 / math.pi) - deviation * deviation
    # Fourier series f − f² = 1/6 − π⁻² Σ cos(2πkx)/k², averaged over the normal law.
    exponent = 2.0 * math.pi**2 * coordinate_stddev**2
    total, index = 0.0, 1
    while exponent * index * index < _NEGLIGIBLE_EXPONENT:
        total += math.exp(-exponent * index * index) / (index * index)
        index += 1
    return 1.0 / 6.0 - total / math.pi**2


def wrap_error(sum_stddev: float, modulus: int) -> tuple[float, float]:
    """Return how often a coordinate wraps, and by how much in the mean square.

    Args:
        sum_stddev: Standard deviation of the sum, taken as normal, grid steps,
            greater than 0.
        modulus: The modulus m.

    Returns:
        (probability that a coordinate wraps, mean square of the multiple of m that
        wrapping adds, grid steps squared).
    """
    reach = modulus / (2.0 * sum_stddev)
    square = 0.0
    # E[k²] for the number k of turns is the sum of (2j − 1)·P(|k| ≥ j).
    for turn in range(1, _MAX_WRAPS + 1):
        tail = normal_tail((2 * turn - 1) * reach)
        if tail == 0.0:
            break
        square += 2.0 * (2 * turn - 1) * tail
    return 2.0 * normal_tail(reach), modulus * modulus * square


@lru_cache(maxsize=1024)  # a search over scales asks at each bit width again
def mixture_clip_shrinkage(
    coordinate_stddev: float, mixture_norm_bound: float, encoded_dim: int
) -> tuple[float, float]:
    """Return how much the special clip of [Bao22] shortens a rotated vector.

    Args:
        coordinate_stddev: Standard deviation of the coordinates before the clip, grid
            steps, greater than 0.
        mixture_norm_bound: The bound c, grid steps squared.
        encoded_dim: Number of coordinates.

    Returns:
        (factor on the signal, in (0, 1]; rounding variance after the clip).

    Source:
        [Bao22] Algorithm 5, lines 3 to 8, with the sign of line 3 corrected.
    """
    # Midpoint rule over eight deviations of the half-normal law.
    nodes = (np.arange(_NODES, dtype=np.float64) + 0.5) * (8.0 / _NODES)
    weights = np.exp(-0.5 * nodes * nodes)
    weights /= weights.sum()
    magnitudes = coordinate_stddev * nodes
    fractions = magnitudes - np.floor(magnitudes)
    spread = magnitudes**2 + fractions - fractions**2
    expected_norm = encoded_dim * float(weights @ spread)
    factor = min(1.0, mixture_norm_bound / expected_norm)
    squares = spread * factor
    floors = np.floor(np.sqrt(squares))
    parts = (squares - floors**2) / (2.0 * floors + 1.0)
    clipped = floors + parts
    signal = float(weights @ (clipped * magnitudes)) / float(weights @ magnitudes**2)
    return min(1.0, signal), float(weights @ (parts - parts**2))


def forecast_error(  # noqa: PLR0913  # a record of keywords, each used once
    *,
    encoded_dim: int,
    l2_clip_steps: float,
    scale_factor: float,
    modulus: int,
    num_clients: int,
    total_noise_variance: float,
    sum_norm_steps: float,
    flatness: float | None,
    rounding: Rounding,
    mixture_norm_bound: float | None = None,
) -> ErrorForecast:
    """Forecast the error of one decoded sum, per coordinate.

    Args:
        encoded_dim: Coordinates after rotation and padding, at least 1.
        l2_clip_steps: L2 norm of each client's scaled vector, grid steps, positive.
        scale_factor: Grid steps per caller's unit.
        modulus: The modulus m.
        num_clients: Number of vectors in the sum.
        total_noise_variance: Variance of all noise in the sum, grid steps squared.
        sum_norm_steps: L2 norm of the exact scaled sum, grid steps; at most
            `num_clients * l2_clip_steps`.
        flatness: The rotation's ρ (1 Hadamard, 2 DFT), or None without a rotation.
        rounding: How reals become integers.
        mixture_norm_bound: The bound c of the special clip of [Bao22], or None.

    Returns:
        The forecast.

    Source:
        [Aga21] section 5, the variance bound behind the choice of the scale.
    """
    root_dim = math.sqrt(encoded_dim)
    stddev = l2_clip_steps / root_dim
    if flatness is None:
        # Σ|x_j| ≤ √d‖x‖ bounds the mean of f − f² ≤ |x|, which never exceeds 1/4.
        per_client = min(0.25, stddev)
        signal_variance = sum_norm_steps**2
    else:
        per_client = rounding_variance(stddev)
        signal_variance = flatness * sum_norm_steps**2 / encoded_dim
    shrinkage = 1.0
    if mixture_norm_bound is not None:
        shrinkage, per_client = mixture_clip_shrinkage(
            stddev, mixture_norm_bound, encoded_dim
        )
    rounded = num_clients * per_client
    if rounding is Rounding.TOWARD_ZERO:
        # A truncation error f points towards zero: E[f²] → 1/3 and E[f]² → 1/4. Errors
        # of vectors that point the same way add up instead of averaging out.
        aligned = max(0.0, (sum_norm_steps / l2_clip_steps) ** 2 - num_clients)
        rounded = num_clients * min(stddev**2, 1.0 / 3.0) + aligned * min(
            stddev**2, 0.25
        )
    bias = (1.0 - shrinkage) ** 2 * sum_norm_steps**2 / encoded_dim
    error_variance = total_noise_variance + rounded
    sum_stddev = math.sqrt(error_variance + shrinkage**2 * signal_variance)
    probability, wrapped = wrap_error(sum_stddev, modulus)
    unit = scale_factor * scale_factor
    return ErrorForecast(
        expected_mse=(error_variance + bias + wrapped) / unit,
        noise_mse=total_noise_variance / unit,
        rounding_mse=rounded / unit,
        bias_mse=bias / unit,
        wrap_mse=wrapped / unit,
        sum_stddev=sum_stddev,
        wrap_probability=probability,
        expected_wrapped_coordinates=probability * encoded_dim,
    )
