"""Questions whose answers are a few counts, and what noisy counts say about them.

A question turns one person's answer into whole numbers for the mechanism
`skellam-counts`, and the noisy sum of all of them into an answer with its error.
"""

from dpnoise.answers.choices import Choice, Histogram, Tally
from dpnoise.answers.quantiles import Quantile, Quantiles, RankTally
from dpnoise.answers.question import CountBounds, Question, noise_quantile
from dpnoise.answers.votes import Votes, VoteTally

__all__ = [
    "Choice",
    "CountBounds",
    "Histogram",
    "Quantile",
    "Quantiles",
    "Question",
    "RankTally",
    "Tally",
    "VoteTally",
    "Votes",
    "noise_quantile",
]
