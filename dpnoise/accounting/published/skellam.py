"""The Skellam mechanism's accountant as published.

It applies Corollary 3.6 of [Aga21] literally, with the amplification of its authors.
The formulas are in `renyi.skellam_rdp`, because exact accountants use them as a
fallback too.
"""

from dataclasses import dataclass
from typing import ClassVar

from dpnoise.accounting.renyi.accountant import RenyiAccountant, RenyiCurve
from dpnoise.accounting.renyi.skellam_rdp import sensitivities_of, vector_bound
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import Adjacency, NoiseEvent, SkellamEvent
from dpnoise.floats import FloatArray, float_below


@dataclass(frozen=True, slots=True)
class PublishedSkellamCurve(RenyiCurve):
    """Corollary 3.6 of [Aga21] as a curve.

    Args:
        l2_sensitivity: Bound on the L2 norm of the difference, grid steps.
        l1_sensitivity: Bound on the L1 norm of the difference, grid steps.
        noise_variance: Variance per coordinate, grid steps squared, above 0.
    """

    integer_orders: ClassVar[bool] = True
    """The theorem is proven for integer orders."""

    mirrored: ClassVar[bool] = True
    """Reflecting every coordinate at half its shift swaps the two worlds."""

    l2_sensitivity: float
    l1_sensitivity: float
    noise_variance: float

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence; see `vector_bound`."""
        return vector_bound(
            orders,
            l2_sensitivity=self.l2_sensitivity,
            l1_sensitivity=self.l1_sensitivity,
            noise_variance=self.noise_variance,
        )


class SkellamPaperAccountant(RenyiAccountant):
    """The Skellam bound of [Aga21], Corollary 3.6, with its generic amplification."""

    name = "skellam-paper"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    proof_of_theorem: ClassVar[Proof] = Proof.PUBLISHED
    sampling_moment_factor: ClassVar[float] = 3.0

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if not isinstance(release, SkellamEvent):
            return super()._curve(release)
        l1_sensitivity, l2_sensitivity = sensitivities_of(release, self.adjacency)
        return PublishedSkellamCurve(
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=l1_sensitivity,
            noise_variance=float_below(release.aggregate_noise_variance),
        )

    def _assumptions(self) -> tuple[str, ...]:
        return ("Every rounded vector obeys the stated L2 bound.",)
