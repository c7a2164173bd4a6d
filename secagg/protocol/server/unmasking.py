"""The server's work behind U3: signatures, then shares, then the order of the sum.

The handlers of `server.TRANSITIONS` for rounds 5 and 6 (PROTOCOL §5.4, §5.5).  As in
`secagg.protocol.server.handlers`, a handler checks first and writes last.

The secrets of U2 are rebuilt from the answers of U5, with checks and blame:

Rule 1: every rebuilt secret is compared with its owner's advert.  A mask key must match
        the public key s^PK, a self-mask seed its commitment (R7.3-1).
Rule 2: wrong shares are corrected while there are enough correct ones, and their
        holders named.  Blame is a report: without signatures a holder and a dealer can
        accuse each other.  They are in dispute only if the answers tolerate as many
        liars as there may be colluders.  More liars could move the decoder to another
        polynomial, and the blame to honest holders of an honest dealer.
Rule 3: for each client of U2 one of its two secrets is rebuilt, never both.

Source: PROTOCOL §7.3; error correction in `secagg.crypto.shamir`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.key_agreement import public_key_of
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import (
    SHARE_SIZE,
    UncorrectableError,
    decode_with_errors,
    reconstruct,
    reconstruct_sparse,
)
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import context
from secagg.protocol.agreement import check_signature
from secagg.protocol.context import self_mask_commitment
from secagg.protocol.events import (
    ComputeSum,
    DealerFailed,
    DroppedKey,
    NoiseRemoval,
    Received,
    RoundClosed,
    ServerOutput,
    ShareDisputed,
    Step,
    SurvivorSeed,
)
from secagg.protocol.graphs.neighbours import SharingGraph
from secagg.protocol.messages import (
    Advert,
    Consistency,
    Envelope,
    Quorum,
    Roster,
    Round,
    Shares,
)
from secagg.protocol.noise_terms import layer_secret
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.rounds import DropReason
from secagg.protocol.server.states import (
    ConsistencyCheck,
    FixedCohort,
    ServerStep,
    Summing,
    Unmasking,
    abort,
    dropped_for,
    end_too_few,
)
from secagg.protocol.share_bundles import SharesAnswer

_Shares = npt.NDArray[np.uint8]
_Abscissae = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReconstructedSecrets:
    """The secrets that remove the masks of one session.

    Attributes:
        survivor_seeds: Self-mask seed of every client in U3.
        dropped_keys: Mask key of every client in U2 but not in U3.
        liars: Roster indices of holders whose shares did not match.
        disputes: Dealer and holder of each such share, if one of the two is known to
            lie (rule 2).
    """

    survivor_seeds: tuple[SurvivorSeed, ...]
    dropped_keys: tuple[DroppedKey, ...]
    liars: frozenset[int]
    disputes: frozenset[tuple[int, int]]


class InvalidDealerError(RemoteProtocolError):
    """The secret of one client cannot be rebuilt.

    Attributes:
        dealer: Its roster index.
        is_proven: Whether no more liars than there may be colluders explain it: the
            dealer has dealt badly.
        disputes: Disputes of the secrets that were rebuilt before, as in
            `ReconstructedSecrets`.
    """

    def __init__(
        self,
        advert: Advert,
        dealer: int,
        *,
        bearable: int,
        colluders: int,
        disputes: frozenset[tuple[int, int]],
    ) -> None:
        self.dealer: Final = dealer
        self.is_proven: Final = bearable >= colluders
        self.disputes: Final = disputes
        super().__init__(
            f"the shares of {advert.identity!r} do not rebuild what it advertised: it "
            + (
                f"lies, since {bearable} wrong ones would have been corrected"
                if self.is_proven
                else f"lies, or more than {bearable} of its holders do"
            ),
            code=ErrorCode.RECONSTRUCTION_FAILED,
            sender=advert.identity,
            next_step="Run the session again without this client.",
        )


def rebuild(  # noqa: PLR0913 - the public sets of a session, each named
    parameters: ProtocolParameters,
    *,
    session_id: bytes,
    roster: Roster,
    graph: SharingGraph,
    share_holders: frozenset[int],
    survivors: frozenset[int],
    answers: Mapping[int, SharesAnswer],
) -> ReconstructedSecrets:
    """Rebuild one secret of every client in U2.

    Args:
        parameters: Threshold and suite.
        session_id: Enters the commitments.
        roster: U1 with the adverts.
        graph: Which client holds whose shares.
        share_holders: U2.
        survivors: U3.
        answers: The answer of each client in U5.

    Returns:
        All secrets, verified.

    Raises:
        InvalidDealerError: RECONSTRUCTION_FAILED, naming the client whose secret cannot
            be rebuilt.  Abort the session and run it again without that client.
    """

    def fits(dealer: int, secret: SecretBytes) -> bool:
        advert = roster.adverts[dealer]
        if dealer in survivors:
            commitment = self_mask_commitment(
                session_id, advert.identity, secret, parameters.suite
            )
            return commitment == advert.self_mask_commitment
        return public_key_of(secret) == advert.masking_key

    # Wrong shares mean that a client lies, also where no colluder was assumed.
    colluders = max(1, parameters.colluders)
    table = _ShareTable(graph, answers)
    secrets: dict[int, SecretBytes] = {}
    suspects: set[int] = set()
    disputes: set[tuple[int, int]] = set()
    pending = sorted(share_holders)
    while pending:
        batch = table.reconstruct(pending, parameters.threshold, suspects)
        secrets |= {
            dealer: secret
            for dealer, secret in zip(pending, batch, strict=True)
            if secret is not None and fits(dealer, secret)
        }
        pending = [dealer for dealer in pending if dealer not in secrets]
        if pending:
            # One dealer is decoded with all its shares.  Clients that lied to it are
            # asked last for the others.  None is excluded, since the dealer may have
            # dealt badly and framed its holders.
            dealer = pending.pop(0)
            holders = table.holders(dealer)
            bearable = (len(holders) - parameters.threshold) // 2
            corrected = _corrected(table, dealer, holders, parameters.threshold)
            if corrected is None or not fits(dealer, corrected[0]):
                raise InvalidDealerError(
                    roster.adverts[dealer],
                    dealer,
                    bearable=bearable,
                    colluders=colluders,
                    disputes=frozenset(disputes),
                )
            secrets[dealer], liars = corrected
            suspects |= liars
            if bearable >= colluders:  # R5.7-1
                disputes |= {(dealer, liar) for liar in liars}
    disputes |= _further_disputes(
        table,
        {
            dealer: secrets[dealer]
            for liar in suspects
            for dealer in _reconstructed_dealers(graph.dealers(liar), secrets)[
                : colluders + 2
            ]
        },
        threshold=parameters.threshold,
        colluders=colluders,
    )
    return ReconstructedSecrets(
        survivor_seeds=tuple(
            SurvivorSeed(index, secrets[index]) for index in sorted(survivors)
        ),
        dropped_keys=tuple(
            DroppedKey(
                index,
                secrets[index],
                tuple(
                    (peer, roster.adverts[peer].masking_key)
                    for peer in graph.mask_peers(index)
                    if peer in survivors
                ),
            )
            for index in sorted(share_holders - survivors)
        ),
        liars=frozenset(suspects),
        disputes=frozenset(disputes),
    )


class _ShareTable:
    """The revealed shares, addressed by dealer and holder."""

    def __init__(
        self, graph: SharingGraph, answers: Mapping[int, SharesAnswer]
    ) -> None:
        self._graph = graph
        self._answers = answers
        self._is_uniform = graph.has_common_holders and not any(
            answer.absent for answer in answers.values()
        )

    def holders(self, dealer: int) -> list[int]:
        """Return the holders that have revealed a share of a dealer."""
        return [
            holder
            for holder in self._graph.holders(dealer)
            if holder in self._answers and dealer not in self._answers[holder].absent
        ]

    def abscissae(self, dealer: int, holders: Sequence[int]) -> _Abscissae:
        """Return the points of holders: their ranks, from one (PROTOCOL §7.1)."""
        return np.searchsorted(self._graph.holders(dealer), holders) + 1

    def shares(self, dealer: int, holders: Sequence[int]) -> _Shares:
        return np.stack([self._answers[h].shares_of([dealer])[0] for h in holders])

    def reconstruct(
        self, dealers: Sequence[int], threshold: int, suspects: set[int]
    ) -> list[SecretBytes | None]:
        """Interpolate the secrets of `dealers`, each from `threshold` holders."""
        if self._is_uniform:
            chosen = [self._choose(dealers[0], threshold, suspects)] * len(dealers)
        else:
            chosen = [self._choose(dealer, threshold, suspects) for dealer in dealers]
        if not self._graph.has_common_holders:
            abscissae = [
                self.abscissae(dealer, holders)
                for dealer, holders in zip(dealers, chosen, strict=True)
            ]
            return reconstruct_sparse(
                np.stack(abscissae), self._gather(dealers, chosen)
            )
        # Dealers with the same holders are rebuilt together; absences separate them.
        groups: dict[tuple[int, ...], list[int]] = {}
        for dealer, holders in zip(dealers, chosen, strict=True):
            groups.setdefault(tuple(holders), []).append(dealer)
        secrets: dict[int, SecretBytes | None] = {}
        for common, members in groups.items():
            stacked = np.stack([self._answers[h].shares_of(members) for h in common])
            rebuilt = reconstruct(self.abscissae(members[0], common), stacked)
            secrets.update(zip(members, rebuilt, strict=True))
        return [secrets[dealer] for dealer in dealers]

    def _gather(
        self, dealers: Sequence[int], chosen: Sequence[Sequence[int]]
    ) -> _Shares:
        """Return the shares of every dealer's own holders, shape (dealers, t, 34)."""
        places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, holders in enumerate(chosen):
            for column, holder in enumerate(holders):
                places[holder].append((row, column))
        gathered = np.empty((len(chosen), len(chosen[0]), SHARE_SIZE), np.uint8)
        for holder, wanted in places.items():  # each answer is searched once
            rows, columns = zip(*wanted, strict=True)
            gathered[rows, columns] = self._answers[holder].shares_of(
                [dealers[row] for row in rows]
            )
        return gathered

    def _choose(self, dealer: int, threshold: int, suspects: set[int]) -> list[int]:
        by_trust = sorted(self.holders(dealer), key=lambda h: (h in suspects, h))
        return sorted(by_trust[:threshold])


