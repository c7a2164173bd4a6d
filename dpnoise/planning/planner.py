"""The planner: from a privacy budget to parameters, their cost and their error.

* The accountant determines how much noise is needed. `NoiseRule` divides it among the
  clients of a session, whatever their number. It counts neither clients that may be
  lost nor colluders nor the user itself.
* The finished parameters are accounted for again (`recheck`), the samplers'
  distance included, and the plan is refused if they exceed the budget.
* Two adversaries are always reported apart: the server, and readers of the released
  sums. An adversary that sees less than the server learns no more than the server.
* The forecast error is that of a full session without losses; the modulus is chosen for
  the most noise that any session can retain.
* A modulus that cannot hold the sum is refused, with the number of bits that can. No
  plan is made whose estimate would be dominated by wrapping.

It draws no noise and sends nothing.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ParamSpec, Protocol, cast, overload

from dpnoise.accounting import PrivacyStatement, calibrate_least
from dpnoise.accounting.catalogue import Form, accountant_entry, closed_forms
from dpnoise.accounting.contour.lattice import MIN_CONTOUR_VARIANCE
from dpnoise.errors import ParameterError, TheoremNotApplicableError
from dpnoise.events import Adjacency, Adversary, PrivacyEvent
from dpnoise.mechanisms.base import DISTANCE_PER_DRAW, Mechanism
from dpnoise.mechanisms.error_forecast import ErrorForecast, Rounding
from dpnoise.mechanisms.parameter_checks import check_keywords
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism, mechanism_names
from dpnoise.planning import tuning
from dpnoise.planning.accountant_choice import (
    Calibrated,
    account,
    asked_accountants,
    is_accepted,
    late_accountants,
    recheck,
    refuse_expensive,
)
from dpnoise.planning.infeasible import (
    as_of_accountant,
    refuse_beyond_samplers,
    refuse_cutting,
    refuse_fine,
    refuse_hopeless,
    refuse_uncovered,
    refuse_wrapping,
    useful_bits,
)
from dpnoise.planning.request import PlanRequest, gaussian_variance_per_sensitivity
from dpnoise.planning.result import Plan, packed_bytes
from dpnoise.planning.scale_search import (
    NoiseModel,
    accepted_error,
    best_scale,
    forecast_at,
    least_forecast,
    least_grid,
    smallest_bits,
    smallest_scale,
)

_P = ParamSpec("_P")


class Asked(Protocol):
    """A question that states the bounds of its vectors."""

    @property
    def bounds(self) -> Mapping[str, object]:
        """Fields of `PlanRequest` that the question determines."""


class Planner(Protocol[_P]):
    """A planner, called with the fields of a request, or with a question first."""

    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Plan: ...
    @overload
    def __call__(self, question: Asked, /, **fields: Any) -> Plan: ...  # noqa: ANN401 - of _P


def _asked_by_keyword(
    make: Callable[_P, PlanRequest],
) -> Callable[[Callable[[PlanRequest], Plan]], Planner[_P]]:
    """Let a function of a request be called with the request's fields.

    The parameters are then defined in one place, `PlanRequest`, and both type checkers
    and `help` see them at the call.
    """

    def decorate(body: Callable[[PlanRequest], Plan]) -> Planner[_P]:
        signature = inspect.signature(make)

        @functools.wraps(body)
        def call(*args: Asked, **fields: object) -> Plan:
            if args:
                fields = _merge_fields(args[0], fields)
            check_keywords("plan", signature, args[1:], fields)
            return body(cast("Callable[..., PlanRequest]", make)(**fields))

        asked = inspect.Parameter(
            "question",
            inspect.Parameter.POSITIONAL_ONLY,
            default=None,
            annotation=Asked | None,
        )
        vars(call)["__signature__"] = signature.replace(
            parameters=[asked, *signature.parameters.values()], return_annotation=Plan
        )
        return cast("Planner[_P]", call)

    return decorate


def _merge_fields(question: Asked, fields: Mapping[str, object]) -> dict[str, object]:
    """Join the question's fields with the other fields; refuse duplicates."""
    bounds: object = getattr(question, "bounds", None)
    if not isinstance(bounds, Mapping):
        raise ParameterError(
            "plan takes its arguments by name; only a question such as "
            "dpnoise.Histogram may stand first"
        )
    for name in bounds.keys() & fields.keys():
        raise ParameterError(
            f"the question decides {name}: leave it out",
            parameter=name,
            value=fields[name],
            nearest=str(bounds[name]),
        )
    return {**bounds, **fields}


