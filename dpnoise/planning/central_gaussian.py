"""The central Gaussian mechanism: the yardstick of every plan.

* The yardstick has a trusted party, real-valued noise, no rounding and no modulus, and
  spends the same ε and δ over the same steps, against the same adversary.
* Without sampling it is the exact trade-off of the Gaussian mechanism; T steps are one
  step with T times the variance.
* With sampling, or a secret selection, which has the same pair of laws, it is the
  privacy-loss-distribution accountant of this package.

It adds no noise.
"""

from fractions import Fraction
from functools import lru_cache

from dpnoise.accounting import calibrate
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.events import (
    Adjacency,
    Adversary,
    GaussianEvent,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
)
from dpnoise.planning.request import PlanRequest

__all__ = ["gaussian_variance_per_sensitivity"]

_YARDSTICKS = 64  # a sweep over bits or scales asks for the same yardstick each time


def gaussian_variance_per_sensitivity(request: PlanRequest) -> float:
    """Return the variance that the central Gaussian needs per squared L2 clip.

    Args:
        request: Whose ε, δ, steps, sampling or selection rate and adjacency to spend.

    Returns:
        σ²/r²: multiply by the squared clip for the mean squared error of the sum.

    Source:
        [BW18] Theorem 8 without sampling.
    """
    return _variance(
        float(request.epsilon),
        float(request.delta),
        request.steps,
        request.sampling_rate if request.selection == 1 else float(request.selection),
        request.adjacency,
    )


@lru_cache(maxsize=_YARDSTICKS)
def _variance(
    epsilon: float,
    delta: float,
    steps: int,
    sampling_rate: float | None,
    adjacency: Adjacency,
) -> float:
    stddev = analytic_gaussian_stddev(epsilon, delta, adjacency.sensitivity_factor)
    unsampled = steps * stddev**2
    if sampling_rate is None or sampling_rate == 1.0:
        return unsampled

    rate = sampling_rate

    def build_event(noise_variance: Fraction) -> PrivacyEvent:
        # The adjacency is the accountant's business; the event states zero-out.
        one = GaussianEvent(
            dim=1, noise_variance=float(noise_variance), l2_sensitivity=1.0
        )
        return Repeated(PoissonSampled(one, rate), steps)

    # Sampling never needs more noise than none at all. At the least delta that loss
    # distributions resolve they may say otherwise.
    sampled = float(
        calibrate(
            build_event,
            accountant="gaussian-pld",
            epsilon=epsilon,
            delta=delta,
            adversary=Adversary.MODEL_READER,
            bracket=(Fraction(unsampled) / 2**40, Fraction(unsampled) * 2),
        )
    )
    return min(sampled, unsampled)
