"""Bayesian accounting: the loss of a person drawn at random, over several releases.

One person i is drawn from the population, uniformly and apart from all noise, and loses
L. With D_t(i) the divergence of release t and T releases planned,

    E e^(λL) = E_i Π_t e^(λD_t(i)) ≤ Π_t (E_i e^(TλD_t(i)))^(1/T)        (Hölder)

so that c_t(λ) = (1/T)·log E_i e^(TλD_t(i)) adds up, and P(L ≥ ε) ≤ δ for
ε = min over λ of (Σ_t c_t(λ) − log δ)/λ, by Markov's inequality. λ is fixed by the
costs, and every order's estimate counts towards `failure`. So the choice costs nothing.

[TF19] Theorem 1 has the product of E_i e^(λD_t(i)) in its place, as if another person
were drawn for every release. That is wrong where people differ: one person is far away
in all releases. Only the form above is here.

What the argument asks for, and no computation can check:

* Exchangeable people: "drawn at random" states nothing about a particular person.
* A population that stays: people of later releases are those that were estimated.
* Distances that do not follow earlier noise. Training violates this slightly: people
  whom the noise of one step singles out may move more in the next. `typical_epsilon`
  needs neither this nor a number of releases.

[TF19] Theorem 2 is Markov's inequality; its Remark 2 holds of integer noise too, whose
divergences may be handed in as `costs`.

The cost of one release to one person at a known distance r is, with s = r²/(2·stddev²),
and sampling at rate q,

    λ·D_(λ+1)(mixture‖base) = log E_(k ~ Binomial(λ + 1, q)) exp((k² − k)·s),

exactly. Source: [TF19] Theorem 3, its left cost. The right cost bounds the other
direction from far above. The left one is never smaller than that direction itself
([MTZ19]; laws with Gaussian noise are mirrored, see `renyi.accountant`).

Upper bounds of a mean that was estimated from some of a population.

`BOUNDED` assumes nothing of the law but its range [0, 1]. With M the mean of n draws,
the mean lies below the larger root μ of n·kl(M‖μ) = log(1/failure), except with
probability `failure` (Hoeffding 1963, Theorem 1). Section 6 there covers draws without
replacement. Here kl is the relative entropy of two Bernoulli laws.

`STUDENT` is the interval of [TF19] equation (5). It holds for normal draws. Those here
are exponentials of squares. Where a few people are far from the rest, most samples miss
them. The interval then lies below the mean much more often than it states. It is here
to be compared with.

What all but a share of the people lose, however the releases followed each other.

Fix an order λ before the first release. For every person i, with C_i the sum of the
divergences D_(λ+1) of the releases that really took place, λ(L_i − C_i) is the
logarithm of a martingale of mean 1: whatever was released next, it was chosen by what
was seen before. So P(L_i ≥ C_i + log(1/δ)/λ) ≤ δ, by Markov. Draw a person at random:
the probability that C_i is among the largest share β of them is β. Hence

    P(L ≥ B + log(1/δ)/λ) ≤ δ + β,   B the (1 − β)-quantile of C_1, …, C_N,

for adaptive releases, without a planned number of them, and with people that differ.
With fewer than 1/β people, B is the largest C_i, so it covers every person.
Source: ours; a Rényi odometer of one order ([MTZ19] for divergences), and a quantile.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dpnoise.accounting.accountant import check_delta
from dpnoise.accounting.loss.gaussian_pld import GaussianPLDAccountant
from dpnoise.accounting.statement import PrivacyStatement
from dpnoise.errors import InputError, ParameterError
from dpnoise.events import Adversary, GaussianEvent, PoissonSampled, Repeated
from dpnoise.floats import FloatArray, text_above
from dpnoise.searches import halve
from dpnoise.student_t import student_quantile


class Interval(enum.StrEnum):
    """How the mean of a population is bounded from a sample."""

    BOUNDED = "bounded"
    """For every law on a known range."""

    STUDENT = "student"
    """As published, for comparisons only: fails where rare people are far away."""

    ALL_CLIENTS = "all-clients"
    """The whole population was counted: its mean is known."""


def upper_mean(shares: FloatArray, *, failure: float, interval: Interval) -> float:
    """Bound the mean of a population from above.

    Args:
        shares: Draws in [0, 1], shape (n,).
        failure: Probability that the mean lies above the bound, in (0, 1).
        interval: Which bound.

    Returns:
        The bound; at most 1 but for `STUDENT`.

    Raises:
        InputError: The sample is empty, or a draw lies outside of [0, 1].
        ParameterError: `failure` is out of range.
    """
    if shares.size == 0 or not np.all((shares >= 0.0) & (shares <= 1.0)):
        raise InputError("shares are at least one number between 0 and 1")
    if not 0.0 < failure < 1.0:
        raise ParameterError.of("failure", failure, "must lie in (0, 1)")
    mean = math.fsum(shares.tolist()) / shares.size
    if interval is Interval.ALL_CLIENTS:
        return mean
    if interval is Interval.STUDENT:
        return _student(shares, mean, failure)
    wanted = -math.log(failure) / shares.size
    return halve(lambda other: _entropy(mean, other) >= wanted, mean, 1.0)[1]


def _entropy(mean: float, other: float) -> float:
    """Relative entropy of a Bernoulli law of the first mean to one of the second."""
    total = 0.0
    if mean > 0.0:
        total += mean * math.log(mean / other)
    if mean < 1.0:
        total += (1.0 - mean) * (math.log1p(-mean) - math.log1p(-other))
    return total


def _student(shares: FloatArray, mean: float, failure: float) -> float:
    """M + F^-1(1 − failure, n − 1)·S/√(n − 1), S with divisor n: [TF19] (5)."""
    freedom = shares.size - 1
    if freedom < 1:
        raise InputError("Student's interval needs at least two draws")
    spread = float(np.std(shares))
    return mean + student_quantile(failure, freedom) * spread / math.sqrt(freedom)


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """Gaussian noise on a sum, and how often one person's part is in it.

    Args:
        noise_stddev: Of every coordinate of the sum, all noise together, in the unit of
            the distances.
        sampling_rate: q in (0, 1]. Less than 1 is true only where neither the noise nor
            anything else shows who is in, and only for readers of the sum.

    Raises:
        ParameterError: A number is out of range.
    """

    noise_stddev: float
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.noise_stddev < math.inf:
            raise ParameterError.of(
                "noise_stddev", self.noise_stddev, "must be greater than 0"
            )
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ParameterError.of(
                "sampling_rate", self.sampling_rate, "must lie in (0, 1]"
            )

    @classmethod
    def of_shares(
        cls, share_stddev: float, honest_shares: int, *, sampling_rate: float = 1.0
    ) -> Self:
        """Count noise that clients have added for their own instances once more.

        [TF19] section V-C: noise that protects instances at every client protects
        clients in the sum, with the noise of all honest survivors together.

        Args:
            share_stddev: Of one client's noise.
            honest_shares: Clients whose noise no party can subtract, without the client
                at stake.
            sampling_rate: As for the class.
        """
        if honest_shares < 1:
            raise ParameterError.of(
                "honest_shares", honest_shares, "must be at least 1", nearest="1"
            )
        return cls(share_stddev * math.sqrt(honest_shares), sampling_rate)

    def costs(self, orders: tuple[int, ...], distances: FloatArray) -> FloatArray:
        """Return λ·D_(λ+1) for every order and person.

        Args:
            orders: Orders λ, whole numbers of at least 1.
            distances: How far each person moves the sum, shape (people,), at least 0.

        Returns:
            Nats, shape (orders, people).

        Raises:
            InputError: A distance is negative or not finite.
        """
        if distances.ndim != 1 or distances.size == 0:
            raise InputError("distances must be a vector with at least one entry")
        if not np.all(np.isfinite(distances) & (distances >= 0.0)):
            raise InputError("distances are finite and at least 0")
        squares = (distances / self.noise_stddev) ** 2 / 2.0
        return np.stack([self._cost(order, squares) for order in orders])

    def _cost(self, order: int, squares: FloatArray) -> FloatArray:
        """Bound the cumulant of one release at an order, for squared distances."""
        if self.sampling_rate == 1.0:
            return np.asarray(order * (order + 1) * squares)
        hits = np.arange(order + 2, dtype=np.float64)
        logs = np.array(
            [
                math.log(math.comb(order + 1, k))
                + k * math.log(self.sampling_rate)
                + (order + 1 - k) * math.log1p(-self.sampling_rate)
                for k in range(order + 2)
            ]
        )
        terms = logs[:, None] + (hits * (hits - 1.0))[:, None] * squares[None, :]
        peak = terms.max(axis=0)
        return np.asarray(
            np.maximum(peak + np.log(np.exp(terms - peak).sum(axis=0)), 0.0)
        )


ORDERS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""The orders λ; few, because the failure probability is divided among them."""