@_asked_by_keyword(PlanRequest)
def plan(request: PlanRequest) -> Plan:
    """Choose scale, modulus and noise for a privacy budget, and forecast the error.

    Call it with the fields of `PlanRequest` as keywords; that class documents them. A
    question such as `dpnoise.Histogram`, passed first, sets the fields that are the
    bounds of its vectors.

    Returns:
        The plan. Its parameters spend at most ε against `request.calibrated_for`.

    Raises:
        ParameterError: A value cannot work, or the modulus is too small for the sum;
            the error names the parameter and the nearest value that works.
        TheoremNotApplicableError: The accountant's theorem does not cover the scale.
        UnknownEventError: The accountant has no theorem for the mechanism.
        CalibrationError: No amount of noise meets the budget.

    Example:
        plan(clients=100, dimension=65536, l2_clip=1.0, epsilon=1.0, delta=1e-5)
        plan(Mean(lowest=0, highest=120), clients=100, epsilon=1.0, delta=1e-6)

    Source:
        [Aga21] section 5 for the choice of the scale, replaced by the whole forecast.
    """
    return _Planner(request).run()


class _Planner:
    """One run from request to plan."""

    def __init__(self, request: PlanRequest) -> None:
        self._on_progress, self._asked = request.on_progress, 0
        if request.on_progress is not None:  # a plan outlives its caller
            request = dataclasses.replace(request, on_progress=None)
        self._request = request
        self._unit_variance = gaussian_variance_per_sensitivity(request)
        self._model = NoiseModel.of(request, self._unit_variance)
        self._least_variance = request.least_counted_variance
        self._found: dict[float, Calibrated] = {}

    def run(self) -> Plan:
        """Choose scale, bits, noise and accountant, and return the plan."""
        request = self._request
        if request.scale_factor is None:
            scale_factor, bits = self._fine_scale() or self._search_scale()
            rough = self._with_late_answers(scale_factor)
        else:
            scale_factor = request.scale_factor
            refuse_uncovered(self._model, scale_factor)
            self._add_to_model(self._calibrated(scale_factor))
            rough = self._with_late_answers(scale_factor)
            bits = request.bits or self._bits_for_answer(rough)
            # The last digits of the noise take as long again.
            self._refuse_bits(rough, bits)
        found = self._refine(rough, bits)
        if not self._is_accepted(found.mechanism, found.variance, found.accountant):
            # A fallback accountant cost more than was foreseen; clients accept the cost
            # of the earlier ones.
            found = self._refine(self._calibrated(scale_factor), bits)
        parameters = self._divide(found.mechanism.parameters, found.variance, bits)
        return self._finish(parameters, found)

    def _refine(self, rough: Calibrated, bits: int) -> Calibrated:
        """Refine a coarse answer with its own accountant to the last digits."""
        scale_factor = rough.mechanism.parameters.scale_factor
        found = self._calibrate(
            scale_factor, (rough.accountant,), start=rough.variance, bits=bits
        )
        return dataclasses.replace(found, candidates=rough.candidates)

    def _add_to_model(self, found: Calibrated) -> None:
        """Add an accountant's answer for a grid to the model."""
        scale_factor = found.mechanism.parameters.scale_factor
        self._model = self._model.through({scale_factor: float(found.variance)})

    def _with_late_answers(self, scale_factor: float) -> Calibrated:
        """Also ask the fallback accountants, which are too expensive for every grid.

        A single one is asked for the last digits later. Its estimate here is lower than
        that, unless bits are to be chosen by it.
        """
        found = self._calibrated(scale_factor)
        needed = self._model.gaussian_need(scale_factor)
        if found.variance <= tuning.WASTES_NOTHING * needed:
            return found
        mechanism, asked = found.mechanism, found.candidates
        # One answer of each shows whether more of them are useful.
        less = self._events(mechanism)(found.variance * tuning.WORTH_ASKING)
        names = tuple(
            name
            for name in late_accountants(self._model, mechanism)
            if name not in asked
            and self._is_accepted(mechanism, found.variance, name)
            and self._states(name, less)
        )
        if not names:
            return found
        start = max(Fraction(needed), self._least_variance)
        late = dataclasses.replace(found, accountant=names[0], variance=start)
        request = self._request
        chooses_bits = request.bits is None and request.scale_factor is not None
        if len(names) > 1 or chooses_bits:
            late = self._calibrate(scale_factor, names, start=start, is_rough=True)
        return dataclasses.replace(late, candidates=(*names, *asked))

    def _refuse_bits(self, found: Calibrated, bits: int) -> None:
        """Refuse bits that are too few for any last digits of the noise."""
        least = found.variance * tuning.SURELY_LESS
        parameters = self._divide(found.mechanism.parameters, least, bits)
        mechanism = make_mechanism(parameters)
        forecast = self._request.forecast(mechanism)
        refuse_wrapping(self._model, mechanism, forecast)

    def _fine_scale(self) -> tuple[float, int] | None:
        """Return a grid so fine that rounding costs nothing, if its bits cost nothing.

        On short vectors a coarse grid saves a client only a few bytes. Its accounting
        needs long tables, because one coordinate may hold the whole norm.
        """
        request = self._request
        mixture = request.mechanism_class.rounding is Rounding.STOCHASTIC
        if (
            not mixture
            or request.is_central
            or self._request.is_published_mixture
            or request.bits is not None
            or request.adjacency is not Adjacency.ZERO_OUT
            or self._model.length > tuning.FEW_BITS
        ):
            return None
        aimed_at = 0.5 * (tuning.CLOSEST + tuning.CLOSE)
        wanted = tuning.CLOSED_FORM_WASTES / aimed_at
        scale_factor = wanted / math.sqrt(self._unit_variance) / request.l2_clip
        guess = _round_scale(min(scale_factor, request.scaled_bound))
        closed, least = self._closed_form(guess), self._bits_for(guess) - 1
        if (
            request.accountant not in {None, *closed}
            or self._model.length * least > tuning.FEW_BITS
        ):
            return None
        found: Calibrated | None = None
        for _ in range(tuning.FINE_SEARCHES):
            scale_factor = _round_scale(min(scale_factor, request.scaled_bound))
            if not self._model.fits_sampler(scale_factor):
                return None
            start = None if found is None else found.scaled_to(scale_factor)
            found = self._calibrate(scale_factor, closed, start=start, is_rough=True)
            need = self._unit_variance * found.mechanism.l2_clip_squared_steps
            cost = float(found.variance) / need - 1.0
            if tuning.CLOSEST < cost <= tuning.CLOSE:
                break
            scale_factor *= cost / aimed_at
        else:
            return None
        self._found[scale_factor] = found
        self._model = self._model.through({scale_factor: float(found.variance)})
        best = least_forecast(self._model)
        free = forecast_at(self._model, scale_factor, tuning.UNBOUNDED_BITS)
        if best is None or free.planning_mse > accepted_error(self._model, best):
            return None  # so many clients round that noise does not hide the error
        bits = self._bits_for(scale_factor)
        few = self._model.length * bits <= tuning.FEW_BITS
        return (scale_factor, bits) if few else None

    def _search_scale(self) -> tuple[float, int]:
        """Search with the model, calibrate there and on the finer grid, search again.

        So the certified bound on the bits uses noise that an accountant computed for
        two grids: this one, and one that is twice as fine with one bit more.
        """
        # Before any accountant is asked: accounting for a hopeless grid may be slow.
        refuse_cutting(self._model)
        scale_factor, bits = self._best_scale(self._model)
        refuse_hopeless(self._model, forecast_at(self._model, scale_factor, bits))
        for _ in range(tuning.SEARCHES):
            model = self._fit_model(scale_factor)
            moved, moved_bits = self._best_scale(model)
            here, there = (
                forecast_at(model, scale, width)
                for scale, width in ((scale_factor, bits), (moved, moved_bits))
            )
            pays = (
                here.planning_mse > tuning.WORTHWHILE * there.planning_mse
                or here.wrap_probability > self._request.max_wrap_probability
                or moved_bits < bits
            )
            if not pays:
                break
            scale_factor, bits = moved, moved_bits
            asked = self._curves()
            if asked and min(asked) <= scale_factor <= max(asked):
                break  # between two curves, of which each takes up to half a second
        return self._matching_grid(self._finer_closed_form(scale_factor, bits), bits)

    def _matching_grid(self, scale_factor: float, bits: int) -> tuple[float, int]:
        """Keep a grid whose noise matches the model, or return the best computed one.

        The noise that a theorem needs may jump between two grids. A line through them
        does not show that.
        """
        self._calibrated(scale_factor)
        models = {
            scale: self._model.through({scale: float(each.variance)})
            for scale, each in self._found.items()
        }
        found, bits = least_grid(models, scale_factor, bits)
        if found != scale_factor:
            self._model = models[found]
        return found, bits

    def _finer_closed_form(self, scale_factor: float, bits: int) -> float:
        """Return the closed form's grid if given bits hold it and it needs less noise.

        Tabulated accountants waste some percents on every grid that is coarse enough
        for them. The closed form wastes less on finer ones.
        """
        request, coarse = self._request, self._calibrated(scale_factor)
        chooses = request.bits is not None and request.accountant is None
        if not (chooses and coarse.form.is_tabulated):
            return scale_factor
        closed = self._closed_form(scale_factor)
        most = request.max_wrap_probability
        least = forecast_at(self._model, scale_factor, bits).planning_mse
        wanted = tuning.CLOSED_FORM_WASTES / tuning.CLOSE
        wanted /= math.sqrt(self._unit_variance)
        for coarser in tuning.COARSER:
            finer = _round_scale(
                min(wanted / coarser / request.l2_clip, request.scaled_bound)
            )
            held = forecast_at(self._model, finer, bits).wrap_probability <= most
            if finer <= scale_factor or not (held and self._model.fits_sampler(finer)):
                continue
            start = Fraction(self._model.counted_variance(finer))
            found = self._calibrate(finer, closed, start=start, is_rough=True)
            model = self._model.through({finer: float(found.variance)})
            there = forecast_at(model, finer, bits)
            if there.wrap_probability <= most and there.planning_mse < least:
                self._found[finer], self._model = found, model
                return finer
        return scale_factor

    def _fit_model(self, scale_factor: float) -> NoiseModel:
        """Fit the model to the noise that a scale needs, and its double or the finest.

        It fits one point if the accountant is too slow for the finer grid and another
        one needs more noise there than the model: that does not describe the grid.
        """
        found = self._calibrated(scale_factor)
        finer = _round_scale(min(2.0 * scale_factor, self._request.scaled_bound))
        points = {scale_factor: float(found.variance)}
        if len(self._found) == 1:
            self._model = self._model.through(points)
        is_other = finer > tuning.ANOTHER_GRID * scale_factor
        if not (is_other and self._model.fits_sampler(finer)):
            self._model = self._model.through(points)
            return self._model
        if found.accountant in asked_accountants(self._model, self._placeholder(finer)):
            then = self._calibrated(finer)
            points[finer] = float(then.variance)
            if found.form is Form.ORDERS and then.form is Form.CLOSED:
                # The waste of one accountant is constant, that of the other falls. A
                # line between them would make no finer grid worth its bits.
                other = self._calibrate(scale_factor, (then.accountant,), is_rough=True)
                points[scale_factor] = float(other.variance)
        elif found.form.is_tabulated:
            # The fast accountant there wastes more of little noise. If it still needs
            # less than the model expects, the coarse grid wasted most.
            then = self._calibrated(finer)
            if then.variance < self._model.counted_variance(finer):
                points[finer] = float(then.variance)
        self._model = self._model.through(points)
        return self._model

    def _best_scale(self, model: NoiseModel) -> tuple[float, int]:
        """Return the best scale, and the requested or smallest sufficient bits."""
        request, bits = self._request, self._request.bits
        lowest = smallest_scale(model)
        if not model.fits_sampler(lowest):
            share = model.counted_variance(lowest) / model.counted_shares
            raise ParameterError(
                f"even on the coarsest grid one noise share of {request.mechanism} "
                f"needs a variance of {share:.3g} grid steps squared, more than the "
                "samplers hold: relax epsilon, count more clients, or take a mechanism "
                "whose entries are rounded one by one, on any grid",
                parameter="mechanism",
                value=request.mechanism,
                nearest=mechanism_names()[0],
            )
        if bits is None:
            bits = smallest_bits(model)
        found = best_scale(model, bits)
        if found is None:
            raise ParameterError(
                f"a modulus of {bits} bits cannot hold the sum of "
                f"{request.clients} noisy vectors at any scale",
                parameter="bits",
                value=bits,
                nearest=str(useful_bits(model)),
            )
        return _round_scale(found.scale_factor), bits

    def _bits_for_answer(self, found: Calibrated) -> int:
        """Return the smallest modulus for a given scale and its computed noise."""
        if self._request.mechanism_class.takes_counts:
            return self._bits_for_counts(found)
        self._add_to_model(found)
        return self._bits_for(found.mechanism.parameters.scale_factor)

    def _bits_for(self, scale_factor: float) -> int:
        """Return the smallest modulus for a scale, with the noise the model expects."""
        free = forecast_at(self._model, scale_factor, tuning.UNBOUNDED_BITS)
        accepted = accepted_error(self._model, free)
        for bits in range(1, tuning.UNBOUNDED_BITS):
            found = forecast_at(self._model, scale_factor, bits)
            if (
                found.planning_mse <= accepted
                and found.wrap_probability <= self._request.max_wrap_probability
            ):
                return bits
        return tuning.UNBOUNDED_BITS

    def _bits_for_counts(self, found: Calibrated) -> int:
        """Return the smallest modulus that holds the largest count and its noise."""
        request = self._request
        for bits in range(1, tuning.UNBOUNDED_BITS):
            parameters = self._divide(found.mechanism.parameters, found.variance, bits)
            forecast = request.forecast(make_mechanism(parameters))
            if (
                forecast.planning_mse <= tuning.OVER_COUNTS * forecast.noise_mse
                and forecast.wrap_probability <= request.max_wrap_probability
            ):
                return bits
        return tuning.UNBOUNDED_BITS

    def _calibrated(self, scale_factor: float) -> Calibrated:
        """Return roughly how much noise a scale needs; each is computed once."""
        if scale_factor not in self._found:
            guess = Fraction(self._model.counted_variance(scale_factor))
            nearest = self._between_curves(scale_factor)
            self._found[scale_factor] = (
                self._calibrate(scale_factor, start=guess, is_rough=True)
                if nearest is None
                else dataclasses.replace(
                    nearest, mechanism=self._placeholder(scale_factor), variance=guess
                )
            )
        return self._found[scale_factor]

    def _between_curves(self, scale_factor: float) -> Calibrated | None:
        """Return the next finer grid's answer, if that and a coarser one are curves.

        The model runs through both, within the error of a coarse calibration, and a
        curve takes up to half a second.
        """
        curves = self._curves()
        if self._is_widened or not any(each < scale_factor for each in curves):
            return None
        finer = min((each for each in curves if each > scale_factor), default=None)
        return None if finer is None else self._found[finer]

    def _curves(self) -> list[float]:
        """Return the scales for which a curve was built."""
        return [scale for scale, each in self._found.items() if each.form is Form.CURVE]

    def _closed_form(self, scale_factor: float) -> tuple[str, ...]:
        """Name the formula that covers the mechanism; its cost is negligible."""
        mechanism = self._placeholder(scale_factor)
        some = Fraction(tuning.LITTLE_NOISE)
        return closed_forms(mechanism.event_with_noise(some))[:1]

    def _calibrate(
        self,
        scale_factor: float,
        names: tuple[str, ...] = (),
        *,
        start: Fraction | None = None,
        is_rough: bool = False,
        bits: int = tuning.UNBOUNDED_BITS,
    ) -> Calibrated:
        """Ask the accountants, or those named, how much noise this scale needs.

        It uses the bits of the plan if they are known. A small modulus spreads a clip
        flag over more coordinates, each of which is charged for.
        """
        request, mechanism = self._request, self._placeholder(scale_factor, bits)
        refuse_beyond_samplers(request, self._planned_distance(mechanism))
        names = names or asked_accountants(self._model, mechanism)
        lowest = self._least_variance
        if all(accountant_entry(name).form.is_tabulated for name in names):
            lowest = max(lowest, Fraction(MIN_CONTOUR_VARIANCE))
        least = None
        while least is None:
            try:
                least = calibrate_least(
                    self._events(mechanism),
                    accountants=names,
                    epsilon=request.epsilon,
                    delta=request.delta,
                    adversary=request.calibrated_for,
                    adjacency=request.adjacency,
                    bracket=(lowest, tuning.LARGEST_VARIANCE),
                    start=start,
                    is_rough=is_rough,
                )
            except TheoremNotApplicableError as error:
                raise as_of_accountant(request, error) from None
            except ParameterError as error:
                # Refused for its cost, and possibly at noise that it does not cover.
                raise self._refusal(mechanism) or error from None
            others = tuple(name for name in names if name != least.accountant)
            if others and not self._is_accepted(
                mechanism, least.variance, least.accountant
            ):
                least, names = None, others
        found = Calibrated(
            mechanism,
            least.variance,
            least.accountant,
            tuple(each.accountant for each in least.tried),
        )
        if self._is_widened:
            found = dataclasses.replace(found, mechanism=self._widen(found))
        self._asked += 1
        if self._on_progress is not None:
            self._on_progress(self._asked)
        return found

    def _refusal(self, mechanism: Mechanism) -> TheoremNotApplicableError | None:
        """Return the error of a named accountant that covers no such noise."""
        request = self._request
        if request.accountant is None:
            return None
        variance = self._model.counted_variance(mechanism.parameters.scale_factor)
        try:
            event = self._events(mechanism)(Fraction(variance))
            account(request, request.accountant, event)
        except TheoremNotApplicableError as error:
            return as_of_accountant(request, error)
        return None

    def _is_accepted(
        self, mechanism: Mechanism, variance: Fraction, accountant: str
    ) -> bool:
        """Whether a client would accept the cost of checking such noise."""
        release = mechanism.event_with_noise(variance)
        return is_accepted(self._request, release, accountant)

    @property
    def _is_widened(self) -> bool:
        """Whether the bound on coordinates follows from the noise."""
        return self._request.is_published_mixture and self._request.linf_bound is None

    def _placeholder(
        self, scale_factor: float, bits: int = tuning.UNBOUNDED_BITS
    ) -> Mechanism:
        """Build the mechanism of a scale, without its noise."""
        request = self._request
        linf_bound = None
        if self._is_widened:
            linf_bound = Fraction(self._model.least_cap(scale_factor))
        elif request.linf_bound is not None:
            linf_bound = Fraction(request.linf_bound)
        elif request.mechanism_class.published_accountant:
            linf_bound = Fraction(math.ceil(self._model.natural_cap(scale_factor)))
        return self._mechanism(scale_factor, linf_bound, bits)

    def _states(self, accountant: str, event: PrivacyEvent) -> bool:
        """Whether an accountant states the budget for an event."""
        try:
            told = account(self._request, accountant, event)
        except TheoremNotApplicableError:
            return False
        return told.epsilon(self._request.delta) <= self._request.epsilon

    def _planned_distance(self, mechanism: Mechanism) -> float:
        """Bound the distance that all draws of one release will be charged for."""
        return mechanism.encoded_dim * self._request.sent_draws * DISTANCE_PER_DRAW

    def _events(self, mechanism: Mechanism) -> Callable[[Fraction], PrivacyEvent]:
        """Return a function from a variance to the event of all releases."""
        request = self._request
        distance = self._planned_distance(mechanism)
        wanted = self._model.counted_variance(mechanism.parameters.scale_factor)
        foreseen = Fraction(max(tuning.LITTLE_NOISE, wanted))

        def build(variance: Fraction) -> PrivacyEvent:
            release = mechanism.event_with_noise(variance, sampler_distance=distance)
            if request.accountant is not None and variance > foreseen:
                # A search may end at noise so large that every client refuses it.
                refuse_expensive(request, release, request.accountant)
            return request.releases(release)

        return build

    def _widen(self, found: Calibrated) -> Mechanism:
        """Set the largest integer Δ∞ of smm that costs no further noise."""
        scale_factor = found.mechanism.parameters.scale_factor
        best = found.mechanism
        low = int(best.coordinate_cap)
        high = math.ceil(self._model.natural_cap(scale_factor)) + 1
        while high - low > 1:
            middle = (low + high) // 2
            candidate = self._mechanism(
                scale_factor, Fraction(middle), found.mechanism.parameters.bits
            )
            if self._states(found.accountant, self._events(candidate)(found.variance)):
                low, best = middle, candidate
            else:
                high = middle
        return best

    def _mechanism(
        self, scale_factor: float, linf_bound: Fraction | None, bits: int
    ) -> Mechanism:
        """Build the mechanism with a placeholder for the noise."""
        request = self._request
        # The most that samplers hold, so that no theorem needs more.
        most = request.mechanism_class.largest_variance * request.counted_shares
        return make_mechanism(
            MechanismParameters(
                mechanism=request.mechanism,
                dim=request.dimension,
                l2_clip=float(request.l2_clip),
                scale_factor=scale_factor,
                modulus=1 << bits,
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
        """Divide the required noise so that the shares of every roster add up to it."""
        request = self._request
        limit = request.mechanism_class.largest_variance
        if (share := variance / request.counted_shares) > limit:
            refuse_fine(self._model, placeholder.scale_factor, float(share))
        return dataclasses.replace(
            placeholder, modulus=1 << bits, noise_rule=request.noise_rule(variance)
        )

    def _finish(self, parameters: MechanismParameters, found: Calibrated) -> Plan:
        """Account for the finished parameters and forecast their error."""
        request = self._request
        mechanism, calibrated, tried = recheck(request, parameters, found)
        server: PrivacyStatement | None = None
        reader = calibrated
        if not request.is_central:
            server = calibrated
            reader = dataclasses.replace(calibrated, adversary=Adversary.MODEL_READER)
        forecast = request.forecast(mechanism)
        refuse_wrapping(self._model, mechanism, forecast)
        # A fit at a hopeless grid does not describe useful ones: use the estimate.
        refuse_hopeless(NoiseModel.of(request, self._unit_variance), forecast)
        unit = mechanism.parameters.scale_factor**2
        counted = mechanism.counted_noise_variance
        surplus = float(mechanism.expected_noise_variance - counted)
        gaussian_mse = self._unit_variance * float(request.l2_clip) ** 2
        noise = float(counted) / unit / gaussian_mse
        return Plan(
            request=request,
            parameters=mechanism.parameters,
            noise_variance=counted,
            noise_fit=self._model.fit,
            accountant=calibrated.accountant,
            accountants_tried=tried,
            statement_server=server,
            statement_model_reader=reader,
            forecast=forecast,
            counted_mse=forecast.expected_mse - surplus / unit,
            gaussian_mse=gaussian_mse,
            notes=_plan_notes(request, mechanism, forecast, over_gaussian=noise),
            upload_bytes=packed_bytes(mechanism.encoded_dim, mechanism.parameters.bits),
        )


def _round_scale(scale_factor: float) -> float:
    """Round a scale down to twelve significant bits; the effect is negligible."""
    step = 2.0 ** (math.floor(math.log2(scale_factor)) - 11)
    return math.floor(scale_factor / step) * step


def _plan_notes(
    request: PlanRequest,
    mechanism: Mechanism,
    forecast: ErrorForecast,
    *,
    over_gaussian: float,
) -> tuple[str, ...]:
    """Collect the notes of a plan.

    Args:
        request: What was asked for.
        mechanism: The finished mechanism.
        forecast: Its error forecast.
        over_gaussian: Variance that counts, over the central Gaussian's.

    Returns:
        Sentences, the most important first.
    """
    notes = []
    if mechanism.noise_is_central:
        notes.append(
            "One trusted party adds all noise: nothing is promised against the server, "
            "and clients must not rely on it."
        )
    elif request.min_survivors is None:
        notes.append(
            "Every client is counted on: a session that loses one must be abandoned. "
            "Give min_survivors to tolerate losses."
        )
        if request.loss_fraction or request.ladder:
            notes.append(
                "loss_fraction and ladder have no effect without min_survivors: no "
                "loss is tolerated that they could divide."
            )
    notes += _participation_notes(request)
    if request.selection < 1:
        notes += [
            (
                "The sum holds the selected vectors alone: over the selection rate it "
                "estimates that of all clients. Selection saves computing, never error."
            ),
            (
                "Members that skip computing when they are not selected must answer at "
                "a fixed time: the secrecy of selection then rests on their "
                "availability. A vector that lies in a file is computed in "
                "either case."
            ),
        ]
    if request.is_published_mixture or not mechanism.published_accountant:
        notes.extend(mechanism.remarks())  # those of a published theorem are its own
    if request.is_published_mixture and over_gaussian > tuning.FAR_OVER_GAUSSIAN:
        notes.append(
            f"The theorem of {mechanism.name} ties the bound on coordinates to the "
            f"noise, which has to be {over_gaussian:.3g} times the central Gaussian's: "
            "take skellam-mixture, which needs hardly more than that one."
        )
    if mechanism.rounding is Rounding.TOWARD_ZERO:
        given = mechanism.parameters
        typical = given.scale_factor * given.l2_clip / mechanism.rotated_dim**0.5
        if typical < tuning.STEPS_TO_TRUNCATE:
            notes.append(
                f"A typical coordinate is {typical:.2g} grid steps long and truncation "
                "takes half a step off each: use a finer grid."
            )
    if forecast.bias_mse > forecast.noise_mse:
        notes.append(
            "The clip's bias exceeds the noise: the estimate is mostly too short."
        )
    return tuple(notes)


def _participation_notes(request: PlanRequest) -> tuple[str, ...]:
    """State the clients that a task needs if each contributes to some sums only."""
    participations, steps = request.sums_of_one_client, request.steps
    if participations == steps:
        return ()
    needed = -(-steps * request.survivors // participations)
    note = (
        f"Each client gives to at most {participations} of {steps} sums, so that sums "
        f"of {request.survivors} vectors need at least {needed} clients."
    )
    return (note,)
