"""Weighted means under one clip: a weight becomes one more coordinate of the vector.

A client with the update u, of length at most U, and the weight w sends

    v = a (u, kappa U)    with a = min(w, W) / W and the public W = `max_weight`,

so that ‖v‖ ≤ U √(1 + kappa²), which is the clip that the task is planned with: the
sensitivity is that of the mechanism, whatever this code does.  The last coordinate of
the sum over kappa U is the sum of all a, by which the others are divided.

With kappa = d^(-1/4) the squared error of the mean is least, (1 + d^(-1/2))² times that
of equal weights.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.errors import ErrorCode, LocalProtocolError
from secagg.learning.vectors import Flat
from secagg.protocol.arguments import check_real

# A mean that is divided by a sum of weights known to within a quarter is off by as
# much, all entries alike.
_WORST_RELATIVE_ERROR: Final = 0.25
# What part of the largest weight clients are expected to have on average.
_EXPECTED_WEIGHT: Final = 0.5
# Below this part of the survivors a sum of weights is noise.
_LEAST_WEIGHT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Weighting:
    """How clients are weighted.

    Attributes:
        max_weight: W, from which on all weights count alike; 0 for equal weights.
        kappa: Size of the further coordinate over the clip; 0 for equal weights.
    """

    max_weight: float
    kappa: float

    @classmethod
    def of(cls, max_weight: float | None, dim: int) -> "Weighting":
        """Return equal weights for None, else weights up to `max_weight`.

        Raises:
            LocalProtocolError: `max_weight` is not above 0.
        """
        if max_weight is None:
            return cls(0.0, 0.0)
        return cls(check_real("max_weight", max_weight, above=0.0), dim**-0.25)

    @property
    def extra(self) -> int:
        """Coordinates beside those of the update."""
        return int(self.max_weight > 0)

    @property
    def stretch(self) -> float:
        """Clip of the task over the clip of an update."""
        return math.hypot(1.0, self.kappa)

    def vector(self, update: Flat, weight: float, *, l2_clip: float) -> Flat:
        """Return what a client sends.

        Args:
            update: Shape (d,), any length.
            weight: At least 0; not looked at with equal weights.
            l2_clip: The clip of the task, caller's units.

        Raises:
            InputError: The weight is negative or not finite.
        """
        if not self.extra:
            return update
        if not (math.isfinite(weight) and weight >= 0.0):
            raise ErrorCode.BAD_INPUT.error(
                "the weight of an update is negative or not finite",
                fix="Pass the number of examples.",
            )
        clip = l2_clip / self.stretch
        part = min(weight, self.max_weight) / self.max_weight
        norm = float(np.linalg.norm(update))
        shortened = update * min(1.0, clip / norm) if norm else update
        return part * np.append(shortened, self.kappa * clip)

    def mean(
        self, values: Flat, *, inputs: int, l2_clip: float
    ) -> tuple[Flat, float, bool]:
        """Return the mean of the updates from their sum.

        Args:
            values: The released sum, shape (d,) or with the further coordinate.
            inputs: How many vectors it adds up.
            l2_clip: The clip of the session.

        Returns:
            The mean, shape (d,); the sum of the weights, in equal weights `inputs` and
            else in multiples of `max_weight`; whether that is enough to divide by.
        """
        if not self.extra:
            return values / inputs, float(inputs), True
        mass = float(values[-1]) / (self.kappa * l2_clip / self.stretch)
        least = _LEAST_WEIGHT * inputs
        return values[:-1] / max(mass, least), mass, mass >= least

    def check_error(
        self, *, standard_error: float, l2_clip: float, fewest: int
    ) -> None:
        """Refuse a plan whose noise hides the sum of the weights.

        Args:
            standard_error: Of one entry of the sum, caller's units.
            l2_clip: The clip of the task.
            fewest: Inputs in the smallest sum.

        Raises:
            LocalProtocolError: INFEASIBLE, with the cohort that would do.
        """
        one = self.kappa * l2_clip / self.stretch * _EXPECTED_WEIGHT
        if standard_error > _WORST_RELATIVE_ERROR * one * fewest:
            enough = math.ceil(standard_error / (_WORST_RELATIVE_ERROR * one))
            raise ErrorCode.INFEASIBLE.error(
                f"the noise hides the sum of the weights of {fewest} clients",
                kind=LocalProtocolError,
                fix=f"Leave out max_weight, or ask for some {enough} clients.",
            )
