"""Which accountants a plan asks, and what they say of the finished plan.

* What a client's guard refuses is not planned: the same estimate decides, in the same
  words (`check_accounting_cost`). It is evaluated before anything is computed, with the
  noise that a Gaussian would need, and again for the finished plan.
* A plan asks for some twenty answers where a client asks for one, so that it has
  stricter limits of its own: the column `plan_limit` of the catalogue.
* What was calibrated was a release in the making. The finished parameters are accounted
  for again, with their shares, their rounding and the distance of their draws.

It knows no theorem.
"""

import dataclasses
import math
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypedDict

from dpnoise.accounting import (
    MAX_ACCOUNTING_COST,
    Accountant,
    PrivacyStatement,
    accounting_cost,
    check_accounting_cost,
    default_accountants,
    make_accountant,
    weakened,
)
from dpnoise.accounting.catalogue import Form, accountant_class, accountant_entry
from dpnoise.accounting.root_search import round_up_to_dyadic
from dpnoise.errors import CalibrationError, ParameterError, TheoremNotApplicableError
from dpnoise.events import NoiseEvent, PrivacyEvent
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning import tuning
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.scale_search import NoiseModel


@dataclass(frozen=True, slots=True)
class AccountantTried:
    """What an accountant says of the finished parameters.

    Args:
        name: The accountant.
        epsilon: What it states at the plan's δ; infinite where it has no theorem.
        cpu_seconds: What the answer took, with the tables that the search had left.
            A process that begins without them, such as a client, takes some ten times
            as long.
    """

    name: str
    epsilon: float
    cpu_seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What a scale needs.

    Args:
        mechanism: With placeholders for noise and modulus.
        variance: The counted variance, grid steps².
        accountant: The accountant that asked for it.
        candidates: All that were asked.
    """

    mechanism: Mechanism
    variance: Fraction
    accountant: str
    candidates: tuple[str, ...]

    def scaled_to(self, scale_factor: float) -> Fraction:
        """Return as much noise on another grid, in its grid steps²."""
        change = Fraction(scale_factor / self.mechanism.parameters.scale_factor)
        return self.variance * change * change

    @property
    def form(self) -> Form:
        """How that accountant computes."""
        return accountant_entry(self.accountant).form


class _Composition(TypedDict):
    """How releases add up, as estimates of an accountant's cost take it."""

    times: int
    delta: float
    rate: float


def _composition(request: PlanRequest) -> _Composition:
    return _Composition(
        times=request.charges, delta=request.delta, rate=float(request.selection)
    )


def checking_cost(request: PlanRequest, release: NoiseEvent, accountant: str) -> float:
    """Return what a client's guard counts for the releases of a plan, table cells.

    Args:
        request: What was asked for.
        release: One release, with its noise or about as much.
        accountant: Its name.
    """
    return accounting_cost(release, accountant, **_composition(request))


def is_accepted(request: PlanRequest, release: NoiseEvent, accountant: str) -> bool:
    """Return whether a client would accept the cost of such a release.

    Args:
        request: What was asked for.
        release: One release, with its noise.
        accountant: Its name.
    """
    return checking_cost(request, release, accountant) <= MAX_ACCOUNTING_COST


