"""Handlers of `client.TRANSITIONS`: the client's work in each round.

A handler runs its checks first.  A `RemoteProtocolError` that it raises ends the
session for this client with that code.
"""

from dataclasses import replace

import numpy as np

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.modular import word_dtype
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import ClientBitmap
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.protocol import context, share_bundles
from secagg.protocol.agreement import Signers, check_quorum, sign_bundles, sign_context
from secagg.protocol.client.checks import (
    RosterView,
    check_delivery,
    check_noise_suffices,
    check_ring_survivors,
    check_roster,
    check_survivors,
)
from secagg.protocol.client.states import (
    Accepted,
    Advertised,
    Agreement,
    Answered,
    ClientStep,
    Delivered,
    EdgesChosen,
    Idle,
    Masked,
    OfferFacts,
    ReadyForInput,
    ReadyForNoisedInput,
    ReadyForPlainInput,
    Shared,
    Signed,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import check_credential
from secagg.protocol.events import (
    InputBound,
    InputReady,
    MaskAndUpload,
    MaskJob,
    NoisyVector,
    PlainVector,
    Received,
    Send,
    SessionOffered,
    Step,
    input_digest,
)
from secagg.protocol.graphs.edge_selection import (
    check_published,
    draw_neighbours,
    sign_edges,
)
from secagg.protocol.membership import Member, signed_advert
from secagg.protocol.messages import (
    Advert,
    Bundles,
    Delivery,
    EdgesPublished,
    Envelope,
    Quorum,
    Shares,
    is_neighbourhood,
)
from secagg.protocol.noise_terms import noise_terms
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import HonestCuriousParameters

# --- AdvertiseKeys ------------------------------------------------------------------


def advertise(state: Idle, event: SessionOffered, policy: ClientPolicy) -> ClientStep:
    """Check the offer, derive all secrets, advertise (PROTOCOL §5.0, §5.1)."""
    # PROTOCOL §5.0: check every field against the client's own limits, before any key.
    descriptor = event.descriptor.validate()
    parameters = descriptor.parameters
    # R5.0-1: sid covers the aggregator's name.  A session that another server opened
    # and this one relays gives keys that differ from those of its own clients.
    if descriptor.aggregator != event.aggregator:
        raise ErrorCode.UNAUTHENTICATED.error(
            f"{event.aggregator!r} offers a session of {descriptor.aggregator!r}",
            fix="Tell the operator that this aggregator relays another's session.",
        )
    # The order is that of PROTOCOL §5.0, in which the shell has checked the number.
    descriptor.check_clock(event.now)
    policy.check(descriptor)
    facts = replace(
        session_facts(descriptor, event.identity), read_noise=state.read_noise
    )
    encryption_keys, mask_keys, self_mask_seed = _own_secrets(facts, event.seed)
    advert = Advert(
        identity=event.identity,
        encryption_key=encryption_keys.public_bytes,
        masking_key=mask_keys.public_bytes,
        self_mask_commitment=context.self_mask_commitment(
            facts.session_id, event.identity, self_mask_seed, parameters.suite
        ),
        noise_commitments=tuple(
            context.noise_commitment(
                facts.session_id, event.identity, layer, seed.reveal(), parameters.suite
            )
            for layer, seed in enumerate(_layer_seeds(facts, event.seed))
        ),
    )
    member = _member_of(event)
    if member is not None:
        advert = signed_advert(advert, member, ctx0=facts.ctx0, suite=parameters.suite)
    return Step(
        Advertised(facts, event.seed, advert, member), (Send(Envelope.of(advert)),)
    )


def _member_of(event: SessionOffered) -> Member | None:
    """Return this client's membership, if the profile needs one (R5.0-3)."""
    descriptor, member = event.descriptor, event.membership
    parameters = descriptor.parameters
    if isinstance(parameters.tail, HonestCuriousParameters):
        return None
    if member is None:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"profile {parameters.profile.label} needs a credential",
            fix="Enrol it: `secagg pki identity new`, and give "
            "enrolment=ClientEnrolment(...).",
            at_command="Enrol it: `secagg pki identity new`, and set [enrolment] in "
            "its settings.",
        )
    rules = member.rules(parameters.tail.trust, descriptor.session_end)
    check_credential(
        member.credential, rules, identity=event.identity, verified=member.verified
    )
    return Member(member.key, member.credential, rules, member.verified)


