"""What a lying aggregator sends in place of an honest update, each by its name.

Rule 1: a lie is a function of a run and of the honest update; it returns what the
        program is sent instead, in order.  The last answer is checked.
Rule 2: what it needs to know it decodes from the update, or asks the peers for.
"""

from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from hashlib import sha256
from typing import Any, Final

from secagg.conformance.run import Run
from secagg.conformance.scene import LIST, NOW, REVOKED_SERIAL, TESTED, Peer, serial_of
from secagg.crypto.canonical import Writer
from secagg.crypto.cipher_suite import seal
from secagg.crypto.key_derivation import share_channel_key
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.crypto.transcript import domain_tag
from secagg.errors import ErrorCode
from secagg.protocol.client import states
from secagg.protocol.context import session_context
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import Credential
from secagg.protocol.membership import Member, signed_advert
from secagg.protocol.messages import (
    Aborted,
    Advert,
    Delivery,
    Fate,
    Neighbourhood,
    Quorum,
    Released,
    Roster,
    RosterProof,
    Survivors,
)
from secagg.simulation.driver import identity_in_simulation, issued_to, membership_of

BUNDLE: Final = 96
_SIGNATURE_ORDER: Final = (1 << 252) + 27742317777372353535851937790883648493
# y = 1: the neutral element, of order 1.
_SMALL_POINT: Final = b"\x01" + bytes(31)
_NOT_CANONICAL: Final = ((1 << 255) - 19 + 9).to_bytes(32, "little")

RESTART: Final = "restart"
Act = bytes | str
Lie = Callable[..., list[Act]]
LIES: Final[dict[str, Lie]] = {}


def _lie(make: Lie) -> Lie:
    LIES[make.__name__] = make
    return make


def _changed(make: Callable[..., bytes]) -> Callable[..., bytes]:
    """Register what sends one changed update in place of the honest one."""
    LIES[make.__name__] = lambda run, update, *how: [make(run, update, *how)]
    return make


# --- bytes ------------------------------------------------------------------------


@_changed
def cut(_: Run, update: bytes, by: int = 1) -> bytes:
    """Leave out the last bytes."""
    return update[:-by]


@_changed
def grow(_: Run, update: bytes, by: int = 1) -> bytes:
    """Add bytes of zeros."""
    return update + bytes(by)


@_changed
def honest(_: Run, update: bytes) -> bytes:
    """Send the honest message, which the program's own limits refuse."""
    return update


@_changed
def early(run: Run, _: bytes, name: str) -> bytes:
    """Send the message of a later round."""
    size = len(run.peers) + 1
    everyone = _set_of(range(size), size)
    message = {
        "delivery": Delivery(everyone, bytes(BUNDLE * (size - 1))),
        "survivors": Survivors(everyone),
        "quorum": Quorum(tuple((i, bytes(64)) for i in range(size))),
    }[name]
    return _closed(message)


@_lie
def again(_: Run, update: bytes) -> list[Act]:
    """Send the same message twice."""
    return [update, update]


@_lie
def after_restart(_: Run, update: bytes) -> list[Act]:
    """Send it, let the program restart, and send it again."""
    return [update, RESTART, update]


@_lie
def then(run: Run, update: bytes, name: str, *how: Any) -> list[Act]:
    """Send the honest message, and then a lie about it."""
    return [update, *LIES[name](run, update, *how)]


@_lie
def restarted_then(run: Run, update: bytes, name: str, *how: Any) -> list[Act]:
    """Send the honest message, let the program restart, and then lie about it."""
    return [update, RESTART, *LIES[name](run, update, *how)]


# --- offers -----------------------------------------------------------------------


@_changed
def parameters(_: Run, offer: bytes, changes: dict[str, Any]) -> bytes:
    """Offer other parameters."""
    found = SessionDescriptor.decode(offer)
    changed = dict(changes)
    if "deadlines" in changed:
        changed["deadlines"] = replace(
            found.parameters.deadlines, **changed["deadlines"]
        )
    if "graph_bits" in changed:
        tail: Any = found.parameters.tail
        changed["tail"] = replace(tail, graph_bits=changed.pop("graph_bits"))
    made = replace(found.parameters, **changed)
    return replace(found, parameters=made).encode()


@_changed
def offered(_: Run, offer: bytes, changes: dict[str, Any]) -> bytes:
    """Change fields of the offer itself."""
    found = SessionDescriptor.decode(offer)
    changed: dict[str, Any] = {
        name: bytes.fromhex(value) if name in {"noise_terms", "payload_hash"} else value
        for name, value in changes.items()
    }
    if "ends_in" in changed:
        changed["session_end"] = NOW + changed.pop("ends_in")
    return replace(found, **changed).encode()


