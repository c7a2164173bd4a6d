"""Exact loss distributions of integer vectors in few coordinates.

A dominating Gaussian is wasteful for integer noise in few coordinates: the loss of one
counter is a lattice, not a Gaussian. Here the atoms themselves are composed
(`lattice_pair`), so the figure is the release's own loss but for the grid of the
transform.

* Entries that differ by at most one: the release has the product of k unit shifts, and
  T releases have k·T of them.
* Larger entries: the envelope over all multisets of entries, up to a squared norm of
  32. For one release it is exact; for several it may be a little above.
* A sampled release is the *product* of its coordinates' pairs, then sampled, then
  composed: one selection covers all coordinates of a release.
* Replace-one doubles every bound. Vectors without negative entries differ by less: the
  largest entry stays, the squared norm and the sum double.

It serves variances up to 2^20 only; beyond, `skellam-gdp` says the same for nothing.
"""

import functools
import math
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from dpnoise.accounting.loss.composed_loss import TRANSFORM_ASSUMPTION
from dpnoise.accounting.loss.dominating_pair import DominatingPair
from dpnoise.accounting.loss.gaussian_pld import ComposedLossAccountant
from dpnoise.accounting.loss.lattice_pair import (
    LARGEST_VARIANCE,
    IntegerLaw,
    ShiftBounds,
    envelope_pair,
    power_pair,
    shift_pair,
)
from dpnoise.accounting.statement import Proof, Status
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adjacency,
    BinomialEvent,
    DiscreteGaussianEvent,
    NoiseEvent,
    SkellamEvent,
)

_Release: TypeAlias = SkellamEvent | DiscreteGaussianEvent | BinomialEvent

# Cells, measured: a product of equal pairs and its transforms; where entries may exceed
# one, a product for each of up to 31 multisets. Both have grids of bounded length.
_PRODUCT_COST: Final = 2e8
_ENVELOPE_COST: Final = 8e8
_NEXT_ENTRY: Final = 2.0

_ROUNDED_NORM: Final = 1 + Fraction(1, 1 << 40)
"""A float that was meant for √D² may be a digit short."""


def _shift_bounds(release: _Release, adjacency: Adjacency) -> ShiftBounds:
    """Say which integer vectors two worlds may differ by.

    Args:
        release: One release.
        adjacency: Which neighbouring inputs must look alike.

    Returns:
        The bounds, as exact integers.
    """
    exact = release.l2_squared if isinstance(release, SkellamEvent) else None
    if exact is None:
        exact = math.floor(Fraction(release.l2_sensitivity) ** 2 * _ROUNDED_NORM)
    largest, total = math.isqrt(exact), release.dim * math.isqrt(exact)
    if not isinstance(release, DiscreteGaussianEvent):
        if release.linf_sensitivity is not None:
            largest = min(largest, release.linf_sensitivity)
        if release.l1_sensitivity is not None:
            total = math.floor(Fraction(release.l1_sensitivity) * _ROUNDED_NORM)
    if adjacency is Adjacency.REPLACE_ONE:
        total *= 2
        if isinstance(release, SkellamEvent) and release.unsigned:
            # ‖x − y‖² = ‖x‖² + ‖y‖² − 2x·y, and x·y is at least 0.
            exact *= 2
        else:
            exact, largest = 4 * exact, 2 * largest
    return ShiftBounds(
        dim=release.dim, squared_norm=exact, total=total, largest=largest
    )


class LatticePLDAccountant(ComposedLossAccountant):
    """Composes Skellam, discrete Gaussian and binomial noise on integers, exactly.

    Source:
        This project for the pairs; [ZDW22] Theorems 10 and 11 for composition and
        sampling, with the arguments in `dominating_pair`.
    """

    name = "lattice-pld"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN
    # The loss has few atoms, and a finer grid cuts closer to them.
    _relative_variance = 2.5e-7

    @classmethod
    def cost(
        cls,
        release: NoiseEvent,
        *,
        times: int,  # noqa: ARG003 - one table serves all
        delta: float,  # noqa: ARG003 - one table serves all
        rate: float,  # noqa: ARG003 - one table serves all
    ) -> float:
        """Say what the atoms cost; a larger release is refused."""
        if not isinstance(release, _Release):
            return 0.0
        largest = release.l2_sensitivity
        if not isinstance(release, DiscreteGaussianEvent):
            largest = min(largest, release.linf_sensitivity or largest)
        return _PRODUCT_COST if largest < _NEXT_ENTRY else _ENVELOPE_COST

    def _pair_of(self, release: NoiseEvent) -> DominatingPair | None:
        factors = self._factors(release)
        return None if factors is None else factors[0]

    def _parts(self) -> list[tuple[DominatingPair, int]]:
        """Keep products apart where no selection joins them, which needs no grid."""
        parts: list[tuple[DominatingPair, int]] = []
        for (release, rate), count in self._counts.items():
            factors = self._factors(release)
            if factors is None:
                continue
            pair, copies = factors
            if rate == 1.0:
                parts.append((pair, copies * count))
            else:
                parts.append((power_pair(pair, copies).sampled(rate), count))
        return parts

    def _factors(self, release: NoiseEvent) -> tuple[DominatingPair, int] | None:
        """Return a pair, and how many of it make one release; None if it is empty."""
        if not isinstance(release, _Release):
            raise self._refuse(release)
        bounds = _shift_bounds(release, self.adjacency)
        if bounds.ones == 0 or bounds.largest == 0:
            return None
        law = _law_of(release)
        if bounds.longest_entry == 1:
            return shift_pair(law, 1), bounds.ones
        return _envelope(law, bounds), 1

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "Clients enforce the bounds on their integer vectors exactly.",
            TRANSFORM_ASSUMPTION,
        )

    def _details(self) -> Mapping[str, str]:
        worst = max(
            (
                _shift_bounds(release, self.adjacency).squared_norm
                for release, _ in self._counts
                if isinstance(release, _Release)
            ),
            default=0,
        )
        return MappingProxyType(
            {**super()._details(), "largest_squared_shift": str(worst)}
        )


@functools.lru_cache(maxsize=32)
def _envelope(law: IntegerLaw, bounds: ShiftBounds) -> DominatingPair:
    return envelope_pair(law, bounds)


def _law_of(release: _Release) -> IntegerLaw:
    """Name the law of a release, or refuse a width that is not tabulated."""
    if isinstance(release, SkellamEvent):
        law = IntegerLaw("skellam", release.aggregate_noise_variance)
        variance = law.parameter
    elif isinstance(release, DiscreteGaussianEvent):
        law = IntegerLaw("discrete-gaussian", release.noise_variance)
        variance = law.parameter
    else:
        # An odd number of trials makes half steps. Counting one less is sound: it
        # counts less noise.
        law = IntegerLaw("binomial", Fraction(release.num_trials // 2 * 2))
        variance = law.parameter / 4
    if variance > LARGEST_VARIANCE:
        raise TheoremNotApplicableError(
            f"lattice-pld tabulates noise up to a variance of {LARGEST_VARIANCE}, got "
            f"{float(variance):.6g}; name no accountant, a closed form loses nothing "
            "there",
            theorem="rule 5",
            parameter="noise_variance",
            value=float(variance),
            nearest=str(LARGEST_VARIANCE),
        )
    return law
