"""What a client's data may cost over all tasks: a total that its owner sets.

Rule 1: a task claims its whole loss, spare sessions included, once: before the client
        first joins it under a name of data.  The claim is on the disk before anything
        leaves, and stays, whatever becomes of sessions, charges or the task.
Rule 2: a task that does not fit beside the claims made before is refused, and nothing
        of it is written.
Rule 3: a claim covers what one book counts.  Other noise, and a book that was put back
        and may have forgotten charges, make another claim.
Rule 4: several clients that share a directory share the totals in it.  It is opened for
        one look or one claim and let go; who judged without the latest claim judges
        again.  Claims in it that were put back are refused, whatever a client's owner
        accepts for its own state: the claims are of all clients, and those of a task
        that is over never come again.
Rule 5: claims are stated against the adversary that the client's policy names: with
        `max_local_epsilon` a server that breaks the masks, else the server and its
        colluders.

Which claims fit together says `dpnoise.accounting.across_tasks`.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from secagg import telemetry
from secagg.client.data_use import (
    DataUse,
    least_sum,
    limit_of,
    loss_in,
    turn_at_claims,
    use_of,
)
from secagg.client.storage import ClientStorage
from secagg.descriptor import SessionDescriptor
from secagg.distributed_dp import (
    LossLimit,
    NoisedTask,
    Room,
    Spent,
    TaskLoss,
    fits,
    loss_against_broken_masks,
    loss_against_server,
    room_for,
    text_above,
    text_below,
)
from secagg.errors import ErrorCode, InternalError, RemoteProtocolError
from secagg.policy import PrivacyFloors, TotalBudget
from secagg.runtime.workers import Workers
from secagg.storage.book import Book
from secagg.storage.claims import Against, Claim, ClaimRow
from secagg.storage.open_book import open_state

__all__ = [
    "DataTotal",
    "TotalSpentError",
    "adversary_of",
    "loss_of_session",
]

_Result = TypeVar("_Result")

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)
_DIGITS: Final = 4
_DELTA_DIGITS: Final = 3


class TotalSpentError(RemoteProtocolError):
    """A task does not fit into what its data may cost over all tasks."""


class DataTotal:
    """The total over the tasks that a client gives its data to.

    Args:
        budget: The total.
        storage: The client's, which counts its sessions.
        against: The adversary of all claims.
        loss_of: Returns what all sessions of a task cost against it, by this client's
            own computation; called on a thread.
        workers: Threads.
    """

    def __init__(
        self,
        budget: TotalBudget,
        storage: ClientStorage,
        *,
        against: Against,
        loss_of: Callable[[SessionDescriptor], TaskLoss],
        workers: Workers,
    ) -> None:
        self._budget = budget
        self._storage = storage
        self._against = against
        self._loss_of = loss_of
        self._workers = workers
        own, shared = storage.directory, budget.directory
        if own is not None and shared is not None and own.resolve() == shared.resolve():
            shared = None  # this client has it open
        self._shared = shared
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Look whether the claims can be read.

        Raises:
            ServiceError: STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE.
        """
        await self._on_claims(self._all)

    async def check(self, offered: SessionDescriptor) -> None:
        """Refuse a session whose task does not fit; write nothing.

        Raises:
            TotalSpentError: POLICY_VIOLATION; it does not fit.
            RemoteProtocolError: POLICY_VIOLATION; nothing bounds what the task costs.
            ServiceError: As `open`.
        """
        claim = await self._claim_of(offered)
        await self._judge(await self._on_claims(self._all), claim)

    async def claim(self, offered: SessionDescriptor) -> None:
        """Have a task's claim on the disk; nothing happens where it is there.

        Raises:
            RemoteProtocolError: As `check`.
            ServiceError: As `open`.
        """
        claim = await self._claim_of(offered)

        async def add(book: Book) -> Spent | None:
            while True:
                rows = await self._all(book)
                use = await self._judge(rows, claim)
                if any(row.claim.is_of(claim) for row in rows):
                    return None
                if await book.put_claim(claim, after=len(rows)):
                    return use

        added = await self._on_claims(add)
        if added is None:
            return
        telemetry.log_event(
            _LOG,
            logging.INFO,
            telemetry.DATA_CLAIMED,
            data=claim.data,
            task=claim.task,
            epsilon=text_above(claim.epsilon, _DIGITS),
            delta=text_above(claim.delta, _DELTA_DIGITS),
            spent_epsilon=text_above(added.epsilon, _DIGITS),
            total_epsilon=self._budget.epsilon,
        )

    async def use(self) -> DataUse:
        """Return what is claimed, and what is left.

        Raises:
            ServiceError: As `open`.
        """
        rows = await self._on_claims(self._all)
        place = self._budget.directory or self._storage.directory
        return await self._workers.run(use_of, self._budget, rows, place)

    async def _all(self, book: Book) -> tuple[ClaimRow, ...]:
        return await book.claims(self._budget.data)

    async def _on_claims(self, work: Callable[[Book], Awaitable[_Result]]) -> _Result:
        """Do something with the book that has the claims, wherever it is."""
        if self._shared is None:
            return await work(self._storage.book)
        shared = self._on_shared(self._shared, work)
        # A caller that goes away must not leave others waiting for a book that nobody
        # closes.
        running = asyncio.get_running_loop().create_task(shared)
        self._running.add(running)
        running.add_done_callback(self._finished)
        return await asyncio.shield(running)

    async def _on_shared(
        self, directory: Path, work: Callable[[Book], Awaitable[_Result]]
    ) -> _Result:
        async with turn_at_claims(directory):
            book = await open_state(directory, mark=self._budget.rollback_mark)
            try:
                return await work(book)
            finally:
                await book.close()

    def _finished(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # seen, though its caller may have gone away

    async def _claim_of(self, offered: SessionDescriptor) -> Claim:
        loss = await self._workers.run(self._loss_of, offered)
        holder = await self._storage.book.mark()
        if holder is None:
            raise InternalError("a book has a name")
        # The graph is no part of the block, and the figures follow from it, too.
        described = offered.parameters.noise_block + struct.pack(">d", loss.added_delta)
        gaussian = loss.gaussian
        return Claim(
            data=self._budget.data,
            holder=holder.book_id,
            task=offered.task_id,
            noise_digest=sha256(described).digest(),
            against=self._against,
            epsilon=loss.epsilon,
            delta=loss.delta,
            shift=None if gaussian is None else gaussian.shift,
            distance=0.0 if gaussian is None else gaussian.distance,
            added_delta=loss.added_delta,
        )

    async def _judge(self, rows: Sequence[ClaimRow], claim: Claim) -> Spent:
        return await self._workers.run(_judged, self._budget, rows, claim)


def adversary_of(floors: PrivacyFloors | None) -> Against:
    """Return the adversary that a client's floors name."""
    if floors is None or floors.max_local_epsilon is None:
        return Against.SERVER
    return Against.BROKEN_MASKS


def loss_of_session(
    offered: SessionDescriptor, *, storage: ClientStorage, against: Against
) -> TaskLoss:
    """Return what all sessions of a task cost; takes up to seconds.

    Args:
        offered: One of them.
        storage: May have computed it before.
        against: The adversary.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION; there is no noise, or no randomiser, that
            would bound it. BAD_CONFIG for noise that cannot be.
    """
    noise_block = offered.parameters.noise_block
    if not noise_block:
        raise _unbounded("it releases the sum without noise")
    report = storage.report_of(NoisedTask.of_session(offered))
    if against is Against.SERVER:
        return loss_against_server(noise_block, report)
    loss = loss_against_broken_masks(report)
    if loss is None:
        raise _unbounded("no local randomiser protects a vector without masks")
    return loss


def _judged(budget: TotalBudget, rows: Sequence[ClaimRow], claim: Claim) -> Spent:
    """Return what all claims come to with one more, if they fit.

    Raises:
        TotalSpentError: They do not.
    """
    if claim.against is Against.BROKEN_MASKS:
        _refuse_weaker(rows, claim)
    limit = limit_of(budget)
    losses = [loss_in(row.claim) for row in rows]
    is_known = any(row.claim.is_of(claim) for row in rows)
    together = losses if is_known else [*losses, loss_in(claim)]
    found = least_sum(together, limit)
    if fits(together, limit):
        return found
    if is_known:
        raise _lowered(budget, found)
    room = room_for(loss_in(claim), losses, limit)
    raise _refused(budget, claim, use_of(budget, rows, None), room)


def _refuse_weaker(rows: Sequence[ClaimRow], claim: Claim) -> None:
    for row in rows:
        if row.claim.against is Against.SERVER:
            raise TotalSpentError(
                f"task {row.claim.task!r} has a claim on the data {claim.data!r} that "
                "says nothing of a server that breaks the masks, so no total over it "
                "does",
                code=ErrorCode.POLICY_VIOLATION,
                next_step="Give data that were used without policy.max_local_epsilon "
                "to no task under it: set policy.data to the name of other data, or "
                "leave max_local_epsilon out.",
            )


def _refused(
    budget: TotalBudget, claim: Claim, use: DataUse, room: Room
) -> TotalSpentError:
    delta = text_above(claim.delta, _DELTA_DIGITS)
    if room.epsilon > 0.0:
        nearest = (
            "A task of epsilon up to about "
            f"{text_below(room.epsilon, _DIGITS)} at delta {delta} fits: ask its "
            "operator for one (noise.epsilon)"
        )
    else:
        nearest = f"No task of delta {delta} fits: ask its operator for a smaller one"
    return TotalSpentError(
        f"task {claim.task!r} takes epsilon {text_above(claim.epsilon, _DIGITS)} and "
        f"delta {delta} over all its sessions; of the data {budget.data!r} any further "
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


def _lowered(budget: TotalBudget, found: Spent) -> TotalSpentError:
    return TotalSpentError(
        f"tasks with claims on the data {budget.data!r} come to epsilon "
        f"{text_above(found.epsilon, _DIGITS)} and delta "
        f"{text_above(found.delta, _DELTA_DIGITS)}; this client's total is "
        f"{budget.epsilon:g} and {budget.delta:g}",
        code=ErrorCode.POLICY_VIOLATION,
        next_step="policy.total_epsilon or policy.total_delta was lowered below what "
        "is claimed already, and claims stay: give no more, or raise it again.",
    )


def _unbounded(complaint: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"nothing bounds what the task costs this client's data: {complaint}",
        code=ErrorCode.POLICY_VIOLATION,
        next_step="Give data with a total (policy.data) to tasks only whose loss "
        "against the adversary of this client's policy is bounded.",
    )
