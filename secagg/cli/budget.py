"""What a client has spent, for `secagg budget`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secagg.client.budget import DataUsage, use_of
from secagg.client.total_ledger import exclusive_claims
from secagg.config.common import total_budget
from secagg.protocol.policy import TotalBudget
from secagg.storage.budget_ledger import BudgetKey, ChargeRow, ChargeState, budget_of
from secagg.storage.directories import STORE_FILE
from secagg.storage.open_store import reading
from secagg.storage.queries import ListCharges, ListClaims

if TYPE_CHECKING:
    from secagg.config import ClientSettings
    from secagg.config.two_aggregators import SharingClientSettings


def client_budget(
    settings: "ClientSettings | SharingClientSettings", task: str | None
) -> dict[str, Any]:
    """Return what a client has spent, and what is claimed of data with a total.

    Its process must not run meanwhile.
    """
    state_dir = settings.client.state_dir
    wanted = task or settings.client.task
    total = total_budget(settings.policy)

    async def rows() -> tuple[ChargeRow, ...]:
        with reading(state_dir / STORE_FILE) as store:
            return await store.read(ListCharges(wanted))

    charges = asyncio.run(rows())

    def given(key: BudgetKey) -> dict[str, Any]:
        own = [row for row in charges if row.budget == key]
        # One noise, so one number of sessions that are covered, and that come back.
        allowed = max((row.allowed for row in own), default=None)
        refunds = max((row.refunds for row in own), default=0)
        spent = budget_of(own, key, allowed=allowed or 0, refunds=refunds)
        return {
            "task": wanted,
            "aggregator": key.aggregator or None,
            "trust_domain": key.trust_domain or None,
            # Unknown before the first session: the number stands in its offer.
            "charges": allowed,
            "left": None if allowed is None else spent.left,
            "given": spent.given,
            "under_way": sum(row.state is ChargeState.BOUND for row in own),
            "given_back": spent.void,
        }

    # Aggregators that use one name for their tasks have a budget each.
    nothing = BudgetKey(trust_domain="", aggregator="", task=wanted)
    keys = dict.fromkeys(row.budget for row in charges) or {nothing: None}
    budgets = [given(key) for key in keys]
    if total is None:
        return {"role": "client", "budgets": budgets}
    use = asyncio.run(read_data_usage(total, state_dir))
    return {"role": "client", "budgets": budgets, "data": use.to_dict()}


async def read_data_usage(budget: TotalBudget, state_dir: Path) -> DataUsage:
    """Read what is claimed of a client's data while its own state is not in use.

    Args:
        budget: The total.
        state_dir: The client's.

    Raises:
        StoreInUseError: A process has the client's state open, and the claims are
            there.
        StateDamagedError: What is stored does not fit together.
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
