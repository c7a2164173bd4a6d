"""Server-added discrete Gaussian noise on truncated fixed-point vectors.

* Client: clip, scale, round towards zero. Truncation never lengthens a vector, so
  the clip is the sensitivity. No noise is added by clients.
* The party that unmasks the sum adds one discrete Gaussian per coordinate before
  anything is released. This protects against readers of the release, not against a
  party that sees the raw sum. Keep the raw sum out of logs and storage.
* If several parties add noise, each adds the whole noise, since each can subtract its
  own.
* Residues are centred, so negative numbers need no offset that depends on the number of
  clients in the sum.

The modulus need not exceed the sensitivity for privacy: reduction modulo m is
post-processing of the noisy sum. It must hold the sum for the estimate to be right.

It offers no mode in which clients may rely on this noise.
"""

import math
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.checks import check_integer, check_positive
from dpnoise.encoding.scaling import FixedPointVector, round_toward_zero
from dpnoise.errors import ParameterError
from dpnoise.events import Adjacency, DiscreteGaussianEvent, NoiseEvent
from dpnoise.mechanisms.base import CentralMechanism, NoiseSource
from dpnoise.mechanisms.error_forecast import Rounding
from dpnoise.mechanisms.noise_share import NoiseRule
from dpnoise.mechanisms.parameter_checks import check_length
from dpnoise.mechanisms.parameters import MAX_SHARE_VARIANCE, MechanismParameters
from dpnoise.samplers import discrete_gaussian_sampler

_MAX_FIXED_POINT_BITS: Final = 26  # a clip of 2^25 grid steps, `MAX_SCALED_CLIP`
_LARGEST_RHO: Final = 2.0**64  # no promise; below its inverse, no sum
_TAIL_STDDEVS: Final = 20  # a Gaussian goes beyond once in 10^88 draws
_SURELY_A_STEP: Final = 1.0001
# More than what floats round between here and the rho of an accountant.
_MARGIN: Final = 1 + Fraction(1, 1 << 30)


class DiscreteGaussianMechanism(CentralMechanism):
    """Truncation at the client, one discrete Gaussian at the server.

    Source:
        [CKS20] Theorem 14 for the noise; truncation and fixed point as in [DPSA24].
    """

    name: ClassVar[str] = "discrete-gaussian"
    rounding: ClassVar[Rounding] = Rounding.TOWARD_ZERO
    largest_variance: ClassVar[Fraction] = Fraction(MAX_SHARE_VARIANCE)

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
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
            one_step = f"{1.0 / given.l2_clip:.6g}"
            if float(one_step) * given.l2_clip < 1.0:  # what is printed is rounded
                one_step = f"{_SURELY_A_STEP / given.l2_clip:.6g}"
            raise ParameterError(
                "a vector shorter than one grid step is truncated to zeros; "
                f"scale_factor {given.scale_factor:.6g} is too small for the clip",
                parameter="scale_factor",
                value=given.scale_factor,
                nearest=one_step,
            )

    def _sampler(self, variance: Fraction) -> NoiseSource:
        return discrete_gaussian_sampler(variance)

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        del private_seed  # truncation needs no randomness
        return round_toward_zero(fixed)


def fixed_point_parameters(  # noqa: PLR0913 - the numbers of the published algorithm
    *,
    dim: int,
    fixed_point_bits: int,
    rho: Fraction | float,
    clients: int,
    min_survivors: int | None = None,
    l2_clip: float = 1.0,
    aggregators: int = 1,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> MechanismParameters:
    """Return the parameters of the published two-aggregator algorithm.

    Vectors of norm at most 1 are truncated to n-bit fixed point, one digit of which is
    the sign, and summed. Discrete Gaussian noise of σ = 2^n/√(2ρ) gives ρ-zCDP per
    sum when one vector is replaced by another. k sums cost kρ.

    Args:
        dim: Coordinates of a vector.
        fixed_point_bits: The n of the fixed-point numbers, 2 … 26.
        rho: zCDP parameter ρ of one sum against each aggregator, 2^-64 … 2^64.
            Readers who know no aggregator's noise have ρ divided by `aggregators`.
        clients: Most vectors in one sum.
        min_survivors: Fewest; all of them by default.
        l2_clip: Bound on the norm of a vector, in the place of 1.
        aggregators: How many add the whole noise; the modulus holds all of it.
        adjacency: Which neighbouring inputs must look alike. If one of them lacks a
            vector, half the standard deviation suffices.

    Returns:
        Parameters of `discrete-gaussian` without rotation, modulo the smallest power
        of two that holds every sum and twenty standard deviations of all noise.

    Raises:
        ParameterError: A value is out of range.

    Source:
        [DPSA24], with residues centred instead of an offset of 2^(n−1) per vector.
    """
    check_integer("fixed_point_bits", fixed_point_bits, 2, _MAX_FIXED_POINT_BITS)
    check_integer("aggregators", aggregators, 1, 2)
    check_length("l2_clip", l2_clip)
    if not 1.0 / _LARGEST_RHO <= check_positive("rho", rho) <= _LARGEST_RHO:
        raise ParameterError(
            f"rho must be between 2^-64 and 2^64, got {float(rho):g}",
            parameter="rho",
            value=float(rho),
            nearest=repr(_LARGEST_RHO if rho > 1 else 1.0 / _LARGEST_RHO),
        )
    norm = 1 << (fixed_point_bits - 1)
    difference = Fraction(adjacency.sensitivity_factor) * norm
    variance = _MARGIN * difference**2 / (2 * Fraction(rho))
    noise = _TAIL_STDDEVS * math.sqrt(aggregators * variance)
    return MechanismParameters(
        mechanism=DiscreteGaussianMechanism.name,
        dim=dim,
        l2_clip=l2_clip,
        scale_factor=norm / l2_clip,
        modulus=1 << math.ceil(2 * (clients * norm + noise)).bit_length(),
        noise_rule=NoiseRule(
            counted_variance=variance,
            min_survivors=clients if min_survivors is None else min_survivors,
        ),
        num_clients=clients,
        rotation="none",
    )
