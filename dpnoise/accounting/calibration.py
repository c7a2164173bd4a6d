"""Calibration: the least noise that reaches a privacy target.

* The search is bracketed on a monotone function: more noise never costs privacy. An
  event that a theorem does not cover counts as having no privacy at all.
* The result is a dyadic rational of at most 24 significant bits, rounded *up*, and
  the target is checked again at exactly that value.
* A target that no noise in the bracket reaches is an error, never the nearest miss.

* Of several accountants the one that asks for the least noise is kept.

It depends on no mechanism: the caller builds the event.
"""

import functools
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.accounting.accountant import Accountant, check_delta, check_epsilon
from dpnoise.accounting.catalogue import (
    Form,
    accountant_class,
    accountant_entry,
    make_accountant,
)
from dpnoise.accounting.reference_gaussian import (
    GaussianReference,
    event_gaussian_reference,
)
from dpnoise.accounting.root_search import least_root, round_up_to_dyadic
from dpnoise.errors import CalibrationError, ParameterError, TheoremNotApplicableError
from dpnoise.events import Adjacency, Adversary, PrivacyEvent

_ROUGH_STEP: Final = 0.03  # its square, half of it, is what a step is wrong by
_BUMPS: Final = tuple(Fraction(2) ** -bits for bits in (22, *range(14, -4, -2)))
_NEXT_TO_LEAST: Final = 1 + Fraction(1, 2000)  # from there, no more digits are saved
# Behind a selection shifts are rounded to 14 bits, so that no answer moves by less.
_TOLERANCE_BEHIND_SELECTION: Final = 1e-4
_ABOVE_AN_ESTIMATE: Final = 1 + Fraction(3, 20_000)  # so that one curve mostly suffices
_ESTIMATED_STEP: Final = 3e-3  # likewise; the step is wrong by half that tolerance
_ROUGH_TOLERANCE: Final = 1e-3  # between grids, errors differ by percents
# Where a function jumps, a line does not show how much noise can be saved.
_AT_A_JUMP: Final = 2.5e-4
_ROUGH_AT_A_JUMP: Final = 3.9e-3  # four halvings lead from this to that
_LEAST_DELTA: Final = 1e-300  # below, the Gaussian equivalent is not worth computing
_DEFAULT_BRACKET: Final = (Fraction(1, 1 << 20), Fraction(1 << 100))
_NEARLY: Final = Fraction(19, 20)  # of a known variance: that one serves as well
_ABOUT: Final = 64  # times what a Gaussian needs: no other reason for a refusal
_CLOSE_ENOUGH: Final = 1.005  # times the Gaussian's variance: the rest is negligible
_HARDLY_MORE: Final = 1.01  # the same: up to this ratio no fallback is evaluated


@dataclass(frozen=True, slots=True)
class TriedAccountant:
    """What one accountant asked for.

    Args:
        accountant: Its name.
        variance: The least variance that it accepts; None where no variance in the
            bracket, or below what others before it accept, reaches the target.
        cpu_seconds: Processor time that the search took.
    """

    accountant: str
    variance: Fraction | None
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class CalibratedNoise:
    """The least noise of several accountants.

    Args:
        variance: The variance, a dyadic rational.
        accountant: The accountant that accepts it; of several equal ones the first.
        tried: All that were asked, in order.
    """

    variance: Fraction
    accountant: str
    tried: tuple[TriedAccountant, ...]