def _reconstructed_dealers(
    dealers: Sequence[int], secrets: Mapping[int, SecretBytes]
) -> list[int]:
    """Return the dealers whose secret was reconstructed, in order."""
    return [dealer for dealer in dealers if dealer in secrets]


def _further_disputes(
    table: _ShareTable,
    secrets: Mapping[int, SecretBytes],
    *,
    threshold: int,
    colluders: int,
) -> set[tuple[int, int]]:
    """Compare all shares of some further dealers of the holders that lied to one.

    A client that contradicts more than c dealers is corrupt, and excludes no honest
    dealer (R5-4): c + 1 dealers suffice, beside its own secret.
    """
    found = set()
    for dealer, secret in secrets.items():
        holders = table.holders(dealer)
        if (len(holders) - threshold) // 2 < colluders:
            continue
        corrected = _corrected(table, dealer, holders, threshold)
        if corrected is not None and corrected[0] == secret:
            found |= {(dealer, liar) for liar in corrected[1]}
    return found


def _corrected(
    table: _ShareTable, dealer: int, holders: list[int], threshold: int
) -> tuple[SecretBytes, set[int]] | None:
    """Return secret and the holders of wrong shares; None if too many (R7.3-2)."""
    try:
        secret, faulty = decode_with_errors(
            table.abscissae(dealer, holders), table.shares(dealer, holders), threshold
        )
    except UncorrectableError:
        return None
    by_abscissa = dict(
        zip(table.abscissae(dealer, holders).tolist(), holders, strict=True)
    )
    return secret, {by_abscissa[abscissa] for abscissa in faulty}


