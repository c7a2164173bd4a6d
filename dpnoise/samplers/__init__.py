"""Exact samplers of integer noise.

`..._table` functions return an `InversionTable`; `fresh_seed` draws the seed.
"""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".binomial": ("binomial_table",),
    ".bit_source": ("BitSource", "SEED_BYTES", "fresh_seed"),
    ".discrete_gaussian": ("discrete_gaussian_table",),
    ".inversion_table": ("InversionTable",),
    ".skellam": ("skellam_table",),
    ".summed_draws": ("AddedDraws", "binomial_sampler", "skellam_sampler"),
    ".wide_discrete_gaussian": ("WideDiscreteGaussian", "discrete_gaussian_sampler"),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
