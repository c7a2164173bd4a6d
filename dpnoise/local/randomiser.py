"""The interface of a local randomiser: a vector in, an unbiased private one out.

* The output by itself is ε-differentially private: pure, with no delta, between any
  two inputs, for every recipient. The level holds for the law in real arithmetic;
  `exact_alphabet` says whether it also holds for the draws of the program.
* It is unbiased for every vector within the bound. A longer one is shortened first.
* `output_norm` bounds every output. Code that clips or sums outputs reads the bound
  from here, so that every sensitivity includes the randomiser.
* The draws are a function of a secret seed. A seed serves one vector, once.

It handles one vector of one party and no aggregate noise; see `dpnoise.mechanisms`.

A name always means the same randomiser, whose module is imported when it is first asked
for.
"""

import abc
import math
import sys
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.encoding.clipping import check_vector
from dpnoise.local.draws import Draws
from dpnoise.local.parameters import RANDOMISER_NAMES, LocalParameters
from dpnoise.local.sum_error import Scatter, largest_sum
from dpnoise.own_parts import load_class

LOCAL_LABEL: Final = b"dpnoise/v1/local"
"""Label of the stream that a local randomiser draws from."""

_ROUNDED_UP: Final = 1.0 + 2.0**-40
_LEAST_LIE: Final = 2.0**-1000


class LocalRandomiser(abc.ABC):
    """Makes one vector private before it leaves its client.

    Args:
        parameters: For which vectors, at which level; they name this class.
    """

    name: ClassVar[str]
    exact_alphabet: ClassVar[bool]
    """Whether all draws are exact integers and Bernoulli draws. If so, the level holds
    for the program, not only for its law in real arithmetic."""

    def __init__(self, parameters: LocalParameters) -> None:
        if parameters.randomiser != self.name:
            raise TypeError(f"{type(self).__name__} is not {parameters.randomiser}")
        self._parameters = parameters

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._parameters!r})"

    @property
    def parameters(self) -> LocalParameters:
        """The parameters the randomiser was built with."""
        return self._parameters

    @property
    @abc.abstractmethod
    def exact_epsilon(self) -> float:
        """The epsilon that the actual draws satisfy, at most `epsilon`."""

    @property
    @abc.abstractmethod
    def output_norm(self) -> float:
        """Bound on the L2 norm of every output, caller's units."""

    @abc.abstractmethod
    def mse(self, norm: float) -> float:
        """Return the expected squared L2 error of one release, caller's units squared.

        Args:
            norm: L2 norm of the vector, at most what the bound admits.
        """

    @property
    def largest_norm(self) -> float:
        """Norm of the longest vector that is not shortened, caller's units."""
        return self._parameters.bound

    def sum_norm(
        self, vectors: float, *, failure: float, mean_norm: float | None = None
    ) -> float:
        """Bound the norm of a sum of independent outputs, with high probability.

        Outputs of equal inputs differ: each is long, and most of it has a random
        direction. A plan for the sum therefore needs less than n times `output_norm`.

        Args:
            vectors: How many outputs are summed at most, at least 1.
            failure: Probability of a longer sum, in (0, 1).
            mean_norm: Norm of the sum of the true vectors, caller's units; None for the
                largest, where all are as long as the bound and agree.

        Returns:
            A norm that is exceeded with at most that probability, for all inputs, in
            the caller's units; never more than `vectors` times `output_norm`.
        """
        longest = vectors * self.largest_norm
        mean = longest if mean_norm is None else min(mean_norm, longest)
        bounds = (
            largest_sum(each, vectors=vectors, mean_norm=mean, failure=failure)
            for each in self._scatters()
        )
        return min(vectors * self.output_norm, *bounds)

    def _scatters(self) -> tuple[Scatter, ...]:
        """Bounds on the scatter of one output, at least one."""
        return (Scatter.in_ball(self.output_norm),)

    def shortened_by(self, vector: ArrayLike) -> float:
        """Return by what factor a vector exceeds the bound, at least 1.0.

        Args:
            vector: As for `randomise`. The factor reveals something about the vector:
                report it to the vector's owner only.

        Raises:
            InputError: As for `randomise`.
        """
        checked = check_vector(vector, self._parameters.dim)
        factor = min(self._size(checked) / self._parameters.bound, sys.float_info.max)
        return max(1.0, float(f"{factor:.6g}"))

    def _size(self, checked: NDArray[np.float64]) -> float:
        """Return the quantity that the bound limits, for a vector of valid shape."""
        return split(checked)[0]

    def randomise(
        self, vector: ArrayLike, *, private_seed: bytes
    ) -> NDArray[np.float64]:
        """Return the private vector.

        Args:
            vector: Real numbers of shape `(dim,)`, finite, caller's units.
            private_seed: 32 secret bytes, fresh for this vector.

        Returns:
            Shape `(dim,)`; equal arguments give equal vectors on one platform.

        Raises:
            InputError: The vector has a wrong type or shape, or an entry that is not
                finite.
            ParameterError: The seed is not 32 bytes.
        """
        checked = check_vector(vector, self._parameters.dim)
        return self._randomise(checked, Draws(private_seed, LOCAL_LABEL))

    @abc.abstractmethod
    def _randomise(
        self, checked: NDArray[np.float64], draws: Draws
    ) -> NDArray[np.float64]:
        """Draw the output for a vector of the right shape."""


def lie_probability(max_logit: float) -> Fraction:
    """Return the probability of the less likely side, as the float above it.

    Args:
        max_logit: Largest log(p/(1 − p)) that privacy admits.

    Returns:
        1 − p, a dyadic rational, at least 2^-1000, so that a Bernoulli draw of it is
        exact. Rounding it up makes the release more private, never less.
    """
    lie = math.exp(-max(max_logit, 0.0) - math.log1p(math.exp(-abs(max_logit))))
    return Fraction(max(lie * _ROUNDED_UP, _LEAST_LIE))


def exact_level(lie: Fraction, log_ratio: float) -> float:
    """Return log((1 − lie)/lie) + log_ratio."""
    return math.log(1 - lie) - _log(lie) + log_ratio


def split(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the L2 norm of a vector and its direction.

    Sums are exactly rounded, so that they do not depend on the order of a library.

    Returns:
        Norm, which may be infinite, and unit vector; 0 and zeros for the zero vector.
    """
    peak = float(np.abs(vector).max())
    if peak == 0.0:
        return 0.0, vector
    scaled = vector / peak
    length = math.sqrt(math.fsum((scaled * scaled).tolist()))
    return peak * length, scaled / length


def _log(positive: Fraction) -> float:
    """Logarithm of a rational whose float may be too small to be exact."""
    return math.log(positive.numerator) - math.log(positive.denominator)


_PLACES: Final = MappingProxyType(
    {
        "separated": "separated:Separated",
        "privunit2": "unit_vector:PrivUnit2",
        "privunit-inf": "unit_vector:PrivUnitInf",
        "scalar-dp": "magnitude:ScalarDP",
    }
)


def randomiser_names() -> tuple[str, ...]:
    """Return the names of all local randomisers, the one for everyday vectors first."""
    return RANDOMISER_NAMES


@lru_cache(maxsize=16)  # every client of a simulated session asks for the same
def make_randomiser(parameters: LocalParameters) -> LocalRandomiser:
    """Build, or fetch, the randomiser that the parameters name.

    Args:
        parameters: They have been checked when built.
    """
    chosen: type[LocalRandomiser] = load_class(
        "dpnoise.local", _PLACES[parameters.randomiser]
    )
    return chosen(parameters)
