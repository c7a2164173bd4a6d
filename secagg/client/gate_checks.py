"""The rules of a client about what it is offered: one function each, of plain values.

`secagg.client.gate` says which of them run where, and in which order.  No other module
imports them but the total, whose commit checks once more.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from secagg.client.data_usage import (
    DataUsage,
    least_sum,
    limit_of,
    loss_in,
    use_of,
)
from secagg.client.total_claim import TotalBudgetExceededError
from secagg.distributed_dp import (
    BudgetSpent,
    LossLimit,
    NoisyTask,
    PrivacyReport,
    RequiredChange,
    fits,
    room_for,
    text_above,
    text_below,
)
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment.revocation_list import refuse_older
from secagg.protocol.policy import PrivacyLimits, TotalBudget
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
    losses = [loss_in(row.claim) for row in rows]
    is_known = any(row.claim.is_of(claim) for row in rows)
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
    room = room_for(loss_in(claim), losses, limit)
    raise _refused(budget, claim, use_of(budget, rows, None), room)


def _refuse_weaker(rows: Sequence[ClaimRow], claim: Claim) -> None:
    """Refuse a total beside a claim that says nothing of broken masks."""
    for row in rows:
        if row.claim.against is ClaimAdversary.SERVER:
            raise TotalBudgetExceededError(
                f"task {row.claim.budget.task!r} has a claim on the data "
                f"{claim.data!r} that says nothing of a server that breaks the masks, "
                "so no total over it does",
                code=ErrorCode.POLICY_VIOLATION,
                next_step="Give data that were used without policy.max_local_epsilon "
                "to no task under it: set policy.data to the name of other data, or "
                "leave max_local_epsilon out.",
            )


def _refused(
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
    return TotalBudgetExceededError(
        f"task {claim.budget.task!r} takes epsilon "
        f"{text_above(claim.epsilon, _DIGITS)} and delta {delta} over all its "
        f"sessions; of the data {budget.data!r} any further "
        f"task may take epsilon {text_below(use.remaining_epsilon, _DIGITS)} of "
        f"{budget.epsilon:g} and delta "
        f"{text_below(use.remaining_delta, _DELTA_DIGITS)} of {budget.delta:g}; "
        f"tasks with claims: {len(use.claims)}",
        code=ErrorCode.POLICY_VIOLATION,
        next_step=f"{nearest}. The total is this client's own: "
        f"{_enough(budget, room.needed)}. `secagg budget` lists the claims.",
    )


def _enough(budget: TotalBudget, needed: LossLimit | None) -> str:
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
