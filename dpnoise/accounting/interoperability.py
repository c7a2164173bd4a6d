"""Export to the event types of Google's dp-accounting.

* An exported event is at most as private as the original: Skellam and discrete
  Gaussian releases become the Gaussian release that dominates them (`skellam_gdp`).
* Events without a dominating Gaussian are refused, not approximated: mixtures, sums of
  discrete Gaussians, binomial noise.
* Sampling of releases whose noise comes in shares is not exported: it hides nothing. A
  secret selection becomes Poisson sampling, which has the same pair of laws.
* The target types have no field for probability mass that must be charged to delta, so
  it is returned beside the event: add (1 + e^epsilon) times the distance to delta.

It imports dp-accounting inside the function: it is an optional dependency, installed by
the extra `dp-accounting`.
"""

import math

from dpnoise.accounting.tradeoff.skellam_gdp import ShiftedRelease, gaussian_equivalent
from dpnoise.errors import DPNoiseError, UnknownEventError
from dpnoise.events import Adjacency, PrivacyEvent, flatten


def to_dp_accounting(
    event: PrivacyEvent, *, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> tuple[object, float]:
    """Express an event in the types of dp-accounting.

    Args:
        event: The event that was released.
        adjacency: Which neighbouring inputs must look alike; the sensitivities of the
            exported Gaussians are stated for it.

    Returns:
        A `dp_accounting.DpEvent` that is at most as private, and the total variation
        distance per world that must be charged to delta on top.

    Raises:
        DPNoiseError: dp-accounting is not installed; install it.
        UnknownEventError: A part of the event is dominated by no Gaussian. Account for
            it with this package.
    """
    try:
        import dp_accounting  # noqa: PLC0415 - an extra, absent by default
    except ImportError as error:
        raise DPNoiseError(
            "the export needs dp-accounting; install it with pip install dp-accounting"
        ) from error
    exported: list[object] = []
    distance = 0.0
    for release, rate, count, is_secret in flatten(event):
        if not isinstance(release, ShiftedRelease):
            raise UnknownEventError(
                f"{type(release).__name__} is dominated by no Gaussian; use an "
                "accountant of this package"
            )
        equivalent = gaussian_equivalent(release, adjacency=adjacency)
        distance += count * (equivalent.distance + release.sampler_distance)
        if math.isinf(equivalent.noise_multiplier):
            continue
        once = dp_accounting.GaussianDpEvent(equivalent.noise_multiplier)
        if rate < 1.0 and (is_secret or not release.noise_in_shares):
            once = dp_accounting.PoissonSampledDpEvent(rate, once)
        exported.append(dp_accounting.SelfComposedDpEvent(once, count))
    if not exported:
        return dp_accounting.NoOpDpEvent(), distance
    return dp_accounting.ComposedDpEvent(exported), distance
