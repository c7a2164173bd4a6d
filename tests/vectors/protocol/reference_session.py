"""Both sides of a session, slowly: PROTOCOL §5 on top of the reference.

Rule 1: every secret is given, none is drawn, so that a run is a matter of record.
Rule 2: the checks stand in the order of the specification; the first that fails
        names the code of `Refused`.
Rule 3: a `Client` is handed messages and returns messages; so is a `Server`.  Who is
        lost, and when a round closes, is the caller's business.

Left out, because they are no matter of bytes: a client's own policy and memory
(R5.0-2 to R5.0-4), transport, deadlines, durability.
"""

import hashlib
import itertools
from dataclasses import dataclass, field, replace

from reference import (
    BAD_ENCODING,
    BAD_PROOF,
    BAD_SHARE_CIPHERTEXT,
    BAD_SIGNATURE,
    BUNDLE_SIZE,
    CURIOUS,
    DEADLINE,
    DISPUTED,
    DUPLICATE_KEY,
    EQUIVOCATION,
    NO_QUORUM,
    POLICY_VIOLATION,
    RECONSTRUCTION_FAILED,
    ROSTER_TOO_LARGE,
    ROSTER_TOO_SMALL,
    ROUNDS,
    SELF_MISSING,
    SESSION_OVER,
    SHARE_CONFUSION,
    SHARE_SIZE,
    SPARSE,
    TOO_FEW_ANSWERS,
    TOO_MANY_DROPOUTS,
    U2_TOO_SMALL,
    U3_INVALID,
    U3_TOO_SMALL,
    UNAUTHENTICATED,
    UNEXPECTED_MESSAGE,
    VIEW_DIFFERS,
    Decoder,
    Offer,
    Refused,
    bitmap,
    blob,
    context_0,
    context_1,
    context_2,
    context_3,
    decode_share,
    encode_share,
    holders,
    members_of,
    neighbours,
    pack,
    rebuild,
    residue_bits,
    roster_order,
    session_id,
    share_at,
    tag,
    u16,
    u32,
    unpack,
    view_beside_upload,
)
from reference_edges import Edges, Lists, Reader, set_apart
from reference_enrolment import Credential, check_credential
from reference_keys import (
    Channel,
    MaskKeys,
    MaskStream,
    agree,
    check_public_key,
    public_key,
)
from reference_noise import NoiseRule, noise_context
from reference_ring import is_safe
from reference_roster import (
    Advert,
    Roster,
    commitment_to,
    decode_roster,
    noise_commitment,
)
from reference_signature import holds, sign

ADVERTISE, CHOOSE, SHARE, MASK, CONSISTENCY, UNMASK = 1, 2, 3, 4, 5, 6
RELEASE, ABORT = 8, 9
INCLUDED = 2  # the fate of an input that U3 names
SIGNATURE_SIZE = 64
DIGEST_SIZE = 32
SEED_SIZE = 32


@dataclass(frozen=True)
class Secrets:
    """All that a client draws, and its encoded input."""

    identity: str
    channel_private_key: bytes
    mask_private_key: bytes
    self_mask_seed: bytes
    key_coefficients: list[list[int]]  # [p][i] goes with x^(p+1) in limb i
    seed_coefficients: list[list[int]]
    values: list[int]
    identity_seed: bytes = b""
    credential: Credential | None = None
    noise_seeds: tuple[bytes, ...] = ()
    steps: tuple[int, ...] = ()  # from its own index to those whom it draws

    def drawn(self, index: int, count: int) -> tuple[int, ...]:
        return tuple(sorted((index + step) % count for step in self.steps))


@dataclass(frozen=True)
class Noise:
    """What a noise block and the sampler's tables settle (§3.5)."""

    rule: NoiseRule
    tables: tuple[str, ...]

    def context(self, suite: int, count: int) -> bytes:
        return noise_context(suite, self.rule, count, list(self.tables))


@dataclass(frozen=True)
class Known:
    """What both sides know of a session besides its offer."""

    revoked: frozenset[int] = frozenset()
    noise: Noise | None = None


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def delivery_of(share_holders: bytes, bundles: bytes) -> bytes:
    return blob(share_holders) + blob(bundles)


def quorum_of(
    signatures: dict[int, bytes], proofs: dict[int, bytes] | None = None
) -> bytes:
    """Both lists of §3.4; a proof is a digest and the signature over it."""
    lists = (signatures, proofs or {})
    return b"".join(
        u32(len(rows)) + b"".join(u32(index) + rows[index] for index in sorted(rows))
        for rows in lists
    )


