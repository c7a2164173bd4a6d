"""Whether a client may take part in a session: one decision for every way into it.

Rule 1: `admit` reads and writes nothing.  Everything that it uses is in its
        request: the offer, the client's own rules, and what its store knows.
Rule 2: everything is checked before a key is made, in the order of PROTOCOL §5.0, and
        again when a session is resumed: limits may have become stricter since.
Rule 3: nothing around a client removes a rule: the client checks, not its connection.
Rule 4: a check that a stage leaves out is exempt by name, with its reason.
Rule 5: a rule is one function of plain values, `check_` something.  No other module
        imports these but the gate of two aggregators, and the total for its commit.

The commit that begins or charges a session compares number, budget and total once more,
since another process may have changed them meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto, unique
from functools import cached_property
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from secagg.client.budget import (
    DataUsage,
    OwnTotal,
    TotalBudgetExceededError,
    charge_of,
    claim_for,
    least_sum,
    limit_of,
    loss_in,
    merge_charges,
    use_of,
)
from secagg.distributed_dp import (
    BudgetSpent,
    LossLimit,
    NoisyTask,
    PrivacyReport,
    RequiredChange,
    fits,
    required_change,
    text_above,
    text_below,
)
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import (
    ClientIdentity,
    RevocationList,
    VerifiedCredentials,
    read_revocations,
    refuse_older,
)
from secagg.protocol.membership import Membership
from secagg.protocol.policy import (
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import (
    Charge,
    ChargeRow,
    Claim,
    ClaimAdversary,
    ClaimRow,
    is_new_charge,
)

_DIGITS: Final = 4
_DELTA_DIGITS: Final = 3


def check_aggregator(offer: SessionDescriptor, aggregator: str) -> None:
    """Refuse a session of another aggregator than the one that is asked (R5.0-1).

    Raises:
        RemoteProtocolError: UNAUTHENTICATED.
    """
    if offer.aggregator != aggregator:
        raise ErrorCode.UNAUTHENTICATED.error(
            f"{aggregator!r} offers a session of {offer.aggregator!r}",
            fix="Tell the operator: sessions of one aggregator are passed on by "
            "another one.",
        )


def check_trust_domain(trust: Trust, own_domain: str) -> None:
    """Refuse an offer that goes by another trust domain than the client's (R5.0-1).

    Raises:
        RemoteProtocolError: UNAUTHENTICATED.
    """
    if trust.trust_domain != own_domain:
        raise ErrorCode.UNAUTHENTICATED.error(
            f"the aggregator goes by the trust domain {trust.trust_domain[:60]!r}, "
            f"this client belongs to {own_domain!r}",
            fix="Check which aggregator this is.",
        )


def check_number(offer: SessionDescriptor, highest: int) -> None:
    """Refuse a session number that was seen before (R5.0-2).

    Args:
        offer: The session.
        highest: Highest number of its aggregator and task that was seen; 0 for none.

    Raises:
        RemoteProtocolError: REPLAYED_SESSION.
    """
    if offer.session_number <= highest:
        raise ErrorCode.REPLAYED_SESSION.error(
            f"the server offers session {offer.session_number} of task "
            f"{offer.task_id!r}; numbers up to {highest} were seen before",
            sender=offer.aggregator,
            fix="Tell the operator: the server has lost its state or lies.",
        )


def check_clock(offer: SessionDescriptor, now: int) -> None:
    """Refuse a session whose end cannot be by the client's clock (R5.0-2).

    Raises:
        RemoteProtocolError: BAD_CONFIG.
    """
    offer.check_clock(now)


def check_end(offer: SessionDescriptor, now: int) -> None:
    """Refuse to resume a session after its end (R5-7).

    Raises:
        SessionAbortedError: DEADLINE.
    """
    if now >= offer.session_end:
        raise ErrorCode.DEADLINE.error(
            f"session {offer.session_number} of task {offer.task_id!r} has ended "
            "while this client was away",
            fix="Take part in the next session of the task.",
        )


def check_enrolment_key(trust: Trust, pinned_key: bytes) -> None:
    """Refuse an offer whose clients another issuer vouches for (R5.0-3).

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if trust.enrolment_key != pinned_key:
        raise ErrorCode.POLICY_VIOLATION.error(
            "the aggregator goes by another enrolment key than the one in this "
            "client's settings",
            fix="Do not take part: the holder of that key can invent clients. "
            "If the issuer has changed, have the new key confirmed on another way.",
        )


