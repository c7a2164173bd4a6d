from dpnoise.accounting.bayesian.accountant import (
    BayesianAccountant as BayesianAccountant,
    Interval as Interval,
    Level as Level,
    PopulationStatement as PopulationStatement,
    SampledGaussian as SampledGaussian,
    typical_epsilon as typical_epsilon,
    upper_mean as upper_mean,
)