@dataclass
class View:
    """What both sides derive from the same bytes."""

    offer: Offer
    known: Known = field(default_factory=Known)
    sid: bytes = b""
    contexts: list[bytes] = field(default_factory=list)  # ctx0, ctx1, ctx2, ctx3
    count: int = 0
    adverts: dict[int, Advert] = field(default_factory=dict)
    is_ring: bool = False
    neighbours: list[list[int]] = field(default_factory=list)  # who share masks
    receivers: list[list[int]] = field(default_factory=list)  # of bundles
    edge_root: bytes = b""
    holders: list[list[int]] = field(default_factory=list)
    share_holders: set[int] = field(default_factory=set)
    survivors: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sid = session_id(self.offer)
        self.contexts = [context_0(self.offer)]

    @property
    def suite(self) -> int:
        return self.offer.parameters.suite

    @property
    def floor(self) -> int:
        return max(self.offer.parameters.threshold, self.offer.parameters.min_survivors)

    @property
    def is_sparse(self) -> bool:
        return self.offer.parameters.profile == SPARSE

    @property
    def is_signed(self) -> bool:
        return self.offer.parameters.profile != CURIOUS

    def check_credential(self, advert: Advert) -> None:
        """R2.1-2 to R2.1-6."""
        trust = self.offer.parameters.trust
        if trust is None or advert.credential is None:
            return
        check_credential(
            advert.credential,
            advert.identity,
            trust,
            self.offer.session_end,
            self.known.revoked,
        )

    def check_size(self, count: int) -> None:
        """R5.2-2."""
        if count < self.offer.parameters.min_clients:
            raise Refused(ROSTER_TOO_SMALL)
        if count > self.offer.parameters.max_clients:
            raise Refused(ROSTER_TOO_LARGE)

    def check_seed(self, roster: Roster) -> None:
        """R5.2-10."""
        degree = self.offer.parameters.degree
        on_ring = degree > 0 and not self.is_sparse
        if bool(roster.graph_seed) != on_ring:
            raise Refused(POLICY_VIOLATION)
        if on_ring and roster.count < degree + 2:
            raise Refused(POLICY_VIOLATION)

    def check_overlap(self, count: int) -> None:
        """R5.2-7."""
        rules = self.offer.parameters
        if self.is_signed and 2 * rules.quorum <= count + rules.colluders:
            raise Refused(POLICY_VIOLATION)

    def check_odds(self, count: int) -> None:
        """R5.2-8 and R5.9-2: of the graph, at the size of the roster itself."""
        rules = self.offer.parameters
        if rules.degree == 0:
            return
        holds = rules.edges_are_safe if self.is_sparse else rules.is_drawn_safely
        if not holds(count):
            raise Refused(POLICY_VIOLATION)

    def set_edges(self, root: bytes, lists: dict[int, list[int]]) -> None:
        """Take the lists as far as they are known: a client knows its own part."""
        self.edge_root = root
        self.receivers = [sorted(lists.get(index, [])) for index in range(self.count)]
        self.holders = self.receivers
        self.neighbours = [
            sorted({*self.receivers[index], *self.senders(index)})
            for index in range(self.count)
        ]

    def senders(self, receiver: int) -> list[int]:
        """Who deals to a client, besides itself."""
        return [
            dealer for dealer, others in enumerate(self.receivers) if receiver in others
        ]

    def draw_graph(self, count: int) -> None:
        degree = self.offer.parameters.degree
        if self.is_sparse:
            self.set_edges(b"", {})  # no client has drawn yet
            return
        self.neighbours = neighbours(degree, count)
        self.receivers = self.neighbours
        self.holders = holders(degree, self.neighbours)
        self.is_ring = degree > 0

    def set_roster(self, roster: Roster, top: bytes) -> None:
        """Derive ctx1; the roster was checked."""
        self.count, self.adverts = roster.count, roster.adverts
        self.draw_graph(roster.count)
        self.contexts.append(
            context_1(self.suite, self.contexts[0], self.count, top, roster.graph_seed)
        )

    def set_share_holders(self, data: bytes) -> None:
        self.share_holders = members_of(data, self.count)
        noise = self.known.noise
        drawn = (
            b"" if noise is None else noise.context(self.suite, len(self.share_holders))
        )
        self.contexts.append(
            context_2(
                self.suite,
                self.contexts[1],
                data,
                edge_root=self.edge_root,
                noise_context=drawn,
            )
        )

    def set_survivors(self, data: bytes) -> None:
        self.survivors = members_of(data, self.count)
        self.contexts.append(context_3(self.suite, self.contexts[2], data))

    def check_losses(self, survivors: set[int]) -> None:
        rules = self.offer.parameters
        if len(self.share_holders - survivors) > rules.max_dropouts:
            raise Refused(TOO_MANY_DROPOUTS)
        if self.count - len(survivors) > rules.max_losses:
            raise Refused(TOO_MANY_DROPOUTS)
        self.layers_taken_back(survivors)

    def layers_taken_back(self, survivors: set[int]) -> list[int]:
        """I(d) of §3.5; nothing without noise."""
        noise = self.known.noise
        if noise is None:
            return []
        lost = len(self.share_holders) - len(survivors) + self.unseen
        return noise.rule.taken_back(len(self.share_holders), lost)

    @property
    def unseen(self) -> int:
        """R5.9-13: s0 - 1 in profile 3."""
        rules = self.offer.parameters
        if not self.is_sparse:
            return 0
        return set_apart(rules, self.count, rules.graph_bits + 1)

    def abscissa(self, dealer: int, holder: int) -> int:
        return self.holders[dealer].index(holder) + 1

    def short_of_holders(self, dealers: set[int], left: set[int]) -> bool:
        threshold = self.offer.parameters.threshold
        return any(len(left.intersection(self.holders[d])) < threshold for d in dealers)

    def add_mask(self, total: list[int], key: tuple[bytes, bytes], sign: int) -> None:
        modulus = self.offer.parameters.modulus
        mask = MaskStream(*key, modulus).coordinates(len(total))
        for place, entry in enumerate(mask):
            total[place] = (total[place] + sign * entry) % modulus

    @property
    def mask_keys(self) -> MaskKeys:
        return MaskKeys(self.suite, self.sid, self.contexts[2])

    def bundles_to_sign(self, sender: int, bundles: bytes) -> bytes:
        return self.digest_to_sign(sender, hashlib.sha256(bundles).digest())

    def digest_to_sign(self, sender: int, hashed: bytes) -> bytes:
        prefix = tag("client", "bundles", self.suite) + blob(self.contexts[1])
        return prefix + u32(sender) + hashed

    @property
    def shown(self) -> bytes:
        """What travels beside an upload."""
        return view_beside_upload(self.suite, self.contexts[2])

    def set_to_sign(self) -> bytes:
        return tag("client", "consistency", self.suite) + blob(self.contexts[3])

    def signed_by(self, index: int, message: bytes, signature: bytes) -> bool:
        credential = self.adverts[index].credential
        return credential is not None and holds(credential.key, message, signature)


