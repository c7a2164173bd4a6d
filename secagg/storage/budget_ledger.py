"""A client's ledgers: sessions charged to a budget, and claims of tasks on its data.

Rule 1: a charge is committed before anything is sent, and settled once; a settled
        charge stays as it is.
Rule 2: a budget belongs to one task of one aggregator of one trust domain, and is
        charged with one noise only.  Another noise needs another name.
Rule 3: a task refunds at most as many charges as it is to release sums. All others
        count, even void ones: else an aggregator that aborts session after session
        would see unlimited masked inputs.

The ledger of data:

Rule 4: a claim is a task's whole loss.  It is written once, before the client first
        joins the task, and stays: no word of a server takes a claim back.
Rule 5: a process that adds a claim states how many claims on the data it has checked.
        If others exist by then, nothing is written.
Rule 6: a claim covers the sessions that one store counts for one budget.  Another store
        counts from zero, and so does another aggregator under the same task name. The
        key of a claim contains the key of a budget.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import IntEnum, StrEnum, unique
from typing import Any

from secagg.errors import ErrorCode, RemoteProtocolError


@unique
class ChargeState(IntEnum):
    """Names what became of an input that was charged."""

    BOUND = 1
    """The input may be sent or was sent; the session continues."""
    KEPT = 2
    """A sum with it was released, or nothing is known.  Final."""
    VOID = 3
    """Refunded: no sum with it exists or can exist.  Final, and not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetKey:
    """Names a budget: another aggregator under the same task name has another one.

    Attributes:
        trust_domain: Trust domain of the aggregator, as its certificate proves it, or
            else the credentials of the session; "" where neither does.
        aggregator: Name of the aggregator; between two, of the leader.
        task: Name of the task.
    """

    trust_domain: str
    aggregator: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Charges a session of a task with noise to the client's budget.

    Attributes:
        budget: The budget that is charged.
        session_id: Id of the session, which names the charge.
        noise_digest: SHA-256 of the task's description of its noise.
        allowed: Sessions that the budget covers, with the spare ones.
        refunds: Charges of the task that may be refunded.
    """

    budget: BudgetKey
    session_id: bytes
    noise_digest: bytes
    allowed: int
    refunds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """States what became of a charge.

    Attributes:
        task: Name of the task.
        session_id: Id of the session.
        state: KEPT or VOID.
    """

    task: str
    session_id: bytes
    state: ChargeState


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRow(Charge):
    """Holds one line of a client's ledger: a charge as it was made, and its state.

    Attributes:
        state: What became of the input.
        at: When the state was set, in Unix seconds.
    """

    state: ChargeState
    at: float


@dataclass(frozen=True, slots=True)
class Budget:
    """States how much of a task's budget is used.

    Attributes:
        given: Sessions that count: bound, kept, or refunded beyond the limit.
        void: Sessions that were refunded and do not count.
        left: Sessions that may still be charged.
    """

    given: int
    void: int
    left: int


class BudgetSpentError(RemoteProtocolError):
    """Reports that the budget of the task covers no further session."""

    def __init__(self, charge: Charge, *, given: int) -> None:
        super().__init__(
            f"this client has given {given} sessions to {_charge_title(charge)}, whose "
            f"budget covers {charge.allowed}",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="The budget is spent. A new task id is a new budget, to be "
            "agreed on.",
        )


class NoiseChangedError(RemoteProtocolError):
    """Reports that a server would begin a second budget under the name of the first."""

    def __init__(self, charge: Charge) -> None:
        super().__init__(
            f"{_charge_title(charge)} has changed its noise since this client first "
            "took part",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="Ask the operator to run the new parameters under a new task id.",
        )


def _charge_title(charge: Charge) -> str:
    """Return task and aggregator of a charge, for errors."""
    return f"task {charge.budget.task!r} of aggregator {charge.budget.aggregator!r}"


def is_new_charge(charges: Iterable[ChargeRow], charge: Charge) -> bool:
    """Check a charge against earlier ones; return whether it is new.

    Args:
        charges: Earlier charges; those of other budgets are ignored.
        charge: The new charge.

    Returns:
        Whether it must be written; False when this session is charged already.

    Raises:
        NoiseChangedError: The task was charged with other noise before.
        BudgetSpentError: The budget is spent.
        InternalError: The session was refunded and would be used again.
    """
    made = tuple(row for row in charges if row.budget == charge.budget)
    known: ChargeState | None = None
    for row in made:
        if row.noise_digest != charge.noise_digest:
            raise NoiseChangedError(charge)
        if row.session_id == charge.session_id:
            known = row.state
    if known is ChargeState.VOID:
        raise ErrorCode.INTERNAL.error(
            f"a session of {_charge_title(charge)} was given back and is charged again"
        )
    budget = budget_of(
        made, charge.budget, allowed=charge.allowed, refunds=charge.refunds
    )
    if known is None and not budget.left:
        raise BudgetSpentError(charge, given=budget.given)
    return known is None


def settled(state: ChargeState, wanted: ChargeState) -> ChargeState:
    """Return the new state of a charge; a settled charge stays as it is."""
    return wanted if state is ChargeState.BOUND else state


def budget_of(
    charges: Iterable[ChargeRow], key: BudgetKey, *, allowed: int, refunds: int
) -> Budget:
    """Return how much of a task's budget is used.

    Args:
        charges: All earlier charges; those of other budgets are ignored.
        key: Names the budget.
        allowed: Sessions that the budget covers.
        refunds: Charges of the task that may be refunded.
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
    """An adversary that sees every vector alone, and so also any weaker one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a task may cost the data that are given to it.

    Attributes:
        data: Name of the data, the client owner's.
        holder: Name of the store that counts the task's sessions.
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


def columns_of(entry: Charge | Claim) -> dict[str, Any]:
    """Return a charge or a claim as a store keeps it, by name of the column."""
    named: dict[str, Any] = {
        name: value.value if isinstance(value, StrEnum) else value
        for name, value in asdict(entry).items()
    }
    budget: dict[str, Any] = named.pop("budget")
    return budget | named


def fields_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `columns_of` has described, and further columns as such.

    Args:
        columns: A row, by name of the column.
    """
    named = dict(columns)
    budget = BudgetKey(
        **{each.name: named.pop(each.name) for each in fields(BudgetKey)}
    )
    return named | {"budget": budget}


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim that was made.

    Attributes:
        claim: The claim.
        at: When, in Unix seconds.
    """

    claim: Claim
    at: float
