"""Gaussian differential privacy of noise shares other than Skellam.

* The theorem is that of `skellam-gdp`: symmetric log-concave noise hides an integer
  vector of L2 norm D as a Gaussian of noise multiplier 1/(D·M) does.
* For sums of discrete Gaussians and for binomial noise M is bounded in `log_concave`.
* The noise of a sum of discrete Gaussians depends on the number of shares. An event
  states one number of shares; for many rosters, state the worst number.

It says nothing about shares so narrow that their sum is not smooth.
"""

from typing import ClassVar

from dpnoise.accounting.statement import Proof
from dpnoise.accounting.tradeoff.skellam_gdp import SkellamGDPAccountant
from dpnoise.events import (
    BinomialEvent,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
)


class LogConcaveGDPAccountant(SkellamGDPAccountant):
    """Adds up squared Gaussian shifts of discrete Gaussian and binomial shares.

    Source:
        This project; proofs in `unit_shift` and `log_concave`.
    """

    name = "log-concave-gdp"
    proof_of_theorem: ClassVar[Proof] = Proof.OWN
    covers: ClassVar[tuple[type[NoiseEvent], ...]] = (
        DistributedDiscreteGaussianEvent,
        BinomialEvent,
        DiscreteGaussianEvent,
        GaussianEvent,
    )
