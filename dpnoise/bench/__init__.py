"""Experiments: run a sum as deployed, compare mechanisms, and ask plans backwards.

`compare` measures every mechanism at every bit width and budget, with confidence
intervals; `noisy_sum` is one such run. `budget` says what a noise is worth, `clients`
how many people an error needs.

Callers pass the seeds, so that runs repeat. Never use them to protect real data.
"""

from dpnoise.bench.comparison import compare
from dpnoise.bench.inverse import budget, clients
from dpnoise.bench.table import Comparison, Row
from dpnoise.bench.trial import noisy_sum

__all__ = ["Comparison", "Row", "budget", "clients", "compare", "noisy_sum"]
