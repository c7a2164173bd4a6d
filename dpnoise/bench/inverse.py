"""Plans asked backwards: the loss of a given noise, and the people an error needs.

Both use what `dpnoise.plan` uses: its events, accountants, adversaries and forecast.
They draw nothing.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from dpnoise.accounting import (
    MAX_ACCOUNTING_COST,
    PrivacyStatement,
    accounting_cost,
    default_accountants,
    make_accountant,
)
from dpnoise.bench.arguments import NO_SETTINGS, plan_keywords
from dpnoise.checks import check_number, check_positive
from dpnoise.errors import (
    CalibrationError,
    DPNoiseError,
    ParameterError,
    TheoremNotApplicableError,
)
from dpnoise.events import NoiseEvent
from dpnoise.mechanisms import MechanismParameters, make_mechanism
from dpnoise.mechanisms.noise_share import MAX_CLIENTS
from dpnoise.planning import Plan, PlanRequest, plan

_ANY_MODULUS: Final = 1 << 62  # no loss depends on it
_FEWEST: Final = 2
_LEAPS: Final = 4
_RAGGED: Final = 1.05  # by less than so much an error may rise with the cohort
_NEXT_TO: Final = 256  # such a part of a cohort is not worth a plan to come closer


def budget(  # noqa: PLR0913 - what a loss depends on
    *,
    noise_variance: Fraction | float,
    scale_factor: float,
    clients: int,
    dimension: int,
    delta: float,
    l2_clip: float = 0.0,
    mechanism: str = "skellam-mixture",
    settings: Mapping[str, Any] = NO_SETTINGS,
) -> PrivacyStatement:
    """Say what ε a noise is worth.

    Args:
        noise_variance: Variance that privacy counts, of the sum, per coordinate, grid
            steps²: `Plan.noise_variance`. In the caller's units, times `scale_factor`².
        scale_factor: Grid steps per unit.
        clients: Cohort size of one session.
        dimension: Coordinates of the caller's vector.
        delta: Failure probability, in (0, 1).
        l2_clip: Clip, caller's units.
        mechanism: Its name. `smm` needs `linf_bound` among the settings.
        settings: Further keywords of `dpnoise.plan`, such as `steps`, `adjacency`,
            `min_survivors` or `accountant`.

    Returns:
        The least statement among the accountants that a plan would ask, or that of the
        accountant named; the sampler's distance from its law included.

    Raises:
        ParameterError: A value cannot work.
        TheoremNotApplicableError: No accountant has a theorem at this noise.
        UnknownEventError: No accountant has one for the mechanism.
    """
    asked = plan_keywords(
        settings,
        clients=clients,
        dimension=dimension,
        l2_clip=l2_clip,
        delta=delta,
        mechanism=mechanism,
        scale_factor=scale_factor,
        epsilon=1.0,  # every request names one; a loss does not depend on it
    )
    request = PlanRequest(**asked)
    if not isinstance(noise_variance, Fraction):  # which is exact, and may be huge
        noise_variance = check_positive("noise_variance", noise_variance)
    bound = request.linf_bound
    made = make_mechanism(
        MechanismParameters(
            mechanism=mechanism,
            dim=dimension,
            l2_clip=float(request.l2_clip),
            scale_factor=float(scale_factor),
            modulus=_ANY_MODULUS,
            noise_rule=request.noise_rule(Fraction(noise_variance)),
            num_clients=clients,
            rotation=request.rotation,
            rounding_bias=request.rounding_bias,
            linf_bound=None if bound is None else Fraction(bound),
            clip_flag_amplitude=float(request.clip_flag_amplitude),
            max_nonzero=request.max_nonzero,
            signed=request.signed,
        )
    )
    release = made.event()
    event = request.releases(release)
    refusal: TheoremNotApplicableError | None = None
    best: PrivacyStatement | None = None
    for name in _accountants(request, release):
        account = make_accountant(
            name, adversary=request.calibrated_for, adjacency=request.adjacency
        )
        try:
            stated = account.compose(event).statement(delta)
        except TheoremNotApplicableError as error:
            refusal = error
            continue
        if best is None or stated.epsilon < best.epsilon:
            best = stated
    if best is None:
        raise refusal or CalibrationError("no accountant was asked")
    return best


def _accountants(request: PlanRequest, release: NoiseEvent) -> tuple[str, ...]:
    """Name the accountants that a plan of this request would ask."""
    named = request.accountant or request.mechanism_class.published_accountant
    if named is not None:
        return (named,)
    names = default_accountants(request.releases(release), adjacency=request.adjacency)
    quick = [
        name for name in names if accounting_cost(release, name) <= MAX_ACCOUNTING_COST
    ]
    return tuple(quick) or names[:1]


def clients(  # noqa: PLR0913 - what an error depends on
    *,
    mean_error: float,
    epsilon: float,
    delta: float,
    dimension: int,
    l2_clip: float = 0.0,
    loss_fraction: float = 0.0,
    mechanism: str = "skellam-mixture",
    settings: Mapping[str, Any] = NO_SETTINGS,
) -> Plan:
    """Find how many clients keep the error of a mean below a target.

    Args:
        mean_error: Target: root of the expected squared error of the mean of all
            vectors, per coordinate, caller's units.
        epsilon: Budget.
        delta: Failure probability of the budget.
        dimension: Coordinates of the caller's vector.
        l2_clip: Clip, caller's units.
        loss_fraction: Part of the cohort that may be lost, in [0, 1).
        mechanism: Its name.
        settings: Further keywords of `dpnoise.plan`, such as `bits` or `steps`.

    Returns:
        A plan that reaches the target; its `request.clients` is the answer. The plan
        for one client fewer does not reach it, or does not exist.

    Raises:
        ParameterError: No cohort that the product supports reaches the target, or a
            value cannot work.
    """
    check_positive("mean_error", mean_error)
    if not 0.0 <= check_number("loss_fraction", loss_fraction) < 1.0:
        raise ParameterError.of(
            "loss_fraction", loss_fraction, "must lie in [0, 1)", nearest="0.0"
        )
    keywords = plan_keywords(
        settings,
        *("clients", "min_survivors", "loss_fraction"),
        epsilon=epsilon,
        delta=delta,
        dimension=dimension,
        l2_clip=l2_clip,
        mechanism=mechanism,
    )
    plans: dict[int, Plan | DPNoiseError] = {}

    def found(number: int) -> Plan | DPNoiseError:
        if number not in plans:
            survivors = max(_FEWEST, number - math.floor(loss_fraction * number))
            survivors = min(number, survivors)
            given = {"clients": number, "min_survivors": survivors} | keywords
            try:
                plans[number] = plan(**given)
            except DPNoiseError as refusal:
                plans[number] = refusal
        return plans[number]

    def excess(number: int) -> float:
        made = found(number)
        if not isinstance(made, Plan):
            return math.inf
        return math.sqrt(made.estimate_mse) / number / mean_error

    number = _threshold(excess, start=_guess(found, mean_error))
    answer = found(number)
    if not isinstance(answer, Plan):
        raise answer
    if excess(number) > 1.0:
        least = excess(number) * mean_error
        raise ParameterError(
            f"even {number} clients leave a mean with an error of {least:.4g}",
            parameter="mean_error",
            value=mean_error,
            nearest=f"{1.001 * least:.4g}",
        )
    return answer


def _guess(found: Callable[[int], Plan | DPNoiseError], mean_error: float) -> int:
    """Return the cohort that would do with the central Gaussian's noise."""
    for number in (100, 1000, 10_000, _FEWEST):
        made = found(number)
        if isinstance(made, Plan):
            needed = math.sqrt(made.gaussian_mse) / mean_error
            return min(MAX_CLIENTS, max(_FEWEST, math.ceil(needed)))
    return _FEWEST


