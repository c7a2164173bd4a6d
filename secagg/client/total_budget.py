"""The total over tasks for clients on an event loop, and a look at it from outside."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from secagg.client.data_usage import DataUsage, use_of
from secagg.client.storage import ClientStorage
from secagg.client.total_ledger import TotalLedger, claims_explained
from secagg.distributed_dp import TaskLoss
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.policy import TotalBudget
from secagg.runtime.inline import Runner
from secagg.storage.budget_ledger import ClaimAdversary
from secagg.storage.directories import (
    POLL_SECONDS,
    STORE_FILE,
    TURN_SECONDS,
    claims_lock,
    open_lock,
)
from secagg.storage.open_store import open_state, reading
from secagg.storage.queries import ListClaims
from secagg.storage.store import Store

_Result = TypeVar("_Result")


class TotalBudgetLedger(TotalLedger):
    """The total over the tasks that a client on an event loop gives its data to.

    Its arguments are those of `secagg.client.total_ledger.TotalLedger`.
    """

    def __init__(
        self,
        budget: TotalBudget,
        storage: ClientStorage,
        *,
        against: ClaimAdversary,
        loss_of: Callable[[SessionDescriptor], TaskLoss],
        workers: Runner,
    ) -> None:
        super().__init__(
            budget, storage, against=against, loss_of=loss_of, workers=workers
        )
        self._running: set[asyncio.Task[Any]] = set()

    async def _on_shared(
        self, directory: Path, work: Callable[[Store], Awaitable[_Result]]
    ) -> _Result:
        shared = self._on_opened(directory, work)
        # A caller that goes away must not leave others waiting for a store that no
        # task closes.
        running = asyncio.get_running_loop().create_task(shared)
        self._running.add(running)
        running.add_done_callback(self._finished)
        return await asyncio.shield(running)

    async def _on_opened(
        self, directory: Path, work: Callable[[Store], Awaitable[_Result]]
    ) -> _Result:
        async with turn_at_claims(directory):
            store = await open_state(directory, mark=self._budget.rollback_mark)
            try:
                return await work(store)
            finally:
                await store.close()

    def _finished(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # seen, though its caller may have gone away


async def look_at_use(budget: TotalBudget, state_dir: Path) -> DataUsage:
    """Read what is claimed of a client's data while its own state is not in use.

    Args:
        budget: The total.
        state_dir: The client's.

    Raises:
        StoreInUseError: A process has the client's state open, and the claims are
        there. StateDamagedError: What is stored does not fit together.
        ServiceError: STORAGE_FAILED; they cannot be read.
    """
    if budget.directory is None:
        return await _looked(budget, state_dir)
    if not (budget.directory / STORE_FILE).exists():
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
            `claims_explained` has it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TURN_SECONDS
    with open_lock(claims_lock(directory)) as lock, claims_explained(directory):
        while not lock.take():
            if loop.time() >= deadline:
                raise lock.held()
            await asyncio.sleep(POLL_SECONDS)
        yield


async def _looked(budget: TotalBudget, place: Path) -> DataUsage:
    with reading(place / STORE_FILE) as store:
        rows = await store.read(ListClaims(budget.data))
    return use_of(budget, rows, place)
