"""From a privacy budget to parameters: what to configure, what it costs, what it gives.

* The accountant decides how much noise is needed; `NoiseRule` divides it among the
  clients of a session, whatever their number, and counts neither those that may be
  lost nor colluders nor the user itself.
* The finished parameters are accounted for again, sampler's distance included, and
  the plan is refused if they exceed the budget.
* Two adversaries are always reported apart: the server, and readers of the released
  sums. Whoever sees less than the server learns no more than the server.
* The forecast error counts the most noise that can arrive, over all rosters.
* A modulus that cannot hold the sum is refused, with the bits that can; no plan is
  made whose estimate would be dominated by wrapping.

It draws no noise and sends nothing.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final, ParamSpec, cast

from dpnoise.accounting import (
    Accountant,
    PrivacyStatement,
    calibrate_least,
    default_accountants,
    make_accountant,
)
from dpnoise.accounting.calibration import round_up_to_dyadic
from dpnoise.errors import (
    CalibrationError,
    ParameterError,
    TheoremNotApplicableError,
)
from dpnoise.events import Adversary, NoiseEvent, PrivacyEvent
from dpnoise.mechanisms.base import DISTANCE_PER_DRAW, Mechanism
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning.central_gaussian import gaussian_variance_per_sensitivity
from dpnoise.planning.error_curve import model_through, packed_bytes
from dpnoise.planning.notes import plan_notes
from dpnoise.planning.refusals import (
    refuse_beyond_samplers,
    refuse_uncovered,
    refuse_wrapping,
)
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.result import Plan
from dpnoise.planning.scale_search import (
    UNBOUNDED_BITS,
    NoiseModel,
    best_scale,
    forecast_at,
    smallest_bits,
    smallest_scale,
)

__all__ = ["plan"]

_P = ParamSpec("_P")

ERROR_FACTOR: Final = 1.05
"""Bits are saved as long as the error stays within this factor of the best."""

_RETRIES: Final = 4
_WORTHWHILE: Final = 1.005  # a calibration for less than half a percent is waste
_LEAST_VARIANCE: Final = Fraction(1, 1 << 60)
_LARGEST_VARIANCE: Final = Fraction(1 << 100)


def _asked_by_keyword(
    make: Callable[_P, PlanRequest],
) -> Callable[[Callable[[PlanRequest], Plan]], Callable[_P, Plan]]:
    """Let a function of a request be called with the request's fields.

    So the parameters stand in one place, `PlanRequest`, and both type checkers and
    `help` see them at the call.
    """

    def decorate(body: Callable[[PlanRequest], Plan]) -> Callable[_P, Plan]:
        @functools.wraps(body)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> Plan:
            return body(make(*args, **kwargs))

        signature = inspect.signature(make).replace(return_annotation=Plan)
        vars(call)["__signature__"] = signature
        return call

    return decorate


@_asked_by_keyword(PlanRequest)
def plan(request: PlanRequest) -> Plan:
    """Choose scale, modulus and noise for a privacy budget, and forecast the error.

    Call it with the fields of `PlanRequest` as keywords; that class says what each of
    them means.

    Returns:
        The plan. Its parameters spend at most ε against `request.calibrated_for`.

    Raises:
        ParameterError: A value cannot work, or the modulus is too small for the sum;
            the error names the parameter and the nearest value that works.
        TheoremNotApplicableError: The accountant's theorem does not cover the scale.
        UnknownEventError: The accountant has no theorem for the mechanism.
        CalibrationError: No amount of noise keeps the budget.

    Example:
        plan(clients=100, dimension=65536, l2_clip=1.0, epsilon=1.0, delta=1e-5)

    Source:
        [Aga21] section 5 for the choice of the scale, replaced by the whole forecast.
    """
    return _Planner(request).run()


class _Planner:
    """One run from request to plan."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._unit_variance = gaussian_variance_per_sensitivity(request)
        self._model = NoiseModel(request, self._unit_variance)
        self._accountant = request.accountant

    def run(self) -> Plan:
        request = self._request
        if request.scale_factor is None:
            scale_factor, mechanism, variance = self._search_scale()
        else:
            scale_factor = request.scale_factor
            refuse_uncovered(self._model, scale_factor)
            mechanism, variance = self._calibrate(scale_factor)
        bits = request.bits
        if bits is None:
            bits = self._bits_for(scale_factor, mechanism, variance)
        parameters = self._divide(mechanism.parameters, variance, bits)
        return self._finish(parameters, variance)

    def _search_scale(self) -> tuple[float, Mechanism, Fraction]:
        """Search with the model; calibrate, correct it, and search again if it pays."""
        scale_factor = self._best(self._model)
        mechanism, variance = self._calibrate(scale_factor)
        fitted = model_through(self._request, mechanism.parameters, variance)
        moved = self._best(fitted)
        if self._pays(fitted, scale_factor, moved):
            scale_factor = moved
            mechanism, variance = self._calibrate(scale_factor)
        return scale_factor, mechanism, variance

    def _pays(self, model: NoiseModel, present: float, moved: float) -> bool:
        """Whether another scale is worth another calibration."""
        bits = self._request.bits
        if bits is None:
            bits = UNBOUNDED_BITS  # the modulus follows the scale, whichever it is
        here, there = (forecast_at(model, scale, bits) for scale in (present, moved))
        return (
            here.expected_mse > _WORTHWHILE * there.expected_mse
            or here.wrap_probability > self._request.max_wrap_probability
        )

    def _best(self, model: NoiseModel) -> float:
        request, bits = self._request, self._request.bits
        lowest = smallest_scale(model)
        if not model.fits_sampler(lowest):
            share = model.counted_variance(lowest) / request.counted_shares
            raise ParameterError(
                f"even on the coarsest grid one noise share of {request.mechanism} "
                f"needs a variance of {share:.3g} grid steps squared, more than the "
                "samplers hold: relax epsilon, count more clients, or round without "
                "a norm bound",
                parameter="epsilon",
                value=request.epsilon,
                nearest=None,
            )
        if bits is None:
            bits = smallest_bits(model, error_factor=ERROR_FACTOR)
        found = best_scale(model, bits)
        if found is None:
            raise ParameterError(
                f"a modulus of {bits} bits cannot hold the sum of "
                f"{request.clients} noisy vectors at any scale",
                parameter="bits",
                value=bits,
                nearest=str(smallest_bits(model, error_factor=math.inf)),
            )
        # Twelve significant bits: a readable number, and the error does not notice.
        scale = found.scale_factor
        step = 2.0 ** (math.floor(math.log2(scale)) - 11)
        return math.floor(scale / step) * step

    def _bits_for(
        self, scale_factor: float, mechanism: Mechanism, variance: Fraction
    ) -> int:
        """The smallest modulus for a given scale."""
        if self._request.mechanism_class.takes_counts:
            return self._bits_for_counts(mechanism, variance)
        model = model_through(self._request, mechanism.parameters, variance)
        free = forecast_at(model, scale_factor, UNBOUNDED_BITS)
        for bits in range(1, UNBOUNDED_BITS):
            found = forecast_at(model, scale_factor, bits)
            if (
                found.expected_mse <= ERROR_FACTOR * free.expected_mse
                and found.wrap_probability <= self._request.max_wrap_probability
            ):
                return bits
        return UNBOUNDED_BITS

    def _bits_for_counts(self, mechanism: Mechanism, variance: Fraction) -> int:
        """The smallest modulus that holds the largest count and its noise."""
        request = self._request
        for bits in range(1, UNBOUNDED_BITS):
            parameters = self._divide(mechanism.parameters, variance, bits)
            found = make_mechanism(parameters).forecast(sum_l2_norm=request.sum_l2_norm)
            if (
                found.wrap_mse <= (ERROR_FACTOR - 1.0) * found.noise_mse
                and found.wrap_probability <= request.max_wrap_probability
            ):
                return bits
        return UNBOUNDED_BITS

    def _calibrate(self, scale_factor: float) -> tuple[Mechanism, Fraction]:
        """Ask the accountant how much noise this scale needs."""
        request = self._request
        published = self._model.is_published_mixture and request.linf_bound is None
        # The weakest demand on the noise; the bound is widened afterwards.
        linf_bound = None
        if published:
            linf_bound = Fraction(1)
        elif request.linf_bound is not None:
            linf_bound = Fraction(request.linf_bound)
        elif request.mechanism_class.published_accountant:
            linf_bound = Fraction(math.ceil(self._model.natural_cap(scale_factor)))
        mechanism = self._mechanism(scale_factor, linf_bound)
        refuse_beyond_samplers(request, self._planned_distance(mechanism))
        found = calibrate_least(
            self._events(mechanism),
            accountants=self._trusted(mechanism),
            epsilon=request.epsilon,
            delta=request.delta,
            adversary=request.calibrated_for,
            adjacency=request.adjacency,
            bracket=(_LEAST_VARIANCE, _LARGEST_VARIANCE),
        )
        variance, self._accountant = found.variance, found.accountant
        if published:
            mechanism = self._widen(mechanism, variance)
        return mechanism, variance

    def _planned_distance(self, mechanism: Mechanism) -> float:
        """Bound the distance that all draws of one release will be charged for."""
        return mechanism.encoded_dim * self._request.sent_draws * DISTANCE_PER_DRAW

    def _trusted(self, mechanism: Mechanism) -> tuple[str, ...]:
        """Name the accountants to ask; the one that asks least noise decides."""
        request = self._request
        named = request.accountant or request.mechanism_class.published_accountant
        if named is not None:
            return (named,)
        typical = Fraction(
            max(1.0, self._model.counted_variance(mechanism.parameters.scale_factor))
        )
        release = cast("NoiseEvent", mechanism.event_with_noise(typical))
        return default_accountants(
            request.releases(release), adjacency=request.adjacency
        )

    def _events(self, mechanism: Mechanism) -> Callable[[Fraction], PrivacyEvent]:
        request = self._request
        distance = self._planned_distance(mechanism)

        def build(variance: Fraction) -> PrivacyEvent:
            release = mechanism.event_with_noise(variance, sampler_distance=distance)
            return request.releases(cast("NoiseEvent", release))

        return build

    def _widen(self, mechanism: Mechanism, variance: Fraction) -> Mechanism:
        """Give smm the largest integer Δ∞ that costs no further noise."""
        request, given = self._request, mechanism.parameters

        def works(linf_bound: int) -> Mechanism | None:
            candidate = self._mechanism(given.scale_factor, Fraction(linf_bound))
            event = self._events(candidate)(variance)
            try:
                account = self._account(event)
            except TheoremNotApplicableError:
                return None
            within = account.epsilon(request.delta) <= request.epsilon
            return candidate if within else None

        low, high = 1, math.ceil(self._model.natural_cap(given.scale_factor)) + 1
        best = mechanism
        while high - low > 1:
            middle = (low + high) // 2
            candidate = works(middle)
            if candidate is None:
                high = middle
            else:
                low, best = middle, candidate
        return best

    def _mechanism(self, scale_factor: float, linf_bound: Fraction | None) -> Mechanism:
        """Build the mechanism with a placeholder for the noise and the modulus."""
        request = self._request
        # As much as the samplers hold, so that no theorem wants more of it.
        most = request.mechanism_class.largest_variance * request.counted_shares
        return make_mechanism(
            MechanismParameters(
                mechanism=request.mechanism,
                dim=request.dimension,
                l2_clip=float(request.l2_clip),
                scale_factor=scale_factor,
                modulus=1 << UNBOUNDED_BITS,
                noise_rule=request.noise_rule(most),
                num_clients=request.clients,
                rotation=request.rotation,
                rounding_bias=request.rounding_bias,
                linf_bound=linf_bound,
                clip_flag_amplitude=float(request.clip_flag_amplitude),
                max_nonzero=request.max_nonzero,
                signed=request.signed,
            )
        )

    def _divide(
        self, placeholder: MechanismParameters, variance: Fraction, bits: int
    ) -> MechanismParameters:
        """Let the shares of every roster add up to the required noise."""
        request = self._request
        kind = request.mechanism_class
        if not request.is_central:
            # Thinner shares are beyond the samplers; more noise is post-processing.
            widest = request.division.largest_counted_shares(request.clients)
            variance = max(variance, kind.least_variance * widest)
        limit = kind.largest_variance
        if (share := variance / request.counted_shares) > limit:
            scale = placeholder.scale_factor * math.sqrt(limit / share)
            raise ParameterError(
                f"one noise share would need a variance of {float(share):.4g} grid "
                f"steps squared, and samplers hold {float(limit):.4g}; so fine a grid "
                "gains nothing",
                parameter="scale_factor",
                value=placeholder.scale_factor,
                nearest=f"{scale:.4g}",
            )
        return dataclasses.replace(
            placeholder, modulus=1 << bits, noise_rule=request.noise_rule(variance)
        )

    def _finish(self, parameters: MechanismParameters, variance: Fraction) -> Plan:
        """Account for the finished parameters and forecast their error."""
        request = self._request
        mechanism, calibrated = self._verify(parameters)
        server: PrivacyStatement | None = None
        reader = calibrated
        if not request.is_central:
            server = calibrated
            reader = dataclasses.replace(calibrated, adversary=Adversary.MODEL_READER)
        forecast = mechanism.forecast(sum_l2_norm=request.sum_l2_norm)
        refuse_wrapping(request, mechanism, forecast)
        unit = mechanism.parameters.scale_factor**2
        surplus = float(mechanism.total_noise_variance - variance)
        return Plan(
            request=request,
            parameters=mechanism.parameters,
            noise_variance=variance,
            accountant=calibrated.accountant,
            statement_server=server,
            statement_model_reader=reader,
            forecast=forecast,
            counted_mse=forecast.expected_mse - surplus / unit,
            mse_without_losses=forecast.expected_mse - self._taken_back(mechanism),
            gaussian_mse=self._unit_variance * float(request.l2_clip) ** 2,
            notes=plan_notes(request, mechanism, forecast),
            upload_bytes=packed_bytes(mechanism.encoded_dim, mechanism.parameters.bits),
        )

    def _taken_back(self, mechanism: Mechanism) -> float:
        """What a full session without losses has less than the most, units²."""
        if self._request.is_central:
            return 0.0
        given = mechanism.parameters
        kept = mechanism.session(given.num_clients).kept(0) * given.num_clients
        return float(mechanism.total_noise_variance - kept) / given.scale_factor**2

    def _verify(
        self, parameters: MechanismParameters
    ) -> tuple[Mechanism, PrivacyStatement]:
        """Recompute ε for what will really run; add noise in tiny steps if needed."""
        request = self._request
        spent = math.inf
        for _ in range(_RETRIES):
            mechanism = make_mechanism(parameters)
            statement = self._statement(mechanism)
            spent = statement.epsilon
            if spent <= request.epsilon:
                return mechanism, statement
            more = parameters.noise_rule.counted_variance * (1 + Fraction(1, 1 << 12))
            parameters = dataclasses.replace(
                parameters, noise_rule=request.noise_rule(round_up_to_dyadic(more))
            )
        raise CalibrationError(
            f"the finished parameters spend epsilon {spent:.6g}, more than "
            f"{request.epsilon:.6g}; ask for a slightly smaller epsilon"
        )

    def _statement(self, mechanism: Mechanism) -> PrivacyStatement:
        event = self._request.releases(cast("NoiseEvent", mechanism.event()))
        return self._account(event).statement(self._request.delta)

    def _account(self, event: PrivacyEvent) -> Accountant:
        request = self._request
        accountant = make_accountant(
            self._accountant or default_accountants(event)[0],
            adversary=request.calibrated_for,
            adjacency=request.adjacency,
        )
        return accountant.compose(event)