def session_facts(descriptor: SessionDescriptor, identity: str) -> OfferFacts:
    """Return the public facts of a session, known from its offer."""
    return OfferFacts(
        parameters=descriptor.parameters,
        session_id=descriptor.session_id,
        ctx0=context.session_context(descriptor),
        identity=identity,
    )


def _own_secrets(
    facts: OfferFacts, seed: SecretBytes
) -> tuple[KeyPair, KeyPair, SecretBytes]:
    """Derive (c^SK, s^SK, b_u) of this session."""
    return (
        KeyPair.generate(_stream(facts, seed, b"encryption key")),
        KeyPair.generate(_stream(facts, seed, b"masking key")),
        SecretBytes(_stream(facts, seed, b"self-mask seed").token(32)),
    )


def _layer_seeds(facts: OfferFacts, seed: SecretBytes) -> tuple[SecretBytes, ...]:
    """Derive g_i of each noise layer; independent, because some may be revealed."""
    return tuple(
        SecretBytes(_stream(facts, seed, b"noise layer %d" % layer).token(32))
        for layer in range(facts.parameters.noise_layers)
    )


def _stream(
    facts: OfferFacts, seed: SecretBytes, label: bytes, context: bytes = b""
) -> SeededEntropy:
    # The session id is part of the label: even a seed used twice by mistake would
    # give unrelated secrets in two sessions.
    return SeededEntropy(seed, label + b"/" + facts.session_id + context)


# --- the roster ---------------------------------------------------------------------


def _checked_roster(
    state: Advertised, event: Received, policy: ClientPolicy
) -> tuple[RosterView, Agreement | None]:
    """Check U1 before any work depends on it (PROTOCOL §5.2)."""
    facts = state.facts
    if policy.whole_roster and is_neighbourhood(event.envelope):
        raise ErrorCode.POLICY_VIOLATION.error(
            "this client reads whole rosters, but received a neighbourhood"
        )
    roster = check_roster(
        facts.parameters,
        event.envelope.data,
        state.advert,
        ctx0=facts.ctx0,
        member=state.member,
    )
    if state.member is None:
        return roster, None
    signers = Signers.of(tuple(roster.adverts.values()))
    return roster, Agreement(state.member.key, signers, roster.ctx1)


# --- ChooseEdges --------------------------------------------------------------------


def choose_edges(
    state: Advertised, event: Received, policy: ClientPolicy
) -> ClientStep:
    """Check the roster and draw neighbours (PROTOCOL §5.9)."""
    facts = state.facts
    parameters = facts.parameters
    roster, agreement = _checked_roster(state, event, policy)
    if agreement is None:
        raise ErrorCode.INTERNAL.error("a profile with this round has no signatures")
    drawn = draw_neighbours(
        roster.size,
        roster.index,
        parameters.degree,
        # R5.9-1: draw after the roster is fixed, and differently for another roster.
        _stream(facts, state.seed, b"edges", roster.ctx1),
    )
    edges = sign_edges(
        agreement.key,
        drawn,
        ctx1=roster.ctx1,
        index=roster.index,
        suite=parameters.suite,
    )
    return Step(
        EdgesChosen(
            facts,
            _with_accepted({}, event),
            seed=state.seed,
            roster=roster,
            edges=edges,
            agreement=agreement,
        ),
        (Send(Envelope.of(edges)),),
    )


def share_along_edges(
    state: EdgesChosen, event: Received, _: ClientPolicy
) -> ClientStep:
    """Check the drawn edges and deal shares (PROTOCOL §5.9)."""
    shown = EdgesPublished.decode(event.envelope.data)
    graph = check_published(
        state.facts.parameters,
        shown,
        size=state.roster.size,
        index=state.roster.index,
        own=state.edges,
        signers=state.agreement.signers,
        ctx1=state.roster.ctx1,
    )
    return _deal_shares(
        state.facts,
        _with_accepted(state.accepted, event),
        seed=state.seed,
        roster=state.roster.along(graph, shown.edge_root),
        agreement=state.agreement,
    )


