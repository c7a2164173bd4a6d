"""Calibration: the least noise that reaches a privacy target.

* The search is bracketed on a monotone function: more noise never costs privacy. An
  event that a theorem does not cover counts as having no privacy at all.
* The result is a dyadic rational of at most 24 significant bits, rounded *up*, and
  the target is checked again at exactly that value.
* A target that no noise in the bracket reaches is an error, never the nearest miss.

* Of several accountants the one that asks for the least noise is kept.

It knows no mechanism: the caller builds the event.
"""

import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.accounting.accountant import check_delta, check_epsilon
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.accounting.registry import make_accountant
from dpnoise.errors import CalibrationError, ParameterError, TheoremNotApplicableError
from dpnoise.events import (
    Adjacency,
    Adversary,
    PrivacyEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
    flatten,
)

__all__ = [
    "CalibratedNoise",
    "TriedAccountant",
    "calibrate",
    "calibrate_least",
    "round_up_to_dyadic",
]

_SIGNIFICANT_BITS: Final = 24
_RELATIVE_TOLERANCE: Final = 5e-6  # far below the 0.5 % that a sampling error shows
_ROUGH_TOLERANCE: Final = 1e-3  # between grids, errors differ by percents
_ANY_VARIANCE: Final = Fraction(16)
_MAX_STEPS: Final = 100
_MAX_LOG_STEP: Final = 4.0  # a factor of 55 in variance
_LEAST_DELTA: Final = 1e-300  # below, the Gaussian equivalent is not worth computing
_DEFAULT_BRACKET: Final = (Fraction(1, 1 << 20), Fraction(1 << 100))
_CLOSE_ENOUGH: Final = 1.005  # times the Gaussian's variance: nobody sees the rest
# Exact for few coordinates, where noise may well be less than a Gaussian's.
_BELOW_GAUSSIAN: Final = "lattice-pld"


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


def round_up_to_dyadic(number: float | Fraction) -> Fraction:
    """Round a positive number up to a dyadic rational of 24 significant bits.

    Args:
        number: A finite number above 0.

    Returns:
        The least such rational that is not below the number.

    Raises:
        ParameterError: The number is not finite and above 0.
    """
    if not 0 < number < math.inf:
        raise ParameterError(
            f"number must be finite and greater than 0, got {number!r}",
            parameter="number",
            value=number,
        )
    exact = Fraction(number)
    exponent = (
        exact.numerator.bit_length()
        - exact.denominator.bit_length()
        - _SIGNIFICANT_BITS
    )
    unit = Fraction(2) ** exponent
    return math.ceil(exact / unit) * unit


