"""The Skellam mixture with a plain L2 clip: the default mechanism.

* Every coordinate is rounded up or down at random with an exact probability, so the
  decoded sum is unbiased. No rounding is ever repeated or refused.
* Two bounds are enforced before rounding, and no other. One is on the plain squared L2
  norm; the other is a cap on single coordinates that a rotation almost never reaches.
* The released law of a coordinate is a mixture of two shifted Skellam laws. The
  accountants of `SkellamMixtureEvent` analyse this mixture exactly; they need
  neither a norm bound on the rounded vector nor a bound on the Rényi order.

It has no special clip: that belongs to the published proof, which
`dpnoise.mechanisms.smm` follows.
"""

from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.scaling import FixedPointVector, round_stochastic
from dpnoise.events import NoiseEvent, SkellamMixtureEvent
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.error_forecast import Rounding
from dpnoise.samplers import InversionTable, skellam_table


class SkellamMixtureMechanism(Mechanism):
    """Unbiased stochastic rounding, a plain L2 clip, and Skellam noise shares.

    Source:
        [Bao22] Algorithms 2, 4 and 6 without Algorithm 5; own analysis of the
        mixture, see docs/mechanisms.md.
    """

    name: ClassVar[str] = "skellam-mixture"
    rounding: ClassVar[Rounding] = Rounding.STOCHASTIC

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
        """State one release as if its counted noise had another variance."""
        return SkellamMixtureEvent(
            dim=self.encoded_dim,
            aggregate_noise_variance=noise_variance,
            l2_clip_squared_steps=self.l2_clip_squared_steps,
            linf_bound=float(self.coordinate_cap),
            sampler_distance=sampler_distance,
        )

    def _sampler(self, variance: Fraction) -> InversionTable:
        return skellam_table(variance)

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        return round_stochastic(fixed, self._rounding_bits(private_seed))
