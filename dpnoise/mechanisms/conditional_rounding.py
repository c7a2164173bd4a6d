"""Mechanisms with conditional rounding: integer vectors inside a hard L2 ball.

* Stochastic rounding is repeated until the integer vector's norm is at most the
  bound of Proposition 4.2, so the bound is a fact about every encoded vector.
* One bound, `l2_sensitivity`, serves the encoder and the event. It is floored to
  what an integer vector can reach: a squared norm is an integer.
* The L1 bound follows from integrality: |k| ≤ k² for integers, and Cauchy–Schwarz.
* Conditioning makes the rounding slightly biased towards short vectors.

It knows no noise; its subclasses bring theirs.
"""

import math
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.rounding import conditional_squared_bound, round_conditional
from dpnoise.encoding.scaling import FixedPointVector
from dpnoise.errors import ParameterError
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.error_forecast import Rounding


class ConditionallyRoundedMechanism(Mechanism):
    """Shared by the mechanisms whose theorem needs a hard bound on integer vectors.

    Source:
        [Aga21] Proposition 4.2, with everything under the square and √d/2.
    """

    rounding: ClassVar[Rounding] = Rounding.CONDITIONAL

    @cached_property
    def max_squared_norm(self) -> int:
        """Largest squared norm that a rounded vector may have, grid steps²."""
        return conditional_squared_bound(
            math.nextafter(math.sqrt(self.l2_clip_squared_steps), math.inf),
            self.encoded_dim,
            self._parameters.rounding_bias,
        )

    @cached_property
    def l2_sensitivity(self) -> float:
        """Hard bound on the rounded vector's L2 norm, grid steps."""
        return math.nextafter(math.sqrt(self.max_squared_norm), math.inf)

    @cached_property
    def l1_sensitivity(self) -> float:
        """Hard bound on the rounded vector's L1 norm, grid steps."""
        by_dimension = math.sqrt(self.encoded_dim) * self.l2_sensitivity
        return min(by_dimension * (1.0 + 2.0**-50), float(self.max_squared_norm))

    @cached_property
    def linf_sensitivity(self) -> int:
        """Hard bound on every rounded coordinate, grid steps."""
        largest = math.ceil(self.coordinate_cap)  # what rounding up can make of it
        return min(largest, math.isqrt(self.max_squared_norm))

    def _check(self) -> None:
        """Refuse a grid on which every vector would be rounded to zeros."""
        if self.max_squared_norm == 0:
            given = self._parameters
            raise ParameterError(
                "scale_factor is so small that every vector would be sent as zeros",
                parameter="scale_factor",
                value=given.scale_factor,
                nearest=repr(1.0 / given.l2_clip),
            )

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        return round_conditional(
            fixed, self._rounding_bits(private_seed), self.max_squared_norm
        )
