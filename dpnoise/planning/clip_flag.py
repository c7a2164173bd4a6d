"""How loud the flag of adaptive clipping has to be.

* The flag takes its part of the norm that clipping leaves, so it costs noise: a flag of
  a quarter of the clip 6 percent. The noise of a released share is that of the sum, so
  it falls with the number of clients and grows with the number of sessions.
* A share that is read to within a half still moves the clip the right way on average;
  beyond that the clip would follow the noise.

It plans nothing else.
"""

import math
from typing import Final

from dpnoise.errors import ParameterError
from dpnoise.mechanisms.adaptive_clipping import suggest_flag_amplitude
from dpnoise.planning.central_gaussian import gaussian_variance_per_sensitivity
from dpnoise.planning.request import PlanRequest

_WANTED: Final = 0.05  # standard deviation of the share
_WORST: Final = 0.5
_LOUDEST: Final = 0.25  # of the clip


def clip_flag_amplitude(request: PlanRequest) -> float:
    """Choose the amplitude of the clip flag for a plan.

    Args:
        request: The plan that is asked for; its own `clip_flag_amplitude` is not
            looked at.

    Returns:
        The amplitude a, caller's units: what reads the share of a full session to
        within 0.05, and at most a quarter of the clip.

    Raises:
        ParameterError: So few clients tell their share only in noise; the error names
            how many would do.
    """
    multiplier = math.sqrt(gaussian_variance_per_sensitivity(request))
    clients = math.floor(request.selection * request.survivors)
    loudest = _LOUDEST * request.l2_clip
    reads_to = multiplier * math.sqrt(1.0 + _LOUDEST**-2) / 2.0
    needed = math.ceil(reads_to / (_WORST * float(request.selection)))
    if clients * _WORST < reads_to:
        raise ParameterError(
            f"{request.survivors} clients tell the share of vectors that fit only in "
            "noise, and the clip would follow it: give epsilon to fewer sessions, or "
            "count on more clients",
            parameter="min_survivors",
            value=request.survivors,
            nearest=str(needed),
        )
    if 2.0 * clients * _WANTED * _LOUDEST / math.sqrt(1.0 + _LOUDEST**2) < multiplier:
        return loudest
    return suggest_flag_amplitude(
        l2_clip=float(request.l2_clip),
        noise_multiplier=multiplier,
        num_clients=clients,
        share_stddev=_WANTED,
    )
