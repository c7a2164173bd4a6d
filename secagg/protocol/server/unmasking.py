"""The server's work behind U3: signatures, then shares, then the order of the sum.

The handlers of `server.TRANSITIONS` for rounds 5 and 6 (PROTOCOL §5.4, §5.5).  As in
`secagg.protocol.server.handlers`, a handler checks first and writes last.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, InternalError
from secagg.protocol import context, reconstruction
from secagg.protocol.agreement import check_signature
from secagg.protocol.events import (
    ComputeSum,
    DealerFailed,
    NoiseRemoval,
    Received,
    RoundClosed,
    ServerOutput,
    ShareDisputed,
    Step,
)
from secagg.protocol.messages import Consistency, Envelope, Quorum, Round, Shares
from secagg.protocol.noise_terms import layer_secret
from secagg.protocol.rounds import DropReason
from secagg.protocol.server.outcomes import abort, dropped_for, too_few
from secagg.protocol.server.states import (
    ConsistencyCheck,
    FixedCohort,
    ServerStep,
    Summing,
    Unmasking,
)
from secagg.protocol.share_bundles import SharesAnswer

# --- ConsistencyCheck ---------------------------------------------------------------


def record_signature(state: ConsistencyCheck, event: Received) -> ServerStep:
    """Record that one client has signed U2 and U3 (R5.4-7)."""
    sender, cohort = event.sender, state.cohort
    index = cohort.index_within(sender, state.survivors)
    signature = Consistency.decode(event.envelope.data).signature
    if cohort.signers is None:
        raise InternalError("a profile with this round has no signatures")
    check_signature(
        signature,
        signers=cohort.signers,
        index=index,
        ctx3=state.ctx3,
        suite=state.session.descriptor.parameters.suite,
    )
    state.signatures[index] = signature
    state.session.accept(sender, event.envelope)
    return Step(state)


def close_consistency(state: ConsistencyCheck, _: RoundClosed) -> ServerStep:
    """Show the quorum to all of U3, also to members that have not signed (R5.4-7).

    With it go their signatures of the roster (R5.3-13): U3 is a part of U2, of which
    this server has all such signatures.
    """
    cohort, parameters = state.cohort, state.session.descriptor.parameters
    unsigned = state.survivors - frozenset(state.signatures)
    silent = dropped_for(cohort, unsigned, DropReason.NO_SIGNATURE)
    if len(state.signatures) < parameters.quorum:
        return too_few(
            state.session,
            len(state.signatures),
            parameters.quorum,
            "signed the sets of clients",
            ErrorCode.NO_QUORUM,
            silent,
            survivors=cohort.names_of(state.survivors),
        )
    quorum = Quorum(
        tuple(sorted(state.signatures.items())),
        tuple(state.roster_proofs[index] for index in sorted(unsigned)),
    )
    return Step(
        Unmasking(
            state.session.opening(Round.UNMASKING),
            cohort,
            share_holders=state.share_holders,
            survivors=state.survivors,
            survivors_shown=state.opening,
            opening=Envelope.of(quorum),
            noise_layers=state.noise_layers,
            ctx2=state.ctx2,
            uploads=state.uploads,
            answers={},
        ),
        silent,
    )


# --- Unmasking ----------------------------------------------------------------------


def record_shares(state: Unmasking, event: Received) -> ServerStep:
    """Record one client's revealed shares (PROTOCOL §5.5)."""
    sender = event.sender
    index = state.cohort.index_within(sender, state.survivors)
    revealed = Shares.decode(event.envelope.data).revealed
    try:
        answer = SharesAnswer.parse(
            revealed, _dealers(state, index), noise_layers=len(state.noise_layers)
        )  # R5.5-11
    except ValueError as error:
        raise ErrorCode.BAD_ENCODING.error(
            f"malformed shares of {sender!r}: {error}",
            sender=sender,
        ) from None
    state.answers[index] = answer
    state.session.accept(sender, event.envelope)
    return Step(state)


