"""Exact draws, one after the other, from a stream of pseudorandom bits.

* Integers and Bernoulli draws are exact: they compare bits with a rational number.
* A `Draws` reads its stream once, from the beginning, so that one seed and one label
  give the same draws again.
* Floats are uniform on a grid of 2^-53. Properties of functions of them hold in real
  arithmetic; a caller that needs exactness uses Bernoulli draws and integers.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.samplers import BitSource, WideDiscreteGaussian, discrete_gaussian_sampler

_READ_BYTES: Final = 256
_BERNOULLI_BITS: Final = 64
# Standard deviation 2^40: the directions of such integer vectors are 2^-40 apart.
_DIRECTION_VARIANCE: Final = Fraction(1 << 80)


class Draws:
    """Draws from one seed.

    Args:
        seed: 32 secret bytes.
        label: What the draws are for, as for `BitSource`.
    """

    __slots__ = ("_buffer", "_label", "_offset", "_seed", "_source")

    def __init__(self, seed: bytes, label: bytes) -> None:
        self._source = BitSource(seed, label)
        self._seed = seed
        self._label = label
        self._offset = 0
        self._buffer = b""

    def __repr__(self) -> str:
        return f"Draws(seed=<redacted>, label={self._label!r})"

    def below(self, bound: int) -> int:
        """Return a uniform integer in [0, bound), by rejection; bound at least 1."""
        bits = (bound - 1).bit_length()
        while True:
            candidate = self._read_bits(bits)
            if candidate < bound:
                return candidate

    def bernoulli(self, probability: Fraction) -> bool:
        """Return True with exactly the given probability, in [0, 1].

        It compares binary digits of a uniform number with those of the probability
        until they differ.
        """
        rest = probability
        while True:
            rest *= 1 << _BERNOULLI_BITS
            digits = math.floor(rest)
            drawn = self._read_bits(_BERNOULLI_BITS)
            if drawn != digits:
                return drawn < digits
            rest -= digits
            if not rest:
                return False

    def uniform(self) -> float:
        """Return a float, uniform on the midpoints of 2^53 cells of (0, 1)."""
        return (self._read_bits(53) + 0.5) * 2.0**-53

    def normal(self) -> float:
        """Return a standard normal number, by Box and Muller's transform."""
        radius = math.sqrt(-2.0 * math.log(self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def fair_successes(self, tosses: int) -> int:
        """Return the number of successes in so many fair trials, exactly."""
        return self._read_bits(tosses).bit_count()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return uniform words of 64 bits, shape (count,)."""
        return np.frombuffer(self._read_bytes(8 * count), dtype="<u8").astype(np.uint64)

    def subset(self, size: int, among: int) -> NDArray[np.bool_]:
        """Return the indicator of a uniformly random subset.

        The subset holds the smallest of independent keys. If the keys tie at its edge,
        it is drawn again, which treats all subsets alike.

        Args:
            size: Members, in [0, among].
            among: Length of the indicator.

        Returns:
            Booleans of shape (among,), `size` of them true.
        """
        while True:
            keys = self.words(among)
            if size in {0, among}:
                return np.full(among, size > 0)
            edge = np.partition(keys, size - 1)[size - 1]
            chosen: NDArray[np.bool_] = keys <= edge
            if int(np.count_nonzero(chosen)) == size:
                return chosen

    def directions(self, count: int) -> NDArray[np.float64]:
        """Return wide discrete Gaussian numbers, for a direction; call it once.

        Args:
            count: How many.

        Returns:
            Integers of standard deviation 2^40, exact as floats, shape (count,). Their
            direction is uniform but for the grid.
        """
        drawn = np.zeros(count, np.int64)
        _direction_sampler().add_to(drawn, self._seed, self._label + b"/direction")
        return drawn.astype(np.float64)

    def _read_bits(self, count: int) -> int:
        """Return the next bytes as an integer of so many bits; discard the rest."""
        taken = int.from_bytes(self._read_bytes(-(-count // 8)), "little")
        return taken & ((1 << count) - 1)

    def _read_bytes(self, size: int) -> bytes:
        """Return the next bytes of the source."""
        if len(self._buffer) < size:
            fresh = self._source.bytes_at(self._offset, _READ_BYTES + size)
            self._offset += len(fresh)
            self._buffer += fresh
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


@lru_cache(maxsize=1)
def _direction_sampler() -> WideDiscreteGaussian:
    made = discrete_gaussian_sampler(_DIRECTION_VARIANCE)
    if not isinstance(made, WideDiscreteGaussian):
        raise TypeError("the sampler of directions draws blocks")
    return made