# --- ShareKeys ----------------------------------------------------------------------


def share_keys(state: Advertised, event: Received, policy: ClientPolicy) -> ClientStep:
    """Check the roster and deal shares (PROTOCOL §5.2)."""
    roster, agreement = _checked_roster(state, event, policy)
    return _deal_shares(
        state.facts,
        _with_accepted({}, event),
        seed=state.seed,
        roster=roster,
        agreement=agreement,
    )


def _deal_shares(
    facts: OfferFacts,
    accepted: Accepted,
    *,
    seed: SecretBytes,
    roster: RosterView,
    agreement: Agreement | None,
) -> ClientStep:
    """Deal the client's shares, and return its step with their bundles."""
    encryption_keys, mask_keys, self_mask_seed = _own_secrets(facts, seed)
    dealing = share_bundles.deal(
        facts.parameters,
        session_id=facts.session_id,
        roster=roster,
        encryption_keys=encryption_keys,
        mask_private_key=mask_keys.private_bytes,
        self_mask_seed=self_mask_seed,
        # R7.1-2: one roster, one polynomial.  Shares that a client dealt on two rosters
        # of one session must not add up to t.
        polynomials=_stream(facts, seed, b"polynomials", roster.ctx1),
    )
    signature = b""
    if agreement is not None:
        signature = sign_bundles(
            agreement.key,
            dealing.bundles,
            ctx1=roster.ctx1,
            index=roster.index,
            suite=facts.parameters.suite,
        )
    bundles = Bundles(dealing.bundles, signature)
    return Step(
        Shared(
            facts=facts,
            accepted=accepted,
            roster=roster.without_adverts(),
            channels=dealing.channels,
            own_shares=dealing.own_shares,
            mask_private_key=mask_keys.private_bytes,
            self_mask_seed=self_mask_seed,
            layer_seeds=_layer_seeds(facts, seed),
            bundles=bundles,
            agreement=agreement,
        ),
        (Send(Envelope.of(bundles)),),
    )


# --- MaskedInputCollection ----------------------------------------------------------


def open_bundles(state: Shared, event: Received, _: ClientPolicy) -> ClientStep:
    """Check U2 and open the bundles of other clients (PROTOCOL §5.3)."""
    facts, roster = state.facts, state.roster
    delivery = Delivery.decode(event.envelope.data)
    share_holders = check_delivery(
        facts.parameters,
        roster_size=roster.size,
        graph=roster.graph,
        index=roster.index,
        delivery=delivery,
    )
    # [Bon17] opens bundles in Unmasking.  Here a client that could not unmask later
    # must leave before its input is included (PROTOCOL §5.3).
    held = share_bundles.collect(
        facts.parameters,
        session_id=facts.session_id,
        roster=roster,
        share_holders=share_holders,
        channels=state.channels,
        own_shares=state.own_shares,
        bundles=delivery.bundles,
    )
    noise = noise_terms(
        facts.parameters, len(share_holders), facts.read_noise, clients=roster.size
    )
    ctx2 = context.mask_context(
        roster.ctx1,
        delivery.share_holders,
        facts.parameters.suite,
        edge_root=roster.edge_root,  # R5.9-12
        noise_context=noise.context,
    )
    job = MaskJob(
        session_id=facts.session_id,
        mask_context=ctx2,
        modulus=facts.parameters.modulus,
        suite=facts.parameters.suite,
        index=roster.index,
        self_mask_seed=state.self_mask_seed,
        mask_private_key=state.mask_private_key,
        peers=tuple(
            (peer, roster.adverts[peer].masking_key)
            for peer in roster.graph.mask_peers(roster.index)
            if peer in share_holders
        ),
    )
    # Rule 6: the parameters choose the state, and the state chooses the rows.
    ready = ReadyForNoisedInput if facts.parameters.noise_block else ReadyForPlainInput
    return Step(
        ready(
            facts,
            _with_accepted(state.accepted, event),
            Delivered(
                roster_size=roster.size,
                graph=roster.graph,
                index=roster.index,
                share_holders=share_holders,
                noise=noise,
                ctx2=ctx2,
                held=held,
                layer_seeds=state.layer_seeds,
                job=job,
                agreement=state.agreement,
            ),
        ),
        complaints_of(held),
    )


