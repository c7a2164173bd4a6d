"""Everything that follows from the facts: which secrets the adversary can compute.

A secret is known by its public counterpart: a private key by its public key, a
self-mask seed b by its commitment.  Nothing counts as known before it was compared
with that, so that no conclusion here rests on a guess.

Rule 1: a seed gives both private keys and the self-mask seed of its client.  A stolen
        disk gives whatever of these, and of the shares held, is found on it.
Rule 2: an encryption key c^SK of either end opens a bundle: two shares of its dealer.
        An answer is one share of each dealer, of the kind that U3 asks for.
Rule 3: t shares of one secret at distinct points give that secret, under one roster,
        or over several where the dealer used one polynomial twice.
Rule 4: a mask key s^SK gives all pair masks of its client, a self-mask seed its self
        mask, under every ctx2 of the session: what was said later does not make it
        unknown, nor that the client stands in another roster as well.

The rules run until none of them adds anything.  What the sums of masked inputs then
show is the business of `sums`.

Source:
    PROTOCOL §5 to §7.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.cipher_suite import TAG_SIZE, AuthenticationError, open_sealed
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import KeyPair, public_key_of
from secagg.crypto.key_derivation import share_channel_key
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import (
    SHARE_SIZE,
    UncorrectableError,
    check_shares,
    decode_with_errors,
    reconstruct,
)
from secagg.crypto.transcript import domain_tag
from secagg.protocol import context
from secagg.protocol.messages import Advert
from secagg.protocol.share_bundles import NOISE_SEED_BYTES
from secagg_testing.knowledge.facts import (
    Answer,
    Facts,
    MaskName,
    MaskView,
    PairMask,
    RosterView,
    SealedBundles,
    SelfMask,
    Session,
    Theft,
)

# Sealed: dealer, holder and point, 4 bytes each, and two shares (PROTOCOL §6.1).
_BUNDLE_BYTES: Final = 3 * 4 + 2 * SHARE_SIZE + TAG_SIZE


class Kind(Enum):
    """The secrets of one client in one session, by their names in PROTOCOL."""

    ENCRYPTION_KEY = "c^SK"
    MASK_KEY = "s^SK"
    SELF_MASK_SEED = "b"

    def public_part(self, advert: Advert) -> bytes:
        """Return the key or commitment that the advert has for this secret."""
        match self:
            case Kind.ENCRYPTION_KEY:
                return advert.encryption_key
            case Kind.MASK_KEY:
                return advert.masking_key
            case Kind.SELF_MASK_SEED:
                return advert.self_mask_commitment


@dataclass(frozen=True, slots=True)
class Known:
    """A secret that the adversary has, and how it came to it."""

    secret: SecretBytes
    because: str


@dataclass(frozen=True, slots=True)
class _Share:
    encoded: bytes = field(repr=False)
    way: str
    name: str


@dataclass(frozen=True, slots=True)
class _SharedSecret:
    """What is known of one secret: its shares by roster (ctx1) and point."""

    session: Session
    advert: Advert
    kind: Kind
    points: dict[bytes, dict[int, _Share]] = field(default_factory=dict)

    @property
    def public_part(self) -> bytes:
        return self.kind.public_part(self.advert)

    def is_fitted_by(self, secret: SecretBytes) -> bool:
        """Return whether a candidate is this secret."""
        if self.kind is not Kind.SELF_MASK_SEED:
            return public_key_of(secret) == self.public_part
        commitment = context.self_mask_commitment(
            self.session.session_id,
            self.advert.identity,
            secret,
            self.session.parameters.suite,
        )
        return commitment == self.public_part


class Closure:
    """What the adversary knows.

    Attributes:
        facts: What it follows from.
        secrets: Known secrets by their public part.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.secrets: dict[bytes, Known] = {}
        self._shared: dict[bytes, _SharedSecret] = {}
        self._opened: set[tuple[SealedBundles, int]] = set()

    def has_secret(self, kind: Kind, advert: Advert) -> Known | None:
        """Return a client's secret, if the adversary has it."""
        return self.secrets.get(kind.public_part(advert))

    def mask_of(self, view: MaskView, mask: MaskName) -> Known | None:
        """Return the secret that gives a mask, if the adversary has one (rule 4)."""
        adverts = view.roster.adverts
        match mask:
            case SelfMask(client):
                return self.has_secret(Kind.SELF_MASK_SEED, adverts[client])
            case PairMask(low, high):
                return self.has_secret(Kind.MASK_KEY, adverts[low]) or self.has_secret(
                    Kind.MASK_KEY, adverts[high]
                )

    def channel(self, view: RosterView, dealer: int, holder: int) -> SecretBytes | None:
        """Return the X25519 secret of two clients, if c^SK of either is known."""
        adverts = view.adverts
        for own, peer in ((holder, dealer), (dealer, holder)):
            known = self.has_secret(Kind.ENCRYPTION_KEY, adverts[own])
            if known is not None:
                keys = KeyPair.from_private_bytes(known.secret)
                return keys.agree(adverts[peer].encryption_key)
        return None

    def is_first_time(self, opened: tuple[SealedBundles, int]) -> bool:
        """Record that a holder opened its bundle; return whether for the first time."""
        if opened in self._opened:
            return False
        self._opened.add(opened)
        return True

    def add(self, public_part: bytes, secret: SecretBytes, because: str) -> bool:
        """Add a verified secret; return whether it is new."""
        if public_part in self.secrets:
            return False
        self.secrets[public_part] = Known(secret, because)
        return True

    def add_share(  # noqa: PLR0913, PLR0917 - a share and where it comes from
        self,
        view: RosterView,
        dealer: int,
        kind: Kind,
        point: int,
        encoded: bytes,
        way: str,
        name: str,
    ) -> bool:
        """Add a share of a dealer's secret; return whether it is new.

        Args:
            view: Under which roster it was dealt.
            dealer: Whose secret.
            kind: Which secret.
            point: The share's abscissa.
            encoded: Its 34 bytes.
            way: How it became known, such as "answer of", for the report.
            name: By which client.
        """
        advert = view.adverts[dealer]
        shared = self._shared.setdefault(
            kind.public_part(advert), _SharedSecret(view.session, advert, kind)
        )
        points = shared.points.setdefault(view.ctx1, {})
        if point in points:
            return False
        points[point] = _Share(encoded, way, name)
        return True

    def unknown_shared_secrets(self) -> Iterator[_SharedSecret]:
        """Yield the secrets of which shares are known, but not yet the whole."""
        for shared in self._shared.values():
            if shared.public_part not in self.secrets:
                yield shared


