"""Yes or no to several questions: entries of +1, −1, or 0 for no answer.

A vote of +1 or −1 changes one entry by one, as a count of the yeses does, and the sum
needs no number of voters to be read: it is yeses less noes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpnoise.answers.answer import Answer, Estimate
from dpnoise.answers.question import CountQuestion, ReadTotal
from dpnoise.errors import InputError, ParameterError


@dataclass(frozen=True, slots=True, eq=False)
class VoteTally(Answer):
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
    def estimates(self) -> tuple[tuple[str, Estimate], ...]:
        """The majorities by their questions."""
        reach = self.half_width
        return tuple(
            (question, Estimate(found, found - reach, found + reach))
            for question, found in zip(
                self.questions, self.majorities.tolist(), strict=True
            )
        )

    def __str__(self) -> str:
        """A table of the majorities, and what they decide."""
        words = {True: "yes", False: "no", None: "not decided"}
        width = max(len(question) for question in self.questions)
        rows = zip(self.questions, self.majorities, self.decided, strict=True)
        return "\n".join(
            f"{question:<{width}}  {majority:8.0f} ± {self.half_width}  {words[won]}"
            for question, majority, won in rows
        )

    @property
    def decided(self) -> tuple[bool | None, ...]:
        """For each question whether yes or no has won; None if noise may decide it."""
        return tuple(
            None if abs(majority) <= self.half_width else bool(majority > 0)
            for majority in self.majorities
        )


@dataclass(frozen=True, slots=True)
class Votes(CountQuestion[VoteTally]):
    """Yes or no to each of several questions.

    Args:
        questions: Their texts, at least one.

    Raises:
        ParameterError: The sequence is empty.
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

    def _answer(self, read: ReadTotal, confidence: float) -> VoteTally:
        reach = read.error.half_width(confidence, counts=self.dimension)
        return VoteTally(
            self.questions,
            read.values,
            read.error.standard_error,
            math.ceil(reach),
            confidence,
        )
