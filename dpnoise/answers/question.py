"""What all questions share: bounds for the planner, and sums that are read back.

* `bounds` are keywords of `dpnoise.plan`, so that a question and its task cannot
  disagree about the vectors: `plan(question, clients=..., epsilon=...)`.
* An answer is stated with the error of the sum it was read from. A released sum states
  it itself. Who has numbers alone says how much noise is in them, such as the most that
  a plan knows of: intervals are too wide then, never too narrow.
* Intervals hold for all numbers of an answer together.

It knows no privacy loss.
"""

import abc
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final, Generic, Protocol, TypedDict, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpnoise.answers.answer import Answer
from dpnoise.errors import InputError
from dpnoise.mechanisms import SumError

_STEP: Final = Fraction(1)

_Answer_co = TypeVar("_Answer_co", bound=Answer, covariant=True)


class CountBounds(TypedDict):
    """Keywords of `dpnoise.plan` that a question about counts decides."""

    mechanism: str
    dimension: int
    max_nonzero: int
    linf_bound: int
    signed: bool


class VectorBounds(TypedDict):
    """Keywords of `dpnoise.plan` that a question about reals decides."""

    dimension: int
    l2_clip: float


class NoisySum(Protocol):
    """A sum that says how exact it is, such as `secagg.ReleasedSum`."""

    @property
    def values(self) -> NDArray[Any] | None:
        """The decoded sum, shape (dimension,)."""

    @property
    def inputs(self) -> int:
        """How many vectors it adds up."""

    @property
    def error(self) -> SumError:
        """How far it is from the sum of the vectors."""


class Question(abc.ABC, Generic[_Answer_co]):
    """A question to which one person's answer is a short vector."""

    _grid: ClassVar[Fraction | None] = None
    """Step of the grid that sums lie on, where noise and vectors have one."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """Entries of the vector."""

    @property
    @abc.abstractmethod
    def bounds(self) -> Mapping[str, object]:
        """The bounds of the vectors, as keywords of `dpnoise.plan`."""

    def decode(
        self,
        total: NoisySum | NDArray[np.floating],
        *,
        inputs: int | None = None,
        noise_variance: float | None = None,
        confidence: float = 0.95,
    ) -> _Answer_co:
        """Read the noisy sum of all vectors.

        Args:
            total: The released sum; or its numbers, shape (dimension,).
            inputs: Number of vectors in it, where numbers are given and the answer
                needs it.
            noise_variance: Variance of all noise, per entry, where numbers are given:
                the most that a plan knows of (`Plan.most_noise_mse`), or a session's.
            confidence: Of the intervals, all together, in (0, 1).

        Raises:
            InputError: The sum is of another question, has no interval (the message
                says why), or numbers came without what they need.
            ParameterError: The variance or the confidence is out of range.
        """
        read = read_total(
            total,
            self.dimension,
            inputs=inputs,
            noise_variance=noise_variance,
            grid=self._grid,
        )
        return self._answer(read, confidence)

    @abc.abstractmethod
    def _answer(self, read: "ReadTotal", confidence: float) -> _Answer_co:
        """Give the answer that a sum says; the confidence as of `decode`."""


class CountQuestion(Question[_Answer_co]):
    """A question to which one person's answer is a vector of few whole numbers."""

    _grid: ClassVar[Fraction | None] = _STEP

    @property
    @abc.abstractmethod
    def max_nonzero(self) -> int:
        """Entries of one person that may differ from zero."""

    @property
    def signed(self) -> bool:
        """Whether entries may be below 0."""
        return False

    @property
    def bounds(self) -> CountBounds:
        """The bounds of the vectors, as keywords of `dpnoise.plan`."""
        return CountBounds(
            mechanism="skellam-counts",
            dimension=self.dimension,
            max_nonzero=self.max_nonzero,
            linf_bound=1,
            signed=self.signed,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReadTotal:
    """A sum as questions read it.

    Attributes:
        values: Shape (dimension,), finite.
        inputs: How many vectors it adds up; None where it was not said.
        error: How exact it is.
    """

    values: NDArray[np.float64]
    inputs: int | None
    error: SumError

    @property
    def needed_inputs(self) -> int:
        """How many vectors the sum adds up.

        Raises:
            InputError: It was not said.
        """
        if self.inputs is None or self.inputs < 1:
            raise InputError("say of how many vectors the sum is: inputs=")
        return self.inputs


def read_total(
    total: NoisySum | NDArray[np.floating],
    dimension: int,
    *,
    inputs: int | None = None,
    noise_variance: float | None,
    grid: Fraction | None,
) -> ReadTotal:
    """Return a noisy sum with its error, or refuse it.

    Args:
        total: As for `Question.decode`.
        dimension: Of the question.
        inputs: As for `Question.decode`.
        noise_variance: As for `Question.decode`.
        grid: Of plain numbers, as for `SumError`.

    Raises:
        InputError: As for `Question.decode`.
        ParameterError: The variance is out of range.
    """
    error = getattr(total, "error", None)
    if isinstance(error, SumError):
        if noise_variance is not None or inputs is not None:
            raise InputError(
                "a released sum says itself what it holds: leave out noise_variance "
                "and inputs, or give its values"
            )
        released = cast("NoisySum", total)  # numbers state no error
        return ReadTotal(_checked(released.values, dimension), released.inputs, error)
    values = _checked(total, dimension)
    if noise_variance is None:
        raise InputError(
            "numbers do not say how exact they are: give the released sum itself, or "
            "noise_variance="
        )
    return ReadTotal(values, inputs, SumError.of_noise(noise_variance, grid=grid))


def read_number(value: object) -> float:
    """Return one person's number; infinity is one.

    Args:
        value: What the caller gave; numbers of numpy are taken.

    Raises:
        InputError: It is not one number. It is not shown.
    """
    if isinstance(value, numbers.Real) and not math.isnan(number := float(value)):
        return number
    raise InputError("the answer is no number: encode one number at a time")


def _checked(total: object, dimension: int) -> NDArray[np.float64]:
    """Return a released sum as floats; its form must be that of the question."""
    counts = np.asarray(total, dtype=np.float64)
    if counts.shape != (dimension,) or not bool(np.all(np.isfinite(counts))):
        raise InputError(
            f"the sum must be {dimension} finite numbers, got shape {counts.shape}"
        )
    return counts
