"""The server's side of one session: a pure function of state and event.

Rule 1: `TRANSITIONS` is the protocol.  A handler may refuse an event; it may not enter
        a state that its row does not name.
Rule 2: a state holds only what its round needs.
Rule 3: no clock, no entropy, no I/O.  Replaying the accepted events rebuilds the state,
        bit for bit.
Rule 4: the sets U1, U2 and U3 are fixed when a round is closed, before any client
        receives them.  Later messages do not change them (PROTOCOL §5).
Rule 5: in every state a repeated message is a no-op and marked as such
        (`Step.is_repeat`).  A contradiction is the sender's violation.  Neither ends
        the session for others.
Rule 6: no work beyond the message at hand is done before a round's minimum is met.

Rule 7: the server sends nothing.  `update_for` recomputes a client's message at each
        request, also after a restart.

It holds no vector: the runner's spool has uploads under their digests.

Rounds and client sets (U1 to U5) are named as in [Bon17].
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import VerifiedCredentials
from secagg.protocol.events import (
    AbortRequested,
    Received,
    RoundClosed,
    ServerEvent,
    ServerOutput,
    Step,
    SumComputed,
)
from secagg.protocol.graphs.bounds import server_demand
from secagg.protocol.membership import enrolment_rules
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    Envelope,
    Fate,
    Message,
    Released,
    Round,
    Shares,
    Upload,
)
from secagg.protocol.noise_terms import NoiseReader, no_noise
from secagg.protocol.parameters import Graph
from secagg.protocol.profiles import HonestCuriousParameters, Profile
from secagg.protocol.rounds import FROM_CLIENTS
from secagg.protocol.server.handlers import (
    close_advertise_keys,
    close_choose_edges,
    close_masked_input,
    close_share_keys,
    record_advert,
    record_bundles,
    record_complaint,
    record_edges,
    record_upload,
)
from secagg.protocol.server.states import (
    AdvertiseKeys,
    ChooseEdges,
    Completed,
    ConsistencyCheck,
    Enrolment,
    Failed,
    MaskedInputCollection,
    RosterFixed,
    ServerState,
    ServerStep,
    Session,
    ShareKeys,
    Summing,
    Unmasking,
    abort_requested,
    abort_summing,
    complete,
)
from secagg.protocol.server.unmasking import (
    close_consistency,
    close_unmasking,
    record_shares,
    record_signature,
)


class Edge(NamedTuple):
    """One row of the protocol: the handler of an event, and the states it may enter."""

    handler: Callable[[Any, Any], ServerStep]
    may_enter: AbstractSet[type[ServerState]]


_OPEN: Final = (
    AdvertiseKeys,
    ShareKeys,
    MaskedInputCollection,
    ConsistencyCheck,
    Unmasking,
)
_Table = Mapping[tuple[type[ServerState], type[Message | ServerEvent]], Edge]

# fmt: off
_ROWS_OF_ALL: Final[_Table] = {
    # state                 message or event   handler                    may enter
    (AdvertiseKeys,         Advert):         Edge(record_advert,        {AdvertiseKeys}),
    (AdvertiseKeys,         RoundClosed):    Edge(close_advertise_keys, {ShareKeys, Failed}),
    (ShareKeys,             Bundles):        Edge(record_bundles,       {ShareKeys}),
    (ShareKeys,             RoundClosed):    Edge(close_share_keys,     {MaskedInputCollection, Failed}),
    (MaskedInputCollection, Upload):         Edge(record_upload,        {MaskedInputCollection}),
    (MaskedInputCollection, Complaint):      Edge(record_complaint,     {MaskedInputCollection}),
    (Unmasking,             Shares):         Edge(record_shares,        {Unmasking}),
    (Unmasking,             RoundClosed):    Edge(close_unmasking,      {Summing, Failed}),
    (Summing,               SumComputed):    Edge(complete,             {Completed}),
    (Summing,               AbortRequested): Edge(abort_summing,        {Failed}),
    **{(state,              AbortRequested): Edge(abort_requested,      {Failed}) for state in _OPEN},
}
_BELIEVED: Final[_Table] = {
    (MaskedInputCollection, RoundClosed):    Edge(close_masked_input,   {Unmasking, Failed}),
}
_AGREED: Final[_Table] = {
    (MaskedInputCollection, RoundClosed):    Edge(close_masked_input,   {ConsistencyCheck, Failed}),
    (ConsistencyCheck,      Consistency):    Edge(record_signature,     {ConsistencyCheck}),
    (ConsistencyCheck,      RoundClosed):    Edge(close_consistency,    {Unmasking, Failed}),
}
_DRAWN: Final[_Table] = {
    (AdvertiseKeys,         RoundClosed):    Edge(close_advertise_keys, {ChooseEdges, Failed}),
    (ChooseEdges,           Edges):          Edge(record_edges,         {ChooseEdges}),
    (ChooseEdges,           RoundClosed):    Edge(close_choose_edges,   {ShareKeys, Failed}),
    (ChooseEdges,           AbortRequested): Edge(abort_requested,      {Failed}),
}
TRANSITIONS: Final[Mapping[Profile, _Table]] = {
    Profile.HONEST_CURIOUS_SERVER:   {**_ROWS_OF_ALL, **_BELIEVED},
    Profile.MALICIOUS_SERVER:        {**_ROWS_OF_ALL, **_AGREED},
    Profile.MALICIOUS_SERVER_SPARSE: {**_ROWS_OF_ALL, **_AGREED, **_DRAWN},
}
# fmt: on


def start(  # noqa: PLR0913 - what a session of any profile depends on
    descriptor: SessionDescriptor,
    *,
    packed_bytes: int,
    invited: frozenset[str] | None = None,
    excluded: frozenset[str] = frozenset(),
    revoked: frozenset[int] = frozenset(),
    verified: VerifiedCredentials | None = None,
    read_noise: NoiseReader = no_noise,
) -> ServerState:
    """Return the state that collects adverts.

    Args:
        descriptor: The session, as offered to clients.
        packed_bytes: Exact size of one packed vector (`wire.packing.packed_size`).
        invited: Clients that may advertise; None for every authenticated client.
        excluded: Clients excluded because of earlier sessions of the task (PROTOCOL
            §5.7).
        revoked: Serials of the revocation list that the offer names.
        verified: Cache of credentials verified in earlier sessions.
        read_noise: Reads the noise block for a U2; without it a session with noise
            cannot pass its second round.

    Raises:
        RemoteProtocolError: BAD_CONFIG, if no such session can exist.
    """
    if verified is None:  # an empty one may also be the caller's
        verified = VerifiedCredentials()
    descriptor.validate(demanded_bits=server_demand)
    return AdvertiseKeys(
        Session(
            descriptor,
            packed_bytes,
            {Round.ADVERTISE_KEYS: {}},
            read_noise=read_noise,
        ),
        invited=invited,
        excluded=excluded,
        adverts={},
        keys=set(),
        enrolment=_enrolment_rules(descriptor, revoked, verified),
    )


def _enrolment_rules(
    descriptor: SessionDescriptor,
    revoked: frozenset[int],
    verified: VerifiedCredentials,
) -> Enrolment | None:
    """Return the rules of credentials; None in the profile without identities."""
    tail = descriptor.parameters.tail
    if isinstance(tail, HonestCuriousParameters):
        return None
    rules = enrolment_rules(tail.trust, descriptor.session_end, revoked)
    return Enrolment(rules, verified)


def step(state: ServerState, event: ServerEvent) -> ServerStep:
    """Apply one event to the session.

    Returns:
        The state after the event and the outputs.  Persist the event first, then carry
            them out.

    Raises:
        RemoteProtocolError: A client's message was refused; `state` is unchanged and
            the event must not be journalled.  Tell the client, continue without it.
        LocalProtocolError: The runner drove the machine wrongly; `state` is unchanged
            and the event must not be journalled.
    """
    if isinstance(event, RoundClosed) and event.round != state.ROUND:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"round {event.round.name} is closed already or not open yet"
        )
    what = event.envelope.kind if isinstance(event, Received) else type(event)
    # R5-1: this precedes the checks of round, membership and end, so that an
    # acknowledged message is acknowledged again for as long as there is a record.
    if isinstance(event, Received) and what in FROM_CLIENTS:
        if state.session.has_accepted(event.sender, event.envelope):
            return Step(state, is_repeat=True)
        if _is_closed(state, event.envelope.kind.ROUND):
            raise ErrorCode.DEADLINE.error(
                f"round {event.envelope.kind.ROUND.name} is closed, {what.__name__} "
                f"of {event.sender!r} came too late",
                kind=RemoteProtocolError,
                sender=event.sender,
                fix="Fetch the session's current update, which states the outcome.",
            )
    table = TRANSITIONS[state.session.descriptor.parameters.profile]
    edge = table.get((type(state), what))
    if edge is None:
        complaint = f"{what.__name__} is not expected in {type(state).__name__}"
        if isinstance(event, Received):
            raise ErrorCode.UNEXPECTED_MESSAGE.error(
                complaint,
                sender=event.sender,
                fix="Fetch the session's current update first.",
            )
        raise ErrorCode.LOCAL_MISUSE.error(complaint)
    result = edge.handler(state, event)
    if type(result.state) not in edge.may_enter:
        raise ErrorCode.INTERNAL.error(
            f"undeclared transition to {type(result.state).__name__}"
        )
    return result


def _is_closed(state: ServerState, which: Round) -> bool:
    # Summing is not a round of its own: it begins when Unmasking is closed.
    return which < state.ROUND or isinstance(state, Summing)


def fork(state: ServerState) -> ServerState:
    """Return an equal state that can advance while `state` stays unchanged.

    It copies what the open round collects.  Steps that may have to be discarded then
    leave the durable state unchanged.
    """
    grown: dict[str, Any]
    match state:
        case AdvertiseKeys():
            grown = {"adverts": dict(state.adverts), "keys": set(state.keys)}
        case ChooseEdges():
            grown = {"edges": dict(state.edges)}
        case ShareKeys():
            grown = {
                "bundles": dict(state.bundles),
                "roster_proofs": dict(state.roster_proofs),
            }
        case MaskedInputCollection():
            grown = {"uploads": dict(state.uploads)}
        case ConsistencyCheck():
            grown = {"signatures": dict(state.signatures)}
        case Unmasking():
            grown = {"answers": dict(state.answers)}
        case Summing() | Completed() | Failed():
            return state  # the state no longer grows
    return replace(state, session=state.session.fork(state.ROUND), **grown)


def is_over(state: ServerState) -> bool:
    """Whether the session has ended, with or without a sum."""
    return isinstance(state, Completed | Failed)


def pending_outputs(state: ServerState) -> tuple[ServerOutput, ...]:
    """Return what a restarted server must do again: only an unfinished sum."""
    return (state.job,) if isinstance(state, Summing) else ()


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a round.

    Attributes:
        round: Which one.
        answered: Clients whose message has arrived.
        expected: Clients that may still answer, including these; in AdvertiseKeys the
            largest roster.
        needed: Least number of clients for a successful end of the round.
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
            limits = state.session.descriptor.parameters
            expected = limits.max_clients
            if state.invited is not None:
                expected = min(expected, len(state.invited - state.excluded))
            counts = (len(state.adverts), expected, limits.min_clients)
        case ChooseEdges():
            counts = (len(state.edges), len(state.cohort.roster), _needed(state))
        case ShareKeys():
            counts = (len(state.bundles), len(state.expected), _needed(state))
        case MaskedInputCollection():
            counts = (len(state.uploads), len(state.share_holders), _needed(state))
        case ConsistencyCheck():
            quorum = state.session.descriptor.parameters.quorum
            counts = (len(state.signatures), len(state.survivors), quorum)
        case Unmasking():
            threshold = state.session.descriptor.parameters.threshold
            counts = (len(state.answers), len(state.survivors), threshold)
        case Summing():
            counts = (len(state.survivors),) * 3
        case Completed():
            counts = (state.outcome.survivors,) * 3
    return Progress(state.ROUND, *counts)


def _needed(state: RosterFixed) -> int:
    parameters = state.session.descriptor.parameters
    return max(parameters.threshold, parameters.min_survivors)


def spends_session(opened: ServerState) -> bool:
    """Whether clients may keep the charge for the session from this state on.

    In profiles that trust the server this begins with U3: before it no input can be
    unmasked.  In the others an input that was sent stays charged, however the session
    ends (PROTOCOL §5.6).
    """
    if opened.session.descriptor.parameters.profile.has_identities:
        return isinstance(opened, MaskedInputCollection)
    return isinstance(opened, Unmasking)


def is_round_full(state: ServerState) -> bool:
    """Whether all clients that can answer have answered, so that waiting is pointless."""
    if isinstance(state, Summing | Completed | Failed):
        return False
    now = progress(state)
    return now.answered >= now.expected


def update_for(
    state: ServerState, identity: str, after: Round | None = None
) -> Envelope | None:
    """Return what a client may fetch now; the same value on every call.

    Args:
        state: The session.
        identity: The caller, as authenticated by the transport.
        after: The round that it is in, if it states one.

    Returns:
        The message that opens the current round for this client, the session's outcome,
            or None if there is nothing for it yet.  A client that is no longer part of
            the session gets `Aborted` with SESSION_OVER.  Either outcome states the
            fate of this client's input.
    """
    match state:
        case AdvertiseKeys():
            return None
        case Completed() | Failed():
            return Envelope.of(ending_for(state.outcome, state.survivors, identity))
    index = state.cohort.index_of.get(identity)
    if index is None:
        return _excluded("the roster was fixed without this client")
    return _opening_message(state, index, after)


def ending_for(
    outcome: Released | Aborted, survivors: AbstractSet[str], identity: str
) -> Released | Aborted:
    """Return the outcome of a session for one client (PROTOCOL §5.6).

    Args:
        outcome: Of a `Completed` or `Failed` state.
        survivors: Of the same state: U3 by name, empty when it was never fixed.
        identity: The caller.
    """
    if identity in survivors:
        return replace(outcome, fate=Fate.INCLUDED)
    if isinstance(outcome, Released):
        return _session_over("the sum was released without this client's input")
    return outcome


def _opening_message(
    state: ChooseEdges
    | ShareKeys
    | MaskedInputCollection
    | ConsistencyCheck
    | Unmasking
    | Summing,
    index: int,
    after: Round | None,
) -> Envelope | None:
    """Return what opens the current round for a client of the roster."""
    match state:
        case ChooseEdges():
            return state.opening
        case ShareKeys():
            return _shared_among(state, index)
        case MaskedInputCollection():
            return _delivery(state, index)
        case ConsistencyCheck() | Unmasking() | Summing():
            return _unmask_request(state, index, after)


def _shared_among(state: ShareKeys, index: int) -> Envelope:
    """Return one client's neighbours, in the form of the profile."""
    cohort = state.cohort
    if index not in state.expected:  # R5.9-11
        return _excluded("this client chose no neighbours in time")
    if cohort.edges is not None:
        return Envelope.of(cohort.edges.published(index))
    if state.session.descriptor.parameters.graph is Graph.RING:
        return cohort.neighbourhood(index)
    return state.opening