_MAX_ROUNDS: Final = 1_000_000
_LABEL: Final = (
    "holds on average over a population assumed exchangeable and stationary, whose "
    "distances do not follow earlier noise; it says nothing about an atypical person"
)


class Level(enum.StrEnum):
    """Whose loss it is, and how the costs of clients are put together."""

    CLIENT = "client"
    """A client drawn from all; the whole clipped update is its distance."""

    INSTANCE_SEQUENTIAL = "instance-sequential"
    """A record drawn from all; costs of clients are added. The rate batch/records of
    all holds only while no party knows which client has the record. For a known client,
    use its own rate and the parallel form."""

    INSTANCE_PARALLEL = "instance-parallel"
    """A record drawn from those of any one client, at that client's own rate; the
    largest cost of a client counts."""

    JOINT = "joint"
    """A client, under the noise that clients added for their instances: see
    `SampledGaussian.of_shares`. One step per release only."""

    @property
    def has_groups(self) -> bool:
        """Whether costs are estimated client by client."""
        return self in {Level.INSTANCE_SEQUENTIAL, Level.INSTANCE_PARALLEL}


@dataclass(frozen=True, slots=True)
class PopulationStatement:
    """A figure for a person drawn at random, together with the worst-case figure.

    It is not a `PrivacyStatement`, so no function accepts it in place of one.

    Attributes:
        level: Whose loss it is.
        epsilon: Bound on the loss of a person drawn at random, nats.
        delta: Probability that it fails, over the person, the noise and the sample that
            it was estimated from.
        releases: How many were counted.
        interval: How means were estimated.
        worst_case: The same releases for any person at the clip, at the same delta.
    """

    level: Level
    epsilon: float
    delta: float
    releases: int
    interval: Interval
    worst_case: PrivacyStatement

    def lines(self) -> tuple[str, str]:
        """Return both figures as text, the worst-case figure first."""
        stated = self.worst_case
        worst = (
            f"worst case: {stated.figures()} ({stated.accountant}; {stated.grounds})"
        )
        drawn = (
            f"{self.level} drawn at random: epsilon {text_above(self.epsilon, 4)}, "
            f"delta {text_above(self.delta, 3)}, after {self.releases} releases; "
            f"{_LABEL}"
        )
        if self.interval is Interval.STUDENT:
            drawn += "; by Student's interval, which fails where rare people are far"
        return worst, drawn

    def to_dict(self) -> dict[str, object]:
        """Return both figures as JSON values."""
        return {
            "worst_case": self.worst_case.to_dict(),
            "drawn_at_random": {
                "level": self.level.value,
                "epsilon": self.epsilon if math.isfinite(self.epsilon) else "inf",
                "delta": self.delta,
                "releases": self.releases,
                "interval": self.interval.value,
                "holds": _LABEL,
            },
        }


