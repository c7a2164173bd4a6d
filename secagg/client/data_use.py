"""What tasks have claimed of a client's data, and what is left: for people and JSON."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from secagg.distributed_dp import (
    GaussianLoss,
    LossLimit,
    Spent,
    TaskLoss,
    fits,
    room_for,
    spent,
)
from secagg.errors import ErrorCode, ServiceError
from secagg.policy import TotalBudget
from secagg.storage.book_reader import reading
from secagg.storage.claims import Claim, ClaimRow
from secagg.storage.open_book import BOOK_FILE
from secagg.storage.turns import in_turn

__all__ = [
    "ClaimedTask",
    "DataUse",
    "least_sum",
    "limit_of",
    "look_at_use",
    "loss_in",
    "turn_at_claims",
    "use_of",
]


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task with a claim on data.

    Attributes:
        task: Its name.
        epsilon: Over all sessions that its budget covers, spare ones included.
        delta: That goes with it.
        is_gaussian: Whether the claim can be added up as a Gaussian release.
        against: "server" for a server and its colluders, "broken-masks" for one that
            breaks the masks.
        since: When it was claimed, in UTC, as ISO 8601 has it.
    """

    task: str
    epsilon: float
    delta: float
    is_gaussian: bool
    against: str
    since: str


@dataclass(frozen=True, slots=True)
class DataUse:
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
    claims: tuple[ClaimedTask, ...]
    kept_in: Path | None
    fits: bool

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        place = None if self.kept_in is None else str(self.kept_in)
        return asdict(self) | {
            "claims": [asdict(each) for each in self.claims],
            "kept_in": place,
        }


async def look_at_use(budget: TotalBudget, state_dir: Path) -> DataUse:
    """Read what is claimed of a client's data while its own state is not in use.

    Args:
        budget: The total.
        state_dir: The client's.

    Raises:
        BookInUseError: A process has the client's state open, and the claims are there.
        StateDamagedError: What is stored does not fit together.
        ServiceError: STORAGE_FAILED; they cannot be read.
    """
    if budget.directory is None:
        return await _looked(budget, state_dir)
    if not (budget.directory / BOOK_FILE).exists():
        return use_of(budget, (), budget.directory)  # nothing was claimed yet
    async with turn_at_claims(budget.directory):
        return await _looked(budget, budget.directory)


@asynccontextmanager
async def turn_at_claims(directory: Path) -> AsyncIterator[None]:
    """Keep others away from claims that clients share.

    Args:
        directory: Of the claims.

    Raises:
        ServiceError: STORAGE_FAILED; others keep it. RESTORED_STATE, raised within, as
            it is meant for claims: nobody can accept it, since nobody knows which
            tasks were forgotten.
    """
    async with in_turn(directory):
        try:
            yield
        except ServiceError as error:
            if error.code is not ErrorCode.RESTORED_STATE:
                raise
            raise ServiceError(
                f"the claims on data in {directory} may not be the newest, so what is "
                f"left of the total is not known: {error}",
                code=ErrorCode.RESTORED_STATE,
                next_step="Put the newest claims back, with their rollback mark. If "
                "they are lost, set policy.data to another name, policy.data_dir to "
                "another directory (and data_rollback_mark, where it is set, to "
                "another file), and total_epsilon and total_delta to what is left when "
                "every task that these data were given to is subtracted: `secagg "
                "budget` lists those that this copy knows. --restored is for a "
                "client's own state and lets no claims in; to remove the directory "
                "and its mark would give the whole total once more.",
            ) from None


async def _looked(budget: TotalBudget, place: Path) -> DataUse:
    with reading(place / BOOK_FILE) as book:
        rows = await book.claims(budget.data)
    return use_of(budget, rows, place)


def use_of(
    budget: TotalBudget, rows: Sequence[ClaimRow], kept_in: Path | None
) -> DataUse:
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
    return DataUse(
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


def least_sum(losses: Sequence[TaskLoss], limit: LossLimit) -> Spent:
    """Add up losses by the rule that says least; the basic one where none has room."""
    return min(
        spent(losses, limit), key=lambda each: (each.delta > each.share, each.epsilon)
    )


def _gaussian_left(losses: Sequence[TaskLoss], limit: LossLimit) -> float | None:
    if not losses or any(each.gaussian is None for each in losses):
        return None
    return room_for(replace(losses[-1], epsilon=math.inf), losses, limit).epsilon


def _claimed(row: ClaimRow) -> ClaimedTask:
    claim = row.claim
    return ClaimedTask(
        task=claim.task,
        epsilon=claim.epsilon,
        delta=claim.delta,
        is_gaussian=claim.shift is not None,
        against=str(claim.against),
        since=datetime.fromtimestamp(row.at, UTC).isoformat(),
    )