def _threshold(excess: Callable[[int], float], *, start: int) -> int:
    """Find a number that reaches and whose predecessor does not, from a guess on.

    The error of a mean falls about as the number grows, which leads next to the answer.
    From there steps double until it is between two numbers, then their gap is halved.

    Args:
        excess: How many times the target a number's error is; infinite without a plan.
        start: The guess.

    Returns:
        The number, or the largest cohort if that does not reach either.
    """
    for _ in range(_LEAPS):
        leap = math.ceil(min(start * excess(start), MAX_CLIENTS))
        leap = max(_FEWEST, leap)
        if abs(leap - start) <= start // _NEXT_TO or math.isinf(excess(leap)):
            break
        start = leap
    step = max(1, start // _NEXT_TO)
    if excess(start) <= 1.0:
        high, low = start, max(_FEWEST - 1, start - step)
        while low >= _FEWEST and excess(low) <= 1.0:
            step *= 2
            high, low = low, max(_FEWEST - 1, low - step)
    else:
        if _RAGGED < excess(MAX_CLIENTS) < math.inf:
            return MAX_CLIENTS
        low, high = start, min(MAX_CLIENTS, start + step)
        while excess(high) > 1.0:
            if high == MAX_CLIENTS:
                return high
            step *= 2
            low, high = high, min(MAX_CLIENTS, high + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) <= 1.0 else (middle, high)
    return high
