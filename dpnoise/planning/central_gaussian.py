"""The central Gaussian mechanism: the yardstick of every plan.

* The yardstick has a trusted party, real-valued noise, no rounding and no modulus, and
  spends the same ε and δ over the same sessions, against the same adversary.
* A sampling rate and a secret selection have the same pair of laws, hence the same
  yardstick. Replacing one vector by another admits no amplification by either.
* It knows the same bounds of a vector: counts that are never below 0 differ by less
  than twice the longest of them.

It adds no noise.
"""

import math

from dpnoise.accounting.reference_gaussian import gaussian_variance
from dpnoise.events import Adjacency
from dpnoise.planning.request import PlanRequest


def gaussian_variance_per_sensitivity(request: PlanRequest) -> float:
    """Return the variance that the central Gaussian needs per squared L2 clip.

    Args:
        request: Whose ε, δ, charges, sampling or selection rate and adjacency to spend.

    Returns:
        σ²/r²: multiply by the squared clip for the mean squared error of the sum.
    """
    rate = request.sampling_rate if request.selection == 1 else float(request.selection)
    if rate is None or request.adjacency is Adjacency.REPLACE_ONE:
        rate = 1.0
    once = gaussian_variance(
        float(request.epsilon), float(request.delta), rate=rate, count=request.charges
    )
    return once * _farthest(request) ** 2


def _farthest(request: PlanRequest) -> float:
    """Return how far apart the vectors of two worlds may be, in clips."""
    factor = request.adjacency.sensitivity_factor
    if request.max_nonzero is None or request.signed or factor == 1.0:
        return factor
    # Ones of one vector lie beside those of the other, as far as there is room.
    return math.sqrt(min(factor, request.dimension / request.max_nonzero))
