"""The client's side of one session: a pure function of state and event.

Rule 1: `TRANSITIONS` is the protocol.  A handler may leave the session; it may not
        enter a state that its row does not name.
Rule 2: a state holds what its round needs and nothing else.  What a state does not
        hold, it cannot leak, log or answer with.
Rule 3: no clock, no entropy, no I/O.  All secrets derive from the seed of
        `SessionOffered`, so replaying the journal gives the same bytes.
Rule 4: for every peer the client reveals a share of the self-mask seed or a share of
        the mask key, never both: one bitmap decides, once (PROTOCOL §5.5).
Rule 5: a repeated message is a no-op; a contradicting or unexpected one ends the
        session for this client and erases its keys.
Rule 6: a session whose parameters hold a noise block has no row that takes a vector
        without noise.

Rounds and client sets (U1 to U5) are named as in [Bon17].
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
)
from secagg.messages import SessionAborted
from secagg.policy import ClientPolicy
from secagg.protocol.client_rounds import (
    abort,
    advertise,
    end,
    ignore,
    input_digest,
    mask_noised,
    mask_plain,
    open_bundles,
    rebind,
    remask,
    repeat,
    reveal,
    share_keys,
)
from secagg.protocol.client_states import (
    Aborted,
    Advertised,
    Answered,
    ClientState,
    ClientStep,
    Finished,
    Idle,
    Masked,
    ReadyForNoisedInput,
    ReadyForPlainInput,
    Shared,
)
from secagg.protocol.events import (
    ClientEvent,
    InputBound,
    NoisedInputReady,
    PlainInputReady,
    RosterReceived,
    SessionEnded,
    SessionOffered,
    SharesReceived,
    SurvivorsReceived,
)
from secagg.protocol.outputs import ClientOutput, SendAdvert, SendBundles, SendShares

__all__ = [
    "TRANSITIONS",
    "Aborted",
    "Advertised",
    "Answered",
    "ClientState",
    "Finished",
    "Idle",
    "Masked",
    "ReadyForNoisedInput",
    "ReadyForPlainInput",
    "Shared",
    "input_digest",
    "is_over",
    "pending_outputs",
    "start",
    "step",
]


class Edge(NamedTuple):
    """One row of the protocol: who handles the event, and where that may lead."""

    handler: Callable[[Any, Any, ClientPolicy], ClientStep]
    may_enter: AbstractSet[type[ClientState]]


_Plain, _Noised = ReadyForPlainInput, ReadyForNoisedInput
_LIVE: Final = (Advertised, Shared, _Plain, _Noised, Masked, Answered)
_ENDED: Final = (Finished, Aborted)

# fmt: off
TRANSITIONS: Final[Mapping[tuple[type[ClientState], type[ClientEvent]], Edge]] = {
    # state       event                handler             may enter (or Aborted)
    (Idle,        SessionOffered):     Edge(advertise,    {Advertised}),
    (Advertised,  RosterReceived):     Edge(share_keys,   {Shared}),
    (Shared,      SharesReceived):     Edge(open_bundles, {_Plain, _Noised}),
    (_Plain,      PlainInputReady):    Edge(mask_plain,   {Masked}),
    (_Plain,      InputBound):         Edge(rebind,       {Masked}),
    (_Noised,     NoisedInputReady):   Edge(mask_noised,  {Masked}),
    (_Noised,     InputBound):         Edge(rebind,       {Masked}),
    (Masked,      PlainInputReady):    Edge(remask,       {Masked}),
    (Masked,      NoisedInputReady):   Edge(remask,       {Masked}),
    (Masked,      SurvivorsReceived):  Edge(reveal,       {Answered}),
    # a repeat of anything already accepted is a no-op
    (Shared,      RosterReceived):     Edge(repeat,       {Shared}),
    (_Plain,      RosterReceived):     Edge(repeat,       {_Plain}),
    (_Plain,      SharesReceived):     Edge(repeat,       {_Plain}),
    (_Noised,     RosterReceived):     Edge(repeat,       {_Noised}),
    (_Noised,     SharesReceived):     Edge(repeat,       {_Noised}),
    (Masked,      RosterReceived):     Edge(repeat,       {Masked}),
    (Masked,      SharesReceived):     Edge(repeat,       {Masked}),
    (Answered,    RosterReceived):     Edge(repeat,       {Answered}),
    (Answered,    SharesReceived):     Edge(repeat,       {Answered}),
    (Answered,    SurvivorsReceived):  Edge(repeat,       {Answered}),
    # the end
    **{(state,    SessionEnded):       Edge(end,          {Finished}) for state in _LIVE},
    **{(state,    event):              Edge(ignore,       {state})
       for state in _ENDED
       for event in (RosterReceived, SharesReceived, SurvivorsReceived, SessionEnded)},
}
# fmt: on

_FROM_SERVER: Final = (RosterReceived, SharesReceived, SurvivorsReceived, SessionEnded)


def start() -> ClientState:
    """Return the state before any session."""
    return Idle()


def step(state: ClientState, event: ClientEvent, *, policy: ClientPolicy) -> ClientStep:
    """Apply one event to the client's session.

    A violation by the server is not raised: the client leaves the session, and the
    returned state is `Aborted` with the code to report.

    Args:
        state: The state before the event.
        event: What happened.
        policy: The client's floors and caps; compared when a session is offered.

    Returns:
        The state after the event and what to do.  Persist the event first, then do it.

    Raises:
        LocalProtocolError: The caller is at fault (a second, different input; a vector
            without noise where noise is demanded); `state` is unchanged.
    """
    edge = TRANSITIONS.get((type(state), type(event)))
    if edge is None:
        complaint = f"{type(event).__name__} is not expected in {type(state).__name__}"
        if isinstance(event, _FROM_SERVER):
            return abort(SessionAborted(ErrorCode.UNEXPECTED_MESSAGE, complaint))
        raise LocalProtocolError(complaint)
    try:
        result = edge.handler(state, event, policy)
    except RemoteProtocolError as error:
        return abort(SessionAborted(error.code, str(error)))
    if type(result.state) not in edge.may_enter | {Aborted}:
        raise InternalError(f"undeclared transition to {type(result.state).__name__}")
    return result


def pending_outputs(state: ClientState) -> tuple[ClientOutput, ...]:
    """Return what a restarted client must send again: the same bytes as before.

    In `Masked` that needs the input, which is not stored: supply it again as an event.
    """
    match state:
        case Advertised():
            return (SendAdvert(state.advert.encode()),)
        case Shared():
            return (SendBundles(state.bundles),)
        case Answered():
            return (SendShares(state.answer),)
        case _:
            return ()


def is_over(state: ClientState) -> bool:
    """Whether the session has ended for this client."""
    return isinstance(state, _ENDED)
