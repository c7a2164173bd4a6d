"""Checks that refuse infeasible plans and name the nearest feasible one.

Each function returns if the plan is feasible, and raises `ParameterError` otherwise,
with the parameter to change and a value of it that works.
"""

import math
from dataclasses import fields, replace
from typing import NoReturn

from dpnoise.errors import ParameterError, TheoremNotApplicableError
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.error_forecast import ErrorForecast
from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning import tuning
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.scale_search import (
    NoiseModel,
    accepted_error,
    best_scale,
    least_forecast,
    smallest_bits,
    smallest_scale,
)
from dpnoise.searches import halve


def refuse_uncovered(model: NoiseModel, scale_factor: float) -> None:
    """Refuse a given scale at which smm's published noise has no theorem.

    More noise would admit some order. That would be another mechanism than requested,
    and its clip would remove nearly all of the vector.

    Args:
        model: Of the request.
        scale_factor: Grid steps per unit, as asked for.

    Raises:
        TheoremNotApplicableError: Take the scale that the error names, or none.

    Source:
        [Bao22] Corollary 1, Eq. (3).
    """
    excess = model.published_excess
    if (
        not model.request.is_published_mixture
        or excess(scale_factor) <= tuning.UNCOVERED
    ):
        return
    low, high = scale_factor, 2.0 * scale_factor
    while excess(high) > tuning.UNCOVERED:
        low, high = high, 2.0 * high
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if excess(middle) > tuning.UNCOVERED else (low, middle)
        )
    covered = math.ceil(100.0 * tuning.SURELY_COVERED * high) / 100.0
    raise TheoremNotApplicableError(
        f"at scale_factor {scale_factor:g} the published theorem of smm excludes the "
        "orders that this budget needs: coordinates of one grid step would need "
        f"{excess(scale_factor):.3g} times the published noise",
        theorem="Corollary 1, Eq. (3) [Bao22]",
        parameter="scale_factor",
        value=scale_factor,
        nearest=f"{covered:g}, with as many bits as it needs",
    )


def as_of_accountant(
    request: PlanRequest, error: TheoremNotApplicableError
) -> TheoremNotApplicableError:
    """Return an accountant's error in terms of the requested plan.

    Args:
        request: What was asked for.
        error: Of an accountant, which only knows releases.
    """
    named = request.accountant
    if named is None or error.parameter in {each.name for each in fields(request)}:
        return error
    return TheoremNotApplicableError(
        f"{error.args[0]}; or name no accountant",
        theorem=error.theorem,
        parameter="accountant",
        value=named,
    )


def refuse_fine(model: NoiseModel, scale_factor: float, share: float) -> NoReturn:
    """Refuse a given scale at which shares need more noise than samplers hold.

    Args:
        model: Of the request.
        scale_factor: Grid steps per unit, as asked for.
        share: Variance of a share on that grid, grid steps².

    Raises:
        ParameterError: The error names a scale at which they do not, if one exists.
    """
    limit = float(model.request.mechanism_class.largest_variance)
    most = tuning.HELD_BY_ADVICE * limit / share * model.counted_variance(scale_factor)
    low, _ = halve(
        lambda scale: model.counted_variance(scale) > most,
        0.0,
        scale_factor,
        steps=tuning.HALVINGS,
    )
    found = (
        f"one noise share would need a variance of {share:.4g} grid steps squared, and "
        f"samplers hold {limit:.4g}"
    )
    request = model.request
    if request.mechanism_class.takes_counts or low < smallest_scale(model):
        raise ParameterError(
            f"{found}; no grid needs less: relax epsilon, or count more clients",
            parameter="epsilon",
            value=request.epsilon,
        )
    raise ParameterError(
        f"{found}; so fine a grid gains nothing",
        parameter="scale_factor",
        value=scale_factor,
        nearest=f"{low:.4g}",
    )


def useful_bits(model: NoiseModel) -> int:
    """Return the fewest bits that hold the sum on a grid of any use, 1 … 62.

    Args:
        model: Of the request.
    """
    bits, best = smallest_bits(model, holds_the_sum=True), least_forecast(model)
    while best is not None and bits < tuning.UNBOUNDED_BITS:
        found = best_scale(model, bits)
        most = tuning.HOPELESS * accepted_error(model, best)
        if found is not None and found.forecast.planning_mse <= most:
            break
        bits += 1
    return bits