def check_list_number(trust: Trust, newest: Trust | None) -> None:
    """Refuse an older revocation list than the newest one that was read (R5.0-3).

    Args:
        trust: Of the offer.
        newest: Names the newest list that this client has read; None for none.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if newest is not None:
        refuse_older(trust, seen=newest)


def check_list_age(
    trust: Trust, made_at: int | None, *, now: float, max_age_seconds: float
) -> None:
    """Refuse a revocation list that is older than this client allows (R5.0-4).

    Args:
        trust: Of the offer.
        made_at: When its list was made, in Unix seconds; None for no list.
        now: Unix seconds at which it is gone by.
        max_age_seconds: The client's limit.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if trust.revocation_number == 0 or made_at is None:
        raise ErrorCode.POLICY_VIOLATION.error(
            "the aggregator names no revocation list, and this client limits its age",
            fix="Issuer: publish a list, also an empty one, with "
            "`secagg pki enrol revoke`.",
        )
    if now - made_at > max_age_seconds:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"the revocation list is too old for this client: it is "
            f"{now - made_at:.0f} seconds old, at most {max_age_seconds:.0f} are "
            "allowed",
            fix="Issuer: publish a fresh list with `secagg pki enrol revoke`.",
        )


def check_limits(
    task: NoisyTask, limits: PrivacyLimits, *, report_of: Callable[[], PrivacyReport]
) -> None:
    """Refuse noise that is worth less than the client insists on (R5.0-4).

    Args:
        task: The task.
        limits: What the client insists on.
        report_of: Returns what the task costs; called only if the rest of it fits,
            since it may take seconds.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION, naming the limit.
    """
    task.check_noise(limits)
    task.check(limits, report=report_of())


def check_budget(charge: Charge, charges: Iterable[ChargeRow]) -> None:
    """Refuse a session that the budget of its task does not cover any more.

    Args:
        charge: What the session would be charged.
        charges: Those made before; its own counts for nothing.

    Raises:
        BudgetSpentError: The budget is spent.
        NoiseChangedError: The task was charged with other noise before.
    """
    # An offer of a session known before is refused by its number.
    is_new_charge(
        (row for row in charges if row.session_id != charge.session_id), charge
    )


def check_claim(
    budget: TotalBudget, rows: Sequence[ClaimRow], claim: Claim
) -> BudgetSpent:
    """Return what all claims come to with one more, if they fit.

    Args:
        budget: The total.
        rows: All claims on its data.
        claim: The further one; one that is among them counts once.

    Raises:
        TotalBudgetExceededError: They do not.
    """
    if claim.against is ClaimAdversary.BROKEN_MASKS:
        _refuse_weaker(rows, claim)
    limit = limit_of(budget)
    # A known claim counts as it is made now: its owner may accept less than before.
    held = [claim if row.claim.is_of(claim) else row.claim for row in rows]
    losses, is_known = [loss_in(each) for each in held], claim in held
    together = losses if is_known else [*losses, loss_in(claim)]
    found = least_sum(together, limit)
    if fits(together, limit):
        return found
    if is_known:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"tasks with claims on the data {budget.data!r} come to epsilon "
            f"{text_above(found.epsilon, _DIGITS)} and delta "
            f"{text_above(found.delta, _DELTA_DIGITS)}; this client's total is "
            f"{budget.epsilon:g} and {budget.delta:g}",
            kind=TotalBudgetExceededError,
            fix="policy.total_epsilon or policy.total_delta was lowered below what "
            "is claimed already, and claims stay: give no more, or raise it again.",
        )
    room = required_change(loss_in(claim), losses, limit)
    raise _total_exceeded_error(budget, claim, use_of(budget, rows, None), room)


