"""The accountant interface: add up releases, then ask what they cost.

* An accountant refuses every release it has no theorem for. It never approximates a
  release by a Gaussian without proof.
* A secret selection is counted against every adversary. Amplification by sampling of
  the participants is claimed against `Adversary.MODEL_READER` only, and only if one
  party adds all noise. Otherwise the rate is treated as 1, and the statement says so. A
  hypothetical accountant counts sampling for noise in shares too, as publications do,
  and marks its figures.
* The sampler's distance from exact noise is charged here, once, as (1 + e^epsilon)
  times the distance. So is any other probability mass that a theorem moves into delta.
  By the triangle inequality that is the cost of replacing both neighbouring laws by
  nearby ones.
* Every answer is an upper bound on the loss. Searches end on the safe side.
* Events, their number and their noise are fixed in advance; inputs may depend on
  earlier outputs. Budgets chosen from the outcomes need a filter (`cross_task`).

It holds no theorem; each subclass brings its own.
"""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Self

from dpnoise.accounting.statement import (
    PrivacyStatement,
    Proof,
    Status,
    least_reviewed,
    weakest,
)
from dpnoise.errors import ParameterError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    GaussianEvent,
    NoiseEvent,
    PrivacyEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
    flatten,
)
from dpnoise.searches import double, halve

HYPOTHETICAL_PREFIX: Final = "hypothetical-"
"""Begins the name of an accountant that counts sampling which no deployment hides."""

MAX_EPSILON: Final = 1e4
"""A larger epsilon is reported as infinite: e^10000 means no protection."""

_BISECTION_STEPS: Final = 80  # 1e4 / 2^80 is far below the spacing of floats near 1e-12


def check_delta(delta: float) -> float:
    """Return delta as a float.

    Args:
        delta: Failure probability.

    Returns:
        The same number, in (0, 1).

    Raises:
        ParameterError: It is not a number in (0, 1); choose one, often below 1/users.
    """
    number = _finite_or_nan(delta)
    if not 0.0 < number < 1.0:
        raise ParameterError.of(
            "delta",
            delta,
            "must lie strictly between 0 and 1",
            nearest=f"any number {'above 0' if number <= 0.0 else 'below 1'}, "
            "such as 1e-06",
        )
    return number


def check_epsilon(epsilon: float, *, allow_zero: bool = False) -> float:
    """Return epsilon as a float.

    Args:
        epsilon: Privacy loss in nats.
        allow_zero: Whether 0 makes sense here, as it does for `Accountant.delta`.

    Returns:
        The same number, finite and greater than (or equal to) 0.

    Raises:
        ParameterError: It is not; choose a finite number above 0.
    """
    number = _finite_or_nan(epsilon)
    if not (0.0 < number < math.inf or (allow_zero and number == 0.0)):
        least = "at least 0" if allow_zero else "greater than 0"
        raise ParameterError.of(
            "epsilon",
            epsilon,
            f"must be finite and {least}",
            nearest=str(MAX_EPSILON)
            if number == math.inf
            else "any number above 0, such as 1.0",
        )
    return number


@dataclass(frozen=True, slots=True)
class ReleaseSize:
    """What the cost of tables for a release with Skellam noise grows with.

    Attributes:
        norm: Squared L2 norm, grid steps², above 0.
        largest: Largest coordinate, grid steps, at most the root of `norm`.
        variance: Counted noise per coordinate, grid steps².
    """

    norm: float
    largest: float
    variance: float

    @classmethod
    def of(cls, release: NoiseEvent) -> "ReleaseSize | None":
        """Read it off a release; None where a vector has no length or no tables."""
        match release:
            case SkellamMixtureEvent() | SkellamMixtureClippedEvent():
                norm, largest = release.largest_squared_norm, float(release.linf_bound)
            case SkellamEvent():
                norm = release.l2_sensitivity**2
                largest = float(release.linf_sensitivity or release.l2_sensitivity)
            case _:
                return None
        if norm <= 0.0:
            return None
        variance = float(release.aggregate_noise_variance)
        return cls(norm, min(largest, math.sqrt(norm)), variance)


@dataclass(frozen=True, slots=True)
class GaussianLoss:
    """One Gaussian release that is at most as private as a whole account.

    Attributes:
        shift: L2 sensitivity over noise standard deviation, at least 0.
        distance: Total variation distance per world on top of it, in [0, 1); an
            epsilon e costs 1 + exp(e) times as much of delta.
    """

    shift: float
    distance: float


