"""Records of what was released: the only language mechanisms and accountants share.

* An event states the release in full. Nothing that changes the privacy loss lives
  outside it, so an accountant never asks a mechanism anything.
* Every length is in grid steps and every variance in grid steps squared, after
  rotation, scaling and rounding. `GaussianEvent` may use the caller's units, since
  only the ratio of its two numbers matters.
* "Aggregate" noise is the *counted* noise: the shares of the smallest set that may
  ever be summed, less the colluders and the user's own share. More noise than is
  counted is post-processing and needs no event.
* Sensitivities are norms of one user's encoded vector, that is, they are stated for
  `Adjacency.ZERO_OUT`. An accountant for `Adjacency.REPLACE_ONE` doubles them.
* Noise variances are exact rationals, because a factor of two or a rounding of the
  variance is a privacy error. The sampler is built from the same rational.
* `noise_in_shares` says whether every participant adds noise of its own. Then the
  variance and the number of inputs of a sum reveal who took part, so the sampling of
  users hides nothing (`PoissonSampled`). A secret selection between vector and zeros
  reveals nothing, because all clients take part (`SecretlySelected`).
* An event that cannot describe a release is refused when it is built, with the
  parameter's name and the nearest value that works.

The checks of quantities name the field and, where there is one, the nearest value that
works; no theorem's hypothesis is checked here.

It computes no privacy loss and knows no theorem. It also has no event for strict
add/remove adjacency. With one noise share per user the variance of the sum would reveal
a missing share, which no sensitivity bound covers.
"""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, TypeAlias

from dpnoise.checks import (
    check_fraction,
    check_integer,
    check_non_negative,
    check_number,
    check_positive,
)
from dpnoise.errors import ParameterError

MAX_EVENT_DIM: Final = 1 << 40
"""Largest dimension: 2^40 coordinates of one byte are a terabyte per client."""


def check_variance(parameter: str, value: object) -> None:
    """Refuse what is no exact rational above 0."""
    if check_fraction(parameter, value) <= 0:
        raise ParameterError(
            f"{parameter} must be greater than 0, got {value}",
            parameter=parameter,
            value=value,
        )


def check_distance(value: object) -> None:
    """Refuse what is no total variation distance below 1."""
    if not 0.0 <= check_number("sampler_distance", value) < 1.0:
        raise ParameterError.of(
            "sampler_distance", value, "must lie in [0, 1)", nearest="0.0"
        )


class Adjacency(enum.Enum):
    """Which two worlds must look alike."""

    ZERO_OUT = "zero-out"
    """One user's vector is replaced by zeros; the user still adds its noise share."""

    REPLACE_ONE = "replace-one"
    """One user's vector is replaced by any other admissible vector."""

    @property
    def sensitivity_factor(self) -> float:
        """How many encoded vectors the two worlds differ by."""
        return 2.0 if self is Adjacency.REPLACE_ONE else 1.0


class Adversary(enum.Enum):
    """Who looks at the release, which decides what may be claimed against them."""

    SERVER = "server"
    """Runs the sessions and knows who takes part: no amplification by participation."""

    PARTICIPANT = "participant"
    """Receives the key list of its own sessions: no amplification by participation."""

    MODEL_READER = "model-reader"
    """Sees the released sums only, neither roster nor messages."""

    @property
    def sees_participation(self) -> bool:
        """Whether this adversary knows who took part; sampling then hides nothing."""
        return self is not Adversary.MODEL_READER


