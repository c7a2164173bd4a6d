"""What a client gives to each task: charged before an input leaves, rarely given back.

Rule 1: a session of a task with noise is charged in the change that binds its input,
        before the first byte leaves.  Charging it again changes nothing.
Rule 2: what becomes of a charge is said by the table of `secagg.protocol.refund` alone
        and written by the change that ends the session.  Silence, deadlines, errors of
        a call and this client's own faults give nothing back.  Of a task in
        which one client has n participations at most n of its sessions come back, ever.
Rule 3: one task has one description of its noise.  A server that changes it would
        begin a second budget under the first one's name.
Rule 4: a task gets the participations of this client that its block states, and the
        spare sessions beside them, even if its server offers more.
Rule 5: on a sparse graph every roster counts that the client accepts, before its shares
        or its choice of neighbours leave and whatever becomes of the session: colluders
        who know the graph can end those that do not suit them.  Delta counts on a
        number of rosters; the next session is refused.

The budget of one task is thereby enforced where the vectors are.  What several tasks
over the same data may cost together is kept by `secagg.client.total`.
"""

from hashlib import sha256

from secagg.descriptor import SessionDescriptor
from secagg.distributed_dp import NoisedTask
from secagg.protocol import refund
from secagg.storage.book import Book
from secagg.storage.charges import Charge, ChargeState, Settlement, is_new_charge

__all__ = ["charge_of", "check_budget", "max_rosters_of", "settlement_of"]


def charge_of(descriptor: SessionDescriptor) -> Charge | None:
    """Return what a session costs; None for a session without noise.

    Raises:
        RemoteProtocolError: BAD_CONFIG; its noise cannot be read.
    """
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return None
    budget = NoisedTask.from_parameters(parameters).budget
    return Charge(
        task=descriptor.task_id,
        session_id=descriptor.session_id,
        noise_digest=sha256(parameters.noise_block).digest(),
        allowed=budget.charges,
        refunds=budget.participations,
    )


def max_rosters_of(descriptor: SessionDescriptor) -> int | None:
    """Return how many rosters of the task a client accepts (R11.3-1).

    None for any number: what no delta is reported for needs no cap.

    Raises:
        RemoteProtocolError: BAD_CONFIG; its noise cannot be read.
    """
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return None
    return NoisedTask.from_parameters(parameters).max_rosters


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


def settlement_of(descriptor: SessionDescriptor, charge: refund.Charge) -> Settlement:
    """Return what the book is told of a session's charge, if it has one.

    Args:
        descriptor: The session.
        charge: What becomes of it, as `secagg.protocol.refund` has it.
    """
    is_void = charge is refund.Charge.GIVEN_BACK
    return Settlement(
        task=descriptor.task_id,
        session_id=descriptor.session_id,
        state=ChargeState.VOID if is_void else ChargeState.KEPT,
    )
