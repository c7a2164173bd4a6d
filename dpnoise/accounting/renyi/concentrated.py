"""Gaussian noise, continuous and discrete: zero-concentrated privacy.

The curve of such a release is a straight line through the origin, in any dimension and
for every order, so every Rényi accountant admits it beside its own releases.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpnoise.accounting.renyi.accountant import RenyiAccountant
from dpnoise.accounting.renyi.curve import RenyiCurve
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    DiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below


@dataclass(frozen=True, slots=True)
class ConcentratedCurve(RenyiCurve):
    """A release with zero-concentrated privacy: divergence αρ at every order α.

    Args:
        rho: The parameter ρ, at least 0.
    """

    rho: float

    @property
    def mirrored(self) -> bool:
        """Symmetric noise, so that a reflection swaps the two worlds."""
        return True

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            αρ in nats, shape (n,).

        Source:
            [BS16] Definition 1.1; [CKS20] Theorem 4 for the discrete Gaussian.
        """
        return orders * (self.rho * ROUNDING_MARGIN)


def gaussian_curve(
    release: GaussianEvent | DiscreteGaussianEvent, adjacency: Adjacency
) -> ConcentratedCurve:
    """Return the curve of a continuous or discrete Gaussian release.

    Args:
        release: One release.
        adjacency: Which two worlds must look alike.

    Returns:
        The curve αρ with ρ = D²/(2σ²).

    Source:
        [BS16] Proposition 1.6 for the continuous, [CKS20] Theorem 4 for the discrete
        Gaussian in any dimension.
    """
    difference = adjacency.sensitivity_factor * release.l2_sensitivity
    variance = release.noise_variance
    if not isinstance(variance, float | int):
        variance = float_below(variance)
    return ConcentratedCurve(rho=difference * difference / (2.0 * variance))


class ZCDPAccountant(RenyiAccountant):
    """Zero-concentrated privacy of continuous and discrete Gaussian noise.

    A composition of unsampled releases is ρ-zCDP with the sum of their parameters;
    `rho` reports it. The conversion minimises over a dense ladder of real orders.
    """

    name = "zcdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    proof_of_theorem: ClassVar[Proof] = Proof.PUBLISHED

    @property
    def rho(self) -> float:
        """The zCDP parameter of everything composed so far; infinite if sampled."""
        if any(rate < 1.0 for _, rate in self._terms):
            # A sampled Gaussian is not zero-concentrated: its curve explodes.
            return math.inf
        return (
            math.fsum(
                count * gaussian_curve(release, self.adjacency).rho
                for (release, _), count in self._terms.items()
                if isinstance(release, GaussianEvent | DiscreteGaussianEvent)
            )
            * ROUNDING_MARGIN
        )

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        raise self._refuse(release)