def close(facts: Facts) -> Closure:
    """Return what follows from the facts.

    Raises:
        ValueError: Nothing that a corrupt client has in a roster follows from its
            seeds: record the seed of that session too.
    """
    closure = Closure(facts)
    for read in _FROM_FACTS:
        read(closure)
    while any([rule(closure) for rule in _RULES]):  # noqa: C419 - every rule runs
        pass
    return closure


# --- rule 1 -------------------------------------------------------------------------


def _add_from_seeds(closure: Closure) -> None:
    for view in closure.facts.rosters:
        for advert in view.adverts.values():
            name = advert.identity
            if name not in closure.facts.seeds:
                continue
            own = [
                found
                for seed in closure.facts.seeds[name]
                for found in _own_secrets(view.session, advert, seed)
            ]
            # It may have copied a key of another client, but hardly everything.
            if not own:
                raise ValueError(
                    f"{name!r} is corrupt, but no seed that was recorded gives its "
                    f"keys in {view.session}"
                )
            for shared, secret in own:
                closure.add(shared.public_part, secret, "corrupt, by its seed")


def _own_secrets(
    session: Session, advert: Advert, seed: SecretBytes
) -> Iterator[tuple[_SharedSecret, SecretBytes]]:
    """Derive the secrets of a client; skip what another seed must have made."""
    for kind, label in _LABELS.items():
        stream = SeededEntropy(seed, label + b"/" + session.session_id)
        secret = SecretBytes(stream.token(32))
        shared = _SharedSecret(session, advert, kind)
        if shared.is_fitted_by(secret):
            yield shared, secret