def close_unmasking(state: Unmasking, _: RoundClosed) -> ServerStep:
    """Fix U5, rebuild the secrets and order the sum (PROTOCOL §5.5)."""
    cohort, descriptor = state.cohort, state.session.descriptor
    parameters = descriptor.parameters
    answers, answered = state.answers, frozenset(state.answers)
    silent = dropped_for(cohort, state.survivors - answered, DropReason.NO_ANSWER)
    absent = Counter(d for answer in answers.values() for d in answer.absent)
    for dealer in sorted(state.share_holders):
        left = cohort.graph.count_holders(dealer, answered) - absent[dealer]
        if left < parameters.threshold:  # R5.5-12
            return too_few(
                state.session,
                left,
                parameters.threshold,
                f"answered for {cohort.name_of(dealer)!r}",
                ErrorCode.TOO_FEW_ANSWERS,
                silent,
                survivors=cohort.names_of(state.survivors),
            )
    try:
        rebuilt = reconstruction.rebuild(
            parameters,
            session_id=descriptor.session_id,
            roster=cohort.roster,
            graph=cohort.graph,
            share_holders=state.share_holders,
            survivors=state.survivors,
            answers=answers,
        )
    except reconstruction.InvalidDealerError as error:
        survivors = cohort.names_of(state.survivors)
        failed = DealerFailed(cohort.name_of(error.dealer), error.is_proven)
        found = (*silent, *_disputes(cohort, error.disputes), failed)
        return abort(state.session, error.code, str(error), found, survivors=survivors)
    liars = dropped_for(cohort, rebuilt.liars, DropReason.BAD_SHARES)
    liars += dropped_for(
        cohort, _withholding(state, answers), DropReason.WITHHELD_SHARES
    )
    noise, misfits = _noise_removal(state)
    liars += dropped_for(cohort, misfits, DropReason.BAD_NOISE_REVEAL)
    job = ComputeSum(
        session_id=descriptor.session_id,
        mask_context=state.ctx2,
        modulus=parameters.modulus,
        dimension=parameters.dimension,
        suite=parameters.suite,
        uploads=tuple(sorted(state.uploads.items())),
        survivor_seeds=rebuilt.survivor_seeds,
        dropped_keys=rebuilt.dropped_keys,
        noise=noise,
    )
    return Step(
        Summing(state.session, cohort, survivors=state.survivors, job=job),
        (*silent, *liars, *_disputes(cohort, rebuilt.disputes), job),
    )


def _noise_removal(state: Unmasking) -> tuple[NoiseRemoval | None, frozenset[int]]:
    """Return the noise to subtract, and the clients with contradicting seeds.

    A seed that does not match is not subtracted: more noise remains, and the sum stays
    usable (PROTOCOL §5.5).
    """
    if not state.noise_layers:
        return None, frozenset()
    descriptor = state.session.descriptor
    suite, seeds, misfits = descriptor.parameters.suite, [], set()
    for index, answer in sorted(state.answers.items()):
        advert = state.cohort.roster.adverts[index]
        for layer, seed in zip(state.noise_layers, answer.noise_seeds, strict=True):
            commitment = context.noise_commitment(
                descriptor.session_id, advert.identity, layer, seed, suite
            )
            if commitment != advert.noise_commitments[layer]:
                misfits.add(index)
                continue
            secret = layer_secret(
                SecretBytes(seed), layer, context=state.ctx2, suite=suite
            )
            seeds.append((layer, secret))
    removal = NoiseRemoval(
        noise_block=descriptor.parameters.noise_block,
        share_holders=len(state.share_holders),
        seeds=tuple(seeds),
    )
    return removal, frozenset(misfits)


def _withholding(
    state: Unmasking, answers: Mapping[int, SharesAnswer]
) -> frozenset[int]:
    """Return the clients that lack shares and did not complain of their dealers."""
    complaints = state.session.complaints
    return frozenset(
        holder
        for holder, answer in answers.items()
        for dealer in answer.absent
        if (state.cohort.name_of(holder), dealer) not in complaints
    )


def _dealers(state: Unmasking, holder: int) -> tuple[int, ...]:
    graph, dealt = state.cohort.graph, state.share_holders
    return tuple(dealer for dealer in graph.dealers(holder) if dealer in dealt)


def _disputes(
    cohort: FixedCohort, found: AbstractSet[tuple[int, int]]
) -> tuple[ServerOutput, ...]:
    return tuple(
        ShareDisputed(cohort.name_of(dealer), cohort.name_of(holder))
        for dealer, holder in sorted(found)
    )