@dataclass(frozen=True, slots=True)
class SkellamEvent:
    """An integer vector with hard norm bounds plus Skellam noise per coordinate.

    Args:
        dim: Number of coordinates after rotation and padding, at least 1.
        aggregate_noise_variance: Counted variance per coordinate, grid steps squared,
            greater than 0. It is twice the Poisson rate of either half.
        l2_sensitivity: Hard bound on the rounded vector's L2 norm, grid steps, at
            least 0. Never the norm before rounding.
        l1_sensitivity: Hard bound on the rounded vector's L1 norm, or None when only
            the L2 bound is enforced.
        linf_sensitivity: Hard bound on the rounded vector's largest absolute entry,
            or None when only the L2 bound is enforced.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact Skellam noise, in [0, 1).
        l2_squared: The squared L2 bound as an exact integer, if it is known. It is at
            most the square of `l2_sensitivity`, which is a float and rounded up.
        unsigned: Whether no entry is ever below 0. Two such vectors differ by less
            than twice the longest.

    Raises:
        ParameterError: A value is out of range; the error names it.

    Source:
        [Aga21] Definition 3.1, where the second parameter is the variance.
    """

    noise_in_shares: ClassVar[bool] = True

    dim: int
    aggregate_noise_variance: Fraction
    l2_sensitivity: float
    l1_sensitivity: float | None = None
    linf_sensitivity: int | None = None
    sampler_distance: float = 0.0
    l2_squared: int | None = None
    unsigned: bool = False

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_variance("aggregate_noise_variance", self.aggregate_noise_variance)
        check_non_negative("l2_sensitivity", self.l2_sensitivity)
        if self.l1_sensitivity is not None:
            check_non_negative("l1_sensitivity", self.l1_sensitivity)
        if self.linf_sensitivity is not None:
            check_integer("linf_sensitivity", self.linf_sensitivity, 0)
        check_distance(self.sampler_distance)
        self._check_square()

    def _check_square(self) -> None:
        """Refuse an exact square that the rounded norm does not cover."""
        if self.l2_squared is None:
            return
        check_integer("l2_squared", self.l2_squared, 0)
        if self.l2_squared > Fraction(self.l2_sensitivity) ** 2:
            raise ParameterError(
                f"l2_squared {self.l2_squared} exceeds the square of l2_sensitivity "
                f"{self.l2_sensitivity!r}; round the root up",
                parameter="l2_sensitivity",
                value=self.l2_sensitivity,
                nearest=repr(math.nextafter(math.sqrt(self.l2_squared), math.inf)),
            )


@dataclass(frozen=True, slots=True)
class SkellamMixtureEvent:
    """A real vector, stochastically rounded per coordinate, plus Skellam noise.

    The privacy loss is that of the mixture of the two integers a coordinate may be
    rounded to. No hard bound on the rounded vector is needed.

    Args:
        dim: Number of coordinates after rotation and padding, at least 1.
        aggregate_noise_variance: Counted variance per coordinate, grid steps squared,
            greater than 0.
        l2_clip_squared_steps: Bound C on the squared L2 norm of the vector *before*
            rounding, grid steps squared, at least 0.
        linf_bound: Enforced bound X on every absolute coordinate before rounding,
            grid steps, greater than 0.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact Skellam noise, in [0, 1).

    Raises:
        ParameterError: A value is out of range; the error names it.
    """

    noise_in_shares: ClassVar[bool] = True

    dim: int
    aggregate_noise_variance: Fraction
    l2_clip_squared_steps: float
    linf_bound: float
    sampler_distance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_variance("aggregate_noise_variance", self.aggregate_noise_variance)
        check_non_negative("l2_clip_squared_steps", self.l2_clip_squared_steps)
        check_positive("linf_bound", self.linf_bound)
        check_distance(self.sampler_distance)

    @property
    def largest_squared_norm(self) -> float:
        """What both bounds leave of a vector's squared norm, grid steps squared."""
        return min(self.l2_clip_squared_steps, self.dim * self.linf_bound**2)


