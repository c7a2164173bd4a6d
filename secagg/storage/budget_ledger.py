"""A client's ledgers: sessions charged to a budget, and claims of tasks on its data.

Rule 1: a charge is bound before anything leaves, and settled once; what is settled
        stays as it is.
Rule 2: a budget is that of one task of one aggregator of one trust domain, and is
        charged with one noise only.  Another noise needs another name.
Rule 3: as many charges of a task come back as it is to release sums, and no more.  The
        others count, even if they are void: whoever ends session after session sees
        masked inputs without end otherwise.

The ledger of data:

Rule 4: a claim is a task's whole loss.  It is written once, before the client first
        joins the task, and stays: no word of a server takes a claim back.
Rule 5: whoever adds a claim says how many of the data's it has judged; if there are
        others by then, nothing is written.
Rule 6: a claim covers the sessions that one book counts for one budget.  Another book
        counts anew, and so does another aggregator under the same task name: the key
        of a claim contains the key of a budget.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import IntEnum, StrEnum, unique
from typing import Any

from secagg.errors import ErrorCode, InternalError, RemoteProtocolError


@unique
class ChargeState(IntEnum):
    """What became of an input that was charged."""

    BOUND = 1
    """It may leave or has left; the session goes on."""
    KEPT = 2
    """A sum with it was released, or nothing is known.  Final."""
    VOID = 3
    """Given back: no sum with it exists or can exist.  Final, and not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetKey:
    """Names a budget: another aggregator under the same task name has another one.

    Attributes:
        trust_domain: Of the aggregator, as its certificate proves it; "" where the
            connection proves none.
        aggregator: Name of the aggregator; between two, of the leader.
        task: Name of the task.
    """

    trust_domain: str
    aggregator: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A session of a task with noise takes its input into the client's budget.

    Attributes:
        budget: The budget that is charged.
        session_id: Of the session, the name of the charge.
        noise_digest: SHA-256 of the task's description of its noise.
        allowed: Sessions that the budget covers, spare ones included.
        refunds: How many of the task's sessions may come back.
    """

    budget: BudgetKey
    session_id: bytes
    noise_digest: bytes
    allowed: int
    refunds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What became of a charge.

    Attributes:
        task: Name of the task.
        session_id: Of the session.
        state: KEPT or VOID.
    """

    task: str
    session_id: bytes
    state: ChargeState


@dataclass(frozen=True, slots=True)
class ChargeRow:
    """One line of a client's ledger.

    Attributes:
        budget: The budget that is charged.
        session_id: Of the session.
        noise_digest: SHA-256 of the task's description of its noise.
        state: What became of the input.
        allowed: Sessions that the budget covers, as it was charged.
        refunds: How many of the task's sessions may come back, as it was charged.
        at: When the state was set, in Unix seconds.
    """

    budget: BudgetKey
    session_id: bytes
    noise_digest: bytes
    state: ChargeState
    allowed: int
    refunds: int
    at: float


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a task's budget is used.

    Attributes:
        given: Sessions that count: bound, kept, or given back once too often.
        void: Sessions that were given back and do not count.
        left: Sessions that may still be charged.
    """

    given: int
    void: int
    left: int


class BudgetSpentError(RemoteProtocolError):
    """A server asks a client for more sessions than the task's budget covers."""

    def __init__(self, charge: Charge, *, given: int) -> None:
        super().__init__(
            f"this client has given {given} sessions to {_named(charge)}, whose "
            f"budget covers {charge.allowed}",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="The budget is spent. A new task id is a new budget, to be "
            "agreed on.",
        )


class NoiseChangedError(RemoteProtocolError):
    """A server would begin a second budget under the name of the first."""

    def __init__(self, charge: Charge) -> None:
        super().__init__(
            f"{_named(charge)} has changed its noise since this client first took part",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="Ask the operator to run the new parameters under a new task id.",
        )


def _named(charge: Charge) -> str:
    return f"task {charge.budget.task!r} of aggregator {charge.budget.aggregator!r}"


def is_new_charge(charges: Iterable[ChargeRow], charge: Charge) -> bool:
    """Judge a charge against those made before.

    Args:
        charges: Those made before; other budgets' are left aside.
        charge: The one to be made.

    Returns:
        Whether it must be written; False when this session is charged already.

    Raises:
        NoiseChangedError: The task was charged with other noise before.
        BudgetSpentError: The budget is spent.
        InternalError: The session was given back and would be used again.
    """
    made = tuple(row for row in charges if row.budget == charge.budget)
    known: ChargeState | None = None
    for row in made:
        if row.noise_digest != charge.noise_digest:
            raise NoiseChangedError(charge)
        if row.session_id == charge.session_id:
            known = row.state
    if known is ChargeState.VOID:
        raise InternalError(
            f"a session of {_named(charge)} was given back and is charged again"
        )
    budget = budget_of(
        made, charge.budget, allowed=charge.allowed, refunds=charge.refunds
    )
    if known is None and not budget.left:
        raise BudgetSpentError(charge, given=budget.given)
    return known is None


def settled(state: ChargeState, wanted: ChargeState) -> ChargeState:
    """Return what becomes of a charge: what is settled stays as it is."""
    return wanted if state is ChargeState.BOUND else state


def budget_of(
    charges: Iterable[ChargeRow], key: BudgetKey, *, allowed: int, refunds: int
) -> Budget:
    """Return how much of a task's budget is used.

    Args:
        charges: All charges made before; other budgets' are left aside.
        key: Names the budget.
        allowed: Sessions that the budget covers.
        refunds: How many of them may come back.
    """
    states = [row.state for row in charges if row.budget == key]
    void = min(states.count(ChargeState.VOID), refunds)
    given = len(states) - void
    return Budget(given=given, void=void, left=max(0, allowed - given))


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