_LABELS: Final[Mapping[Kind, bytes]] = {
    Kind.ENCRYPTION_KEY: b"encryption key",
    Kind.MASK_KEY: b"masking key",
    Kind.SELF_MASK_SEED: b"self-mask seed",
}


def _add_from_thefts(closure: Closure) -> None:
    for theft in closure.facts.thefts:
        source = f"{theft.when}, on the disk"
        whole = _shows(theft.contents, theft.seed.reveal())
        for view in closure.facts.rosters:
            if theft.identity not in view.index_of:
                continue
            index = view.index_of[theft.identity]
            advert = view.adverts[index]
            for shared, secret in _own_secrets(view.session, advert, theft.seed):
                if whole or _shows(theft.contents, secret.reveal()):
                    closure.add(shared.public_part, secret, source)
                if shared.kind is Kind.ENCRYPTION_KEY:
                    keys = KeyPair.from_private_bytes(secret)
                    _add_held_shares(closure, view, index, keys, theft)


def _add_held_shares(
    closure: Closure, view: RosterView, holder: int, keys: KeyPair, theft: Theft
) -> None:
    """Search a disk for the shares that were dealt to its owner."""
    way = f"{theft.when}, disk of"
    for bundles in closure.facts.bundles:
        if bundles.view is not view or holder not in _receivers(view, bundles.dealer):
            continue
        dealer = view.adverts[bundles.dealer]
        channel = keys.agree(dealer.encryption_key)
        for point, kind, share in _open(bundles, holder, channel):
            if _shows(theft.contents, share):
                closure.add_share(
                    view, bundles.dealer, kind, point, share, way, theft.identity
                )


def _shows(contents: bytes, secret: bytes) -> bool:
    """Return whether a file contains a secret, as bytes or in hexadecimal."""
    return secret in contents or secret.hex().encode() in contents.lower()


# --- rule 2 -------------------------------------------------------------------------


def _open_bundles(closure: Closure) -> bool:
    learned = False
    for bundles in closure.facts.bundles:
        view, dealer = bundles.view, bundles.dealer
        if all(closure.has_secret(kind, view.adverts[dealer]) for kind in Kind):
            continue
        for holder in _receivers(view, dealer):
            channel = closure.channel(view, dealer, holder)
            if channel is None or not closure.is_first_time((bundles, holder)):
                continue
            name = view.identity(holder)
            for point, kind, share in _open(bundles, holder, channel):
                learned |= closure.add_share(
                    view, dealer, kind, point, share, "bundle to", name
                )
    return learned


def _receivers(view: RosterView, dealer: int) -> tuple[int, ...]:
    """Return the receivers of a dealer's bundles, in the order of sending."""
    return tuple(h for h in view.graph.holders(dealer) if h != dealer)


def _open(
    bundles: SealedBundles, holder: int, channel: SecretBytes
) -> Iterator[tuple[int, Kind, bytes]]:
    """Open one holder's bundle: point, kind and bytes of each share (PROTOCOL §6.1)."""
    view, dealer = bundles.view, bundles.dealer
    suite = view.session.parameters.suite
    key = share_channel_key(
        channel,
        session_id=view.session.session_id,
        context=view.ctx1,
        sender=dealer,
        receiver=holder,
        suite=suite,
    )
    tag = domain_tag("client", "share bundle", suite)
    associated = Writer().fixed(tag).blob(view.ctx1).u32(dealer).u32(holder)
    start = _receivers(view, dealer).index(holder) * _BUNDLE_BYTES
    sealed = bundles.data[start : start + _BUNDLE_BYTES]
    try:
        plaintext = open_sealed(key, sealed, associated.getvalue())
    except AuthenticationError:
        return  # garbage, or made under another roster: nothing can be read
    reader = Reader(plaintext, "share bundle")
    _, _, point = reader.u32(), reader.u32(), reader.u32()
    yield point, Kind.MASK_KEY, reader.fixed(SHARE_SIZE)
    yield point, Kind.SELF_MASK_SEED, reader.fixed(SHARE_SIZE)


