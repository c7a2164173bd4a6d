"""Decide whether a client may take part in a session between two aggregators.

The same decision as `secagg.client.gate`, over two offers; checks that differ have rows
of their own. A session between two aggregators is never resumed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Final

from secagg.client.budget import OwnTotal, budget_key_of, claim_for
from secagg.client.gate import (
    GateCheck,
    GateStage,
    KnownFacts,
    Need,
    check_aggregator,
    check_budget,
    check_claim,
    check_clock,
    check_number,
    run_checks,
)
from secagg.distributed_dp import AggregatorNoise, TwoAggregatorReport
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.policy import ClientPolicy, PrivacyLimits
from secagg.storage.budget_ledger import Charge
from secagg.two_aggregators.offers import check_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRules:
    """Settings of a client of two aggregators; no aggregator changes them.

    Attributes:
        task: Name of the task.
        names: Names of leader and helper, as their certificates must have them.
        limits: Privacy limits; those on single clients' noise refuse every session.
        cohort: Accepted suites, aggregators and sizes; its limits on shares among
            clients have no meaning here.
        total: Total budget of the client's data over all tasks; None for no total.
    """

    task: str
    names: tuple[str, str]
    limits: PrivacyLimits
    cohort: ClientPolicy
    total: OwnTotal | None = None


@dataclass(frozen=True, kw_only=True)
class PairRequest:
    """Everything that decides whether a client takes part between two aggregators.

    Attributes:
        leader: The leader's offer.
        helper: The helper's offer.
        aggregators: Names of both, as their connections have proven them.
        trust_domain: The leader's, as its connection has proven it; None if unproven.
        now: The client's time, in Unix seconds.
        own: The client's settings.
        known: What the client's store holds.
    """

    leader: SessionDescriptor
    helper: SessionDescriptor
    aggregators: tuple[str, str]
    trust_domain: str | None
    now: int
    own: PairRules
    known: KnownFacts

    @property
    def stage(self) -> GateStage:
        """Offers alone: no session between two is resumed."""
        return GateStage.OFFER

    @cached_property
    def noise(self) -> AggregatorNoise:
        """The noise of the task.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the parameters describe no task.
        """
        return AggregatorNoise.from_parameters(self.leader.parameters)

    @cached_property
    def report(self) -> TwoAggregatorReport:
        """What the task costs, computed once."""
        return self.noise.report()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedPair:
    """A session between two aggregators that the client may take part in.

    Attributes:
        leader: The leader's offer.
        helper: The helper's offer.
        noise: The noise of the task.
        report: What the task costs this client.
        charge: What the session costs its budget.
    """

    leader: SessionDescriptor
    helper: SessionDescriptor
    noise: AggregatorNoise
    report: TwoAggregatorReport
    charge: Charge


def charge_of_pair(request: PairRequest) -> Charge:
    """Return what a session costs, under the leader's name."""
    offer = request.leader
    return Charge(
        budget=budget_key_of(offer, trust_domain=request.trust_domain),
        session_id=offer.session_id,
        noise_digest=sha256(offer.parameters.noise_block).digest(),
        allowed=request.noise.budget.charges,
        refunds=0,
    )


def _check_pair_of_offers(request: PairRequest) -> None:
    """Check that the two offers belong together."""
    check_pair(request.leader, request.helper)


def _check_names(request: PairRequest) -> None:
    """Refuse an offer of another aggregator than the expected one."""
    for offer, proven, expected in zip(
        (request.leader, request.helper),
        request.aggregators,
        request.own.names,
        strict=True,
    ):
        check_aggregator(offer, proven)
        if proven != expected:
            raise _policy_error(f"{proven!r} offers it, and {expected!r} is expected")


def _check_task(request: PairRequest) -> None:
    """Refuse an offer of another task than the one asked for."""
    if request.leader.task_id != request.own.task:
        raise _policy_error("it belongs to another task")


def _check_session_number(request: PairRequest) -> None:
    """Refuse a session that is not newer than those seen."""
    check_number(request.leader, request.known.highest_number)


