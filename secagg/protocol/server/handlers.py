"""The server's work until U3 is fixed: handlers of `server.TRANSITIONS`.

A handler checks first and writes last.  It raises `RemoteProtocolError` for a message
that it refuses, and then leaves the state as before.

`secagg.protocol.server.unmasking` has the handlers behind U3,
`secagg.protocol.server.states` those of the session's end.
"""

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Final

from secagg.crypto.key_agreement import BadPublicKeyError, check_public_key
from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode
from secagg.protocol import context
from secagg.protocol.agreement import Signers, check_bundle_signature
from secagg.protocol.events import Received, RoundClosed, Step
from secagg.protocol.graphs.bounds import server_demand
from secagg.protocol.graphs.edge_selection import (
    EdgeTrees,
    check_edges,
    check_edges_signature,
)
from secagg.protocol.graphs.neighbours import SharingGraph, sharing_graph
from secagg.protocol.graphs.ring_safety import graph_risk
from secagg.protocol.membership import check_adverts, check_form
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Advert,
    Bundles,
    Complaint,
    Edges,
    Envelope,
    Roster,
    RosterFrame,
    RosterProof,
    Round,
    Survivors,
    Upload,
)
from secagg.protocol.noise_terms import noise_terms
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.rounds import DropReason
from secagg.protocol.server.states import (
    AdvertiseKeys,
    ChooseEdges,
    ConsistencyCheck,
    FixedCohort,
    MaskedInputCollection,
    RosterFixed,
    ServerStep,
    ShareKeys,
    Unmasking,
    abort,
    dropped_for,
    end_too_few,
)

_SEED_BYTES: Final = 32


# --- AdvertiseKeys ------------------------------------------------------------------


def record_advert(state: AdvertiseKeys, event: Received) -> ServerStep:
    """Record one advert (PROTOCOL §5.1)."""
    sender = event.sender
    if not state.is_invited(sender):  # R5.1-1
        raise ErrorCode.NOT_INVITED.error(
            f"{sender!r} is not invited to this session", sender=sender
        )
    advert = Advert.decode(event.envelope.data)
    layers = state.session.descriptor.parameters.noise_layers
    if len(advert.noise_commitments) != layers:  # R5.1-2
        raise ErrorCode.BAD_ENCODING.error(
            f"{sender!r} commits to {len(advert.noise_commitments)} layers of noise, "
            f"the session has {layers}",
            sender=sender,
        )
    if advert.identity != sender:  # R5.1-3
        raise ErrorCode.UNAUTHENTICATED.error(
            f"{sender!r} sent an advert of another identity", sender=sender
        )
    # R5.1-4
    if len(state.adverts) >= state.session.descriptor.parameters.max_clients:
        raise ErrorCode.ROSTER_TOO_LARGE.error(
            f"the session is full with {len(state.adverts)} clients",
            sender=sender,
            fix="Wait for the next session of the task.",
        )
    descriptor = state.session.descriptor
    parameters = descriptor.parameters
    check_form(advert, parameters.profile)  # R5.1-5
    keys = advert.public_keys
    for key in (advert.encryption_key, advert.masking_key):  # R5.1-6
        try:
            check_public_key(key)
        except BadPublicKeyError as error:
            raise ErrorCode.BAD_PUBLIC_KEY.error(
                f"a public key of {sender!r} is invalid: {error}", sender=sender
            ) from None
    # R5.1-7
    if len(set(keys)) < len(keys) or not state.keys.isdisjoint(keys):
        raise ErrorCode.DUPLICATE_KEY.error(
            f"a public key of {sender!r} occurs twice in the session", sender=sender
        )
    if state.enrolment is not None:  # R5.1-8
        check_adverts(
            [advert],
            state.enrolment.rules,
            ctx0=context.session_context(descriptor),
            suite=parameters.suite,
            verified=state.enrolment.verified,
        )
    state.adverts[sender] = advert  # last, after every check has passed
    state.keys.update(keys)
    state.session.accept(sender, event.envelope)
    return Step(state)


