"""What a mechanism asks of a sampler, and how near to its law every draw must be."""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

DISTANCE_PER_DRAW: Final = 2.0**-120
"""Charged per draw of distributed noise; every sampler is nearer than this to its law,
whichever variance the roster of a session asks for."""


class NoiseSource(Protocol):
    """What a mechanism asks of a sampler; `InversionTable` is the exact one."""

    @property
    def digest(self) -> bytes:
        """32 bytes that identify the law and how it is sampled."""

    @property
    def distance_bound(self) -> float:
        """Total variation distance of one draw from the law."""

    def add_to(
        self, vector: NDArray[np.int64], seed: bytes, label: bytes, *, start: int = 0
    ) -> None:
        """Add one draw to every entry, in place."""
