"""Which accountants a plan asks: those that answer in time, for it and for clients.

* What a client's guard refuses is not planned: the same estimate decides, in the same
  words (`check_accounting_cost`). It is asked before anything is computed, with the
  noise that a Gaussian would need, and again of the finished plan.
* A plan asks for some twenty answers where a client asks for one, so that it has
  stricter limits of its own.

It asks no accountant and knows no theorem.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, TypedDict, cast

import numpy as np

from dpnoise.accounting import (
    MAX_ACCOUNTING_COST,
    accounting_cost,
    check_accounting_cost,
    default_accountants,
)
from dpnoise.accounting.conversion import renyi_epsilons
from dpnoise.accounting.renyi.subsampling import MAX_SAMPLED_ORDER
from dpnoise.errors import ParameterError
from dpnoise.events import NoiseEvent
from dpnoise.mechanisms.base import Mechanism
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.scale_search import NoiseModel

CLOSED_FORM: Final = "mixture-gdp"
"""Costs nothing, and wastes noise where it is little."""

CLOSED_FORM_WASTES: Final = 7.0
"""As a share of the noise, times its deviation in grid steps."""

CURVE: Final = "mixture-pld"
"""Builds a whole curve for each answer, in up to half a second."""

_INTEGRAL: Final = "mixture-contour"
_ORDERS: Final = "mixture-rdp"
_FAR: Final = 0.25  # no other accountant wastes as much
# A plan asks for some twenty epsilons, and nobody should wait longer than two seconds.
# An integral is taken on some ten contours, of which a statement takes two to four; a
# curve is built anew for each of some six noises, and a sum over orders tries a dozen.
_QUICK: Final = {
    _INTEGRAL: 0.3 * MAX_ACCOUNTING_COST,
    CURVE: 0.5 * MAX_ACCOUNTING_COST,
    _ORDERS: 0.12 * MAX_ACCOUNTING_COST,
}
# Named, and without a coin, it is asked alone: at most a second, as measured.
_NAMED: Final = _QUICK | {_ORDERS: 0.75 * MAX_ACCOUNTING_COST}
# Of the chosen grid, for one answer, and some more where that says less: of all that a
# client would judge only the dearest integrals and all curves are passed over.
_LATE: Final = {CURVE: 0.0, _INTEGRAL: 0.3 * MAX_ACCOUNTING_COST}
_ABOVE_LEAST: Final = 1.5  # of the least epsilon that all orders together can state
# Vectors so short beside noise so wide (grid steps²): a curve takes seconds, and the
# closed form is within a few percent.
_WIDE: Final = float(1 << 16)
_SHORT: Final = float(1 << 24)  # variance per squared norm
# Grid steps² that a Gaussian would need. On a grid as coarse the model's guess is far
# from the answer, so the cheapest look first, and the dear ones begin where they end.
_COARSE: Final = 1.0


def judging_cost(request: PlanRequest, release: NoiseEvent, accountant: str) -> float:
    """Return what a client's guard counts for the releases of a plan, table cells.

    Args:
        request: What was asked for.
        release: One release, with its noise or about as much.
        accountant: Its name.
    """
    return accounting_cost(release, accountant, **_composition(request))


def is_judged(request: PlanRequest, release: NoiseEvent, accountant: str) -> bool:
    """Whether a client would judge such a release, rather than refuse the task.

    Args:
        request: What was asked for.
        release: One release, with its noise.
        accountant: Its name.
    """
    try:
        refuse_dear(request, release, accountant)
    except ParameterError:
        return False
    return True


def refuse_dear(request: PlanRequest, release: NoiseEvent, accountant: str) -> None:
    """Refuse what a client would refuse to judge, in its words.

    Args:
        request: What was asked for.
        release: One release, with its noise or about as much.
        accountant: Its name.

    Raises:
        ParameterError: Naming no accountant has another one chosen; where none was
            named, a coarser grid is what helps.
    """
    try:
        check_accounting_cost(release, accountant, **_composition(request))
    except ParameterError as error:
        if request.accountant is not None:
            raise
        raise ParameterError(
            f"clients would refuse to judge a plan on this grid, even by {accountant}, "
            "which says the least of it: take a coarser grid",
            parameter="scale_factor",
            value=request.scale_factor,
        ) from error


class _Composition(TypedDict):
    """How releases add up, as estimates of an accountant's cost are told it."""

    times: int
    delta: float
    rate: float