def _refuse_weaker(rows: Sequence[ClaimRow], claim: Claim) -> None:
    """Refuse a total beside a claim that says nothing of broken masks."""
    for row in rows:
        if row.claim.against is ClaimAdversary.SERVER:
            raise ErrorCode.POLICY_VIOLATION.error(
                f"task {row.claim.budget.task!r} has a claim on the data "
                f"{claim.data!r} that says nothing of a server that breaks the masks, "
                "so no total over it does",
                kind=TotalBudgetExceededError,
                fix="Give data that were used without policy.max_local_epsilon "
                "to no task under it: set policy.data to the name of other data, or "
                "leave max_local_epsilon out.",
            )


def _total_exceeded_error(
    budget: TotalBudget, claim: Claim, use: DataUsage, room: RequiredChange
) -> TotalBudgetExceededError:
    """Return the error for a task that the rest of the total does not cover."""
    delta = text_above(claim.delta, _DELTA_DIGITS)
    if room.epsilon > 0.0:
        nearest = (
            "A task of epsilon up to about "
            f"{text_below(room.epsilon, _DIGITS)} at delta {delta} fits: ask its "
            "operator for one (noise.epsilon)"
        )
    else:
        nearest = f"No task of delta {delta} fits: ask its operator for a smaller one"
    return ErrorCode.POLICY_VIOLATION.error(
        f"task {claim.budget.task!r} takes epsilon "
        f"{text_above(claim.epsilon, _DIGITS)} and delta {delta} over all its "
        f"sessions; of the data {budget.data!r} any further "
        f"task may take epsilon {text_below(use.remaining_epsilon, _DIGITS)} of "
        f"{budget.epsilon:g} and delta "
        f"{text_below(use.remaining_delta, _DELTA_DIGITS)} of {budget.delta:g}; "
        f"tasks with claims: {len(use.claims)}",
        kind=TotalBudgetExceededError,
        fix=f"{nearest}. The total is this client's own: "
        f"{_required_settings(budget, room.needed)}. `secagg budget` lists the claims.",
    )


def _required_settings(budget: TotalBudget, needed: LossLimit | None) -> str:
    """Name what has to be set for a task that does not fit."""
    if needed is None:
        return "no other takes this one"
    settings = []
    if needed.delta > budget.delta:
        least = text_above(needed.delta, _DELTA_DIGITS)
        settings.append(f"policy.total_delta of at least {least}")
    if needed.epsilon > budget.epsilon:
        least = text_above(needed.epsilon, _DIGITS)
        settings.append(f"policy.total_epsilon of at least {least}")
    takes = "takes" if len(settings) == 1 else "together take"
    return (
        f"{' and '.join(settings)} {takes} this one, if that is what the owner of the "
        "data wants"
    )


@unique
class GateStage(Enum):
    """How a session comes to the gate."""

    OFFER = auto()
    """A session that the client has said nothing in."""
    RESUME = auto()
    """A session of the client's own store."""


@unique
class Need(Enum):
    """What a client cannot continue without."""

    REVOCATIONS = auto()
    """The revocation list that the offer names: ask again with its bytes."""
    VECTOR = auto()
    """The vector of its owner: every other client's keys are shared."""


