"""The states of the server's side, one frozen value for each round, and their outcomes.

A state holds only what its round needs.  The only mutable parts are the collectors of
the open round, written by the last statement of a handler.

Behind the states stand the handlers of `server.TRANSITIONS` for its last rows, dropouts
on the way, and the end of a round without enough clients.  A handler that aborts
returns the result of `end_too_few` or `abort`.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self

from secagg.crypto.transcript import MerkleTree
from secagg.errors import ErrorCode
from secagg.protocol.agreement import Signers
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import EnrolmentRules, VerifiedCredentials
from secagg.protocol.events import (
    AbortRequested,
    ComputeSum,
    DropClient,
    ServerOutput,
    Step,
    SumComputed,
)
from secagg.protocol.graphs.edge_selection import EdgeTrees
from secagg.protocol.graphs.neighbours import SharingGraph
from secagg.protocol.messages import (
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Edges,
    Envelope,
    Fate,
    Message,
    Released,
    Roster,
    RosterFrame,
    RosterProof,
    Round,
    Shares,
    Upload,
)
from secagg.protocol.noise_terms import NoiseReader, NoiseTerms, no_noise
from secagg.protocol.rounds import DropReason
from secagg.protocol.share_bundles import SharesAnswer

_NAME_OF: Final[Mapping[type[Message], str]] = {
    Advert: "advert",
    Edges: "list of neighbours",
    Bundles: "set of share bundles",
    Upload: "masked input",
    Consistency: "signature",
    Shares: "set of shares",
    Complaint: "complaint",
}


@dataclass(frozen=True, slots=True)
class Session:
    """The part of every state, from the offer to the end.

    Attributes:
        descriptor: The session, as offered to clients.
        packed_bytes: Exact size of one packed vector.
        accepted: SHA-256 of every accepted message, by round and sender; holds the
            rounds up to the open one, which is the only one that grows.
        complaints: By accuser and index of the accused; they grow while inputs come.
        read_noise: Reads the noise block for a U2.
    """

    descriptor: SessionDescriptor
    packed_bytes: int
    accepted: Mapping[Round, dict[str, bytes]]
    complaints: dict[tuple[str, int], Complaint] = field(default_factory=dict)
    read_noise: NoiseReader = field(default=no_noise, repr=False, compare=False)

    def has_accepted(self, sender: str, envelope: Envelope) -> bool:
        """Whether a message repeats one that was accepted.

        Raises:
            RemoteProtocolError: EQUIVOCATION; a different one was accepted.
        """
        if envelope.kind is Complaint:
            complaint = Complaint.decode(envelope.data)
            earlier = self.complaints.get((sender, complaint.accused))
            known = None if earlier is None else Envelope.of(earlier).digest
        else:
            known = self.accepted.get(envelope.kind.ROUND, {}).get(sender)
        if known is None:
            return False
        # A retry is a no-op; a contradiction is a violation.
        if known != envelope.digest:
            raise ErrorCode.EQUIVOCATION.error(
                f"{sender!r} sent a second, different {_NAME_OF[envelope.kind]}",
                sender=sender,
            )
        return True

    def accept(self, sender: str, envelope: Envelope) -> None:
        """Record an accepted message of the open round."""
        if envelope.kind is Complaint:
            complaint = Complaint.decode(envelope.data)
            self.complaints[sender, complaint.accused] = complaint
            return
        self.accepted[envelope.kind.ROUND][sender] = envelope.digest

    def opening(self, which: Round) -> Self:
        """Return the part for the state that opens a round."""
        return replace(self, accepted={**self.accepted, which: {}})

    def fork(self, opened: Round) -> Self:
        """Return a part whose open round can grow without changing this one."""
        grown = dict(self.accepted.get(opened, {}))
        return replace(
            self,
            accepted={**self.accepted, opened: grown},
            complaints=dict(self.complaints),
        )


@dataclass(frozen=True, slots=True)
class FixedCohort:
    """The facts that hold from the moment U1 is fixed.

    Attributes:
        roster: U1.
        frame: The same as published, advert by advert.
        tree: Over its adverts; proves neighbourhoods.
        index_of: Roster index of each identity.
        graph: Which clients share with which.
        ctx1: Context of the roster.
        signers: Names and keys, in profiles that distrust the server.
        edges: The drawn edges, in the profile that has them.
    """

    roster: Roster
    frame: RosterFrame = field(repr=False)
    tree: MerkleTree = field(repr=False, compare=False)  # follows from the frame
    index_of: Mapping[str, int]
    graph: SharingGraph
    ctx1: bytes
    signers: Signers | None = None
    edges: EdgeTrees | None = field(default=None, repr=False, compare=False)

    @property
    def edge_root(self) -> bytes:
        """The hash over all drawn edges; b"" in profiles without drawn edges."""
        return b"" if self.edges is None else self.edges.root

    def has(self, identity: str) -> bool:
        """Whether a client is in the roster."""
        return identity in self.index_of

    def name_of(self, index: int) -> str:
        """Return the name of the client at an index of the roster."""
        return self.roster.adverts[index].identity

    def names_of(self, indices: Iterable[int]) -> frozenset[str]:
        """Return the names of clients at some indices of the roster."""
        return frozenset(map(self.name_of, indices))

    def index_within(self, sender: str, allowed: AbstractSet[int] | range) -> int:
        """Return the roster index of a sender, which must be one of those allowed.

        Raises:
            RemoteProtocolError: SESSION_OVER; the sender has no part in this round.
        """
        index = self.index_of.get(sender)
        if index is None or index not in allowed:
            raise ErrorCode.SESSION_OVER.error(
                f"{sender!r} is not part of this round",
                sender=sender,
                fix="Wait for the next session of the task.",
            )
        return index

    def neighbourhood(self, index: int) -> Envelope:
        """Return one client's part of the roster, with its proof (R5.2-23)."""
        shown = sorted((index, *self.graph.mask_peers(index)))
        frame = replace(
            self.frame,
            adverts={each: self.frame.adverts[each] for each in shown},
            reader=index,
            proof=self.tree.proof(shown),
        )
        return Envelope(Roster, frame.encode())


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The server's rules for credentials, the same as its clients'.

    Attributes:
        rules: Of the session.
        verified: Cache of credentials verified in earlier sessions.
    """

    rules: EnrolmentRules
    verified: VerifiedCredentials = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class AdvertiseKeys:
    """Invited clients advertise their public keys."""

    ROUND: ClassVar[Round] = Round.ADVERTISE_KEYS

    session: Session
    invited: frozenset[str] | None
    excluded: frozenset[str]  # PROTOCOL §5.7
    adverts: dict[str, Advert]  # U1, so far
    keys: set[bytes]  # every public key in `adverts`
    enrolment: Enrolment | None = None  # in profiles that distrust the server

    def is_invited(self, identity: str) -> bool:
        """Whether a client may advertise."""
        if identity in self.excluded:
            return False
        return self.invited is None or identity in self.invited


@dataclass(frozen=True, slots=True)
class RosterFixed:
    """The common part of the states behind AdvertiseKeys."""

    session: Session
    cohort: FixedCohort


@dataclass(frozen=True, slots=True)
class ChooseEdges(RosterFixed):
    """Round 2: clients of U1 draw their neighbours."""

    ROUND: ClassVar[Round] = Round.CHOOSE_EDGES

    opening: Envelope  # the roster, encoded once for all clients
    edges: dict[int, Edges] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShareKeys(RosterFixed):
    """Clients send sealed shares to their neighbours."""

    ROUND: ClassVar[Round] = Round.SHARE_KEYS

    opening: Envelope  # the roster, encoded once for all clients
    expected: frozenset[int]  # U1, or its members that have drawn neighbours
    bundles: dict[int, Bundles] = field(repr=False)  # U2, so far
    # of U2, in profiles with signatures
    roster_proofs: dict[int, RosterProof] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MaskedInputCollection(RosterFixed):
    """Clients of U2 upload their masked inputs."""

    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    share_holders: frozenset[int]  # U2
    bitmap: bytes  # U2, encoded once for all clients
    noise: NoiseTerms
    ctx2: bytes
    bundles: Mapping[int, Bundles] = field(repr=False)
    roster_proofs: Mapping[int, RosterProof] = field(repr=False)
    uploads: dict[int, bytes]  # U3, so far: digest by index


@dataclass(frozen=True, slots=True)
class ConsistencyCheck(RosterFixed):
    """Round 5: clients of U3 sign the sets that they received."""

    ROUND: ClassVar[Round] = Round.CONSISTENCY_CHECK

    share_holders: frozenset[int]
    survivors: frozenset[int]  # U3
    opening: Envelope  # U3, encoded once for all clients
    noise_layers: tuple[int, ...]  # layers that survivors reveal, ascending
    ctx2: bytes
    ctx3: bytes
    uploads: Mapping[int, bytes]
    roster_proofs: Mapping[int, RosterProof] = field(repr=False)  # of U2 (R5.3-13)
    signatures: dict[int, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unmasking(RosterFixed):
    """Clients of U3 reveal one share per dealer."""

    ROUND: ClassVar[Round] = Round.UNMASKING

    share_holders: frozenset[int]
    survivors: frozenset[int]  # U3
    survivors_shown: Envelope  # U3, encoded once for all clients
    opening: Envelope  # the same, or the quorum that has signed it
    noise_layers: tuple[int, ...]  # layers that survivors reveal, ascending
    ctx2: bytes
    uploads: Mapping[int, bytes]
    answers: dict[int, SharesAnswer] = field(repr=False)  # U5, so far


@dataclass(frozen=True, slots=True)
class Summing(RosterFixed):
    """All secrets are rebuilt; the runner removes the masks."""

    ROUND: ClassVar[Round] = Round.UNMASKING

    survivors: frozenset[int]
    job: ComputeSum = field(repr=False)


@dataclass(frozen=True, slots=True)
class Completed(RosterFixed):
    """A sum exists; every secret is erased.

    Attributes:
        outcome: The outcome for the clients of U3.
        survivors: U3 by name: the clients that are charged, at every request.
    """

    ROUND: ClassVar[Round] = Round.FINISHED

    outcome: Released
    survivors: frozenset[str]


@dataclass(frozen=True, slots=True)
class Failed:
    """The session is over without a sum; every secret is erased.

    Attributes:
        session: The part of every state.
        outcome: The outcome for all clients outside of U3.
        survivors: U3, by name; empty when it was never fixed.
        was_unmasked: Whether the secrets of U3 had been rebuilt, so that this server
            could have known the sum (PROTOCOL §5.6).
    """

    ROUND: ClassVar[Round] = Round.FINISHED

    session: Session
    outcome: Aborted
    survivors: frozenset[str] = frozenset()
    was_unmasked: bool = False


ServerState = (
    AdvertiseKeys
    | ChooseEdges
    | ShareKeys
    | MaskedInputCollection
    | ConsistencyCheck
    | Unmasking
    | Summing
    | Completed
    | Failed
)
ServerStep = Step[ServerState, ServerOutput]


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
        raise ErrorCode.LOCAL_MISUSE.error(
            "the session is being summed: its clients are charged whether or not the "
            "sum is released",
            fix="Wait for the sum, or discard it explicitly.",
        )
    survivors = state.cohort.names_of(state.survivors)
    failed = Failed(
        state.session,
        Aborted(Fate.NOT_INCLUDED, event.code, event.reason),
        survivors,
        was_unmasked=True,
    )
    return Step(failed)


def end_too_few(  # noqa: PLR0913, PLR0917 - one sentence and what it is about
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