@_changed
def number_at(run: Run, offer: bytes, name: str, value: int) -> bytes:
    """Write another version, profile or suite."""
    place = offer.index(run.offer.parameters.encode())
    at = place + {"version": 0, "profile": 2, "suite": 4}[name]
    return offer[:at] + value.to_bytes(2, "big") + offer[at + 2 :]


@_changed
def zero_byte(run: Run, offer: bytes) -> bytes:
    """Write U+0000 into the name of the task."""
    return offer.replace(run.offer.task_id.encode(), b"kit\0task")


@_changed
def block(run: Run, offer: bytes, old: str, new: str) -> bytes:
    """Write another text into the noise block."""
    found = run.offer.parameters.noise_block
    made = found.replace(old.encode(), new.encode())
    if made == found:
        raise ValueError(f"the noise block has no {old}")
    changed = replace(run.offer.parameters, noise_block=made)
    return replace(SessionDescriptor.decode(offer), parameters=changed).encode()


@_changed
def sampler(run: Run, offer: bytes) -> bytes:
    """Name another sampler."""
    found = run.offer.parameters.noise_block
    at = found.index(b'"noise_sampler":"') + 17
    other = b"0" if found[at : at + 1] != b"0" else b"1"
    made = found[:at] + other + found[at + 1 :]
    changed = replace(run.offer.parameters, noise_block=made)
    return replace(SessionDescriptor.decode(offer), parameters=changed).encode()


@_changed
def trust(run: Run, offer: bytes, what: str) -> bytes:
    """Go by another issuer or list."""
    found = run.offer.parameters.trust
    if found is None:
        raise ValueError("the profile has no trust")
    changed = {
        "key": lambda: replace(found, enrolment_key=sha256(b"another").digest()),
        "domain": lambda: replace(found, trust_domain="elsewhere"),
        "hash": lambda: replace(found, revocation_hash=sha256(LIST + b"0").digest()),
        "number": lambda: replace(found, revocation_number=8),
        "no list": lambda: replace(
            found, revocation_number=0, revocation_hash=sha256(LIST).digest()
        ),
        "largest": lambda: replace(found, revocation_number=(1 << 32) - 1),
    }[what]()
    made = run.offer.parameters.under(changed)
    return replace(SessionDescriptor.decode(offer), parameters=made).encode()


# --- rosters ----------------------------------------------------------------------


def _roster(update: bytes) -> Roster:
    found = Roster.decode(update[1:])
    if not isinstance(found, Roster):
        raise TypeError("a neighbourhood is no whole roster")
    return found


def _sent(adverts: Iterable[Advert], seed: bytes = b"") -> bytes:
    return _closed(Roster(tuple(adverts), seed))


def _peer_changed(update: bytes, **changes: Any) -> bytes:
    """Change the advert of the first peer."""
    first, *others = _roster(update).adverts
    return _sent((replace(first, **changes), *others))


@_changed
def swapped(_: Run, update: bytes) -> bytes:
    """Exchange the places of two clients."""
    first, second, *others = _roster(update).adverts
    return _sent((second, first, *others))


@_changed
def only(_: Run, update: bytes, count: int) -> bytes:
    """Show some of the clients, the program among them."""
    adverts = _roster(update).adverts
    own = [each for each in adverts if each.identity == TESTED]
    others = [each for each in adverts if each.identity != TESTED][: count - 1]
    return _sent(sorted((*own, *others), key=lambda each: each.identity))


@_changed
def more(run: Run, update: bytes) -> bytes:
    """Show one client too many."""
    extra = Peer("client-o", run.offer, seed=run.seed).join()[0]
    return _sent((*_roster(update).adverts, Advert.decode(extra[1:])))


@_changed
def own_advert(_: Run, update: bytes) -> bytes:
    """Show another commitment of the program."""
    adverts = [
        replace(each, self_mask_commitment=bytes(32))
        if each.identity == TESTED
        else each
        for each in _roster(update).adverts
    ]
    return _sent(adverts)


@_changed
def omit_program(_: Run, update: bytes) -> bytes:
    """Leave the program out."""
    return _sent(x for x in _roster(update).adverts if x.identity != TESTED)


