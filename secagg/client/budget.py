"""What a client gives to each task: charged before an input leaves, rarely given back.

Rule 1: a session of a task with noise is charged in the change that binds its input,
        before the first byte leaves.  Charging it again changes nothing.
Rule 2: a charge is given back only for a session in whose sum, says the server, this
        client has no part: as far as the profile trusts the server at all.  Silence,
        deadlines, errors of a call and this client's own faults give nothing back.
Rule 3: one task has one description of its noise.  A server that changes it would
        begin a second budget under the first one's name.
Rule 4: a task that claims a budget for n sessions gets n sessions of this client, even
        if its server offers more.

The budget of one task is thereby enforced where the vectors are.  Several tasks add
up; which tasks a client serves is its owner's decision.
"""

from hashlib import sha256
from typing import Final

from secagg.distributed_dp import NoisedTask
from secagg.errors import ErrorCode, SecAggError, SessionAbortedError
from secagg.parameters import SessionDescriptor
from secagg.storage.book import (
    Book,
    Charge,
    ChargeState,
    Settlement,
    is_new_charge,
)

__all__ = ["GIVEN_BACK", "charge_of", "check_budget", "settlement_of"]

# Endings that the server declares, of sessions in whose sum this client has no part:
# aborted ones, and (SESSION_OVER) those that went on without it.
GIVEN_BACK: Final = frozenset(
    {
        ErrorCode.ROSTER_TOO_SMALL,
        ErrorCode.U2_TOO_SMALL,
        ErrorCode.U3_TOO_SMALL,
        ErrorCode.TOO_MANY_DROPOUTS,
        ErrorCode.TOO_FEW_ANSWERS,
        ErrorCode.RECONSTRUCTION_FAILED,
        ErrorCode.SESSION_OVER,
        ErrorCode.CANCELLED,
    }
)


def charge_of(descriptor: SessionDescriptor) -> Charge | None:
    """Return what a session costs; None for a session without noise.

    Raises:
        RemoteProtocolError: BAD_CONFIG; its noise cannot be read.
    """
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return None
    return Charge(
        task=descriptor.task_id,
        session_id=descriptor.session_id,
        noise_digest=sha256(parameters.noise_block).digest(),
        allowed=NoisedTask.from_parameters(parameters).budget.sessions,
    )


async def check_budget(book: Book, offered: SessionDescriptor) -> None:
    """Refuse an offer that the budget of its task does not cover any more.

    Raises:
        BudgetSpentError: The budget is spent.
        NoiseChangedError: The task was charged with other noise before.
        ServiceError: STORAGE_FAILED.
    """
    charge = charge_of(offered)
    if charge is not None:
        rows = await book.charges(charge.task)
        # An offer of a session known before is refused by its number.
        others = (row for row in rows if row.session_id != charge.session_id)
        is_new_charge(others, charge)


def settlement_of(
    descriptor: SessionDescriptor, ending: SecAggError | None
) -> Settlement:
    """Return what becomes of a session's charge, if it has one.

    Args:
        descriptor: The session.
        ending: The error with which it ended for this client; None when it released a
            sum.
    """
    is_void = isinstance(ending, SessionAbortedError) and ending.code in GIVEN_BACK
    return Settlement(
        task=descriptor.task_id,
        session_id=descriptor.session_id,
        state=ChargeState.VOID if is_void else ChargeState.KEPT,
    )