def complaints_of(held: share_bundles.HeldShares) -> tuple[Send, ...]:
    """Return the complaints about bundles that cannot be used (R5.3-11)."""
    return tuple(Send(Envelope.of(complaint)) for complaint in held.complaints)


def mask_plain(
    state: ReadyForPlainInput, event: InputReady, _: ClientPolicy
) -> ClientStep:
    """Bind an input of a task without noise (PROTOCOL §5.3)."""
    _check_vector(state.facts.parameters, event.vector)
    return _bind(state, event.vector)


def mask_noised(
    state: ReadyForNoisedInput, event: InputReady, _: ClientPolicy
) -> ClientStep:
    """Bind an input that carries its noise share (R5.3-1)."""
    vector = event.vector
    _check_vector(state.facts.parameters, vector)
    if not isinstance(vector, NoisyVector):
        raise ErrorCode.INTERNAL.error("the row admits no other class")
    # The remaining checks concern which session the noise is for.
    if vector.noise_block != state.facts.parameters.noise_block:
        raise ErrorCode.LOCAL_MISUSE.error(
            "the noise of the vector belongs to another task"
        )
    if vector.mask_context != state.delivered.ctx2:
        raise ErrorCode.LOCAL_MISUSE.error(
            "the noise of the vector belongs to another session, or to another set "
            "of clients of this one",
            fix="Encode the vector with the noise secrets of this session.",
        )
    return _bind(state, vector)


def _bind(state: ReadyForInput, vector: PlainVector | NoisyVector) -> ClientStep:
    masked = _masked(state, input_digest(vector))
    return Step(masked, (MaskAndUpload(vector, state.delivered.job),))


def _masked(state: ReadyForInput, digest: bytes) -> Masked:
    return Masked(state.facts, state.accepted, state.delivered, bound_input=digest)


def _check_vector(
    parameters: ProtocolParameters, vector: PlainVector | NoisyVector
) -> None:
    """Refuse an input of another shape, type or range."""
    residues = vector.residues
    expected = word_dtype(parameters.modulus)
    if residues.shape != (parameters.dimension,) or residues.dtype != expected:
        raise ErrorCode.BAD_INPUT.error(
            f"the input must be {expected} of shape ({parameters.dimension},), "
            f"not {residues.dtype} of shape {residues.shape}",
            kind=LocalProtocolError,
        )
    if int(np.max(residues)) >= parameters.modulus:
        raise ErrorCode.BAD_INPUT.error(
            f"the input has entries outside [0, {parameters.modulus})",
            kind=LocalProtocolError,
        )


def rebind(state: ReadyForInput, event: InputBound, _: ClientPolicy) -> ClientStep:
    """Repeat, on replay, the binding that the journal records."""
    return Step(_masked(state, event.digest))


def remask(state: Masked, event: InputReady, _: ClientPolicy) -> ClientStep:
    """Mask the bound input again after a restart; refuse any other."""
    # R5.3-2: two inputs under one mask would reveal their difference.
    if input_digest(event.vector) != state.bound_input:
        raise ErrorCode.LOCAL_MISUSE.error(
            "another input is already bound to this session",
            fix="Supply the same input again, or wait for the next session.",
        )
    outputs = (MaskAndUpload(event.vector, state.delivered.job),)
    return Step(state, outputs, is_repeat=True)


# --- ConsistencyCheck ---------------------------------------------------------------


def _checked_survivors(state: Masked, event: Received) -> ClientBitmap:
    """Check U3 before this client signs or answers it (PROTOCOL §5.4)."""
    delivered = state.delivered
    survivors = check_survivors(
        state.facts.parameters,
        roster_size=delivered.roster_size,
        index=delivered.index,
        share_holders=delivered.share_holders,
        bitmap=event.envelope.data,
    )
    check_noise_suffices(delivered.noise, len(delivered.share_holders), len(survivors))
    check_ring_survivors(state.facts.parameters, delivered.graph, survivors)
    return survivors


