"""What one release costs one person whose distance is known.

For a person at distance r, s = r²/(2·stddev²), and sampling at rate q,

    λ·D_(λ+1)(mixture‖base) = log E_(k ~ Binomial(λ + 1, q)) exp((k² − k)·s),

exactly. Source: [TF19] Theorem 3, its left cost; its right cost bounds the other
direction from far above, and the left one is never smaller than that direction itself
([MTZ19]; laws with Gaussian noise are mirrored, see `renyi.subsampling`).
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from dpnoise.errors import InputError, ParameterError
from dpnoise.floats import FloatArray


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """Gaussian noise on a sum, and how often one person's part is in it.

    Args:
        noise_stddev: Of every coordinate of the sum, all noise together, in the unit of
            the distances.
        sampling_rate: q in (0, 1]. Less than 1 is true only where neither the noise nor
            anything else shows who is in, and only for readers of the sum.

    Raises:
        ParameterError: A number is out of range.
    """

    noise_stddev: float
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.noise_stddev < math.inf:
            raise ParameterError(
                f"noise_stddev must be greater than 0, got {self.noise_stddev!r}",
                parameter="noise_stddev",
                value=self.noise_stddev,
            )
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ParameterError(
                f"sampling_rate must lie in (0, 1], got {self.sampling_rate!r}",
                parameter="sampling_rate",
                value=self.sampling_rate,
            )

    @classmethod
    def of_shares(
        cls, share_stddev: float, honest_shares: int, *, sampling_rate: float = 1.0
    ) -> Self:
        """Count noise that clients have added for their own instances once more.

        [TF19] section V-C: noise that protects instances at every client protects
        clients in the sum, with the noise of all honest survivors together.

        Args:
            share_stddev: Of one client's noise.
            honest_shares: Clients whose noise no party can subtract, without the client
                at stake.
            sampling_rate: As for the class.
        """
        if honest_shares < 1:
            raise ParameterError(
                f"honest_shares must be at least 1, got {honest_shares!r}",
                parameter="honest_shares",
                value=honest_shares,
                nearest="1",
            )
        return cls(share_stddev * math.sqrt(honest_shares), sampling_rate)

    def costs(self, orders: tuple[int, ...], distances: FloatArray) -> FloatArray:
        """Return λ·D_(λ+1) for every order and person.

        Args:
            orders: Orders λ, whole numbers of at least 1.
            distances: How far each person moves the sum, shape (people,), at least 0.

        Returns:
            Nats, shape (orders, people).

        Raises:
            InputError: A distance is negative or not finite.
        """
        if distances.ndim != 1 or distances.size == 0:
            raise InputError("distances must be a vector with at least one entry")
        if not np.all(np.isfinite(distances) & (distances >= 0.0)):
            raise InputError("distances are finite and at least 0")
        squares = (distances / self.noise_stddev) ** 2 / 2.0
        return np.stack([self._cost(order, squares) for order in orders])

    def _cost(self, order: int, squares: FloatArray) -> FloatArray:
        if self.sampling_rate == 1.0:
            return np.asarray(order * (order + 1) * squares)
        hits = np.arange(order + 2, dtype=np.float64)
        logs = np.array(
            [
                math.log(math.comb(order + 1, k))
                + k * math.log(self.sampling_rate)
                + (order + 1 - k) * math.log1p(-self.sampling_rate)
                for k in range(order + 2)
            ]
        )
        terms = logs[:, None] + (hits * (hits - 1.0))[:, None] * squares[None, :]
        peak = terms.max(axis=0)
        return np.asarray(
            np.maximum(peak + np.log(np.exp(terms - peak).sum(axis=0)), 0.0)
        )
