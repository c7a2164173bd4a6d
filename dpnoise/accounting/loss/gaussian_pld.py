"""Loss distributions of Gaussian noise, sampled or not, composed under one transform.

* The curve of one release is the analytic one at the points where it is connected;
  between them the chord errs upwards.
* A release that is provably as private as a Gaussian enters as that Gaussian. The
  module that holds the proof (`skellam_gdp`) passes the `GaussianEvent`.
* One release under one selection has a closed form (`conversion`), not a curve.
* Replace-one adjacency doubles the sensitivity; the base class then counts no
  sampling.

It does not decide which releases are as private as a Gaussian.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Self, TypeAlias

import numpy as np

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.conversion import epsilon_before, epsilon_behind
from dpnoise.accounting.gaussian import gaussian_delta, gaussian_epsilon, mills_ratio
from dpnoise.accounting.loss.composed_loss import (
    DELTA_FLOOR,
    TRANSFORM_ASSUMPTION,
    ComposedLoss,
)
from dpnoise.accounting.loss.dominating_pair import LOSS_ERROR, DominatingPair
from dpnoise.accounting.statement import Proof, Status
from dpnoise.errors import ParameterError
from dpnoise.events import (
    Adjacency,
    Adversary,
    GaussianEvent,
    NoiseEvent,
    Repeated,
    SecretlySelected,
)
from dpnoise.floats import FloatArray
from dpnoise.searches import halve

_POINT_SPACING: Final = 1.5e-3  # in deviations of the loss: 4·10^-7 of its variance
_TAIL_DEVIATIONS: Final = 9.5  # delta there is below 10^-20
_LARGEST_LOSS: Final = 600.0  # e^600 is a float; a larger loss means no protection
_RELATIVE_VARIANCE: Final = 4e-6
_SHARED_VARIANCE: Final = 4e-5  # what rounded shifts cost, once more
_SHARED_BITS: Final = 14
_ESTIMATE_STEPS: Final = 24
_MOST: Final = 1e3  # a shift that hides nothing
_MARGIN: Final = 2.0**-46
_CONTINUED_FRACTION_FROM: Final = 5.0  # from here 100 terms reach double precision
_CONTINUED_FRACTION_TERMS: Final = 100


@lru_cache(maxsize=32)
def gaussian_pair(noise_multiplier: float) -> DominatingPair:
    """Return a pair that dominates a Gaussian release.

    Args:
        noise_multiplier: Noise standard deviation over L2 sensitivity, above 0.

    Returns:
        The pair, within about 4e-7 of the variance of the loss.

    Source:
        [BW18] Theorem 8 for the curve, [DRV22] for connecting it.
    """
    shift = 1.0 / noise_multiplier
    last = min(0.5 * shift * shift + _TAIL_DEVIATIONS * shift, _LARGEST_LOSS)
    count = max(64, math.ceil(last / (_POINT_SPACING * shift)))
    epsilons = np.linspace(0.0, last, min(count, 1 << 16) + 1)
    curve = _curve(epsilons, shift)
    return DominatingPair.from_curves(epsilons, curve, curve)


def _curve(epsilons: FloatArray, shift: float) -> FloatArray:
    """Evaluate `gaussian_delta` on an array, with the same margins."""
    low = epsilons / shift - 0.5 * shift
    high = epsilons / shift + 0.5 * shift
    central = low <= 0.0  # a few points, where the differences do not cancel
    curve = np.empty_like(epsilons)
    curve[central] = [
        gaussian_delta(float(at), noise_multiplier=1.0 / shift)
        for at in epsilons[central]
    ]
    below, above = _mills_ratios(low[~central]), _mills_ratios(high[~central])
    # e^ε·φ(high) = φ(low), so the exponential factor cancels analytically.
    exponent = -0.5 * low[~central] ** 2 - 0.5 * math.log(2.0 * math.pi)
    gap = below - above + _MARGIN * below
    curve[~central] = np.exp(exponent * (1.0 - _MARGIN)) * gap
    return np.minimum(1.0, curve)


def _mills_ratios(x: FloatArray) -> FloatArray:
    """Return (1 − Φ(x))/φ(x) for x ≥ 0."""
    near = x < _CONTINUED_FRACTION_FROM
    ratios = np.maximum(x, _CONTINUED_FRACTION_FROM)
    base = ratios.copy()
    for numerator in range(_CONTINUED_FRACTION_TERMS, 0, -1):
        ratios = base + numerator / ratios
    ratios = 1.0 / ratios
    ratios[near] = [mills_ratio(float(at)) for at in x[near]]
    return ratios


class ComposedLossAccountant(Accountant):
    """Adds up dominating pairs of sampled releases; subclasses say which.

    Args:
        adversary: The adversary that the answer must hold against.
        adjacency: Which neighbouring inputs must look alike.
    """

    _relative_variance: float = _RELATIVE_VARIANCE

    def _begin(self) -> None:
        self._counts: dict[tuple[NoiseEvent, float], int] = {}
        self._sums: tuple[ComposedLoss, ComposedLoss] | None = None

    def _pair_of(self, release: NoiseEvent) -> DominatingPair | None:
        """Return the pair of one release, None if it does not depend on the user."""
        raise self._refuse(release)

    def _check(self, release: NoiseEvent) -> None:
        """Refuse a release that has no pair."""
        self._pair_of(release)

    def _parts(self) -> list[tuple[DominatingPair, int]]:
        """Return what is composed: pairs, and how often each of them is released."""
        return [
            (pair.sampled(rate), count)
            for (release, rate), count in self._counts.items()
            if (pair := self._pair_of(release)) is not None
        ]

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        self._check(release)
        key = (release, sampling_rate)
        self._counts[key] = self._counts.get(key, 0) + count
        self._sums = None

    def _loss_sums(self) -> tuple[ComposedLoss, ComposedLoss]:
        """Build the sums of losses in both directions, once."""
        if self._sums is None:
            parts = self._parts()
            back = [(pair.reversed, count) for pair, count in parts]
            share = self._relative_variance
            self._sums = (
                ComposedLoss(parts, relative_variance=share),
                ComposedLoss(back, relative_variance=share),
            )
        return self._sums

    @property
    def _is_without_loss(self) -> bool:
        return all(self._pair_of(release) is None for release, _ in self._counts)

    def _only_pair(self) -> DominatingPair | None:
        """Return the pair if there is but one: it needs no grid and no transform."""
        if sum(self._counts.values()) > 1:
            return None
        parts = self._parts()
        return parts[0][0] if [count for _, count in parts] == [1] else None

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        if self._is_without_loss:
            return 0.0
        only = self._only_pair()
        if only is None:
            return max(each.delta(epsilon) for each in self._loss_sums())
        loss = max(0.0, epsilon - LOSS_ERROR)
        both = max(only.delta(loss), only.reversed.delta(loss))
        return min(1.0, max(both, DELTA_FLOOR))

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        if self._is_without_loss:
            return 0.0
        if delta < DELTA_FLOOR:
            raise ParameterError(
                f"{self.name} quotes no epsilon for delta below {DELTA_FLOOR:g}, "
                f"got {delta:g} after the charges for inexact noise; choose a larger "
                "delta or a Rényi accountant",
                parameter="delta",
                value=delta,
                nearest=repr(2.0 * DELTA_FLOOR),  # leaves room for the charges
            )
        only = self._only_pair()
        if only is None:
            return max(each.epsilon(delta) for each in self._loss_sums())
        return max(only.epsilon(delta), only.reversed.epsilon(delta))

    def _details(self) -> Mapping[str, str]:
        return MappingProxyType(
            {
                "relative_variance_added_by_grid": repr(self._relative_variance),
                "delta_floor": repr(DELTA_FLOOR),
            }
        )


class GaussianPLDAccountant(ComposedLossAccountant):
    """Composes Gaussian releases, sampled or not.

    Source:
        [ZDW22] Theorem 10: products of dominating pairs dominate adaptive
        compositions; `dominating_pair` has the argument.
    """

    name = "gaussian-pld"
    adjacencies = frozenset(Adjacency)
    status_of_theorem = Status.CERTIFIED
    proof_of_theorem = Proof.PUBLISHED

    def _pair_of(self, release: NoiseEvent) -> DominatingPair | None:
        multiplier = self._multiplier_of(release)
        return None if math.isinf(multiplier) else gaussian_pair(multiplier)

    def _check(self, release: NoiseEvent) -> None:
        self._multiplier_of(release)

    @property
    def _is_without_loss(self) -> bool:
        """Whether no release shows anything, for which no pair is built."""
        return all(math.isinf(self._multiplier_of(each)) for each, _ in self._counts)

    def _multiplier_of(self, release: NoiseEvent) -> float:
        """Return the noise multiplier of a Gaussian release, rounded down."""
        if not isinstance(release, GaussianEvent):
            raise self._refuse(release)
        factor = self.adjacency.sensitivity_factor
        sensitivity = factor * release.l2_sensitivity
        if sensitivity == 0.0:
            return math.inf
        # The margin covers the square root and the quotient. It exceeds that of
        # `skellam_gdp`, which states the same of a plain Gaussian and costs less.
        return math.sqrt(release.noise_variance) / sensitivity * (1.0 - _MARGIN)

    def _single_selection(self) -> tuple[float, float] | None:
        """Return noise multiplier and rate of the only release, if there is but one."""
        if sum(self._counts.values()) != 1:
            return None
        ((release, rate),) = self._counts
        return self._multiplier_of(release), rate

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        if self._is_without_loss or (only := self._single_selection()) is None:
            return super()._delta_of_exact_noise(epsilon)
        multiplier, rate = only
        behind = epsilon_behind(epsilon, rate)
        found = rate * gaussian_delta(behind, noise_multiplier=multiplier)
        return math.nextafter(found, 1.0)

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        if (only := self._single_selection()) is None:
            return super()._epsilon_of_exact_noise(delta)
        multiplier, rate = only
        if delta >= rate:
            return 0.0
        behind = gaussian_epsilon(delta / rate, noise_multiplier=multiplier)
        return epsilon_before(behind, rate)

    def _assumptions(self) -> tuple[str, ...]:
        return (TRANSFORM_ASSUMPTION,)


@dataclass(frozen=True, slots=True)
class SampledGaussians:
    """Gaussian releases under selections that provably dominate other releases.

    Several calibrations, on other grids and by other bounds, end at the same few
    Gaussians. So shifts are rounded up to 14 significant bits, which costs at most
    0.013 % of noise variance, and answers are cached for later calls.

    Args:
        parts: Gaussian shift, rate and number of the releases, the shift as D/σ.
    """

    parts: tuple[tuple[float, float, int], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[float, float, int]]) -> Self:
        """Round the shifts of the releases; skip a shift of 0, which costs nothing."""
        given = [part for part in parts if part[0] > 0.0]
        if sum(count for *_, count in given) > 1:
            given = [(_rounded_up(shift), rate, count) for shift, rate, count in given]
        return cls(tuple(given))

    def delta(self, epsilon: float) -> float:
        """Bound delta at epsilon ≥ 0."""
        return _selected_delta(self.parts, epsilon)

    def epsilon(self, delta: float) -> float:
        """Bound epsilon at delta in (0, 1)."""
        return _selected_epsilon(self.parts, delta)

    def estimate(self, epsilon: float) -> float:
        """Guess delta within a factor of a few: no bound, but free.

        Source:
            [BDL20] section 3, recalled, for many releases; `conversion` for few.
        """
        squared, largest = 0.0, DELTA_FLOOR
        for shift, rate, count in self.parts:
            exponent = min(shift * shift, _LARGEST_LOSS)
            squared += count * rate * rate * math.expm1(exponent)
            behind = epsilon_behind(epsilon, rate)
            multiplier = 1.0 / min(shift, _MOST)
            one = rate * gaussian_delta(behind, noise_multiplier=multiplier)
            largest = max(largest, one)
        if squared > 0.0:
            multiplier = 1.0 / math.sqrt(squared)
            largest = max(largest, gaussian_delta(epsilon, noise_multiplier=multiplier))
        return largest

    def estimate_loss(self, delta: float) -> float:
        """Guess epsilon, likewise."""

        def is_enough(epsilon: float) -> bool:
            return self.estimate(epsilon) <= delta

        return halve(is_enough, 0.0, _LARGEST_LOSS, steps=_ESTIMATE_STEPS)[1]


class _SharedAccountant(GaussianPLDAccountant):
    """Composes on a grid as coarse as the shifts are rounded."""

    _relative_variance = _SHARED_VARIANCE


_Parts: TypeAlias = tuple[tuple[float, float, int], ...]


@lru_cache(maxsize=256)
def _selected_delta(parts: _Parts, epsilon: float) -> float:
    return _compose_losses(parts).delta(epsilon)


@lru_cache(maxsize=256)
def _selected_epsilon(parts: _Parts, delta: float) -> float:
    return _compose_losses(parts).epsilon(delta)


@lru_cache(maxsize=4)
def _compose_losses(parts: _Parts) -> GaussianPLDAccountant:
    """Compose Gaussians under selection."""
    # The account that these releases come from has checked that selections are secret.
    account = _SharedAccountant(adversary=Adversary.SERVER)
    for shift, rate, count in parts:
        one = GaussianEvent(1, 1.0, min(shift, _MOST))
        account.compose(Repeated(SecretlySelected(one, Fraction(rate)), count))
    return account


def _rounded_up(shift: float) -> float:
    mantissa, exponent = math.frexp(min(shift, _MOST))
    return math.ldexp(math.ceil(mantissa * 2**_SHARED_BITS), exponent - _SHARED_BITS)
