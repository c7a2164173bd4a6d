"""What a client gives to each task, and what its data may cost over all of them.

Rule 1: a session of a task with noise is charged in the change that binds its input,
        before the first byte leaves.  Charging it again changes nothing.
Rule 2: what becomes of a charge is said by the table of `secagg.protocol.refund` alone
        and written by the change that ends the session.  Timeouts, errors of
        a call and this client's own faults give nothing back.  Of a task in
        which one client has n participations at most n of its sessions come back, ever.
Rule 3: a budget is that of one task of one aggregator of one trust domain, and has one
        description of its noise.  An aggregator under another name is another one, as
        a task under another name is: it has a fresh budget, and a total counts both.
Rule 4: a task gets the participations of this client that its block states, and the
        spare sessions beside them, even if its server offers more.
Rule 5: on a sparse graph every roster counts that the client accepts, before its shares
        or its choice of neighbours leave and whatever becomes of the session: colluders
        who know the graph can end those that do not suit them.  Delta counts on a
        number of rosters; the next session is refused.

The budget of one task is thereby enforced where the vectors are.  What several tasks
over the same data may cost together is kept by `secagg.client.total_ledger`.  Here
stand what a task would claim of it, by the client's own computation, and what all have
claimed, for people and JSON.
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from secagg.distributed_dp import (
    GAUSSIAN_PROOF,
    GAUSSIAN_STATUS,
    BudgetSpent,
    GaussianLoss,
    LossLimit,
    NoisyTask,
    PrivacyReport,
    TaskLoss,
    fits,
    loss_against_broken_masks,
    loss_against_server,
    required_change,
    spent,
)
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol import refund
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.policy import PrivacyLimits, TotalBudget
from secagg.storage.budget_ledger import (
    BudgetKey,
    Charge,
    ChargeRow,
    ChargeState,
    Claim,
    ClaimAdversary,
    ClaimRow,
    Settlement,
)


def budget_key_of(
    descriptor: SessionDescriptor, *, trust_domain: str | None
) -> BudgetKey:
    """Return the name of the budget that a session is charged to.

    Args:
        descriptor: The session; between two aggregators, the leader's.
        trust_domain: Of its aggregator, as the connection has proven it. Where it
            proves none, credentials do (R5.0-1): one budget, whatever carries it.
    """
    trust = descriptor.parameters.trust
    by_credentials = "" if trust is None else trust.trust_domain
    return BudgetKey(
        trust_domain=trust_domain or by_credentials,
        aggregator=descriptor.aggregator,
        task=descriptor.task_id,
    )


def merge_charges(
    rows: Iterable[ChargeRow], key: BudgetKey, proven: str | None, issued: str | None
) -> list[ChargeRow]:
    """Return charges, those that count against one budget under its name.

    Where a connection proves no trust domain, a task has one budget with and without
    credentials: its aggregator chooses which of the two a session has.

    Args:
        rows: Charges of the client.
        key: Names the budget.
        proven: Trust domain that the connection has proven; None for none.
        issued: Trust domain of the client's credential; None for a client without one.
    """
    domains = {key.trust_domain} if proven else {key.trust_domain, "", issued}
    return [
        replace(row, budget=key)
        for row in rows
        if row.budget.trust_domain in domains
        and replace(row.budget, trust_domain=key.trust_domain) == key
    ]


def peer_of(aggregator: str, *, trust_domain: str | None) -> str:
    """Return under which name an aggregator's sessions are numbered in the store.

    One of the same name in another trust domain is another aggregator: neither do its
    numbers count, nor is a session of the first one shown to it (R5.0-6).

    Args:
        aggregator: Its name, as the connection has proven it.
        trust_domain: Its trust domain, likewise; None where none is proven.
    """
    if trust_domain is None:
        return aggregator
    return f"secagg://{trust_domain}/server/{aggregator}"


def charge_of(
    descriptor: SessionDescriptor, *, trust_domain: str | None
) -> Charge | None:
    """Return what a session costs; None for a session without noise.

    Args:
        descriptor: The session.
        trust_domain: As `budget_key_of` has it.

    Raises:
        RemoteProtocolError: BAD_CONFIG; its noise cannot be read.
    """
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return None
    budget = NoisyTask.from_parameters(parameters).budget
    return Charge(
        budget=budget_key_of(descriptor, trust_domain=trust_domain),
        session_id=descriptor.session_id,
        noise_digest=sha256(parameters.noise_block).digest(),
        allowed=budget.charges,
        refunds=budget.participations,
    )


def max_rosters_of(descriptor: SessionDescriptor) -> int | None:
    """Return how many rosters of the task a client accepts (R11.3-1).

    None for any number: what no delta is reported for needs no cap.

    Raises:
        RemoteProtocolError: BAD_CONFIG; its noise cannot be read.
    """
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return None
    return NoisyTask.from_parameters(parameters).max_rosters


def settlement_of(
    descriptor: SessionDescriptor, charge: refund.ChargeOutcome
) -> Settlement:
    """Return what the store records of a session's charge, if it has one.

    Args:
        descriptor: The session.
        charge: What becomes of it, as `secagg.protocol.refund` has it.
    """
    is_void = charge is refund.ChargeOutcome.GIVEN_BACK
    return Settlement(
        task=descriptor.task_id,
        session_id=descriptor.session_id,
        state=ChargeState.VOID if is_void else ChargeState.KEPT,
    )


class TotalBudgetExceededError(RemoteProtocolError):
    """A task does not fit into what its data may cost over all tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTotal:
    """The total of a client's data, and how claims on it are computed.

    Attributes:
        budget: The total.
        against: The adversary of all claims.
        loss_of: Returns what all sessions of a task cost against it, by this client's
            own computation; may take seconds.
        limits: Of privacy, whose statuses hold for Gaussian sums, too; None for all.
    """

    budget: TotalBudget
    against: ClaimAdversary
    loss_of: Callable[[SessionDescriptor], TaskLoss]
    limits: PrivacyLimits | None = None