def close_advertise_keys(state: AdvertiseKeys, event: RoundClosed) -> ServerStep:
    """Fix U1 and publish the roster (PROTOCOL §5.1)."""
    # PROTOCOL §5.1: continue only if |U1| has the size that the offer states.
    descriptor = state.session.descriptor
    parameters = descriptor.parameters
    if len(state.adverts) < parameters.min_clients:
        return end_too_few(
            state.session,
            len(state.adverts),
            parameters.min_clients,
            "advertised keys",
            ErrorCode.ROSTER_TOO_SMALL,
        )
    is_ring = parameters.graph is Graph.RING
    if is_ring and len(event.graph_seed) != _SEED_BYTES:
        raise ErrorCode.LOCAL_MISUSE.error(
            "closing AdvertiseKeys on a ring takes a 32-byte seed"
        )
    roster = Roster.of(state.adverts.values(), event.graph_seed if is_ring else b"")
    opening = Envelope.of(roster)
    frame = RosterFrame.decode(opening.data)
    ctx0 = context.session_context(descriptor)
    tree = context.roster_tree(ctx0, frame, parameters.suite)
    cohort = FixedCohort(
        signers=Signers.of(roster.adverts) if state.enrolment is not None else None,
        roster=roster,
        frame=frame,
        tree=tree,
        index_of={advert.identity: i for i, advert in enumerate(roster.adverts)},
        graph=sharing_graph(parameters, len(roster), roster.graph_seed),
        ctx1=context.context_of_tree(ctx0, tree, roster.graph_seed, parameters.suite),
    )
    if parameters.graph is Graph.K_OUT:
        return Step(
            ChooseEdges(
                state.session.opening(Round.CHOOSE_EDGES),
                cohort,
                opening=opening,
                edges={},
            )
        )
    return Step(
        ShareKeys(
            state.session.opening(Round.SHARE_KEYS),
            cohort,
            opening=opening,
            expected=frozenset(range(len(roster))),
            bundles={},
            roster_proofs={},
        )
    )


# --- ChooseEdges --------------------------------------------------------------------


def record_edges(state: ChooseEdges, event: Received) -> ServerStep:
    """Record the clients that one client has drawn (PROTOCOL §5.9)."""
    cohort, sender = state.cohort, event.sender
    size = len(cohort.roster)
    index = cohort.index_within(sender, range(size))
    edges = Edges.decode(event.envelope.data)
    parameters = state.session.descriptor.parameters
    # R5.9-3
    check_edges(edges, size=size, index=index, degree=parameters.degree, name=sender)
    if cohort.signers is None:
        raise ErrorCode.INTERNAL.error("a profile with this round has no signatures")
    check_edges_signature(  # R5.9-4
        edges,
        signers=cohort.signers,
        ctx1=cohort.ctx1,
        index=index,
        suite=parameters.suite,
    )
    state.edges[index] = edges
    state.session.accept(sender, event.envelope)
    return Step(state)


def close_choose_edges(state: ChooseEdges, _: RoundClosed) -> ServerStep:
    """Fix the drawn edges, and show each client its own (PROTOCOL §5.9)."""
    cohort, parameters = state.cohort, state.session.descriptor.parameters
    size, chosen = len(cohort.roster), frozenset(state.edges)
    silent = dropped_for(cohort, frozenset(range(size)) - chosen, DropReason.NO_EDGES)
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(chosen) < needed:  # R5.9-11
        return end_too_few(
            state.session,
            len(chosen),
            needed,
            "chose neighbours",
            ErrorCode.U2_TOO_SMALL,
            silent,
        )
    edges = EdgeTrees(cohort.ctx1, size, state.edges, parameters.suite)
    return Step(
        ShareKeys(
            state.session.opening(Round.SHARE_KEYS),
            replace(cohort, graph=edges.graph, edges=edges),
            opening=state.opening,
            expected=chosen,
            bundles={},
            roster_proofs={},
        ),
        silent,
    )


# --- ShareKeys ----------------------------------------------------------------------


def record_bundles(state: ShareKeys, event: Received) -> ServerStep:
    """Record one client's sealed bundles (PROTOCOL §5.2)."""
    cohort, sender = state.cohort, event.sender
    index = cohort.index_within(sender, state.expected)
    bundles = Bundles.decode(event.envelope.data)
    parameters = state.session.descriptor.parameters
    expected = len(cohort.graph.receivers(index)) * BUNDLE_BYTES
    is_signed = parameters.profile.has_identities
    if len(bundles.sealed) != expected or bool(bundles.signature) != is_signed:
        raise ErrorCode.BAD_ENCODING.error(
            f"{sender!r} sent {len(event.envelope.data)} bytes of bundles, expected "
            f"{expected}{' and a signature' if is_signed else ''}",
            sender=sender,
        )
    if cohort.signers is not None:  # R5.2-11
        digest = sha256(bundles.sealed).digest()
        check_bundle_signature(
            bundles.signature,
            digest,
            signers=cohort.signers,
            ctx1=cohort.ctx1,
            index=index,
            suite=parameters.suite,
        )
        state.roster_proofs[index] = RosterProof(index, digest, bundles.signature)
    state.bundles[index] = bundles
    state.session.accept(sender, event.envelope)
    return Step(state)


