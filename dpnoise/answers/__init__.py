"""Questions with short answers, and what noisy sums say about them.

A question turns one person's answer into a vector, whole numbers for the mechanism
`skellam-counts` or a real one, and the noisy sum of all into an answer with its error.
"""

from dpnoise.answers.answer import Answer, Estimate
from dpnoise.answers.choices import Choice, Histogram, Tally
from dpnoise.answers.means import Mean, MeanEstimate
from dpnoise.answers.quantiles import Quantiles, RankTally
from dpnoise.answers.question import CountBounds, NoisySum, Question, VectorBounds
from dpnoise.answers.votes import Votes, VoteTally

__all__ = [
    "Answer",
    "Choice",
    "CountBounds",
    "Estimate",
    "Histogram",
    "Mean",
    "MeanEstimate",
    "NoisySum",
    "Quantiles",
    "Question",
    "RankTally",
    "Tally",
    "VectorBounds",
    "VoteTally",
    "Votes",
]
