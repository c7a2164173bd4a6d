"""Where a client keeps its sessions and what it has spent: one book."""

from dataclasses import dataclass
from pathlib import Path

from secagg.distributed_dp import NoisyTask, PrivacyReport
from secagg.distributed_dp.report_cache import privacy_report
from secagg.storage.budget_ledger import BudgetKey, budget_of
from secagg.storage.open_store import open_state
from secagg.storage.store import Store


@dataclass(frozen=True, slots=True)
class ClientStorage:
    """The storage of one client; make it with `open_storage`.

    Attributes:
        book: Sessions, their numbers, and what this client has given to each task.
        directory: Where it is kept; None for memory.
    """

    store: Store
    directory: Path | None

    async def close(self) -> None:
        """Release the directory."""
        await self.store.close()

    def report_of(self, task: NoisyTask) -> PrivacyReport:
        """Return what a task costs, as this client has computed it itself."""
        if self.directory is None:
            return task.report()
        return privacy_report(task, self.directory)

    async def sessions_left(self, key: BudgetKey, task: NoisyTask) -> int:
        """Return how many more sessions a budget covers."""
        charges = await self.store.charges(key.task)
        return budget_of(
            charges,
            key,
            allowed=task.budget.charges,
            refunds=task.budget.participations,
        ).left


async def open_storage(
    directory: Path | None, *, mark: Path | None = None, accept_restored: bool = False
) -> ClientStorage:
    """Open the storage of one client, for this process alone.

    Args:
        directory: Where it is kept; None keeps it in memory and forgets it.
        mark: File of the rollback mark, outside the directory; by default one under
            the user's persistent state.
        accept_restored: The state may have been put back; see `open_store`.

    Raises:
        ServiceError: STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE.
    """
    store = await open_state(directory, mark=mark, accept_restored=accept_restored)
    return ClientStorage(store, directory)
