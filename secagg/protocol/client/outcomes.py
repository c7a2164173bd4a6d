"""Outcomes of a session at a client: the handlers of the last rows.

They decide whether the client's input counts as summed. `secagg.protocol.refund`
decides what an outcome costs.
"""

from secagg.errors import ErrorCode
from secagg.protocol.client.states import (
    Answered,
    ClientState,
    ClientStep,
    Completed,
    Failed,
    Masked,
    Signed,
)
from secagg.protocol.events import AbortRequested, ClientEvent, Received
from secagg.protocol.messages import Aborted, Fate, Released
from secagg.protocol.outputs import Finish, Step
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.refund import Charge, ReachedStage, charge_after


def complete(
    state: Masked | Signed | Answered, event: Received, _: ClientPolicy
) -> ClientStep:
    """Accept that a sum was released, if it is consistent with this client's actions.

    Only states with a bound input have this row (R5.6-1).
    """
    released = _read_release(state, event)
    charge = _charge_of(state, released.fate)
    return Step(Completed(released, charge), (Finish(None, "a sum was released"),))


def miss(state: Masked, event: Received, _: ClientPolicy) -> ClientStep:
    """End without a sum that was released before this client signed (R5.6-4)."""
    released = _read_release(state, event)
    return leave(
        state,
        ErrorCode.SESSION_OVER,
        "a sum was released, but this client has signed no set for it",
        fate=released.fate,
    )


def _read_release(state: Masked | Signed | Answered, event: Received) -> Released:
    """Read a release that can be one of this session (R5.6-2, R5.6-4)."""
    released = Released.decode(event.envelope.data)
    _check_fate(released.fate)
    if isinstance(state, Signed | Answered):
        vouched = int.from_bytes(state.survivors, "big").bit_count()
        if released.survivors != vouched:
            raise ErrorCode.U3_INVALID.error(
                f"the sum is stated to have {released.survivors} inputs, this client "
                f"has vouched for {vouched}",
            )
        return released
    parameters, most = state.facts.parameters, len(state.delivered.sharers)
    least = max(parameters.threshold, parameters.min_survivors)
    if not least <= released.survivors <= most:
        raise ErrorCode.U3_INVALID.error(
            f"the sum is stated to have {released.survivors} inputs, a sum has "
            f"between {least} and {most}",
        )
    return released


def fail(state: ClientState, event: Received, _: ClientPolicy) -> ClientStep:
    """Record that the server ended the session without a sum."""
    aborted = Aborted.decode(event.envelope.data)
    if isinstance(state, Signed | Answered):
        _check_fate(aborted.fate)
    return leave(state, aborted.code, aborted.reason, fate=aborted.fate)


def give_up(state: ClientState, event: AbortRequested, _: ClientPolicy) -> ClientStep:
    """Leave the session because this client's runner cannot continue."""
    return leave(state, event.code, event.reason)


def leave(
    state: ClientState,
    code: ErrorCode,
    reason: str,
    *,
    fate: Fate | None = None,
    next_step: str = "",
) -> ClientStep:
    """Leave the session; the new state holds no key.

    Args:
        state: The state that is left.
        code: Why.
        reason: One sentence for people.
        fate: The fate in the server's last update, if an update ended the session.
        next_step: As for `Failed`.
    """
    failed = Failed(code, reason, _charge_of(state, fate), next_step)
    return Step(failed, (Finish(code, reason),))


def _check_fate(fate: Fate) -> None:
    """Refuse an outcome without a client that must be in U3.

    A client that has vouched for a U3 is in it (R5.6-2), and a sum is released only to
    the clients of U3 (R5.6-4).
    """
    if fate is not Fate.INCLUDED:
        raise ErrorCode.U3_INVALID.error(
            "the server states that this client's input is not in U3, but has shown "
            "a U3 that names it, or a sum: the server lies, or has lost its state",
        )


def _charge_of(state: ClientState, fate: Fate | None) -> Charge:
    match state:
        case Masked():
            profile, standing = state.facts.parameters.profile, ReachedStage.MASKED
        case Signed():
            profile, standing = state.facts.parameters.profile, ReachedStage.SIGNED
        case Answered():
            profile, standing = state.facts.parameters.profile, ReachedStage.ANSWERED
        case _:
            return Charge.NEVER  # no input was bound: the same in every profile
    return charge_after(profile, standing, fate)


def ignore(state: Completed | Failed, _: ClientEvent, __: ClientPolicy) -> ClientStep:
    """Ignore an event that arrives after the end."""
    return Step(state, is_repeat=True)
