"""Exact samplers of integer noise.

`..._table` functions return an `InversionTable`; `fresh_seed` draws the seed.
"""

from dpnoise.samplers.binomial import binomial_table
from dpnoise.samplers.bit_source import SEED_BYTES, BitSource, fresh_seed
from dpnoise.samplers.discrete_gaussian import discrete_gaussian_table
from dpnoise.samplers.discrete_laplace import discrete_laplace_table
from dpnoise.samplers.inversion_table import InversionTable
from dpnoise.samplers.poisson import poisson_table
from dpnoise.samplers.skellam import skellam_table
from dpnoise.samplers.summed_draws import AddedDraws, binomial_sampler, skellam_sampler
from dpnoise.samplers.wide_discrete_gaussian import (
    WideDiscreteGaussian,
    discrete_gaussian_sampler,
)

__all__ = [
    "SEED_BYTES",
    "AddedDraws",
    "BitSource",
    "InversionTable",
    "WideDiscreteGaussian",
    "binomial_sampler",
    "binomial_table",
    "discrete_gaussian_sampler",
    "discrete_gaussian_table",
    "discrete_laplace_table",
    "fresh_seed",
    "poisson_table",
    "skellam_sampler",
    "skellam_table",
]
