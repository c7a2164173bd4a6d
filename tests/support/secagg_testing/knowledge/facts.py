"""What the adversary saw and holds: the facts that `closure` draws conclusions from.

The adversary is every aggregator, whatever it sends, and the corrupt clients.

Rule 1: all that reached the server is a fact: accepted, refused, late or repeated.
Rule 2: an honest client acts on its last message.  What it sends is therefore
        read under the roster, U2 and U3 that were said to it before.  Where sets are
        signed, the signatures say which set is meant.
Rule 3: secrets of honest clients do not come here.  The one exception is the seed
        that goes with a theft: it only serves to recognise what was found.
Rule 4: what no client could accept (a roster that does not decode or leaves it out, a
        bitmap of another size) is passed over: nothing is computed from it.
Rule 5: what a client is told moves it, whichever aggregator says it.  An honest
        aggregator keeps masked inputs and answers to itself: they are facts only where
        another one hears them.  Sealed bundles are facts in any case: their receivers
        may be corrupt.

Nothing here knows a driver: the code that runs a session calls the methods of `Facts`,
and may call them twice for the same bytes.

Source:
    Layouts of roster, bundles, bitmaps and shares: PROTOCOL §3, §5; masks: §6.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from secagg.crypto.canonical import Writer
from secagg.crypto.modular import UnsignedArray
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import SignatureError, verify
from secagg.crypto.transcript import decode_set, domain_tag, encode_set
from secagg.distributed_dp import read_noise_terms
from secagg.errors import RemoteProtocolError
from secagg.protocol import context
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.neighbours import DrawnGraph, SharingGraph, sharing_graph
from secagg.protocol.messages import (
    Advert,
    Bundles,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Envelope,
    Neighbourhood,
    Quorum,
    Roster,
    RosterFrame,
    Shares,
    Survivors,
)
from secagg.protocol.noise_terms import NoiseReader, NoiseTerms, noise_terms
from secagg.protocol.parameters import ProtocolParameters


class SelfMask(NamedTuple):
    """The mask that a client expands from its own seed b, under one ctx2."""

    client: int


class PairMask(NamedTuple):
    """The mask that two clients share under one ctx2, by roster index."""

    low: int
    high: int


MaskName = SelfMask | PairMask


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One session, as it was offered."""

    descriptor: SessionDescriptor
    session_id: bytes
    ctx0: bytes
    read_noise: NoiseReader

    @property
    def parameters(self) -> ProtocolParameters:
        """The session's configuration."""
        return self.descriptor.parameters

    def __str__(self) -> str:
        return (
            f"session {self.descriptor.session_number} of task "
            f"{self.descriptor.task_id!r} ({self.session_id[:4].hex()})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class RosterView:
    """A roster that a party was sent, and what follows from it.

    What clients are shown of one roster is one view, however little each is shown.
    """

    session: Session
    size: int
    graph: SharingGraph
    ctx1: bytes
    # Where edges are drawn: what covers them, whom each was heard to draw, and who
    # each was told had drawn it.
    edge_root: bytes = b""
    drawn: dict[int, tuple[int, ...]] = field(repr=False, default_factory=dict)
    drawers: dict[int, tuple[int, ...]] = field(repr=False, default_factory=dict)
    adverts: dict[int, Advert] = field(repr=False, default_factory=dict)
    index_of: dict[str, int] = field(repr=False, default_factory=dict)

    def identity(self, index: int) -> str:
        """Return the name at a roster index."""
        return self.adverts[index].identity

    def show(self, adverts: Mapping[int, Advert]) -> None:
        """Add what a party was shown of it."""
        self.adverts.update(adverts)
        self.index_of.update((a.identity, i) for i, a in adverts.items())


@dataclass(frozen=True, slots=True, eq=False)
class MaskView:
    """A roster and a set U2 that a party was sent: what its masks are bound to."""

    roster: RosterView
    share_holders: frozenset[int]
    ctx2: bytes

    def masks_of(self, client: int) -> dict[MaskName, int]:
        """Return the masks that a client adds to its input, with their signs."""
        masks: dict[MaskName, int] = {SelfMask(client): 1}
        for peer in self.roster.graph.mask_peers(client):
            if peer in self.share_holders:
                pair = PairMask(min(client, peer), max(client, peer))
                masks[pair] = 1 if client == pair.low else -1
        return masks


@dataclass(frozen=True, slots=True, eq=False)
class SealedBundles:
    """The sealed bundles of one dealer, one per neighbour, ascending by index."""

    view: RosterView
    dealer: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class MaskedVector:
    """One masked input y, and the masks in it."""

    view: MaskView
    sender: str
    residues: UnsignedArray = field(repr=False)
    masks: Mapping[MaskName, int] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One holder's shares, one per dealer, and the set U3 that it was told."""

    view: MaskView
    holder: int
    survivors: frozenset[int]
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SignedSet:
    """One U3 under one ctx2, and who has signed it.

    Attributes:
        view: Roster and U2.
        survivors: U3.
        signer: Roster index.
    """

    view: MaskView
    survivors: frozenset[int]
    signer: int


@dataclass(frozen=True, slots=True, eq=False)
class Theft:
    """What a thief finds at an honest client.

    Attributes:
        identity: Whose machine it is.
        when: For the report, such as "after the answer".
        contents: Everything that was found, in any order and layout.
        seed: The seed of that client's session, to recognise secrets by.
    """

    identity: str
    when: str
    contents: bytes = field(repr=False)
    seed: SecretBytes


class Stray(NamedTuple):
    """A client names a session to another aggregator than that of its offer.

    Attributes:
        session: Which.
        client: The sender.
        aggregator: The receiver.
    """

    session: Session
    client: str
    aggregator: str


@dataclass(slots=True)
class _Told:
    """The last usable messages to one client in one session."""

    roster: RosterView | None = None
    masks: MaskView | None = None
    survivors: frozenset[int] | None = None
    drawn: tuple[int, ...] | None = None  # by itself
    # Every U3 so far, for which it may have signed.
    shown: dict[tuple[bytes, frozenset[int]], MaskView] = field(default_factory=dict)


class Facts:
    """Collects facts over all sessions of one task.

    Args:
        honest: Aggregators that are not the adversary's, by name; see rule 5.

    Attributes:
        honest: The same.
        strays: What clients sent about a session to another aggregator.
        rosters: Every usable roster that a party was sent.
        seeds: Seeds of the corrupt clients, by name.
        stolen: Clients whose identity keys the adversary has; see `identity_key`.
        bundles: Sealed bundles that reached the server.
        vectors: Distinct masked inputs that reached the server.
        answers: Distinct answers that reached the server.
        thefts: What was found at honest clients.
        survivors: The sets U3 that a party was sent, by ctx2.
        adverts: The adverts that each client has sent, by session id and name.
        signed: The sets U3 that a party has signed.
    """

    def __init__(self, *, honest: Collection[str] = ()) -> None:
        self.honest: Final = frozenset(honest)
        self.strays: set[Stray] = set()
        self.rosters: list[RosterView] = []
        self.seeds: dict[str, list[SecretBytes]] = {}
        self.stolen: set[str] = set()
        self.bundles: list[SealedBundles] = []
        self.vectors: list[MaskedVector] = []
        self.answers: list[Answer] = []
        self.thefts: list[Theft] = []
        self.survivors: dict[bytes, set[frozenset[int]]] = {}
        self.adverts: dict[tuple[bytes, str], set[Advert]] = {}
        self.signed: set[SignedSet] = set()
        self._sessions: dict[bytes, Session] = {}
        self._roster_of: dict[tuple[bytes, bytes], RosterView | None] = {}
        self._view_of_roster: dict[bytes, RosterView] = {}
        self._view_of_edges: dict[tuple[bytes, bytes], RosterView] = {}
        self._view_of: dict[bytes, MaskView] = {}
        self._told: dict[tuple[bytes, str], _Told] = {}
        self._heard: set[tuple[bytes, str, str, bytes]] = set()

    # --- what the adversary has -----------------------------------------------------

    def session(
        self,
        descriptor: SessionDescriptor,
        read_noise: NoiseReader = read_noise_terms,
    ) -> None:
        """Record that a session was offered, before any message in it."""
        session_id = descriptor.session_id
        ctx0 = context.session_context(descriptor)
        self._sessions.setdefault(
            session_id, Session(descriptor, session_id, ctx0, read_noise)
        )

    def corrupt(self, identity: str, seed: SecretBytes) -> None:
        """Give the adversary the whole state of a client: all follows from its seed.

        Args:
            identity: The client; it counts as corrupt in every session.
            seed: Of one of its sessions; call again for the next one's.
        """
        self.seeds.setdefault(identity, []).append(seed)

    def identity_key(self, identity: str) -> None:
        """Give the adversary a client's identity key, and nothing of its sessions.

        Who has it can sign anything in that client's name: it counts as a colluder
        (PROTOCOL §2.1).  What its owner masks stays as honest as the owner is.
        """
        self.stolen.add(identity)

    def can_sign_as(self, identity: str) -> bool:
        """Whether a signature of a client may be the adversary's."""
        return identity in self.seeds or identity in self.stolen

    def disk(
        self, identity: str, when: str, contents: bytes, *, seed: SecretBytes
    ) -> None:
        """Record what a thief finds at an honest client; see `Theft`."""
        self.thefts.append(Theft(identity, when, contents, seed))

    # --- what the server says -------------------------------------------------------

    def on_update(self, session_id: bytes, receiver: str, envelope: Envelope) -> None:
        """Record any message of the server, as this client received it."""
        try:
            message = envelope.open()
        except RemoteProtocolError:
            return  # rule 4
        match message:
            case Roster() | Neighbourhood():
                self.on_roster(session_id, receiver, envelope.data)
            case EdgesPublished():
                self.on_edges(session_id, receiver, message)
            case Delivery(bitmap, _):
                self.on_share_holders(session_id, receiver, bitmap)
            case Survivors(bitmap):
                self.on_survivors(session_id, receiver, bitmap)
            case Quorum():
                self.on_quorum(session_id, receiver, message)

    def on_roster(self, session_id: bytes, receiver: str, roster: bytes) -> None:
        """Record the canonical bytes of a roster, as this client received it."""
        told = self._sent_to(session_id, receiver)
        view = self._roster(self._session(session_id), roster)
        if view is None or receiver not in view.index_of:
            return  # rule 4
        # What has been drawn since is drawn on the same roster.
        if told.roster is None or view.ctx1 != told.roster.ctx1:
            told.roster, told.masks, told.survivors = view, None, None

    def on_edges(self, session_id: bytes, receiver: str, shown: EdgesPublished) -> None:
        """Record which clients drew this one, as it was informed.

        What it shares and masks with follows from that and from what it drew itself,
        whatever others were told.
        """
        told = self._sent_to(session_id, receiver)
        if told.roster is None or told.drawn is None:
            return  # rule 4
        view = self._edges(told.roster, shown.edge_root)
        own = view.index_of[receiver]
        view.drawn.update((index, edges.drawn) for index, edges in shown.drawers)
        view.drawn[own] = told.drawn
        view.drawers[own] = tuple(index for index, _ in shown.drawers)
        if view is not told.roster:
            told.roster, told.masks, told.survivors = view, None, None

    def on_share_holders(self, session_id: bytes, receiver: str, bitmap: bytes) -> None:
        """Record the bitmap of U2, as this client received it."""
        told = self._sent_to(session_id, receiver)
        share_holders = _members(bitmap, told.roster)
        if told.roster is None or share_holders is None:
            return
        view = self._masks(told.roster, share_holders, bitmap)
        if view is not told.masks:
            told.masks, told.survivors = view, None

    def on_survivors(self, session_id: bytes, receiver: str, bitmap: bytes) -> None:
        """Record the bitmap of U3, as this client received it."""
        told = self._sent_to(session_id, receiver)
        survivors = _members(bitmap, told.roster)
        if told.masks is not None and survivors is not None:
            told.survivors = survivors
            told.shown[told.masks.ctx2, survivors] = told.masks
            self.survivors.setdefault(told.masks.ctx2, set()).add(survivors)

    def on_quorum(self, session_id: bytes, receiver: str, quorum: Quorum) -> None:
        """Record for which of the sets that it received a client receives a quorum."""
        told = self._sent_to(session_id, receiver)
        for (_, survivors), view in told.shown.items():
            if any(
                _is_signed(SignedSet(view, survivors, signer), signature)
                for signer, signature in quorum.signatures
                if signer in view.roster.adverts
            ):
                told.masks, told.survivors = view, survivors

    # --- what the server hears ------------------------------------------------------

    def named(self, session_id: bytes, client: str, aggregator: str) -> None:
        """Record that a client names a session to an aggregator, in any call."""
        session = self._session(session_id)
        if aggregator != session.descriptor.aggregator:
            self.strays.add(Stray(session, client, aggregator))

    def on_request(
        self, session_id: bytes, sender: str, envelope: Envelope, *, by: str = ""
    ) -> None:
        """Record any message of a client, as it reached the server.

        Args:
            session_id: Of which session.
            sender: Who sent it.
            envelope: What.
            by: The aggregator that receives it; "" is the one of the session's offer.
        """
        match envelope.open():
            case Advert() as advert:
                self.adverts.setdefault((session_id, sender), set()).add(advert)
            case Edges(drawn):
                self._sent_to(session_id, sender).drawn = drawn
            case Bundles(sealed):
                self.on_bundles(session_id, sender, sealed)
            case Consistency(signature):
                self.on_signature(session_id, sender, signature)
            case Shares(revealed):
                self.on_answer(session_id, sender, revealed, by=by)

    def on_bundles(self, session_id: bytes, sender: str, bundles: bytes) -> None:
        """Record the sealed bundles of a client, as they reached the server."""
        view = self._sent_to(session_id, sender).roster
        if self._is_new(session_id, sender, "bundles", bundles) and view is not None:
            self.bundles.append(SealedBundles(view, view.index_of[sender], bundles))

    def on_vector(
        self,
        session_id: bytes,
        sender: str,
        residues: UnsignedArray,
        *,
        masks: Mapping[MaskName, int] | None = None,
        by: str = "",
    ) -> None:
        """Record a masked input, as it reached the server.

        Args:
            session_id: Of which session.
            sender: Who sent it.
            residues: The unpacked vector, entries in [0, m), shape (d,).
            masks: What the sender added, where that is known to differ from
                PROTOCOL §6: how a build with faulty masks is described.
            by: The aggregator that receives it; see `on_request`.

        Raises:
            ValueError: The sender, which is not corrupt, was told no roster and no set
                U2 yet.  Which masks the vector carries is then unknown.
        """
        if self._is_recorded(session_id, by):
            return
        if not self._is_new(session_id, sender, "vector", residues.tobytes()):
            return
        view = self._sent_to(session_id, sender).masks
        if view is None:
            if sender in self.seeds:
                return  # its input is known anyway
            raise ValueError(f"{sender!r} masks an input, but was told no usable U2")
        if masks is None:
            masks = view.masks_of(view.roster.index_of[sender])
        self.vectors.append(MaskedVector(view, sender, residues.copy(), dict(masks)))

    def on_signature(self, session_id: bytes, sender: str, signature: bytes) -> None:
        """Record which of the sets that it received a client has signed."""
        shown = self._sent_to(session_id, sender).shown
        for (_, survivors), view in shown.items():
            signed = SignedSet(view, survivors, view.roster.index_of[sender])
            if _is_signed(signed, signature):
                self.signed.add(signed)

    def on_answer(
        self, session_id: bytes, sender: str, shares: bytes, *, by: str = ""
    ) -> None:
        """Record the shares that a client reveals, as they reached the server."""
        told = self._sent_to(session_id, sender)
        if (
            not self._is_recorded(session_id, by)
            and self._is_new(session_id, sender, "answer", shares)
            and told.masks is not None
            and told.survivors is not None
        ):
            holder = told.masks.roster.index_of[sender]
            self.answers.append(Answer(told.masks, holder, told.survivors, shares))

    # --- what follows from the bytes --------------------------------------------------

    def _session(self, session_id: bytes) -> Session:
        if session_id not in self._sessions:
            raise ValueError(f"session {session_id[:4].hex()} was never offered")
        return self._sessions[session_id]

    def _is_recorded(self, session_id: bytes, by: str) -> bool:
        """Return whether an honest aggregator receives a message (rule 5)."""
        return (by or self._session(session_id).descriptor.aggregator) in self.honest

    def _sent_to(self, session_id: bytes, client: str) -> _Told:
        return self._told.setdefault(
            (self._session(session_id).session_id, client), _Told()
        )

    def _is_new(self, session_id: bytes, sender: str, what: str, data: bytes) -> bool:
        # A repetition is read as it was the first time, whatever was said since.
        entry = (session_id, sender, what, data)
        if entry in self._heard:
            return False
        self._heard.add(entry)
        return True

    def _roster(self, session: Session, data: bytes) -> RosterView | None:
        key = (session.session_id, data)
        if key not in self._roster_of:
            view = _read_roster(session, data)
            if view is not None:
                known = self._view_of_roster.setdefault(view.ctx1, view)
                if known is view:
                    self.rosters.append(view)
                known.show(view.adverts)
                view = known
            self._roster_of[key] = view
        return self._roster_of[key]

    def _edges(self, roster: RosterView, edge_root: bytes) -> RosterView:
        """Return the view of a roster in which edges have been drawn."""
        key = (roster.ctx1, edge_root)
        if key not in self._view_of_edges:
            drawn: dict[int, tuple[int, ...]] = {}
            drawers: dict[int, tuple[int, ...]] = {}
            view = replace(
                roster,
                graph=DrawnGraph(drawn, drawers),
                edge_root=edge_root,
                drawn=drawn,
                drawers=drawers,
            )
            self.rosters.append(self._view_of_edges.setdefault(key, view))
        return self._view_of_edges[key]

    def _masks(
        self, roster: RosterView, share_holders: frozenset[int], bitmap: bytes
    ) -> MaskView:
        parameters = roster.session.parameters
        try:
            noise = noise_terms(
                parameters,
                len(share_holders),
                roster.session.read_noise,
                clients=roster.size,
            )
        except RemoteProtocolError:
            noise = NoiseTerms(b"", tolerated_losses=0)  # no client masks for such a U2
        ctx2 = context.mask_context(
            roster.ctx1,
            bitmap,
            parameters.suite,
            edge_root=roster.edge_root,
            noise_context=noise.context,
        )
        return self._view_of.setdefault(ctx2, MaskView(roster, share_holders, ctx2))


def _read_roster(session: Session, data: bytes) -> RosterView | None:
    parameters = session.parameters
    try:
        roster, frame = Roster.decode(data), RosterFrame.decode(data)
        if not frame.size:
            return None  # rule 4
        graph = sharing_graph(parameters, frame.size, frame.graph_seed)
        ctx1 = context.roster_context(session.ctx0, frame, parameters.suite)
    except RemoteProtocolError:
        return None  # rule 4
    view = RosterView(session, frame.size, graph, ctx1)
    if isinstance(roster, Neighbourhood):
        view.show(roster.adverts)
    else:
        view.show(dict(enumerate(roster.adverts)))
    return view


def _is_signed(signed: SignedSet, signature: bytes) -> bool:
    """Return whether a signature is that of a set (PROTOCOL §5.4)."""
    view, roster = signed.view, signed.view.roster
    credential = roster.adverts[signed.signer].credential
    if credential is None:
        return False  # rule 4
    suite = roster.session.parameters.suite
    bitmap = encode_set(signed.survivors, roster.size)
    ctx3 = context.unmask_context(view.ctx2, bitmap, suite)
    tag = domain_tag("client", "consistency", suite)
    message = Writer().fixed(tag).blob(ctx3).getvalue()
    try:
        verify(credential.identity_key, message, signature)
    except SignatureError:
        return False
    return True


def _members(bitmap: bytes, view: RosterView | None) -> frozenset[int] | None:
    if view is None:
        return None
    try:
        return frozenset(decode_set(bitmap, view.size))
    except ValueError:
        return None  # rule 4
