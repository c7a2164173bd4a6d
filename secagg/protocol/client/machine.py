"""The client's side of one session: a pure function of state and event.

Rule 1: `TRANSITIONS` is the protocol.  A handler may leave the session; it may not
        enter a state that its row does not name.
Rule 2: a state holds only what its round needs, so that nothing else can leak.
Rule 3: no clock, no entropy, no I/O.  All secrets derive from the seed of
        `SessionOffered`, so replaying the journal gives the same bytes.
Rule 4: for every peer the client reveals a share of the self-mask seed or a share of
        the mask key, never both.  One bitmap decides, once (PROTOCOL §5.5).
Rule 5: a repeated message is a no-op.  A contradicting or unexpected one ends the
        session for this client and erases its keys.
Rule 6: a session whose parameters hold a noise block has no row that takes a vector
        without noise.

Rounds and client sets (U1 to U5) are named as in [Bon17].

The handlers of the last rows, the outcomes of a session, are here too.  They decide
whether the client's input counts as summed.  `secagg.protocol.refund` decides what an
outcome costs.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import noise_terms
from secagg.protocol.client.handlers import (
    advertise,
    agree,
    choose_edges,
    complaints_of,
    mask_noised,
    mask_plain,
    open_bundles,
    rebind,
    remask,
    repeat,
    reveal,
    reveal_agreed,
    session_facts,
    share_along_edges,
    share_keys,
)
from secagg.protocol.client.states import (
    Advertised,
    Answered,
    ClientState,
    ClientStep,
    Completed,
    EdgesChosen,
    Failed,
    Idle,
    Masked,
    ReadyForInput,
    ReadyForNoisedInput,
    ReadyForPlainInput,
    Shared,
    Signed,
)
from secagg.protocol.context import view_of
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    AbortRequested,
    ClientEvent,
    ClientOutput,
    Finish,
    InputBound,
    InputReady,
    NoisyVector,
    PlainVector,
    Received,
    Send,
    SessionOffered,
    Step,
)
from secagg.protocol.messages import (
    KINDS,
    Aborted,
    Consistency,
    Delivery,
    EdgesPublished,
    Envelope,
    Fate,
    Message,
    Quorum,
    Released,
    Roster,
    Round,
    Shares,
    Survivors,
)
from secagg.protocol.noise_terms import NoiseReader, NoiseSecrets, no_noise
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.protocol.refund import ChargeOutcome, ReachedStage, charge_after


def complete(
    state: Masked | Signed | Answered, event: Received, _: ClientPolicy
) -> ClientStep:
    """Accept a release that is consistent with this client's actions.

    Only states with a bound input have this row (R5.6-1).
    """
    released = _read_release(state, event)
    charge = _charge_of(state, released.fate)
    return Step(Completed(released, charge), (Finish(None, "a sum was released"),))


def end_without_sum(state: Masked, event: Received, _: ClientPolicy) -> ClientStep:
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
                f"has vouched for {vouched}"
            )
        return released
    parameters, most = state.facts.parameters, len(state.delivered.share_holders)
    least = max(parameters.threshold, parameters.min_survivors)
    if not least <= released.survivors <= most:
        raise ErrorCode.U3_INVALID.error(
            f"the sum is stated to have {released.survivors} inputs, a sum has "
            f"between {least} and {most}"
        )
    return released


def fail(state: ClientState, event: Received, _: ClientPolicy) -> ClientStep:
    """Record that the server ended the session without a sum."""
    aborted = Aborted.decode(event.envelope.data)
    if isinstance(state, Signed | Answered):
        _check_fate(aborted.fate)
    return leave(state, aborted.code, aborted.reason, fate=aborted.fate)


def abort_requested(
    state: ClientState, event: AbortRequested, _: ClientPolicy
) -> ClientStep:
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
        reason: One sentence for the client's operator.
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
            "a U3 that names it, or a sum: the server lies, or has lost its state"
        )


def _charge_of(state: ClientState, fate: Fate | None) -> ChargeOutcome:
    """Return what becomes of the charge of a session that ends now."""
    match state:
        case Masked():
            profile, standing = state.facts.parameters.profile, ReachedStage.MASKED
        case Signed():
            profile, standing = state.facts.parameters.profile, ReachedStage.SIGNED
        case Answered():
            profile, standing = state.facts.parameters.profile, ReachedStage.ANSWERED
        case _:
            return ChargeOutcome.NEVER  # no input was bound: the same in every profile
    return charge_after(profile, standing, fate)


def ignore(state: Completed | Failed, _: ClientEvent, __: ClientPolicy) -> ClientStep:
    """Ignore an event that arrives after the end."""
    return Step(state, is_repeat=True)


class Edge(NamedTuple):
    """One row of the protocol: the handler of an event, and the states it may enter."""

    handler: Callable[[Any, Any, ClientPolicy], ClientStep]
    may_enter: AbstractSet[type[ClientState]]


_What = Message | ClientEvent | PlainVector | NoisyVector
_Plain, _Noised = ReadyForPlainInput, ReadyForNoisedInput
_LIVE: Final = (Advertised, Shared, _Plain, _Noised, Masked, Signed, Answered)
_ENDED: Final = (Completed, Failed)
_Table = Mapping[tuple[type[ClientState], type[_What]], Edge]

# fmt: off
_ROWS_OF_ALL: Final[_Table] = {
    # state       message, vector or event  handler       may enter (or Failed)
    (Idle,        SessionOffered):     Edge(advertise,    {Advertised}),
    (Advertised,  Roster):             Edge(share_keys,   {Shared}),
    (Shared,      Delivery):           Edge(open_bundles, {_Plain, _Noised}),
    (_Plain,      PlainVector):        Edge(mask_plain,   {Masked}),
    (_Plain,      InputBound):         Edge(rebind,       {Masked}),
    (_Noised,     NoisyVector):       Edge(mask_noised,  {Masked}),
    (_Noised,     InputBound):         Edge(rebind,       {Masked}),
    (Masked,      PlainVector):        Edge(remask,       {Masked}),
    (Masked,      NoisyVector):       Edge(remask,       {Masked}),
    # a repeat of anything already accepted is a no-op
    (Shared,      Roster):             Edge(repeat,       {Shared}),
    (_Plain,      Roster):             Edge(repeat,       {_Plain}),
    (_Plain,      Delivery):           Edge(repeat,       {_Plain}),
    (_Noised,     Roster):             Edge(repeat,       {_Noised}),
    (_Noised,     Delivery):           Edge(repeat,       {_Noised}),
    (Masked,      Roster):             Edge(repeat,       {Masked}),
    (Masked,      Delivery):           Edge(repeat,       {Masked}),
    (Answered,    Roster):             Edge(repeat,       {Answered}),
    (Answered,    Delivery):           Edge(repeat,       {Answered}),
    (Answered,    Survivors):          Edge(repeat,       {Answered}),
    # the end
    (Masked,      Released):           Edge(complete,     {Completed}),
    (Answered,    Released):           Edge(complete,     {Completed}),
    **{(state,    Aborted):            Edge(fail,         {Failed}) for state in _LIVE},
    **{(state,    AbortRequested):     Edge(abort_requested, {Failed}) for state in _LIVE},
    **{(state,    what):               Edge(ignore,       {state})
       for state in _ENDED for what in (*KINDS.values(), AbortRequested)},
}
# If the server is trusted to show one U3 to all clients, U3 is answered at once.
_BELIEVING: Final[_Table] = {
    (Masked,      Survivors):          Edge(reveal,       {Answered}),
}
# Otherwise U3 is signed first, and answered when a quorum has signed the same.
_AGREEING: Final[_Table] = {
    (Masked,      Survivors):          Edge(agree,        {Signed}),
    (Masked,      Released):           Edge(end_without_sum,         set()),
    (Signed,      Quorum):             Edge(reveal_agreed, {Answered}),
    (Signed,      Roster):             Edge(repeat,       {Signed}),
    (Signed,      Delivery):           Edge(repeat,       {Signed}),
    (Signed,      Survivors):          Edge(repeat,       {Signed}),
    (Answered,    Quorum):             Edge(repeat,       {Answered}),
    (Signed,      Released):           Edge(complete,     {Completed}),
}
# If clients draw their neighbours, the roster holds the clients to draw from.
_DRAWING: Final[_Table] = {
    (Advertised,  Roster):             Edge(choose_edges, {EdgesChosen}),
    (EdgesChosen, Roster):             Edge(repeat,       {EdgesChosen}),
    (EdgesChosen, EdgesPublished):     Edge(share_along_edges, {Shared}),
    (EdgesChosen, Aborted):            Edge(fail,         {Failed}),
    (EdgesChosen, AbortRequested):     Edge(abort_requested, {Failed}),
    **{(state,    EdgesPublished):     Edge(repeat,       {state})
       for state in (Shared, _Plain, _Noised, Masked, Signed, Answered)},
}
TRANSITIONS: Final[Mapping[Profile, _Table]] = {
    Profile.HONEST_CURIOUS_SERVER:     {**_ROWS_OF_ALL, **_BELIEVING},
    Profile.MALICIOUS_SERVER:          {**_ROWS_OF_ALL, **_AGREEING},
    Profile.MALICIOUS_SERVER_SPARSE:   {**_ROWS_OF_ALL, **_AGREEING, **_DRAWING},
}
# fmt: on


def start(read_noise: NoiseReader = no_noise) -> ClientState:
    """Return the state before any session.

    Args:
        read_noise: Reads the noise block of a session for its U2. Without it the client
            takes part in no session with noise.
    """
    return Idle(read_noise)


def step(state: ClientState, event: ClientEvent, *, policy: ClientPolicy) -> ClientStep:
    """Apply one event to the client's session.

    A violation by the server is not raised: the client leaves the session, and the
    returned state is `Failed` with the code to report.

    Args:
        state: The state before the event.
        event: The event to apply.
        policy: The client's limits; compared when a session is offered.

    Returns:
        The state after the event and the outputs.  Persist the event first, then carry
            them out.

    Raises:
        LocalProtocolError: The caller is at fault (a second, different input; a vector
            without noise where noise is required); `state` is unchanged.
    """
    what = _event_key(event)
    edge = TRANSITIONS[_profile_of(state)].get((type(state), what))
    if edge is None:
        complaint = f"{what.__name__} is not expected in {type(state).__name__}"
        if isinstance(event, Received):
            # R5-9; a quorum before this client has signed is R5.5-10.
            return leave(state, ErrorCode.UNEXPECTED_MESSAGE, complaint)
        raise ErrorCode.LOCAL_MISUSE.error(complaint)
    try:
        result = edge.handler(state, event, policy)
    except RemoteProtocolError as error:
        return leave(state, error.code, str(error), next_step=error.next_step)
    if type(result.state) not in edge.may_enter | {Failed}:
        raise ErrorCode.INTERNAL.error(
            f"undeclared transition to {type(result.state).__name__}"
        )
    return result


def _profile_of(state: ClientState) -> Profile:
    """Return the profile whose table applies; the first and last states have none."""
    if isinstance(state, Idle | Completed | Failed):
        return Profile.HONEST_CURIOUS_SERVER
    return state.facts.parameters.profile


def _event_key(event: ClientEvent) -> type[_What]:
    """Return the table's key of an event: for a message and a vector, its class."""
    match event:
        case Received():
            return event.envelope.kind
        case InputReady():
            return type(event.vector)
        case _:
            return type(event)


