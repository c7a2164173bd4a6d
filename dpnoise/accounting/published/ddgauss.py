"""Rényi bounds of discrete Gaussian noise, central and as a sum of shares.

* The variance *parameter* of a discrete Gaussian is not its variance. Bounds use the
  parameter.
* A sum of discrete Gaussians is not a discrete Gaussian. One term per coordinate bounds
  the divergence between the two; it is large for small local noise.

It holds no composition and no conversion.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpnoise.accounting.renyi.accountant import RenyiAccountant, RenyiCurve
from dpnoise.accounting.renyi.skellam_rdp import sensitivities_of
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import Adjacency, DistributedDiscreteGaussianEvent, NoiseEvent
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below

_NEGLIGIBLE_EXPONENT = 800.0  # e^-800 vanishes in double precision


def sum_divergence_term(*, num_noise_shares: int, local_noise_variance: float) -> float:
    """Bound how far a sum of discrete Gaussians is from one discrete Gaussian.

    Args:
        num_noise_shares: Number n of independent shares, at least 1.
        local_noise_variance: Variance parameter of one share, grid steps squared.

    Returns:
        10·Σ_{k=1}^{n−1} exp(−2π²·variance·k/(k+1)), rounded upwards; 0 if n = 1.

    Source:
        [KLS21], the term τ of its bound for sums; `SOURCES.md` says what was read.
    """
    if num_noise_shares == 1:
        return 0.0
    # The exponent grows with k. Beyond the first few thousand shares it is constant
    # to within 1/k, so the rest is bounded by its smallest exponent.
    exponent = 2.0 * math.pi**2 * local_noise_variance
    if 0.5 * exponent > _NEGLIGIBLE_EXPONENT:
        return 0.0
    explicit = min(num_noise_shares - 1, 4096)
    total = math.fsum(math.exp(-exponent * k / (k + 1)) for k in range(1, explicit + 1))
    rest = num_noise_shares - 1 - explicit
    if rest > 0:
        total += rest * math.exp(-exponent * (explicit + 1) / (explicit + 2))
    return 10.0 * total * ROUNDING_MARGIN


@dataclass(frozen=True, slots=True)
class DistributedGaussianCurve(RenyiCurve):
    """The sum of discrete Gaussian shares.

    Args:
        dim: Number of coordinates, at least 1.
        num_noise_shares: Counted number of shares, at least 1.
        local_noise_variance: Variance parameter of one share, grid steps squared.
        l2_sensitivity: Bound on the L2 norm of the difference, grid steps.
        l1_sensitivity: Bound on the L1 norm of the difference, grid steps.
    """

    mirrored: ClassVar[bool] = True
    """Symmetric noise, so that a reflection swaps the two worlds."""

    dim: int
    num_noise_shares: int
    local_noise_variance: float
    l2_sensitivity: float
    l1_sensitivity: float

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence by the smallest of three expressions.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,).

        Source:
            [KLS21], the bound for sums in several dimensions; see `SOURCES.md`.
        """
        stddev = math.sqrt(self.num_noise_shares * self.local_noise_variance)
        # Notation of [KLS21]: Δ2/σ, Δ1/σ and τ.
        s2, s1 = self.l2_sensitivity / stddev, self.l1_sensitivity / stddev
        term = sum_divergence_term(
            num_noise_shares=self.num_noise_shares,
            local_noise_variance=self.local_noise_variance,
        )
        halves = 0.5 * orders
        best = halves * min(
            s2 * s2 + 2.0 * s1 * term + term * term * self.dim,
            (s2 + math.sqrt(self.dim) * term) ** 2,
        )
        first = halves * s2 * s2 + term * self.dim
        best[first < best] = first[first < best]
        return best * ROUNDING_MARGIN


class DDGaussPaperAccountant(RenyiAccountant):
    """The distributed discrete Gaussian bound of [KLS21] for sums."""

    name = "ddgauss-paper"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    proof_of_theorem: ClassVar[Proof] = Proof.PUBLISHED
    sampling_moment_factor: ClassVar[float] = 3.0

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if not isinstance(release, DistributedDiscreteGaussianEvent):
            return super()._curve(release)
        l1_sensitivity, l2_sensitivity = sensitivities_of(release, self.adjacency)
        return DistributedGaussianCurve(
            dim=release.dim,
            num_noise_shares=release.num_noise_shares,
            local_noise_variance=float_below(release.local_noise_variance),
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=l1_sensitivity,
        )

    def _assumptions(self) -> tuple[str, ...]:
        return ("Every rounded vector obeys the stated L2 bound.",)
