"""Forecasts of the error of a decoded sum.

* The error is that of a session in which every client of the cohort arrives and all
  removable noise is removed. The modulus is chosen for the most noise that any session
  can retain. (Privacy counts only the shares that must arrive.)
* Coordinates of a rotated vector are treated as normal with variance
  flatness · ‖x‖² / dim. Without a rotation nothing is known about single
  coordinates, and the worst case replaces the average.
* In few dimensions the bounds on single coordinates may limit a sum more than that
  normal law does. They then determine how often the sum wraps.
* Wrapping around the modulus partly cancels noise, because a wrapped sum is bounded. A
  sum that always wraps even has a small squared error, and no content. The expected
  error includes this effect. Choices use `planning_mse`, which adds the whole
  displacement, so that no useless modulus is preferred.
* Forecasts affect utility only. No privacy figure depends on one.

It draws no samples and depends on no mechanism.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np

_SMALL_STDDEV: Final = 0.1  # a normal of this deviation exceeds 1 once in 10^23 draws
_NEGLIGIBLE_EXPONENT: Final = 40.0  # e^-40 is below the last digit of the sum
_NODES: Final = 1024  # the effect is then right to a tenth of a percent
_UNIFORM_FROM: Final = 2.0  # deviations in moduli: the sum is uniform to e^-79
_TURNS: Final = 64  # with more, noise alone fills the modulus


class Rounding(StrEnum):
    """How a mechanism turns reals into integers."""

    STOCHASTIC = "stochastic"
    """Up with probability equal to the fractional part: unbiased."""

    CONDITIONAL = "conditional"
    """Stochastic, repeated until a norm bound holds: slightly biased."""

    TOWARD_ZERO = "toward-zero"
    """Truncation: never lengthens, biased towards zero."""

    EXACT = "exact"
    """None: vectors are whole numbers already."""


@dataclass(frozen=True, slots=True)
class ErrorForecast:
    """The forecast for one sum, per coordinate.

    Args:
        expected_mse: Expected squared error of the decoded sum, caller's units
            squared: noise, rounding, clipping bias and wrapping together.
        noise_mse: The part due to noise.
        rounding_mse: The part due to rounding.
        bias_mse: The part due to clips that shorten vectors inside the ball; it is
            largest where all vectors point the same way.
        wrap_mse: The part due to wrapping around the modulus; below 0 where the modulus
            cuts off more noise than it displaces.
        planning_mse: The error that plans compare: it has the whole displacement by
            wrapping, at the most noise that any session can retain.
        sum_stddev: Largest standard deviation of the integer sum, grid steps.
        wrap_probability: Largest probability that one coordinate wraps.
        expected_wrapped_coordinates: `wrap_probability` times the encoded dimension.
    """

    expected_mse: float
    noise_mse: float
    rounding_mse: float
    bias_mse: float
    wrap_mse: float
    planning_mse: float
    sum_stddev: float
    wrap_probability: float
    expected_wrapped_coordinates: float

    def with_longer_sums(self, probability: float, entries: int) -> "ErrorForecast":
        """Return the forecast where a sum may be longer than it was made for.

        Args:
            probability: Of that, in [0, 1). Every coordinate is counted as wrapped
                then; errors stay those of the other sums.
            entries: Encoded dimension.
        """
        wrapped = self.expected_wrapped_coordinates + probability * entries
        return replace(
            self,
            wrap_probability=min(1.0, self.wrap_probability + probability),
            expected_wrapped_coordinates=min(float(entries), wrapped),
        )


def _displacement(effect: "WrapEffect") -> float:
    return effect.displacement


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


@dataclass(frozen=True, slots=True)
class WrapEffect:
    """What reduction modulo m does to a sum that is taken as normal.

    Args:
        probability: That a coordinate wraps.
        displacement: Mean square of the multiple of m that wrapping adds, grid steps².
        overlap: Mean product of the sum and that multiple, grid steps².
    """

    probability: float
    displacement: float
    overlap: float


def wrap_effect(sum_stddev: float, modulus: int) -> WrapEffect:
    """Return how often a coordinate wraps, by how much, and what it cuts off.

    Args:
        sum_stddev: Standard deviation of the sum, taken as normal, grid steps,
            greater than 0.
        modulus: The modulus m.

    Returns:
        The effect.
    """
    reach = modulus / (2.0 * sum_stddev)
    probability = 2.0 * normal_tail(reach)
    if sum_stddev > _UNIFORM_FROM * modulus:
        whole = sum_stddev * sum_stddev
        return WrapEffect(probability, whole + modulus * modulus / 12.0, whole)
    square = overlap = 0.0
    turn = 1
    # E[k²] for the number k of turns is the sum of (2j − 1)·P(|k| ≥ j), and E[Z·k] for
    # a standard normal sum Z that of 2·φ at the j-th border.
    while (tail := normal_tail((2 * turn - 1) * reach)) > 0.0:
        border = (2 * turn - 1) * reach
        square += 2.0 * (2 * turn - 1) * tail
        overlap += 2.0 * math.exp(-0.5 * border * border) / math.sqrt(2.0 * math.pi)
        turn += 1
    return WrapEffect(
        probability, modulus * modulus * square, modulus * sum_stddev * overlap
    )


def bounded_wrap_effect(bound: float, noise_stddev: float, modulus: int) -> WrapEffect:
    """Bound what reduction modulo m does to a bounded sum with normal noise.

    Args:
        bound: Largest absolute value of the sum without noise, grid steps, at least 0.
        noise_stddev: Standard deviation of its noise, grid steps, at least 0.
        modulus: The modulus m.

    Returns:
        Upper bounds on probability and displacement, and no overlap: what wrapping cuts
        off the noise is not counted. Infinite where the sum alone may wrap.
    """
    # Proof. Let |S| ≤ b < m/2 surely, and k the number of turns that reduction takes
    # off S + N. |k| ≥ j only if |S + N| ≥ (2j − 1)·m/2, hence only if
    # |N| ≥ (2j − 1)·m/2 − b, since |S + N| ≤ |S| + |N|. For normal N of deviation σ
    # that has the probability 2Q(((2j − 1)·m/2 − b)/σ), whatever S is and however it
    # depends on anything but N. E[k²] is the sum of (2j − 1)·P(|k| ≥ j).
    half = 0.5 * modulus
    if bound >= half:
        return WrapEffect(1.0, math.inf, 0.0)
    if noise_stddev == 0.0:
        return WrapEffect(0.0, 0.0, 0.0)
    tails: list[float] = []
    while len(tails) < _TURNS:
        tail = normal_tail(((2 * len(tails) + 1) * half - bound) / noise_stddev)
        if tail == 0.0:
            break
        tails.append(2.0 * tail)
    else:
        return WrapEffect(1.0, math.inf, 0.0)
    if not tails:
        return WrapEffect(0.0, 0.0, 0.0)
    square = math.fsum((2 * turn + 1) * tail for turn, tail in enumerate(tails))
    return WrapEffect(min(1.0, tails[0]), modulus * modulus * square, 0.0)


@dataclass(frozen=True, slots=True)
class ClipEffect:
    """What a clip does to a rotated vector whose norm is within the ball.

    Args:
        signal: Factor E[x·clip(x)]/E[x²] on the part along the vector, in [0, 1].
        residue: Mean square of the part across it, E[(clip(x) − signal·x)²]/E[x²].
        rounding: Variance that stochastic rounding adds afterwards, grid steps².
    """

    signal: float
    residue: float
    rounding: float


def coordinate_clip_effect(
    coordinate_stddev: float, coordinate_cap: float
) -> ClipEffect:
    """Return what clipping single coordinates does to a rotated vector.

    Args:
        coordinate_stddev: Standard deviation of the coordinates before the clip, grid
            steps, greater than 0.
        coordinate_cap: Bound on every absolute coordinate, grid steps.

    Returns:
        The effect on normal coordinates, in closed form.
    """
    reach = coordinate_cap / coordinate_stddev
    tail = normal_tail(reach)
    density = math.exp(-0.5 * reach * reach) / math.sqrt(2.0 * math.pi)
    # Stein's identity: E[x·clip(x)]/E[x²] is the probability of lying within the cap.
    signal = 1.0 - 2.0 * tail
    square = signal - 2.0 * reach * density + 2.0 * reach * reach * tail
    return ClipEffect(
        signal=signal,
        residue=max(0.0, square - signal * signal),
        rounding=rounding_variance(coordinate_stddev),
    )


@lru_cache(maxsize=1024)  # a search over scales asks at each bit width again
def mixture_clip_effect(
    coordinate_stddev: float,
    mixture_norm_bound: float,
    encoded_dim: int,
    coordinate_cap: float,
) -> ClipEffect:
    """Return what the special clip of [Bao22] does to a rotated vector.

    Args:
        coordinate_stddev: Standard deviation of the coordinates before the clip, grid
            steps, greater than 0.
        mixture_norm_bound: The bound c, grid steps squared.
        encoded_dim: Number of coordinates.
        coordinate_cap: The bound Δ∞ on every absolute coordinate, grid steps.

    Returns:
        The effect on normal coordinates.

    Source:
        [Bao22] Algorithm 5, lines 3 to 10, with the sign of line 3 corrected.
    """
    # Midpoint rule over eight deviations of the half-normal law.
    nodes = (np.arange(_NODES, dtype=np.float64) + 0.5) * (8.0 / _NODES)
    weights = np.exp(-0.5 * nodes * nodes)
    weights /= weights.sum()
    magnitudes = coordinate_stddev * nodes
    fractions = magnitudes - np.floor(magnitudes)
    spread = magnitudes**2 + fractions - fractions**2
    expected_norm = encoded_dim * float(weights @ spread)
    squares = spread * min(1.0, mixture_norm_bound / expected_norm)
    whole_parts = np.floor(np.sqrt(squares))
    parts = (squares - whole_parts**2) / (2.0 * whole_parts + 1.0)
    clipped = np.minimum(whole_parts + parts, coordinate_cap)
    parts = clipped - np.floor(clipped)
    whole = float(weights @ magnitudes**2)
    signal = min(1.0, float(weights @ (clipped * magnitudes)) / whole)
    residue = float(weights @ (clipped - signal * magnitudes) ** 2) / whole
    return ClipEffect(signal, residue, float(weights @ (parts - parts**2)))


def forecast_error(  # noqa: PLR0913  # a record of keywords, each used once
    *,
    encoded_dim: int,
    l2_clip_steps: float,
    scale_factor: float,
    modulus: int,
    num_clients: int,
    noise_variance: float,
    most_noise_variance: float,
    sum_norm_steps: float,
    flatness: float | None,
    rounding: Rounding,
    coordinate_cap: float,
    mixture_norm_bound: float | None = None,
) -> ErrorForecast:
    """Forecast the error of one decoded sum, per coordinate.

    Args:
        encoded_dim: Coordinates after rotation and padding, at least 1.
        l2_clip_steps: L2 norm of each client's scaled vector, grid steps, positive.
        scale_factor: Grid steps per caller's unit.
        modulus: The modulus m.
        num_clients: Number of vectors in the sum.
        noise_variance: Variance of all noise in the sum, grid steps squared.
        most_noise_variance: The largest that any session can be left with.
        sum_norm_steps: L2 norm of the exact scaled sum, grid steps; at most
            `num_clients * l2_clip_steps`.
        flatness: The rotation's ρ (1 Hadamard, 2 DFT), or None without a rotation.
        rounding: How reals become integers.
        coordinate_cap: Bound on every absolute coordinate before rounding, grid steps.
        mixture_norm_bound: The bound c of the special clip of [Bao22], or None.

    Returns:
        The forecast.

    Source:
        [Aga21] section 5, the variance bound behind the choice of the scale.
    """
    stddev = l2_clip_steps / math.sqrt(encoded_dim)
    # A cap at the norm itself never acts, and the normal law is no guide there.
    cap = coordinate_cap if coordinate_cap < l2_clip_steps else math.inf
    if mixture_norm_bound is not None:
        effect = mixture_clip_effect(stddev, mixture_norm_bound, encoded_dim, cap)
    elif flatness is None:
        # Σ|x_j| ≤ √d‖x‖ bounds the mean of f − f² ≤ |x|, which never exceeds 1/4.
        kept = min(1.0, cap / l2_clip_steps)
        effect = ClipEffect(signal=kept, residue=0.0, rounding=min(0.25, stddev))
    elif cap < math.inf:
        effect = coordinate_clip_effect(stddev, cap)
    else:
        effect = ClipEffect(1.0, 0.0, rounding_variance(stddev))
    # How many vectors as long as the clip would have to be equal for such a sum.
    alignment = (sum_norm_steps / l2_clip_steps) ** 2
    spread = 1.0 if flatness is None else flatness / encoded_dim
    signal_variance = spread * (effect.signal * sum_norm_steps) ** 2
    rounded = num_clients * effect.rounding
    if rounding is Rounding.TOWARD_ZERO:
        # A truncation error f points towards zero: E[f²] → 1/3 and E[f]² → 1/4. Errors
        # of vectors that point the same way add up instead of averaging out.
        aligned = max(0.0, alignment - num_clients)
        rounded = num_clients * min(stddev**2, 1.0 / 3.0) + aligned * min(
            stddev**2, 0.25
        )
    bias = (1.0 - effect.signal) ** 2 * sum_norm_steps**2 / encoded_dim
    residue = effect.residue * stddev**2 * max(num_clients, alignment)
    bias += residue
    error_variance = noise_variance + rounded
    arriving = signal_variance + residue
    sum_variance = error_variance + arriving
    # Every coordinate is within the cap before it is rounded, and within the next
    # integer afterwards. So is the sum of all of them, as many times.
    farthest = num_clients * math.ceil(coordinate_cap)
    typical = bounded_wrap_effect(farthest, math.sqrt(noise_variance), modulus)
    effect_of_m = wrap_effect(math.sqrt(sum_variance), modulus)
    if typical.displacement < effect_of_m.displacement:
        effect_of_m = typical
    # Of the sum's overlap with its wraps the error has the share that its covariance
    # with the sum has of the variance. What a clip takes off the signal, the factor
    # 1 − s, points against what it leaves.
    taken = effect.signal * (1.0 - effect.signal) * sum_norm_steps**2 / encoded_dim
    covariance = error_variance + residue - taken
    shared = 2.0 * effect_of_m.overlap * covariance / sum_variance
    wrapped = effect_of_m.displacement - shared
    widest = math.sqrt(most_noise_variance + rounded + arriving)
    bounded = bounded_wrap_effect(farthest, math.sqrt(most_noise_variance), modulus)
    worst = min(wrap_effect(widest, modulus), bounded, key=_displacement)
    unit = scale_factor * scale_factor
    return ErrorForecast(
        expected_mse=(error_variance + bias + wrapped) / unit,
        noise_mse=noise_variance / unit,
        rounding_mse=rounded / unit,
        bias_mse=bias / unit,
        wrap_mse=wrapped / unit,
        planning_mse=(error_variance + bias + worst.displacement) / unit,
        sum_stddev=widest,
        wrap_probability=worst.probability,
        expected_wrapped_coordinates=worst.probability * encoded_dim,
    )
