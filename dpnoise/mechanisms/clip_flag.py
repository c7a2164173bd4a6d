"""The clip flag: one number per client that tells whether its vector fitted the clip.

* A client says +a or −a, spread evenly over coordinates of the flag's own. They lie in
  the same ball as the vector and carry the same noise, and they are never rotated.
* They are so many that none exceeds the cap on coordinates, which then need not grow
  for the flag's sake. And the flags of the whole cohort add up to an eighth of the
  modulus at most. The norm, and the noise on their sum, are those of one.

`suggest_flag_amplitude` chooses the amplitude.

Adaptive clipping: the clip follows a quantile of the clients' norms.

* Every client says with one extra coordinate, +a or −a, whether its vector fitted the
  clip. The coordinate lies in the same L2 ball of radius √(r² + a²) and carries noise
  like the others. So one release and one privacy figure cover both, and no party ever
  sees the flags without noise.
* The clip of the next session is computed from the released share, so it is
  post-processing and costs nothing more.
* The clip stays between two bounds that the client's own policy holds. A server
  cannot drive it to a value of its choice.
* Noise is in grid steps, and so is the norm that clipping leaves; only the unit of the
  caller's vectors follows the clip (`unit_of`). The noise multiplier, and with it the
  privacy figure, never changes.
"""

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.checks import check_integer, check_number, check_positive
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


_SIGNIFICANT_BITS: Final = 12  # precise enough for a clip, and short to write


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippingSchedule:
    """The clip of the coming session and the rule that moves it.

    Args:
        l2_clip: Present clip, caller's units.
        lowest_clip: Smallest clip ever used, greater than 0.
        highest_clip: Largest clip ever used.
        target_quantile: Share of clients that should fit the clip, in (0, 1).
        learning_rate: Exponent of one full error, greater than 0.

    Raises:
        ParameterError: A value is out of range, or the clip outside its bounds.
    """

    l2_clip: float
    lowest_clip: float
    highest_clip: float
    target_quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        check_positive("lowest_clip", self.lowest_clip)
        check_positive("learning_rate", self.learning_rate)
        quantile = check_number("target_quantile", self.target_quantile)
        if not 0.0 < quantile < 1.0:
            raise ParameterError.of(
                "target_quantile",
                quantile,
                "must lie in (0, 1)",
                nearest="0.01" if quantile <= 0.0 else "0.99",
            )
        highest = check_positive("highest_clip", self.highest_clip)
        if highest < self.lowest_clip:
            raise ParameterError.of(
                "highest_clip",
                highest,
                f"must be at least lowest_clip {self.lowest_clip!r}",
                nearest=repr(self.lowest_clip),
            )
        clip = check_positive("l2_clip", self.l2_clip)
        if not self.lowest_clip <= clip <= self.highest_clip:
            raise ParameterError.of(
                "l2_clip",
                clip,
                f"must lie in [{self.lowest_clip!r}, {self.highest_clip!r}]",
                nearest=repr(min(max(clip, self.lowest_clip), self.highest_clip)),
            )

    def advance(self, unclipped_share: float) -> "ClippingSchedule":
        """Move the clip after a session.

        Args:
            unclipped_share: Released estimate of the share of clients whose vector
                fitted, in [0, 1]: the answer of `Mechanism.decode_clip_flag`.

        Returns:
            The schedule of the next session: the clip times
            exp(−learning_rate · (share − target_quantile)), within its bounds.

        Raises:
            ParameterError: The share is no number in [0, 1].
        """
        share = check_number("unclipped_share", unclipped_share)
        if not 0.0 <= share <= 1.0:
            raise ParameterError.of(
                "unclipped_share",
                share,
                "must lie in [0, 1]",
                nearest="0.0" if share < 0.0 else "1.0",
            )
        moved = self.l2_clip * math.exp(
            -self.learning_rate * (share - self.target_quantile)
        )
        bounded = min(max(moved, self.lowest_clip), self.highest_clip)
        return dataclasses.replace(self, l2_clip=bounded)

    @staticmethod
    def unit_of(l2_clip: float, parameters: MechanismParameters) -> Fraction:
        """Return how many grid steps a caller's unit has under a clip.

        Vectors multiplied by it are clipped to the same number of steps, whatever the
        clip. So encoded vectors have one norm bound and one noise.

        Args:
            l2_clip: The clip, caller's units.
            parameters: Parameters planned for another clip.

        Returns:
            Grid steps per unit, to twelve significant bits.
        """
        steps = parameters.scale_factor * parameters.l2_clip / l2_clip
        step = 2.0 ** (math.floor(math.log2(steps)) - _SIGNIFICANT_BITS + 1)
        return Fraction(round(steps / step) * step)


def suggest_flag_amplitude(
    *,
    l2_clip: float,
    noise_multiplier: float,
    num_clients: int,
    share_stddev: float = 0.05,
) -> float:
    """Choose the flag's amplitude from the precision wanted for the share.

    The share is read with standard deviation σ/(2an), where the noise has standard
    deviation σ = noise_multiplier · √(r² + a²).

    Args:
        l2_clip: Clip r, caller's units.
        noise_multiplier: Standard deviation of the sum's noise per unit of L2 bound.
        num_clients: Number n of clients in the sum.
        share_stddev: Wanted standard deviation of the share, greater than 0.

    Returns:
        The amplitude a, caller's units.

    Raises:
        ParameterError: No amplitude reaches the precision, because noise grows with
            it; the error names the precision that this cohort can reach.
    """
    clip = check_positive("l2_clip", l2_clip)
    multiplier = check_positive("noise_multiplier", noise_multiplier)
    clients = check_integer("num_clients", num_clients, 1, 1 << 40)
    precision = check_positive("share_stddev", share_stddev)
    ratio = multiplier / (2.0 * clients * precision)
    # At ratio 1 the flag would need all of the ball; beyond 0.7 it takes half of it.
    limit = math.sqrt(0.5)
    if ratio > limit:
        raise ParameterError(
            f"{clients} clients cannot read the share to within {precision:.3g} at "
            f"noise multiplier {multiplier:.3g} without giving the flag most of the "
            "L2 ball",
            parameter="share_stddev",
            value=precision,
            nearest=f"{multiplier / (2.0 * clients * limit):.3g}",
        )
    return clip * ratio / math.sqrt(1.0 - ratio * ratio)