@dataclass(frozen=True, slots=True, eq=False)
class SessionInfo:
    """What a client knows of a session when it makes its vector.

    Attributes:
        descriptor: The session, with all parameters.
        dimension: Entries of one vector, before any encoding.
        privacy: What the task costs this client, computed by itself; None for a task
            that releases exact sums.
        payload: What the session hands out, for example a model; b"" for nothing, and
            while the offer is checked.
    """

    descriptor: SessionDescriptor
    dimension: int
    privacy: PrivacyReport | None
    payload: bytes = field(default=b"", repr=False)

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.descriptor.task_id

    @property
    def session_number(self) -> int:
        """Number of the session, from 1; aborted sessions have one, too."""
        return self.descriptor.session_number


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnrolment:
    """Who a client is among the enrolled, and which lists it goes by.

    Attributes:
        identity: Its key, credential and pinned enrolment key.
        max_revocation_seconds: Oldest revocation list that it goes by; None for no
            limit.
        verified: Credentials that it has verified in earlier sessions.
    """

    identity: ClientIdentity
    max_revocation_seconds: float | None = None
    verified: VerifiedCredentials | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRules:
    """What a client's owner has settled; no server changes any of it.

    Attributes:
        limits: Of privacy, or their waiver.
        cohort: Limits of the cohort.
        report_of: Returns what a task costs this client, by its own computation or as
            it remembers it; may take seconds.
        enrolment: Who the client is among the enrolled; None for a client that is not.
        total: Of its data over all tasks; None for no total.
    """

    limits: PrivacyLimits | ExactSumWaiver
    cohort: ClientPolicy
    report_of: Callable[[NoisyTask], PrivacyReport] = NoisyTask.report
    enrolment: OwnEnrolment | None = None
    total: OwnTotal | None = None

    @property
    def policy(self) -> ClientPolicy:
        """The rules of the cohort; noise is demanded unless the limits waive it."""
        return replace(
            self.cohort, require_noise=isinstance(self.limits, PrivacyLimits)
        )

    @property
    def noise_limits(self) -> PrivacyLimits | None:
        """What noise is held to, where a task has any; None for nothing."""
        limits = self.limits
        return limits if isinstance(limits, PrivacyLimits) else limits.noised


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFacts:
    """What a client's store knows that decides about a session.

    Attributes:
        highest_number: Highest session number of aggregator and task; 0 for none.
        charges: Charges of all tasks of this name.
        claims: Claims on the client's data, where it has a total.
        holder: Name of the store that counts the client's sessions.
        newest_list: Names the newest revocation list that was read under the client's
            enrolment key and trust domain; None for none.
        list_made_at: RESUME: when the list that the session goes by was made, in Unix
            seconds; None for no list, and where it is not stored any more.
        is_bound: RESUME: an input is bound, and may have left.
    """

    highest_number: int = 0
    charges: Sequence[ChargeRow] = ()
    claims: Sequence[ClaimRow] = ()
    holder: bytes = b""
    newest_list: Trust | None = None
    list_made_at: int | None = None
    is_bound: bool = False


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """Everything that decides whether a client takes part in a session.

    Attributes:
        offer: The session.
        stage: Whether it is offered or resumed.
        aggregator: Name of the server, as the carrier has proven it.
        trust_domain: Of the server, likewise; None where the carrier proves none.
        now: The client's time, in Unix seconds.
        own: What its owner has settled.
        known: What its store knows.
        joined_at: RESUME: when the session was begun, in Unix seconds; None for one
            that has answered, of which it is not stored any more.
        revocations: Bytes of the list that the offer names; None for "not there yet".
    """

    offer: SessionDescriptor
    stage: GateStage
    aggregator: str
    trust_domain: str | None
    now: int
    own: OwnRules
    known: KnownFacts
    joined_at: int | None = None
    revocations: bytes | None = field(default=None, repr=False)

    @cached_property
    def task(self) -> NoisyTask | None:
        """The task of an offer with noise.

        Raises:
            RemoteProtocolError: BAD_CONFIG; its noise cannot be.
        """
        if not self.offer.parameters.noise_block:
            return None
        return NoisyTask.of_session(self.offer)

    @cached_property
    def report(self) -> PrivacyReport | None:
        """What the task costs, computed once."""
        return None if self.task is None else self.own.report_of(self.task)

    @cached_property
    def claim(self) -> Claim | None:
        """What the task claims of the client's data; None without a total.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; nothing bounds what the task costs.
        """
        if self.own.total is None:
            return None
        return claim_for(
            self.own.total,
            self.offer,
            trust_domain=self.trust_domain,
            holder=self.known.holder,
        )

    @property
    def enrolled(self) -> tuple[Trust, OwnEnrolment] | None:
        """What both sides go by; None where the core refuses a client without it."""
        trust, own = self.offer.parameters.trust, self.own.enrolment
        return None if trust is None or own is None else (trust, own)

    @cached_property
    def revocation_list(self) -> RevocationList | None:
        """The list that the offer names, decoded; R2.1-0 says whether it is the one."""
        return RevocationList.decode(self.revocations) if self.revocations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedSession:
    """A session that the client may take part in.

    Attributes:
        descriptor: The session.
        info: What the application is told of it.
        membership: The client's place among the enrolled; None where there is no such
            thing, and for a session that is resumed, whose record has it.
    """

    descriptor: SessionDescriptor
    info: SessionInfo
    membership: Membership | None


class _Staged(Protocol):
    @property
    def stage(self) -> GateStage: ...


