"""The central Gaussian mechanism, the baseline of every comparison.

* For simulations only. The noise is a floating-point Gaussian put on a fine grid. An
  attacker who sees low-order bits of floating-point noise may learn more than the
  theorem says. Nothing here may protect real data.
* Clients add no noise; the imagined trusted party does, with `add_noise`.
* It has the same interface as the real mechanisms, so that one loop compares all.

It has no exact sampler, and says so through its table's name.
"""

import hashlib
import math
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.scaling import FixedPointVector, round_stochastic
from dpnoise.events import GaussianEvent, NoiseEvent
from dpnoise.floats import rational_text
from dpnoise.mechanisms.base import CentralMechanism
from dpnoise.mechanisms.error_forecast import Rounding
from dpnoise.mechanisms.parameters import MAX_SHARE_VARIANCE
from dpnoise.samplers import BitSource

_UNIFORM_BITS: Final = 53


class SimulatedGaussian:
    """Floating-point Gaussian noise, rounded to integers: for simulations only.

    Args:
        variance: Variance of one draw, grid steps².
    """

    name: Final = "simulated-gaussian"

    def __init__(self, variance: Fraction) -> None:
        self._variance: Final = variance

    @property
    def variance(self) -> Fraction:
        """Variance before rounding to integers, grid steps²."""
        return self._variance

    @property
    def distance_bound(self) -> float:
        """Zero by convention: a simulation charges nothing for its sampler."""
        return 0.0

    @property
    def digest(self) -> bytes:
        """32 bytes that identify the law."""
        text = f"{self.name}:{rational_text(self._variance)}"
        return hashlib.sha256(text.encode()).digest()

    def add_to(
        self, vector: NDArray[np.int64], seed: bytes, label: bytes, *, start: int = 0
    ) -> None:
        """Add one rounded Gaussian to every entry, in place.

        Args:
            vector: Integers, shape (count,).
            seed: 32 bytes; equal arguments give equal noise on one platform.
            label: What the stream is for.
            start: Position of the first draw.
        """
        words = BitSource(seed, label).uint64(2 * start, 2 * vector.size)
        # Midpoints of 2^53 equal intervals: never 0, so the logarithm is finite.
        kept = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)
        uniforms = (kept + 0.5) * 2.0**-_UNIFORM_BITS
        radii = np.sqrt(-2.0 * np.log(uniforms[0::2]))
        normals = radii * np.cos(2.0 * math.pi * uniforms[1::2])
        vector += np.rint(normals * math.sqrt(self._variance)).astype(np.int64)


class GaussianMechanism(CentralMechanism):
    """Clip at the client, a floating-point Gaussian at an imagined trusted party.

    Source:
        The Gaussian mechanism with the exact trade-off of [BW18].
    """

    name: ClassVar[str] = "gaussian"
    rounding: ClassVar[Rounding] = Rounding.STOCHASTIC
    largest_variance: ClassVar[Fraction] = Fraction(MAX_SHARE_VARIANCE)

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
        """State one release as if its noise had another variance."""
        return GaussianEvent(
            dim=self.encoded_dim,
            noise_variance=float(noise_variance),
            l2_sensitivity=math.nextafter(
                math.sqrt(self.l2_clip_squared_steps), math.inf
            ),
            sampler_distance=sampler_distance,
            simulated=True,
        )

    def remarks(self) -> tuple[str, ...]:
        """Return the warning that belongs to every use of this mechanism."""
        return ("Floating-point noise: for simulations only.",)

    def _sampler(self, variance: Fraction) -> SimulatedGaussian:
        return SimulatedGaussian(variance)

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        return round_stochastic(fixed, self._rounding_bits(private_seed))