def close_share_keys(state: ShareKeys, _: RoundClosed) -> ServerStep:
    """Fix U2 and deliver the bundles (PROTOCOL §5.2)."""
    cohort, parameters = state.cohort, state.session.descriptor.parameters
    share_holders = frozenset(state.bundles)
    dropped = dropped_for(cohort, state.expected - share_holders, DropReason.NO_SHARES)
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(share_holders) < needed:  # R5.2-12
        return end_too_few(
            state.session,
            len(share_holders),
            needed,
            "shared keys",
            ErrorCode.U2_TOO_SMALL,
            dropped,
        )
    # R5.3-10: a session that continued without such a client would let colluders choose
    # the dropouts' places on the ring, by not answering.
    stranded = _short_of_holders(state, share_holders, share_holders)
    if stranded is not None:
        return abort(
            state.session,
            ErrorCode.DISPUTED,
            f"too few neighbours of {stranded!r} have shared their keys, "
            f"{parameters.threshold} are needed",
            dropped,
        )
    bitmap = encode_set(share_holders, len(cohort.roster))
    noise = noise_terms(
        parameters,
        len(share_holders),
        state.session.read_noise,
        clients=len(cohort.roster),
    )
    return Step(
        MaskedInputCollection(
            state.session.opening(Round.MASKED_INPUT_COLLECTION),
            cohort,
            share_holders=share_holders,
            bitmap=bitmap,
            noise=noise,
            ctx2=context.mask_context(
                cohort.ctx1,
                bitmap,
                parameters.suite,
                edge_root=cohort.edge_root,
                noise_context=noise.context,
            ),
            bundles={index: state.bundles[index] for index in share_holders},
            roster_proofs=dict(state.roster_proofs),
            uploads={},
        ),
        dropped,
    )


# --- MaskedInputCollection ----------------------------------------------------------


def record_upload(state: MaskedInputCollection, event: Received) -> ServerStep:
    """Record that one masked input has arrived (PROTOCOL §5.3)."""
    sender = event.sender
    index = state.cohort.index_within(sender, state.share_holders)
    upload = Upload.decode(event.envelope.data)
    check_view(state, sender, upload.view)
    if upload.size != state.session.packed_bytes:
        raise ErrorCode.BAD_VECTOR.error(
            f"{sender!r} uploaded {upload.size} bytes, a packed vector has "
            f"{state.session.packed_bytes}",
            sender=sender,
        )
    state.uploads[index] = upload.digest
    state.session.accept(sender, event.envelope)
    return Step(state)


def check_view(state: MaskedInputCollection, sender: str, view: bytes) -> None:
    """Refuse a client whose ctx2 is not this server's (R5.3-14).

    Its masks cancel with no others: its vector would make the whole sum garbage.

    Args:
        state: Uploads are open.
        sender: The client that asks or uploads.
        view: 32 bytes, as it has sent them.

    Raises:
        RemoteProtocolError: VIEW_DIFFERS, for this client alone.
    """
    suite = state.session.descriptor.parameters.suite
    if view != context.view_of(state.ctx2, suite):
        raise ErrorCode.VIEW_DIFFERS.error(
            f"{sender!r} {DropReason.OTHER_VIEW.value}",
            sender=sender,
            fix="Install the release of secagg and dpnoise that the aggregator "
            "runs; if they are the same, tell the operator.",
        )


def record_complaint(state: MaskedInputCollection, event: Received) -> ServerStep:
    """Record that one holder cannot use a dealer's bundle (R5.3-11)."""
    sender = event.sender
    index = state.cohort.index_within(sender, state.share_holders)
    accused = Complaint.decode(event.envelope.data).accused
    others = state.share_holders.intersection(state.cohort.graph.senders(index))
    if accused not in others:
        raise ErrorCode.BAD_ENCODING.error(
            f"{sender!r} accuses client {accused}, which has sent it no bundle",
            sender=sender,
        )
    state.session.accept(sender, event.envelope)
    return Step(state)


