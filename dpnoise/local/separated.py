"""The separated mechanism: direction and norm of a vector, each private by itself.

M(w) = PrivUnit2(w/‖w‖)·ScalarDP(‖w‖). The levels add up, and the product is unbiased,
since the two draws are independent. With m the mean agreement of the direction,

    E ‖M(w) − w‖² = (Var + ‖w‖²)/m² − ‖w‖².

It adapts to short vectors, where a randomiser of directions alone has the error of the
bound.

Source: [Bho18] Definition 4.1 and equation (22). The choice of the split is ours.
"""

import math
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ParameterError
from dpnoise.local.draws import Draws
from dpnoise.local.magnitude import ScalarDP
from dpnoise.local.parameters import LocalParameters
from dpnoise.local.randomiser import LocalRandomiser, split
from dpnoise.local.sphere_cap import MIN_EPSILON, check_epsilon
from dpnoise.local.sum_error import Scatter
from dpnoise.local.unit_vector import PrivUnit2
from dpnoise.searches import golden_section

_TRIED: Final = 40


class Separated(LocalRandomiser):
    """A vector of the ball, with its norm sent apart (see `LocalParameters`)."""

    name: ClassVar[str] = "separated"
    exact_alphabet: ClassVar[bool] = False

    def __init__(self, parameters: LocalParameters) -> None:
        super().__init__(parameters)
        spent = parameters.magnitude_epsilon
        if spent is None:
            raise TypeError("separated parameters have a magnitude_epsilon")
        self.magnitude = ScalarDP(
            LocalParameters(
                randomiser="scalar-dp", dim=1, bound=parameters.bound, epsilon=spent
            )
        )
        self.direction = PrivUnit2(
            LocalParameters(
                randomiser="privunit2",
                dim=parameters.dim,
                bound=1.0,
                # Subtracted towards zero: the two levels never exceed their sum.
                epsilon=math.nextafter(parameters.epsilon - spent, 0.0),
            )
        )

    @property
    def exact_epsilon(self) -> float:
        """The sum of both levels."""
        return self.direction.exact_epsilon + self.magnitude.exact_epsilon

    @property
    def output_norm(self) -> float:
        """The product of both bounds."""
        return self.direction.output_norm * self.magnitude.output_norm

    def mse(self, norm: float) -> float:
        """Return the expected squared error, see the module."""
        square = norm * norm
        agreement = self.direction.mean_agreement
        return (self.magnitude.mse(norm) + square) / agreement**2 - square

    def _scatters(self) -> tuple[Scatter, ...]:
        return self.direction.scatters_at(self.output_norm, moved=self.magnitude.reach)

    def _randomise(
        self, checked: NDArray[np.float64], draws: Draws
    ) -> NDArray[np.float64]:
        norm, direction = split(checked)
        length = self.magnitude.draw(norm, draws)
        point = self.direction.draw_around(direction, draws)
        point *= length / self.direction.mean_agreement
        return point


def best_magnitude_epsilon(
    *, dim: int, bound: float, epsilon: float, typical_norm: float
) -> float:
    """Return the part of epsilon for the norm that makes vectors of one norm best.

    Args:
        dim: Coordinates, at least 2.
        bound: Largest norm, caller's units.
        epsilon: Level of both together, nats, more than 0.002.
        typical_norm: Norm that counts, in (0, bound]. A public guess: never one that
            was read off the vectors themselves.

    Returns:
        `magnitude_epsilon` for `LocalParameters`, to within a search step.

    Raises:
        ParameterError: A number is out of range.
    """
    level = check_epsilon("epsilon", epsilon)
    if not 0.0 < typical_norm <= bound:
        raise ParameterError.of(
            "typical_norm", typical_norm, f"must lie in (0, {bound!r}]"
        )
    least = 2.0 * MIN_EPSILON
    if level < 2.0 * least:
        raise ParameterError(
            "epsilon is too small to be divided",
            parameter="epsilon",
            value=level,
            nearest="0.01",
        )

    low, high = math.log(least), math.log(level - least)

    def error(log_spent: float) -> float:
        parameters = LocalParameters(
            randomiser="separated",
            dim=dim,
            bound=bound,
            epsilon=level,
            magnitude_epsilon=math.exp(log_spent),
        )
        return Separated(parameters).mse(typical_norm)

    # The error falls, then rises; within one percent of the level it is flat.
    return math.exp(golden_section(error, low, high, steps=_TRIED, width=0.01))
