"""Reproducible randomness: every draw of a run is computed from its seed."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeVar

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes

_Thing = TypeVar("_Thing")
_BLOCK: Final = 4096
_WORD: Final = 1 << 32


def entropy_of(seed: int, label: str) -> SeededEntropy:
    """Return a stream of bytes of its own for each purpose of a run."""
    key = sha256(b"world %d" % seed).digest()
    return SeededEntropy(SecretBytes(key), label.encode())


class Dice:
    """Draws numbers.

    Args:
        seed: Of the run.
        label: Of the purpose; draws for one purpose do not move those of another.
    """

    def __init__(self, seed: int, label: str) -> None:
        self._entropy = entropy_of(seed, f"dice {label}")
        self._words = memoryview(b"").cast("I")
        self._next = 0

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        if self._next == len(self._words):
            self._words = memoryview(self._entropy.token(_BLOCK)).cast("I")
            self._next = 0
        word = self._words[self._next]
        self._next += 1
        return word / _WORD

    def below(self, bound: int) -> int:
        """Return a whole number in [0, bound)."""
        return int(self.uniform() * bound)

    def chance(self, probability: float) -> bool:
        """Return True as often as the probability says; no draw where it is zero."""
        return probability > 0.0 and self.uniform() < probability

    def choice(self, things: Sequence[_Thing]) -> _Thing:
        """Return one of several items."""
        return things[self.below(len(things))]

    def between(self, low: float, high: float) -> float:
        """Return a number between two others."""
        return low + (high - low) * self.uniform()