class Accountant(abc.ABC):
    """Composes releases about the same users and bounds their joint privacy loss.

    A subclass names itself and its adjacencies, and implements `_add` and
    `_delta_of_exact_noise`. It begins its account in `_begin`, and states the `cost` of
    an answer. It may replace `_epsilon_of_exact_noise`, which is a bisection.

    Args:
        adversary: The adversary that the answer must hold against.
        adjacency: Which neighbouring inputs must look alike.
        hypothetical: Whether sampling is counted although noise in shares reveals it.
            The name then begins with `HYPOTHETICAL_PREFIX`.
        estimating: Whether answers may be estimates within thousandths. Searches use
            them where they cost less than bounds; elsewhere it has no effect.

    Raises:
        ParameterError: The accountant has no theorem for this adjacency.
    """

    name: str
    adjacencies: ClassVar[frozenset[Adjacency]]
    status_of_theorem: ClassVar[Status]
    proof_of_theorem: ClassVar[Proof]
    """The status of the proof of this accountant's figures for unselected releases."""
    estimates_from: ClassVar[float] = math.inf
    """Variance from which on an estimate costs far less than a bound, grid steps²."""
    has_close_estimate: ClassVar[bool] = False
    """Whether an estimate is mostly the bound itself, at half the cost. A search then
    uses estimates, and only stated figures are computed in full."""
    tolerance: ClassVar[float] = 5e-6
    """How far above the least noise a calibration may end, as a logarithm; far below
    the 0.5 % that a sampling error shows."""

    def __init__(
        self,
        *,
        adversary: Adversary,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
        hypothetical: bool = False,
        estimating: bool = False,
    ) -> None:
        if hypothetical:
            self.name = HYPOTHETICAL_PREFIX + self.name
        if adjacency not in self.adjacencies:
            allowed = sorted(known.value for known in self.adjacencies)
            raise ParameterError(
                f"{self.name} covers adjacency {', '.join(allowed)}, "
                f"not {adjacency.value}",
                parameter="adjacency",
                value=adjacency.value,
                nearest=allowed[0],
            )
        self._adversary: Final = adversary
        self._adjacency: Final = adjacency
        self._hypothetical: Final = hypothetical
        self._estimating: Final = estimating and (
            self.has_close_estimate or self.estimates_from < math.inf
        )
        self._distance = 0.0
        self._releases = 0
        self._ignored_sampling = False
        self._claimed_sampling = False
        self._claimed_selection = False
        self._simulated = False
        self._begin()

    @classmethod
    def cost(
        cls,
        release: NoiseEvent,
        *,
        times: int,
        delta: float,
        rate: float,
    ) -> float:
        """Estimate what one epsilon of a release costs, within a factor of five.

        Args:
            release: One release.
            times: How often it is repeated, at least 1.
            delta: Probability that the epsilon is asked for, in (0, 1).
            rate: Of the selection before each release, in (0, 1].

        Returns:
            Table cells, of which a processor core fills about 10^9 in a second; 0.0
            where nothing in a release makes it expensive.
        """
        del release, times, delta, rate
        return 0.0

    @classmethod
    def least_epsilon(cls, delta: float, rate: float) -> float:
        """Return the least epsilon that it can state, however much noise there is.

        Args:
            delta: Failure probability in (0, 1).
            rate: Of the selection before each release, in (0, 1].

        Returns:
            Nats; 0.0 where enough noise reaches every epsilon.
        """
        del delta, rate
        return 0.0

    @property
    def adversary(self) -> Adversary:
        """Whom the answers hold against."""
        return self._adversary

    @property
    def adjacency(self) -> Adjacency:
        """Which two worlds the answers make alike."""
        return self._adjacency

    @property
    def status(self) -> Status:
        """How the answers are known: as the weakest thing that they rest on."""
        known = [self._status_of_theorems]
        known += [Status.NUMERICAL] * self._simulated
        known += [Status.HYPOTHETICAL] * (self._hypothetical or self._estimating)
        return weakest(known)

    @property
    def proof(self) -> Proof:
        """Status of the proofs that the answers rest on.

        A theorem of this project turns a release under a secret Bernoulli selection
        into the pair that accountants compose. It is ours even where the bound for the
        pair is published.
        """
        selection = Proof.OWN if self._claimed_selection else Proof.PUBLISHED
        return least_reviewed((self.proof_of_theorem, selection))

    def compose(self, event: PrivacyEvent) -> Self:
        """Add a release, or several, to the account.

        Args:
            event: What is released; nested events are taken apart.

        Returns:
            The accountant itself, so that calls can be chained.

        Raises:
            UnknownEventError: The accountant has no theorem for a part of the event;
                choose another accountant. Parts before it have been added.
            TheoremNotApplicableError: The theorem does not cover these parameters.
        """
        for release, rate, count, is_secret in flatten(event):
            claimed_rate = rate
            # Under REPLACE_ONE the sampled pair is a mixture in both inputs. No theorem
            # here covers it. Rate 1 is sound: the loss of a mixture with equal weights
            # is at most the loss of its parts (joint convexity).
            # If u adds noise of its own, a sum with u's zeros differs from a sum
            # without u, so sampling hides nothing. A secret selection keeps u's noise
            # in both sums.
            hides = is_secret or not (
                self._adversary.sees_participation
                or (release.noise_in_shares and not self._hypothetical)
            )
            if rate < 1.0 and (not hides or self._adjacency is Adjacency.REPLACE_ONE):
                claimed_rate = 1.0
                self._ignored_sampling = True
            self._add(release, claimed_rate, count)
            self._claimed_sampling |= claimed_rate < 1.0 and not is_secret
            self._claimed_selection |= claimed_rate < 1.0 and is_secret
            self._add_distance(count * release.sampler_distance)
            self._releases += count
            self._simulated |= isinstance(release, GaussianEvent) and release.simulated
        return self

    def epsilon(self, delta: float) -> float:
        """Bound epsilon at the given delta.

        Args:
            delta: Failure probability in (0, 1).

        Returns:
            The bound in nats, at least 0; `math.inf` if nothing is guaranteed.

        Raises:
            ParameterError: Delta is not in (0, 1).
        """
        target = check_delta(delta)
        if self._releases == 0:
            return 0.0
        guess, slack = 0.0, 1e-12
        while guess < MAX_EPSILON:
            # The charge grows with epsilon. Assume an epsilon, charge for it, and
            # accept as soon as the answer is not above what was charged for.
            remaining = target - (1.0 + math.exp(min(guess, 700.0))) * self._distance
            if remaining <= 0.0:
                return math.inf
            answer = self._epsilon_of_exact_noise(remaining)
            if answer <= guess:
                return answer
            if self._distance == 0.0:
                return answer if answer <= MAX_EPSILON else math.inf
            guess = answer + slack * (1.0 + answer)
            slack *= 10.0  # few steps, even where the charge is most of delta
        return math.inf

    def reaches(self, epsilon: float, delta: float) -> bool:
        """Say whether a loss is reached, but for the last digits of `epsilon`.

        Where inexact noise is charged for, that takes several answers to find a loss;
        this takes one.

        Args:
            epsilon: Privacy loss in nats, above 0.
            delta: Failure probability in (0, 1).

        Returns:
            Whether the part of delta that remains after charging the loss is enough.

        Raises:
            ParameterError: A number is not in its range.
        """
        loss, target = check_epsilon(epsilon), check_delta(delta)
        if self._releases == 0:
            return True
        remaining = target - (1.0 + math.exp(min(loss, 700.0))) * self._distance
        return remaining > 0.0 and self._epsilon_of_exact_noise(remaining) <= loss

    def delta(self, epsilon: float) -> float:
        """Bound delta at the given epsilon.

        Args:
            epsilon: Privacy loss in nats, at least 0.

        Returns:
            The bound, in [0, 1].

        Raises:
            ParameterError: Epsilon is negative, infinite or no number.
        """
        loss = check_epsilon(epsilon, allow_zero=True)
        if self._releases == 0:
            return 0.0
        charge = 0.0
        if self._distance > 0.0:
            charge = (1.0 + math.exp(min(loss, 700.0))) * self._distance
        return min(1.0, self._delta_of_exact_noise(loss) + charge)

    def statement(self, delta: float) -> PrivacyStatement:
        """State the bound at the given delta, with everything it depends on.

        Args:
            delta: Failure probability in (0, 1).

        Returns:
            The figure, the accountant's name, its grounds and its assumptions.

        Raises:
            ParameterError: Delta is not in (0, 1).
        """
        epsilon = self.epsilon(delta)
        details = {
            "releases": str(self._releases),
            "distance_charged_to_delta": repr(self._distance),
            **self._details(),
        }
        return PrivacyStatement(
            epsilon=epsilon,
            delta=float(delta),
            accountant=self.name,
            status=self.status,
            proof=self.proof,
            adversary=self._adversary,
            adjacency=self._adjacency,
            assumptions=(*self._shared_assumptions(), *self._assumptions()),
            details=MappingProxyType(details),
        )

    def gaussian_loss(self, delta: float) -> GaussianLoss | None:  # noqa: ARG002 - for subclasses
        """Return a Gaussian release that dominates the account, if theorems give one.

        Args:
            delta: Failure probability in (0, 1) for which it should be the best one; it
                holds for every other, too.

        Returns:
            The release; None if this accountant has no such release.
        """
        return None

    def _begin(self) -> None:  # noqa: B027 - an account may need no more than the base's
        """Set up an empty account."""

    @property
    def _status_of_theorems(self) -> Status:
        """How the theorems are known; a subclass may weaken it as it composes."""
        return self.status_of_theorem

    @abc.abstractmethod
    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        """Add `count` copies of one release, at a sampling rate that may be claimed."""

    @abc.abstractmethod
    def _delta_of_exact_noise(self, epsilon: float) -> float:
        """Bound delta at epsilon ≥ 0, distances not charged."""

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        """Bound epsilon at delta in (0, 1), distances not charged."""
        if self._delta_of_exact_noise(0.0) <= delta:
            return 0.0

        def is_enough(epsilon: float) -> bool:
            return self._delta_of_exact_noise(epsilon) <= delta

        low, high = double(is_enough, 1.0, most=MAX_EPSILON)
        return halve(is_enough, low, high, steps=_BISECTION_STEPS)[1]

    def _assumptions(self) -> tuple[str, ...]:
        """Sentences that this accountant's theorem needs."""
        return ()

    def _details(self) -> Mapping[str, str]:
        """Figures that let a reviewer repeat the computation."""
        return MappingProxyType({})

    def _add_distance(self, distance: float) -> None:
        """Charge a total variation distance per world to delta, rounded upwards."""
        if distance > 0.0:
            self._distance = math.nextafter(self._distance + distance, math.inf)

    def _refuse(self, release: NoiseEvent) -> UnknownEventError:
        """Build the error for a release that this accountant has no theorem for."""
        return UnknownEventError(
            f"{self.name} has no theorem for {type(release).__name__}; "
            "`default_accountants` names those that have one"
        )

    def _shared_assumptions(self) -> tuple[str, ...]:
        """Return the assumptions that every statement of an accountant needs."""
        sentences = [
            "The adversary controls none of the parties whose noise is counted.",
            "Events, their number and their noise were fixed before the first release.",
            "Whether and when a client takes part does not depend on its data.",
        ]
        if self._adjacency is Adjacency.ZERO_OUT:
            sentences.append(
                "The neighbouring world has the same participants and the same noise, "
                "regardless of which party adds it; one participant contributes zeros."
            )
        if self._ignored_sampling:
            sentences.append(
                "Sampling of users was not counted: this adversary, this adjacency or "
                "noise in shares admits no amplification."
            )
        if self._claimed_selection:
            sentences.append(
                "Every member of a fixed roster makes its own secret Bernoulli "
                "selection at the stated rate for every release and adds its whole "
                "noise either way; the selection changes nothing else that other "
                "parties see, such as whether and when the member answers."
            )
            sentences.append(
                "No other member's vector depends on that member's own earlier noise."
            )
        if self._claimed_sampling:
            sentences.append(
                "Every user takes part by an independent Bernoulli selection at the "
                "stated rate, small cohorts are neither refilled nor drawn again, and "
                "the total noise does not depend on which users take part."
            )
        if self._simulated:
            sentences.append(
                "Floating-point numbers stand in for the noise: for simulations only."
            )
        if self._hypothetical:
            sentences.append(
                "Hypothetical: where every participant adds a share of the noise, the "
                "variance and the number of inputs of a sum tell who took part, so no "
                "deployment has this privacy. For comparison with publications only."
            )
        return tuple(sentences)


def _finite_or_nan(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)
