"""Where a client keeps its sessions and what it has spent: one book."""

from dataclasses import dataclass
from pathlib import Path

from secagg.distributed_dp import NoisyTask, PrivacyReport
from secagg.distributed_dp.report_cache import privacy_report
from secagg.storage.budget_ledger import BudgetKey, budget_of
from secagg.storage.client_store import ClientRecords
from secagg.storage.queries import ListCharges


@dataclass(frozen=True, slots=True)
class ClientStorage:
    """The storage of one client.

    Attributes:
        book: Sessions, their numbers, and what this client has given to each task.
        directory: Where it is kept; None for memory.
    """

    store: ClientRecords
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
        charges = await self.store.read(ListCharges(key.task))
        return budget_of(
            charges,
            key,
            allowed=task.budget.charges,
            refunds=task.budget.participations,
        ).left
