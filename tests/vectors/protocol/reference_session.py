"""Both sides of a session of profile 1, slowly: PROTOCOL §5 on top of the reference.

Rule 1: every secret is given, none is drawn, so that a run is a matter of record.
Rule 2: the checks stand in the order of the specification; the first that fails
        names the code of `Refused`.
Rule 3: a `Client` is handed bytes and returns bytes; so is a `Server`.  Who is lost,
        and when a round closes, is the caller's business.

Left out, because they are no matter of bytes: a client's own policy and memory
(POLICY_VIOLATION of §5.0, REPLAYED_SESSION), transport, deadlines, durability.
"""

import itertools
from dataclasses import dataclass, field

from reference import (
    BAD_ENCODING,
    BAD_SHARE_CIPHERTEXT,
    BAD_SIGNATURE,
    BUNDLE_SIZE,
    DISPUTED,
    DUPLICATE_KEY,
    EQUIVOCATION,
    POLICY_VIOLATION,
    RECONSTRUCTION_FAILED,
    ROSTER_TOO_LARGE,
    ROSTER_TOO_SMALL,
    SELF_MISSING,
    SESSION_OVER,
    SHARE_CONFUSION,
    SHARE_SIZE,
    TOO_FEW_ANSWERS,
    TOO_MANY_DROPOUTS,
    U2_TOO_SMALL,
    U3_INVALID,
    U3_TOO_SMALL,
    UNAUTHENTICATED,
    UNEXPECTED_MESSAGE,
    Advert,
    Offer,
    Refused,
    bitmap,
    blob,
    commitment_to,
    context_0,
    context_1,
    context_2,
    context_3,
    decode_roster,
    decode_share,
    encode_roster,
    encode_share,
    holders,
    members_of,
    neighbours,
    pack,
    rebuild,
    residue_bits,
    ring_order,
    session_id,
    share_at,
    unpack,
)
from reference_keys import (
    Channel,
    MaskKeys,
    MaskStream,
    agree,
    check_public_key,
    public_key,
)
from reference_ring import is_safe


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


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@dataclass
class View:
    """What both sides derive from the same bytes."""

    offer: Offer
    sid: bytes = b""
    contexts: list[bytes] = field(default_factory=list)  # ctx0, ctx1, ctx2, ctx3
    adverts: list[Advert] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    neighbours: list[list[int]] = field(default_factory=list)
    holders: list[list[int]] = field(default_factory=list)
    sharers: set[int] = field(default_factory=set)
    survivors: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sid = session_id(self.offer)
        self.contexts = [context_0(self.offer)]

    @property
    def floor(self) -> int:
        return max(self.offer.parameters.threshold, self.offer.parameters.min_survivors)

    def set_roster(self, roster: bytes) -> None:
        """Derive ctx1 and the graph; the roster was checked."""
        rules = self.offer.parameters
        self.adverts, graph_seed = decode_roster(roster)
        count = len(self.adverts)
        self.neighbours = neighbours(rules.suite, rules.degree, graph_seed, count)
        self.holders = holders(rules.degree, self.neighbours)
        if rules.degree > 0:
            self.order = ring_order(rules.suite, graph_seed, count)
        self.contexts.append(context_1(rules.suite, self.contexts[0], roster))

    def set_sharers(self, data: bytes) -> None:
        self.sharers = members_of(data, len(self.adverts))
        self.contexts.append(
            context_2(self.offer.parameters.suite, self.contexts[1], data)
        )

    def set_survivors(self, data: bytes) -> None:
        self.survivors = members_of(data, len(self.adverts))
        self.contexts.append(
            context_3(self.offer.parameters.suite, self.contexts[2], data)
        )

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
        return MaskKeys(self.offer.parameters.suite, self.sid, self.contexts[2])


