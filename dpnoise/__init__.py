"""Integer-valued distributed differential privacy.

Clients encode float vectors as integers modulo m that already carry a share of the
noise. Their modular sum is differentially private and decodes to an estimate of the sum
of the vectors. `plan` chooses parameters for a budget, `make_mechanism` encodes and
decodes, `make_accountant` says what was spent. `Histogram`, `Choice`, `Votes`,
`Mean` and `Quantiles` turn answers of people into such vectors, and sums into answers
with their error.
"""

from dpnoise.accounting import (
    Accountant,
    PrivacyStatement,
    accountant_names,
    make_accountant,
)
from dpnoise.answers import Choice, Histogram, Mean, Quantiles, Votes
from dpnoise.errors import DPNoiseError
from dpnoise.events import Adjacency, Adversary
from dpnoise.mechanisms import (
    Mechanism,
    MechanismParameters,
    make_mechanism,
    mechanism_names,
)
from dpnoise.planning import Plan, plan
from dpnoise.samplers import fresh_seed

__all__ = [
    "Accountant",
    "Adjacency",
    "Adversary",
    "Choice",
    "DPNoiseError",
    "Histogram",
    "Mean",
    "Mechanism",
    "MechanismParameters",
    "Plan",
    "PrivacyStatement",
    "Quantiles",
    "Votes",
    "accountant_names",
    "fresh_seed",
    "make_accountant",
    "make_mechanism",
    "mechanism_names",
    "plan",
]
