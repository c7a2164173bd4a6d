"""Experiments: run a sum as deployed, compare mechanisms, and ask plans backwards.

`compare` measures every mechanism at every bit width and budget, with confidence
intervals; `noisy_sum` is one such run. `budget` says what a noise is worth, `clients`
how many people an error needs.

Callers pass the seeds, so that runs repeat. Never use them to protect real data.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
