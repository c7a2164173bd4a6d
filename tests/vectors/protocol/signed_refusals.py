"""What a client refuses of neighbourhoods, and where a quorum has to sign.

Rule 1: names and cases are made as in `client_refusals`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import reference as ref
from client_refusals import client_case, opening, played_client, survivor_sets
from forged_messages import RosterForge, flipped
from reference_keys import public_key
from reference_roster import Advert, decode_roster
from reference_session import CONSISTENCY, MASK, SHARE, UNMASK, quorum_of
from reference_signature import identity_key, sign
from session_vectors import FOREIGN_ISSUER, ISSUER, SESSION_END, Run, counting


def neighbourhoods(ring: Run, complete: Run, small: Run) -> Iterator[dict[str, Any]]:
    me = ring.plan.partial
    good = ring.bytes_of(me, "neighbourhood")
    roster = decode_roster(good, ring.offer.parameters)
    mine = ring.row(me)["index"]
    others = [index for index in roster.adverts if index != mine]
    far = next(i for i in range(roster.count) if i not in roster.adverts)
    rules = ring.offer.parameters

    def case(rule: str, name: str, code: int, data: bytes) -> dict[str, Any]:
        return client_case(ring, me, SHARE, (f"{rule} {name}", code), data)

    def shown(adverts: dict[int, Advert], **changes: Any) -> bytes:
        return replace(roster, adverts=adverts, **changes).encode()

    def altered(place: int, **changes: Any) -> bytes:
        advert = replace(roster.adverts[place], **changes)
        return shown(roster.adverts | {place: advert})

    falling = dict(reversed(roster.adverts.items()))
    one, other = others[0], others[1]
    swapped = dict(roster.adverts)
    swapped[one], swapped[other] = roster.adverts[other], roster.adverts[one]
    beyond = {index: roster.adverts[index] for index in roster.adverts}
    beyond[roster.count] = roster.adverts[others[0]]
    encoding: dict[str, bytes] = {
        "neighbourhood cut short": good[:-1],
        "neighbourhood with one byte more": good + b"\0",
        "no graph seed": shown(roster.adverts, graph_seed=b""),
        "indices that fall": shown(falling),
        "an index of n": shown(beyond),
        "two neighbours swapped": shown(swapped),
        "an order of another seed": shown(roster.adverts, graph_seed=bytes(32)),
        "noise commitments in a task without noise": altered(
            others[0], noise_commitments=(bytes(32),) * 2
        ),
    }
    for name, data in encoding.items():
        yield case("R5.2-20", name, ref.BAD_ENCODING, data)
    for name, count, code in (
        ("n below the smallest cohort", rules.min_clients - 1, ref.ROSTER_TOO_SMALL),
        ("n above the largest cohort", rules.max_clients + 1, ref.ROSTER_TOO_LARGE),
    ):
        kept = {i: a for i, a in roster.adverts.items() if i < count}
        yield case("R5.2-21", name, code, shown(kept, count=count))
    for name, data in {
        "reader's index is another's": shown(roster.adverts, reader=others[0]),
        "reader's index is beyond all": shown(roster.adverts, reader=2**32 - 1),
        "own advert left out": shown({i: roster.adverts[i] for i in others}),
        "own commitment changed": altered(mine, commitment=bytes(32)),
    }.items():
        yield case("R5.2-22", name, ref.SELF_MISSING, data)
    fewer = {i: a for i, a in roster.adverts.items() if i != others[0]}
    stranger = ring.roster().adverts[far]
    more = dict(sorted((roster.adverts | {far: stranger}).items()))
    for name, data in {
        "a neighbour left out": shown(fewer),
        "a client that is no neighbour": shown(more),
        "neighbours of another n": shown(roster.adverts, count=rules.max_clients),
    }.items():
        yield case("R5.2-23", name, ref.BAD_PROOF, data)
    for name, proof in {
        "one hash missing": roster.proof[:-1],
        "one hash more": (*roster.proof, bytes(32)),
        "no proof": (),
    }.items():
        yield case("R5.2-24", name, ref.BAD_PROOF, shown(roster.adverts, proof=proof))
    data = altered(others[0], signature=bytes(64))
    yield case("R5.2-9", "a neighbour with a signature", ref.BAD_SIGNATURE, data)
    data = altered(others[0], mask_key=bytes(32))
    yield case("R5.2-4", "a neighbour's key is zero", ref.BAD_PUBLIC_KEY, data)
    data = altered(others[0], mask_key=roster.adverts[others[1]].mask_key)
    yield case("R5.2-5", "two neighbours, one key", ref.DUPLICATE_KEY, data)
    for run, name in (
        (complete, "R5.2-25 a neighbourhood on the complete graph"),
        (small, "R5.2-26 a neighbourhood where the server may lie"),
    ):
        who = run.row(run.plan.identities[0])
        whole = RosterForge(run).reordered(bytes(32))
        names = [advert.identity for advert in whole.adverts.values()]
        part = replace(whole, reader=names.index(who["identity"]))
        named = (name, ref.POLICY_VIOLATION)
        yield client_case(run, who["identity"], SHARE, named, part.encode())


def signed_rosters(run: Run) -> Iterator[dict[str, Any]]:
    me, victim = run.plan.identities[0], run.plan.identities[1]
    forge = RosterForge(run)
    place, mine = run.row(victim)["index"], run.row(me)["index"]
    advert = forge.adverts[place]
    seed = run.secrets[victim].identity_seed
    view = played_client(run, me, 0).view

    def case(rule: str, name: str, code: int, **changes: Any) -> dict[str, Any]:
        data = forge.replaced(place, **changes)
        return client_case(run, me, SHARE, (f"{rule} {name}", code), data)

    def signed(**changes: Any) -> dict[str, Any]:
        """Changes that the victim would have signed."""
        made = replace(advert, **changes)
        message = made.signed_bytes(view.suite, view.contexts[0])
        return changes | {"signature": sign(seed, message)}

    def credited(**changes: Any) -> dict[str, Any]:
        issuer = changes.pop("issuer", ISSUER)
        given = changes.pop("name", victim)
        return signed(credential=issuer.credential(given, seed, **changes))

    for name, changes in {
        "no credential": signed(credential=None),
        "no signature": {"signature": b""},
        "neither": {"credential": None, "signature": b""},
    }.items():
        yield case("R5.2-9", name, ref.BAD_CREDENTIAL, **changes)
    yield case(
        "R5.2-4", "key of zeros", ref.BAD_PUBLIC_KEY, **signed(mask_key=bytes(32))
    )
    own = forge.adverts[mine].credential
    yield case("R5.2-5", "the reader's identity key", ref.DUPLICATE_KEY, credential=own)
    canonical = next(
        key
        for key in (identity_key(counting(start, 32)) for start in range(99))
        if key[-1] < 128
    )
    third = next(i for i in range(len(forge.adverts)) if i not in {place, mine})
    adverts = list(forge.adverts)
    adverts[third] = replace(
        adverts[third], credential=replace(adverts[third].credential, key=canonical)
    )
    adverts[place] = replace(advert, channel_key=canonical)
    named = ("R5.2-5 an identity key that is a channel key", ref.DUPLICATE_KEY)
    yield client_case(run, me, SHARE, named, forge.roster(adverts))
    for name, changes in {
        "R2.1-2 name that no issuer gives": {"identity": "ben two"},
        "R2.1-3 credential that has ended": credited(not_after=SESSION_END - 1),
        "R2.1-3 credential that has not begun": credited(not_before=SESSION_END + 1),
        "R2.1-4 revoked credential": credited(serial=4),
        "R2.1-5 key that is no point of the curve": credited(
            key=(2).to_bytes(32, "little")
        ),
        "R2.1-5 key that is no point, and nothing signed": credited(
            key=(2).to_bytes(32, "little")
        )
        | {"signature": bytes(64)},
        "R2.1-6 credential of another issuer": credited(issuer=FOREIGN_ISSUER),
        "R2.1-6 credential of another name": credited(name="other"),
    }.items():
        rule, _, what = name.partition(" ")
        yield case(rule, what, ref.BAD_CREDENTIAL, **changes)
    other = public_key(counting(9, 32))
    unsigned_by_session = tuple(
        sign(seed, advert.signed_bytes(view.suite, context))
        for context in (bytes(32), view.sid)
    )
    for name, changes in {
        "substituted channel key": {"channel_key": other},
        "substituted mask key": {"mask_key": other},
        "substituted commitment": {"commitment": bytes(32)},
        "signature of another session": {"signature": unsigned_by_session[0]},
        "signature over sid": {"signature": unsigned_by_session[1]},
        "one bit of the signature": {"signature": flipped(advert.signature, 40)},
        "credential of another key": credited(key=identity_key(counting(3, 32))),
    }.items():
        yield case("R5.2-6", name, ref.BAD_SIGNATURE, **changes)
    adverts = list(forge.adverts)
    adverts[place] = replace(advert, commitment=bytes(32))
    foreign = FOREIGN_ISSUER.credential(
        adverts[third].identity, run.secrets[adverts[third].identity].identity_seed
    )
    adverts[third] = replace(adverts[third], credential=foreign)
    named = (
        "R5.2-6 signature and credential: all credentials come first",
        ref.BAD_CREDENTIAL,
    )
    yield client_case(run, me, SHARE, named, forge.roster(adverts))


def quorums(run: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    count, needed = len(run.record["neighbours"]), run.offer.parameters.quorum
    good = opening(run, me, UNMASK)
    view = played_client(run, me, CONSISTENCY).view
    names = {row["index"]: row["identity"] for row in run.record["clients"]}
    dealt = {
        row["index"]: bytes.fromhex(row["bundles"])
        for row in run.record["clients"]
        if row["bundles"]
    }

    def signatures(members: set[int], message: bytes) -> dict[int, bytes]:
        return {
            index: sign(run.secrets[names[index]].identity_seed, message)
            for index in members
        }

    def case(rule: str, name: str, code: int, data: bytes) -> dict[str, Any]:
        return client_case(run, me, UNMASK, (f"{rule} {name}", code), data)

    def proof(index: int) -> bytes:
        sealed, signature = dealt[index][:-64], dealt[index][-64:]
        return hashlib.sha256(sealed).digest() + signature

    def lists(signed: dict[int, bytes]) -> bytes:
        """The quorum of some signatures, with the proofs that belong to it."""
        others = view.survivors - set(signed)
        return quorum_of(signed, {index: proof(index) for index in others})

    all_signatures = signatures(view.survivors, view.set_to_sign())
    chosen = dict(sorted(all_signatures.items())[:needed])
    rows = [ref.u32(index) + made for index, made in chosen.items()]
    none = ref.u32(0)
    for name, data in {
        "quorum cut short": good[:-1],
        "quorum with one byte more": good + b"\0",
        "empty quorum message": b"",
        "more signers than bytes": ref.u32(2**32 - 1) + good[4:],
        "one signer twice": ref.u32(needed)
        + (rows[0] * 2 + b"".join(rows[1:-1]) + none),
        "two signers swapped": ref.u32(needed)
        + (rows[1] + rows[0] + b"".join(rows[2:]) + none),
        "no second list": quorum_of(chosen)[: -len(none)],
    }.items():
        yield case("R5.5-1", name, ref.BAD_ENCODING, data)
    fewer = dict(list(chosen.items())[:-1])
    yield case("R5.5-2", "one signature short", ref.NO_QUORUM, lists(fewer))
    yield case("R5.5-2", "no signatures", ref.NO_QUORUM, lists({}))
    garbage = dict.fromkeys(fewer, bytes(64))
    name = "too few, and none of them holds: the count comes first"
    yield case("R5.5-2", name, ref.NO_QUORUM, lists(garbage))
    outside = next(i for i in range(count) if i not in view.survivors)
    for name, index in (("a signer outside u3", outside), ("a signer beyond n", count)):
        data = lists(fewer | {index: bytes(64)})
        yield case("R5.5-3", name, ref.U3_INVALID, data)
    others = ref.bitmap(view.share_holders, count)
    ctx3 = ref.context_3(view.suite, view.contexts[2], others)
    tagged = ref.tag("client", "consistency", view.suite)
    last = max(chosen)
    for name, forged in {
        "all have signed another set": signatures(set(chosen), tagged + ref.blob(ctx3)),
        "signatures over the bare context": signatures(set(chosen), view.contexts[3]),
        "one bit of the last signature": chosen | {last: flipped(chosen[last], 63)},
        "one client's signature for two": chosen | {last: chosen[min(chosen)]},
    }.items():
        yield case("R5.5-4", name, ref.BAD_SIGNATURE, lists(forged))
    forged = quorum_of(chosen | {last: bytes(64)})
    name = "no proofs and a bad signature: signatures come first"
    yield case("R5.5-4", name, ref.BAD_SIGNATURE, forged)


def roster_proofs(run: Run) -> Iterator[dict[str, Any]]:
    """R5.3-13: of two members of U3 whose signatures came too late."""
    me = "ann"
    view = played_client(run, me, CONSISTENCY).view
    rows = {row["index"]: row for row in run.record["clients"]}
    signed = {
        index: bytes.fromhex(row["signature"])
        for index, row in rows.items()
        if row["signature"]
    }
    one, other = others = sorted(signed)[-2:]
    signed = {index: made for index, made in signed.items() if index not in others}

    def seed(index: int) -> bytes:
        return run.secrets[rows[index]["identity"]].identity_seed

    def proof(index: int) -> bytes:
        dealt = bytes.fromhex(rows[index]["bundles"])
        return hashlib.sha256(dealt[:-64]).digest() + dealt[-64:]

    def made(digest: bytes, *, ctx1: bytes = view.contexts[1], of: int = one) -> bytes:
        """What a client would have signed."""
        tagged = ref.tag("client", "bundles", view.suite)
        message = tagged + ref.blob(ctx1) + ref.u32(of) + digest
        return digest + sign(seed(one), message)

    def case(
        name: str, code: int, proofs: dict[int, bytes] | bytes, rule: str = "R5.3-13"
    ) -> dict[str, Any]:
        if isinstance(proofs, dict):
            proofs = quorum_of(signed, proofs)
        return client_case(run, me, UNMASK, (f"{rule} {name}", code), proofs)

    good = {index: proof(index) for index in others}
    written = {index: ref.u32(index) + good[index] for index in others}
    head = quorum_of(signed)[:-4]
    for name, data in {
        "proofs not ascending": ref.u32(2) + written[other] + written[one],
        "one proof twice": ref.u32(3) + written[one] * 2 + written[other],
        "more proofs than bytes": ref.u32(3) + written[one] + written[other],
        "a proof cut short": ref.u32(2) + written[one] + written[other][:-1],
    }.items():
        yield case(name, ref.BAD_ENCODING, head + data, "R5.5-1")
    signer = min(signed)
    outside = next(index for index in view.share_holders if index not in view.survivors)
    for name, proofs in {
        "a proof short": {one: good[one]},
        "no proofs": {},
        "a proof more, of a signer": good | {signer: proof(signer)},
        "a proof of a signer in the place of another": {
            one: good[one],
            signer: proof(signer),
        },
        "a proof more, outside of u3": good | {outside: proof(outside)},
        "a proof beyond n": good | {view.count: bytes(96)},
        "a proof short, the other does not hold: the list comes first": {
            one: bytes(96)
        },
    }.items():
        yield case(name, ref.U3_INVALID, proofs)
    digest = good[one][:32]
    for name, forged in {
        "signed under another roster": made(digest, ctx1=bytes(32)),
        "signed under ctx0": made(digest, ctx1=view.contexts[0]),
        "signed with another index": made(digest, of=other),
        "another digest": bytes(32) + good[one][32:],
        "one bit of the signature": flipped(good[one], 95),
        "another member's proof": good[other],
        "nothing": bytes(96),
    }.items():
        yield case(name, ref.BAD_SIGNATURE, good | {one: forged})
    name = "the last proof does not hold"
    yield case(name, ref.BAD_SIGNATURE, good | {other: flipped(good[other], 40)})


def signed_contradictions(run: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    quorum, survivors = run.announced("quorum"), run.announced("u3")
    share_holders = run.announced("u2")
    other = ("R5.4-5 a second, different set", ref.EQUIVOCATION)
    malformed = ("R5.4-5 a second set that cannot be read", ref.EQUIVOCATION)
    for after in (CONSISTENCY, UNMASK):
        yield client_case(run, me, CONSISTENCY, other, share_holders, after=after)
        yield client_case(run, me, CONSISTENCY, malformed, b"", after=after)
    named = ("R5.5-10 a quorum before the set", ref.UNEXPECTED_MESSAGE)
    for after in (SHARE, MASK):
        yield client_case(run, me, UNMASK, named, quorum, after=after)
    early = ("R5-9 a set before its round", ref.UNEXPECTED_MESSAGE)
    yield client_case(run, me, CONSISTENCY, early, survivors, after=SHARE)


def noise_that_is_missing(run: Run) -> Iterator[dict[str, Any]]:
    """Losses that the session allows and its noise does not bear."""
    few = ref.bitmap({0, 1, 2, 4}, len(run.record["neighbours"]))
    named = ("R3.5-1 more lost than the noise bears", ref.TOO_MANY_DROPOUTS)
    yield client_case(run, "ann", CONSISTENCY, named, few)


def signed_refusals(
    ring: Run, complete: Run, large: Run, small: Run, layered: Run
) -> Iterator[dict[str, Any]]:
    """Yield neighbourhoods, then all of profile 2."""
    yield from noise_that_is_missing(layered)
    yield from neighbourhoods(ring, complete, small)
    yield from signed_rosters(small)
    yield from survivor_sets(large, "bob")
    yield from quorums(large)
    yield from roster_proofs(layered)
    yield from signed_contradictions(large)
