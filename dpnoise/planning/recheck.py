"""What finished parameters spend: the promise of a plan, accounted for again.

What was calibrated was a release in the making; here it is the one that will run, with
its shares, its rounding and the distance of its draws.
"""

import dataclasses
import math
import time
from fractions import Fraction
from typing import Final, cast

from dpnoise.accounting import Accountant, PrivacyStatement, make_accountant
from dpnoise.accounting.root_search import round_up_to_dyadic
from dpnoise.errors import CalibrationError, TheoremNotApplicableError
from dpnoise.events import NoiseEvent, PrivacyEvent
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning.accountant_choice import refuse_dear
from dpnoise.planning.calibrated import Calibrated
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.result import AccountantTried

_RETRIES: Final = 4
_MORE: Final = 1 + Fraction(1, 1 << 12)


def account(request: PlanRequest, name: str, event: PrivacyEvent) -> Accountant:
    """Tell an accountant what a plan of this request releases.

    Raises:
        TheoremNotApplicableError: It does not cover the event.
    """
    accountant = make_accountant(
        name, adversary=request.calibrated_for, adjacency=request.adjacency
    )
    return accountant.compose(event)


def kept_promise(
    request: PlanRequest, parameters: MechanismParameters, found: Calibrated
) -> tuple[Mechanism, PrivacyStatement, tuple[AccountantTried, ...]]:
    """Recompute ε for what will really run; add noise in tiny steps if needed.

    Returns:
        What runs; what it spends, at most the budget; all that were asked, the one
        whose statement it is first.

    Raises:
        ParameterError: A client would refuse to judge what will really run.
        CalibrationError: A few steps of noise do not bring it within the budget.
    """
    spent = math.inf
    for _ in range(_RETRIES):
        mechanism = make_mechanism(parameters)
        release = cast("NoiseEvent", mechanism.event())
        refuse_dear(request, release, found.accountant)
        event = request.releases(release)
        started = time.process_time()
        statement = account(request, found.accountant, event).statement(request.delta)
        seconds = time.process_time() - started
        spent = statement.epsilon
        if spent <= request.epsilon:
            chosen = AccountantTried(found.accountant, spent, seconds)
            others = (
                _tried(request, name, event)
                for name in found.candidates
                if name != found.accountant
            )
            return mechanism, statement, (chosen, *others)
        more = round_up_to_dyadic(parameters.noise_rule.counted_variance * _MORE)
        parameters = dataclasses.replace(
            parameters, noise_rule=request.noise_rule(more)
        )
    raise CalibrationError(
        f"the finished parameters spend epsilon {spent:.6g}, more than "
        f"{request.epsilon:.6g}; ask for a slightly smaller epsilon"
    )


def _tried(request: PlanRequest, name: str, event: PrivacyEvent) -> AccountantTried:
    """Ask an accountant that was not chosen, for comparison."""
    started = time.process_time()
    try:
        epsilon = account(request, name, event).epsilon(request.delta)
    except TheoremNotApplicableError:
        epsilon = math.inf
    return AccountantTried(name, epsilon, time.process_time() - started)