def check_keys(adverts: list[Advert]) -> None:
    """R5.2-4 and R5.2-5."""
    for advert in adverts:
        check_public_key(advert.channel_key)
        check_public_key(advert.mask_key)
    keys = [key for advert in adverts for key in advert.all_keys()]
    if len(set(keys)) != len(keys):
        raise Refused(DUPLICATE_KEY)


def read_rows(decoder: Decoder, size: int) -> list[tuple[int, bytes]]:
    """A counted list of indices, strictly ascending, with some bytes each."""
    rows = []
    for _ in range(decoder.number(4)):
        row = decoder.number(4), decoder.take(size)
        rows.append(row)
    if any(one[0] >= other[0] for one, other in itertools.pairwise(rows)):
        raise Refused(BAD_ENCODING)
    return rows


def read_quorum(view: View, message: bytes) -> None:
    """R5.5-1 to R5.5-4, then R5.3-13."""
    decoder = Decoder(message)
    rows = read_rows(decoder, SIGNATURE_SIZE)
    proofs = read_rows(decoder, DIGEST_SIZE + SIGNATURE_SIZE)
    decoder.end()
    if len(rows) < view.offer.parameters.quorum:
        raise Refused(NO_QUORUM)
    if any(index not in view.survivors for index, _ in rows):
        raise Refused(U3_INVALID)
    signed = view.set_to_sign()
    if not all(view.signed_by(index, signed, made) for index, made in rows):
        raise Refused(BAD_SIGNATURE)
    others = view.survivors - {index for index, _ in rows}
    if [index for index, _ in proofs] != sorted(others):
        raise Refused(U3_INVALID)
    for index, proof in proofs:
        dealt = view.digest_to_sign(index, proof[:DIGEST_SIZE])
        if not view.signed_by(index, dealt, proof[DIGEST_SIZE:]):
            raise Refused(BAD_SIGNATURE)


