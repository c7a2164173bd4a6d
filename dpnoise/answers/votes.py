"""Yes or no to several questions: entries of +1, −1, or 0 for no answer.

A vote of +1 or −1 changes one entry by one, as a count of the yeses does, and the sum
needs no number of voters to be read: it is yeses less noes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpnoise.answers.question import Question, check_total, noise_quantile
from dpnoise.errors import InputError, ParameterError


@dataclass(frozen=True, slots=True, eq=False)
class VoteTally:
    """Noisy majorities.

    Attributes:
        questions: What was asked.
        majorities: Estimates of yeses less noes, unbiased.
        standard_error: Of one majority.
        half_width: All majorities together are this near to the truth, but for one
            chance in 1/(1 − confidence).
        confidence: Of the half width.
    """

    questions: tuple[str, ...]
    majorities: NDArray[np.float64]
    standard_error: float
    half_width: int
    confidence: float

    @property
    def decided(self) -> tuple[bool | None, ...]:
        """For each question whether yes or no has won; None if noise may decide it."""
        return tuple(
            None if abs(majority) <= self.half_width else bool(majority > 0)
            for majority in self.majorities
        )


@dataclass(frozen=True, slots=True)
class Votes(Question):
    """Yes or no to each of several questions.

    Args:
        questions: Their texts, at least one.

    Raises:
        ParameterError: There is none.
    """

    questions: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.questions:
            raise ParameterError(
                "there must be at least one question", parameter="questions", value=()
            )

    @property
    def dimension(self) -> int:
        """One entry for each question."""
        return len(self.questions)

    @property
    def max_nonzero(self) -> int:
        """All of them."""
        return self.dimension

    @property
    def signed(self) -> bool:
        """A no is −1."""
        return True

    def encode(self, votes: Sequence[bool | None]) -> NDArray[np.int64]:
        """Turn one person's votes into a vector.

        Args:
            votes: Yes, no, or None for no vote, for each question.

        Raises:
            InputError: There are too few or too many, or one is something else.
        """
        values = {True: 1, False: -1, None: 0}
        known = all(vote is None or isinstance(vote, bool) for vote in votes)
        if len(votes) != self.dimension or not known:
            raise InputError(f"{self.dimension} votes are needed: yes, no or none")
        return np.array([values[vote] for vote in votes], np.int64)

    def decode(
        self,
        total: NDArray[np.floating],
        *,
        noise_variance: float,
        confidence: float = 0.95,
    ) -> VoteTally:
        """Read the noisy sum of all vectors.

        Args:
            total: Decoded sum, shape (dimension,).
            noise_variance: As for `noise_quantile`.
            confidence: Of the intervals, all together.
        """
        majorities = check_total(total, self.dimension)
        reach = noise_quantile(
            noise_variance, confidence=confidence, counts=self.dimension
        )
        return VoteTally(
            self.questions, majorities, math.sqrt(noise_variance), reach, confidence
        )