def pending_outputs(state: ClientState) -> tuple[ClientOutput, ...]:
    """Return what a restarted client must send again: the same bytes as before.

    In `Masked` this needs the input, which is not stored: supply it again as an event.
    """
    said: Message
    match state:
        case ReadyForInput():
            # Also in `Masked`: the round may still be open, and repeats do no harm.
            return complaints_of(state.delivered.held)
        case Advertised():
            said = state.advert
        case EdgesChosen():
            said = state.edges
        case Shared():
            said = state.bundles
        case Signed():
            said = Consistency(state.signature)
        case Answered():
            said = Shares(state.answer)
        case _:
            return ()
    return (Send(Envelope.of(said)),)


def noise_secrets(state: ReadyForInput, seed: SecretBytes) -> NoiseSecrets:
    """Return the secrets from which this client draws the noise of its input.

    Args:
        state: A state that awaits an input, for the first time or again.
        seed: Of `SessionOffered`.
    """
    delivered = state.delivered
    return noise_terms.noise_secrets(
        seed,
        delivered.layer_seeds,
        share_holders=len(delivered.share_holders),
        context=delivered.ctx2,
        suite=state.facts.parameters.suite,
    )


def view(state: ReadyForInput) -> bytes:
    """Return what a client shows before an input is bound, 32 bytes (R5.3-14)."""
    return view_of(state.delivered.ctx2, state.facts.parameters.suite)


def resume_answered(  # noqa: PLR0913 - the fields of one state
    descriptor: SessionDescriptor,
    identity: str,
    *,
    accepted: Mapping[Round, bytes],
    share_holders: int,
    survivors: bytes,
    answer: bytes,
) -> Answered:
    """Return the state of a client that has answered, from the data it still keeps.

    Once the answer is durable, these values replace the session's record on the disk:
    public facts, and bytes that were sent.  No seed and no key is needed to send the
    answer again and to check the session's outcome.

    Args:
        descriptor: The offer.
        identity: The client's own name.
        accepted: `Answered.accepted`.
        share_holders: `Answered.share_holders`.
        survivors: `Answered.survivors`.
        answer: `Answered.answer`.
    """
    facts = session_facts(descriptor, identity)
    return Answered(
        facts, accepted, share_holders=share_holders, survivors=survivors, answer=answer
    )


def is_over(state: ClientState) -> bool:
    """Whether the session has ended for this client."""
    return isinstance(state, _ENDED)