def claim_for(
    total: OwnTotal,
    offered: SessionDescriptor,
    *,
    trust_domain: str | None,
    holder: bytes,
) -> Claim:
    """Return what the task of a session would claim; takes up to seconds.

    Args:
        total: What it would claim of.
        offered: One of the task's sessions; between two aggregators, the leader's.
        trust_domain: Of its aggregator, as the connection has proven it.
        holder: Name of the store that counts the task's sessions.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION; nothing bounds what the task costs.
    """
    loss, limits = total.loss_of(offered), total.limits
    is_known = limits is None or limits.accepts(
        status=GAUSSIAN_STATUS, proof=GAUSSIAN_PROOF
    )
    gaussian = loss.gaussian if is_known else None
    # The graph is no part of the block, and the figures follow from it, too.
    described = offered.parameters.noise_block + struct.pack(">d", loss.added_delta)
    return Claim(
        data=total.budget.data,
        holder=holder,
        budget=budget_key_of(offered, trust_domain=trust_domain),
        noise_digest=sha256(described).digest(),
        against=total.against,
        epsilon=loss.epsilon,
        delta=loss.delta,
        shift=None if gaussian is None else gaussian.shift,
        distance=0.0 if gaussian is None else gaussian.distance,
        added_delta=loss.added_delta,
    )


def adversary_of(privacy_limits: PrivacyLimits | None) -> ClaimAdversary:
    """Return the adversary that a client's privacy limits name."""
    if privacy_limits is None or privacy_limits.max_local_epsilon is None:
        return ClaimAdversary.SERVER
    return ClaimAdversary.BROKEN_MASKS


def loss_of_session(
    offered: SessionDescriptor,
    *,
    report_of: Callable[[NoisyTask], PrivacyReport],
    against: ClaimAdversary,
) -> TaskLoss:
    """Return what all sessions of a task cost; takes up to seconds.

    Args:
        offered: One of them.
        report_of: Returns what a task costs this client.
        against: The adversary.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION; there is no noise, or no randomiser, that
            would bound it. BAD_CONFIG for noise that cannot be.
    """
    noise_block = offered.parameters.noise_block
    if not noise_block:
        raise _unbounded("it releases the sum without noise")
    report = report_of(NoisyTask.of_session(offered))
    if against is ClaimAdversary.SERVER:
        return loss_against_server(noise_block, report)
    loss = loss_against_broken_masks(report)
    if loss is None:
        raise _unbounded("no local randomiser protects a vector without masks")
    return loss


def _unbounded(complaint: str) -> SecAggError:
    """Return the error of a task whose cost nothing bounds."""
    return ErrorCode.POLICY_VIOLATION.error(
        f"nothing bounds what the task costs this client's data: {complaint}",
        fix="Give data with a total (policy.data) to tasks only whose loss "
        "against the adversary of this client's policy is bounded.",
    )


