"""The Skellam mixture mechanism as published, with its typographical errors resolved.

* Client: rotate, scale, clip as in Algorithm 5, round stochastically, add a Skellam
  share, reduce modulo m. Server: lift to [−m/2, m/2), rotate back, unscale. There is
  no other clip: the norm that the theorem bounds is Σ(x² + f − f²).
* Δ∞ is an integer. The theorem constrains ⌈|x|⌉, so a bound of 5.94 would admit 6.
* The theorem holds for orders α with α < v/Δ∞ + 1 and
  10.9α² − 1.8α − 9.1 < 2v/Δ∞², v being the counted noise variance. Parameters that
  leave no integer order α ≥ 2 are refused. Below it nothing useful is guaranteed, and
  its composition with sampling (Theorem 6) is stated for integer orders.
* For |x| < 1 the published clip acts like a clip of the L1 norm. On flat vectors with
  few grid steps per coordinate it shortens the signal a great deal. `forecast` states
  by how much, because noise hides it in small experiments.

It improves nothing: `dpnoise.mechanisms.skellam_mixture` does.
"""

import math
from bisect import bisect_left
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.clipping import clip_l2
from dpnoise.encoding.mixture_clipping import MAX_LINF_BOUND, clip_mixture
from dpnoise.encoding.scaling import FixedPointVector, round_stochastic
from dpnoise.errors import ParameterError, TheoremNotApplicableError
from dpnoise.events import NoiseEvent, SkellamMixtureClippedEvent
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.error_forecast import Rounding, mixture_clip_effect
from dpnoise.samplers import InversionTable, skellam_table

_THEOREM: Final = "Corollary 1 [Bao22]"
_LOWEST_ORDER: Final = 2
_OVERFLOW_GUARD: Final = 2.0**40


class SMMechanism(Mechanism):
    """Special clip, stochastic rounding, and Skellam noise shares.

    Source:
        [Bao22] Algorithms 2, 4, 5 and 6; Theorem 5, Corollary 1, Theorem 6.
    """

    name: ClassVar[str] = "smm"
    rounding: ClassVar[Rounding] = Rounding.STOCHASTIC
    published_accountant: ClassVar[str | None] = "smm-paper"

    @classmethod
    def mixture_norm_bound(cls, l2_clip_squared_steps: float) -> float | None:
        """Return the bound of Algorithm 5: the squared clip itself."""
        return l2_clip_squared_steps

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
        """State one release as if its counted noise had another variance."""
        return SkellamMixtureClippedEvent(
            dim=self.encoded_dim,
            aggregate_noise_variance=noise_variance,
            mixture_norm_bound=self.l2_clip_squared_steps,
            linf_bound=int(self.coordinate_cap),
            sampler_distance=sampler_distance,
        )

    def remarks(self) -> tuple[str, ...]:
        """Return what the theorem covers and what the published clip takes away."""
        given = self._parameters
        bound, counted = self.coordinate_cap, self.counted_noise_variance
        order = _largest_order(bound, counted)
        kept = mixture_clip_effect(
            given.scale_factor * given.l2_clip / self.rotated_dim**0.5,
            self.l2_clip_squared_steps,
            self.rotated_dim,
            float(bound),
        ).signal
        covered = (
            f"At this noise the published theorem covers integer orders up to {order} "
            f"with coordinates up to {bound}; where that excludes the best order, the "
            "noise has been raised until an order is covered."
        )
        shortened = (
            f"The published clip leaves {100.0 * kept:.3g} percent of the length of a "
            "vector that is as long as the clip and spread over all coordinates."
        )
        return covered, shortened

    def _check(self) -> None:
        bound = self._parameters.linf_bound
        if bound is None:
            raise ParameterError(
                "smm needs linf_bound, the integer Δ∞ of its theorem",
                parameter="linf_bound",
                value=None,
                nearest=str(max(1, largest_linf_bound(_LOWEST_ORDER, self._counted()))),
            )
        if bound.denominator != 1:
            # The theorem is about ⌈|x|⌉: a bound of 5.94 would admit 6.
            raise ParameterError(
                f"the theorem of smm needs an integer linf_bound, got {bound}",
                parameter="linf_bound",
                value=bound,
                nearest=str(max(1, math.floor(bound))),
            )
        if bound > MAX_LINF_BOUND:
            raise ParameterError(
                f"smm clips coordinates to at most {MAX_LINF_BOUND} grid steps, got "
                f"{bound}",
                parameter="linf_bound",
                value=bound,
                nearest=str(MAX_LINF_BOUND),
            )
        if self.has_clip_flag:
            raise ParameterError(
                "the published clip of smm leaves no room for a clip flag; use "
                "skellam-mixture",
                parameter="clip_flag_amplitude",
                value=self._parameters.clip_flag_amplitude,
                nearest="0.0",
            )
        if largest_linf_bound(_LOWEST_ORDER, self._counted()) < bound:
            needed = smallest_noise_variance(_LOWEST_ORDER, int(bound))
            raise TheoremNotApplicableError(
                f"with a counted noise variance of {float(self._counted()):.6g} the "
                f"theorem allows no order α ≥ 2 at Δ∞ = {bound}; it needs a counted "
                f"variance above {float(needed):.6g}",
                theorem=_THEOREM,
                parameter="counted_variance",
                value=float(self._counted()),
                nearest=f"above {float(needed):.6g}",
            )

    def _counted(self) -> Fraction:
        return self.counted_noise_variance

    def _sampler(self, variance: Fraction) -> InversionTable:
        return skellam_table(variance)

    def _clip(self, checked: NDArray[np.float64]) -> NDArray[np.float64]:
        # Algorithm 4 has no clip before the rotation. This one only keeps squares of
        # absurdly long vectors finite; Algorithm 5 sees the same direction.
        return clip_l2(checked, self._parameters.l2_clip * _OVERFLOW_GUARD)

    def _to_fixed_point(self, scaled: NDArray[np.float64]) -> FixedPointVector:
        return clip_mixture(
            scaled,
            mixture_norm_bound=self.l2_clip_squared_steps,
            linf_bound=int(self.coordinate_cap),
        )

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        return round_stochastic(fixed, self._rounding_bits(private_seed))