@dataclass(frozen=True, slots=True)
class SkellamMixtureClippedEvent:
    """The Skellam mixture under the special clip of its publication.

    Args:
        dim: Number of coordinates after rotation and padding, at least 1.
        aggregate_noise_variance: Counted variance per coordinate, grid steps squared,
            greater than 0.
        mixture_norm_bound: Bound c on the sum over coordinates of x² + f − f², where
            f is the fractional part of |x|; grid steps squared, at least 0.
        linf_bound: Integer bound Δ∞ on ⌈|x|⌉ for every coordinate x, at least 1.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact Skellam noise, in [0, 1).

    Raises:
        ParameterError: A value is out of range; the error names it.

    Source:
        [Bao22] Theorem 5, Eqs. (4) and (5).
    """

    noise_in_shares: ClassVar[bool] = True

    dim: int
    aggregate_noise_variance: Fraction
    mixture_norm_bound: float
    linf_bound: int
    sampler_distance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_variance("aggregate_noise_variance", self.aggregate_noise_variance)
        check_non_negative("mixture_norm_bound", self.mixture_norm_bound)
        check_integer("linf_bound", self.linf_bound, 1)
        check_distance(self.sampler_distance)

    @property
    def largest_squared_norm(self) -> float:
        """What both bounds leave of a vector's squared norm, grid steps squared."""
        return min(self.mixture_norm_bound, float(self.dim * self.linf_bound**2))


@dataclass(frozen=True, slots=True)
class DistributedDiscreteGaussianEvent:
    """An integer vector plus the sum of several independent discrete Gaussians.

    Args:
        dim: Number of coordinates after rotation and padding, at least 1.
        num_noise_shares: Counted number of independent noise shares, at least 1.
        local_noise_variance: Variance *parameter* of one discrete Gaussian share, grid
            steps squared, greater than 0. For small values the true variance of the
            share is far below it.
        l2_sensitivity: Hard bound on the rounded vector's L2 norm, grid steps.
        l1_sensitivity: Hard bound on the rounded vector's L1 norm, or None when only
            the L2 bound is enforced.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact noise, in [0, 1).

    Raises:
        ParameterError: A value is out of range; the error names it.
    """

    noise_in_shares: ClassVar[bool] = True

    dim: int
    num_noise_shares: int
    local_noise_variance: Fraction
    l2_sensitivity: float
    l1_sensitivity: float | None = None
    sampler_distance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_integer("num_noise_shares", self.num_noise_shares, 1)
        check_variance("local_noise_variance", self.local_noise_variance)
        check_non_negative("l2_sensitivity", self.l2_sensitivity)
        if self.l1_sensitivity is not None:
            check_non_negative("l1_sensitivity", self.l1_sensitivity)
        check_distance(self.sampler_distance)


@dataclass(frozen=True, slots=True)
class DiscreteGaussianEvent:
    """An integer vector plus one discrete Gaussian per coordinate.

    Args:
        dim: Number of coordinates, at least 1.
        noise_variance: Variance parameter of the discrete Gaussian, grid steps
            squared, greater than 0.
        l2_sensitivity: Hard bound on the integer vector's L2 norm, grid steps.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact noise, in [0, 1).

    Raises:
        ParameterError: A value is out of range; the error names it.

    Source:
        [CKS20] Definition 1.
    """

    noise_in_shares: ClassVar[bool] = False

    dim: int
    noise_variance: Fraction
    l2_sensitivity: float
    sampler_distance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_variance("noise_variance", self.noise_variance)
        check_non_negative("l2_sensitivity", self.l2_sensitivity)
        check_distance(self.sampler_distance)


@dataclass(frozen=True, slots=True)
class BinomialEvent:
    """An integer vector plus centred binomial noise with p = 1/2 per coordinate.

    Args:
        dim: Number of coordinates after rotation and padding, at least 1.
        num_trials: Counted number of fair Bernoulli trials in the sum, per coordinate,
            at least 1. The noise variance is a quarter of it.
        l2_sensitivity: Hard bound on the rounded vector's L2 norm, grid steps.
        l1_sensitivity: Hard bound on the rounded vector's L1 norm, grid steps.
        linf_sensitivity: Hard bound on the rounded vector's largest absolute entry.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact noise, in [0, 1).

    Raises:
        ParameterError: A value is out of range; the error names it.
    """

    noise_in_shares: ClassVar[bool] = True

    dim: int
    num_trials: int
    l2_sensitivity: float
    l1_sensitivity: float
    linf_sensitivity: int
    sampler_distance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_integer("num_trials", self.num_trials, 1)
        check_non_negative("l2_sensitivity", self.l2_sensitivity)
        check_non_negative("l1_sensitivity", self.l1_sensitivity)
        check_integer("linf_sensitivity", self.linf_sensitivity, 0)
        check_distance(self.sampler_distance)


