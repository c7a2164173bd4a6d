"""Integer-valued distributed differential privacy.

Clients encode float vectors as integers modulo m that already carry a share of the
noise. Their modular sum is differentially private and decodes to an estimate of the sum
of the vectors. `plan` chooses parameters for a budget, `make_mechanism` encodes and
decodes, `make_accountant` says what was spent. `Histogram`, `Choice`, `Votes`,
`Mean` and `Quantiles` turn answers of people into such vectors, and sums into answers
with their error.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
