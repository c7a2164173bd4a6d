"""What is claimed of a client's data, as a look from outside finds it."""

from pathlib import Path

from secagg.client.budget import DataUsage, use_of
from secagg.client.total_ledger import exclusive_claims
from secagg.protocol.policy import TotalBudget
from secagg.storage.directories import STORE_FILE
from secagg.storage.open_store import reading
from secagg.storage.queries import ListClaims


async def read_data_usage(budget: TotalBudget, state_dir: Path) -> DataUsage:
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
        return await _read_usage(budget, state_dir)
    if not (budget.directory / STORE_FILE).exists():
        return use_of(budget, (), budget.directory)  # nothing was claimed yet
    with exclusive_claims(budget.directory):
        return await _read_usage(budget, budget.directory)


async def _read_usage(budget: TotalBudget, place: Path) -> DataUsage:
    with reading(place / STORE_FILE) as store:
        rows = await store.read(ListClaims(budget.data))
    return use_of(budget, rows, place)
