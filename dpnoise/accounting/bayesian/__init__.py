"""What a person drawn from a population loses on average: never instead of a bound.

* A figure of this package holds for a person drawn at random. Other people, outliers
  first, may lose up to the worst case, which is always stated beside it.
* Nothing that plans, encodes, adds or refuses noise imports this package.
"""

from dpnoise.accounting.bayesian.accountant import (
    BayesianAccountant,
    Level,
    PopulationStatement,
    SampledGaussian,
)
from dpnoise.accounting.bayesian.interval import Interval, upper_mean
from dpnoise.accounting.bayesian.typical import typical_epsilon

__all__ = [
    "BayesianAccountant",
    "Interval",
    "Level",
    "PopulationStatement",
    "SampledGaussian",
    "typical_epsilon",
    "upper_mean",
]