def _composition(request: PlanRequest) -> _Composition:
    return _Composition(
        times=request.charges, delta=request.delta, rate=float(request.selection)
    )


def asked_accountants(
    model: NoiseModel, mechanism: Mechanism, lost: Mapping[str, float]
) -> tuple[str, ...]:
    """Name the accountants to ask for a grid; the one that asks least noise decides.

    Args:
        model: Of the request.
        mechanism: On that grid.
        lost: Scales from which on an accountant is known to ask for more than others.

    Raises:
        ParameterError: The one that was named would take many seconds, for the plan or
            for a client.
    """
    request, scale_factor = model.request, mechanism.parameters.scale_factor
    typical, release = _typical_release(model, mechanism)
    named = request.accountant or request.mechanism_class.published_accountant
    if named is not None:
        refuse_dear(request, release, named)
        _refuse_slow(request, release, named)
        return (named,)
    costs = _default_costs(request, release)
    names = tuple(costs)
    if model.gaussian_need(scale_factor) < _COARSE:
        names = tuple(sorted(names, key=costs.__getitem__))
    quick = [
        name
        for name in names
        if costs[name] <= _QUICK.get(name, MAX_ACCOUNTING_COST)
        and request.epsilon >= _ABOVE_LEAST * _least_epsilon(request, name)
        and scale_factor <= lost.get(name, scale_factor)
    ]
    if typical > _WIDE and model.gaussian_variance > _SHORT and len(quick) > 1:
        quick = [name for name in quick if name != CURVE]
    wastes = CLOSED_FORM_WASTES / math.sqrt(typical) > _FAR
    if request.selection < 1 and wastes and CURVE in quick:
        quick = [name for name in quick if name != CLOSED_FORM]
    return tuple(quick) or names[:1]


def late_accountants(model: NoiseModel, mechanism: Mechanism) -> tuple[str, ...]:
    """Name those that are asked of the chosen grid alone, where others waste noise.

    Args:
        model: Of the request.
        mechanism: On that grid.
    """
    request = model.request
    if request.accountant or request.mechanism_class.published_accountant:
        return ()
    _, release = _typical_release(model, mechanism)
    costs = _default_costs(request, release)
    return tuple(
        name
        for name, cost in costs.items()
        if cost <= _LATE.get(name, MAX_ACCOUNTING_COST)
        and request.epsilon >= _ABOVE_LEAST * _least_epsilon(request, name)
    )


def _typical_release(
    model: NoiseModel, mechanism: Mechanism
) -> tuple[float, NoiseEvent]:
    """Return about the noise that a grid will need, grid steps², and its release."""
    needed = model.counted_variance(mechanism.parameters.scale_factor)
    typical = max(1.0, needed)
    return typical, cast("NoiseEvent", mechanism.event_with_noise(Fraction(typical)))


def _default_costs(request: PlanRequest, release: NoiseEvent) -> dict[str, float]:
    """Return what each accountant costs that is asked when nobody names one."""
    names = default_accountants(request.releases(release), adjacency=request.adjacency)
    return {name: judging_cost(request, release, name) for name in names}


def _refuse_slow(request: PlanRequest, release: NoiseEvent, named: str) -> None:
    """Refuse an accountant that would take many seconds to plan with."""
    limits = _NAMED if request.selection == 1 else _QUICK
    cost, most = judging_cost(request, release, named), limits.get(named, math.inf)
    if request.epsilon < _ABOVE_LEAST * _least_epsilon(request, named):
        raise ParameterError(
            f"{named} states no epsilon below {_least_epsilon(request, named):.2g} at "
            f"delta {request.delta:g} behind a coin, because its orders end at "
            f"{MAX_SAMPLED_ORDER}, and needs far too much noise shortly above: name no "
            "accountant",
            parameter="accountant",
            value=named,
        )
    if cost <= most:
        return
    raise ParameterError(
        f"{named} would fill {cost:.2g} table cells for each of some twenty answers, "
        f"at most {most:.2g} are accepted: name no accountant, or take a coarser grid",
        parameter="accountant",
        value=named,
    )


def _least_epsilon(request: PlanRequest, accountant: str) -> float:
    """Return what an accountant states at least, however much noise there is."""
    if accountant != _ORDERS or request.selection == 1:
        return 0.0
    largest = np.array([float(MAX_SAMPLED_ORDER)])
    return float(renyi_epsilons(largest, np.zeros(1), request.delta)[0])