def close_masked_input(state: MaskedInputCollection, event: RoundClosed) -> ServerStep:
    """Fix U3 and ask it to unmask (PROTOCOL §5.3)."""
    missing = frozenset(event.missing)
    if not missing <= state.uploads.keys():
        raise ErrorCode.LOCAL_MISUSE.error(
            "only an upload that was accepted can be missing"
        )
    cohort, parameters = state.cohort, state.session.descriptor.parameters
    survivors = frozenset(state.uploads) - missing
    silent = state.share_holders - state.uploads.keys()
    dropped = (
        *dropped_for(cohort, silent, DropReason.NO_INPUT),
        *dropped_for(cohort, missing, DropReason.LOST_INPUT),
    )
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(survivors) < needed:  # R5.3-12, as are the dropouts and the disputes
        return end_too_few(
            state.session,
            len(survivors),
            needed,
            "uploaded their input",
            ErrorCode.U3_TOO_SMALL,
            dropped,
        )
    beyond = _exceeded_bound(state, survivors)
    if beyond is not None:
        return abort(state.session, ErrorCode.TOO_MANY_DROPOUTS, beyond, dropped)
    disputed = _disputed(state, survivors)
    if disputed is not None:
        return abort(
            state.session,
            ErrorCode.DISPUTED,
            f"too many holders complain about the shares of {disputed!r}: fewer than "
            f"{parameters.threshold} are left",
            dropped,
        )
    shortcoming = _shortcoming(parameters, cohort.graph, survivors)
    if shortcoming is not None:
        return abort(state.session, ErrorCode.TOO_MANY_DROPOUTS, shortcoming, dropped)
    # PROTOCOL §5.4: U3 is fixed here, and journalled before any client receives it.
    return Step(_opened_for(state, survivors), dropped)


def _opened_for(
    state: MaskedInputCollection, survivors: frozenset[int]
) -> ConsistencyCheck | Unmasking:
    """Return the round that U3 opens: signatures if the profile has them."""
    cohort, parameters = state.cohort, state.session.descriptor.parameters
    bitmap = encode_set(survivors, len(cohort.roster))
    shown = Envelope.of(Survivors(bitmap))
    layers = state.noise.revealed(len(state.share_holders) - len(survivors))
    uploads = {each: state.uploads[each] for each in sorted(survivors)}
    if parameters.profile.has_identities:
        return ConsistencyCheck(
            state.session.opening(Round.CONSISTENCY_CHECK),
            cohort,
            share_holders=state.share_holders,
            survivors=survivors,
            opening=shown,
            noise_layers=layers,
            ctx2=state.ctx2,
            ctx3=context.unmask_context(state.ctx2, bitmap, parameters.suite),
            uploads=uploads,
            roster_proofs=state.roster_proofs,
            signatures={},
        )
    return Unmasking(
        state.session.opening(Round.UNMASKING),
        cohort,
        share_holders=state.share_holders,
        survivors=survivors,
        survivors_shown=shown,
        opening=shown,
        noise_layers=layers,
        ctx2=state.ctx2,
        uploads=uploads,
        answers={},
    )


def _exceeded_bound(
    state: MaskedInputCollection, survivors: frozenset[int]
) -> str | None:
    """Return which bound the dropouts exceed, if any (PROTOCOL §5.3)."""
    cohort, parameters = state.cohort, state.session.descriptor.parameters
    # R3.5-1: survivors carry noise for a fixed number of dropouts.
    tolerated = min(parameters.max_dropouts, state.noise.tolerated_losses)
    for lost, most, since in (
        (len(cohort.roster), parameters.max_losses, "joining"),
        (len(state.share_holders), tolerated, "sharing their keys"),
    ):
        if lost - len(survivors) > most:
            return (
                f"{lost - len(survivors)} clients dropped out after {since} and "
                f"before their upload, at most {most} are tolerated"
            )
    orphan = _short_of_holders(state, state.share_holders, survivors)
    if orphan is not None:
        return (
            f"too few neighbours of {orphan!r} are left to rebuild its secrets, "
            f"{parameters.threshold} are needed"
        )
    return None


def _short_of_holders(
    state: RosterFixed, dealers: frozenset[int], left: frozenset[int]
) -> str | None:
    """Return a dealer with fewer remaining holders than the threshold, if any."""
    cohort, threshold = state.cohort, state.session.descriptor.parameters.threshold
    for dealer in sorted(dealers):
        if cohort.graph.count_holders(dealer, left) < threshold:
            return cohort.name_of(dealer)
    return None


def _disputed(state: MaskedInputCollection, survivors: frozenset[int]) -> str | None:
    """Return a dealer of which too few holders have not complained, if any."""
    cohort = state.cohort
    threshold = state.session.descriptor.parameters.threshold
    lost_holders = Counter(
        accused
        for accuser, accused in state.session.complaints
        if cohort.index_of[accuser] in survivors
    )
    for dealer in sorted(lost_holders):
        holders = cohort.graph.count_holders(dealer, survivors)
        if holders - lost_holders[dealer] < threshold:
            return cohort.name_of(dealer)
    return None


def _shortcoming(
    parameters: ProtocolParameters, graph: SharingGraph, survivors: frozenset[int]
) -> str | None:
    """Return why the sum over U3 would reveal more than itself, if so (R5.3-9)."""
    risk = graph_risk(parameters, graph, survivors)
    if risk is None:
        return None
    return risk.shortcoming(server_demand(parameters.graph_bits))
