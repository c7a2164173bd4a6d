from dpnoise.answers.answer import Answer as Answer, Estimate as Estimate
from dpnoise.answers.choices import (
    Choice as Choice,
    Histogram as Histogram,
    Tally as Tally,
)
from dpnoise.answers.means import Mean as Mean, MeanEstimate as MeanEstimate
from dpnoise.answers.quantiles import Quantiles as Quantiles, RankTally as RankTally
from dpnoise.answers.question import (
    CountBounds as CountBounds,
    NoisySum as NoisySum,
    Question as Question,
    VectorBounds as VectorBounds,
)
from dpnoise.answers.votes import VoteTally as VoteTally, Votes as Votes