def calibrate(  # noqa: PLR0913 - a target has five parts and no record of its own
    build_event: Callable[[Fraction], PrivacyEvent],
    *,
    accountant: str,
    epsilon: float,
    delta: float,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    bracket: tuple[Fraction, Fraction] | None = None,
    is_rough: bool = False,
) -> Fraction:
    """Find the least noise variance that reaches (epsilon, delta).

    Args:
        build_event: Maps an aggregate noise variance to everything that is released.
            It may raise `TheoremNotApplicableError` for a variance that is too small.
        accountant: Name of the accountant.
        epsilon: Target in nats, above 0.
        delta: Failure probability in (0, 1).
        adversary: Whom the target must hold against.
        adjacency: Which two worlds must look alike.
        bracket: Least and largest variance to consider, in the unit of `build_event`;
            by default 2^-20 to 2^100.
        is_rough: Whether a thousandth matters, and the statement at the end. Only for
            comparing grids: what is rough is nothing to release with.

    Returns:
        The variance, a dyadic rational rounded up, at which the accountant states at
        most `epsilon` at `delta`; within about 1e-5 of the least, or 1e-3 where rough.

    Raises:
        ParameterError: A target, the bracket or the name is invalid.
        CalibrationError: Even the largest variance misses the target. Relax the
            target, shrink the clip, or choose another accountant.
        UnknownEventError: The accountant has no theorem for these events.
    """
    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta)
    low, high = bracket if bracket is not None else _DEFAULT_BRACKET
    if not 0 < low <= high:
        raise ParameterError(
            f"bracket must satisfy 0 < least <= largest, got ({low}, {high})",
            parameter="bracket",
            value=f"({low}, {high})",
        )

    wanted = analytic_gaussian_stddev(epsilon, delta, 1.0)

    def shortfall(variance: Fraction) -> float:
        """Logarithm of the factor that the variance misses, judged as a Gaussian."""
        account = make_accountant(accountant, adversary=adversary, adjacency=adjacency)
        try:
            reached = account.compose(build_event(variance)).delta(epsilon)
        except TheoremNotApplicableError:
            return math.inf
        if not _LEAST_DELTA < reached < 1.0:
            return math.inf if reached >= 1.0 else -math.inf
        return 2.0 * math.log(wanted / analytic_gaussian_stddev(epsilon, reached, 1.0))

    def states_target(variance: Fraction) -> bool:
        account = make_accountant(accountant, adversary=adversary, adjacency=adjacency)
        return account.compose(build_event(variance)).epsilon(delta) <= epsilon

    start = _gaussian_guess(build_event, wanted)
    tolerance = _ROUGH_TOLERANCE if is_rough else _RELATIVE_TOLERANCE
    found = _least_root(shortfall, low, high, min(max(low, start), high), tolerance)
    if found is None:
        raise CalibrationError(
            f"{accountant}: no noise variance up to {float(high):.6g} reaches epsilon "
            f"{epsilon:g} at delta {delta:g}; relax the target, shrink the clip or "
            "choose another accountant"
        )
    if is_rough:
        return found
    # delta(epsilon) and epsilon(delta) end their searches independently; a last unit
    # or two of rounding between them is paid for in noise, and more where the curve is
    # so flat in epsilon that the two choose different contours.
    bump = Fraction(1, 1 << (_SIGNIFICANT_BITS - 2))
    for _ in range(16):
        if states_target(found):
            return found
        found = round_up_to_dyadic(found * (1 + bump))
        bump *= 8
    raise CalibrationError(
        f"{accountant}: epsilon at the calibrated noise stays above {epsilon:g}; the "
        "accountant's delta and epsilon disagree, please report the parameters"
    )


def calibrate_least(  # noqa: PLR0913 - a target has five parts and no record of its own
    build_event: Callable[[Fraction], PrivacyEvent],
    *,
    accountants: Sequence[str],
    epsilon: float,
    delta: float,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    bracket: tuple[Fraction, Fraction] | None = None,
    is_rough: bool = False,
) -> CalibratedNoise:
    """Find the least noise variance that any of several accountants accepts.

    The search ends early where the variance is within half a percent of what a Gaussian
    would need, unless an accountant is left that may go below a Gaussian.

    Args:
        build_event: As for `calibrate`.
        accountants: Names, cheapest first, at least one; see `default_accountants`.
        epsilon: Target in nats, above 0.
        delta: Failure probability in (0, 1).
        adversary: Whom the target must hold against.
        adjacency: Which two worlds must look alike.
        bracket: As for `calibrate`.
        is_rough: As for `calibrate`.

    Returns:
        The variance, its accountant and what each accountant asked for.

    Raises:
        ParameterError: As for `calibrate`, or no accountant was named.
        CalibrationError: Every accountant misses the target in the whole bracket; the
            error is that of the last one.
        UnknownEventError: An accountant has no theorem for these events.
    """
    if not accountants:
        raise ParameterError(
            "accountants must hold at least one name, got none",
            parameter="accountants",
            value=(),
            nearest="default_accountants(event)",
        )
    wanted = analytic_gaussian_stddev(check_epsilon(epsilon), check_delta(delta), 1.0)
    ideal = _gaussian_guess(build_event, wanted)
    tried: list[TriedAccountant] = []
    found: list[tuple[Fraction, str]] = []
    failure: CalibrationError | None = None
    low, high = bracket if bracket is not None else _DEFAULT_BRACKET
    for position, name in enumerate(accountants):
        began = time.process_time()
        variance: Fraction | None = None
        try:
            variance = calibrate(
                build_event,
                accountant=name,
                epsilon=epsilon,
                delta=delta,
                adversary=adversary,
                adjacency=adjacency,
                bracket=(low, high),
                is_rough=is_rough,
            )
            # How much more than the least another one would ask for is no matter, and
            # some would search for minutes.
            high = min(high, variance)
            found.append((variance, name))
        except CalibrationError as error:
            failure = error
        tried.append(TriedAccountant(name, variance, time.process_time() - began))
        if (
            variance is not None
            and variance <= _CLOSE_ENOUGH * ideal
            and _BELOW_GAUSSIAN not in accountants[position + 1 :]
        ):
            break
    if failure is not None and not found:
        raise failure
    least, chosen = min(found, key=operator.itemgetter(0))
    return CalibratedNoise(least, chosen, tuple(tried))


