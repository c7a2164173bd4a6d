"""The discrete Gaussian for noise too wide for a table: blocks, then rejection.

    W = 2^b;  τ = σ²/W²                                          # τ in [2^22, 2^24)
    repeat for attempt = 0, 1, ...:
        m        from the table of P(m) ∝ exp(−m²/(2τ)), m ≥ 0   # which block
        r        uniform in [0, W)                               # where in the block
        negative a fair bit
        k = W·m + r
        keep with probability e^(−x), x = r·(2·W·m + r)/(2σ²)
        reject if negative and k = 0                             # zero has one sign
    return −k if negative else k

A kept k has weight exp(−(Wm)²/(2σ²))·e^(−x) = exp(−k²/(2σ²)): the law, exactly. Nearly
all first attempts are kept, because a block is at most 1/2048 of σ.

Rule 1: The law is that of `discrete_gaussian_table`. The table holds what a table can;
        this class serves larger variances, such as those of sums with 16 fractional
        bits.
Rule 2: Attempt a of coordinate i reads fixed positions of streams that have a in their
        label. So draws do not depend on chunks or platforms.
Rule 3: A decision compares 64 bits of a uniform number with a float estimate of e^(−x)
        whose error is below 2^-50. Within 2^-45 of it, 256 bits are compared with the
        floor of 2^256·e^(−x), found in exact arithmetic. Floats decide only where they
        cannot be wrong, so the samples do not depend on them.
Rule 4: Distance: a candidate and its decision differ from the exact ones by the table's
        distance and by the rounding of e^(−x), 2^-256. Conditioning on being kept,
        which has a chance above 1/4, makes that at most eight times as large.

What this class does not do: it is not constant-time; see `inversion_table`.
"""

import functools
import hashlib
import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import CertificateError
from dpnoise.samplers.bit_source import BitSource
from dpnoise.samplers.discrete_gaussian import (
    MAX_VARIANCE_PARAMETER,
    MIN_VARIANCE_PARAMETER,
    discrete_gaussian_table,
    gaussian_weights,
)
from dpnoise.samplers.inversion_table import InversionTable, require_coordinates
from dpnoise.samplers.parameters import CACHED_TABLES, exact_parameter
from dpnoise.samplers.tail_bounds import CDF_BITS, OneSide, Weights, exp_enclosure

MAX_WIDE_VARIANCE_PARAMETER: Final = Fraction(1 << 100)
"""Standard deviation 2^50: draws stay below 2^54, where sums of 256 fit int64."""

_LEAST_BLOCKS_SQUARED: Final = 4  # σ²/W²: blocks of at most σ/2
_BLOCK: Final = 1 << 15
_BLOCKS_PER_STDDEV_BITS: Final = 11
_BAND: Final = 2.0**-45
_DIGEST_DOMAIN: Final = b"dpnoise/v1/wide-discrete-gaussian"
_PRECISIONS: Final = (CDF_BITS + 64, CDF_BITS + 256, CDF_BITS + 1024)


def discrete_gaussian_sampler(
    variance_parameter: Fraction | int,
) -> "InversionTable | WideDiscreteGaussian":
    """Build, or fetch, the sampler of a discrete Gaussian of any supported width.

    Args:
        variance_parameter: σ² in P(X = k) ∝ exp(−k²/(2σ²)), in grid steps squared: an
            exact rational in [1/64, 2^100].

    Returns:
        The table up to σ² = 2^28, the block sampler beyond. Both offer `draw`,
        `add_to`, `variance`, `distance_bound` and `digest`.

    Raises:
        ParameterError: Not a rational number, or out of range.

    Source:
        The law is that of [CKS20] Definition 1; the sampler is ours.

    Checked by:
        tests/unit/dpnoise/samplers/test_wide_discrete_gaussian.py
    """
    exact = exact_parameter(
        "variance_parameter",
        variance_parameter,
        MIN_VARIANCE_PARAMETER,
        MAX_WIDE_VARIANCE_PARAMETER,
    )
    if exact <= MAX_VARIANCE_PARAMETER:
        return discrete_gaussian_table(exact)
    return _build(exact)


