"""The exact privacy profile of the Gaussian mechanism: target and reference.

* The tail of the normal law is evaluated through its Mills ratio. So no term underflows
  or overflows while its product with e^epsilon is moderate.
* Every delta carries an upward margin for its own rounding errors; every search
  ends on the side that claims less privacy.

It covers neither sampling nor composition: a composition of Gaussians is a Gaussian,
and loss-distribution accountants cover sampling.
"""

import math
from typing import Final

from dpnoise.accounting.accountant import check_delta, check_epsilon
from dpnoise.errors import ParameterError
from dpnoise.searches import double, halve

_HALF_LOG_TWO_PI: Final = 0.5 * math.log(2.0 * math.pi)
_CONTINUED_FRACTION_FROM: Final = 5.0  # from here 100 terms reach double precision
_CONTINUED_FRACTION_TERMS: Final = 100
_ROUNDING_MARGIN: Final = 2.0**-48  # erfc, exp and a dozen operations, 32 ulps


def mills_ratio(x: float) -> float:
    """Return the normal tail divided by the normal density, at x ≥ -35.

    Args:
        x: Any number that is at least -35; below, the density underflows.

    Returns:
        (1 - Φ(x)) / φ(x), to a relative error of a few units in the last place.

    Source:
        [AS64] 26.2.14 for the continued fraction.
    """
    if x < _CONTINUED_FRACTION_FROM:
        density_inverse = math.exp(0.5 * x * x + _HALF_LOG_TWO_PI)
        return 0.5 * math.erfc(x / math.sqrt(2.0)) * density_inverse
    value = x
    for numerator in range(_CONTINUED_FRACTION_TERMS, 0, -1):
        value = x + numerator / value
    return 1.0 / value


def log_normal_tail(x: float) -> float:
    """Return log(1 - Φ(x)) without underflow.

    Args:
        x: Any finite number.

    Returns:
        The logarithm, at most 0.
    """
    if x < _CONTINUED_FRACTION_FROM:
        return math.log(0.5 * math.erfc(x / math.sqrt(2.0)))
    return math.log(mills_ratio(x)) - 0.5 * x * x - _HALF_LOG_TWO_PI


def gaussian_delta(epsilon: float, *, noise_multiplier: float) -> float:
    """Return delta of the Gaussian mechanism, rounded upwards.

    Args:
        epsilon: Privacy loss in nats, at least 0.
        noise_multiplier: Noise standard deviation over L2 sensitivity, above 0;
            `math.inf` for a release that does not depend on the user.

    Returns:
        The smallest delta in [0, 1] for which the mechanism is (epsilon,
        delta)-private. It has an upward margin of some 2^-48 of the larger of its two
        terms.

    Raises:
        ParameterError: An argument is out of range.

    Source:
        [BW18] Theorem 8.
    """
    epsilon = check_epsilon(epsilon, allow_zero=True)
    shift = _shift(noise_multiplier)
    if shift == 0.0:
        return 0.0
    low = epsilon / shift - 0.5 * shift
    high = epsilon / shift + 0.5 * shift
    if low > 0.0:
        # e^ε·φ(high) = φ(low), so the exponential factor cancels analytically.
        ratio_low, ratio_high = mills_ratio(low), mills_ratio(high)
        log_density = -0.5 * low * low - _HALF_LOG_TWO_PI
        gap = ratio_low - ratio_high + _ROUNDING_MARGIN * ratio_low
        exponent = log_density + math.log(gap)
        # exp turns an absolute error of its argument into a relative one.
        bound = math.exp(exponent + _ROUNDING_MARGIN * (1.0 - log_density))
        return min(1.0, math.nextafter(bound, 1.0))  # above 0 where it underflows
    first = 0.5 * math.erfc(low / math.sqrt(2.0))
    second = math.exp(epsilon + log_normal_tail(high))
    margin = _ROUNDING_MARGIN * (1.0 + epsilon)
    return min(1.0, max(0.0, first - second) + margin)


def gaussian_epsilon(delta: float, *, noise_multiplier: float) -> float:
    """Return epsilon of the Gaussian mechanism, rounded upwards.

    Args:
        delta: Failure probability in (0, 1).
        noise_multiplier: Noise standard deviation over L2 sensitivity, above 0;
            `math.inf` for a release that does not depend on the user.

    Returns:
        The smallest epsilon ≥ 0 in nats, up to a bisection that ends above it.

    Raises:
        ParameterError: An argument is out of range.
    """
    delta = check_delta(delta)
    shift = _shift(noise_multiplier)
    if shift == 0.0 or gaussian_delta(0.0, noise_multiplier=noise_multiplier) <= delta:
        return 0.0

    def is_enough(epsilon: float) -> bool:
        return gaussian_delta(epsilon, noise_multiplier=noise_multiplier) <= delta

    return halve(is_enough, *double(is_enough, 1.0))[1]


def analytic_gaussian_stddev(
    epsilon: float, delta: float, l2_sensitivity: float
) -> float:
    """Return the least Gaussian noise that reaches (epsilon, delta).

    Args:
        epsilon: Privacy loss in nats, above 0.
        delta: Failure probability in (0, 1).
        l2_sensitivity: Bound on the change of the sum, at least 0, in any unit.

    Returns:
        Standard deviation of the noise, in the unit of `l2_sensitivity`.

    Raises:
        ParameterError: An argument is out of range.

    Source:
        [BW18] Algorithm 1, solved by bisection.
    """
    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta)
    if not 0.0 <= l2_sensitivity < math.inf:
        raise ParameterError.of(
            "l2_sensitivity", l2_sensitivity, "must be finite and at least 0"
        )

    def is_enough(noise_multiplier: float) -> bool:
        return gaussian_delta(epsilon, noise_multiplier=noise_multiplier) <= delta

    return halve(is_enough, *double(is_enough, 1.0))[1] * l2_sensitivity


def _shift(noise_multiplier: float) -> float:
    """Return the distance of the two means in standard deviations."""
    if isinstance(noise_multiplier, bool) or not noise_multiplier > 0.0:
        raise ParameterError.of(
            "noise_multiplier", noise_multiplier, "must be greater than 0"
        )
    # Above this shift any two worlds are told apart in double precision anyway; the
    # cap keeps the Mills ratio inside its range.
    return min(1.0 / noise_multiplier, 60.0)
