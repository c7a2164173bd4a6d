"""Exact samplers of integer noise.

`..._table` functions return an `InversionTable`; `fresh_seed` draws the seed.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