class Client:
    """One client, from its advert to its answer."""

    def __init__(self, offer: Offer, secrets: Secrets) -> None:
        self.view = View(offer)
        self.secrets = secrets
        self.index = -1
        self.received: dict[int, tuple[bytes, bytes]] = {}
        self._taken: dict[int, tuple[bytes, bytes]] = {}  # round: message and answer

    def take(self, round_number: int, *parts: bytes) -> bytes:
        """Take the message of a round; a repeat gets the same answer (§5)."""
        message = b"".join(blob(part) for part in parts)
        if round_number in self._taken:
            known, answer = self._taken[round_number]
            if known != message:
                raise Refused(EQUIVOCATION)
            return answer
        act = {1: self._bundles, 2: self._upload, 4: self._answer}
        if round_number != [*act][len(self._taken)]:
            raise Refused(UNEXPECTED_MESSAGE)
        answer = act[round_number](*parts)
        self._taken[round_number] = message, answer
        return answer

    def advert(self) -> bytes:
        mine = self.secrets
        suite = self.view.offer.parameters.suite
        return Advert(
            mine.identity,
            public_key(mine.channel_private_key),
            public_key(mine.mask_private_key),
            commitment_to(suite, self.view.sid, mine.identity, mine.self_mask_seed),
        ).encode()

    def _bundles(self, roster: bytes) -> bytes:
        """Round 1."""
        self._check_roster(roster)
        self.view.set_roster(roster)
        own = self.advert()
        encoded = [advert.encode() for advert in self.view.adverts]
        self.index = encoded.index(own)
        channels = [self._channel(v, sending=True) for v in self._neighbours()]
        return b"".join(
            channel.seal(*self._shares_for(channel.receiver)) for channel in channels
        )

    def _check_roster(self, roster: bytes) -> None:
        adverts, graph_seed = decode_roster(roster)
        rules = self.view.offer.parameters
        if len(adverts) < rules.min_clients:
            raise Refused(ROSTER_TOO_SMALL)
        if len(adverts) > rules.max_clients:
            raise Refused(ROSTER_TOO_LARGE)
        if self.advert() not in [advert.encode() for advert in adverts]:
            raise Refused(SELF_MISSING)
        if any(advert.signature for advert in adverts):
            raise Refused(BAD_SIGNATURE)
        keys = [key for a in adverts for key in (a.channel_key, a.mask_key)]
        for key in keys:
            check_public_key(key)
        if len(set(keys)) != len(keys):
            raise Refused(DUPLICATE_KEY)
        if bool(graph_seed) != (rules.degree > 0) or len(adverts) < rules.degree + 2:
            raise Refused(POLICY_VIOLATION)
        if rules.degree > 0 and not rules.is_drawn_safely(len(adverts)):
            raise Refused(POLICY_VIOLATION)

    def _neighbours(self) -> list[int]:
        return self.view.neighbours[self.index]

    def _channel(self, other: int, *, sending: bool) -> Channel:
        secret = agree(
            self.secrets.channel_private_key, self.view.adverts[other].channel_key
        )
        ends = (self.index, other) if sending else (other, self.index)
        suite = self.view.offer.parameters.suite
        return Channel(suite, self.view.sid, self.view.contexts[1], secret, *ends)

    def _shares_for(self, holder: int) -> tuple[bytes, bytes]:
        mine = self.secrets
        pairs = (
            (mine.mask_private_key, mine.key_coefficients),
            (mine.self_mask_seed, mine.seed_coefficients),
        )
        of_key, of_seed = (
            encode_share(share_at(secret, coefficients, holder + 1))
            for secret, coefficients in pairs
        )
        return of_key, of_seed

    def _upload(self, sharers: bytes, bundles: bytes) -> bytes:
        """Round 2."""
        view = self.view
        members = members_of(sharers, len(view.adverts))
        if self.index not in members:
            raise Refused(SELF_MISSING)
        own_holders = members.intersection(view.holders[self.index])
        threshold = view.offer.parameters.threshold
        if len(members) < view.floor or len(own_holders) < threshold:
            raise Refused(U2_TOO_SMALL)
        senders = [v for v in self._neighbours() if v in members]
        if len(bundles) != BUNDLE_SIZE * len(senders):
            raise Refused(BAD_SHARE_CIPHERTEXT)
        for sender, bundle in zip(senders, pieces(bundles, BUNDLE_SIZE), strict=True):
            self.received[sender] = self._channel(sender, sending=False).open(bundle)
        for share in [share for pair in self.received.values() for share in pair]:
            decode_share(share, SHARE_CONFUSION)
        view.set_sharers(sharers)
        return self._masked(senders)

    def _masked(self, others: list[int]) -> bytes:
        view, mine = self.view, self.secrets
        total = list(mine.values)
        view.add_mask(total, view.mask_keys.own(mine.self_mask_seed, self.index), 1)
        for other in others:
            secret = agree(mine.mask_private_key, view.adverts[other].mask_key)
            key = view.mask_keys.pair(secret, self.index, other)
            view.add_mask(total, key, 1 if self.index < other else -1)
        return pack(total, residue_bits(view.offer.parameters.modulus))

    def _answer(self, survivors: bytes) -> bytes:
        """Round 4."""
        view = self.view
        members = members_of(survivors, len(view.adverts))
        if not members <= view.sharers or self.index not in members:
            raise Refused(U3_INVALID)
        if len(members) < view.floor:
            raise Refused(U3_TOO_SMALL)
        if len(view.sharers - members) > view.offer.parameters.max_dropouts:
            raise Refused(TOO_MANY_DROPOUTS)
        if view.order and not is_safe(view.offer.parameters, view.order, members, 0.0):
            raise Refused(TOO_MANY_DROPOUTS)
        view.set_survivors(survivors)
        held = dict(self.received)
        if self.index in view.holders[self.index]:
            held[self.index] = self._shares_for(self.index)
        return b"".join(
            held[dealer][1 if dealer in members else 0] for dealer in sorted(held)
        )