@_changed
def bad_key(_: Run, update: bytes, what: str, field: str = "encryption_key") -> bytes:
    """Show a key of X25519 that gives no secret, or is not canonical."""
    keys = {"low order": bytes(32), "not canonical": _NOT_CANONICAL}
    return _peer_changed(update, **{field: keys[what]})


@_changed
def same_key(_: Run, update: bytes, of: str) -> bytes:
    """Show one key twice."""
    first, second, *others = _roster(update).adverts
    own = next(x for x in (second, *others) if x.identity == TESTED)
    key = {
        "itself": first.masking_key,
        "a peer": others[-1].masking_key,
        "the program": own.encryption_key,
    }[of]
    return _sent((replace(first, encryption_key=key), second, *others))


@_changed
def other_form(_: Run, update: bytes) -> bytes:
    """Show an advert without a credential."""
    return _peer_changed(update, credential=None, signature=b"")


@_changed
def with_credential(_: Run, update: bytes) -> bytes:
    """Show a signed advert in profile 1."""
    name = _roster(update).adverts[0].identity
    credential = issued_to(name, serial_of(name))
    return _peer_changed(update, credential=credential, signature=bytes(64))


@_changed
def one_layer_more(_: Run, update: bytes) -> bytes:
    """Show a commitment that the offer does not ask for."""
    first = _roster(update).adverts[0]
    layers = (*first.noise_commitments, bytes(32))
    return _peer_changed(update, noise_commitments=layers)


@_changed
def with_seed(_: Run, update: bytes) -> bytes:
    """Show the seed of a ring on another graph."""
    return _sent(_roster(update).adverts, bytes(range(32)))


@_changed
def forged(_: Run, update: bytes) -> bytes:
    """Change the signature of an advert."""
    found = bytearray(_roster(update).adverts[0].signature)
    found[40] ^= 1
    return _peer_changed(update, signature=bytes(found))


@_changed
def s_plus_l(_: Run, update: bytes) -> bytes:
    """Write S + L for S into a signature that holds."""
    return _peer_changed(
        update, signature=_plus_l(_roster(update).adverts[0].signature)
    )


def _plus_l(signature: bytes) -> bytes:
    s = int.from_bytes(signature[32:], "little") + _SIGNATURE_ORDER
    return signature[:32] + s.to_bytes(32, "little")


@_changed
def credential(run: Run, update: bytes, what: str) -> bytes:
    """Show a client whose credential does not hold; its own key signs its advert."""
    first, *others = _roster(update).adverts
    name, serial = first.identity, serial_of(first.identity)
    good = issued_to(name, serial)
    found = identity_in_simulation(name, serial)
    made: Credential = {
        "expired": lambda: issued_to(name, serial, not_after=NOW + 1),
        "not yet": lambda: issued_to(name, serial, not_before=NOW + 10_000_000),
        "revoked": lambda: issued_to(name, REVOKED_SERIAL),
        "forged": lambda: replace(good, serial=serial + 100),
        "small": lambda: _issued(replace(good, identity_key=_SMALL_POINT)),
        "s plus l": lambda: replace(good, signature=_plus_l(good.signature)),
        "name": lambda: good,
    }[what]()
    identity = name if what != "name" else "client a"
    if what == "name":
        made = _issued(replace(good, name=identity))
    advert = _signed(run, replace(first, identity=identity), found.key, made)
    return _sent((advert, *others))


def _issued(credential: Credential) -> Credential:
    label = b"the issuer of simulations"
    return credential.signed_by(_key(label), "simulation")


def _key(label: bytes) -> IdentityKey:
    return IdentityKey.from_bytes(SecretBytes(sha256(label).digest()))


def _signed(
    run: Run, advert: Advert, key: IdentityKey, credential: Credential
) -> Advert:
    """Return an advert with the signature of this key."""
    found = run.offer.parameters.trust
    if found is None:
        raise ValueError("the profile has no trust")
    own = membership_of(advert.identity, credential.serial)
    rules = own.rules(found, run.offer.session_end)
    member = Member(key, credential, rules, None)
    return signed_advert(
        advert,
        member,
        ctx0=session_context(run.offer),
        suite=run.offer.parameters.suite,
    )


def _neighbourhood(update: bytes) -> Neighbourhood:
    found = Roster.decode(update[1:])
    if not isinstance(found, Neighbourhood):
        raise TypeError("no neighbourhood")
    return found


@_changed
def neighbour_missing(_: Run, update: bytes) -> bytes:
    """Show an advert fewer than the reader has neighbours."""
    found = _neighbourhood(update)
    names = [index for index in found.adverts if index != found.reader]
    shown = {i: x for i, x in found.adverts.items() if i != names[0]}
    return _closed(replace(found, adverts=shown))


