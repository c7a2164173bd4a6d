"""The server's side of one session: a pure function of state and event.

Rule 1: `TRANSITIONS` is the protocol.  A handler may refuse an event; it may not
        enter a state that its row does not name.
Rule 2: a state holds what its round needs and nothing else.
Rule 3: no clock, no entropy, no I/O.  Replaying the accepted events rebuilds the
        state, bit for bit.
Rule 4: the sets U1, U2 and U3 are fixed when a round is closed, before anybody is
        told; nothing that arrives later changes them (PROTOCOL §5).
Rule 5: a repeated message is a no-op, a contradiction is the sender's violation, and
        neither ends the session for others.
Rule 6: no work beyond the message at hand is done before a round's minimum is met.

It holds no vector: uploads lie in the runner's spool under their digests.

Rounds and client sets (U1 to U5) are named as in [Bon17].
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
)
from secagg.messages import (
    RosterPublished,
    ServerUpdate,
    SessionAborted,
    SharesDelivered,
    UnmaskRequested,
)
from secagg.parameters import SessionDescriptor
from secagg.primitives.transcript import encode_set
from secagg.protocol.events import (
    AbortRequested,
    BundlesSent,
    InputUploaded,
    KeysAdvertised,
    RoundClosed,
    ServerEvent,
    SharesRevealed,
    SumComputed,
)
from secagg.protocol.outputs import ServerOutput
from secagg.protocol.rounds import BUNDLE_BYTES, Round
from secagg.protocol.server_rounds import (
    abort_requested,
    close_advertise_keys,
    close_masked_input,
    close_share_keys,
    close_unmasking,
    complete,
    record_bundles,
    record_keys,
    record_shares,
    record_upload,
)
from secagg.protocol.server_states import (
    Aborted,
    AdvertiseKeys,
    Completed,
    MaskedInputCollection,
    Rostered,
    ServerState,
    ServerStep,
    ShareKeys,
    Summing,
    Unmasking,
)

__all__ = [
    "TRANSITIONS",
    "Aborted",
    "AdvertiseKeys",
    "Completed",
    "MaskedInputCollection",
    "Progress",
    "ServerState",
    "ShareKeys",
    "Summing",
    "Unmasking",
    "is_over",
    "is_round_full",
    "pending_outputs",
    "progress",
    "round_of",
    "start",
    "step",
    "update_for",
]


class Edge(NamedTuple):
    """One row of the protocol: who handles the event, and where that may lead."""

    handler: Callable[[Any, Any], ServerStep]
    may_enter: AbstractSet[type[ServerState]]


_LIVE: Final = (AdvertiseKeys, ShareKeys, MaskedInputCollection, Unmasking, Summing)

# fmt: off
TRANSITIONS: Final[Mapping[tuple[type[ServerState], type[ServerEvent]], Edge]] = {
    # state                event            handler                   may enter
    (AdvertiseKeys,        KeysAdvertised): Edge(record_keys,          {AdvertiseKeys}),
    (AdvertiseKeys,        RoundClosed):    Edge(close_advertise_keys, {ShareKeys, Aborted}),
    (ShareKeys,            BundlesSent):    Edge(record_bundles,       {ShareKeys}),
    (ShareKeys,            RoundClosed):    Edge(close_share_keys,     {MaskedInputCollection, Aborted}),
    (MaskedInputCollection, InputUploaded): Edge(record_upload,        {MaskedInputCollection}),
    (MaskedInputCollection, RoundClosed):   Edge(close_masked_input,   {Unmasking, Aborted}),
    (Unmasking,            SharesRevealed): Edge(record_shares,        {Unmasking}),
    (Unmasking,            RoundClosed):    Edge(close_unmasking,      {Summing, Aborted}),
    (Summing,              SumComputed):    Edge(complete,             {Completed}),
    **{(state,             AbortRequested): Edge(abort_requested,      {Aborted}) for state in _LIVE},
}
# fmt: on

_ROUND_OF: Final[Mapping[type[ServerState], Round]] = {
    AdvertiseKeys: Round.ADVERTISE_KEYS,
    ShareKeys: Round.SHARE_KEYS,
    MaskedInputCollection: Round.MASKED_INPUT_COLLECTION,
    Unmasking: Round.UNMASKING,
    Summing: Round.UNMASKING,
    Completed: Round.FINISHED,
    Aborted: Round.FINISHED,
}
_FROM_CLIENTS: Final = (KeysAdvertised, BundlesSent, InputUploaded, SharesRevealed)


def start(
    descriptor: SessionDescriptor,
    *,
    packed_bytes: int,
    invited: frozenset[str] | None = None,
) -> ServerState:
    """Return the state that collects adverts.

    Args:
        descriptor: The session, as offered to clients.
        packed_bytes: Exact size of one packed vector (`wire.packing.packed_size`).
        invited: Who may advertise; None for every authenticated client.

    Raises:
        RemoteProtocolError: BAD_CONFIG, if no such session can exist.
    """
    descriptor.validate()
    return AdvertiseKeys(
        descriptor=descriptor,
        packed_bytes=packed_bytes,
        invited=invited,
        adverts={},
        keys=set(),
    )


def step(state: ServerState, event: ServerEvent) -> ServerStep:
    """Apply one event to the session.

    Returns:
        The state after the event and what to do.  Persist the event first, then do it.

    Raises:
        RemoteProtocolError: A client's message was refused; `state` is unchanged and
            the event must not be journalled.  Tell the client, go on without it.
        LocalProtocolError: The runner drove the machine wrongly; ditto.
    """
    if isinstance(event, RoundClosed) and event.round != round_of(state):
        raise LocalProtocolError(
            f"round {event.round.name} is closed already or not open yet"
        )
    edge = TRANSITIONS.get((type(state), type(event)))
    if edge is None:
        complaint = f"{type(event).__name__} is not expected in {type(state).__name__}"
        if isinstance(event, _FROM_CLIENTS):
            raise RemoteProtocolError(
                complaint,
                code=ErrorCode.SESSION_OVER
                if is_over(state)
                else ErrorCode.UNEXPECTED_MESSAGE,
                sender=event.sender,
                next_step="Fetch the session's current update first.",
            )
        raise LocalProtocolError(complaint)
    result = edge.handler(state, event)
    if type(result.state) not in edge.may_enter:
        raise InternalError(f"undeclared transition to {type(result.state).__name__}")
    return result


def round_of(state: ServerState) -> Round:
    """Return the round that a state belongs to."""
    return _ROUND_OF[type(state)]


def is_over(state: ServerState) -> bool:
    """Whether the session has ended, with or without a sum."""
    return isinstance(state, Completed | Aborted)


def pending_outputs(state: ServerState) -> tuple[ServerOutput, ...]:
    """Return what a restarted server must do again: nothing but an unfinished sum."""
    return (state.job,) if isinstance(state, Summing) else ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a round has come.

    Attributes:
        round: Which one.
        answered: Clients whose message is in.
        expected: Clients that may still answer, those included; in round 0 the
            largest roster.
        needed: Clients without whom the round cannot be closed in success.
    """

    round: Round
    answered: int
    expected: int
    needed: int