def calibrate(  # noqa: PLR0913 - a target has five parts and no record of its own
    build_event: Callable[[Fraction], PrivacyEvent],
    *,
    accountant: str,
    epsilon: float,
    delta: float,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    bracket: tuple[Fraction, Fraction] | None = None,
    start: Fraction | None = None,
    is_rough: bool = False,
) -> Fraction:
    """Find the least noise variance that reaches (epsilon, delta).

    Args:
        build_event: Maps an aggregate noise variance to everything that is released.
            It may raise `TheoremNotApplicableError` for a variance that is too small.
        accountant: Name of the accountant.
        epsilon: Target in nats, above 0.
        delta: Failure probability in (0, 1).
        adversary: The adversary that the target must hold against.
        adjacency: Which neighbouring inputs must look alike.
        bracket: Least and largest variance to consider, in the unit of `build_event`;
            by default 2^-20 to 2^100.
        start: Where the search begins, such as the result of a coarse search; by
            default the variance that a Gaussian would need.
        is_rough: Whether an error of a thousandth is acceptable, without a statement.
            Only for comparing grids, never for a release.

    Returns:
        The variance, a dyadic rational rounded up, at which the accountant states at
        most `epsilon` at `delta`. It is within the accountant's `tolerance` of the
        least that the accountant accepts: behind a selection 1e-4, 2.5e-4 where what
        is stated jumps, and 5e-4 where an epsilon asks for more than its delta, or
        delta was searched at other contours, places or windows. Where rough, it is
        within 1e-3 on either side, and 4e-3 above a jump. Where an accountant states
        less with less noise, as sums over orders may, it is one such noise.

    Raises:
        ParameterError: A target, the bracket or the name is invalid.
        CalibrationError: Even the largest variance misses the target. Relax the
            target, shrink the clip, or choose another accountant.
        TheoremNotApplicableError: The accountant's theorem does not cover the events,
            whatever their noise.
        UnknownEventError: The accountant has no theorem for these events.
    """
    low, high = bracket if bracket is not None else _DEFAULT_BRACKET
    if not 0 < low <= high:
        raise ParameterError(
            f"bracket must satisfy 0 < least <= largest, got ({low}, {high})",
            parameter="bracket",
            value=f"({low}, {high})",
        )
    target = _Target(
        build_event,
        accountant,
        check_epsilon(epsilon),
        check_delta(delta),
        adversary,
        adjacency,
    )
    kind = accountant_class(accountant)
    search = functools.partial(least_root, low=low, high=high)
    first = target.gaussian_reference.variance if start is None else start
    estimated = functools.partial(target.shortfall, estimating=True)
    bounded = functools.partial(target.shortfall, estimating=False)
    if is_rough:
        found = search(
            estimated,
            start=first,
            tolerance=_ROUGH_TOLERANCE,
            at_a_jump=_ROUGH_AT_A_JUMP,
            trusted=_ROUGH_STEP,
        )
    elif kind.estimates_from < math.inf:
        # What is bounded in full is what estimates have found, and seldom more. Where
        # an estimate costs as much, a rough search has found the same.
        if start is None or first >= kind.estimates_from:
            estimate = search(
                estimated,
                start=first,
                tolerance=_ROUGH_TOLERANCE,
                trusted=_ESTIMATED_STEP,
            )
            first = first if estimate is None else estimate
        above = first * _ABOVE_AN_ESTIMATE
        found = search(bounded, start=above, tolerance=kind.tolerance)
    else:
        # An accountant without a close estimate answers itself.
        found = search(
            estimated,
            start=first,
            tolerance=kind.tolerance
            if target.gaussian_reference.steepness is None
            else max(kind.tolerance, _TOLERANCE_BEHIND_SELECTION),
            at_a_jump=_AT_A_JUMP,
            near=math.inf if start is None else _ROUGH_AT_A_JUMP,
        )
    if found is None:
        # A theorem that does not cover these events raises its own error, at about the
        # noise that they would need.
        needed = max(target.gaussian_reference.variance, low)
        target.account(high if high < _ABOUT * needed else needed, estimating=True)
        raise CalibrationError(
            f"{accountant}: no noise variance up to {float(high):.6g} reaches epsilon "
            f"{epsilon:g} at delta {delta:g}; relax the target, shrink the clip or "
            "choose another accountant"
        )
    return found if is_rough else target.least_stated(found)


@dataclass(frozen=True)
class _Target:
    """The target of a search for noise, and its accountant."""

    build_event: Callable[[Fraction], PrivacyEvent]
    accountant: str
    epsilon: float
    delta: float
    adversary: Adversary
    adjacency: Adjacency

    @functools.cached_property
    def gaussian_reference(self) -> GaussianReference:
        """What a Gaussian would need."""
        return event_gaussian_reference(self.build_event, self.epsilon, self.delta)

    def shortfall(self, variance: Fraction, *, estimating: bool) -> float:
        """Logarithm of the factor that the variance misses, by a Gaussian's measure."""
        try:
            account = self.account(variance, estimating=estimating)
            reached = account.delta(self.epsilon)
        except TheoremNotApplicableError:
            return math.inf
        if not _LEAST_DELTA < reached < 1.0:
            return math.inf if reached >= 1.0 else -math.inf
        return self.gaussian_reference.shortfall(reached)

    def least_stated(self, found: Fraction) -> Fraction:
        """Add the last digits that the statement itself asks for.

        δ(ε) and ε(δ) end their searches independently. Noise pays for a last unit or
        two of rounding between them. It pays more where the curve is so flat in ε that
        the two choose different contours or windows.
        """
        missed = found
        for bump in _BUMPS:
            if self._states(found):
                break
            missed, found = found, round_up_to_dyadic(found * (1 + bump))
        else:
            raise CalibrationError(
                f"{self.accountant}: epsilon at the calibrated noise stays above "
                f"{self.epsilon:g}; its delta and epsilon disagree, please "
                "report the parameters"
            )
        while found > missed * _NEXT_TO_LEAST:
            middle = round_up_to_dyadic((missed + found) / 2)
            if self._states(middle):
                found = middle
            else:
                missed = middle
        return found

    def _states(self, variance: Fraction) -> bool:
        """Whether the accountant states the target."""
        account = self.account(variance, estimating=False)
        # The first is cheap, and refuses most noises that the second one would.
        return (
            account.reaches(self.epsilon, self.delta)
            and account.epsilon(self.delta) <= self.epsilon
        )

    def account(self, variance: Fraction, *, estimating: bool) -> Accountant:
        """Compose what is released with this much noise."""
        account = make_accountant(
            self.accountant,
            adversary=self.adversary,
            adjacency=self.adjacency,
            estimating=estimating,
        )
        return account.compose(self.build_event(variance))


