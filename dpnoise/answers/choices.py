"""One of several options, or one bucket of a histogram: exactly one entry is 1."""

import bisect
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpnoise.answers.answer import Answer, Estimate
from dpnoise.answers.question import CountQuestion, ReadTotal, read_number
from dpnoise.errors import InputError, ParameterError


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Answer):
    """Noisy counts of options.

    Attributes:
        labels: What is counted, in the order of the counts.
        counts: Estimates, unbiased: they may be below 0.
        standard_error: Of one count.
        half_width: All counts together are this near to the truth, but for one chance
            in 1/(1 − confidence).
        confidence: Of the half width.
    """

    labels: tuple[str, ...]
    counts: NDArray[np.float64]
    standard_error: float
    half_width: int
    confidence: float

    @property
    def estimates(self) -> tuple[tuple[str, Estimate], ...]:
        """The counts by their labels."""
        return tuple(
            (label, Estimate(count, count - self.half_width, count + self.half_width))
            for label, count in zip(self.labels, self.counts.tolist(), strict=True)
        )

    def __str__(self) -> str:
        """A table of the counts."""
        width = max(len(label) for label in self.labels)
        rows = [
            f"{label:<{width}}  {count:8.0f} ± {self.half_width}"
            for label, count in zip(self.labels, self.counts, strict=True)
        ]
        return "\n".join(rows)


def _tally(labels: tuple[str, ...], read: ReadTotal, confidence: float) -> Tally:
    """Return the counts of a sum, with their half width."""
    reach = read.error.half_width(confidence, counts=len(labels))
    return Tally(
        labels, read.values, read.error.standard_error, math.ceil(reach), confidence
    )


@dataclass(frozen=True, slots=True)
class Choice(CountQuestion[Tally]):
    """Which one of several options?

    Args:
        options: Their names, all different, at least one.

    Raises:
        ParameterError: The sequence is empty or names an option twice.
    """

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        given: object = self.options
        if isinstance(given, str):
            raise ParameterError(
                "options must be several names, not one text",
                parameter="options",
                value=self.options,
            )
        if not self.options or len(set(self.options)) < len(self.options):
            raise ParameterError(
                "options must be different names, at least one",
                parameter="options",
                value=self.options,
            )

    @property
    def dimension(self) -> int:
        """One entry for each option."""
        return len(self.options)

    @property
    def max_nonzero(self) -> int:
        """One."""
        return 1

    def encode(self, option: str) -> NDArray[np.int64]:
        """Turn one person's choice into a vector.

        Args:
            option: One of `options`.

        Raises:
            InputError: It is not one of them. The error does not show it.
        """
        if option not in self.options:
            raise InputError("the answer is not one of the options")
        return _unit(self.dimension, self.options.index(option))

    def _answer(self, read: ReadTotal, confidence: float) -> Tally:
        return _tally(self.options, read, confidence)


@dataclass(frozen=True, slots=True)
class Histogram(CountQuestion[Tally]):
    """In which bucket lies a number?

    Args:
        edges: Borders of the buckets, increasing, at least two. A bucket holds its
            lower border and not its upper one; the last holds both.

    Raises:
        ParameterError: The borders do not increase, or are no finite numbers.
    """

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        # NaN is not below anything.
        rising = all(low < high for low, high in pairwise(self.edges))
        if len(self.edges) < 2 or not rising or not all(map(math.isfinite, self.edges)):  # noqa: PLR2004 - two borders make a bucket
            raise ParameterError(
                "edges must be at least two finite numbers, each above the last",
                parameter="edges",
                value=self.edges,
            )

    @property
    def dimension(self) -> int:
        """One entry for each bucket."""
        return len(self.edges) - 1

    @property
    def max_nonzero(self) -> int:
        """One."""
        return 1

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the buckets: "18 to 30"."""
        return tuple(f"{low:g} to {high:g}" for low, high in pairwise(self.edges))

    def encode(self, value: float) -> NDArray[np.int64]:
        """Turn one person's number into a vector.

        Args:
            value: The number.

        Returns:
            A vector with a one in the number's bucket; the zero vector for a number
            outside all of them, who counts nowhere.

        Raises:
            InputError: It is no number.
        """
        value = read_number(value)
        if not self.edges[0] <= value <= self.edges[-1]:
            return np.zeros(self.dimension, np.int64)
        bucket = bisect.bisect_right(self.edges, value) - 1
        return _unit(self.dimension, min(bucket, self.dimension - 1))

    def _answer(self, read: ReadTotal, confidence: float) -> Tally:
        return _tally(self.labels, read, confidence)


def _unit(dimension: int, position: int) -> NDArray[np.int64]:
    vector = np.zeros(dimension, np.int64)
    vector[position] = 1
    return vector
