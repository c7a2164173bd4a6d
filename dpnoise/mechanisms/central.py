"""Mechanisms whose noise one trusted party adds to the sum."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.wrapping import Residues, wrap
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.seeds import NOISE_LABEL, check_seed


class CentralMechanism(Mechanism):
    """A mechanism whose noise one trusted party adds to the sum.

    Its noise protects against readers of what that party releases, never against the
    party itself, so `encode` adds none. Whoever demands noise from clients must
    refuse a mechanism with `noise_is_central`.
    """

    noise_is_central: ClassVar[bool] = True

    def add_noise(
        self, modular_sum: NDArray[np.unsignedinteger], *, private_seed: bytes
    ) -> Residues:
        """Add the noise to a sum, once, before anything is released.

        Args:
            modular_sum: Sum of encoded vectors modulo m, shape `(encoded_dim,)`.
            private_seed: 32 secret bytes of the party that adds the noise, fresh.

        Returns:
            The noisy sum modulo m. Release this and keep the argument out of logs
            and storage.

        Raises:
            InputError: As for `decode`.
        """
        check_seed("private_seed", private_seed)
        steps = self._centred(modular_sum)
        source = self.sampler(self.counted_noise_variance)
        source.add_to(steps, private_seed, NOISE_LABEL)
        return wrap(steps, self.modulus)