def calibrate_least(  # noqa: PLR0913 - a target has five parts and no record of its own
    build_event: Callable[[Fraction], PrivacyEvent],
    *,
    accountants: Sequence[str],
    epsilon: float,
    delta: float,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    bracket: tuple[Fraction, Fraction] | None = None,
    start: Fraction | None = None,
    is_rough: bool = False,
) -> CalibratedNoise:
    """Find the least noise variance that any of several accountants accepts.

    The search ends early if the variance is within half a percent of what a Gaussian
    would need. It continues if a remaining accountant may go below a Gaussian.

    Args:
        build_event: As for `calibrate`.
        accountants: Names, cheapest first, at least one; see `default_accountants`.
        epsilon: Target in nats, above 0.
        delta: Failure probability in (0, 1).
        adversary: The adversary that the target must hold against.
        adjacency: Which neighbouring inputs must look alike.
        bracket: As for `calibrate`.
        start: As for `calibrate`.
        is_rough: As for `calibrate`.

    Returns:
        The variance, its accountant and what each accountant asked for.

    Raises:
        ParameterError: As for `calibrate`, or no accountant was named.
        CalibrationError: Every accountant misses the target in the whole bracket; the
            error is that of the last one.
        TheoremNotApplicableError: The same, and the last one's theorem does not cover
            the events, whatever their noise.
        UnknownEventError: An accountant has no theorem for these events.
    """
    if not accountants:
        raise ParameterError(
            "accountants must hold at least one name, got none",
            parameter="accountants",
            value=(),
            nearest="default_accountants(event)",
        )
    ideal = event_gaussian_reference(
        build_event, check_epsilon(epsilon), check_delta(delta)
    ).variance
    tried: list[TriedAccountant] = []
    found: list[tuple[Fraction, str]] = []
    failure: CalibrationError | TheoremNotApplicableError | None = None
    low, high = bracket if bracket is not None else _DEFAULT_BRACKET
    for position, name in enumerate(accountants):
        began = time.process_time()
        variance: Fraction | None = None
        row = accountant_entry(name)
        if found and row.is_fallback and high <= _HARDLY_MORE * ideal:
            continue
        # One that probably accepts no less than others do is asked once.
        begin = start
        if found and (row.form is Form.ORDERS or (start or ideal) > _NEARLY * high):
            begin = high
        try:
            variance = calibrate(
                build_event,
                accountant=name,
                epsilon=epsilon,
                delta=delta,
                adversary=adversary,
                adjacency=adjacency,
                bracket=(low, high),
                start=begin,
                is_rough=is_rough,
            )
            # The exact noise of another accountant does not matter here, and some
            # accountants would search for minutes.
            high = min(high, variance)
            found.append((variance, name))
        except (CalibrationError, TheoremNotApplicableError) as error:
            failure = error
        tried.append(TriedAccountant(name, variance, time.process_time() - began))
        if variance is not None and (
            variance <= round_up_to_dyadic(low)
            or (
                variance <= _CLOSE_ENOUGH * ideal
                and not any(
                    accountant_entry(other).may_need_less_than_gaussian
                    for other in accountants[position + 1 :]
                )
            )
        ):
            break
    if failure is not None and not found:
        raise failure
    least, chosen = min(found, key=operator.itemgetter(0))
    return CalibratedNoise(least, chosen, tuple(tried))