def agree(state: Masked, event: Received, _: ClientPolicy) -> ClientStep:
    """Check U3 and sign it, once (R5.4-6)."""
    survivors = _checked_survivors(state, event)
    delivered, suite = state.delivered, state.facts.parameters.suite
    if delivered.agreement is None:
        raise ErrorCode.INTERNAL.error("a profile with this round has no signatures")
    bitmap = event.envelope.data
    ctx3 = context.unmask_context(delivered.ctx2, bitmap, suite)
    signed = sign_context(delivered.agreement.key, ctx3, suite)
    return Step(
        Signed(
            state.facts,
            _with_accepted(state.accepted, event),
            survivors=bitmap,
            members=survivors,
            ctx1=delivered.agreement.ctx1,
            ctx3=ctx3,
            signature=signed.signature,
            share_holders=len(delivered.share_holders),
            held=delivered.held,
            layer_seeds=delivered.layer_seeds,
            noise=delivered.noise,
            signers=delivered.agreement.signers,
        ),
        (Send(Envelope.of(signed)),),
    )


# --- Unmasking ----------------------------------------------------------------------


def reveal(state: Masked, event: Received, _: ClientPolicy) -> ClientStep:
    """Check U3 and reveal one share for each dealer (PROTOCOL §5.5)."""
    survivors = _checked_survivors(state, event)
    return _answer_unmasking(
        state,
        event,
        state.delivered,
        survivors,
        bitmap=event.envelope.data,
        share_holders=len(state.delivered.share_holders),
    )


def reveal_agreed(state: Signed, event: Received, _: ClientPolicy) -> ClientStep:
    """Reveal one share for each dealer if a quorum is shown (§5.5, R5.3-13)."""
    parameters = state.facts.parameters
    check_quorum(
        Quorum.decode(event.envelope.data),
        needed=parameters.quorum,
        survivors=state.members,
        signers=state.signers,
        ctx1=state.ctx1,
        ctx3=state.ctx3,
        suite=parameters.suite,
    )
    return _answer_unmasking(
        state,
        event,
        state,
        state.members,
        bitmap=state.survivors,
        share_holders=state.share_holders,
    )


def _answer_unmasking(  # noqa: PLR0913 - the sets of a session, each named
    state: Masked | Signed,
    event: Received,
    holding: Delivered | Signed,
    survivors: ClientBitmap,
    *,
    bitmap: bytes,
    share_holders: int,
) -> ClientStep:
    """Answer with one share for each dealer, and layers of noise (R5.5-9)."""
    # The number of dropouts decides, and this client has counted them itself.
    layers = holding.noise.revealed(share_holders - len(survivors))
    answer = holding.held.answer(survivors) + b"".join(
        holding.layer_seeds[layer].reveal() for layer in layers
    )
    return Step(
        Answered(
            state.facts,
            _with_accepted(state.accepted, event),
            share_holders=share_holders,
            survivors=bitmap,
            answer=answer,
        ),
        (Send(Envelope.of(Shares(answer))),),
    )


# --- repeats ------------------------------------------------------------------------


def _with_accepted(accepted: Accepted, event: Received) -> Accepted:
    """Return the accepted messages with one more."""
    return {**accepted, event.envelope.kind.ROUND: event.envelope.digest}


def repeat(
    state: EdgesChosen
    | Shared
    | ReadyForPlainInput
    | ReadyForNoisedInput
    | Masked
    | Signed
    | Answered,
    event: Received,
    _: ClientPolicy,
) -> ClientStep:
    """Accept a repeated message as a no-op, refuse a contradiction (R5-8).

    This precedes all decoding; for U3 it is R5.4-5.
    """
    kind = event.envelope.kind
    if event.envelope.digest != state.accepted[kind.ROUND]:
        raise ErrorCode.EQUIVOCATION.error(
            f"the server sent a second, different message ({kind.__name__})"
        )
    return Step(state, is_repeat=True)
