"""The Rényi accountant of stochastically rounded vectors.

* A vector of squared norm at most C and coordinates at most X costs at most
  κ·min(C, d·X²) at every order, with κ from `mixture_divergence`. No special clip, no
  condition on orders, no L1 norm.
* The publication's own clip bounds the plain squared norm too, since x² + f − f² is at
  least x²; its releases are covered with C = c and X = Δ∞.
* Skellam, discrete and continuous Gaussian releases compose along.

It claims zero-out adjacency only: the theorem compares a rounded vector with zeros.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpnoise.accounting.renyi.accountant import RenyiAccountant
from dpnoise.accounting.renyi.concentrated import gaussian_curve
from dpnoise.accounting.renyi.curve import RenyiCurve
from dpnoise.accounting.renyi.mixture_divergence import mixture_divergence_per_square
from dpnoise.accounting.renyi.skellam_rdp import exact_skellam_curve
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import (
    Adjacency,
    DiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.floats import ROUNDING_MARGIN, FloatArray, float_below


@dataclass(frozen=True, slots=True)
class ExactMixtureCurve(RenyiCurve):
    """The divergence of the worst rounded vector within an L2 ball and a cube.

    Args:
        squared_norm: Bound on the squared norm before rounding, grid steps squared.
        linf_bound: Bound on the absolute coordinates before rounding, grid steps.
        noise_variance: Variance per coordinate, grid steps squared, above 0.
    """

    squared_norm: float
    linf_bound: float
    noise_variance: float

    @property
    def closed_form(self) -> bool:
        """Every value is a search over coordinates."""
        return False

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence in both directions.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,).
        """
        if self.squared_norm == 0.0:
            return np.zeros_like(orders)
        per_square = [
            mixture_divergence_per_square(
                float(order),
                linf_bound=self.linf_bound,
                noise_variance=self.noise_variance,
            )
            for order in orders
        ]
        return np.array(per_square) * (self.squared_norm * ROUNDING_MARGIN)


class MixtureRDPAccountant(RenyiAccountant):
    """Exact Rényi divergence of the Skellam mixture under a plain L2 clip.

    Source:
        This project; proof in `mixture_divergence`, behind a coin in `subsampling`.
    """

    name: ClassVar[str] = "mixture-rdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        if isinstance(release, SkellamEvent):
            return exact_skellam_curve(release, self.adjacency)
        if isinstance(release, SkellamMixtureEvent):
            squared_norm = release.l2_clip_squared_steps
        elif isinstance(release, SkellamMixtureClippedEvent):
            squared_norm = release.mixture_norm_bound
        else:
            raise self._refuse(release, alternative="ddgauss-paper for its own noise")
        return ExactMixtureCurve(
            squared_norm=min(squared_norm, release.dim * float(release.linf_bound) ** 2)
            * ROUNDING_MARGIN,
            # A coordinate is no longer than its vector.
            linf_bound=min(
                float(release.linf_bound), math.sqrt(squared_norm) * ROUNDING_MARGIN
            ),
            noise_variance=float_below(release.aggregate_noise_variance),
        )

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "Every scaled vector obeys the stated L2 bound before rounding.",
            "Every scaled coordinate obeys the stated bound before rounding.",
        )