@dataclass(frozen=True, slots=True)
class GaussianEvent:
    """A real vector plus continuous Gaussian noise: the central baseline.

    Args:
        dim: Number of coordinates, at least 1.
        noise_variance: Variance per coordinate, greater than 0, in the square of the
            unit of `l2_sensitivity`.
        l2_sensitivity: Bound on the vector's L2 norm, at least 0.
        sampler_distance: Total variation distance of all noise draws in the release
            from exact noise, in [0, 1).
        simulated: Whether floating-point numbers replace exact noise, at an unbounded
            distance. No figure about it is proven or certified.

    Raises:
        ParameterError: A value is out of range; the error names it.
    """

    noise_in_shares: ClassVar[bool] = False

    dim: int
    noise_variance: float
    l2_sensitivity: float
    sampler_distance: float = 0.0
    simulated: bool = False

    def __post_init__(self) -> None:
        check_integer("dim", self.dim, 1, MAX_EVENT_DIM)
        check_positive("noise_variance", self.noise_variance)
        check_non_negative("l2_sensitivity", self.l2_sensitivity)
        check_distance(self.sampler_distance)


NoiseEvent: TypeAlias = (
    SkellamEvent
    | SkellamMixtureEvent
    | SkellamMixtureClippedEvent
    | DistributedDiscreteGaussianEvent
    | DiscreteGaussianEvent
    | BinomialEvent
    | GaussianEvent
)
"""One release of one noisy vector."""


@dataclass(frozen=True, slots=True)
class PoissonSampled:
    """A release in which every user takes part by an independent Bernoulli selection.

    Amplification requires noise and a number of inputs that do not depend on the
    selections. One trusted party can ensure both. Noise in shares cannot, and
    accountants then count the rate as 1.

    Args:
        event: The release, given that the user takes part.
        sampling_rate: Probability q that a user takes part, in (0, 1], the same for
            every user and every release, fixed in advance.

    Raises:
        ParameterError: The rate is not in (0, 1], or `event` is itself sampled.
    """

    event: NoiseEvent
    sampling_rate: float

    def __post_init__(self) -> None:
        rate = check_number("sampling_rate", self.sampling_rate)
        if not 0.0 < rate <= 1.0:
            raise ParameterError.of(
                "sampling_rate",
                rate,
                "must lie in (0, 1]",
                nearest="1.0" if rate > 1.0 else None,
            )
        _check_single(
            self.event, "Repeated(PoissonSampled(event, sampling_rate), count)"
        )