class BayesianAccountant:
    """Adds up what releases cost a person drawn at random.

    Args:
        release_noise: Of every release, and how often a person is in it.
        l2_clip: Largest distance, in the unit of the noise; enforced, not estimated.
        rounds: T, how many releases are planned. It enters every cost and cannot be
            changed afterwards.
        level: Whose loss it is.
        failure: Probability that some estimate is too low, over all rounds, orders and
            clients together, in (0, 1). It is added to delta. Unused, and not added,
            with `Interval.ALL_CLIENTS`.
        interval: How means are estimated.

    Raises:
        ParameterError: A number is out of range.
    """

    def __init__(  # noqa: PLR0913  # what a claim about a population rests on
        self,
        *,
        release_noise: SampledGaussian,
        l2_clip: float,
        rounds: int,
        level: Level,
        failure: float,
        interval: Interval = Interval.BOUNDED,
    ) -> None:
        if not 1 <= rounds <= _MAX_ROUNDS:
            raise ParameterError.of(
                "rounds", rounds, f"must lie between 1 and {_MAX_ROUNDS}"
            )
        if not 0.0 < l2_clip < math.inf:
            raise ParameterError.of("l2_clip", l2_clip, "must be greater than 0")
        self._failure = check_delta(failure)
        self._noise, self._clip, self._rounds = release_noise, l2_clip, rounds
        self._level, self._interval = level, interval
        self._releases = 0
        self._spent = np.zeros(len(ORDERS))
        self._most = release_noise.costs(ORDERS, np.array([l2_clip]))[:, 0]

    def add_release(self, distances: FloatArray | Sequence[FloatArray]) -> Self:
        """Count one release.

        Args:
            distances: How far each person of the sample moves the sum, none farther
                than `l2_clip`. The levels `client` and `joint` take one vector; levels
                of instances take one vector for every client.

        Returns:
            This accountant.

        Raises:
            InputError: A distance exceeds the clip, or the vectors do not fit the
                level.
            ParameterError: All planned rounds were counted before.
        """
        if self._releases == self._rounds:
            raise ParameterError(
                f"{self._rounds} rounds were planned, and all costs were divided by "
                "that number; plan more of them from the beginning",
                parameter="rounds",
                value=self._rounds,
            )
        is_one = isinstance(distances, np.ndarray)
        if is_one == self._level.has_groups:
            raise InputError(
                f"level {self._level} takes "
                + ("one vector for every client" if is_one else "one vector")
            )
        groups = [distances] if isinstance(distances, np.ndarray) else list(distances)
        if not groups:
            raise InputError("distances must not be empty")
        costs = np.stack([self._estimate(group, len(groups)) for group in groups])
        is_added = self._level is Level.INSTANCE_SEQUENTIAL
        self._spent += costs.sum(axis=0) if is_added else costs.max(axis=0)
        self._releases += 1
        return self

    def statement(self, delta: float) -> PopulationStatement:
        """State what was spent, for a person drawn at random and in the worst case.

        Args:
            delta: Probability of both figures to fail, in (0, 1), more than `failure`.

        Raises:
            ParameterError: It is not.
        """
        certain = self._interval is Interval.ALL_CLIENTS
        left = check_delta(delta) - (0.0 if certain else self._failure)
        if left <= 0.0:
            raise ParameterError(
                f"of a delta of {delta!r} the estimates already take {self._failure!r}",
                parameter="delta",
                value=delta,
            )
        worst = self._worst_case(delta)
        orders = np.array(ORDERS, dtype=np.float64)
        epsilon = float(np.min((self._spent - math.log(left)) / orders))
        return PopulationStatement(
            level=self._level,
            epsilon=max(0.0, epsilon) if self._releases else 0.0,
            delta=delta,
            releases=self._releases,
            interval=self._interval,
            worst_case=worst,
        )

    def _estimate(self, distances: FloatArray, groups: int) -> FloatArray:
        """Bound c_t(λ) for all orders."""
        if distances.size and float(distances.max()) > self._clip * (1.0 + 2.0**-40):
            raise InputError(
                "a distance exceeds the clip, which is what bounds the others' too"
            )
        costs = self._rounds * self._noise.costs(ORDERS, distances)
        most = self._rounds * self._most
        failure = self._failure / (self._rounds * len(ORDERS) * groups)
        return np.array(
            [
                self._cost(cost, float(top), failure) / self._rounds
                for cost, top in zip(costs, most, strict=True)
            ]
        )

    def _cost(self, costs: FloatArray, most: float, failure: float) -> float:
        """Bound log E e^cost, from costs in [0, most]."""
        top = most if self._interval is Interval.BOUNDED else float(costs.max())
        if top == 0.0:
            return 0.0
        # (e^cost − 1)/(e^top − 1) lies in [0, 1], and e^top alone may be no float. Only
        # costs far below the top vanish: beside the top itself, or beside a bound that
        # is never below log(1/failure)/n, they change nothing.
        shares = np.exp(np.minimum(costs - top, 0.0))
        shares = shares * (np.expm1(-costs) / math.expm1(-top))
        bound = upper_mean(
            np.minimum(shares, 1.0), failure=failure, interval=self._interval
        )
        log_excess = top + math.log(-math.expm1(-top)) + math.log(bound)
        # The logarithm of 1 + e^log_excess:
        return max(log_excess, 0.0) + math.log1p(math.exp(-abs(log_excess)))

    def _worst_case(self, delta: float) -> PrivacyStatement:
        """Return the worst-case statement about the same releases."""
        rate = self._noise.sampling_rate
        reader = rate < 1.0
        event = GaussianEvent(1, self._noise.noise_stddev**2, self._clip)
        accountant = GaussianPLDAccountant(
            adversary=Adversary.MODEL_READER if reader else Adversary.SERVER
        )
        release = PoissonSampled(event, rate) if reader else event
        accountant.compose(Repeated(release, max(self._releases, 1)))
        return accountant.statement(delta)


