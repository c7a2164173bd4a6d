from dpnoise.samplers.binomial import binomial_table as binomial_table
from dpnoise.samplers.bit_source import (
    BitSource as BitSource,
    SEED_BYTES as SEED_BYTES,
    fresh_seed as fresh_seed,
)
from dpnoise.samplers.discrete_gaussian import (
    discrete_gaussian_table as discrete_gaussian_table,
)
from dpnoise.samplers.inversion_table import InversionTable as InversionTable
from dpnoise.samplers.skellam import skellam_table as skellam_table
from dpnoise.samplers.summed_draws import (
    AddedDraws as AddedDraws,
    binomial_sampler as binomial_sampler,
    skellam_sampler as skellam_sampler,
)
from dpnoise.samplers.wide_discrete_gaussian import (
    WideDiscreteGaussian as WideDiscreteGaussian,
    discrete_gaussian_sampler as discrete_gaussian_sampler,
)
