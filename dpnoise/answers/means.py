"""The mean of a number over the people who were asked.

A vector is one real number: the answer less the middle of its range, so that the clip
is half the range and no answer is shortened. Adding up is all that the sum does, and
how many answered is public: the mean is the middle plus the sum over their number.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpnoise.answers.answer import Answer, Estimate
from dpnoise.answers.question import Question, ReadTotal, VectorBounds, read_number
from dpnoise.errors import ParameterError
from dpnoise.floats import text_between

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, eq=False)
class MeanEstimate(Answer):
    """A noisy mean.

    Attributes:
        mean: Estimate, unbiased: it may lie outside of the range.
        standard_error: Of the mean.
        interval: Where the mean lies, within the range, with the confidence.
        inputs: Of how many answers.
        confidence: Of the interval.
    """

    mean: float
    standard_error: float
    interval: tuple[float, float]
    inputs: int
    confidence: float

    @property
    def estimates(self) -> tuple[tuple[str, Estimate], ...]:
        """The mean with its interval."""
        return (("mean", Estimate(self.mean, *self.interval)),)

    def __str__(self) -> str:
        """The mean, its interval, and how many answered."""
        return (
            f"mean {self.mean:.4g}, {100.0 * self.confidence:.10g} % interval "
            f"{text_between(*self.interval)}, {self.inputs} answers"
        )

    def _draw(self, axes: "Axes") -> None:
        below, above = self._reaches()
        axes.errorbar([self.mean], ["mean"], xerr=[below, above], fmt="o", capsize=4.0)
        axes.set_title(str(self))


@dataclass(frozen=True, slots=True)
class Mean(Question[MeanEstimate]):
    """What is the mean of a number?

    Args:
        lowest: Lower end of the range; smaller numbers count as this one.
        highest: Upper end; larger numbers count as this one. The noise grows with the
            range, whatever the numbers are.

    Raises:
        ParameterError: The range is empty, or its ends are not finite.

    Example:
        age = dpnoise.Mean(lowest=0, highest=120)
        made = dpnoise.plan(age, clients=100, epsilon=1.0, delta=1e-6)
        age.decode(total)          # of a session that adds up age.encode(34), …
    """

    lowest: float
    highest: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.highest - self.lowest) or (
            self.lowest >= self.highest
        ):
            raise ParameterError(
                "the range must have finite ends, the highest above the lowest",
                parameter="highest",
                value=self.highest,
            )

    @property
    def dimension(self) -> int:
        """One entry."""
        return 1

    @property
    def bounds(self) -> VectorBounds:
        """The bounds of the vectors, as keywords of `dpnoise.plan`."""
        return VectorBounds(dimension=1, l2_clip=self._half)

    @property
    def _half(self) -> float:
        return 0.5 * (self.highest - self.lowest)

    @property
    def _middle(self) -> float:
        return self.lowest + self._half

    def encode(self, value: float) -> NDArray[np.float64]:
        """Turn one person's number into a vector.

        Args:
            value: The number; outside the range it counts as the nearest end.

        Returns:
            How far it is from the middle of the range, shape (1,).

        Raises:
            InputError: It is no number.
        """
        within = min(max(read_number(value), self.lowest), self.highest)
        return np.clip([within - self._middle], -self._half, self._half)

    def _answer(self, read: ReadTotal, confidence: float) -> MeanEstimate:
        number = read.needed_inputs
        mean = self._middle + float(read.values[0]) / number
        half = read.error.half_width(confidence) / number
        low, high = np.clip([mean - half, mean + half], self.lowest, self.highest)
        return MeanEstimate(
            mean=mean,
            standard_error=read.error.standard_error / number,
            interval=(float(low), float(high)),
            inputs=number,
            confidence=confidence,
        )
