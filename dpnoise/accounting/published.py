"""Accountants that apply published theorems to the letter.

Numbered rules:

1. Each accountant applies one publication's bound, with all its conditions. Where the
   conditions fail it answers infinity or refuses; it never borrows another theorem.
2. Continuous and discrete Gaussian releases are admitted beside the accountant's own
   releases wherever their curve is a theorem, so that heterogeneous tasks compose.
3. `Adjacency.REPLACE_ONE` doubles every sensitivity. Mixtures have no such statement.

This module deliberately contains no formula; those stand in the `*_bounds` modules.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.discrete_gaussian_bounds import (
    ConcentratedCurve,
    DistributedGaussianCurve,
)
from dpnoise.accounting.mixture_bounds import (
    PublishedMixtureCurve,
    least_noise_variance,
)
from dpnoise.accounting.renyi_accountant import RenyiAccountant
from dpnoise.accounting.renyi_curve import ROUNDING_MARGIN, RenyiCurve, float_below
from dpnoise.accounting.skellam_bounds import (
    PublishedSkellamCurve,
    integer_l1_sensitivity,
)
from dpnoise.accounting.statement import Status
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adjacency,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
)

__all__ = [
    "DDGaussPaperAccountant",
    "SMMPaperAccountant",
    "SkellamPaperAccountant",
    "ZCDPAccountant",
    "gaussian_curve",
    "sensitivity_factor",
]

_BOTH: Final = frozenset({Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE})


def sensitivity_factor(adjacency: Adjacency) -> float:
    """Return how many encoded vectors the two worlds differ by."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


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
    difference = sensitivity_factor(adjacency) * release.l2_sensitivity
    variance = release.noise_variance
    if not isinstance(variance, float | int):
        variance = float_below(variance)
    return ConcentratedCurve(rho=difference * difference / (2.0 * variance))


class SkellamPaperAccountant(RenyiAccountant):
    """The Skellam bound of [Aga21], Corollary 3.6, with its generic amplification."""

    name: ClassVar[str] = "skellam-paper"
    adjacencies: ClassVar[frozenset[Adjacency]] = _BOTH
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    sampling_moment_factor: ClassVar[float] = 3.0

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        if not isinstance(release, SkellamEvent):
            raise self._refuse(release, alternative="mixture-rdp for mixtures")
        factor = sensitivity_factor(self.adjacency)
        l2_sensitivity = factor * release.l2_sensitivity
        l1_sensitivity = integer_l1_sensitivity(
            dim=release.dim, l2_sensitivity=l2_sensitivity
        )
        if release.l1_sensitivity is not None:
            l1_sensitivity = min(l1_sensitivity, factor * release.l1_sensitivity)
        return PublishedSkellamCurve(
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=l1_sensitivity,
            noise_variance=float_below(release.aggregate_noise_variance),
        )

    def _assumptions(self) -> tuple[str, ...]:
        return ("Every rounded vector obeys the stated L2 bound.",)


class SMMPaperAccountant(RenyiAccountant):
    """The Skellam mixture bound of [Bao22], Corollary 1 and Theorem 6.

    The largest coordinate must be an integer bound, and the orders obey Eq. (3). At
    small scale factors that excludes the orders which the published figures use.
    """

    name: ClassVar[str] = "smm-paper"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem: ClassVar[Status] = Status.PROVEN

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        if not isinstance(release, SkellamMixtureClippedEvent):
            raise self._refuse(
                release, alternative="mixture-rdp, or mechanism smm with its own clip"
            )
        return PublishedMixtureCurve(
            mixture_norm_bound=release.mixture_norm_bound,
            linf_bound=release.linf_bound,
            noise_variance=float_below(release.aggregate_noise_variance),
        )

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        curve = self._curve(release)
        # Theorem 6 needs an integer order of at least 2, and without sampling an order
        # below 2 gives an epsilon above log(1/delta), which protects nobody.
        if isinstance(release, SkellamMixtureClippedEvent) and not math.isfinite(
            curve.divergences(np.array([2.0]))[0]
        ):
            least = least_noise_variance(2.0, linf_bound=release.linf_bound)
            raise TheoremNotApplicableError(
                "smm-paper: at order 2 the theorem needs an aggregate noise variance "
                f"of {float(least):.6g} grid steps squared for coordinates up to "
                f"{release.linf_bound}, got "
                f"{float(release.aggregate_noise_variance):.6g}; raise scale_factor "
                "or the noise, or use accountant mixture-rdp",
                theorem="Theorem 5 [Bao22]",
                parameter="aggregate_noise_variance",
                value=str(release.aggregate_noise_variance),
                nearest=str(least),
            )
        super()._add(release, sampling_rate, count)

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "Every scaled vector went through the publication's clip.",
            "Its coordinates were clipped at the stated integer.",
        )


class DDGaussPaperAccountant(RenyiAccountant):
    """The distributed discrete Gaussian bound of [KLS21] for sums."""

    name: ClassVar[str] = "ddgauss-paper"
    adjacencies: ClassVar[frozenset[Adjacency]] = _BOTH
    status_of_theorem: ClassVar[Status] = Status.PROVEN
    sampling_moment_factor: ClassVar[float] = 3.0

    def _curve(self, release: NoiseEvent) -> RenyiCurve:
        if isinstance(release, GaussianEvent | DiscreteGaussianEvent):
            return gaussian_curve(release, self.adjacency)
        if not isinstance(release, DistributedDiscreteGaussianEvent):
            raise self._refuse(release, alternative="skellam-gdp for Skellam noise")
        factor = sensitivity_factor(self.adjacency)
        l2_sensitivity = factor * release.l2_sensitivity
        l1_sensitivity = integer_l1_sensitivity(
            dim=release.dim, l2_sensitivity=l2_sensitivity
        )
        if release.l1_sensitivity is not None:
            l1_sensitivity = min(l1_sensitivity, factor * release.l1_sensitivity)
        return DistributedGaussianCurve(
            dim=release.dim,
            num_noise_shares=release.num_noise_shares,
            local_noise_variance=float_below(release.local_noise_variance),
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=l1_sensitivity,
        )

    def _assumptions(self) -> tuple[str, ...]:
        return ("Every rounded vector obeys the stated L2 bound.",)


class ZCDPAccountant(RenyiAccountant):
    """Zero-concentrated privacy of continuous and discrete Gaussian noise.

    A composition of unsampled releases is ρ-zCDP with the sum of their parameters;
    `rho` reports it. The conversion minimises over a dense ladder of real orders.
    """

    name: ClassVar[str] = "zcdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = _BOTH
    status_of_theorem: ClassVar[Status] = Status.PROVEN

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
        raise self._refuse(release, alternative="skellam-gdp for Skellam noise")
