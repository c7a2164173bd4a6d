"""Outcomes of a session at the server, and dropouts on the way.

It holds the handlers of `server.TRANSITIONS` for its last rows, and the end of a round
without enough clients.  A handler that aborts returns the result of `too_few` or
`abort`.
"""

from collections.abc import Set as AbstractSet

from secagg.errors import ErrorCode, LocalProtocolError
from secagg.protocol.events import (
    AbortRequested,
    DropClient,
    ServerOutput,
    Step,
    SumComputed,
)
from secagg.protocol.messages import Aborted, Fate, Released
from secagg.protocol.rounds import DropReason
from secagg.protocol.server.states import (
    Completed,
    ConsistencyCheck,
    Failed,
    FixedCohort,
    ServerState,
    ServerStep,
    Session,
    Summing,
    Unmasking,
)


def complete(state: Summing, event: SumComputed) -> ServerStep:
    """Release the sum."""
    survivors = state.cohort.names_of(state.survivors)
    released = Released(
        Fate.INCLUDED, event.sum_hash, event.size, len(survivors), event.kept_until
    )
    return Step(
        Completed(state.session, state.cohort, outcome=released, survivors=survivors)
    )


def abort_requested(state: ServerState, event: AbortRequested) -> ServerStep:
    """End the session on request of the operator or the runner."""
    # PROTOCOL §5.6: from U3 on, the end costs its members their charge.
    survivors = (
        state.cohort.names_of(state.survivors)
        if isinstance(state, ConsistencyCheck | Unmasking)
        else frozenset[str]()
    )
    return abort(state.session, event.code, event.reason, survivors=survivors)


def abort_summing(state: Summing, event: AbortRequested) -> ServerStep:
    """Discard a sum that may be known already, if that is requested explicitly."""
    if not event.discard_unmasked:
        raise LocalProtocolError(
            "the session is being summed: its clients are charged whether or not the "
            "sum is released",
            next_step="Wait for the sum, or discard it explicitly.",
        )
    survivors = state.cohort.names_of(state.survivors)
    failed = Failed(
        state.session,
        Aborted(Fate.NOT_INCLUDED, event.code, event.reason),
        survivors,
        was_unmasked=True,
    )
    return Step(failed)


def too_few(  # noqa: PLR0913, PLR0917 - one sentence and what it is about
    session: Session,
    alive: int,
    needed: int,
    did: str,
    code: ErrorCode,
    drops: tuple[ServerOutput, ...] = (),
    *,
    survivors: frozenset[str] = frozenset(),
) -> ServerStep:
    """End the session because too few clients completed a round."""
    reason = f"{alive} clients {did}, {needed} are needed"
    return abort(session, code, reason, drops, survivors=survivors)


def abort(
    session: Session,
    code: ErrorCode,
    reason: str,
    drops: tuple[ServerOutput, ...] = (),
    *,
    survivors: frozenset[str] = frozenset(),
) -> ServerStep:
    """End the session without a sum.

    Args:
        session: Which.
        code: Why.
        reason: The same as a sentence for the operator.
        drops: The dropouts of the round that ends.
        survivors: U3 by name, once it is fixed: its end costs them their charge.
    """
    fate = Fate.NOT_INCLUDED if survivors else Fate.NEVER_FIXED
    return Step(Failed(session, Aborted(fate, code, reason), survivors), drops)


def dropped_for(
    cohort: FixedCohort, indices: AbstractSet[int], reason: DropReason
) -> tuple[ServerOutput, ...]:
    """Record dropouts by roster index, with the reason."""
    return tuple(DropClient(cohort.name_of(index), reason) for index in sorted(indices))
