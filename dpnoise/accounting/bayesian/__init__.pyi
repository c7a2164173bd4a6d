from dpnoise.accounting.bayesian.accountant import (
    BayesianAccountant as BayesianAccountant,
    Level as Level,
    PopulationStatement as PopulationStatement,
    SampledGaussian as SampledGaussian,
)
from dpnoise.accounting.bayesian.accountant import (
    Interval as Interval,
    upper_mean as upper_mean,
)
from dpnoise.accounting.bayesian.accountant import typical_epsilon as typical_epsilon
