"""The clip flag: one number per client that tells whether its vector fitted the clip.

* A client says +a or −a, spread evenly over coordinates of the flag's own. They lie in
  the same ball as the vector and carry the same noise, and they are never rotated.
* They are so many that none exceeds the cap on coordinates, which then need not grow
  for the flag's sake. And the flags of the whole cohort add up to an eighth of the
  modulus at most. The norm, and the noise on their sum, are those of one.

It chooses no amplitude: `adaptive_clipping.suggest_flag_amplitude` does.
"""

import math
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ParameterError
from dpnoise.mechanisms.parameters import MechanismParameters

_MOST_COORDINATES: Final = 1 << 21  # few beside 2^28; a server names the amplitude


class ClipFlag:
    """The flag of one mechanism, as coordinates behind the rotated vector.

    Args:
        parameters: Of the mechanism; `clip_flag_amplitude` is above 0.
        coordinate_cap: Bound on every absolute coordinate, grid steps.

    Raises:
        ParameterError: The flag would take a vector of its own.
    """

    def __init__(
        self, parameters: MechanismParameters, coordinate_cap: Fraction
    ) -> None:
        amplitude = parameters.clip_flag_amplitude
        steps = Fraction(parameters.scale_factor) * Fraction(amplitude)
        filled = 8 * parameters.num_clients * steps / parameters.modulus
        needed = math.ceil(max(steps / coordinate_cap, filled) ** 2)
        if needed > _MOST_COORDINATES:
            nearest = amplitude * 0.999 * math.sqrt(_MOST_COORDINATES / needed)
            raise ParameterError(
                f"the clip flag would be spread over {needed:.3g} coordinates, at most "
                f"{_MOST_COORDINATES} are supported",
                parameter="clip_flag_amplitude",
                value=amplitude,
                nearest=f"{nearest:.4g}",
            )
        self._parameters: Final = parameters
        self._coordinates: Final = needed

    @property
    def coordinates(self) -> int:
        """Number of coordinates that the flag is spread over."""
        return self._coordinates

    def encode(self, *, fitted: bool) -> NDArray[np.float64]:
        """Return one client's flag.

        Args:
            fitted: Whether its vector was within the clip.

        Returns:
            Shape `(coordinates,)`, grid steps.
        """
        given = self._parameters
        each = given.scale_factor * given.clip_flag_amplitude
        each /= math.sqrt(self._coordinates)
        return np.full(self._coordinates, each if fitted else -each)

    def decode(
        self,
        summed: NDArray[np.int64],
        *,
        num_contributors: int,
        selection_rate: Fraction,
    ) -> float:
        """Estimate the share of clients whose vector fitted.

        Args:
            summed: Sum of the flags with their noise, shape `(coordinates,)`, grid
                steps.
            num_contributors: Number of clients that were summed.
            selection_rate: Probability that a client's flag was sent.

        Returns:
            The estimate, clamped to [0, 1]; unbiased before the clamp.

        Raises:
            ParameterError: The number of contributors is not between 1 and the cohort
                size.
        """
        given = self._parameters
        if not 1 <= num_contributors <= given.num_clients:
            raise ParameterError(
                f"num_contributors must be between 1 and {given.num_clients}, got "
                f"{num_contributors}",
                parameter="num_contributors",
                value=num_contributors,
                nearest=str(given.num_clients if num_contributors > 0 else 1),
            )
        steps = float(summed.sum())
        flag = steps / math.sqrt(self._coordinates) / given.scale_factor
        flags = float(selection_rate) * num_contributors
        share = 0.5 + flag / (2.0 * given.clip_flag_amplitude * flags)
        return min(1.0, max(0.0, share))
