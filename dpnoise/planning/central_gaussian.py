"""The central Gaussian mechanism: the yardstick of every plan.

* The yardstick has a trusted party, real-valued noise, no rounding and no modulus, and
  spends the same ε and δ over the same steps, against the same adversary.
* A sampling rate and a secret selection have the same pair of laws, hence the same
  yardstick. Replacing one vector by another admits no amplification by either.

It adds no noise.
"""

from dpnoise.accounting.yardstick import gaussian_variance
from dpnoise.events import Adjacency
from dpnoise.planning.request import PlanRequest

__all__ = ["gaussian_variance_per_sensitivity"]


def gaussian_variance_per_sensitivity(request: PlanRequest) -> float:
    """Return the variance that the central Gaussian needs per squared L2 clip.

    Args:
        request: Whose ε, δ, steps, sampling or selection rate and adjacency to spend.

    Returns:
        σ²/r²: multiply by the squared clip for the mean squared error of the sum.
    """
    rate = request.sampling_rate if request.selection == 1 else float(request.selection)
    if rate is None or request.adjacency is Adjacency.REPLACE_ONE:
        rate = 1.0
    once = gaussian_variance(
        float(request.epsilon), float(request.delta), rate=rate, count=request.steps
    )
    return once * request.adjacency.sensitivity_factor**2
