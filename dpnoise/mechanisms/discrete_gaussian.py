"""Server-added discrete Gaussian noise on truncated fixed-point vectors.

* Client: clip, scale, round towards zero. Truncation never lengthens a vector, so
  the clip is the sensitivity. No noise is added by clients.
* Whoever unmasks the sum adds one discrete Gaussian per coordinate before anything
  is released. This protects against readers of the release and against nobody who
  sees the raw sum; the raw sum stays out of logs and storage.
* If several parties add noise, each must add all of it: a party can subtract its own.
* Residues are centred, so no offset has to be added for negative numbers and taken
  off again for the number of clients that were really summed.

The modulus need not exceed the sensitivity for privacy: reduction modulo m is
post-processing of the noisy sum. It must hold the sum for the estimate to be right.

It offers no mode in which clients may rely on this noise.
"""

import math
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.rounding import round_toward_zero
from dpnoise.encoding.scaling import FixedPointVector
from dpnoise.errors import ParameterError
from dpnoise.events import DiscreteGaussianEvent, PrivacyEvent
from dpnoise.mechanisms.base import CentralMechanism, NoiseSource
from dpnoise.mechanisms.forecast import Rounding
from dpnoise.mechanisms.parameters import MAX_SHARE_VARIANCE
from dpnoise.samplers import discrete_gaussian_sampler

__all__ = ["DiscreteGaussianMechanism"]


class DiscreteGaussianMechanism(CentralMechanism):
    """Truncation at the client, one discrete Gaussian at the server.

    Source:
        [CKS20] Theorem 14 for the noise; truncation and fixed point as in the public
        design discussion of a two-server aggregator with zCDP (docs/mechanisms.md).
    """

    name: ClassVar[str] = "discrete-gaussian"
    rounding: ClassVar[Rounding] = Rounding.TOWARD_ZERO
    largest_variance: ClassVar[Fraction] = Fraction(MAX_SHARE_VARIANCE)

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> PrivacyEvent:
        """State one release as if its counted noise had another variance."""
        # Encoded vectors are integers, so their squared norm is at most ⌊C⌋.
        longest = math.sqrt(math.floor(self.l2_clip_squared_steps))
        return DiscreteGaussianEvent(
            dim=self.encoded_dim,
            noise_variance=noise_variance,
            l2_sensitivity=math.nextafter(longest, math.inf),
            sampler_distance=sampler_distance,
        )

    def _check(self) -> None:
        if self.l2_clip_squared_steps < 1.0:
            given = self._parameters
            raise ParameterError(
                "a vector shorter than one grid step is truncated to zeros; "
                f"scale_factor {given.scale_factor:.6g} is too small for the clip",
                parameter="scale_factor",
                value=given.scale_factor,
                nearest=f"{1.0 / given.l2_clip:.6g}",
            )

    def _sampler(self, variance: Fraction) -> NoiseSource:
        return discrete_gaussian_sampler(variance)

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        del private_seed  # truncation needs no randomness
        return round_toward_zero(fixed)
