"""A client's ledger of data: which tasks have a claim on them, and how large.

Rule 1: a claim is a task's whole loss.  It is written once, before the client first
        joins the task, and stays: no word of a server takes a claim back.
Rule 2: whoever adds a claim says how many of the data's it has judged; if there are
        others by then, nothing is written.
Rule 3: a claim covers the sessions that one book counts for one budget.  Another book
        counts anew, and so does another aggregator under the same task name: the key
        of a claim contains the key of a budget.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum, unique
from typing import Any

from secagg.storage.budget_ledger import BudgetKey


@unique
class ClaimAdversary(StrEnum):
    """The adversary that a claim is stated against."""

    SERVER = "server"
    """An aggregator and its colluders."""
    BROKEN_MASKS = "broken-masks"
    """Somebody who sees every vector alone, and so also any weaker one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a task may cost the data that are given to it.

    Attributes:
        data: Name of the data, the client owner's.
        holder: Name of the book that counts the task's sessions.
        budget: The budget whose sessions it covers.
        noise_digest: SHA-256 of what the figures follow from.
        against: The adversary of the figures.
        epsilon: Over all sessions that the task's budget covers.
        delta: That goes with it.
        shift: Of a Gaussian release that dominates them all; None where none is known.
        distance: Total variation distance on top of that release.
        added_delta: Part of delta that no such release covers.
    """

    data: str
    holder: bytes
    budget: BudgetKey
    noise_digest: bytes
    against: ClaimAdversary
    epsilon: float
    delta: float
    shift: float | None
    distance: float
    added_delta: float

    def is_of(self, other: "Claim") -> bool:
        """Return whether both are the one claim of a task on its data."""
        return self.key == other.key

    @property
    def key(self) -> tuple[str, bytes, BudgetKey, bytes]:
        """What two claims on the same data have in common if they are one."""
        return self.data, self.holder, self.budget, self.noise_digest


def columns_of(claim: Claim) -> dict[str, Any]:
    """Return a claim as a store keeps it, by name of the column."""
    named = asdict(claim) | {"against": claim.against.value}
    budget: dict[str, Any] = named.pop("budget")
    return budget | named


def claim_of(columns: Mapping[str, Any]) -> Claim:
    """Return the claim that `columns_of` has described; further columns are ignored."""
    budget = BudgetKey(**{each.name: columns[each.name] for each in fields(BudgetKey)})
    own = {
        each.name: columns[each.name] for each in fields(Claim) if each.name != "budget"
    }
    return Claim(**own | {"budget": budget, "against": ClaimAdversary(own["against"])})


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim that was made.

    Attributes:
        claim: The claim.
        at: When, in Unix seconds.
    """

    claim: Claim
    at: float