class Client:
    """One client, from its advert to its answer."""

    def __init__(
        self, offer: Offer, secrets: Secrets, known: Known | None = None
    ) -> None:
        self.view = View(offer, known or Known())
        self.secrets = secrets
        self.index = -1
        self.edges = Edges(())
        self.received: dict[int, tuple[bytes, bytes]] = {}
        self.absent: set[int] = set()
        self.complaints: list[bytes] = []
        self._taken: dict[int, tuple[bytes, bytes]] = {}  # round: message and answer

    def take(self, round_number: int, message: bytes) -> bytes:
        """Take the message of a round; a repeat gets the same answer (§5)."""
        if round_number in self._taken:
            known, answer = self._taken[round_number]
            if known != message:
                raise Refused(EQUIVOCATION)
            return answer
        # The advert answers the offer; what opens the rounds after it comes in order.
        rounds = ROUNDS[self.view.offer.parameters.profile][1:]
        due = rounds[len(self._taken)] if len(self._taken) < len(rounds) else None
        if round_number != due:
            raise Refused(UNEXPECTED_MESSAGE)
        if round_number == UNMASK and self.view.is_signed:
            act = self._answer_quorum
        else:
            act = {
                CHOOSE: self._draw,
                SHARE: self._bundles_along if self.view.is_sparse else self._bundles,
                MASK: self._upload,
                CONSISTENCY: self._sign_set,
                UNMASK: self._answer_set,
            }[round_number]
        answer = act(message)
        self._taken[round_number] = message, answer
        return answer

    def end(self, kind: int, message: bytes) -> None:
        """The end as the server tells it: message 8 or 9."""
        decoder = Decoder(message)
        fate = decoder.number(1)
        if kind == RELEASE:
            if MASK not in self._taken:  # R5.6-1
                raise Refused(UNEXPECTED_MESSAGE)
            decoder.take(32)
            decoder.number(8)
            survivors = decoder.number(4)
            if fate != INCLUDED:  # R5.6-2, R5.6-4
                raise Refused(U3_INVALID)
        vouched = len(self.view.survivors)  # of the set that it has signed or answered
        if vouched and fate != INCLUDED:  # R5.6-2
            raise Refused(U3_INVALID)
        if kind != RELEASE:
            return
        if vouched:
            if survivors != vouched:
                raise Refused(U3_INVALID)
            return
        rules = self.view.offer.parameters  # R5.6-4
        least = max(rules.threshold, rules.min_survivors)
        if not least <= survivors <= len(self.view.share_holders):
            raise Refused(U3_INVALID)
        if self.view.is_signed:
            raise Refused(SESSION_OVER)

    def advert(self) -> bytes:
        mine, view = self.secrets, self.view
        advert = Advert(
            mine.identity,
            public_key(mine.channel_private_key),
            public_key(mine.mask_private_key),
            commitment_to(view.suite, view.sid, mine.identity, mine.self_mask_seed),
            tuple(
                noise_commitment(view.suite, view.sid, mine.identity, layer, seed)
                for layer, seed in enumerate(mine.noise_seeds)
            ),
            credential=mine.credential,
        )
        if not view.is_signed:
            return advert.encode()
        signed = advert.signed_bytes(view.suite, view.contexts[0])
        signature = self._signature(signed)
        return replace(advert, signature=signature).encode()

    def _signature(self, message: bytes) -> bytes:
        return sign(self.secrets.identity_seed, message)

    def _draw(self, message: bytes) -> bytes:
        """ChooseEdges."""
        self._take_roster(message)
        view = self.view
        edges = Edges(self.secrets.drawn(self.index, view.count))
        signed = edges.signed_bytes(view.suite, view.contexts[1], self.index)
        self.edges = replace(edges, signature=self._signature(signed))
        return self.edges.encode()

    def _bundles_along(self, message: bytes) -> bytes:
        """ShareKeys where neighbours were drawn."""
        view = self.view
        reader = Reader(
            view.offer.parameters,
            view.contexts[1],
            view.count,
            self.index,
            self.edges,
            view.signed_by,
        )
        view.set_edges(*reader.check(message))
        return self._dealt()

    def _bundles(self, message: bytes) -> bytes:
        """ShareKeys."""
        self._take_roster(message)
        return self._dealt()

    def _take_roster(self, message: bytes) -> None:
        roster = self._checked_roster(message)
        own = self.advert()
        self.index = next(
            index for index, row in roster.adverts.items() if row.encode() == own
        )
        self.view.set_roster(roster, roster.top(self.view.suite, self.view.contexts[0]))

    def _dealt(self) -> bytes:
        others = self.view.receivers[self.index]
        channels = [self._channel(v, sending=True) for v in others]
        bundles = b"".join(
            channel.seal(*self._shares_for(channel.receiver)) for channel in channels
        )
        if not self.view.is_signed:
            return bundles
        signed = self.view.bundles_to_sign(self.index, bundles)
        return bundles + self._signature(signed)

    def _checked_roster(self, message: bytes) -> Roster:
        view, rules = self.view, self.view.offer.parameters
        roster = decode_roster(message, rules)
        view.check_size(roster.count)
        own = self.advert()
        if roster.reader is None:
            if own not in [advert.encode() for advert in roster.adverts.values()]:
                raise Refused(SELF_MISSING)
        else:
            self._check_neighbourhood(roster, own)
        for advert in roster.adverts.values():
            advert.check_form(rules.profile)
        check_keys(list(roster.adverts.values()))
        for advert in roster.adverts.values():
            view.check_credential(advert)
        for advert in roster.adverts.values():
            advert.check_signature(view.suite, view.contexts[0])
        view.check_overlap(roster.count)
        view.check_seed(roster)
        view.check_odds(roster.count)
        return roster

    def _check_neighbourhood(self, roster: Roster, own: bytes) -> None:
        """R5.2-22 to R5.2-24, and the size that the neighbours follow from."""
        reader, degree = roster.reader, self.view.offer.parameters.degree
        mine = roster.adverts.get(-1 if reader is None else reader)
        if reader is None or mine is None or mine.encode() != own:
            raise Refused(SELF_MISSING)
        if degree == 0 or roster.count < degree + 2 or self.view.is_signed:
            raise Refused(POLICY_VIOLATION)
        around = neighbours(degree, roster.count)
        if set(roster.adverts) != {reader, *around[reader]}:
            raise Refused(BAD_PROOF)
        roster.top(self.view.suite, self.view.contexts[0])

    def _neighbours(self) -> list[int]:
        return self.view.neighbours[self.index]

    def _channel(self, other: int, *, sending: bool) -> Channel:
        view = self.view
        secret = agree(
            self.secrets.channel_private_key, view.adverts[other].channel_key
        )
        ends = (self.index, other) if sending else (other, self.index)
        abscissa = view.abscissa(*ends)
        return Channel(view.suite, view.sid, view.contexts[1], secret, *ends, abscissa)

    def _shares_for(self, holder: int) -> tuple[bytes, bytes]:
        mine = self.secrets
        abscissa = self.view.abscissa(self.index, holder)
        pairs = (
            (mine.mask_private_key, mine.key_coefficients),
            (mine.self_mask_seed, mine.seed_coefficients),
        )
        of_key, of_seed = (
            encode_share(share_at(secret, coefficients, abscissa))
            for secret, coefficients in pairs
        )
        return of_key, of_seed

    def _upload(self, message: bytes) -> bytes:
        """MaskedInputCollection."""
        view = self.view
        decoder = Decoder(message)
        share_holders, bundles = decoder.blob(len(message)), decoder.blob(len(message))
        decoder.end()
        members = members_of(share_holders, view.count)
        if self.index not in members:
            raise Refused(SELF_MISSING)
        own_holders = members.intersection(view.holders[self.index])
        threshold = view.offer.parameters.threshold
        if len(members) < view.floor or len(own_holders) < threshold:
            raise Refused(U2_TOO_SMALL)
        senders = [v for v in view.senders(self.index) if v in members]
        if len(bundles) != BUNDLE_SIZE * len(senders):
            raise Refused(BAD_SHARE_CIPHERTEXT)
        for sender, bundle in zip(senders, pieces(bundles, BUNDLE_SIZE), strict=True):
            try:
                pair = self._channel(sender, sending=False).open(bundle)
                for share in pair:
                    decode_share(share, SHARE_CONFUSION)
            except Refused as useless:
                self.complaints.append(u16(useless.code) + u32(sender))
                pair = bytes(SHARE_SIZE), bytes(SHARE_SIZE)
                self.absent.add(sender)
            self.received[sender] = pair
        own = self.index in view.holders[self.index]
        if len(senders) - len(self.absent) + own < threshold and not view.is_sparse:
            raise Refused(BAD_SHARE_CIPHERTEXT)
        view.set_share_holders(share_holders)
        return self._masked([v for v in self._neighbours() if v in members])

    def _masked(self, others: list[int]) -> bytes:
        view, mine = self.view, self.secrets
        total = list(mine.values)
        view.add_mask(total, view.mask_keys.own(mine.self_mask_seed, self.index), 1)
        for other in others:
            secret = agree(mine.mask_private_key, view.adverts[other].mask_key)
            key = view.mask_keys.pair(secret, self.index, other)
            view.add_mask(total, key, 1 if self.index < other else -1)
        return pack(total, residue_bits(view.offer.parameters.modulus))

    def _check_set(self, survivors: bytes) -> None:
        """§5.4: the set that is to be signed, or answered for."""
        view = self.view
        members = members_of(survivors, view.count)
        if not members <= view.share_holders or self.index not in members:
            raise Refused(U3_INVALID)
        if len(members) < view.floor:
            raise Refused(U3_TOO_SMALL)
        view.check_losses(members)
        if view.is_ring and not is_safe(
            view.offer.parameters, view.count, members, 0.0
        ):
            raise Refused(TOO_MANY_DROPOUTS)
        view.set_survivors(survivors)

    def _sign_set(self, survivors: bytes) -> bytes:
        """ConsistencyCheck."""
        self._check_set(survivors)
        return self._signature(self.view.set_to_sign())

    def _answer_set(self, survivors: bytes) -> bytes:
        """Unmasking where clients do not sign."""
        self._check_set(survivors)
        return self._answer()

    def _answer_quorum(self, message: bytes) -> bytes:
        """Unmasking where a quorum has signed."""
        read_quorum(self.view, message)
        return self._answer()

    def _answer(self) -> bytes:
        view = self.view
        held = dict(self.received)
        if self.index in view.holders[self.index]:
            held[self.index] = self._shares_for(self.index)
        dealers = sorted(held)
        places = {dealers.index(dealer) for dealer in self.absent}
        return (
            bitmap(places, len(dealers))
            + b"".join(
                held[dealer][1 if dealer in view.survivors else 0] for dealer in dealers
            )
            + b"".join(
                self.secrets.noise_seeds[layer]
                for layer in view.layers_taken_back(view.survivors)
            )
        )