_Request = TypeVar("_Request", bound=_Staged)
_EVERYWHERE: Final = frozenset(GateStage)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck(Generic[_Request]):
    """One rule, and the stages that it holds at.

    Attributes:
        name: As the table of rules has it.
        rules: Ids in PROTOCOL.md.
        run: Raises where the rule is broken, or says what it needs.
        at: The stages.
        exempt: Why it does not hold at the others.
    """

    name: str
    rules: tuple[str, ...]
    run: Callable[[_Request], Need | None]
    at: frozenset[GateStage] = _EVERYWHERE
    exempt: Mapping[GateStage, str] = field(
        default_factory=lambda: MappingProxyType({})
    )


def _check_form(request: GateRequest) -> None:
    """Check that an offer is well formed."""
    request.offer.validate()


def _check_aggregator(request: GateRequest) -> None:
    check_aggregator(request.offer, request.aggregator)


def _check_trust_domains(request: GateRequest) -> None:
    """Check that server, offer and credential are of one trust domain."""
    trust = request.offer.parameters.trust
    if trust is not None and request.trust_domain is not None:
        check_trust_domain(trust, request.trust_domain)
    if request.enrolled is not None:
        trust, own = request.enrolled
        check_trust_domain(trust, own.identity.issued.trust_domain)


def _check_session_number(request: GateRequest) -> None:
    """Refuse a session that is not newer than those seen."""
    check_number(request.offer, request.known.highest_number)


def _check_clock(request: GateRequest) -> None:
    check_clock(request.offer, request.now)


def _check_session_end(request: GateRequest) -> None:
    """Refuse a session at its end, unless an input is bound to it."""
    if not request.known.is_bound:  # else only its outcome is asked for
        check_end(request.offer, request.now)


def _check_enrolment_key(request: GateRequest) -> None:
    if request.enrolled is not None:
        trust, own = request.enrolled
        check_enrolment_key(trust, own.identity.enrolment_key)


def _check_list_number(request: GateRequest) -> None:
    if request.enrolled is not None:
        check_list_number(request.enrolled[0], request.known.newest_list)


def _check_cohort(request: GateRequest) -> None:
    """Check the offer against the client's rules for cohorts."""
    request.own.policy.check(request.offer)


def _check_privacy_limits(request: GateRequest) -> None:
    """Check what the task costs against the client's limits."""
    limits, task = request.own.noise_limits, request.task
    if task is None or limits is None:
        return

    def report() -> PrivacyReport:
        return request.report or task.report()

    check_limits(task, limits, report_of=report)


def _check_task_budget(request: GateRequest) -> None:
    """Refuse a session beyond those that the client may give."""
    charge = charge_of(request.offer, trust_domain=request.trust_domain)
    if charge is not None:
        own, rows = request.own.enrolment, request.known.charges
        issued = None if own is None else own.identity.issued.trust_domain
        rows = merge_charges(rows, charge.budget, request.trust_domain, issued)
        check_budget(charge, rows)


def _check_total_budget(request: GateRequest) -> None:
    """Refuse a task that the rest of the data's total does not cover."""
    total = request.own.total
    if total is not None and request.claim is not None:
        check_claim(total.budget, request.known.claims, request.claim)


def is_claimed(request: GateRequest) -> bool:
    """Return whether the task of a session has its claim on the data already."""
    claim = request.claim
    return claim is None or any(row.claim.is_of(claim) for row in request.known.claims)


def _check_revocation_list(request: GateRequest) -> Need | None:
    """Ask for the revocation list that the offer names, or check it."""
    if request.enrolled is None:
        return None
    trust = request.enrolled[0]
    if request.revocations is None:
        if trust.revocation_number:
            return Need.REVOCATIONS
        read_revocations(b"", trust)
    else:
        read_revocations(request.revocations, trust)
    return None


def _check_list_age(request: GateRequest) -> None:
    """Refuse a revocation list older than the client's limit."""
    if request.enrolled is None:
        return
    trust, own = request.enrolled
    made_at, gone_by_at = request.known.list_made_at, request.joined_at
    if request.stage is GateStage.OFFER:
        found = request.revocation_list
        made_at, gone_by_at = None if found is None else found.made_at, request.now
    # A list that grows old in a session must not end it by a restart alone.
    if own.max_revocation_seconds is not None and gone_by_at is not None:
        check_list_age(
            trust, made_at, now=gone_by_at, max_age_seconds=own.max_revocation_seconds
        )