def refuse_beyond_samplers(request: PlanRequest, distance: float) -> None:
    """Refuse an epsilon at which the samplers' distance uses up all of delta.

    Args:
        request: What was asked for.
        distance: Total variation distance that one release is charged for.

    Raises:
        ParameterError: Such an epsilon does not protect users. The error names the
            largest epsilon that finite samplers support at this delta. If delta itself
            is as small as their distance, it names the smallest supported delta.
    """
    limit = math.log(request.delta / 4.0) - math.log(request.charges * distance)
    if request.epsilon <= limit:
        return
    if limit < tuning.LEAST_EPSILON:
        # No useful epsilon exists here; delta must be larger.
        missing = request.epsilon - limit
        needed = math.log10(request.delta) + missing / math.log(10.0)
        raise ParameterError(
            f"delta {request.delta:g} is beyond what finite samplers can promise at "
            f"epsilon {request.epsilon:g}: it is used up by the distance of all noise "
            "draws from the exact law",
            parameter="delta",
            value=request.delta,
            nearest=f"{_round_up(needed):g}"
            if needed < tuning.LARGEST_EXPONENT
            else None,
        )
    raise ParameterError(
        f"epsilon {request.epsilon:g} is beyond what finite samplers can promise "
        f"at delta {request.delta:g}: their distance from the exact law is charged "
        "as (1 + e^epsilon) times itself; such an epsilon protects no user",
        parameter="epsilon",
        value=request.epsilon,
        nearest=f"{math.floor(10.0 * limit) / 10.0:g}",
    )


def _round_up(exponent: float) -> float:
    """Return 10^exponent, rounded up to two digits."""
    whole = math.floor(exponent)
    digits = math.ceil(10.0 * math.pow(10.0, exponent - whole))
    return digits * math.pow(10.0, whole - 1)


def refuse_wrapping(
    model: NoiseModel, mechanism: Mechanism, forecast: ErrorForecast
) -> None:
    """Refuse a modulus that is too small for the sum.

    Args:
        model: Of the request, fitted.
        mechanism: As planned.
        forecast: Its forecast.

    Raises:
        ParameterError: The error names the bits that can hold the sum.
    """
    request = model.request
    limit = request.max_wrap_probability
    if forecast.wrap_probability <= limit:
        return
    bits = mechanism.parameters.bits
    if request.scale_factor is None:
        enough = max(bits + 1, useful_bits(model))
    else:
        enough = next(
            (
                wider
                for wider in range(bits + 1, tuning.UNBOUNDED_BITS)
                if _wrap_probability(request, mechanism, wider) <= limit
            ),
            tuning.UNBOUNDED_BITS,
        )
    raise ParameterError(
        f"a modulus of {bits} bits is too small for the sum: one coordinate in "
        f"{1.0 / forecast.wrap_probability:.3g} would wrap around (standard deviation "
        f"{forecast.sum_stddev:.4g} grid steps)",
        parameter="bits",
        value=bits,
        nearest=str(enough),
    )


def _wrap_probability(request: PlanRequest, mechanism: Mechanism, bits: int) -> float:
    """Return how often a coordinate would wrap with another modulus."""
    wider = replace(mechanism.parameters, modulus=1 << bits)
    return request.forecast(make_mechanism(wider)).wrap_probability


def refuse_cutting(model: NoiseModel) -> None:
    """Refuse a bound on coordinates that only useless grids satisfy.

    On a grid that vectors need, it would cut off nearly all of them. On a coarser grid
    every entry is rounded to zero or to a whole step.

    Args:
        model: Of the request, before any calibration.

    Raises:
        ParameterError: Without the bound the error would be a small part of this one.
            The error names a bound that practically never acts.
    """
    request = model.request
    if request.linf_bound is None or request.max_wrap_probability == 1.0:
        return
    free = replace(model, request=replace(request, linf_bound=None))
    bits = smallest_bits(free) if request.bits is None else request.bits
    best, wanted = least_forecast(model), best_scale(free, bits)
    if best is None or wanted is None:
        return
    if best.planning_mse <= tuning.HOPELESS * accepted_error(free, wanted.forecast):
        return
    over = best.planning_mse / wanted.forecast.planning_mse
    raise ParameterError(
        f"a bound on coordinates of {float(request.linf_bound):.4g} grid steps is kept "
        f"only by grids so coarse that the error is {over:.3g} times what it would be "
        "without one",
        parameter="linf_bound",
        value=float(request.linf_bound),
        nearest=f"none, or {free.natural_cap(wanted.scale_factor)}",
    )


def refuse_hopeless(model: NoiseModel, forecast: ErrorForecast) -> None:
    """Refuse bits that only a grid coarser than the vectors can use.

    Every entry would be rounded to nearly zero or to a whole step, and the noise of
    that grid exceeds the sum.

    Args:
        model: Of the request, not fitted to the plan's own grid.
        forecast: Of the finished plan.

    Raises:
        ParameterError: A few bits more would take away nearly all of the error; it
            names the fewest whose error is accepted.
    """
    request = model.request
    if (
        request.bits is None
        or request.scale_factor is not None
        or request.max_wrap_probability == 1.0  # asked for, whatever comes out
    ):
        return
    best = least_forecast(model)
    if best is None or forecast.planning_mse <= tuning.HOPELESS * accepted_error(
        model, best
    ):
        return
    over = forecast.planning_mse / best.planning_mse
    raise ParameterError(
        f"a modulus of {request.bits} bits holds this sum only on a grid so coarse "
        f"that the error is {over:.3g} times the least",
        parameter="bits",
        value=request.bits,
        nearest=str(smallest_bits(model)),
    )
