"""What a client's data may cost over all tasks: a total that its owner sets.

Rule 1: a task claims its whole loss, spare sessions included, once: before the client
        first joins it under a name of data.  The claim is on the disk before anything
        leaves, and stays, whatever becomes of sessions, charges or the task.
Rule 2: a task that does not fit beside the claims made before is refused, and nothing
        of it is written.
Rule 3: a claim covers what one store counts.  Other noise, and a restored store that
        and may have forgotten charges, make another claim.
Rule 4: several clients that share a directory share the totals in it.  It is opened for
        one look or one claim and let go; a client that decided without the latest claim
        decides again.  Restored claims in it are refused, whatever a client's owner
        accepts for its own state: the claims are of all clients, and those of a task
        that is over never come again.
Rule 5: claims are stated against the adversary that the client's policy names: with
        `max_local_epsilon` a server that breaks the masks, else the server and its
        colluders.

Which claims fit together says `dpnoise.accounting.cross_task`.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from secagg.client.budget import (
    DataUsage,
    OwnTotal,
    adversary_of,
    claim_for,
    loss_of_session,
    use_of,
)
from secagg.client.gate import check_claim
from secagg.crypto.entropy import SystemEntropy
from secagg.distributed_dp import BudgetSpent, TaskLoss, text_above
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.policy import PrivacyLimits, TotalBudget
from secagg.runtime import log_events as telemetry
from secagg.storage.budget_ledger import ClaimAdversary, ClaimRow
from secagg.storage.changes import PutClaim
from secagg.storage.client_store import ClientRecords, ClientStore
from secagg.storage.directories import TURN_SECONDS, claims_lock, open_lock
from secagg.storage.queries import ListClaims, ReadMark

if TYPE_CHECKING:
    from secagg.client.durable_client import ClientStorage

_Result = TypeVar("_Result")

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)
_DIGITS: Final = 4
_DELTA_DIGITS: Final = 3


class TotalLedger:
    """The total over the tasks that a client gives its data to.

    Args:
        budget: The total.
        storage: The client's, which counts its sessions.
        against: The adversary of all claims.
        loss_of: Returns what all sessions of a task cost against it, by this client's
            own computation.
        limits: The owner's limits of privacy; None for none.

    Attributes:
        rules: The same, as `secagg.client.gate` goes by it.
    """

    def __init__(
        self,
        budget: TotalBudget,
        storage: "ClientStorage",
        *,
        against: ClaimAdversary,
        loss_of: Callable[[SessionDescriptor], TaskLoss],
        limits: PrivacyLimits | None,
    ) -> None:
        self.rules = OwnTotal(
            budget=budget, against=against, loss_of=loss_of, limits=limits
        )
        self._budget = budget
        self._storage = storage
        own, shared = storage.directory, budget.directory
        if own is not None and shared is not None and own.resolve() == shared.resolve():
            shared = None  # this client has it open
        self._shared = shared

    @classmethod
    def of_owner(
        cls,
        budget: TotalBudget,
        storage: "ClientStorage",
        *,
        limits: PrivacyLimits | None,
    ) -> Self:
        """Return the total against the adversary that the owner's limits name."""
        against = adversary_of(limits)
        loss_of = partial(loss_of_session, report_of=storage.report_of, against=against)
        return cls(budget, storage, against=against, loss_of=loss_of, limits=limits)

    async def open(self) -> None:
        """Look whether the claims can be read.

        Raises:
            ServiceError: STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE.
        """
        await self._on_claims(self._read_claims)

    async def claims(self) -> tuple[ClaimRow, ...]:
        """Return all claims on the data.

        Raises:
            ServiceError: As `open`.
        """
        return await self._on_claims(self._read_claims)

    async def claim(
        self, offered: SessionDescriptor, *, trust_domain: str | None = None
    ) -> None:
        """Have a task's claim on the disk; nothing happens where it is there.

        Args:
            offered: A session of the task.
            trust_domain: Of its aggregator, as the connection has proven it.

        Raises:
            TotalBudgetExceededError: POLICY_VIOLATION; it does not fit.
            RemoteProtocolError: POLICY_VIOLATION; nothing bounds what the task costs.
            ServiceError: As `open`.
        """
        claim = claim_for(
            self.rules,
            offered,
            trust_domain=trust_domain,
            holder=await self.holder(),
        )

        async def add(store: ClientRecords) -> BudgetSpent | None:
            while True:
                rows = await self._read_claims(store)
                use = check_claim(self._budget, rows, claim)
                if any(row.claim.is_of(claim) for row in rows):
                    return None
                if await store.commit(PutClaim(claim, after=len(rows))):
                    return use

        added = await self._on_claims(add)
        if added is None:
            return
        telemetry.log_event(
            _LOG,
            logging.INFO,
            telemetry.DATA_CLAIMED,
            data=claim.data,
            task=claim.budget.task,
            epsilon=text_above(claim.epsilon, _DIGITS),
            delta=text_above(claim.delta, _DELTA_DIGITS),
            spent_epsilon=text_above(added.epsilon, _DIGITS),
            total_epsilon=self._budget.epsilon,
        )

    async def use(self) -> DataUsage:
        """Return what is claimed, and what is left.

        Raises:
            ServiceError: As `open`.
        """
        rows = await self._on_claims(self._read_claims)
        place = self._budget.directory or self._storage.directory
        return use_of(self._budget, rows, place)

    async def _read_claims(self, store: ClientRecords) -> tuple[ClaimRow, ...]:
        """Return all claims on the data."""
        return await store.read(ListClaims(self._budget.data))

    async def _on_claims(
        self, work: Callable[[ClientRecords], Awaitable[_Result]]
    ) -> _Result:
        """Do something with the store that has the claims, wherever it is."""
        directory = self._shared
        if directory is None:
            return await work(self._storage.store)
        with exclusive_claims(directory):
            store = ClientStore.open(
                directory,
                mark=self._budget.rollback_mark,
                accept_restored=False,
                lock_seconds=TURN_SECONDS,
                entropy=SystemEntropy(),
                now=time.time,
            )
            try:
                return await work(store)
            finally:
                await store.close()

    async def holder(self) -> bytes:
        """Return the name of the store that counts the client's sessions."""
        holder = await self._storage.store.read(ReadMark())
        if holder is None:
            raise ErrorCode.INTERNAL.error("a store has a name")
        return holder.store_id