@_changed
def proof(_: Run, update: bytes, how: str) -> bytes:
    """Show a proof with a hash too many or too few."""
    found = _neighbourhood(update)
    made = (*found.proof, bytes(32)) if how == "more" else found.proof[:-1]
    return _closed(replace(found, proof=made))


@_changed
def roster_size(_: Run, update: bytes, size: int) -> bytes:
    """Say that the roster has another size."""
    return _closed(replace(_neighbourhood(update), size=size))


@_changed
def forge_own_commitment(_: Run, update: bytes) -> bytes:
    """Show another commitment of the program in its neighbourhood."""
    found = _neighbourhood(update)
    own = replace(found.adverts[found.reader], self_mask_commitment=bytes(32))
    return _closed(replace(found, adverts={**found.adverts, found.reader: own}))


@_changed
def shrink_neighbourhood(_: Run, update: bytes) -> bytes:
    """Show the neighbours as if they and the reader were all."""
    found = _neighbourhood(update)
    shown = dict(enumerate(found.adverts.values()))
    own = next(i for i, each in shown.items() if each.identity == TESTED)
    return _closed(Neighbourhood(len(shown), own, shown, found.graph_seed, ()))


@_changed
def as_neighbourhood(_: Run, update: bytes) -> bytes:
    """Show a neighbourhood where there is no ring."""
    found = Roster.of(_roster(update).adverts, bytes(32))
    shown = dict(enumerate(found.adverts))
    own = next(i for i, each in shown.items() if each.identity == TESTED)
    return _closed(Neighbourhood(len(found), own, shown, found.graph_seed, ()))


# --- sets -------------------------------------------------------------------------


