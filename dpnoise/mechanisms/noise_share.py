"""The noise of one client: from the variance that a sum must keep to one share of it.

* A task fixes the variance that privacy counts, and how many clients may be lost and
  how many collude, both as functions of the roster. The share of one client follows
  from the roster of its session, so it always suits that session's size.
* A share is v/(n − D − c − 1) for n clients of whom D may be lost and c collude. The
  remaining one is the user whose privacy is at stake. Within these limits the other
  honest clients always contribute at least v.
* With a ladder, a share is a permanent base and removable layers. Survivors remove some
  of the layers once the losses are known. After d losses at least v/(n − d − c − 1)
  remains, and with L rungs hardly more.
* Everything is an exact rational and every rounding is upwards: two parties compute
  the same numbers, and more noise than required is post-processing.

The noise must be closed under addition: a sum of shares is then the law of the summed
variance. `ddgauss` is not; it takes shares but no ladder.

It draws no noise and computes no privacy loss.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dpnoise.checks import check_integer
from dpnoise.errors import ParameterError
from dpnoise.floats import rational_text
from dpnoise.mechanisms.parameter_checks import (
    check_bounded_fraction,
    read_fields,
    read_fraction,
)

MAX_CLIENTS: Final = 1 << 24
"""Largest roster: its square stays exact in 64 bits."""

MAX_COUNTED_VARIANCE: Final = 1 << 88
"""Largest counted variance, grid steps²: 2^64 for each of 2^24 clients."""

MAX_LADDER: Final = 8
"""Most rungs: eight keep at most one part in five hundred too much where a third may
be lost and no client colludes."""

DEFAULT_SHARE_BITS: Final = 20
"""Shares are multiples of 2^-20, the least variance that the Skellam sampler takes."""

_MAX_SHARE_BITS: Final = 64
# Numerators up to here times a roster stay exact in 64 bits.
_MAX_FRACTION_TERM: Final = MAX_CLIENTS
_AT_ONCE: Final = 1 << 15  # rosters in one pass: they stay in the cache of a core
_FLOAT_BITS: Final = 53


@dataclass(frozen=True, slots=True)
class SessionNoise:
    """What one client adds in a session, and what is taken back of it.

    Made by `NoiseRule.session`.

    Attributes:
        roster: Number n of clients that noise was shared among.
        base: Variance that stays whatever happens, grid steps².
        layers: Variances that may be taken back, grid steps²; () without a ladder, and
            where there is nothing to take back.
        tolerated_losses: Number D of clients that may be lost.
        colluders: Number c of clients that may collude.
        counted_variance: Variance v that the honest others carry at least.
    """

    roster: int
    base: Fraction
    layers: tuple[Fraction, ...]
    tolerated_losses: int
    colluders: int
    counted_variance: Fraction

    @property
    def upload(self) -> Fraction:
        """Variance that one client adds before it uploads, grid steps²."""
        return self.base + sum(self.layers)

    @property
    def draws(self) -> int:
        """Independent draws for one coordinate of one client."""
        return 1 + len(self.layers)

    def needed(self, losses: int) -> Fraction:
        """Return the variance that each survivor must keep after that many losses.

        Args:
            losses: Number d of clients lost, 0 … `tolerated_losses`.

        Returns:
            v/(n − d − c − 1), grid steps².

        Raises:
            ParameterError: More were lost than the noise tolerates.
        """
        check_integer("losses", losses, 0, self.tolerated_losses)
        return self.counted_variance / (self.roster - losses - self.colluders - 1)

    def removed_layers(self, losses: int) -> tuple[int, ...]:
        """Return the layers that the survivors take back after that many losses.

        Args:
            losses: Number d of clients lost, 0 … `tolerated_losses`.

        Returns:
            Positions in `layers`, ascending: the set I(d).

        Raises:
            ParameterError: More were lost than the noise tolerates.
        """
        needed = self.needed(losses)
        if not self.layers:
            return ()
        # Layers are worth 1, 1, 2, 4, … units, so r of them are layer 0 and the binary
        # digits of r − 1.
        removable = math.floor((self.upload - needed) / self.layers[0])
        units = min(1 << (len(self.layers) - 1), removable)
        if units == 0:
            return ()
        digits = range(len(self.layers) - 1)
        return (0, *(bit + 1 for bit in digits if (units - 1) >> bit & 1))

    def remaining(self, losses: int) -> Fraction:
        """Return what is left of one survivor's noise after that many losses.

        Args:
            losses: Number d of clients lost, 0 … `tolerated_losses`.

        Returns:
            Variance, grid steps²; (n − d − c − 1) times it is at least v.

        Raises:
            ParameterError: More were lost than the noise tolerates.
        """
        removed = sum(self.layers[layer] for layer in self.removed_layers(losses))
        return self.upload - removed


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRule:
    """How the noise of a task is divided among the clients of any session.

    Args:
        counted_variance: Variance v per coordinate that privacy counts, grid steps²,
            exact, greater than 0. For mechanisms whose noise is central, the variance
            of the one central draw.
        min_survivors: Smallest set of clients that will ever be summed, fixed in
            advance; at least `colluders + 2`.
        loss_fraction: Of n clients at most ⌊loss_fraction · n⌋ may be lost, in [0, 1).
        colluders: Tolerated parties that know and subtract their own noise.
        colluder_fraction: Of n clients at least ⌈colluder_fraction · n⌉ are taken for
            colluders, in [0, 1).
        share_bits: Shares are multiples of 2^-share_bits grid steps², 0 … 64.
        ladder: Rungs L of the ladder, 0 for none, at most 8.

    Raises:
        ParameterError: A value cannot work; the error names it and the nearest value
            that does.
    """

    counted_variance: Fraction
    min_survivors: int
    loss_fraction: Fraction = Fraction(0)
    colluders: int = 0
    colluder_fraction: Fraction = Fraction(0)
    share_bits: int = DEFAULT_SHARE_BITS
    ladder: int = 0

    def __post_init__(self) -> None:
        check_bounded_fraction(
            "counted_variance", self.counted_variance, most=MAX_COUNTED_VARIANCE
        )
        check_integer("colluders", self.colluders, 0, MAX_CLIENTS - 2)
        check_integer(
            "min_survivors", self.min_survivors, self.colluders + 2, MAX_CLIENTS
        )
        _check_part("loss_fraction", self.loss_fraction)
        _check_part("colluder_fraction", self.colluder_fraction)
        check_integer("share_bits", self.share_bits, 0, _MAX_SHARE_BITS)
        check_integer("ladder", self.ladder, 0, MAX_LADDER)

    def tolerated_losses(self, roster: int) -> int:
        """Return D(n) = min(n − min_survivors, ⌊loss_fraction · n⌋)."""
        return min(roster - self.min_survivors, math.floor(self.loss_fraction * roster))

    def max_colluders(self, roster: int) -> int:
        """Return c(n) = max(colluders, ⌈colluder_fraction · n⌉)."""
        return max(self.colluders, math.ceil(self.colluder_fraction * roster))

    def counted_shares(self, roster: int) -> int:
        """Return n − D(n) − c(n) − 1: the shares that privacy counts on."""
        lost, colluding = self.tolerated_losses(roster), self.max_colluders(roster)
        return roster - lost - colluding - 1

    def session(self, roster: int) -> SessionNoise:
        """Divide the noise among the clients of one session.

        Args:
            roster: Number n of clients that share the noise: those that have shared
                their keys, |U2|.

        Returns:
            What each of them adds.

        Raises:
            ParameterError: Fewer than `min_survivors` clients, more than 2^24, or so
                many losses and colluders among them that no share is left to count.
        """
        check_integer("roster", roster, self.min_survivors, MAX_CLIENTS)
        shares = self.counted_shares(roster)
        if shares < 1:
            raise _no_share_error(self, roster)
        lost, colluding = self.tolerated_losses(roster), self.max_colluders(roster)
        share = self._round_up(self.counted_variance / shares)
        base, layers = self._split_share(share, roster - colluding - 1)
        return SessionNoise(
            roster=roster,
            base=base,
            layers=layers,
            tolerated_losses=lost,
            colluders=colluding,
            counted_variance=self.counted_variance,
        )

    def _split_share(
        self, share: Fraction, without_losses: int
    ) -> tuple[Fraction, tuple[Fraction, ...]]:
        """Cut a share into what no losses leave of it and what they may take."""
        if not self.ladder:
            return share, ()
        base = self._round_up(self.counted_variance / without_losses)
        unit = self._round_up((share - base) / (1 << self.ladder))
        if unit == 0:  # no losses are tolerated, or rounding has swallowed them
            return share, ()
        return base, (unit, *(unit * (1 << rung) for rung in range(self.ladder)))

    def _round_up(self, variance: Fraction) -> Fraction:
        grid = 1 << self.share_bits
        return Fraction(math.ceil(variance * grid), grid)

    def smallest_counted_shares(self, most: int) -> int:
        """Return the fewest shares that count, over all rosters up to `most`.

        Raises:
            ParameterError: Rosters of at least `min_survivors` are not allowed, or a
                roster has no share to count.
        """
        return _extremes(_of_unit_noise(self), most).fewest

    def largest_counted_shares(self, most: int) -> int:
        """Return the most shares that count, over all rosters up to `most`.

        Raises:
            ParameterError: As for `smallest_counted_shares`.
        """
        return _extremes(_of_unit_noise(self), most).most

    def largest_share(self, most: int) -> Fraction:
        """Return the largest variance of one draw, over all rosters, grid steps².

        Args:
            most: Largest roster.

        Raises:
            ParameterError: As for `smallest_counted_shares`.
        """
        shares = self.smallest_counted_shares(most)
        return self._round_up(self.counted_variance / shares)

    def least_variance(self, most: int) -> Fraction:
        """Return the least noise that one client is ever left with.

        Args:
            most: Largest roster.

        Returns:
            Variance, grid steps²: the smallest share, or with a ladder the smallest
            base, since layers may be shown to others.

        Raises:
            ParameterError: As for `smallest_counted_shares`.
        """
        shares = self.largest_counted_shares(most)
        if self.ladder:
            # c(n) grows more slowly than n, so the largest roster shares widest.
            shares = max(shares, most - self.max_colluders(most) - 1)
        return self._round_up(self.counted_variance / shares)

    def largest_total(self, most: int) -> Fraction:
        """Return the largest variance of all noise that can arrive, grid steps².

        Args:
            most: Largest roster.

        Returns:
            What arrives at the noisiest roster; where one share is more than 2^28
            units, at one that is as noisy but for a part in 2^19.

        Raises:
            ParameterError: As for `smallest_counted_shares`.
        """
        worst = _noisiest(self, most)
        return worst * self.session(worst).upload

    def largest_surplus(self, most: int) -> float:
        """Return the largest variance that can arrive over the one that counts.

        Args:
            most: Largest roster.

        Returns:
            The largest n/(n − D(n) − c(n) − 1), before shares are rounded.

        Raises:
            ParameterError: As for `smallest_counted_shares`.
        """
        return _extremes(_of_unit_noise(self), most).surplus

    def to_dict(self) -> dict[str, object]:
        """Return the rule as JSON values; fractions become "p/q" in lowest terms."""
        entries: dict[str, object] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Fraction):
                value = rational_text(value)
            entries[field.name] = value
        return entries

    @classmethod
    def from_dict(cls, entries: Mapping[str, object]) -> Self:
        """Build a rule from what `to_dict` returned, or from a configuration.

        Args:
            entries: JSON values by field name; fields with a default may be missing.
                A fraction may be "p/q", an integer, or a float (taken exactly).

        Returns:
            The rule.

        Raises:
            ParameterError: A key is unknown or missing, or a value cannot work.
        """
        values = read_fields(cls, entries, what="a noise rule")
        for name in _FRACTION_FIELDS & values.keys():
            values[name] = read_fraction(name, values[name])
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each one


_FRACTION_FIELDS: Final = frozenset(
    {"counted_variance", "loss_fraction", "colluder_fraction"}
)


def _check_part(parameter: str, value: object) -> None:
    """Refuse anything but a fraction of clients in [0, 1)."""
    if not isinstance(value, Fraction):
        raise ParameterError(
            f"{parameter} must be an exact Fraction, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    if not 0 <= value < 1 or value.denominator > _MAX_FRACTION_TERM:
        raise ParameterError(
            f"{parameter} must lie in [0, 1) with a denominator of at most 2^24, got "
            f"{float(value):.6g}",
            parameter=parameter,
            value=float(value),
            nearest="0/1" if value < 0 else "the next fraction with few digits",
        )


def _no_share_error(rule: NoiseRule, roster: int) -> ParameterError:
    """Return the error for a rule under which no client's noise counts."""
    lost, colluding = rule.tolerated_losses(roster), rule.max_colluders(roster)
    complaint = (
        f"of {roster} clients {lost} may be lost and {colluding} collude, which "
        "leaves no other client whose noise counts"
    )
    if colluding + 2 > roster:  # no number of survivors helps
        most = max(0, roster - lost - 2) / roster
        return ParameterError(
            complaint,
            parameter="colluder_fraction",
            value=float(rule.colluder_fraction),
            nearest=f"{math.floor(1000.0 * most) / 1000.0:g}",
        )
    return ParameterError(
        complaint,
        parameter="min_survivors",
        value=rule.min_survivors,
        nearest=str(colluding + 2),
    )