@dataclass(frozen=True, slots=True)
class SecretlySelected:
    """A release to which every user contributes its vector or zeros, chosen in secret.

    The roster is fixed. For each release each of its users makes a Bernoulli selection
    of its own, and adds its whole noise share either way. A user that is not selected
    sends the integer zero vector under that noise, the clip flag included. Only the sum
    depends on a selection: who is asked, who answers and when, lengths and counts do
    not.

    Theorem. Let Q be the law of the release when u's integers are zero, and P when they
    are what its vector encodes to. Against Q the release has the law (1−q)·Q + q·P. So
    every pair (A, B) that dominates (P, Q) gives the pair ((1−q)·B + q·A, B), which
    composes over adaptive releases. It holds against every party whose view is a
    randomised function of the release and of some Z. Given Z, u's selection must still
    have rate q, and the counted noise its law. Such parties are readers, curious
    participants, and the server itself.

    Proof. All noise is independent of all selections, so the neighbouring inputs differ
    by u's shift alone. The other users' vectors, selections and rounding have the same
    law for both inputs. Given them, and given the uncounted noise of colluders, the
    claim is the definition of the selection. Averages of dominated pairs are dominated
    by joint convexity. Each release has a fresh selection at a rate fixed in advance,
    so its pair dominates whatever was seen before. Products of pairs dominate
    compositions. The vector of u may depend on u's own earlier selections and noise: Q
    does not depend on them.

    Args:
        event: The release, given that the user's vector was chosen.
        selection_rate: Probability q of the vector, in (0, 1], the same for every
            release, fixed in advance.

    Raises:
        ParameterError: The rate is not a fraction in (0, 1], or `event` is not a single
            release: one selection for several releases is another mechanism.
    """

    event: NoiseEvent
    selection_rate: Fraction

    def __post_init__(self) -> None:
        rate: object = self.selection_rate
        if not isinstance(rate, Fraction) or not 0 < rate <= 1:
            raise ParameterError.of(
                "selection_rate",
                rate,
                "must be a Fraction in (0, 1]",
                nearest="Fraction(1)",
            )
        _check_single(
            self.event, "Repeated(SecretlySelected(event, selection_rate), count)"
        )

    @property
    def rate_above(self) -> float:
        """The rate as a float, rounded up, at most 1.

        A selection by 256 bits has a rate of at most 2^-256 more than this rate.
        """
        return min(1.0, math.nextafter(float(self.selection_rate), math.inf))


def _check_single(event: object, nearest: str) -> None:
    """Refuse a selection that covers several releases.

    It would correlate them. The theorem here covers one selection for one release, so
    a composite event is refused.
    """
    if not isinstance(event, NoiseEvent):
        raise ParameterError(
            "event must be a single release to be sampled or selected, got "
            f"{type(event).__name__}; do that first, then repeat or compose",
            parameter="event",
            value=type(event).__name__,
            nearest=nearest,
        )


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same release, several times, each time with fresh noise.

    Args:
        event: One release; later inputs may depend on earlier outputs.
        count: Number of releases, at least 1, fixed in advance.

    Raises:
        ParameterError: The count is not a positive integer.
    """

    event: "PrivacyEvent"
    count: int

    def __post_init__(self) -> None:
        check_integer("count", self.count, 1)


@dataclass(frozen=True, slots=True)
class Composed:
    """Several different releases about the same users, in the order given.

    Args:
        events: The releases; later inputs may depend on earlier outputs, the events
            themselves may not.

    Raises:
        ParameterError: There is no event.
    """

    events: tuple["PrivacyEvent", ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ParameterError(
                "events must hold at least one release, got none",
                parameter="events",
                value=(),
                nearest="a tuple of one event",
            )


PrivacyEvent: TypeAlias = (
    NoiseEvent | PoissonSampled | SecretlySelected | Repeated | Composed
)
"""Anything an accountant can be asked to compose."""


def flatten(event: PrivacyEvent) -> Iterator[tuple[NoiseEvent, float, int, bool]]:
    """Yield the single releases an event consists of.

    Args:
        event: Any event, nested to any depth.

    Yields:
        (release, rate in (0, 1], number of repetitions, whether a secret selection
        has that rate), the last only where the rate is below 1.
    """
    pending: list[tuple[PrivacyEvent, int]] = [(event, 1)]
    while pending:
        current, count = pending.pop()
        if isinstance(current, Composed):
            pending.extend((inner, count) for inner in reversed(current.events))
        elif isinstance(current, Repeated):
            pending.append((current.event, count * current.count))
        elif isinstance(current, PoissonSampled):
            yield current.event, current.sampling_rate, count, False
        elif isinstance(current, SecretlySelected):
            rate = current.rate_above
            yield current.event, rate, count, rate < 1.0
        else:
            yield current, 1.0, count, False