def _set_of(indices: Iterable[int], size: int) -> bytes:
    bits = bytearray((size + 7) // 8)
    for index in indices:
        bits[index // 8] |= 1 << index % 8
    return bytes(bits)


def _members(bitmap: bytes, size: int) -> list[int]:
    return [i for i in range(size) if bitmap[i // 8] >> i % 8 & 1]


def _names(run: Run) -> list[str]:
    """Return the names of a roster on the complete graph, by index."""
    return sorted((TESTED, *run.scene.peers))


def _own(run: Run) -> int:
    return _names(run).index(TESTED)


def _delivery(update: bytes) -> tuple[bytes, bytes]:
    """Return U2 and the bundles of a delivery."""
    bitmap, bundles = astuple(Delivery.decode(update[1:]))
    return bitmap, bundles


@_changed
def u2(run: Run, update: bytes, how: str) -> bytes:
    """Show another U2, with as many bundles as the honest one has or needs."""
    bitmap, bundles = _delivery(update)
    size, own = len(_names(run)), _own(run)
    others = [i for i in _members(bitmap, size) if i != own]
    if how == "padding":
        return _closed(Delivery(bitmap[:-1] + bytes([bitmap[-1] | 0x80]), bundles))
    if how == "without it":
        return _closed(Delivery(_set_of(others, size), bundles))
    return _closed(Delivery(_set_of((own, others[0]), size), bundles[:BUNDLE]))


@_changed
def bundle(_: Run, update: bytes, how: str) -> bytes:
    """Change the bundles of a delivery."""
    bitmap, bundles = _delivery(update)
    data = bytearray(bundles)
    if how == "missing":
        data = data[BUNDLE:]
    elif how == "flipped":
        data[10] ^= 1
    elif how == "all flipped":
        for at in range(0, len(data), BUNDLE):
            data[at] ^= 1
    else:
        data[: 2 * BUNDLE] = data[BUNDLE : 2 * BUNDLE] + data[:BUNDLE]
    return _closed(Delivery(bitmap, bytes(data)))


@_changed
def confuse_shares(run: Run, update: bytes, how: str) -> bytes:
    """Let a peer seal what a bundle must not hold."""
    bitmap, bundles = _delivery(update)
    names, own = _names(run), _own(run)
    state = run.peers[names[0]].state
    if not isinstance(state, states.Shared):
        raise TypeError("the peer has not shared")
    header = {"abscissa": (0, own, own + 2), "sender": (1, own, own + 1)}.get(
        how, (0, own, own + 1)
    )
    share = bytes(34)
    if how == "share":  # a flag over a limb that is not zero (R7.2-1)
        share = b"\0\1" + bytes(30) + b"\0\1"
    ctx1, suite = state.roster.ctx1, run.offer.parameters.suite
    key = share_channel_key(
        state.channels[own],
        session_id=run.offer.session_id,
        context=ctx1,
        sender=0,
        receiver=own,
        suite=suite,
    )
    tag = domain_tag("client", "share bundle", suite)
    outside = Writer().fixed(tag).blob(ctx1).u32(0).u32(own).getvalue()
    inside = Writer().u32(header[0]).u32(header[1]).u32(header[2]).getvalue()
    sealed = seal(key, inside + share + bytes(34), outside)
    return _closed(Delivery(bitmap, sealed + bundles[BUNDLE:]))


@_changed
def u3(run: Run, update: bytes, how: str) -> bytes:
    """Show another U3."""
    bitmap, size = update[1:], len(_names(run))
    members, own = _members(bitmap, size), _own(run)
    others = [i for i in members if i != own]
    if how == "padding":
        return update[:-1] + bytes([update[-1] | 0x80])
    if how == "without it":
        made = _set_of(others, size)
    elif how == "outsider":
        made = _set_of(range(size), size)
    elif how == "one fewer":
        made = _set_of((own, *others[:-1]), size)
    elif how == "three":
        made = _set_of((own, *others[:2]), size)
    else:
        made = _set_of((own, others[0]), size)
    return bytes([Survivors.KIND]) + made


@_changed
def cut_ring(run: Run, update: bytes) -> bytes:
    """Show a U3 that leaves clients of a ring without a path of masks between them."""
    size, own = len(run.peers) + 1, run.ring_place
    half = run.offer.parameters.degree // 2
    lost = {(own + 2 + i) % size for i in range(half)}
    lost |= {(own - 1 - i) % size for i in range(half)}
    return update[:1] + _set_of(set(range(size)) - lost, size)


# --- quorums ----------------------------------------------------------------------


@_changed
def quorum(run: Run, update: bytes, how: str) -> bytes:
    """Change the signatures on U3."""
    found = Quorum.decode(update[1:])
    signatures, proofs = list(found.signatures), list(found.roster_proofs)
    if how == "few":
        signatures = signatures[: run.offer.parameters.quorum - 1]
    elif how == "order":
        signatures[0], signatures[1] = signatures[1], signatures[0]
    elif how == "outsider":
        names = {index for index, _ in signatures} | {each.index for each in proofs}
        other = next(i for i in range(len(_names(run))) if i not in names)
        signatures = sorted([*signatures[:-1], (other, signatures[-1][1])])
    elif how == "forged":
        index, signature = signatures[0]
        signatures[0] = (
            index,
            signature[:40] + bytes([signature[40] ^ 1]) + signature[41:],
        )
    elif how == "s plus l":
        signatures[0] = (signatures[0][0], _plus_l(signatures[0][1]))
    elif how == "of another":
        signatures[0] = (signatures[0][0], signatures[1][1])
    elif how == "no proof":
        proofs = []
    elif how == "proof of one who signed":
        proofs = sorted(
            [*proofs, RosterProof(signatures[0][0], bytes(32), bytes(64))],
            key=lambda each: each.index,
        )
    elif how == "forged proof":
        proofs[0] = replace(proofs[0], digest=bytes(32))
    else:
        raise ValueError(how)
    return _closed(Quorum(tuple(signatures), tuple(proofs)))


# --- endings ----------------------------------------------------------------------


@_changed
def released(run: Run, _: bytes, fate: int = 2, count: int = 0) -> bytes:
    """Say that a sum is released."""
    size = len(run.server.update_for(TESTED) or b"")
    return _closed(
        Released(Fate(fate), bytes(32), size, count or len(run.peers) + 1, NOW)
    )


@_changed
def aborted(_: Run, __: bytes, fate: int, code: str = "DEADLINE") -> bytes:
    """Say that the session is over."""
    return _closed(Aborted(Fate(fate), ErrorCode[code], "the kit says so"))


@_changed
def unknown_code(_: Run, __: bytes) -> bytes:
    """End the session with a code that this version does not know."""
    return b"\x09\x00" + (9999).to_bytes(2, "big") + b"\0\0\0\1x"


@_changed
def other_fate(_: Run, __: bytes) -> bytes:
    """End the session with a fate that there is not."""
    return b"\x09\x03" + (21).to_bytes(2, "big") + b"\0\0\0\1x"


def _closed(message: Any) -> bytes:
    encoded: bytes = message.encode()
    return bytes([message.KIND]) + encoded