def _read_answers(closure: Closure) -> None:
    for answer in closure.facts.answers:
        view = answer.view.roster
        name = view.identity(answer.holder)
        if name in closure.facts.seeds:
            continue  # it may say anything; what it holds follows from its seed
        for dealer, kind, share in _shares_in(answer):
            point = view.graph.abscissa(dealer, answer.holder)
            closure.add_share(view, dealer, kind, point, share, "answer of", name)


def _shares_in(answer: Answer) -> Iterator[tuple[int, Kind, bytes]]:
    dealers = [
        dealer
        for dealer in answer.view.roster.graph.dealers(answer.holder)
        if dealer in answer.view.share_holders
    ]
    # A bitmap of absences, then one share for each dealer (PROTOCOL §5.5).
    head = -(-len(dealers) // 8)
    tail = head + SHARE_SIZE * len(dealers)
    if len(answer.data) < tail or (len(answer.data) - tail) % NOISE_SEED_BYTES:
        return  # not an answer: the server refuses it, and no party can read it
    # Behind the shares may stand seeds of noise (`secagg_testing.knowledge.noise`).
    bitmap, shares = answer.data[:head], answer.data[head:tail]
    for place, dealer in enumerate(dealers):
        if bitmap[place // 8] >> place % 8 & 1:
            continue  # said to be absent
        lives = dealer in answer.survivors
        share = shares[place * SHARE_SIZE :][:SHARE_SIZE]
        yield dealer, Kind.SELF_MASK_SEED if lives else Kind.MASK_KEY, share


# --- rule 3 -------------------------------------------------------------------------


def _combine_shares(closure: Closure) -> bool:
    learned = False
    for shared in closure.unknown_shared_secrets():
        rosters = list(shared.points.values())
        pools = [(points, "") for points in rosters]
        if len(rosters) > 1:
            everywhere = {p: share for points in rosters for p, share in points.items()}
            pools.append((everywhere, f", over {len(rosters)} rosters"))
        for points, note in pools:
            secret = _combine(shared, points)
            if secret is not None:
                because = _counted(shared, points) + note
                learned |= closure.add(shared.public_part, secret, because)
                break
    return learned


def _counted(shared: _SharedSecret, points: Mapping[int, _Share]) -> str:
    """Describe how many shares are known, and their origin."""
    by_way: dict[str, list[str]] = {}
    for share in points.values():
        by_way.setdefault(share.way, []).append(share.name)
    sources = "; ".join(
        f"{way} {shortened(sorted(names))}" for way, names in sorted(by_way.items())
    )
    threshold = shared.session.parameters.threshold
    return f"{len(points)} shares where {threshold} are enough ({sources})"


def _combine(shared: _SharedSecret, points: Mapping[int, _Share]) -> SecretBytes | None:
    """Interpolate, and return what fits the advert."""
    threshold = shared.session.parameters.threshold
    usable = {p: np.frombuffer(s.encoded, np.uint8) for p, s in points.items()}
    abscissae = sorted(p for p in usable if bool(check_shares(usable[p])))
    if len(abscissae) < threshold:
        return None
    encoded = np.stack([usable[p] for p in abscissae])
    (secret,) = reconstruct(abscissae[:threshold], encoded[:threshold, None])
    if secret is not None and shared.is_fitted_by(secret):
        return secret
    # Wrong shares among them, such as those of a second polynomial.
    try:
        secret, _ = decode_with_errors(abscissae, encoded, threshold)
    except UncorrectableError:
        return None
    return secret if shared.is_fitted_by(secret) else None


# What the facts give by themselves.
_FROM_FACTS: Final[tuple[Callable[[Closure], None], ...]] = (
    _add_from_seeds,
    _add_from_thefts,
    _read_answers,
)
# What is known gives more of; each tells whether it did.  A revealed noise seed, which
# gives its layer, would be one more function here.
_RULES: Final[tuple[Callable[[Closure], bool], ...]] = (_open_bundles, _combine_shares)


def shortened(items: Iterable[str], *, shown: int = 6) -> str:
    """Join items for a report, and count those that would make it long."""
    listed = list(items)
    rest = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + rest