@dataclass(frozen=True, slots=True)
class DataClaim:
    """A task with a claim on data.

    Attributes:
        task: Its name.
        aggregator: Name of its aggregator; between two, of the leader.
        trust_domain: Of that aggregator; "" where the connection proves none.
        epsilon: Over all sessions that its budget covers, spare ones included.
        delta: That goes with it.
        is_gaussian: Whether the claim can be added up as a Gaussian release.
        against: "server" for a server and its colluders, "broken-masks" for one that
            breaks the masks.
        since: When it was claimed, in UTC, as ISO 8601 has it.
    """

    task: str
    aggregator: str
    trust_domain: str
    epsilon: float
    delta: float
    is_gaussian: bool
    against: str
    since: str


@dataclass(frozen=True, slots=True)
class DataUsage:
    """What tasks have claimed of a client's data, and what is left.

    Attributes:
        data: Name of the data.
        total_epsilon: What all tasks together may take.
        total_delta: That goes with it.
        rule: How the claims were added up, "basic" or "gaussian": whichever says less.
        spent_epsilon: What they come to.
        spent_delta: Their deltas, or the one that a Gaussian sum was converted at.
        remaining_epsilon: What any further task may take with `remaining_delta`.
        remaining_delta: See there.
        remaining_gaussian_epsilon: What a further task with Gaussian noise may take at
            the delta of the latest claim, about; None before there is one, and where a
            claim is not Gaussian.
        claims: In the order in which they were made.
        kept_in: Directory of the claims; None for memory.
        fits: Whether the claims are within the total, by some rule; otherwise it was
            lowered, and no task is joined.
    """

    data: str
    total_epsilon: float
    total_delta: float
    rule: str
    spent_epsilon: float
    spent_delta: float
    remaining_epsilon: float
    remaining_delta: float
    remaining_gaussian_epsilon: float | None
    claims: tuple[DataClaim, ...]
    kept_in: Path | None
    fits: bool

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        place = None if self.kept_in is None else str(self.kept_in)
        return asdict(self) | {
            "claims": [asdict(each) for each in self.claims],
            "kept_in": place,
        }


def use_of(
    budget: TotalBudget, rows: Sequence[ClaimRow], kept_in: Path | None
) -> DataUsage:
    """Say what claims come to under a total.

    Args:
        budget: The total.
        rows: All claims on its data.
        kept_in: Where they are kept; None for memory.
    """
    limit = limit_of(budget)
    losses = [loss_in(row.claim) for row in rows]
    found = least_sum(losses, limit)
    # The basic sum of what is there, with the part of delta that a further task has.
    further = spent([*losses, TaskLoss(epsilon=0.0, delta=0.0)], limit)[0]
    left = max(0.0, further.share - further.delta)
    return DataUsage(
        data=budget.data,
        total_epsilon=budget.epsilon,
        total_delta=budget.delta,
        rule=str(found.rule),
        spent_epsilon=found.epsilon,
        spent_delta=found.delta,
        remaining_epsilon=max(0.0, limit.epsilon - further.epsilon) if left else 0.0,
        remaining_delta=left,
        remaining_gaussian_epsilon=_gaussian_left(losses, limit),
        claims=tuple(map(_claim_view, rows)),
        kept_in=kept_in,
        fits=fits(losses, limit),
    )


def limit_of(budget: TotalBudget) -> LossLimit:
    """Return a total as it limits losses."""
    return LossLimit(budget.epsilon, budget.delta)


def loss_in(claim: Claim) -> TaskLoss:
    """Return the loss that a claim states."""
    gaussian = None
    if claim.shift is not None:
        gaussian = GaussianLoss(claim.shift, claim.distance)
    return TaskLoss(
        epsilon=claim.epsilon,
        delta=claim.delta,
        gaussian=gaussian,
        added_delta=claim.added_delta,
    )


def least_sum(losses: Sequence[TaskLoss], limit: LossLimit) -> BudgetSpent:
    """Add up losses by the rule that says least; the basic one where none has room."""
    return min(
        spent(losses, limit), key=lambda each: (each.delta > each.share, each.epsilon)
    )


def _gaussian_left(losses: Sequence[TaskLoss], limit: LossLimit) -> float | None:
    if not losses or any(each.gaussian is None for each in losses):
        return None
    return required_change(replace(losses[-1], epsilon=math.inf), losses, limit).epsilon


def _claim_view(row: ClaimRow) -> DataClaim:
    """Return a stored claim as programs read it."""
    claim = row.claim
    return DataClaim(
        task=claim.budget.task,
        aggregator=claim.budget.aggregator,
        trust_domain=claim.budget.trust_domain,
        epsilon=claim.epsilon,
        delta=claim.delta,
        is_gaussian=claim.shift is not None,
        against=str(claim.against),
        since=datetime.fromtimestamp(row.at, UTC).isoformat(),
    )