def typical_epsilon(
    divergences: FloatArray,
    *,
    order: float,
    delta: float,
    share: float,
    failure: float | None = None,
) -> float:
    """Return a bound on the loss of a person drawn at random.

    Args:
        divergences: Sum of D_(λ+1) over all releases, person by person, nats, shape
            (people,).
        order: λ, fixed before the first release, greater than 0.
        delta: Failure probability of the noise, in (0, 1).
        share: Part of the people that may lose more, in (0, 1).
        failure: Probability that the sample misses the quantile; None if `divergences`
            are those of the whole population.

    Returns:
        Epsilon in nats; it fails with a probability of `delta` + `share` + `failure` at
        most. Infinite if the sample is too small to see such a share.

    Raises:
        InputError: A divergence is negative or none.
        ParameterError: A number is out of range.
    """
    if divergences.size == 0 or not np.all(divergences >= 0.0):
        raise InputError("divergences are at least one number, none negative")
    if not 0.0 < order < math.inf:
        raise ParameterError.of("order", order, "must be greater than 0")
    people = divergences.size
    ordered = np.sort(divergences)
    part = check_delta(share)
    if failure is None:
        excluded = math.floor(part * people)
    else:
        excluded = _safely_excluded(people, part, check_delta(failure))
        if excluded < 0:
            return math.inf
    quantile = float(ordered[people - 1 - min(excluded, people - 1)])
    return quantile - math.log(check_delta(delta)) / order


def _safely_excluded(people: int, share: float, failure: float) -> int:
    """Return how many largest values a sample may lack, or −1 if not even zero.

    Excluding k of n is wrong if the (1 − share)-quantile lies above the rest. Then at
    most k of n draws fell among the share: a binomial tail.
    """
    total, most = 0.0, -1
    for missed in range(people):
        log_chance = (
            math.lgamma(people + 1)
            - math.lgamma(missed + 1)
            - math.lgamma(people - missed + 1)
            + missed * math.log(share)
            + (people - missed) * math.log1p(-share)
        )
        total += math.exp(log_chance)
        if total > failure:
            break
        most = missed
    return most