@functools.lru_cache(maxsize=CACHED_TABLES)
def _build(variance_parameter: Fraction) -> "WideDiscreteGaussian":
    """Return the sampler, with blocks as wide as the variance allows."""
    # 4^b ≤ σ²/2^22 < 4^(b+1): at least 2^11 blocks make up one standard deviation.
    ratio = math.floor(variance_parameter) >> (2 * _BLOCKS_PER_STDDEV_BITS)
    return WideDiscreteGaussian.with_blocks(
        variance_parameter, (ratio.bit_length() - 1) // 2
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WideDiscreteGaussian:
    """The block sampler of one variance; see the module.

    Attributes:
        variance_parameter: σ².
        block_bits: b, the logarithm of the block size.
        distance_bound: Upper bound of the total variation distance per draw.
        digest: 32 bytes that identify the law and how it is sampled.
    """

    variance_parameter: Fraction
    block_bits: int
    distance_bound: float
    digest: bytes
    _blocks: InversionTable = field(repr=False)

    @classmethod
    def with_blocks(
        cls, variance_parameter: Fraction, block_bits: int
    ) -> "WideDiscreteGaussian":
        """Build the sampler with blocks of size 2^block_bits.

        The law is right for every block size; how often a draw is rejected depends
        on it. Callers want `discrete_gaussian_sampler`, which chooses it.

        Args:
            variance_parameter: σ², at least four squared block sizes.
            block_bits: b ≥ 0.

        Raises:
            CertificateError: The block size is above σ/2.
        """
        coarse = variance_parameter / (1 << (2 * block_bits))
        if coarse < _LEAST_BLOCKS_SQUARED:
            # Rule 4 counts on it: P(x rejects) ≤ E[x] ≤ W·E[Wm]/σ² + W²/(2σ²), which is
            # at most 5/8 for W ≤ σ/2, since E[Wm] ≤ σ; zero adds less than 1/8.
            raise CertificateError("blocks must be at most half a standard deviation")
        blocks = InversionTable.from_law(
            "half-discrete-gaussian",
            (coarse,),
            functools.partial(_half_weights, coarse),
            variance=None,
        )
        state = hashlib.sha256(_DIGEST_DOMAIN)
        state.update(block_bits.to_bytes(8, "big"))
        state.update(blocks.digest)
        return cls(
            variance_parameter=variance_parameter,
            block_bits=block_bits,
            distance_bound=math.nextafter(8.0 * blocks.distance_bound, math.inf),
            digest=state.digest(),
            _blocks=blocks,
        )

    def __repr__(self) -> str:
        return f"WideDiscreteGaussian({float(self.variance_parameter):.6g})"

    @property
    def variance(self) -> Fraction:
        """σ². The variance differs from it by a factor of 1 + e^(−19σ²) at most."""
        return self.variance_parameter

    def draw(
        self, seed: bytes, label: bytes, count: int, *, start: int = 0
    ) -> npt.NDArray[np.int64]:
        """Draw independent samples; see `InversionTable.draw`.

        Args:
            seed: 32 bytes.
            label: What the draws are for, 1 to 200 bytes.
            count: Number of samples, at least 0.
            start: First coordinate.

        Returns:
            Samples, shape (count,).

        Raises:
            ParameterError: Bad seed, label or range.
        """
        require_coordinates(start, count)
        samples = np.empty(count, np.int64)
        attempts = [_Attempt(seed, label, 0)]
        for low in range(0, count, _BLOCK):
            part = samples[low : low + _BLOCK]
            self._fill(part, seed, label, start + low, attempts)
        return samples

    def add_to(
        self,
        vector: npt.NDArray[np.int64],
        seed: bytes,
        label: bytes,
        *,
        start: int = 0,
    ) -> None:
        """Add the samples of coordinates `start` onwards to `vector`, in place.

        Args:
            vector: Integers, shape (count,).
            seed: See `draw`.
            label: See `draw`.
            start: First coordinate.

        Raises:
            ParameterError: Bad seed, label or range.
        """
        for low in range(0, vector.size, _BLOCK):
            part = vector[low : low + _BLOCK]
            part += self.draw(seed, label, part.size, start=start + low)

    def _fill(
        self,
        samples: npt.NDArray[np.int64],
        seed: bytes,
        label: bytes,
        start: int,
        attempts: list["_Attempt"],
    ) -> None:
        """Fill one block; coordinates that are rejected try again one by one."""
        samples[:], kept = self._try(attempts[0], start, samples.size)
        for index in np.flatnonzero(~kept).tolist():
            for number in itertools.count(1):
                if number == len(attempts):
                    attempts.append(_Attempt(seed, label, number))
                sample, again = self._try(attempts[number], start + index, 1)
                if again[0]:
                    samples[index] = sample[0]
                    break

    def _try(
        self, attempt: "_Attempt", start: int, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """One attempt at a range of coordinates: candidates, and which are kept."""
        block = np.empty(count, np.int64)
        self._blocks.fill_from(attempt.cells, attempt.refinement, block, start=start)
        words = attempt.words.uint64(2 * start, 2 * count).reshape(count, 2)
        negative = (words[:, 0] >> np.uint64(63)).astype(np.bool_)
        inside = words[:, 0] & np.uint64((1 << self.block_bits) - 1)
        offset = inside.astype(np.int64)
        corner = block << np.int64(self.block_bits)
        # Integers below 2^54 become floats with a relative error of 2^-53 at most, so x
        # is off by 2^-50 of itself. As x·e^(−x) < 1, the probability is off by as much.
        exponent = offset.astype(np.float64) * (2.0 * corner + offset)
        exponent /= 2.0 * float(self.variance_parameter)
        probability = np.exp(-exponent)
        uniform = words[:, 1].astype(np.float64) * 2.0**-64
        kept = uniform < probability
        for index in np.flatnonzero(np.abs(uniform - probability) < _BAND).tolist():
            kept[index] = self._decide(
                int(corner[index]),
                int(offset[index]),
                int(words[index, 1]),
                attempt.further.uint64(3 * (start + index), 3),
            )
        candidate = corner + offset
        kept &= ~(negative & (candidate == 0))
        return np.where(negative, -candidate, candidate), kept

    def _decide(
        self, corner: int, offset: int, word: int, further: npt.NDArray[np.uint64]
    ) -> bool:
        """Whether a 256-bit uniform number lies below ⌊2^256·e^(−x)⌋."""
        uniform = word
        for part in further.tolist():
            uniform = (uniform << 64) | part
        exponent = Fraction(offset * (2 * corner + offset)) / (
            2 * self.variance_parameter
        )
        if exponent == 0:
            return True
        for precision in _PRECISIONS:
            lower, upper = exp_enclosure(exponent, precision)
            spare = precision - CDF_BITS
            if lower >> spare == upper >> spare:
                return uniform < lower >> spare
        raise CertificateError(
            f"an acceptance probability is undecided at {_PRECISIONS[-1]} bits; "
            "this is a defect of dpnoise, please report it"
        )


class _Attempt:
    """The streams of one attempt."""

    def __init__(self, seed: bytes, label: bytes, number: int) -> None:
        prefix = label + b"/attempt " + str(number).encode()
        self.cells = BitSource(seed, prefix + b"/cells")
        self.refinement = BitSource(seed, prefix + b"/refinement")
        self.words = BitSource(seed, prefix + b"/words")
        self.further = BitSource(seed, prefix + b"/further")


def _half_weights(variance_parameter: Fraction, precision: int) -> Weights:
    """The weights of a discrete Gaussian from zero upwards only."""
    whole = gaussian_weights(variance_parameter, precision)
    return Weights(
        whole.centre,
        whole.centre_lower,
        whole.centre_upper,
        whole.right,
        OneSide([], [], 0),
    )