def _of_unit_noise(rule: NoiseRule) -> NoiseRule:
    """Return the rule for a variance of 1, which counts the same shares."""
    return dataclasses.replace(rule, counted_variance=Fraction(1))


@dataclass(frozen=True, slots=True)
class _Extremes:
    """What the rosters of a rule leave: the fewest shares, the most, most noise."""

    fewest: int
    most: int
    surplus: float


@lru_cache(maxsize=64)
def _extremes(rule: NoiseRule, most: int) -> _Extremes:
    """Look at every roster from `min_survivors` to `most`.

    Neither the ends nor where D(n) bends would do: c(n) moves in steps. For 2^24
    rosters it takes two tenths of a second.
    """
    check_integer("num_clients", most, rule.min_survivors, MAX_CLIENTS)
    fewest, largest, surplus = most, 0, 0.0
    for rosters, counted, _ in _rosters(rule, most):
        fewest = min(fewest, int(counted.min()))
        if fewest < 1:
            raise _no_share_error(rule, int(rosters[np.argmin(counted)]))
        largest = max(largest, int(counted.max()))
        surplus = max(surplus, float((rosters / counted).max()))
    return _Extremes(fewest, largest, surplus)


@lru_cache(maxsize=64)
def _noisiest(rule: NoiseRule, most: int) -> int:
    """Return the roster in which most noise arrives.

    Rounded as `session` rounds: where shares are a few units, that decides.
    """
    _extremes(_of_unit_noise(rule), most)  # refuses what leaves no share
    # ⌈v/n⌉ = ⌈⌈v⌉/n⌉ for whole n. What floats cannot hold is cut off.
    units = math.ceil(rule.counted_variance * (1 << rule.share_bits))
    units >>= max(0, units.bit_length() - _FLOAT_BITS)
    worst, arrives = most, 0.0
    for rosters, counted, lost in _rosters(rule, most):
        uploads = -(-units // counted)
        if rule.ladder:
            bases = -(-units // (counted + lost))
            steps = -((bases - uploads) >> rule.ladder)
            uploads = np.where(steps > 0, bases + (steps << rule.ladder), uploads)
        totals = rosters.astype(np.float64) * uploads
        first = int(np.argmax(totals))
        if totals[first] > arrives:
            worst, arrives = int(rosters[first]), float(totals[first])
    return worst


_Integers = NDArray[np.int64]


def _rosters(
    rule: NoiseRule, most: int
) -> Iterator[tuple[_Integers, _Integers, _Integers]]:
    """Yield rosters n up to `most`, n − D(n) − c(n) − 1 and D(n), some at a time."""
    losing, of_all = rule.loss_fraction.as_integer_ratio()
    colluding, of_whole = rule.colluder_fraction.as_integer_ratio()
    for begin in range(rule.min_survivors, most + 1, _AT_ONCE):
        rosters = np.arange(begin, min(most + 1, begin + _AT_ONCE), dtype=np.int64)
        lost = np.minimum(rosters - rule.min_survivors, rosters * losing // of_all)
        known = np.maximum(rule.colluders, -(rosters * -colluding // of_whole))
        yield rosters, rosters - lost - known - 1, lost
