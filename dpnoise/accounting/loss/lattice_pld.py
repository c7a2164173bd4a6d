"""Exact loss distributions of integer vectors in few coordinates.

A dominating Gaussian is wasteful for integer noise in few coordinates: the loss of one
counter is a lattice, not a Gaussian. Here the atoms themselves are composed,
so the figure is the release's own loss but for the grid of the
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

Dominating pairs of integer vectors under integer noise, atom by atom.

Notation: q is the law of the noise of one coordinate, symmetric and log-concave, s the
shift between two worlds, D² its exact squared norm.

Rule 1: *One coordinate.* The pair of a shift by s is (q(·−s), q) itself: an atom at
        every integer y, with loss log q(y−s) − log q(y). Reflection at s/2 turns one
        direction into the other.
Rule 2: *Vectors.* Coordinates are independent, so a shift vector has the product of its
        entries' pairs. A zero entry turned into a one is a release of more.
Rule 3: *Entries of at most one.* By rule 2 the worst of all vectors has as many ones as
        the bounds admit, k. The product of k pairs is the release's own.
Rule 4: *Larger entries.* The bounds admit finitely many multisets of absolute entries,
        and by rule 2 those to which no one can be added suffice. Which one is worst
        depends on ε, so a pair is connected through the largest of their curves.
Rule 5: Far outputs count as if they revealed everything: those beyond the tabulated
        integers, or with a loss of more than `_LARGEST_LOSS` nats.
Rule 6: Weights are those of the samplers: enclosures of hundreds of bits, so that
        floats made of them are off by their last digit. Sums that are formed here have
        terms of one sign; `_MARGIN` covers them.

The norm must be an exact integer: the square of a float one digit below √3 would admit
two ones, and claim twenty times less than is lost.

A pair composes no releases and depends on no adjacency.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

import numpy as np

from dpnoise.accounting.loss.composed_loss import TRANSFORM_ASSUMPTION
from dpnoise.accounting.loss.dominating_pair import DominatingPair
from dpnoise.accounting.loss.gaussian_pld import ComposedLossAccountant
from dpnoise.accounting.statement import Proof, Status
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adjacency,
    BinomialEvent,
    DiscreteGaussianEvent,
    NoiseEvent,
    SkellamEvent,
)
from dpnoise.floats import FloatArray
from dpnoise.samplers.binomial import binomial_weights
from dpnoise.samplers.discrete_gaussian import gaussian_weights
from dpnoise.samplers.skellam import skellam_weights
from dpnoise.samplers.tail_bounds import Weights

LARGEST_VARIANCE: Final = Fraction(1 << 20)
"""Beyond, integer noise is a Gaussian to a few parts in a million."""

LARGEST_SQUARED_SHIFT: Final = 32
"""Of vectors with entries above one: 31 multisets, a second at most."""

LARGEST_POWER: Final = 128
"""Coordinates whose pairs are multiplied out, which takes a second."""

_PRECISION: Final = 384
_TAIL: Final = 2.0**-130  # nothing to any delta, however many coordinates and releases
_LARGEST_LOSS: Final = 64.0
"""Keeps logarithms of ratios within 2^-46, which `composed_loss` grants a release."""

_MARGIN: Final = 1.0 + 2.0**-30  # 2^17 products of atoms, each off by a few 2^-53
_GRID_VARIANCE: Final = 1e-5  # of the variance of a loss, added by the grid
# Where noise is so little that losses are long and rare, their variance alone would ask
# for millions of grid points, and products take the square of that.
_LONGEST_REACH: Final = 1 << 12
_NEGLIGIBLE: Final = 1e-30  # mass of one atom that is given away, of 10^5 at most
_CURVE_POINTS: Final = 4000
_IRRELEVANT: Final = 1e-20  # mass beyond the last point of a curve


@dataclass(frozen=True, slots=True)
class IntegerLaw:
    """A symmetric log-concave law on the integers, by name, so that it can be a key.

    Args:
        family: "skellam", "discrete-gaussian" or "binomial".
        parameter: Variance of Skellam noise, variance parameter of a discrete
            Gaussian, number (even) of fair Bernoulli trials of centred binomial noise.
    """

    family: str
    parameter: Fraction


@dataclass(frozen=True, slots=True)
class ShiftBounds:
    """Which integer vectors the difference of two worlds may be.

    Args:
        dim: Number of coordinates.
        squared_norm: Largest squared L2 norm D², exact.
        total: Largest L1 norm.
        largest: Largest absolute entry.
    """

    dim: int
    squared_norm: int
    total: int
    largest: int

    @property
    def longest_entry(self) -> int:
        """Largest absolute entry that any vector has."""
        return min(self.largest, math.isqrt(self.squared_norm), self.total)

    @property
    def ones(self) -> int:
        """Largest number of entries that differ."""
        return min(self.dim, self.squared_norm, self.total)

    def shapes(self) -> Iterator[tuple[int, ...]]:
        """Yield the multisets of absolute entries to which no one can be added.

        Yields:
            Entries above zero, falling.
        """
        pending: list[tuple[tuple[int, ...], int, int]] = [
            ((), self.squared_norm, self.total)
        ]
        while pending:
            entries, squares, total = pending.pop()
            room = self.dim - len(entries)
            yield entries + (1,) * min(room, squares, total)
            if room:
                most = min(self.largest, math.isqrt(squares), total)
                most = min(most, entries[-1]) if entries else most
                pending.extend(
                    ((*entries, entry), squares - entry * entry, total - entry)
                    for entry in range(2, most + 1)
                )


@functools.lru_cache(maxsize=16)
def _masses(law: IntegerLaw) -> tuple[FloatArray, float]:
    """Tabulate a law.

    Returns:
        Probabilities of 0 … W, and a bound on the probability beyond W on one side.
    """
    weights = _weights(law)
    side = weights.right
    scale = weights.centre_lower
    total = 1.0 + 2.0 * math.fsum(weight / scale for weight in side.lower)
    beyond = side.rest / scale / total
    last = len(side.upper)
    while last and beyond + side.upper[last - 1] / scale / total < _TAIL:
        last -= 1
        beyond += side.upper[last] / scale / total
    inner = [scale, *side.upper[:last]]
    masses = np.array([weight / scale / total for weight in inner])
    return masses, beyond * _MARGIN


def _weights(law: IntegerLaw) -> Weights:
    """Return the weights of a law, with their rest."""
    if law.family == "skellam":
        return skellam_weights(law.parameter, _PRECISION)
    if law.family == "discrete-gaussian":
        return gaussian_weights(law.parameter, _PRECISION)
    return binomial_weights(int(law.parameter), _PRECISION)


@functools.lru_cache(maxsize=128)
def shift_pair(law: IntegerLaw, shift: int) -> DominatingPair:
    """Return the pair of one coordinate (rule 1).

    Args:
        law: Of the noise of one coordinate.
        shift: Difference between the two worlds, at least 1.

    Returns:
        The pair (noise + shift, noise), equal to its own reverse.
    """
    masses, tail = _masses(law)
    reach = masses.size - 1
    everywhere = np.concatenate([masses[:0:-1], masses])
    # Outputs y from shift − W to W, which both laws tabulate.
    upper, lower = everywhere[: -shift or None], everywhere[shift:]
    if upper.size == 0 or shift > 2 * reach:
        return _nothing_hidden()
    losses = np.log(upper) - np.log(lower)
    near = np.abs(losses) <= _LARGEST_LOSS
    # By symmetry as much is given away of one law as of the other.
    outside = everywhere[everywhere.size - shift :].sum() + upper[~near].sum()
    given_away = min(1.0, float(outside + 2.0 * tail) * _MARGIN)
    return DominatingPair(
        losses=losses[near],
        upper=upper[near] * _MARGIN,
        lower=lower[near] * _MARGIN,
        upper_infinite=given_away,
        lower_infinite=given_away,
    )


def _nothing_hidden() -> DominatingPair:
    """Return the pair of two laws that never give the same output."""
    empty = np.empty(0)
    return DominatingPair(
        losses=empty, upper=empty, lower=empty, upper_infinite=1.0, lower_infinite=1.0
    )


def power_pair(pair: DominatingPair, count: int) -> DominatingPair:
    """Return the product of a pair with itself, as one pair on a grid.

    Args:
        pair: Of one coordinate.
        count: Number of coordinates, at least 1.

    Returns:
        A pair that dominates the product, within 1e-5 of the variance of its loss. This
        pair may be sampled; several pairs may not, because one selection covers all
        coordinates of a release.

    Raises:
        TheoremNotApplicableError: There are too many of them.
    """
    if count > LARGEST_POWER:
        raise TheoremNotApplicableError(
            f"atoms are sampled for up to {LARGEST_POWER} entries that may differ, not "
            f"{count}; name no accountant",
            theorem="rule 3",
            parameter="l2_sensitivity",
            value=count,
            nearest=str(LARGEST_POWER),
        )
    if count == 1 or not pair.upper.any():
        return pair
    return _raise_to_power(_Gridded.of(pair, _grid_step(pair, count)), count).pair


def envelope_pair(law: IntegerLaw, bounds: ShiftBounds) -> DominatingPair:
    """Return a pair that dominates every shift within bounds (rule 4).

    Args:
        law: Of the noise of one coordinate.
        bounds: Which shifts.

    Returns:
        The pair, connected through the largest of the curves.

    Raises:
        TheoremNotApplicableError: The bounds admit too many multisets to enumerate.
    """
    if bounds.squared_norm > LARGEST_SQUARED_SHIFT:
        raise TheoremNotApplicableError(
            "atoms of entries above one are examined up to a squared norm of "
            f"{LARGEST_SQUARED_SHIFT}, not {bounds.squared_norm}; name no accountant",
            theorem="rule 4",
            parameter="l2_sensitivity",
            value=math.sqrt(bounds.squared_norm),
            nearest=repr(math.sqrt(LARGEST_SQUARED_SHIFT)),
        )
    if not shift_pair(law, bounds.longest_entry).upper.any():
        return _nothing_hidden()
    unit = _grid_step(shift_pair(law, 1), bounds.squared_norm)
    products = []
    for entries in bounds.shapes():
        # Of so many factors with so much more variance than a unit shift's.
        coarser = sum(entry * entry for entry in entries) / len(entries)
        products.append(_product(law, entries, unit * math.sqrt(coarser)).pair)
    last = max(_last_loss(product) for product in products)
    if last <= 0.0:  # little noise: the whole mass of every product was given away
        return _nothing_hidden()
    epsilons = np.linspace(0.0, last, _CURVE_POINTS)
    curve = np.max([_curve(product, epsilons) for product in products], axis=0)
    return DominatingPair.from_curves(epsilons, curve, curve)


def _grid_step(pair: DominatingPair, count: int) -> float:
    """Return a grid for that many pairs; any is sound, a coarse one is loose.

    Splitting an atom between neighbours adds at most step²/4 of variance.
    """
    fine = math.sqrt(4.0 * _GRID_VARIANCE * pair.mean_and_variance[1])
    reach = min(_LARGEST_LOSS, math.sqrt(count) * _last_loss(pair))
    return max(fine, reach / _LONGEST_REACH)


def _last_loss(pair: DominatingPair) -> float:
    """Return the loss beyond which a pair has next to nothing; 0 if it has nothing."""
    beyond = np.cumsum(pair.upper[::-1])[::-1]
    there = np.flatnonzero(beyond > _IRRELEVANT)
    return float(pair.losses[there.max()]) if there.size else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Gridded:
    """A pair on a grid that equals its own reverse.

    Args:
        step: Grid width, nats.
        upper: Masses under A at the losses −r·step … r·step, shape (2r + 1,). Under B
            they are the same from right to left.
        infinite: Mass under either law that is given away.
    """

    step: float
    upper: FloatArray
    infinite: float

    @classmethod
    def of(cls, pair: DominatingPair, step: float) -> "_Gridded":
        """Put a pair on the grid."""
        index, mass = pair.on_grid(step)
        reach = int(np.abs(index).max())
        upper = np.zeros(2 * reach + 1)
        np.add.at(upper, index + reach, mass)
        return cls(step, upper, pair.upper_infinite).trimmed()

    def times(self, other: "_Gridded") -> "_Gridded":
        """Return the product of two pairs: losses add up."""
        return _Gridded(
            self.step,
            np.convolve(self.upper, other.upper),
            min(1.0, (self.infinite + other.infinite) * _MARGIN),
        ).trimmed()

    def trimmed(self) -> "_Gridded":
        """Give negligible and enormous losses away (rule 5), on both sides alike."""
        reach = self.upper.size // 2
        either = np.maximum(self.upper, self.upper[::-1])[reach:]
        kept = int(np.flatnonzero(either > _NEGLIGIBLE).max(initial=0))
        kept = min(kept, math.floor(_LARGEST_LOSS / self.step))
        inner = self.upper[reach - kept : reach + kept + 1]
        ends = self.upper[: reach - kept].sum() + self.upper[reach + kept + 1 :].sum()
        given_away = min(1.0, (self.infinite + float(ends)) * _MARGIN)
        return _Gridded(self.step, inner, given_away)

    @property
    def pair(self) -> DominatingPair:
        """The same as a pair of laws."""
        reach = self.upper.size // 2
        upper = self.upper * _MARGIN
        return DominatingPair(
            losses=self.step * np.arange(-reach, reach + 1, dtype=np.float64),
            upper=upper,
            lower=upper[::-1],
            upper_infinite=self.infinite,
            lower_infinite=self.infinite,
        )


def _raise_to_power(base: _Gridded, count: int) -> _Gridded:
    """Multiply by repeated squaring."""
    whole: _Gridded | None = None
    while True:
        if count & 1:
            whole = base if whole is None else whole.times(base)
        count >>= 1
        if not count:
            return base if whole is None else whole
        base = base.times(base)


def _product(law: IntegerLaw, entries: tuple[int, ...], step: float) -> _Gridded:
    """Multiply the pairs of the entries of a vector."""
    parts = [
        _entry_power(law, entry, entries.count(entry), step)
        for entry in sorted(set(entries))
    ]
    return functools.reduce(_Gridded.times, parts)


@functools.lru_cache(maxsize=512)
def _entry_power(law: IntegerLaw, entry: int, count: int, step: float) -> _Gridded:
    return _raise_to_power(_Gridded.of(shift_pair(law, entry), step), count)


def _curve(pair: DominatingPair, epsilons: FloatArray) -> FloatArray:
    """Evaluate `pair.delta` at many epsilons at least 0, by sums from the right."""
    sums = np.cumsum(pair.upper[::-1])[::-1], np.cumsum(pair.lower[::-1])[::-1]
    upper, lower = (np.append(part, 0.0) for part in sums)
    above = np.searchsorted(pair.losses, epsilons, side="right")
    finite = upper[above] - np.exp(epsilons) * lower[above]
    # Cancellation: as much as the last digits of what is subtracted.
    slack = upper[above] * 2.0**-30
    curve: FloatArray = np.maximum(finite, 0.0) + slack + pair.upper_infinite
    return np.minimum(1.0, curve)


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
        """Return the pairs to compose; only a selection joins products."""
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
