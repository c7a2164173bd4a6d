"""Slow samplers and probabilities that are easy to verify: the oracle of the tables.

* No code is shared with the tables: probabilities are summed series in decimal
  arithmetic, not recurrences of integers; samplers reject by comparing integers, they
  look nothing up.
* A sampler's law is exact, given fair bits: every decision is a Bernoulli variable
  with a rational probability.
* Probabilities are correct to `DIGITS` significant digits.

What this module does not do: it is not fast (some thousand draws a second) and no
release path uses it.

Sources: [CKS20] Algorithms 1 to 3 for e^(−x), discrete Laplace and discrete Gaussian.
The Poisson sampler is an elementary rejection from a geometric variable; its docstring
holds the proof.
"""

import decimal
import functools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from dpnoise.samplers.bit_source import BitSource

DIGITS: Final = 60
"""Significant digits of the probabilities: 1e-60 is far below 2^-136."""

# Twenty digits more than promised absorb the rounding of ten thousands of terms. The
# exponent range has to hold e^(−variance) for large variances.
_CONTEXT: Final = decimal.Context(
    prec=DIGITS + 20, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
)
_NEGLIGIBLE: Final = Decimal(10) ** -(DIGITS + 10)


class FairBits:
    """A sequence of fair bits, read from a stream in order.

    Args:
        source: The stream; its bytes are used from position 0 on.
    """

    def __init__(self, source: BitSource) -> None:
        self._source = source
        self._offset = 0
        self._buffer = b""

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound), by rejection."""
        bits = (bound - 1).bit_length()
        size = -(-bits // 8)
        while True:
            candidate = int.from_bytes(self._read(size), "little") & ((1 << bits) - 1)
            if candidate < bound:
                return candidate

    def bernoulli(self, probability: Fraction) -> bool:
        """True with exactly the given probability, in [0, 1]."""
        return self.below(probability.denominator) < probability.numerator

    def bernoulli_exp(self, exponent: Fraction) -> bool:
        """True with probability e^(−exponent), exponent ≥ 0 ([CKS20] Algorithm 1)."""
        while exponent > 1:
            if not self.bernoulli_exp(Fraction(1)):
                return False
            exponent -= 1
        count = 1
        while self.bernoulli(exponent / count):
            count += 1
        return count % 2 == 1

    def _read(self, size: int) -> bytes:
        """The next bytes of the stream."""
        if len(self._buffer) < size:
            fresh = self._source.bytes_at(self._offset, 4096 + size)
            self._offset += len(fresh)
            self._buffer += fresh
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


def sample_poisson(poisson_rate: Fraction, bits: FairBits) -> int:
    """Draw one Poisson variable exactly.

    A rate up to 1/2: propose k with probability 2^(−k−1) and keep it with probability
    (2λ)^k/k! ≤ 1. The kept k has weight λ^k/(2·k!), which is Poisson(λ). A larger rate
    is a sum of such parts.

    Args:
        poisson_rate: Rate λ > 0.
        bits: Fair bits.
    """
    parts = max(1, math.ceil(2 * poisson_rate))
    double_rate = 2 * poisson_rate / parts
    total = 0
    for _ in range(parts):
        while True:
            k = 0
            while bits.below(2):
                k += 1
            powers = all(bits.bernoulli(double_rate) for _ in range(k))
            if powers and bits.below(math.factorial(k)) == 0:
                break
        total += k
    return total


def sample_skellam(noise_variance: Fraction, bits: FairBits) -> int:
    """Draw the difference of two Poisson variables of rate `noise_variance / 2`."""
    rate = noise_variance / 2
    return sample_poisson(rate, bits) - sample_poisson(rate, bits)


def sample_binomial(num_trials: int, bits: FairBits) -> int:
    """Draw `num_trials` fair bits and return the number of ones less half of them."""
    heads = bits.below(1 << num_trials).bit_count()
    return heads - num_trials // 2


def sample_discrete_laplace(decay_rate: Fraction, bits: FairBits) -> int:
    """Draw k with probability proportional to e^(−decay_rate·|k|).

    Source:
        [CKS20] Algorithm 2, its t/s being 1/decay_rate.
    """
    s, t = decay_rate.as_integer_ratio()
    while True:
        u = bits.below(t)
        if not bits.bernoulli_exp(Fraction(u, t)):
            continue
        v = 0
        while bits.bernoulli_exp(Fraction(1)):
            v += 1
        magnitude = (u + t * v) // s
        negative = bits.below(2) == 1
        if negative and magnitude == 0:
            continue  # zero would otherwise have two chances
        return -magnitude if negative else magnitude


def sample_discrete_gaussian(variance_parameter: Fraction, bits: FairBits) -> int:
    """Draw k with probability proportional to exp(−k²/(2·variance_parameter)).

    Source:
        [CKS20] Algorithm 3.
    """
    t = math.isqrt(math.floor(variance_parameter)) + 1
    while True:
        candidate = sample_discrete_laplace(Fraction(1, t), bits)
        offset = abs(candidate) - variance_parameter / t
        if bits.bernoulli_exp(offset * offset / (2 * variance_parameter)):
            return candidate


def skellam_pmf(outcome: int, noise_variance: Fraction) -> Decimal:
    """P(X = outcome) for Skellam noise, as a convolution of two Poisson laws.

    Returns:
        e^(−v)·Σ_j (v/2)^(2j+|k|)/(j!·(j+|k|)!), v = `noise_variance`, k = `outcome`.
    """
    with decimal.localcontext(_CONTEXT):
        rate = _decimal(noise_variance / 2)
        magnitude = abs(outcome)
        term = rate**magnitude / Decimal(math.factorial(magnitude))
        total = Decimal(0)
        j = 0
        while True:
            total += term
            j += 1
            factor = rate * rate / (j * (j + magnitude))
            term *= factor
            # Once terms fall by half or more, the rest is below the last one.
            if factor < Decimal("0.5") and term < total * _NEGLIGIBLE:
                return total * (-2 * rate).exp()


def poisson_pmf(outcome: int, poisson_rate: Fraction) -> Decimal:
    """P(X = outcome) for the Poisson law: e^(−λ)·λ^k/k!."""
    if outcome < 0:
        return Decimal(0)
    with decimal.localcontext(_CONTEXT):
        rate = _decimal(poisson_rate)
        return rate**outcome / Decimal(math.factorial(outcome)) * (-rate).exp()


def binomial_pmf(outcome: int, num_trials: int) -> Decimal:
    """P(X = outcome) for the number of ones among fair bits less half of them."""
    heads = outcome + num_trials // 2
    if not 0 <= heads <= num_trials:
        return Decimal(0)
    with decimal.localcontext(_CONTEXT):
        return Decimal(math.comb(num_trials, heads)) / Decimal(2) ** num_trials


def discrete_laplace_pmf(outcome: int, decay_rate: Fraction) -> Decimal:
    """P(X = outcome) for the discrete Laplace law: a geometric series."""
    with decimal.localcontext(_CONTEXT):
        ratio = (-_decimal(decay_rate)).exp()
        return (1 - ratio) / (1 + ratio) * ratio ** abs(outcome)


def discrete_gaussian_pmf(outcome: int, variance_parameter: Fraction) -> Decimal:
    """P(X = outcome) for the discrete Gaussian, normalised by direct summation."""
    with decimal.localcontext(_CONTEXT):
        total = _gaussian_total(variance_parameter)
        return _gaussian_weight(outcome, variance_parameter) / total


def lower_tail(pmf: Callable[[int], Decimal], outcome: int, mode: int = 0) -> Decimal:
    """P(X ≤ outcome), summed term by term.

    Args:
        pmf: Probability of an outcome; unimodal.
        outcome: Last outcome to count.
        mode: The most likely outcome, where terms begin to fall.
    """
    with decimal.localcontext(_CONTEXT):
        total = Decimal(0)
        while True:
            term = pmf(outcome)
            total += term
            outcome -= 1
            if outcome < mode and term < _NEGLIGIBLE:
                return total


@functools.lru_cache(maxsize=16)
def _gaussian_total(variance_parameter: Fraction) -> Decimal:
    """Sum of all weights of a discrete Gaussian."""
    total = _gaussian_weight(0, variance_parameter)
    k = 1
    while (weight := _gaussian_weight(k, variance_parameter)) > _NEGLIGIBLE:
        total += 2 * weight
        k += 1
    return total


def _gaussian_weight(outcome: int, variance_parameter: Fraction) -> Decimal:
    return (-_decimal(Fraction(outcome * outcome) / (2 * variance_parameter))).exp()


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)