class Server:
    """The server, from the first advert to the sum."""

    def __init__(self, offer: Offer, known: Known | None = None) -> None:
        self.view = View(offer, known or Known())
        self.roster: Roster | None = None
        self.adverts: dict[str, bytes] = {}
        self.edges: dict[int, bytes] = {}
        self.lists: Lists | None = None
        self.bundles: dict[int, bytes] = {}
        self.uploads: dict[int, bytes] = {}
        self.signatures: dict[int, bytes] = {}
        self.answers: dict[int, bytes] = {}
        self.complaints: dict[tuple[int, int], bytes] = {}
        self.open_round = ADVERTISE
        self._taken: dict[tuple[int, str], bytes] = {}

    def receive(
        self, round_number: int, sender: str, data: bytes, view: bytes | None = None
    ) -> None:
        """Take a message; R5-1 comes first.

        Of message 3 `data` is the vector that it names, and `view` its last field; None
        for what this server computes itself.
        """
        known = self._taken.get((round_number, sender))
        if known is not None:
            if known != data or view not in {None, self.view.shown}:
                raise Refused(EQUIVOCATION)
            return
        if round_number < self.open_round:
            raise Refused(DEADLINE)
        if round_number > self.open_round:
            raise Refused(UNEXPECTED_MESSAGE)
        self._receive_new(round_number, sender, data, view)
        self._taken[round_number, sender] = data

    def _receive_new(
        self, round_number: int, sender: str, data: bytes, shown: bytes | None
    ) -> None:
        if round_number == ADVERTISE:
            self._receive_advert(sender, data)
            return
        index, view = self.index_of(sender), self.view
        store, members, check = {
            CHOOSE: (self.edges, set(view.adverts), self._check_edges),
            SHARE: (
                self.bundles,
                set(self.edges) if view.is_sparse else set(view.adverts),
                self._check_bundles,
            ),
            MASK: (self.uploads, view.share_holders, self._check_upload),
            CONSISTENCY: (self.signatures, view.survivors, self._check_signature),
            UNMASK: (self.answers, view.survivors, self._check_answer),
        }[round_number]
        if index not in members:
            raise Refused(SESSION_OVER)
        if shown not in {None, view.shown if round_number == MASK else None}:
            raise Refused(VIEW_DIFFERS)
        check(index, data)
        store[index] = data

    def complain(self, sender: str, data: bytes) -> None:
        """Take a complaint, while MaskedInputCollection is open."""
        index = self.index_of(sender)
        if index not in self.view.share_holders:
            raise Refused(SESSION_OVER)
        if len(data) != 6 or int.from_bytes(data[:2], "big") not in {
            BAD_SHARE_CIPHERTEXT,
            SHARE_CONFUSION,
        }:
            raise Refused(BAD_ENCODING)
        accused = int.from_bytes(data[2:], "big")
        if accused not in self.view.share_holders.intersection(
            self.view.senders(index)
        ):
            raise Refused(BAD_ENCODING)
        if self.complaints.get((index, accused), data) != data:
            raise Refused(EQUIVOCATION)
        self.complaints[index, accused] = data

    def index_of(self, identity: str) -> int | None:
        names = {advert.identity: i for i, advert in self.view.adverts.items()}
        return names.get(identity)

    def _receive_advert(self, sender: str, data: bytes) -> None:
        view, rules = self.view, self.view.offer.parameters
        advert = Advert.decode(data, rules.noise_layers)
        if advert.identity != sender:
            raise Refused(UNAUTHENTICATED)
        if len(self.adverts) >= rules.max_clients:
            raise Refused(ROSTER_TOO_LARGE)
        advert.check_form(rules.profile)
        check_public_key(advert.channel_key)
        check_public_key(advert.mask_key)
        others = [self._decoded(other) for other in self.adverts.values()]
        keys = [key for each in [advert, *others] for key in each.all_keys()]
        if len(set(keys)) != len(keys):
            raise Refused(DUPLICATE_KEY)
        view.check_credential(advert)
        advert.check_signature(view.suite, view.contexts[0])
        self.adverts[sender] = data

    def _decoded(self, advert: bytes) -> Advert:
        return Advert.decode(advert, self.view.offer.parameters.noise_layers)

    def _check_edges(self, sender: int, data: bytes) -> None:
        edges, view = Edges.decode(data), self.view
        edges.check(view.offer.parameters.degree, view.count, sender)
        signed = edges.signed_bytes(view.suite, view.contexts[1], sender)
        self._check_signed(sender, signed, edges.signature)

    def _check_bundles(self, sender: int, data: bytes) -> None:
        size = BUNDLE_SIZE * len(self.view.receivers[sender])
        if len(data) != size + SIGNATURE_SIZE * self.view.is_signed:
            raise Refused(BAD_ENCODING)
        if self.view.is_signed:
            signed = self.view.bundles_to_sign(sender, data[:size])
            self._check_signed(sender, signed, data[size:])

    def _check_upload(self, _: int, data: bytes) -> None:
        rules = self.view.offer.parameters
        unpack(data, rules.dim, rules.modulus)

    def _check_signature(self, sender: int, data: bytes) -> None:
        if len(data) != SIGNATURE_SIZE:
            raise Refused(BAD_ENCODING)
        self._check_signed(sender, self.view.set_to_sign(), data)

    def _check_signed(self, sender: int, message: bytes, signature: bytes) -> None:
        if not self.view.signed_by(sender, message, signature):
            raise Refused(BAD_SIGNATURE)

    def _check_answer(self, sender: int, data: bytes) -> None:
        absent, shares = self._revealed(sender, data)
        for place, share in enumerate(shares):
            decode_share(share)
            if place in absent and share != bytes(SHARE_SIZE):
                raise Refused(BAD_ENCODING)

    def _revealed(self, sender: int, data: bytes) -> tuple[set[int], list[bytes]]:
        """The places that are absent, and all shares."""
        count = len(self._dealers(sender))
        head = -(-count // 8)
        end = head + SHARE_SIZE * count
        seeds = self.view.layers_taken_back(self.view.survivors)
        if len(data) != end + SEED_SIZE * len(seeds):
            raise Refused(BAD_ENCODING)
        return members_of(data[:head], count), pieces(data[head:end], SHARE_SIZE)

    def _dealers(self, holder: int) -> list[int]:
        view = self.view
        return [v for v in sorted(view.share_holders) if holder in view.holders[v]]

    def close_adverts(self, graph_seed: bytes) -> bytes:
        if len(self.adverts) < self.view.offer.parameters.min_clients:
            raise Refused(ROSTER_TOO_SMALL)
        names = roster_order(self.adverts, graph_seed)
        adverts = [self._decoded(self.adverts[name]) for name in names]
        self.roster = Roster.whole(adverts, graph_seed)
        self.view.set_roster(
            self.roster, self.roster.top(self.view.suite, self.view.contexts[0])
        )
        self.open_round = CHOOSE if self.view.is_sparse else SHARE
        return self.roster.encode()

    def close_edges(self) -> bytes:
        """Return the edge root; what each is shown is `published`."""
        view = self.view
        if len(self.edges) < view.floor:
            raise Refused(U2_TOO_SMALL)
        lists = {index: Edges.decode(data) for index, data in self.edges.items()}
        self.lists = Lists(view.suite, view.contexts[1], lists, count=view.count)
        drawn = {index: list(edges.drawn) for index, edges in lists.items()}
        view.set_edges(self.lists.root, drawn)
        self.open_round = SHARE
        return self.lists.root

    def published(self, reader: int) -> bytes:
        if self.lists is None:
            raise AssertionError("no lists yet")
        return self.lists.published(reader).encode()

    def neighbourhood(self, reader: int) -> bytes:
        if self.roster is None:
            raise AssertionError("no roster yet")
        around = self.view.neighbours[reader]
        suite, ctx0 = self.view.suite, self.view.contexts[0]
        return self.roster.neighbourhood(suite, ctx0, reader, around).encode()

    def close_sharing(self) -> bytes:
        view = self.view
        share_holders = set(self.bundles)
        if len(share_holders) < view.floor:
            raise Refused(U2_TOO_SMALL)
        if view.short_of_holders(share_holders, share_holders):
            raise Refused(DISPUTED)
        data = bitmap(share_holders, view.count)
        view.set_share_holders(data)
        self.open_round = MASK
        return data

    def delivery(self, receiver: int) -> bytes:
        view = self.view
        senders = [v for v in view.senders(receiver) if v in view.share_holders]
        bundles = b"".join(self._bundle(sender, receiver) for sender in senders)
        return delivery_of(bitmap(view.share_holders, view.count), bundles)

    def _bundle(self, sender: int, receiver: int) -> bytes:
        place = self.view.receivers[sender].index(receiver)
        return pieces(self.bundles[sender], BUNDLE_SIZE)[place]

    def close_uploads(self) -> bytes:
        view, rules = self.view, self.view.offer.parameters
        survivors = set(self.uploads)
        if len(survivors) < view.floor:
            raise Refused(U3_TOO_SMALL)
        view.check_losses(survivors)
        if view.short_of_holders(view.share_holders, survivors):
            raise Refused(TOO_MANY_DROPOUTS)
        for dealer in view.share_holders:
            left = {
                holder
                for holder in survivors.intersection(view.holders[dealer])
                if (holder, dealer) not in self.complaints
            }
            if len(left) < rules.threshold:
                raise Refused(DISPUTED)
        if view.is_ring and not is_safe(rules, view.count, survivors, 0.01):
            raise Refused(TOO_MANY_DROPOUTS)
        data = bitmap(survivors, view.count)
        view.set_survivors(data)
        self.open_round = CONSISTENCY if view.is_signed else UNMASK
        return data

    def close_signing(self) -> bytes:
        if len(self.signatures) < self.view.offer.parameters.quorum:
            raise Refused(NO_QUORUM)
        self.open_round = UNMASK
        others = self.view.survivors - set(self.signatures)
        return quorum_of(self.signatures, {each: self._proof(each) for each in others})

    def _proof(self, dealer: int) -> bytes:
        """Digest and signature of what a client has dealt (R5.2-11)."""
        sealed = self.bundles[dealer][:-SIGNATURE_SIZE]
        return hashlib.sha256(sealed).digest() + self.bundles[dealer][len(sealed) :]

    def sum(self) -> list[int]:
        view, rules = self.view, self.view.offer.parameters
        keys = view.mask_keys
        inputs = [
            unpack(upload, rules.dim, rules.modulus) for upload in self.uploads.values()
        ]
        total = [sum(column) % rules.modulus for column in zip(*inputs, strict=True)]
        for dealer in sorted(view.share_holders):
            shares = {
                view.abscissa(dealer, holder): decode_share(share)
                for holder in self.answers
                if holder in view.holders[dealer]
                for share in self._share(holder, dealer)
            }
            if len(shares) < rules.threshold:
                raise Refused(TOO_FEW_ANSWERS)
            secret = self._rebuilt(dealer, shares)
            if dealer in view.survivors:
                view.add_mask(total, keys.own(secret, dealer), -1)
                continue
            for other in view.neighbours[dealer]:
                if other in view.survivors:
                    agreed = agree(secret, view.adverts[other].mask_key)
                    sign = 1 if dealer < other else -1
                    view.add_mask(total, keys.pair(agreed, dealer, other), sign)
        return total

    def _share(self, holder: int, dealer: int) -> list[bytes]:
        """The share, or nothing where it is absent."""
        absent, shares = self._revealed(holder, self.answers[holder])
        place = self._dealers(holder).index(dealer)
        return [] if place in absent else [shares[place]]

    def _rebuilt(self, dealer: int, shares: dict[int, list[int]]) -> bytes:
        """§7.3: one of all ways to leave out as many shares as may be wrong."""
        threshold = self.view.offer.parameters.threshold
        right = len(shares) - (len(shares) - threshold) // 2
        for points in itertools.combinations(sorted(shares), right):
            kept = {point: shares[point] for point in points}
            candidates = {
                rebuild({point: kept[point] for point in some})
                for some in itertools.combinations(points, threshold)
            }
            secret = candidates.pop()
            if not candidates and secret and self._is_secret_of(dealer, secret):
                return secret
        raise Refused(RECONSTRUCTION_FAILED)

    def _is_secret_of(self, dealer: int, secret: bytes) -> bool:
        advert = self.view.adverts[dealer]
        if dealer not in self.view.survivors:
            return public_key(secret) == advert.mask_key
        view = self.view
        expected = commitment_to(view.suite, view.sid, advert.identity, secret)
        return expected == advert.commitment