def largest_linf_bound(order: int, noise_variance: Fraction) -> int:
    """Return the largest integer Δ∞ that the theorem admits, or 0 if it admits none.

    Args:
        order: Rényi order α, an integer of at least 2.
        noise_variance: Counted noise variance v, grid steps².

    Returns:
        The largest integer Δ with α < v/Δ + 1 and 10.9α² − 1.8α − 9.1 < 2v/Δ².

    Source:
        [Bao22] Eq. (3) and Eq. (5); v = 2nλ there.
    """
    quadratic = Fraction(109 * order * order - 18 * order - 91, 10)
    by_order = noise_variance / (order - 1)
    by_square = 2 * noise_variance / quadratic
    # Strict inequalities: the largest integers below, not at, the two limits.
    first = math.ceil(by_order) - 1
    second = math.isqrt(math.ceil(by_square) - 1)
    return max(0, min(first, second))


def _largest_order(linf_bound: Fraction, noise_variance: Fraction) -> int:
    """Return the largest order that admits Δ∞; the least one if none does."""

    def is_beyond(order: int) -> bool:
        return largest_linf_bound(order, noise_variance) < linf_bound

    high = 2 * _LOWEST_ORDER
    while not is_beyond(high):
        high *= 2
    return bisect_left(range(high), x=True, lo=high // 2 + 1, key=is_beyond) - 1


def smallest_noise_variance(order: int, linf_bound: int) -> Fraction:
    """Return the infimum of the noise variances at which the theorem admits Δ∞.

    Args:
        order: Rényi order α, an integer of at least 2.
        linf_bound: Integer bound Δ∞, at least 1.

    Returns:
        The variance, grid steps²; anything above it works, itself does not.

    Source:
        [Bao22] Eq. (3).
    """
    quadratic = Fraction(109 * order * order - 18 * order - 91, 10)
    return max(
        Fraction((order - 1) * linf_bound), quadratic * linf_bound * linf_bound / 2
    )
