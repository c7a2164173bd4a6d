"""The distributed Skellam mechanism as published.

* Client: clip, scale, pad, rotate, round conditionally, add Sk(v/n), reduce modulo
  2^b. Server: lift to [−m/2, m/2), rotate back, divide by the scale.
* The coordinate cap is the only addition. It practically never acts and only ever
  shortens, so every published bound still holds.
* `scale_from_bits` is the paper's choice of the scale: the sum must lie within k
  standard deviations of the modulus. It is solved by bisection, because the noise
  itself grows with the scale and nested searches without a bracket go astray at
  small bit widths.

It does not choose between accountants.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar

from dpnoise.errors import ParameterError
from dpnoise.events import NoiseEvent, SkellamEvent
from dpnoise.mechanisms.base import NoiseSource
from dpnoise.mechanisms.conditional_rounding import ConditionallyRoundedMechanism
from dpnoise.samplers import skellam_sampler
from dpnoise.samplers.summed_draws import MAX_ADDED_VARIANCE
from dpnoise.searches import double, halve


class SkellamMechanism(ConditionallyRoundedMechanism):
    """Conditional rounding and Skellam noise shares.

    Source:
        [Aga21] Algorithm 1, Corollary 3.6, Proposition 4.2.
    """

    name: ClassVar[str] = "skellam"
    largest_variance: ClassVar[Fraction] = MAX_ADDED_VARIANCE

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
        """State one release as if its counted noise had another variance."""
        return SkellamEvent(
            dim=self.encoded_dim,
            aggregate_noise_variance=noise_variance,
            l2_sensitivity=self.l2_sensitivity,
            l1_sensitivity=self.l1_sensitivity,
            linf_sensitivity=self.linf_sensitivity,
            sampler_distance=sampler_distance,
        )

    def _sampler(self, variance: Fraction) -> NoiseSource:
        return skellam_sampler(variance)


def scale_from_bits(  # noqa: PLR0913  # the quantities of one equation
    bits: int,
    *,
    dim: int,
    l2_clip: float,
    num_clients: int,
    noise_variance_at: Callable[[float], float],
    deviations: float = 3.0,
    flatness: float = 1.0,
) -> float:
    """Choose the scale so that the sum lies within k deviations of the modulus.

    Solves 2^b = 2kγ·√(ρr²n²/d + n/(4γ²) + v(γ)/γ²) for γ.

    Args:
        bits: Bits b per coordinate of the sum, 1 … 62.
        dim: Coordinates after rotation and padding.
        l2_clip: Clip r, caller's units.
        num_clients: Number n of vectors in the sum.
        noise_variance_at: Total noise variance v(γ) of the sum, grid steps², as a
            function of the scale; it must not fall as the scale grows.
        deviations: The k: 3 or 4.
        flatness: The rotation's ρ.

    Returns:
        The largest scale whose sum fits, in grid steps per unit.

    Raises:
        ParameterError: No scale fits, because rounding and noise alone overflow the
            modulus; the error names the smallest bit width that works.

    Source:
        [Aga21] Algorithm 1, "shared scale", and the variance bound above it.
    """

    def bits_needed(scale_factor: float) -> float:
        signal = flatness * (scale_factor * l2_clip * num_clients) ** 2 / dim
        variance = signal + 0.25 * num_clients + noise_variance_at(scale_factor)
        return math.log2(2.0 * deviations) + 0.5 * math.log2(variance)

    # A scale at which even the clip is a thousandth of a step keeps no information.
    low = 1e-3 / l2_clip
    least = bits_needed(low)
    if least > bits:
        raise ParameterError(
            f"{bits} bits cannot hold the sum of {num_clients} clients: rounding and "
            f"noise alone need {least:.2f}",
            parameter="bits",
            value=bits,
            nearest=str(math.ceil(least)),
        )

    def is_too_much(scale_factor: float) -> bool:
        return bits_needed(scale_factor) > bits

    below, above = double(is_too_much, 2.0 * low)
    return halve(is_too_much, max(low, below), above)[0]
