"""A client's ledger: which sessions of a task were charged to its budget.

Rule 1: a charge is bound before anything leaves, and settled once; what is settled
        stays as it is.
Rule 2: a budget is that of one task of one aggregator of one trust domain, and is
        charged with one noise only.  Another noise needs another name.
Rule 3: as many charges of a task come back as it is to release sums, and no more.  The
        others count, even if they are void: whoever ends session after session sees
        masked inputs without end otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, unique

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