_AT_OFFER: Final = frozenset({GateStage.OFFER})
_AT_RESUME: Final = frozenset({GateStage.RESUME})

# In the order of PROTOCOL §5.0, with the list last, since it may have to be fetched.
GATE_CHECKS: Final[tuple[GateCheck[GateRequest], ...]] = (
    GateCheck(name="form", rules=("R3.2-1",), run=_check_form),
    GateCheck(name="aggregator", rules=("R5.0-1",), run=_check_aggregator),
    GateCheck(name="trust domain", rules=("R5.0-1",), run=_check_trust_domains),
    GateCheck(
        name="number",
        rules=("R5.0-2",),
        run=_check_session_number,
        at=_AT_OFFER,
        exempt={GateStage.RESUME: "the number is this session's own"},
    ),
    GateCheck(
        name="clock",
        rules=("R5.0-2",),
        run=_check_clock,
        at=_AT_OFFER,
        exempt={
            GateStage.RESUME: "it was checked at the offer; `end` checks what is left"
        },
    ),
    GateCheck(
        name="end",
        rules=("R5-7",),
        run=_check_session_end,
        at=_AT_RESUME,
        exempt={GateStage.OFFER: "`clock` checks the end"},
    ),
    GateCheck(name="enrolment key", rules=("R5.0-3",), run=_check_enrolment_key),
    GateCheck(name="list number", rules=("R5.0-3",), run=_check_list_number),
    GateCheck(name="cohort", rules=("R5.0-4",), run=_check_cohort),
    GateCheck(name="limits", rules=("R5.0-4",), run=_check_privacy_limits),
    GateCheck(name="budget", rules=("R5.0-4",), run=_check_task_budget),
    GateCheck(name="total", rules=("R5.0-4",), run=_check_total_budget),
    GateCheck(
        name="list",
        rules=("R2.1-0",),
        run=_check_revocation_list,
        at=_AT_OFFER,
        exempt={GateStage.RESUME: "the record has what the list says"},
    ),
    GateCheck(name="list age", rules=("R5.0-4",), run=_check_list_age),
)


def admit(
    request: GateRequest, *, checks: Sequence[GateCheck[GateRequest]] = GATE_CHECKS
) -> AdmittedSession | Need:
    """Return a session that the client may take part in; takes up to seconds.

    Args:
        request: What is checked, and by what.
        checks: The rules, in their order.

    Returns:
        The session; or what is needed to check the rest of the rules.

    Raises:
        RemoteProtocolError: The code of the first rule that is broken (PROTOCOL §5.0).
        SessionAbortedError: DEADLINE; a session that would be resumed is over.
    """
    need = run_checks(request, checks)
    if need is not None:
        return need
    offer, task = request.offer, request.task
    dimension = offer.parameters.dimension if task is None else task.dim
    return AdmittedSession(
        descriptor=offer,
        info=SessionInfo(offer, dimension, request.report),
        membership=_membership(request),
    )


def run_checks(request: _Request, checks: Sequence[GateCheck[_Request]]) -> Need | None:
    """Run the checks of a stage one after the other.

    Returns:
        What the first of them needs that cannot decide; None when all have passed.

    Raises:
        SecAggError: As the first rule that is broken has it.
    """
    for check in checks:
        if request.stage in check.at:
            need = check.run(request)
            if need is not None:
                return need
    return None


def _membership(request: GateRequest) -> Membership | None:
    """Return what an enrolled client joins with; None without an enrolment."""
    if request.enrolled is None or request.stage is GateStage.RESUME:
        return None
    own, found = request.enrolled[1], request.revocation_list
    issued = own.identity.issued
    return Membership(
        trust_domain=issued.trust_domain,
        enrolment_key=own.identity.enrolment_key,
        key=own.identity.key,
        credential=issued.credential,
        revoked=frozenset() if found is None else frozenset(found.serials),
        list_made_at=None if found is None else found.made_at,
        verified=own.verified,
    )
