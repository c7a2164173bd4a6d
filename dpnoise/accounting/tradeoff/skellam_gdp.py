"""Gaussian differential privacy of integer noise: the default for integer vectors.

* With M from `unit_shift`, a release of an integer vector of L2 sensitivity D is as
  private as a Gaussian with noise multiplier 1/(D·M), in any dimension.
* Gaussian shifts of adaptive releases combine by the root of the sum of squares.
* Sampled or selected releases are handed to the loss-distribution accountant as
  selected Gaussian ones, since dominating pairs survive both and composition.
* What a certificate does not cover is charged to delta for every coordinate that may
  differ: an integer vector of norm D has at most D² entries other than zero.

Mixtures are refused: their privacy is not that of integer shifts.

For noise shares other than Skellam the theorem is the same. Symmetric log-concave noise
hides an integer vector of L2 norm D as a Gaussian of noise multiplier 1/(D·M) does.

* For sums of discrete Gaussians and for binomial noise M is bounded in `log_concave`.
* The noise of a sum of discrete Gaussians depends on the number of shares. An event
  states one number of shares; for many rosters, state the worst number.

Nothing is said about shares so narrow that their sum is not smooth.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from dpnoise.accounting.accountant import Accountant, GaussianLoss
from dpnoise.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpnoise.accounting.loss.gaussian_pld import GaussianPLDAccountant, SampledGaussians
from dpnoise.accounting.statement import Proof, Status, weakest
from dpnoise.accounting.tradeoff.log_concave import (
    binomial_shift,
    discrete_gaussian_sum_shift,
)
from dpnoise.accounting.tradeoff.unit_shift import (
    ShiftBound,
    discrete_gaussian_shift,
    skellam_shift,
)
from dpnoise.events import (
    Adjacency,
    BinomialEvent,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    SkellamEvent,
)

ShiftedRelease: TypeAlias = (
    SkellamEvent
    | DiscreteGaussianEvent
    | DistributedDiscreteGaussianEvent
    | BinomialEvent
    | GaussianEvent
)
"""Releases that some Gaussian release dominates."""

_MARGIN: Final = 1.0 + 2.0**-48
_LEAST_VARIANCE: Final = 2.0**-20


@dataclass(frozen=True, slots=True)
class GaussianEquivalent:
    """A Gaussian release that is at most as private as the release it replaces.

    Args:
        noise_multiplier: Noise standard deviation over L2 sensitivity; infinite for a
            release that does not depend on the user.
        distance: Total variation distance of each of the two laws that must be charged
            to delta as well, sampler distance not included.
        method: Name of the bound.
    """

    noise_multiplier: float
    distance: float
    method: str


def gaussian_equivalent(
    release: ShiftedRelease,
    *,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> GaussianEquivalent:
    """Find a Gaussian release that dominates a release.

    Args:
        release: One release.
        adjacency: Which neighbouring inputs must look alike.

    Returns:
        The equivalent, which any accountant for Gaussians may consume.

    Raises:
        CertificateError: A certificate failed; a defect.
    """
    factor = adjacency.sensitivity_factor
    if isinstance(release, SkellamEvent) and release.unsigned:
        # ‖x − y‖² = ‖x‖² + ‖y‖² − 2x·y, and x·y is at least 0.
        factor = math.sqrt(factor)
    sensitivity = factor * release.l2_sensitivity * _MARGIN
    if isinstance(release, GaussianEvent):
        if sensitivity == 0.0:
            return GaussianEquivalent(math.inf, 0.0, "Gaussian")
        stddev = math.sqrt(release.noise_variance)
        return GaussianEquivalent(stddev / (sensitivity * _MARGIN), 0.0, "Gaussian")
    # Integer vectors shorter than one step are zero.
    nonzero_entries = min(release.dim, math.floor(sensitivity * sensitivity))
    if nonzero_entries == 0:
        return GaussianEquivalent(math.inf, 0.0, "zero vector")
    bound = _unit_bound(release, sensitivity, adjacency)
    return GaussianEquivalent(
        noise_multiplier=1.0 / (sensitivity * bound.unit_gdp * _MARGIN),
        distance=nonzero_entries * bound.tail * _MARGIN,
        method=bound.method,
    )


def _unit_bound(
    release: SkellamEvent
    | DiscreteGaussianEvent
    | DistributedDiscreteGaussianEvent
    | BinomialEvent,
    sensitivity: float,
    adjacency: Adjacency,
) -> ShiftBound:
    """Bound the shift that one grid step of a release costs."""
    if isinstance(release, SkellamEvent):
        return _skellam_bound(release, sensitivity, adjacency)
    if isinstance(release, BinomialEvent):
        return binomial_shift(release.num_trials)
    if isinstance(release, DiscreteGaussianEvent):
        unit = discrete_gaussian_shift(release.noise_variance)
    else:
        unit = discrete_gaussian_sum_shift(
            release.num_noise_shares, release.local_noise_variance
        )
    return ShiftBound(unit, 0.0, "closed form")


def _skellam_bound(
    release: SkellamEvent, sensitivity: float, adjacency: Adjacency
) -> ShiftBound:
    """Bound the shift of Skellam noise for the largest entry of a release."""
    largest = math.floor(sensitivity)
    if release.linf_sensitivity is not None:
        # Two entries that are at least 0 differ by no more than the larger.
        factor = 1 if release.unsigned else round(adjacency.sensitivity_factor)
        largest = min(largest, factor * release.linf_sensitivity)
    variance = release.aggregate_noise_variance
    if variance >= _LEAST_VARIANCE:
        return skellam_shift(variance, linf_sensitivity=max(1, largest))
    return ShiftBound(math.inf, 0.0, "none: the noise is too small")


class SkellamGDPAccountant(Accountant):
    """Adds up squared Gaussian shifts of Skellam, discrete and plain Gaussian noise.

    Source:
        This project; proof in `unit_shift`. Products and adaptive composition of
        Gaussian shifts are [DRS22]'s, the conversion to (ε, δ) is [BW18] Theorem 8.
    """

    name = "skellam-gdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN
    covers: ClassVar[tuple[type[NoiseEvent], ...]] = (
        SkellamEvent,
        DiscreteGaussianEvent,
        GaussianEvent,
    )

    def _begin(self) -> None:
        self._equivalents: dict[NoiseEvent, GaussianEquivalent] = {}
        self._terms: dict[tuple[NoiseEvent, float], int] = {}

    @property
    def _status_of_theorems(self) -> Status:
        """Certified, or weaker if releases under selections are composed so."""
        if not self._is_sampled:
            return self.status_of_theorem
        return weakest(
            (self.status_of_theorem, GaussianPLDAccountant.status_of_theorem)
        )

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of one Gaussian release as private as all of them.

        Sampled releases count as if they were not sampled. Infinite for an empty
        account, 0 where nothing is guaranteed.
        """
        squared_shift = 0.0
        for (release, _), count in self._terms.items():
            multiplier = self._equivalents[release].noise_multiplier
            if multiplier == 0.0:
                return 0.0
            squared_shift += count * _MARGIN / (multiplier * multiplier)
        if squared_shift == 0.0:
            return math.inf
        return 1.0 / (math.sqrt(squared_shift * _MARGIN) * _MARGIN)

    def gaussian_loss(self, delta: float) -> GaussianLoss | None:  # noqa: ARG002 - the same for all
        """Return the one release that dominates all; None under a selection."""
        multiplier = self.noise_multiplier
        if self._is_sampled or multiplier == 0.0:
            return None
        return GaussianLoss(_MARGIN / multiplier, self._distance)

    @property
    def _is_sampled(self) -> bool:
        return any(rate < 1.0 for _, rate in self._terms)

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        if not isinstance(release, self.covers) or not isinstance(
            release, ShiftedRelease
        ):
            raise self._refuse(release)
        if release not in self._equivalents:
            self._equivalents[release] = gaussian_equivalent(
                release, adjacency=self.adjacency
            )
        self._add_distance(count * self._equivalents[release].distance)
        key = (release, sampling_rate)
        self._terms[key] = self._terms.get(key, 0) + count

    @property
    def _selected(self) -> SampledGaussians:
        """The account as Gaussian releases under selections."""
        return SampledGaussians.of(
            (_MARGIN / self._equivalents[release].noise_multiplier, rate, count)
            # Whether a rate may be claimed was decided when the release was added.
            for (release, rate), count in self._terms.items()
        )

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        multiplier = self.noise_multiplier
        if multiplier == 0.0:
            return 1.0
        if self._is_sampled:
            return self._selected.delta(epsilon)
        return gaussian_delta(epsilon, noise_multiplier=multiplier)

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        multiplier = self.noise_multiplier
        if multiplier == 0.0:
            return math.inf
        if self._is_sampled:
            return self._selected.epsilon(delta)
        return gaussian_epsilon(delta, noise_multiplier=multiplier)

    def _assumptions(self) -> tuple[str, ...]:
        return ("Every rounded vector obeys the stated L2 bound.",)

    def _details(self) -> Mapping[str, str]:
        methods = sorted({found.method for found in self._equivalents.values()})
        multiplier = self.noise_multiplier
        return MappingProxyType(
            {
                "unit_shift_bound": ", ".join(methods) or "none",
                "gaussian_noise_multiplier_unsampled": repr(multiplier),
            }
        )


class LogConcaveGDPAccountant(SkellamGDPAccountant):
    """Adds up squared Gaussian shifts of discrete Gaussian and binomial shares.

    Source:
        This project; proofs in `unit_shift` and `log_concave`.
    """

    name = "log-concave-gdp"
    proof_of_theorem: ClassVar[Proof] = Proof.OWN
    covers: ClassVar[tuple[type[NoiseEvent], ...]] = (
        DistributedDiscreteGaussianEvent,
        BinomialEvent,
        DiscreteGaussianEvent,
        GaussianEvent,
    )