def _gaussian_guess(
    build_event: Callable[[Fraction], PrivacyEvent], noise_multiplier: float
) -> Fraction:
    """Guess the variance as if every release were a Gaussian; any guess is sound.

    Without sampling it is what a Gaussian needs.
    """
    squared_norm = 0.0
    try:
        releases = list(flatten(build_event(_ANY_VARIANCE)))
    except TheoremNotApplicableError:
        return _ANY_VARIANCE
    for release, rate, count, _ in releases:
        if isinstance(release, SkellamMixtureEvent):
            once = release.l2_clip_squared_steps
        elif isinstance(release, SkellamMixtureClippedEvent):
            once = release.mixture_norm_bound
        else:
            once = release.l2_sensitivity**2
        squared_norm += count * rate**2 * once
    if not 0.0 < squared_norm < math.inf:
        return _ANY_VARIANCE
    return Fraction(noise_multiplier**2 * squared_norm)


def _least_root(
    shortfall: Callable[[Fraction], float],
    low: Fraction,
    high: Fraction,
    start: Fraction,
    tolerance: float,
) -> Fraction | None:
    """Return the least dyadic variance without a shortfall, or None above `high`.

    Were the release a Gaussian, the shortfall would be exactly the step to take, so a
    handful of evaluations suffices; bisection takes over where that fails.
    """
    variance = round_up_to_dyadic(start)
    bracket = _Bracket(tolerance)
    best: Fraction | None = None
    for _ in range(_MAX_STEPS):
        missing = shortfall(variance)
        bracket.add(math.log(variance), missing)
        if missing <= 0.0:
            best = variance
            if variance <= low or missing >= -tolerance:
                return best
        elif variance >= high:
            return None
        step = bracket.propose()
        if step is None:
            return best
        variance = round_up_to_dyadic(min(max(Fraction(math.exp(step)), low), high))
    return best


class _Bracket:
    """The two sides of the root in logarithms of the variance, and where to look next.

    Regula falsi with Illinois' correction: when one end stays twice, its value counts
    half, so that it moves soon. Should the bracket still not halve in two steps, its
    middle is next.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._missing: tuple[float, float] | None = None
        self._reached: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._last_reached: bool | None = None
        self._widths = [math.inf, math.inf]
        self._stretch = 1.0

    def add(self, where: float, missing: float) -> None:
        """Take in one evaluation."""
        reached = missing <= 0.0
        if reached:
            self._reached = (where, missing)
        else:
            self._missing = (where, missing)
        if reached == self._last_reached:
            if reached and self._missing is not None:
                self._missing = (self._missing[0], 0.5 * self._missing[1])
            if not reached and self._reached is not None:
                self._reached = (self._reached[0], 0.5 * self._reached[1])
        self._last, self._last_reached = (where, missing), reached

    def propose(self) -> float | None:
        """Return the next logarithm of the variance; None when the bracket is tight."""
        # Aim a little beyond the root, so that the last step lands where it counts.
        aim = 0.5 * self._tolerance
        where, missing = self._last
        if self._missing is None or self._reached is None:
            # Far from the root the Gaussian step is only a guess: lengthen it a
            # little, so that the root is bracketed soon.
            # Where the release is unlike a Gaussian (a sampled one cannot exceed a
            # delta of its rate) the guess is far too short: double it every time.
            step = 1.01 * self._stretch * (missing + aim)
            self._stretch *= 2.0
            return where + min(max(step, -_MAX_LOG_STEP), _MAX_LOG_STEP)
        width = self._reached[0] - self._missing[0]
        if width <= self._tolerance:
            return None
        stalled = width > 0.5 * self._widths[-2]
        self._widths.append(width)
        if stalled or not (
            math.isfinite(self._missing[1]) and math.isfinite(self._reached[1])
        ):
            self._widths = [math.inf, math.inf]
            gaussian_step = where + missing + aim
            if not stalled and self._missing[0] < gaussian_step < self._reached[0]:
                return gaussian_step
            return self._missing[0] + 0.5 * width
        share = (self._missing[1] + aim) / (self._missing[1] - self._reached[1])
        edge = min(0.25, 0.25 * self._tolerance / width)
        return self._missing[0] + min(max(share, edge), 1.0 - edge) * width
