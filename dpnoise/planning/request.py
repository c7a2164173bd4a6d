"""The request for a plan, with its checks.

* Names are those of the command line. An error names the parameter as the caller
  spelled it, and the nearest value that works.
* Defaults are safe rather than flattering. By default every client must survive and no
  client colludes. Both cost no further noise, so the plan states them.

The module also computes two numbers for a request: the noise of the central Gaussian
mechanism, the reference of every plan, and the amplitude of a clip flag.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from dpnoise.accounting import accountant_names
from dpnoise.accounting.accountant import check_delta, check_epsilon
from dpnoise.accounting.reference_gaussian import gaussian_variance
from dpnoise.checks import check_integer, check_number, check_positive
from dpnoise.encoding.rotation import encoded_dim
from dpnoise.errors import ParameterError
from dpnoise.events import (
    Adjacency,
    Adversary,
    NoiseEvent,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
    SecretlySelected,
)
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.clip_flag import suggest_flag_amplitude
from dpnoise.mechanisms.error_forecast import ErrorForecast, Rounding
from dpnoise.mechanisms.noise_share import MAX_CLIENTS, MAX_LADDER, NoiseRule
from dpnoise.mechanisms.parameter_checks import check_choice, check_length, plain_number
from dpnoise.mechanisms.parameters import (
    DEFAULT_ROUNDING_BIAS,
    MAX_DIM,
    MAX_SCALED_CLIP,
    ROTATION_NAMES,
    check_linf_bound,
    check_rounding_bias,
)
from dpnoise.mechanisms.registry import mechanism_class, mechanism_names
from dpnoise.mechanisms.secret_selection import (
    ALL_CLIENTS,
    check_selection_rate,
    most_selected,
)
from dpnoise.mechanisms.skellam_counts import counts_norm
from dpnoise.planning import tuning

DEFAULT_MAX_WRAP_PROBABILITY = 0.01
"""Where more than one coordinate in a hundred wraps, the modulus is too small."""

DEFAULT_LADDER = 4
"""Where three tenths may be lost, four rungs keep 2.3 percent too much at most."""

LEAST_VARIANCE = Fraction(1, 1 << 60)
"""Of noise that a trusted party adds, grid steps²."""

_MAX_BITS = 62
_BELOW_RATE = 1000.0
_PART_OF_WRAPS = 1024.0
_SIX_DIGITS = 1_000_000
_MAX_STEPS = 1 << 40  # beyond, no noise that fits a sampler suffices


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The question that `dpnoise.plan` answers; its fields are the keywords of `plan`.

    Args:
        clients: Cohort size of one session, at least 2.
        dimension: Coordinates of the caller's vector, at least 1.
        l2_clip: Bound on the L2 norm of one client's vector, caller's units. Omit it
            for `skellam-counts`, whose bounds on entries determine it.
        epsilon: Privacy loss of one client over all its sessions, nats, above 0.
        delta: Failure probability, in (0, 1).
        bits: Bits per coordinate of the modulus, 1 … 62. None for the fewest whose
            error is within 1.05 of the central Gaussian's with the same shares, or
            within 1.02 of the best where that is more. The factors are 1.01 and 1.006
            where all entries of a vector are rounded together.
        mechanism: One of `dpnoise.mechanisms.mechanism_names()`.
        scale_factor: Grid steps per unit; None for the one with the least error.
        steps: Sums that are to be released, N, at least 1.
        participations: Most of these sums that hold one client's data, n, from 1 to
            `steps`; None for all of them. Epsilon and delta cover n + `spare` sessions.
            Clients keep to this number themselves.
        spare: Further sessions of one client that may end without a sum, at least 0.
            Such a session may have shown its noisy vector, so it is counted.
        sampling_rate: Probability that a user takes part in a session, in (0, 1], by
            independent selections. For mechanisms whose noise one trusted party adds;
            noise shares of the participants reveal the selections and refuse it.
        selection_rate: Probability that the vector of a client counts, in (0, 1]. Each
            client selects its vector in secret in every step; if not selected, it sends
            zeros with its noise. For mechanisms whose noise comes in shares. A float is
            read to six digits.
        min_survivors: Smallest set ever summed, at least `colluders + 2`; None if a
            session with a lost client is abandoned.
        loss_fraction: Part of a session's roster that may be lost, in [0, 1), read to
            six digits; None for what `min_survivors` leaves of the whole cohort.
        colluders: Tolerated parties that know and subtract their own noise.
        colluder_fraction: Part of a session's roster that is taken for colluders where
            that is more, in [0, 1), read to six digits.
        ladder: Rungs by which survivors remove noise that no losses have made
            necessary, 0 (none) … 8. None for 4 where clients may be lost and the
            mechanism allows a ladder.
        accountant: One of `dpnoise.accounting.accountant_names()`; None for the
            default, which is proven or certified.
        adjacency: Which neighbouring inputs must look alike.
        rotation: One of "hadamard", "hadamard-kronecker", "dft", "none".
        rounding_bias: The β of conditional rounding, in [0, 1).
        linf_bound: Bound on coordinates before rounding, grid steps, a multiple of
            1/4096 in [1/4096, 2^25]; None to derive.
        clip_flag_amplitude: L2 norm of the extra coordinates of adaptive clipping,
            caller's units; 0 for none.
        sum_l2_norm: Expected L2 norm of the exact sum, caller's units; None for the
            largest possible. It decides how much room the modulus leaves.
        sum_l2_failure: Probability that the sum is longer than `sum_l2_norm`, in
            [0, `max_wrap_probability`): counted as if every coordinate wrapped around
            then. It costs the estimate alone, never privacy.
        max_wrap_probability: Largest acceptable probability that one coordinate wraps
            around, in (0, 1]; 1 accepts useless sums, for reproductions.
        max_nonzero: Largest number of entries of one vector that are not zero, for
            `skellam-counts`: 1 for a histogram, `dimension` for as many votes.
            `linf_bound` is 1 there unless given.
        signed: Whether entries of `skellam-counts` may be below 0.
        on_progress: Called after each grid for which an accountant was asked, with how
            many there have been; a plan takes a few, or some twenty. No plan keeps it.

    Raises:
        ParameterError: A value cannot work; the error names it and the nearest value
            that does.
    """

    clients: int
    dimension: int
    epsilon: float
    delta: float
    l2_clip: float = 0.0
    bits: int | None = None
    mechanism: str = "skellam-mixture"
    scale_factor: float | None = None
    steps: int = 1
    participations: int | None = None
    spare: int = 0
    sampling_rate: float | None = None
    selection_rate: Fraction | float | None = None
    min_survivors: int | None = None
    loss_fraction: float | None = None
    colluders: int = 0
    colluder_fraction: float = 0.0
    ladder: int | None = None
    accountant: str | None = None
    adjacency: Adjacency = Adjacency.ZERO_OUT
    rotation: str = "hadamard"
    rounding_bias: float = DEFAULT_ROUNDING_BIAS
    linf_bound: Fraction | float | None = None
    clip_flag_amplitude: float = 0.0
    sum_l2_norm: float | None = None
    sum_l2_failure: float = 0.0
    max_wrap_probability: float = DEFAULT_MAX_WRAP_PROBABILITY
    max_nonzero: int | None = None
    signed: bool = False
    on_progress: Callable[[int], None] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            plain = plain_number(getattr(self, each.name))
            object.__setattr__(self, each.name, plain)  # still under construction
        if not (self.on_progress is None or callable(self.on_progress)):
            raise ParameterError(
                "on_progress must be a function of one number",
                parameter="on_progress",
            )
        self._check()

    def _check(self) -> None:
        """Refuse a field, or fields together, that no plan can have."""
        check_choice("mechanism", self.mechanism, mechanism_names())
        check_choice("rotation", self.rotation, ROTATION_NAMES)
        if self.accountant is not None:
            check_choice("accountant", self.accountant, accountant_names())
        check_integer("clients", self.clients, 2, MAX_CLIENTS)
        check_integer("dimension", self.dimension, 1, MAX_DIM)
        if self.mechanism_class.takes_counts:
            self._derive_from_counts()
        check_length("l2_clip", self.l2_clip)
        self._check_adjacency()
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_integer("steps", self.steps, 1, _MAX_STEPS)
        if self.participations is not None:
            check_integer("participations", self.participations, 1, self.steps)
        check_integer("spare", self.spare, 0, _MAX_STEPS)
        check_integer("colluders", self.colluders, 0, self.clients - 2)
        if self.min_survivors is not None:
            check_integer(
                "min_survivors", self.min_survivors, self.colluders + 2, self.clients
            )
        self._check_division()
        if self.bits is not None:
            check_integer("bits", self.bits, 1, _MAX_BITS)
        if self.scale_factor is not None:
            check_positive("scale_factor", self.scale_factor)
        if self.sum_l2_norm is not None:
            check_length("sum_l2_norm", self.sum_l2_norm)
        check_rounding_bias(self.rounding_bias)
        if self.linf_bound is not None:
            check_positive("linf_bound", self.linf_bound)
            check_linf_bound(Fraction(self.linf_bound))
        if check_number("clip_flag_amplitude", self.clip_flag_amplitude) < 0.0:
            raise ParameterError(
                "clip_flag_amplitude must be at least 0",
                parameter="clip_flag_amplitude",
                value=self.clip_flag_amplitude,
                nearest="0.0",
            )
        self._check_sampling()
        self._check_selection()
        _check_probability("max_wrap_probability", self.max_wrap_probability)
        self._check_longer_sums()

    def _derive_from_counts(self) -> None:
        """Fill in what bounds on whole numbers imply; `make_mechanism` checks them."""
        linf_bound = 1 if self.linf_bound is None else math.floor(self.linf_bound)
        check_integer("linf_bound", linf_bound, 1, int(MAX_SCALED_CLIP))
        if self.max_nonzero is None:
            raise ParameterError(
                "whole numbers need max_nonzero, the number of entries that one vector "
                "may set",
                parameter="max_nonzero",
                value=None,
                nearest="1, as for a vote or a histogram",
            )
        check_integer("max_nonzero", self.max_nonzero, 1, self.dimension)
        implied: dict[str, object] = {"rotation": "none"}
        if self.linf_bound is None:
            implied["linf_bound"] = Fraction(1)
        if self.l2_clip == 0.0:
            implied["l2_clip"] = counts_norm(linf_bound, self.max_nonzero)
        if self.scale_factor is None:
            implied["scale_factor"] = 1.0
        for name, value in implied.items():
            object.__setattr__(self, name, value)  # still under construction

    def _check_adjacency(self) -> None:
        """Refuse worlds that no theorem makes alike, and words that name none."""
        if not isinstance(self.adjacency, Adjacency):
            raise ParameterError.of(
                "adjacency",
                self.adjacency,
                "must be a dpnoise.Adjacency",
                nearest="Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE",
            )
        rounds_at_random = self.mechanism_class.rounding is Rounding.STOCHASTIC
        if self.adjacency is Adjacency.REPLACE_ONE and rounds_at_random:
            raise ParameterError(
                f"{self.mechanism} makes no promise under replace-one: a vector "
                "rounded at random has a theorem beside zeros, and none beside "
                "another one. Mechanisms that round within hard bounds have both, such "
                "as skellam",
                parameter="adjacency",
                value=self.adjacency.value,
                nearest="zero-out, or the mechanism skellam",
            )

    def _check_division(self) -> None:
        """Refuse losses and colluders that leave some roster without a share."""
        for name in ("loss_fraction", "colluder_fraction"):
            part = getattr(self, name)
            if part is None and name == "loss_fraction":
                continue
            if not 0.0 <= check_number(name, part) < 1.0:
                raise ParameterError.of(
                    name,
                    part,
                    "must lie in [0, 1)",
                    nearest="0.0" if part < 0.0 else "0.99",
                )
        kind = self.mechanism_class
        if self.ladder is not None:
            if self.ladder and (self.is_central or not kind.takes_ladder):
                raise ParameterError(
                    "ladder is for noise whose layers add up to noise of the same law; "
                    f"that of {self.mechanism} cannot be taken back in parts",
                    parameter="ladder",
                    value=self.ladder,
                    nearest="0, or the mechanism skellam",
                )
            check_integer("ladder", self.ladder, 0, MAX_LADDER)
        self.division.smallest_counted_shares(self.clients)

    def _check_longer_sums(self) -> None:
        """Refuse a chance of longer sums that uses up what wrapping is allowed."""
        failure = check_number("sum_l2_failure", self.sum_l2_failure)
        if failure == 0.0:
            return
        limit = 0.0 if self.sum_l2_norm is None else self.max_wrap_probability
        if not 0.0 < failure < limit:
            raise ParameterError(
                "sum_l2_failure is a part of max_wrap_probability, and belongs to a "
                f"sum_l2_norm; got {failure!r}",
                parameter="sum_l2_failure",
                value=failure,
                nearest="0.0" if limit == 0.0 else f"{limit / _PART_OF_WRAPS:g}",
            )

    def _check_sampling(self) -> None:
        """Refuse a sampling rate that the participants' own noise would reveal."""
        if self.sampling_rate is None:
            return
        _check_probability("sampling_rate", self.sampling_rate)
        if self.sampling_rate == 1.0 or self.is_central:
            return
        raise ParameterError(
            f"sampling_rate cannot be counted for {self.mechanism}: every participant "
            "adds its own noise share, so the variance of a sum and the number of its "
            "inputs reveal who took part. State selection_rate, with which all clients "
            "take part and each selects its vector in secret, or omit both: every step "
            "then counts in full",
            parameter="sampling_rate",
            value=self.sampling_rate,
            nearest="1.0, which counts every step; or state a selection_rate",
        )

    def _check_selection(self) -> None:
        """Refuse an invalid rate, and a secret selection that could not stay secret."""
        if self.selection_rate is None:
            return
        if not isinstance(self.selection_rate, Fraction):
            _check_probability("selection_rate", self.selection_rate)
        rate = self.selection
        check_selection_rate(rate)
        if self.delta >= rate:
            raise ParameterError(
                f"delta {self.delta:g} is not below the selection rate {rate}: the "
                "selection alone keeps such a guarantee, with no noise at all",
                parameter="delta",
                value=self.delta,
                nearest=f"{float(rate) / _BELOW_RATE:g}",
            )
        if rate < 1 and self.is_central:
            raise ParameterError(
                f"selection_rate is for noise that comes in shares; {self.mechanism} "
                "has a trusted party, which may draw who takes part: state "
                "sampling_rate",
                parameter="selection_rate",
                value=self.selection_rate,
                nearest="1",
            )

    @property
    def selection(self) -> Fraction:
        """The selection rate; 1 where every vector counts."""
        rate = self.selection_rate
        if rate is None:
            return ALL_CLIENTS
        if isinstance(rate, Fraction):
            return rate
        return Fraction(rate).limit_denominator(_SIX_DIGITS)

    @property
    def planned_sum_norm(self) -> float | None:
        """L2 norm of the exact sum that the modulus must hold; None for the largest.

        Under a selection it covers as many vectors as `most_selected` returns.
        """
        if self.sum_l2_norm is not None or self.selection == 1:
            return self.sum_l2_norm
        return most_selected(self.clients, self.selection) * self.l2_clip

    def forecast(self, mechanism: Mechanism) -> ErrorForecast:
        """Forecast the error of a mechanism, with the sums that are planned for."""
        made = mechanism.forecast(sum_l2_norm=self.planned_sum_norm)
        return self.with_longer_sums(made, mechanism.rotated_dim)

    def with_longer_sums(self, made: ErrorForecast, entries: int) -> ErrorForecast:
        """Count the chance of a longer sum, see `sum_l2_failure`."""
        failure = self.sum_l2_failure
        return made if failure == 0.0 else made.with_longer_sums(failure, entries)

    @property
    def survivors(self) -> int:
        """Smallest set that will be summed: `min_survivors`, or every client."""
        return self.clients if self.min_survivors is None else self.min_survivors

    @property
    def mechanism_class(self) -> type[Mechanism]:
        """The class of the mechanism, which holds the facts that planning needs."""
        return mechanism_class(self.mechanism)

    @property
    def is_central(self) -> bool:
        """Whether the mechanism's noise comes from one trusted party."""
        return self.mechanism_class.noise_is_central

    @property
    def is_published_mixture(self) -> bool:
        """Whether noise and coordinate bound follow the published mixture theorem."""
        published = self.mechanism_class.published_accountant
        return published is not None and self.accountant in {None, published}

    @property
    def tolerated_losses(self) -> Fraction:
        """Part of a session's roster that may be lost."""
        if self.loss_fraction is None:
            return Fraction(self.clients - self.survivors, self.clients)
        return Fraction(self.loss_fraction).limit_denominator(_SIX_DIGITS)

    @property
    def rungs(self) -> int:
        """Rungs of the ladder, chosen where they are left open."""
        if self.ladder is not None:
            return self.ladder
        has_use = self.mechanism_class.takes_ladder and not self.is_central
        return DEFAULT_LADDER if has_use and self._can_lose_clients else 0

    @property
    def _can_lose_clients(self) -> bool:
        lost = math.floor(self.tolerated_losses * self.clients)
        return min(self.clients - self.survivors, lost) > 0

    def noise_rule(self, counted_variance: Fraction) -> NoiseRule:
        """Return the rule that divides a variance among the clients of a session.

        Args:
            counted_variance: What privacy counts, grid steps².
        """
        colluding = Fraction(self.colluder_fraction).limit_denominator(_SIX_DIGITS)
        return NoiseRule(
            counted_variance=counted_variance,
            min_survivors=self.survivors,
            loss_fraction=self.tolerated_losses,
            colluders=self.colluders,
            colluder_fraction=colluding,
            share_bits=self.mechanism_class.finest_share_bits,
            ladder=self.rungs,
        )

    @property
    def division(self) -> NoiseRule:
        """The rule for a variance of 1: the others are in proportion to it."""
        return self.noise_rule(Fraction(1))

    @property
    def counted_shares(self) -> int:
        """The fewest noise shares that privacy counts, over all rosters."""
        if self.is_central:
            return 1
        return self.division.smallest_counted_shares(self.clients)

    @property
    def least_counted_variance(self) -> Fraction:
        """The least noise that can be planned; thinner shares are beyond the samplers.

        More noise than a promise needs is post-processing.
        """
        if self.is_central:
            return LEAST_VARIANCE
        widest = self.division.largest_counted_shares(self.clients)
        return self.mechanism_class.least_variance * widest

    @property
    def surplus_factor(self) -> float:
        """Largest variance that can arrive, over the variance that counts."""
        if self.is_central:
            return 1.0
        return self.division.largest_surplus(self.clients)

    @property
    def expected_surplus(self) -> float:
        """Variance that a full session without losses keeps, over what counts."""
        if self.is_central:
            return 1.0
        division = dataclasses.replace(self.division, share_bits=64)
        return float(self.clients * division.session(self.clients).remaining(0))

    @property
    def sent_draws(self) -> int:
        """Draws for one coordinate that can arrive in one sum."""
        if self.is_central:
            return 1
        return self.clients * (self.rungs + 2 if self.rungs else 1)

    @property
    def calibrated_for(self) -> Adversary:
        """The adversary that the noise is calibrated against.

        Noise that one party adds to the sum protects against readers of that sum only.
        """
        return Adversary.MODEL_READER if self.is_central else Adversary.SERVER

    @property
    def sums_of_one_client(self) -> int:
        """Most sums that hold one client's data, n."""
        return self.steps if self.participations is None else self.participations

    @property
    def charges(self) -> int:
        """Most sessions that one client's data enter, n + spare: what is counted."""
        return self.sums_of_one_client + self.spare

    @property
    def scaled_bound(self) -> float:
        """Largest scale factor of any use, where it is chosen.

        The fixed-point encoding holds no more, and a given bound on coordinates cuts
        every vector that is as long as the clip.
        """
        held = MAX_SCALED_CLIP / math.hypot(self.l2_clip, self.clip_flag_amplitude)
        if self.linf_bound is None:
            return held
        entries = encoded_dim(self.rotation, self.dimension)
        return min(held, float(self.linf_bound) * math.sqrt(entries) / self.l2_clip)

    def releases(self, one: NoiseEvent) -> PrivacyEvent:
        """Return all releases that hold one client's data, given one of them."""
        single: PrivacyEvent = one
        if self.sampling_rate is not None:
            single = PoissonSampled(one, self.sampling_rate)
        if self.selection < 1:
            single = SecretlySelected(one, self.selection)
        return single if self.charges == 1 else Repeated(single, self.charges)