def _excluded(reason: str) -> Envelope:
    return Envelope.of(_session_over(reason))


def _session_over(reason: str) -> Aborted:
    """Return the end that is sent to a client of a session that is over."""
    return Aborted(Fate.NOT_INCLUDED, ErrorCode.SESSION_OVER, reason)


def _delivery(state: MaskedInputCollection, index: int) -> Envelope:
    """Cut the bundles addressed to one client out of those of its dealers."""
    if index not in state.share_holders:
        return _excluded("this client's shares did not arrive in time")
    cohort, parts = state.cohort, []
    for dealer in cohort.graph.senders(index):
        if dealer in state.share_holders:
            place = cohort.graph.place(dealer, index) * BUNDLE_BYTES
            sealed = state.bundles[dealer].sealed
            parts.append(sealed[place : place + BUNDLE_BYTES])
    return Envelope.of(Delivery(state.bitmap, b"".join(parts)))


def _unmask_request(
    state: ConsistencyCheck | Unmasking | Summing, index: int, after: Round | None
) -> Envelope | None:
    """Return the update that asks a client for its shares, if one exists."""
    if index not in state.survivors:
        return _excluded("this client's masked input did not arrive in time")
    match state:
        case Summing():
            return None
        case Unmasking() if after is not None and after < Round.CONSISTENCY_CHECK:
            # R5-2: a client that was unavailable while others signed must know U3
            # before it can check their quorum.
            return state.survivors_shown
        case _:
            return state.opening
