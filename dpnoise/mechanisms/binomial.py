"""The binomial mechanism (cpSGD), a baseline for comparisons.

* One noise share is the number of successes in an even number of fair Bernoulli trials,
  less its mean; shares add up to the same law with more trials.
* Binomial noise is bounded, so the privacy loss can be infinite. `log-concave-gdp`
  charges for the ends. The published guarantee is (ε, δ) only, and its constants have
  not been re-derived here: the accountant with its name marks its figures as recalled.
* The L∞ sensitivity enters the guarantee, so the coordinate cap is stated in full.

It uses conditional rounding, which gives it a hard L2 bound; the published mechanism
has only one that grows with the dimension.
"""

import math
from fractions import Fraction
from typing import ClassVar

from dpnoise.events import BinomialEvent, PrivacyEvent
from dpnoise.mechanisms.base import NoiseSource
from dpnoise.mechanisms.conditional_rounding import ConditionallyRoundedMechanism
from dpnoise.samplers import binomial_sampler
from dpnoise.samplers.summed_draws import MAX_ADDED_TRIALS


class BinomialMechanism(ConditionallyRoundedMechanism):
    """Conditional rounding and centred binomial noise shares.

    Source:
        [Bao22] section 5, "cpSGD".
    """

    name: ClassVar[str] = "binomial"
    # An even number of fair trials has a variance in halves.
    finest_share_bits: ClassVar[int] = 1
    least_variance: ClassVar[Fraction] = Fraction(1, 2)
    largest_variance: ClassVar[Fraction] = Fraction(MAX_ADDED_TRIALS, 4)

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> PrivacyEvent:
        """State one release as if its counted noise had another variance."""
        return BinomialEvent(
            dim=self.encoded_dim,
            # Rounded down: never count a trial that no client draws.
            num_trials=max(1, math.floor(4 * noise_variance)),
            l2_sensitivity=self.l2_sensitivity,
            l1_sensitivity=self.l1_sensitivity,
            linf_sensitivity=self.linf_sensitivity,
            sampler_distance=sampler_distance,
        )

    def _sampler(self, variance: Fraction) -> NoiseSource:
        return binomial_sampler(int(4 * variance))