def _check_probability(parameter: str, value: float) -> None:
    """Refuse a probability outside of (0, 1]."""
    number = check_number(parameter, value)
    if not 0.0 < number <= 1.0:
        raise ParameterError.of(
            parameter,
            number,
            "must lie in (0, 1]",
            nearest="1.0" if number > 1.0 else "any number above 0, such as 0.01",
        )


def gaussian_variance_per_sensitivity(request: PlanRequest) -> float:
    """Return the variance that the central Gaussian needs per squared L2 clip.

    That mechanism has a trusted party, real-valued noise, no rounding and no modulus.
    It spends the same ε and δ over the same sessions, against the same adversary. A
    sampling rate and a secret selection have the same pair of laws. It knows the same
    bounds of a vector: counts never below 0 differ by less than twice the longest.

    Args:
        request: Whose ε, δ, charges, sampling or selection rate and adjacency to spend.

    Returns:
        σ²/r²: multiply by the squared clip for the mean squared error of the sum.
    """
    rate = request.sampling_rate if request.selection == 1 else float(request.selection)
    if rate is None or request.adjacency is Adjacency.REPLACE_ONE:
        rate = 1.0
    once = gaussian_variance(
        float(request.epsilon), float(request.delta), rate=rate, count=request.charges
    )
    return once * _farthest(request) ** 2


