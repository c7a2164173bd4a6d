"""Mechanisms with conditional rounding: integer vectors inside a hard L2 ball.

* Stochastic rounding is repeated until the integer vector's norm is at most the bound
  of Proposition 4.2. So every encoded vector keeps the bound.
* One bound, `l2_sensitivity`, serves the encoder and the event. It is floored to
  what an integer vector can reach: a squared norm is an integer.
* The L1 bound follows from integrality: |k| ≤ k² for integers, and Cauchy–Schwarz.
* Conditioning makes the rounding slightly biased towards short vectors.

The base class knows no noise; its subclasses bring theirs.

The distributed discrete Gaussian mechanism is a baseline:

* Every client adds a discrete Gaussian share. Sums of discrete Gaussians are not
  discrete Gaussian; accountants bound the sum itself or charge for the difference.
* A share's variance is the variance *parameter* of a discrete Gaussian. The variance
  itself is a little smaller, and far smaller below one quarter: the sum is then hardly
  noisy at all, and bounds explode. The accountant sees the parameter.
* Every bound depends on how many shares the noise is cut into, hence on the roster. The
  event states the worst case over all rosters (`event_with_noise`).

It shares clip, rotation and rounding with `skellam`, so that a comparison of the two
compares the noise.

The binomial mechanism (cpSGD) is another one:

* One noise share is the number of successes in an even number of fair Bernoulli trials,
  less its mean. Shares add up to the same law with more trials.
* Binomial noise is bounded, so the privacy loss can be infinite. `log-concave-gdp`
  charges for the ends. The published guarantee is (ε, δ) only, and its constants have
  not been re-derived here: the accountant with its name marks its figures as recalled.
* The L∞ sensitivity enters the guarantee, so the coordinate cap is stated in full.

Conditional rounding gives it a hard L2 bound; the published mechanism
has only one that grows with the dimension.
"""

import math
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.scaling import (
    FixedPointVector,
    conditional_squared_bound,
    round_conditional,
)
from dpnoise.errors import ParameterError
from dpnoise.events import BinomialEvent, DistributedDiscreteGaussianEvent, NoiseEvent
from dpnoise.mechanisms.base import Mechanism, NoiseSource
from dpnoise.mechanisms.error_forecast import Rounding
from dpnoise.mechanisms.parameters import MAX_SHARE_VARIANCE
from dpnoise.samplers import binomial_sampler, discrete_gaussian_sampler
from dpnoise.samplers.discrete_gaussian import (
    MIN_VARIANCE_PARAMETER,
    discrete_gaussian_table,
)
from dpnoise.samplers.summed_draws import MAX_ADDED_TRIALS


class ConditionallyRoundedMechanism(Mechanism):
    """Shared by the mechanisms whose theorem needs a hard bound on integer vectors.

    Source:
        [Aga21] Proposition 4.2, with everything under the square and √d/2.
    """

    rounding: ClassVar[Rounding] = Rounding.CONDITIONAL

    @cached_property
    def max_squared_norm(self) -> int:
        """Largest squared norm that a rounded vector may have, grid steps²."""
        return conditional_squared_bound(
            math.nextafter(math.sqrt(self.l2_clip_squared_steps), math.inf),
            self.encoded_dim,
            self._parameters.rounding_bias,
        )

    @cached_property
    def l2_sensitivity(self) -> float:
        """Hard bound on the rounded vector's L2 norm, grid steps."""
        return math.nextafter(math.sqrt(self.max_squared_norm), math.inf)

    @cached_property
    def l1_sensitivity(self) -> float:
        """Hard bound on the rounded vector's L1 norm, grid steps."""
        by_dimension = math.sqrt(self.encoded_dim) * self.l2_sensitivity
        return min(by_dimension * (1.0 + 2.0**-50), float(self.max_squared_norm))

    @cached_property
    def linf_sensitivity(self) -> int:
        """Hard bound on every rounded coordinate, grid steps."""
        largest = math.ceil(self.coordinate_cap)  # what rounding up can make of it
        return min(largest, math.isqrt(self.max_squared_norm))

    def _check(self) -> None:
        """Refuse a grid on which every vector would be rounded to zeros."""
        if self.max_squared_norm == 0:
            given = self._parameters
            raise ParameterError(
                "scale_factor is so small that every vector would be sent as zeros",
                parameter="scale_factor",
                value=given.scale_factor,
                nearest=repr(1.0 / given.l2_clip),
            )

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        return round_conditional(
            fixed, self._rounding_bits(private_seed), self.max_squared_norm
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
    ) -> NoiseEvent:
        """State one release as if its counted noise had another variance.

        A roster leaves k shares of at least v/k each to count. The most shares that any
        roster leaves, each of v/k, stand for all rosters. What the accountants state of
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
    ) -> NoiseEvent:
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
