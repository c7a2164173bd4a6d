"""What a client gives to each task: charged before an input leaves, rarely given back.

Rule 1: a session of a task with noise is charged in the change that binds its input,
        before the first byte leaves.  Charging it again changes nothing.
Rule 2: what becomes of a charge is said by the table of `secagg.protocol.refund` alone
        and written by the change that ends the session.  Timeouts, errors of
        a call and this client's own faults give nothing back.  Of a task in
        which one client has n participations at most n of its sessions come back, ever.
Rule 3: a budget is that of one task of one aggregator of one trust domain, and has one
        description of its noise.  An aggregator under another name is another one, as
        a task under another name is: it has a fresh budget, and a total counts both.
Rule 4: a task gets the participations of this client that its block states, and the
        spare sessions beside them, even if its server offers more.
Rule 5: on a sparse graph every roster counts that the client accepts, before its shares
        or its choice of neighbours leave and whatever becomes of the session: colluders
        who know the graph can end those that do not suit them.  Delta counts on a
        number of rosters; the next session is refused.

The budget of one task is thereby enforced where the vectors are.  What several tasks
over the same data may cost together is kept by `secagg.client.total_ledger`.
"""

from hashlib import sha256

from secagg.distributed_dp import NoisyTask
from secagg.protocol import refund
from secagg.protocol.descriptor import SessionDescriptor
from secagg.storage.budget_ledger import BudgetKey, Charge, ChargeState, Settlement


def budget_key_of(
    descriptor: SessionDescriptor, *, trust_domain: str | None
) -> BudgetKey:
    """Return the name of the budget that a session is charged to.

    Args:
        descriptor: The session; between two aggregators, the leader's.
        trust_domain: Of its aggregator, as the connection has proven it.
    """
    return BudgetKey(
        trust_domain=trust_domain or "",
        aggregator=descriptor.aggregator,
        task=descriptor.task_id,
    )


def peer_of(aggregator: str, *, trust_domain: str | None) -> str:
    """Return under which name an aggregator's sessions are numbered in the store.

    One of the same name in another trust domain is another aggregator: neither do its
    numbers count, nor is a session of the first one shown to it (R5.0-6).

    Args:
        aggregator: Its name, as the connection has proven it.
        trust_domain: Its trust domain, likewise; None where none is proven.
    """
    if trust_domain is None:
        return aggregator
    return f"secagg://{trust_domain}/server/{aggregator}"


def charge_of(
    descriptor: SessionDescriptor, *, trust_domain: str | None
) -> Charge | None:
    """Return what a session costs; None for a session without noise.

    Args:
        descriptor: The session.
        trust_domain: As `budget_key_of` has it.

    Raises:
        RemoteProtocolError: BAD_CONFIG; its noise cannot be read.
    """
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return None
    budget = NoisyTask.from_parameters(parameters).budget
    return Charge(
        budget=budget_key_of(descriptor, trust_domain=trust_domain),
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
    return NoisyTask.from_parameters(parameters).max_rosters


def settlement_of(
    descriptor: SessionDescriptor, charge: refund.ChargeOutcome
) -> Settlement:
    """Return what the store records of a session's charge, if it has one.

    Args:
        descriptor: The session.
        charge: What becomes of it, as `secagg.protocol.refund` has it.
    """
    is_void = charge is refund.ChargeOutcome.GIVEN_BACK
    return Settlement(
        task=descriptor.task_id,
        session_id=descriptor.session_id,
        state=ChargeState.VOID if is_void else ChargeState.KEPT,
    )