def _farthest(request: PlanRequest) -> float:
    """Return how far apart the vectors of two worlds may be, in clips."""
    factor = request.adjacency.sensitivity_factor
    if request.max_nonzero is None or request.signed or factor == 1.0:
        return factor
    # Ones of one vector lie beside those of the other, as far as there is room.
    return math.sqrt(min(factor, request.dimension / request.max_nonzero))


def clip_flag_amplitude(request: PlanRequest) -> float:
    """Choose the amplitude of the clip flag for a plan.

    The flag takes its part of the norm that clipping leaves, so it costs noise. The
    noise of a released share is that of the sum: it falls with the number of clients
    and grows with the number of sessions.

    Args:
        request: The plan that is asked for; its own `clip_flag_amplitude` is not
            looked at.

    Returns:
        The amplitude a, caller's units: what reads the share of a full session to
        within 0.05, and at most a quarter of the clip.

    Raises:
        ParameterError: So few clients tell their share only in noise; the error names
            how many would do.
    """
    multiplier = math.sqrt(gaussian_variance_per_sensitivity(request))
    clients = math.floor(request.selection * request.survivors)
    loudest = tuning.FLAG_LOUDEST * request.l2_clip
    reads_to = multiplier * math.sqrt(1.0 + tuning.FLAG_LOUDEST**-2) / 2.0
    needed = math.ceil(reads_to / (tuning.FLAG_WORST * float(request.selection)))
    if clients * tuning.FLAG_WORST < reads_to:
        raise ParameterError(
            f"{request.survivors} clients tell the share of vectors that fit only in "
            "noise, and the clip would follow it: give epsilon to fewer sessions, or "
            "count on more clients",
            parameter="min_survivors",
            value=request.survivors,
            nearest=str(needed),
        )
    if (
        2.0
        * clients
        * tuning.FLAG_WANTED
        * tuning.FLAG_LOUDEST
        / math.sqrt(1.0 + tuning.FLAG_LOUDEST**2)
        < multiplier
    ):
        return loudest
    return suggest_flag_amplitude(
        l2_clip=float(request.l2_clip),
        noise_multiplier=multiplier,
        num_clients=clients,
        share_stddev=tuning.FLAG_WANTED,
    )
