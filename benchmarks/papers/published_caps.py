"""PrivUnit2 as [Bho18] sets it up: the budget split, and the sufficient conditions.

Of a level ε the publication gives 0.99·ε to the cap and 0.01·ε to the choice of its
side (section 5.2), and takes the largest edge that (16a) or (16b) of Theorem 1 admits.
The mechanism is the same: draws are those of this repository, with other numbers.
"""

import math
from fractions import Fraction
from typing import Final

from dpnoise.local import LocalParameters
from dpnoise.local.sphere_cap import SphereCap, log_rest
from dpnoise.local.unit_vector import PrivUnit2

CAP_SHARE: Final = 0.99


def published_probability(epsilon: float) -> float:
    """Return p = e^(0.01ε)/(1 + e^(0.01ε)), the column p of Table 1."""
    return 1.0 / (1.0 + math.exp(-(1.0 - CAP_SHARE) * epsilon))


def published_edge(dim: int, epsilon: float) -> float:
    """Return the largest edge that condition (16a) or (16b) admits for 0.99·ε."""
    level = CAP_SHARE * epsilon
    first = math.tanh(level / 2.0) * math.sqrt(math.pi / (2.0 * (dim - 1)))

    def needs(edge: float) -> float:
        return (
            0.5 * math.log(dim)
            + math.log(6.0)
            - (dim - 1) / 2.0 * math.log1p(-edge * edge)
            + math.log(edge)
        )

    low, high = math.sqrt(2.0 / dim), 1.0 - 1e-12
    if needs(low) > level:
        return first
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if needs(middle) <= level else (low, middle)
    return max(first, low)


class PublishedPrivUnit2(PrivUnit2):
    """The same draws with the published edge and probability."""

    def __init__(self, parameters: LocalParameters) -> None:
        super().__init__(parameters)
        dim, epsilon = parameters.dim, parameters.epsilon
        self.cap = SphereCap.of_height(dim, 1.0 - published_edge(dim, epsilon))
        self.__dict__["lie"] = Fraction(1.0 - published_probability(epsilon))

    @property
    def true_epsilon(self) -> float:
        """The exact level of these numbers; what is left of ε is wasted."""
        lie = float(self.lie)
        tail = self.cap.log_tail
        return math.log((1.0 - lie) / lie) + log_rest(tail) - tail
