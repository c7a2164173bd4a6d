"""What tasks have claimed of a client's data, and what is left: for people and JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from secagg.distributed_dp import (
    BudgetSpent,
    GaussianLoss,
    LossLimit,
    TaskLoss,
    fits,
    room_for,
    spent,
)
from secagg.protocol.policy import TotalBudget
from secagg.storage.budget_ledger import Claim, ClaimRow


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
        claims=tuple(map(_claimed, rows)),
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
    return room_for(replace(losses[-1], epsilon=math.inf), losses, limit).epsilon


def _claimed(row: ClaimRow) -> DataClaim:
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