def progress(state: ServerState) -> Progress:
    """Count the answers of the current round."""
    counts = (0, 0, 0)
    match state:
        case AdvertiseKeys():
            limits = state.descriptor.parameters
            expected = limits.max_clients
            if state.invited is not None:
                expected = min(expected, len(state.invited))
            counts = (len(state.adverts), expected, limits.min_clients)
        case ShareKeys():
            counts = (len(state.bundles), len(state.roster), _needed(state))
        case MaskedInputCollection():
            counts = (len(state.uploads), len(state.sharers), _needed(state))
        case Unmasking():
            threshold = state.descriptor.parameters.threshold
            counts = (len(state.shares), len(state.survivors), threshold)
        case Summing() | Completed():
            survivors = len(state.survivors)
            counts = (survivors, survivors, survivors)
    return Progress(round_of(state), *counts)


def _needed(state: Rostered) -> int:
    parameters = state.descriptor.parameters
    return max(parameters.threshold, parameters.min_survivors)


def is_round_full(state: ServerState) -> bool:
    """Whether everybody who can answer has, so that waiting is pointless."""
    if isinstance(state, Summing | Completed | Aborted):
        return False
    now = progress(state)
    return now.answered >= now.expected


def update_for(  # noqa: PLR0911 - one way out per round
    state: ServerState, identity: str
) -> ServerUpdate | None:
    """Return what a client may fetch now; the same value on every call.

    Args:
        state: The session.
        identity: Who asks, as authenticated by the transport.

    Returns:
        The message that opens the current round for this client, how the session
        ended, or None if there is nothing for it yet.  A client that is no longer
        part of the session gets `SessionAborted` with SESSION_OVER.
    """
    if isinstance(state, AdvertiseKeys):
        return None
    if isinstance(state, Aborted):
        return SessionAborted(state.code, state.reason)
    index = state.index_of.get(identity)
    if index is None:
        return _left_out("the roster was fixed without this client")
    if isinstance(state, Completed):
        return state.released
    if isinstance(state, ShareKeys):
        return RosterPublished(state.roster.encode())
    if isinstance(state, MaskedInputCollection):
        return _delivery(state, index)
    return _unmask_request(state, index)


def _left_out(reason: str) -> SessionAborted:
    return SessionAborted(ErrorCode.SESSION_OVER, reason)


def _delivery(state: MaskedInputCollection, index: int) -> ServerUpdate:
    """Cut the bundles addressed to one client out of those of its dealers."""
    if index not in state.sharers:
        return _left_out("this client's shares did not arrive in time")
    parts = []
    for dealer in state.graph.neighbors(index):
        if dealer in state.sharers:
            place = state.graph.rank(dealer, index) * BUNDLE_BYTES
            parts.append(state.bundles[dealer][place : place + BUNDLE_BYTES])
    return SharesDelivered(
        encode_set(state.sharers, len(state.roster)), b"".join(parts)
    )


def _unmask_request(state: Unmasking | Summing, index: int) -> ServerUpdate | None:
    if index not in state.survivors:
        return _left_out("this client's masked input did not arrive in time")
    if isinstance(state, Summing):
        return None
    return UnmaskRequested(encode_set(state.survivors, len(state.roster)))