def _check_clocks(request: PairRequest) -> None:
    for offer in (request.leader, request.helper):
        check_clock(offer, request.now)


def _check_cohort(request: PairRequest) -> None:
    """Refuse parameters outside of the client's rules for cohorts."""
    cohort, proposed = request.own.cohort, request.leader.parameters
    accepted = cohort.aggregators
    for name in request.aggregators:
        if accepted is not None and name not in accepted:
            raise _policy_error(f"aggregator {name!r} is not accepted")
    if proposed.suite not in cohort.suites:
        raise _policy_error(f"suite {proposed.suite:#06x} is not accepted")
    for what, given, least in (
        ("min_clients", proposed.min_clients, cohort.min_clients),
        ("min_survivors", proposed.min_survivors, cohort.min_survivors),
    ):
        if given < least:
            raise _policy_error(f"{what} is {given}, at least {least} is required")
    for what, given, most in (
        ("max_clients", proposed.max_clients, cohort.max_clients),
        ("dimension", proposed.dimension, cohort.max_dimension),
        ("bits of a coordinate", proposed.bits, cohort.max_modulus_bits),
    ):
        if given > most:
            raise _policy_error(f"{what} is {given}, at most {most} is accepted")


def _check_privacy_limits(request: PairRequest) -> None:
    """Check what the task costs against the client's limits."""
    request.noise.check(request.own.limits, report_of=lambda: request.report)


def _check_task_budget(request: PairRequest) -> None:
    """Refuse a session beyond those that the client may give."""
    check_budget(charge_of_pair(request), request.known.charges)


def _check_total_budget(request: PairRequest) -> None:
    """Refuse a task that the rest of the data's total does not cover."""
    total = request.own.total
    if total is not None:
        claim = claim_for(
            total,
            request.leader,
            trust_domain=request.trust_domain,
            holder=request.known.holder,
        )
        check_claim(total.budget, request.known.claims, claim)


def _offer_check(
    name: str, rule: str, run: Callable[[PairRequest], None]
) -> GateCheck[PairRequest]:
    """Return a check of offers, which no resumed session repeats."""
    return GateCheck(
        name=name,
        rules=(rule,),
        run=run,
        at=frozenset({GateStage.OFFER}),
        exempt={GateStage.RESUME: "no session between two aggregators is resumed"},
    )


PAIR_CHECKS: Final[tuple[GateCheck[PairRequest], ...]] = (
    _offer_check("pair", "R3.2-1", _check_pair_of_offers),
    _offer_check("names", "R5.0-1", _check_names),
    _offer_check("task", "R5.0-1", _check_task),
    _offer_check("number", "R5.0-2", _check_session_number),
    _offer_check("clocks", "R5.0-2", _check_clocks),
    _offer_check("cohort", "R5.0-4", _check_cohort),
    _offer_check("limits", "R5.0-4", _check_privacy_limits),
    _offer_check("budget", "R5.0-4", _check_task_budget),
    _offer_check("total", "R5.0-4", _check_total_budget),
)


def admit_pair(
    request: PairRequest, *, checks: Sequence[GateCheck[PairRequest]] = PAIR_CHECKS
) -> AdmittedPair:
    """Return a session that the client may take part in; this takes up to seconds.

    Args:
        request: The offers, and what they are checked against.
        checks: The checks, in order.

    Raises:
        RemoteProtocolError: The code of the first check that fails.
    """
    need: Need | None = run_checks(request, checks)
    if need is not None:
        raise ErrorCode.INTERNAL.error(
            "no check between two aggregators needs anything"
        )
    return AdmittedPair(
        leader=request.leader,
        helper=request.helper,
        noise=request.noise,
        report=request.report,
        charge=charge_of_pair(request),
    )


def _policy_error(complaint: str) -> SecAggError:
    """Return the error of a session that the client's policy forbids."""
    return ErrorCode.POLICY_VIOLATION.error(
        f"the session breaks this client's policy: {complaint}",
        fix="Ask the operators for other parameters, or change the client's "
        "own settings if that is what you want.",
    )
