"""Gaussian differential privacy of rounded vectors: a closed form for every size.

* The theorem is in `rounded_shift`: a Gaussian shift, and a distance that is charged to
  delta. Where outputs are clamped trades one for the other; every place is valid, and
  the least statement over a ladder of places is made.
* Gaussian shifts of adaptive releases combine by the root of the sum of squares.
  Integer vectors and Gaussians come along as in `skellam-gdp`.
* Sampled releases are handed to the loss-distribution accountant as Gaussians. Each
  world's law is then a mixture of the two clamped ones, so the charge stays.
* It takes milliseconds whatever the dimension, the noise and the grid. A share of
  about 7/√v of the noise is the price; fine grids do not notice it, coarse ones do.

It says nothing about variances below 4.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import ClassVar, Final

from dpnoise.accounting.accountant import MAX_EPSILON, Accountant, GaussianLoss
from dpnoise.accounting.gaussian import gaussian_delta
from dpnoise.accounting.loss.gaussian_pld import GaussianPLDAccountant, SampledGaussians
from dpnoise.accounting.statement import MIXTURE_ASSUMPTIONS, Proof, Status, weakest
from dpnoise.accounting.tradeoff.rounded_shift import (
    REACHES,
    RoundedShift,
    rounded_shift,
)
from dpnoise.accounting.tradeoff.skellam_gdp import gaussian_equivalent
from dpnoise.events import (
    Adjacency,
    DiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.searches import halve

_MARGIN: Final = 1.0 + 2.0**-48
_LARGEST_EXPONENT: Final = 700.0
_SAMPLED_SHARE: Final = 0.01  # of delta that the charge of a sampled account may take
_FIRST_SHARE: Final = 1e-9
_PLACES_TRIED: Final = 3
_EXPECTED: Final = 4.0  # times an estimated δ, for which one more place gains nothing
_EXPECTED_LOSS: Final = math.log(_EXPECTED)
_GAIN: Final = 1e-4  # a point with a smaller expected gain of epsilon is not tried
_FARTHEST: Final = 2.0  # times a shift, beyond which no δ is estimated from its own
_WORTHWHILE: Final = 1e-9  # a smaller gain in epsilon is not searched for
_BISECTION_STEPS: Final = 60

_Mixture = SkellamMixtureEvent | SkellamMixtureClippedEvent
_Shifted = SkellamEvent | DiscreteGaussianEvent | GaussianEvent


class MixtureGDPAccountant(Accountant):
    """Adds up squared Gaussian shifts of rounded vectors and of integer vectors.

    Source:
        This project; proof in `rounded_shift`.
    """

    name = "mixture-gdp"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN

    def _begin(self) -> None:
        self._mixtures: dict[tuple[_Mixture, float], int] = {}
        self._others: dict[tuple[_Shifted, float], int] = {}
        self._sums: tuple[RoundedShift, ...] | None = None

    @property
    def _status_of_theorems(self) -> Status:
        """Certified, or weaker if releases under selections are composed so."""
        if not self._is_sampled:
            return self.status_of_theorem
        return weakest(
            (self.status_of_theorem, GaussianPLDAccountant.status_of_theorem)
        )

    @property
    def _is_sampled(self) -> bool:
        return any(rate < 1.0 for _, rate in (*self._mixtures, *self._others))

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        if isinstance(release, _Mixture):
            mixture = release, sampling_rate
            self._mixtures[mixture] = self._mixtures.get(mixture, 0) + count
        elif isinstance(release, _Shifted):
            shifted = release, sampling_rate
            self._others[shifted] = self._others.get(shifted, 0) + count
            self._add_distance(count * gaussian_equivalent(release).distance)
        else:
            raise self._refuse(release)
        self._sums = None

    def gaussian_loss(self, delta: float) -> GaussianLoss | None:
        """Return the release of the place to clamp that is best at a delta.

        None under a selection, and where no clamping point gives a bound.
        """
        if self._is_sampled:
            return None
        ladder = self._ladder()
        best = min(ladder, key=lambda each: _least_epsilon((each,), delta))
        if math.isinf(best.gaussian_shift):
            return None
        distance = best.distance + self._distance
        return GaussianLoss(best.gaussian_shift * _MARGIN, distance * _MARGIN)

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        if not self._is_sampled:
            return min(_charged_delta(each, epsilon) for each in self._ladder())
        if not self._has_shift:
            return 1.0
        # Where to clamp follows from δ itself, which is first estimated.
        best, worlds, place, found = 1.0, _cost(epsilon), 0, 1.0
        expected = self._selected(self._nearest_clamp(_FIRST_SHARE / worlds)).estimate(
            epsilon
        )
        for _ in range(_PLACES_TRIED):
            place = self._nearest_clamp(_SAMPLED_SHARE * expected / worlds)
            found = self._selected(place).delta(epsilon)
            best = min(best, found + worlds * self._ladder()[place].distance)
            if expected <= _EXPECTED * found <= _EXPECTED**2 * expected:
                break
            expected = found
        for _ in range(_PLACES_TRIED):
            better = self._guess_point(found, worlds, at=place)
            if better == place:
                break
            place, found = better, self._selected(better).delta(epsilon)
            best = min(best, found + worlds * self._ladder()[place].distance)
        return best

    def _guess_point(self, found: float, worlds: float, *, at: int) -> int:
        """Guess where clamping costs the least δ, from what is found at one place."""
        now = self._ladder()[at]
        if now.gaussian_shift == 0.0:
            return at
        digits = self._twice_log_ratio(found)
        place, least = at, found + worlds * now.distance
        least *= 1.0 - _GAIN * digits
        for other, each in enumerate(self._ladder()):
            ratio = each.gaussian_shift / now.gaussian_shift
            if 0.0 < ratio < _FARTHEST:
                factor = math.exp(min(digits * math.log(ratio), _LARGEST_EXPONENT))
                guess = found * factor + worlds * each.distance
                if guess < least:
                    place, least = other, guess
        return place

    def _twice_log_ratio(self, delta: float) -> float:
        """Return 2·log(q/δ) with q the largest rate, at least 1.

        It estimates d log δ/d log μ of a Gaussian of shift μ, which is about (ε/μ)².
        """
        rate = max(rate for _, rate in (*self._mixtures, *self._others))
        return max(1.0, 2.0 * math.log(rate / delta))

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        if not self._is_sampled:
            return _least_epsilon(self._ladder(), delta)
        if not self._has_shift:
            return math.inf
        best, at, kept = math.inf, 0, (1.0 - _SAMPLED_SHARE) * delta
        expected = self._selected(
            self._nearest_clamp(_FIRST_SHARE * delta)
        ).estimate_loss(kept)
        for _ in range(_PLACES_TRIED):
            place = self._nearest_clamp(0.9 * _SAMPLED_SHARE * delta / _cost(expected))
            found = self._selected(place).epsilon(kept)
            charge = _cost(found) * self._ladder()[place].distance
            if charge <= _SAMPLED_SHARE * delta:
                if found < best:
                    best, at = found, place
                if found >= expected - _EXPECTED_LOSS:
                    break
            expected = found
        # Coarse grids may be worth more of δ. What an epsilon found so far costs at
        # another place is enough for whatever is less than that epsilon.
        for _ in range(_PLACES_TRIED):
            place = self._better_point(best, delta, at=at, kept=kept)
            left = delta - _cost(best) * self._ladder()[place].distance
            if place == at or (found := self._selected(place).epsilon(left)) >= best:
                break
            best, at, kept = found, place, left
        return best

    @property
    def _has_shift(self) -> bool:
        """Whether any place to clamp bounds the loss: noise may be too little."""
        return any(math.isfinite(each.gaussian_shift) for each in self._ladder())

    def _better_point(self, loss: float, delta: float, *, at: int, kept: float) -> int:
        """Guess where clamping costs the least epsilon, no more than a loss."""
        digits = self._twice_log_ratio(delta)
        now, worlds = self._ladder()[at].gaussian_shift, _cost(loss)
        place, most = at, _GAIN
        for other, each in enumerate(self._ladder()):
            left = delta - worlds * each.distance
            if left > 0.0 and 0.0 < each.gaussian_shift < now:
                gain = math.log(now / each.gaussian_shift)
                gain -= math.log(kept / left) / digits
                if gain > most:
                    place, most = other, gain
        return place

    def _nearest_clamp(self, limit: float) -> int:
        """Return the nearest place to clamp whose distance is within a limit."""
        for place, each in enumerate(self._ladder()):
            if each.distance <= limit and math.isfinite(each.gaussian_shift):
                return place
        return len(REACHES) - 1

    def _ladder(self) -> tuple[RoundedShift, ...]:
        """Sum squared shifts and distances, for every place to clamp."""
        if self._sums is None:
            squared_others = sum(
                count / gaussian_equivalent(release).noise_multiplier ** 2
                if gaussian_equivalent(release).noise_multiplier > 0.0
                else math.inf
                for (release, _), count in self._others.items()
            )
            self._sums = tuple(
                self._sum_shifts(reach, squared_others * _MARGIN) for reach in REACHES
            )
        return self._sums

    def _sum_shifts(self, reach: float, squared_shift: float) -> RoundedShift:
        """Sum the shifts and the distances of all releases at one clamp."""
        distance = 0.0
        for (release, _), count in self._mixtures.items():
            once = rounded_shift(release, reach)
            squared_shift += count * once.gaussian_shift**2 * _MARGIN
            distance += count * once.distance * _MARGIN
        return RoundedShift(math.sqrt(squared_shift * _MARGIN) * _MARGIN, distance)

    def _selected(self, place: int) -> SampledGaussians:
        """The account as Gaussian releases under selections, clamped at one point."""
        parts = []
        for (release, rate), count in (*self._mixtures.items(), *self._others.items()):
            if isinstance(release, _Mixture):
                shift = rounded_shift(release, REACHES[place]).gaussian_shift
            else:
                shift = 1.0 / gaussian_equivalent(release).noise_multiplier
            # Whether a rate may be claimed was decided when it was added.
            parts.append((shift * _MARGIN, rate, count))
        return SampledGaussians.of(parts)

    def _assumptions(self) -> tuple[str, ...]:
        return MIXTURE_ASSUMPTIONS

    def _details(self) -> Mapping[str, str]:
        nearest = self._ladder()[0].gaussian_shift
        return MappingProxyType({"gaussian_shift_unsampled_at_least": repr(nearest)})


def _cost(epsilon: float) -> float:
    """Return what a distance per world costs: 1 + e^ε."""
    return 1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT))


def _multiplier(shift: float) -> float:
    return math.inf if shift == 0.0 else 1.0 / (shift * _MARGIN)


def _charged_delta(bound: RoundedShift, epsilon: float) -> float:
    """Return delta of one bound, with its distance charged."""
    if math.isinf(bound.gaussian_shift):
        return 1.0
    exact = gaussian_delta(epsilon, noise_multiplier=_multiplier(bound.gaussian_shift))
    return exact + _cost(epsilon) * bound.distance


def _least_epsilon(ladder: tuple[RoundedShift, ...], delta: float) -> float:
    """Return the least epsilon over all places to clamp."""
    best = math.inf
    for each in ladder:
        if math.isinf(each.gaussian_shift) or 2.0 * each.distance >= delta:
            continue
        if _charged_delta(each, 0.0) <= delta:
            return 0.0
        # The curve is convex in e^ε, since the charge is linear: it falls up to one
        # point, found in floats, and rises beyond. Only below it is searched.
        last = _lowest_point(each)
        worthwhile = min(last, best * (1.0 - _WORTHWHILE))
        if worthwhile > 0.0 and _charged_delta(each, worthwhile) <= delta:
            best = _first_epsilon(each, delta, worthwhile)
    return best


def _lowest_point(bound: RoundedShift) -> float:
    """Return about the ε ≥ 0 where δ_μ falls as fast as the charge rises."""
    if bound.distance == 0.0:
        return MAX_EPSILON  # nothing was clamped, and the curve falls for ever
    normal = NormalDist()
    shift = bound.gaussian_shift
    quantile = normal.inv_cdf(min(bound.distance, 0.5))
    return min(max(0.0, -shift * (quantile + 0.5 * shift)), MAX_EPSILON)


def _first_epsilon(bound: RoundedShift, delta: float, reached: float) -> float:
    """Bisect down from an epsilon at which delta is reached on the falling side."""

    def is_enough(epsilon: float) -> bool:
        return _charged_delta(bound, epsilon) <= delta

    return halve(is_enough, 0.0, reached, steps=_BISECTION_STEPS)[1]