@contextmanager
def claims_explained(directory: Path) -> Iterator[None]:
    """Say what to do where shared claims may not be the newest.

    Args:
        directory: Of the claims.

    Raises:
        ServiceError: RESTORED_STATE, raised within, as it is meant for claims: no
            owner can accept it, since it is not known which tasks were forgotten.
    """
    try:
        yield
    except ServiceError as error:
        if error.code is not ErrorCode.RESTORED_STATE:
            raise
        raise ErrorCode.RESTORED_STATE.error(
            f"the claims on data in {directory} may not be the newest, so what is "
            f"left of the total is not known: {error}",
            fix="Put the newest claims back, with their rollback mark. If "
            "they are lost, set policy.data to another name, policy.data_dir to "
            "another directory (and data_rollback_mark, where it is set, to "
            "another file), and total_epsilon and total_delta to what is left when "
            "every task that these data were given to is subtracted: `secagg "
            "budget` lists those that this copy knows. --restored is for a "
            "client's own state and lets no claims in; to remove the directory "
            "and its mark would give the whole total once more.",
        ) from None


@contextmanager
def exclusive_claims(directory: Path) -> Iterator[None]:
    """Keep others away from claims that clients share.

    Args:
        directory: Of the claims.

    Raises:
        ServiceError: STORAGE_FAILED; others keep it. RESTORED_STATE, raised within, as
            `claims_explained` has it.
    """
    with open_lock(claims_lock(directory)) as lock, claims_explained(directory):
        lock.wait(TURN_SECONDS)
        yield