def refuse_expensive(
    request: PlanRequest, release: NoiseEvent, accountant: str
) -> None:
    """Refuse what a client would refuse for its cost, in its words.

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
            f"clients would refuse the cost of checking a plan on this grid, even by "
            f"{accountant}, which states the least for it: take a coarser grid",
            parameter="scale_factor",
            value=request.scale_factor,
        ) from error


def asked_accountants(model: NoiseModel, mechanism: Mechanism) -> tuple[str, ...]:
    """Name the accountants to ask for a grid; the one that asks least noise decides.

    Args:
        model: Of the request.
        mechanism: On that grid.

    Raises:
        ParameterError: The one that was named would take many seconds, for the plan or
            for a client.
    """
    request, scale_factor = model.request, mechanism.parameters.scale_factor
    needed = max(1.0, model.counted_variance(scale_factor))
    release = _typical_release(model, mechanism)
    named = request.accountant or request.mechanism_class.published_accountant
    if named is not None:
        refuse_expensive(request, release, named)
        _refuse_slow(request, release, named)
        return (named,)
    costs = _default_costs(request, release)
    names = tuple(costs)
    if model.gaussian_need(scale_factor) < tuning.COARSE:
        names = tuple(sorted(names, key=costs.__getitem__))
    quick = {
        name: accountant_entry(name).form
        for name in names
        if costs[name] <= accountant_entry(name).plan_limit * MAX_ACCOUNTING_COST
        and _reaches(request, name)
    }
    passed_over: Form | None = None
    if needed > tuning.WIDE and model.gaussian_variance > tuning.SHORT:
        passed_over = Form.CURVE
    wastes = tuning.CLOSED_FORM_WASTES / math.sqrt(needed) > tuning.FAR
    if request.selection < 1 and wastes and Form.CURVE in quick.values():
        passed_over = Form.CLOSED
    asked = tuple(name for name, form in quick.items() if form is not passed_over)
    return asked or tuple(quick) or names[:1]


def late_accountants(model: NoiseModel, mechanism: Mechanism) -> tuple[str, ...]:
    """Name those that are asked for the chosen grid alone, where others waste noise.

    Args:
        model: Of the request.
        mechanism: On that grid.
    """
    request = model.request
    if request.accountant or request.mechanism_class.published_accountant:
        return ()
    release = _typical_release(model, mechanism)
    return tuple(
        name
        for name, cost in _default_costs(request, release).items()
        if cost <= accountant_entry(name).final_limit * MAX_ACCOUNTING_COST
        and _reaches(request, name)
    )


def _typical_release(model: NoiseModel, mechanism: Mechanism) -> NoiseEvent:
    """Return a release with about the noise that a grid will need."""
    needed = max(1.0, model.counted_variance(mechanism.parameters.scale_factor))
    return mechanism.event_with_noise(Fraction(needed))


def _default_costs(request: PlanRequest, release: NoiseEvent) -> dict[str, float]:
    """Return the cost of each accountant that is asked where none is named."""
    names = default_accountants(request.releases(release), adjacency=request.adjacency)
    return {name: checking_cost(request, release, name) for name in names}


def _least_epsilon(request: PlanRequest, name: str) -> float:
    """Return the least epsilon that an accountant states, with some room above it."""
    rate = float(request.selection)
    if accountant_entry(name).form is not Form.ORDERS or rate == 1.0:
        return 0.0
    return accountant_class(name).least_epsilon(request.delta, rate)


def _reaches(request: PlanRequest, name: str) -> bool:
    """Return whether an accountant can state the budget with reasonable noise."""
    return request.epsilon >= tuning.ABOVE_LEAST * _least_epsilon(request, name)


def _refuse_slow(request: PlanRequest, release: NoiseEvent, named: str) -> None:
    """Refuse an accountant that would take many seconds to plan with."""
    row, least = accountant_entry(named), _least_epsilon(request, named)
    if not _reaches(request, named):
        raise ParameterError(
            f"{named} states no epsilon below {least:.2g} at delta {request.delta:g} "
            "behind a selection, because its orders end, and needs far too much noise "
            "shortly above: name no accountant",
            parameter="accountant",
            value=named,
        )
    limit = row.named_limit if request.selection == 1 else row.plan_limit
    cost, most = checking_cost(request, release, named), limit * MAX_ACCOUNTING_COST
    if cost <= most:
        return
    raise ParameterError(
        f"{named} would fill {cost:.2g} table cells for each of some twenty answers, "
        f"at most {most:.2g} are accepted: name no accountant, or take a coarser grid",
        parameter="accountant",
        value=named,
    )


def account(request: PlanRequest, name: str, event: PrivacyEvent) -> Accountant:
    """Tell an accountant what a plan of this request releases.

    Raises:
        TheoremNotApplicableError: It does not cover the event.
    """
    accountant = make_accountant(
        name, adversary=request.calibrated_for, adjacency=request.adjacency
    )
    return accountant.compose(event)


def recheck(
    request: PlanRequest, parameters: MechanismParameters, found: Calibrated
) -> tuple[Mechanism, PrivacyStatement, tuple[AccountantTried, ...]]:
    """Recompute ε for what will really run; add noise in tiny steps if needed.

    Returns:
        What runs; what it spends, at most the budget; all that were asked, the one
        whose statement it is first.

    Raises:
        ParameterError: A client would refuse the cost of checking what will really run.
        CalibrationError: A few steps of noise do not bring it within the budget.
    """
    spent = math.inf
    for _ in range(tuning.RETRIES):
        mechanism = make_mechanism(parameters)
        release = mechanism.event()
        refuse_expensive(request, release, found.accountant)
        event = request.releases(release)
        started = time.process_time()
        stated = account(request, found.accountant, event).statement(request.delta)
        statement = weakened(stated, request.mechanism)
        seconds = time.process_time() - started
        spent = statement.epsilon
        if spent <= request.epsilon:
            chosen = AccountantTried(found.accountant, spent, seconds)
            others = (
                _compare(request, name, event)
                for name in found.candidates
                if name != found.accountant
            )
            return mechanism, statement, (chosen, *others)
        more = round_up_to_dyadic(parameters.noise_rule.counted_variance * tuning.MORE)
        parameters = dataclasses.replace(
            parameters, noise_rule=request.noise_rule(more)
        )
    raise CalibrationError(
        f"the finished parameters spend epsilon {spent:.6g}, more than "
        f"{request.epsilon:.6g}; ask for a slightly smaller epsilon"
    )


def _compare(request: PlanRequest, name: str, event: PrivacyEvent) -> AccountantTried:
    """Ask an accountant that was not chosen, for comparison."""
    started = time.process_time()
    try:
        epsilon = account(request, name, event).epsilon(request.delta)
    except TheoremNotApplicableError:
        epsilon = math.inf
    return AccountantTried(name, epsilon, time.process_time() - started)