# --- ConsistencyCheck ---------------------------------------------------------------


def record_signature(state: ConsistencyCheck, event: Received) -> ServerStep:
    """Record that one client has signed U2 and U3 (R5.4-7)."""
    sender, cohort = event.sender, state.cohort
    index = cohort.index_within(sender, state.survivors)
    signature = Consistency.decode(event.envelope.data).signature
    if cohort.signers is None:
        raise ErrorCode.INTERNAL.error("a profile with this round has no signatures")
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
        return end_too_few(
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
            f"malformed shares of {sender!r}: {error}", sender=sender
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
            return end_too_few(
                state.session,
                left,
                parameters.threshold,
                f"answered for {cohort.name_of(dealer)!r}",
                ErrorCode.TOO_FEW_ANSWERS,
                silent,
                survivors=cohort.names_of(state.survivors),
            )
    try:
        rebuilt = rebuild(
            parameters,
            session_id=descriptor.session_id,
            roster=cohort.roster,
            graph=cohort.graph,
            share_holders=state.share_holders,
            survivors=state.survivors,
            answers=answers,
        )
    except InvalidDealerError as error:
        survivors = cohort.names_of(state.survivors)
        failed = DealerFailed(cohort.name_of(error.dealer), error.is_proven)
        found = (*silent, *_disputes(cohort, error.disputes), failed)
        return abort(state.session, error.code, str(error), found, survivors=survivors)
    liars = dropped_for(cohort, rebuilt.liars, DropReason.BAD_SHARES)
    liars += dropped_for(
        cohort, _withholding_clients(state, answers), DropReason.WITHHELD_SHARES
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


def _withholding_clients(
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
    """Return disputes by the names of dealer and holder."""
    return tuple(
        ShareDisputed(cohort.name_of(dealer), cohort.name_of(holder))
        for dealer, holder in sorted(found)
    )