class Server:
    """The server, from the first advert to the sum."""

    def __init__(self, offer: Offer) -> None:
        self.view = View(offer)
        self.adverts: dict[str, bytes] = {}
        self.bundles: dict[int, bytes] = {}
        self.uploads: dict[int, bytes] = {}
        self.answers: dict[int, bytes] = {}

    def receive(self, round_number: int, sender: str, data: bytes) -> None:
        """Take a message of the round that is open."""
        if round_number == 0:
            self._receive_advert(sender, data)
            return
        index = self.index_of(sender)
        store, members, check = {
            1: (self.bundles, set(range(len(self.view.adverts))), self._check_bundles),
            2: (self.uploads, self.view.sharers, self._check_upload),
            4: (self.answers, self.view.survivors, self._check_answer),
        }[round_number]
        if index not in members:
            raise Refused(SESSION_OVER)
        check(index, data)
        if store.get(index, data) != data:
            raise Refused(EQUIVOCATION)
        store[index] = data

    def index_of(self, identity: str) -> int | None:
        names = [advert.identity for advert in self.view.adverts]
        return names.index(identity) if identity in names else None

    def _receive_advert(self, sender: str, data: bytes) -> None:
        advert = Advert.decode(data)
        if advert.identity != sender:
            raise Refused(UNAUTHENTICATED)
        if sender in self.adverts:
            if self.adverts[sender] != data:
                raise Refused(EQUIVOCATION)
            return
        if len(self.adverts) >= self.view.offer.parameters.max_clients:
            raise Refused(ROSTER_TOO_LARGE)
        if advert.signature:
            raise Refused(BAD_SIGNATURE)
        mine = [advert.channel_key, advert.mask_key]
        for key in mine:
            check_public_key(key)
        others = [Advert.decode(other) for other in self.adverts.values()]
        keys = [*mine, *(key for o in others for key in (o.channel_key, o.mask_key))]
        if len(set(keys)) != len(keys):
            raise Refused(DUPLICATE_KEY)
        self.adverts[sender] = data

    def _check_bundles(self, sender: int, data: bytes) -> None:
        if len(data) != BUNDLE_SIZE * len(self.view.neighbours[sender]):
            raise Refused(BAD_ENCODING)

    def _check_upload(self, _: int, data: bytes) -> None:
        rules = self.view.offer.parameters
        unpack(data, rules.dim, rules.modulus)

    def _check_answer(self, sender: int, data: bytes) -> None:
        if len(data) != SHARE_SIZE * len(self._dealers(sender)):
            raise Refused(BAD_ENCODING)
        for share in pieces(data, SHARE_SIZE):
            decode_share(share)

    def _dealers(self, holder: int) -> list[int]:
        view = self.view
        return [v for v in sorted(view.sharers) if holder in view.holders[v]]

    def close_adverts(self, graph_seed: bytes) -> bytes:
        if len(self.adverts) < self.view.offer.parameters.min_clients:
            raise Refused(ROSTER_TOO_SMALL)
        names = sorted(self.adverts, key=lambda name: name.encode())
        roster = encode_roster([self.adverts[name] for name in names], graph_seed)
        self.view.set_roster(roster)
        return roster

    def close_sharing(self) -> bytes:
        view = self.view
        sharers = set(self.bundles)
        if len(sharers) < view.floor:
            raise Refused(U2_TOO_SMALL)
        if view.short_of_holders(sharers, sharers):
            raise Refused(DISPUTED)
        data = bitmap(sharers, len(view.adverts))
        view.set_sharers(data)
        return data

    def delivery(self, receiver: int) -> bytes:
        senders = [v for v in self.view.neighbours[receiver] if v in self.view.sharers]
        return b"".join(self._bundle(sender, receiver) for sender in senders)

    def _bundle(self, sender: int, receiver: int) -> bytes:
        place = self.view.neighbours[sender].index(receiver)
        return pieces(self.bundles[sender], BUNDLE_SIZE)[place]

    def close_uploads(self) -> bytes:
        view, rules = self.view, self.view.offer.parameters
        survivors = set(self.uploads)
        if len(survivors) < view.floor:
            raise Refused(U3_TOO_SMALL)
        if len(view.sharers - survivors) > rules.max_dropouts:
            raise Refused(TOO_MANY_DROPOUTS)
        if view.short_of_holders(view.sharers, survivors):
            raise Refused(TOO_MANY_DROPOUTS)
        if view.order and not is_safe(rules, view.order, survivors, 0.01):
            raise Refused(TOO_MANY_DROPOUTS)
        data = bitmap(survivors, len(view.adverts))
        view.set_survivors(data)
        return data

    def sum(self) -> list[int]:
        view, rules = self.view, self.view.offer.parameters
        keys = view.mask_keys
        inputs = [
            unpack(upload, rules.dim, rules.modulus) for upload in self.uploads.values()
        ]
        total = [sum(column) % rules.modulus for column in zip(*inputs, strict=True)]
        for dealer in sorted(view.sharers):
            shares = {
                holder + 1: decode_share(self._share(holder, dealer))
                for holder in self.answers
                if holder in view.holders[dealer]
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

    def _share(self, holder: int, dealer: int) -> bytes:
        place = self._dealers(holder).index(dealer)
        return pieces(self.answers[holder], SHARE_SIZE)[place]

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
        suite = self.view.offer.parameters.suite
        expected = commitment_to(suite, self.view.sid, advert.identity, secret)
        return expected == advert.commitment
