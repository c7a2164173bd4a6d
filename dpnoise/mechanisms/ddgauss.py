"""The distributed discrete Gaussian mechanism, a baseline.

* Every client adds a discrete Gaussian share. Sums of discrete Gaussians are not
  discrete Gaussian; accountants bound the sum itself or charge for the difference.
* A share's variance is the variance *parameter* of a discrete Gaussian. The variance
  itself is a little smaller, and far smaller below one quarter: the sum is then hardly
  noisy at all, and bounds explode. The accountant sees the parameter.
* Every bound depends on how many shares the noise is cut into, hence on the roster. The
  event states the worst case over all rosters (`event_with_noise`).

It shares clip, rotation and rounding with `skellam`, so that a comparison of the two
compares the noise.
"""

from fractions import Fraction
from typing import ClassVar, Final

from dpnoise.events import DistributedDiscreteGaussianEvent, PrivacyEvent
from dpnoise.mechanisms.base import NoiseSource
from dpnoise.mechanisms.conditional_rounding import ConditionallyRoundedMechanism
from dpnoise.mechanisms.parameters import MAX_SHARE_VARIANCE
from dpnoise.samplers import discrete_gaussian_sampler
from dpnoise.samplers.discrete_gaussian import (
    MIN_VARIANCE_PARAMETER,
    discrete_gaussian_table,
)

# Here variance and parameter differ by less than one part in 10^130.
_ALIKE_FROM: Final = 16


class DDGaussMechanism(ConditionallyRoundedMechanism):
    """Conditional rounding and discrete Gaussian noise shares.

    Source:
        [Bao22] section 5, "Distributed Discrete Gaussian (DDG) mechanism".
    """

    name: ClassVar[str] = "ddgauss"
    least_variance: ClassVar[Fraction] = MIN_VARIANCE_PARAMETER
    takes_ladder: ClassVar[bool] = False
    largest_variance: ClassVar[Fraction] = Fraction(MAX_SHARE_VARIANCE)

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> PrivacyEvent:
        """State one release as if its counted noise had another variance.

        A roster leaves k shares of at least v/k each to count. The most shares that any
        roster leaves, each of v/k, stand for all rosters: what the accountants state of
        them holds for fewer and wider shares of the same noise. For `log-concave-gdp`
        that is rule 5 of `dpnoise.accounting.tradeoff.log_concave`; every term of the
        bound in `ddgauss-paper` grows with k and falls with a share's variance.
        """
        given = self._parameters
        shares = given.noise_rule.largest_counted_shares(given.num_clients)
        return DistributedDiscreteGaussianEvent(
            dim=self.encoded_dim,
            num_noise_shares=shares,
            local_noise_variance=noise_variance / shares,
            l2_sensitivity=self.l2_sensitivity,
            l1_sensitivity=self.l1_sensitivity,
            sampler_distance=sampler_distance,
        )

    def drawn_variance(self, variance: Fraction) -> Fraction:
        """Return the true variance of one draw: less than its parameter."""
        if variance >= _ALIKE_FROM:
            return variance
        return discrete_gaussian_table(variance).variance

    def _sampler(self, variance: Fraction) -> NoiseSource:
        return discrete_gaussian_sampler(variance)
