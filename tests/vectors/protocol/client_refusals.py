"""What a client refuses: a recorded session up to some round, and then one message.

Rule 1: where a message breaks two rules, the earlier check of PROTOCOL §5 names the
        code, and such cases are among them.
Rule 2: each case names the rule that refuses it, in its name's first word here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import reference as ref
from forged_messages import LOW_ORDER, NOT_CANONICAL, RosterForge, agreeing, flipped
from reference_keys import Channel, agree, public_key
from reference_session import (
    ABORT,
    ADVERTISE,
    CHOOSE,
    CONSISTENCY,
    MASK,
    RELEASE,
    SHARE,
    UNMASK,
    Client,
    delivery_of,
)
from session_vectors import Run, counting

NO_SEED = b""


def opening(run: Run, identity: str, round_number: int) -> bytes:
    """The recorded message that opens a round for a client."""
    if round_number == SHARE and run.record["edge_root"] is not None:
        return run.bytes_of(identity, "published")
    if round_number in {CHOOSE, SHARE}:
        is_part = identity == run.plan.partial
        return (
            run.bytes_of(identity, "neighbourhood")
            if is_part
            else run.announced("roster")
        )
    if round_number == MASK:
        return run.bytes_of(identity, "delivery")
    is_quorum = round_number == UNMASK and run.record["quorum"] is not None
    return run.announced("quorum" if is_quorum else "u3")


def played_client(run: Run, identity: str, last: int) -> Client:
    """A client that has taken the messages up to a round."""
    client = run.client(identity)
    for round_number in ref.ROUNDS[run.offer.parameters.profile][1:]:
        if round_number <= last:
            client.take(round_number, opening(run, identity, round_number))
    return client


def client_case(  # noqa: PLR0913 - what tells one case from another
    run: Run,
    identity: str,
    round_number: int,
    named: tuple[str, int],
    message: bytes,
    *,
    after: int | None = None,
) -> dict[str, Any]:
    """A message that comes right after those of the rounds before, or `after` one."""
    rounds = ref.ROUNDS[run.offer.parameters.profile]
    last = rounds[rounds.index(round_number) - 1] if after is None else after
    rule, _, name = named[0].partition(" ")
    case = {
        "name": name,
        "rule": rule,
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "client": identity,
        "after": last,
        "round": round_number,
        "message": message.hex(),
    }
    client = played_client(run, identity, last)
    return agreeing(case, lambda: client.take(round_number, message))


def rosters(run: Run, ring: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    forge = RosterForge(run)
    good, adverts = run.announced("roster"), forge.adverts
    mine = run.row(me)["index"]
    others = [i for i in range(len(adverts)) if i != mine]
    one, other = others[0], others[-1]
    others_mask = adverts[other].mask_key
    strangers = [forge.stranger(f"~{i}", i) for i in range(2)]

    def case(rule: str, name: str, code: int, data: bytes) -> dict[str, Any]:
        return client_case(run, me, SHARE, (f"{rule} {name}", code), data)

    encoding: dict[str, bytes] = {
        "roster cut short": good[:-1],
        "roster with one byte more": good + b"\0",
        "empty roster message": b"",
        "roster of another form": b"\2" + good[1:],
        "count beyond the bytes": b"\0\xff\xff\xff\xff" + good[5:],
        "two adverts swapped": forge.roster([adverts[1], adverts[0], *adverts[2:]]),
        "one advert twice": forge.roster([adverts[0], *adverts]),
        "graph seed of 31 bytes": forge.roster(adverts, bytes(31)),
        "empty identity": forge.replaced(0, identity=""),
        "signature of 63 bytes": forge.replaced(one, signature=bytes(63)),
        "identity of 256 bytes": forge.replaced(-1, identity="~" * 256),
        "noise commitments in a task without noise": forge.replaced(
            one, noise_commitments=(bytes(32),) * 2
        ),
    }
    for name, data in encoding.items():
        yield case("R5.2-1", name, ref.BAD_ENCODING, data)
    small = forge.roster(adverts[: run.offer.parameters.min_clients - 1])
    yield case("R5.2-2", "too few clients", ref.ROSTER_TOO_SMALL, small)
    large = forge.roster([*adverts, *strangers])
    yield case("R5.2-2", "too many clients", ref.ROSTER_TOO_LARGE, large)
    absent: dict[str, bytes] = {
        "own advert left out": forge.roster([adverts[i] for i in others]),
        "own commitment changed": forge.replaced(mine, commitment=bytes(32)),
        "own advert with a signature": forge.replaced(mine, signature=bytes(64)),
        "own channel key changed": forge.replaced(
            mine, channel_key=strangers[0].channel_key
        ),
    }
    for name, data in absent.items():
        yield case("R5.2-3", name, ref.SELF_MISSING, data)
    signed = forge.replaced(one, signature=bytes(64), mask_key=bytes(32))
    name = "another's advert with a signature, before its key"
    yield case("R5.2-9", name, ref.BAD_SIGNATURE, signed)
    for key in (*LOW_ORDER, *NOT_CANONICAL):
        kind = "low order" if key in LOW_ORDER else "not canonical"
        for field in ("channel_key", "mask_key"):
            name = f"{field} of {kind} {key[:2].hex()}..{key[-1:].hex()}"
            data = forge.replaced(one, **{field: key})
            yield case("R5.2-4", name, ref.BAD_PUBLIC_KEY, data)
    twice: dict[str, bytes] = {
        "two clients, one mask key": forge.replaced(one, mask_key=others_mask),
        "a channel key that is another's mask key": forge.replaced(
            one, channel_key=others_mask
        ),
        "one client, one key for both": forge.replaced(
            one, channel_key=adverts[one].mask_key
        ),
        "a copy of the reader's mask key": forge.replaced(
            one, mask_key=adverts[mine].mask_key
        ),
    }
    for name, data in twice.items():
        yield case("R5.2-5", name, ref.DUPLICATE_KEY, data)
    seeded = forge.reordered(counting(0, 32)).encode()
    name = "graph seed for the complete graph"
    yield case("R5.2-10", name, ref.POLICY_VIOLATION, seeded)
    data = RosterForge(ring).reordered(NO_SEED).encode()
    named = ("R5.2-10 no graph seed for a ring", ref.POLICY_VIOLATION)
    yield client_case(ring, "client-11", SHARE, named, data)
    both = replace(adverts[one], channel_key=bytes(32), mask_key=others_mask)
    data = forge.roster([both if i == one else a for i, a in enumerate(adverts)])
    name = "bad key and duplicate key: the key comes first"
    yield case("R5.2-4", name, ref.BAD_PUBLIC_KEY, data)
    data = forge.roster([strangers[0]])
    name = "too few clients and oneself missing: size first"
    yield case("R5.2-2", name, ref.ROSTER_TOO_SMALL, data)


def channel_to(run: Run, sender: str, receiver: str) -> Channel:
    """The channel of a sender that lies."""
    view = played_client(run, receiver, SHARE).view
    secret = agree(
        run.secrets[sender].channel_private_key,
        public_key(run.secrets[receiver].channel_private_key),
    )
    ends = run.row(sender)["index"], run.row(receiver)["index"]
    abscissa = view.abscissa(*ends)
    return Channel(view.suite, view.sid, view.contexts[1], secret, *ends, abscissa)


def bundles_for(run: Run, identity: str) -> bytes:
    """What stands in a delivery behind the bitmap and its length."""
    delivery = run.bytes_of(identity, "delivery")
    return delivery[4 + len(run.announced("u2")) + 4 :]


def deliveries(run: Run, ring: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    good, share_holders = bundles_for(run, me), run.announced("u2")
    delivery = run.bytes_of(me, "delivery")
    count = len(run.record["neighbours"])
    members, mine = ref.members_of(share_holders, count), run.row(me)["index"]
    size = ref.BUNDLE_SIZE

    def case(rule: str, name: str, code: int, data: bytes) -> dict[str, Any]:
        return client_case(run, me, MASK, (f"{rule} {name}", code), data)

    for name, data in {
        "delivery cut short": delivery[:-1],
        "delivery with one byte more": delivery + b"\0",
        "empty delivery": b"",
        "u2 with a padding bit": delivery_of(bytes([share_holders[0] | 0x80]), good),
        "u2 one byte too long": delivery_of(share_holders + b"\0", good),
        "empty u2": delivery_of(b"", good),
    }.items():
        yield case("R5.3-3", name, ref.BAD_ENCODING, data)
    data = delivery_of(ref.bitmap(members - {mine}, count), good)
    yield case("R5.3-4", "u2 without the reader", ref.SELF_MISSING, data)
    few = ref.bitmap({mine, *sorted(members - {mine})[:2]}, count)
    name = "u2 below the floor"
    yield case("R5.3-5", name, ref.U2_TOO_SMALL, delivery_of(few, good))
    reader = next(row for row in ring.record["clients"] if row["upload"] is not None)
    around = ring.record["neighbours"][reader["index"]]
    far = set(range(len(ring.record["neighbours"]))) - set(around)
    thin = ref.bitmap({reader["index"], *far, *around[:2]}, len(far) + len(around))
    named = ("R5.3-5 u2 large enough, with too few holders", ref.U2_TOO_SMALL)
    data = delivery_of(thin, b"")
    yield client_case(ring, reader["identity"], MASK, named, data)

    missing: dict[str, bytes] = {
        "one bundle missing": good[size:],
        "one bundle more": good + good[-size:],
        "bundles one byte short": good[:-1],
        "no bundles": b"",
    }
    for name, data in missing.items():
        delivery = delivery_of(share_holders, data)
        yield case("R5.3-6", name, ref.BAD_SHARE_CIPHERTEXT, delivery)
    useless: dict[str, bytes] = {
        "bundles of another reader": bundles_for(run, "dora"),
        "three of five bundles garbage": bytes(3 * size) + good[3 * size :],
    }
    for name, data in useless.items():
        delivery = delivery_of(share_holders, data)
        yield case("R5.3-11", name, ref.BAD_SHARE_CIPHERTEXT, delivery)


def complaints(run: Run) -> Iterator[dict[str, Any]]:
    """Deliveries that are taken, and what is said about them."""
    me = "bob"
    good = bundles_for(run, me)
    size = ref.BUNDLE_SIZE
    tampered: dict[str, bytes] = {
        "nothing to complain about": good,
        "one bit of the last tag": flipped(good, len(good) - 1),
        "two bundles swapped": good[size : 2 * size] + good[:size] + good[2 * size :],
    } | confused(run, me, "Zoe")
    share_holders, survivors = run.announced("u2"), run.announced("u3")
    for name, data in tampered.items():
        client = played_client(run, me, SHARE)
        delivery = delivery_of(share_holders, data)
        client.take(MASK, delivery)
        yield {
            "name": name,
            "rule": "R5.3-7",
            "success": True,
            "session": run.plan.name,
            "client": me,
            "delivery": delivery.hex(),
            "complaints": [said.hex() for said in client.complaints],
            "u3": survivors.hex(),
            "answer": client.take(UNMASK, survivors).hex(),
        }


def confused(run: Run, me: str, sender: str) -> dict[str, bytes]:
    """Bundles that are authentic, from a sender that did not keep to the format."""
    good, share_holders = bundles_for(run, me), run.announced("u2")
    channel = channel_to(run, sender, me)
    shares = ref.encode_share([1] * 16) * 2
    flag = bytes(31) + b"\1\x80\0"  # limb 15 is 1, and flagged as 65536
    a, b = channel.sender, channel.receiver
    plaintexts: dict[str, bytes] = {
        "sender inside is another one": ref.u32(a + 1) + ref.u32(b) + ref.u32(b + 1),
        "reader inside is another one": ref.u32(a) + ref.u32(b + 1) + ref.u32(b + 1),
        "abscissa is the index": ref.u32(a) + ref.u32(b) + ref.u32(b),
    }
    bodies = {name: head + shares for name, head in plaintexts.items()} | {
        "share of the key not canonical": channel.indices() + flag + shares[:34],
        "share of the seed not canonical": channel.indices() + shares[:34] + flag,
    }
    senders = sorted(ref.members_of(share_holders, len(run.record["neighbours"])) - {b})
    start = ref.BUNDLE_SIZE * senders.index(a)
    result = {}
    for name, body in bodies.items():
        sealed = channel.seal_plaintext(body)
        result[name] = good[:start] + sealed + good[start + ref.BUNDLE_SIZE :]
    other = result.pop("sender inside is another one")
    result["sender inside is another one, and one bit elsewhere"] = flipped(other, 0)
    return result


def survivor_sets(run: Run, me: str) -> Iterator[dict[str, Any]]:
    """The set to answer for, or where clients sign, the set to sign."""
    survivors, count = run.announced("u3"), len(run.record["neighbours"])
    members, mine = ref.members_of(survivors, count), run.row(me)["index"]
    share_holders = ref.members_of(run.announced("u2"), count)
    outside = next(i for i in range(count) if i not in share_holders)
    others = sorted(members - {mine})
    floor = run.offer.parameters.min_survivors
    cases: dict[str, tuple[bytes, int]] = {
        "R5.4-1 u3 with bits beyond the roster": (
            survivors + b"\x80" if count % 8 == 0 else bytes([survivors[0] | 0x80]),
            ref.BAD_ENCODING,
        ),
        "R5.4-1 u3 one byte too long": (survivors + b"\0", ref.BAD_ENCODING),
        "R5.4-1 empty u3": (b"", ref.BAD_ENCODING),
        "R5.4-2 u3 with one who never shared": (
            ref.bitmap({*members, outside}, count),
            ref.U3_INVALID,
        ),
        "R5.4-2 u3 without the reader": (
            ref.bitmap(members - {mine}, count),
            ref.U3_INVALID,
        ),
        "R5.4-3 u3 below the floor": (
            ref.bitmap({mine, *others[: floor - 2]}, count),
            ref.U3_TOO_SMALL,
        ),
        "R5.4-4 u3 with too many lost": (
            ref.bitmap({mine, *others[: floor - 1]}, count),
            ref.TOO_MANY_DROPOUTS,
        ),
        "R5.4-2 an empty u3: membership comes before size": (
            ref.bitmap(set(), count),
            ref.U3_INVALID,
        ),
    }
    signs = run.record["quorum"] is not None
    for name, (data, code) in cases.items():
        if len(share_holders) - floor <= run.offer.parameters.max_dropouts and (
            code == ref.TOO_MANY_DROPOUTS
        ):
            continue
        yield client_case(run, me, CONSISTENCY if signs else UNMASK, (name, code), data)


def cut_rings(run: Run) -> Iterator[dict[str, Any]]:
    """Sets of a ring that fall into two parts, or nearly so."""
    order = run.server_order()
    reader = order[3]
    gone = {1, 2, 6, 7}
    named = ("R5.5-7 two gaps cut the ring", ref.TOO_MANY_DROPOUTS)
    data = ref.bitmap(set(range(len(order))) - gone, len(order))
    yield client_case(run, reader, UNMASK, named, data)


def contradictions(run: Run) -> Iterator[dict[str, Any]]:
    """Second messages, and messages out of their round."""
    me = "bob"
    roster, delivery = run.announced("roster"), run.bytes_of(me, "delivery")
    share_holders, survivors = run.announced("u2"), run.announced("u3")
    other = RosterForge(run).replaced(0, commitment=bytes(32))
    named = ("R5-8 a second, different message", ref.EQUIVOCATION)
    for after in (SHARE, MASK, UNMASK):
        yield client_case(run, me, SHARE, named, other, after=after)
    fewer = delivery_of(survivors, bundles_for(run, me))
    for after in (MASK, UNMASK):
        yield client_case(run, me, MASK, named, fewer, after=after)
    data = flipped(delivery, len(delivery) - 1)
    yield client_case(run, me, MASK, named, data, after=MASK)
    named = ("R5.4-5 a second, different set", ref.EQUIVOCATION)
    yield client_case(run, me, UNMASK, named, share_holders, after=UNMASK)
    malformed = ("R5-8 a second message that cannot be read", ref.EQUIVOCATION)
    yield client_case(run, me, SHARE, malformed, roster[:-1], after=SHARE)
    malformed = ("R5.4-5 a second set that cannot be read", ref.EQUIVOCATION)
    yield client_case(run, me, UNMASK, malformed, b"", after=UNMASK)
    early = ("R5-9 a message before its round", ref.UNEXPECTED_MESSAGE)
    yield client_case(run, me, MASK, early, delivery, after=ADVERTISE)
    yield client_case(run, me, UNMASK, early, survivors, after=ADVERTISE)
    yield client_case(run, me, UNMASK, early, survivors, after=SHARE)


def release(fate: int, survivors: int) -> bytes:
    return bytes([fate]) + bytes(32) + ref.u64(100) + ref.u32(survivors) + ref.u64(0)


def endings(complete: Run, signed: Run) -> Iterator[dict[str, Any]]:
    """Ends that a client does not believe, since it knows better."""
    over = ref.u16(ref.SESSION_OVER) + ref.blob(b"")
    for run, me in ((complete, "bob"), (signed, "dora")):
        survivors = run.announced("u3")
        count = sum(byte.bit_count() for byte in survivors)
        rounds = ref.ROUNDS[run.offer.parameters.profile]
        for after in rounds[: rounds.index(MASK)]:
            named = "R5.6-1 a sum, and nothing was sent for it"
            code = ref.UNEXPECTED_MESSAGE
            end = RELEASE, release(2, count)
            yield end_case(run, me, after, (named, code), end)
        yield from implausible_releases(run, me)
        for after in rounds[rounds.index(MASK) + 1 :]:
            for named, kind, message in (
                ("a sum without this client", RELEASE, release(1, count)),
                ("a sum of one less", RELEASE, release(2, count - 1)),
                ("a sum of one more", RELEASE, release(2, count + 1)),
                ("over without this client", ABORT, b"\1" + over),
                ("over before U3 was fixed", ABORT, b"\0" + over),
            ):
                told = (f"R5.6-2 {named}", ref.U3_INVALID)
                yield end_case(run, me, after, told, (kind, message))


def implausible_releases(run: Run, me: str) -> Iterator[dict[str, Any]]:
    """Sums that a client is told of that has sent its vector and seen no set."""
    most = sum(byte.bit_count() for byte in run.announced("u2"))
    rules = run.offer.parameters
    least = max(rules.threshold, rules.min_survivors)
    for named, fate, count in (
        ("a sum without this client", 1, most),
        ("a sum of nothing", 2, 0),
        ("a sum of one less than can be", 2, least - 1),
        ("a sum of one more than can be", 2, most + 1),
        ("a sum of more than there are", 2, 2**32 - 1),
    ):
        told = (f"R5.6-4 {named}", ref.U3_INVALID)
        yield end_case(run, me, MASK, told, (RELEASE, release(fate, count)))
    if rules.profile != ref.CURIOUS:
        told = ("R5.6-4 a sum before this client has signed", ref.SESSION_OVER)
        yield end_case(run, me, MASK, told, (RELEASE, release(2, most)))


def end_case(
    run: Run, me: str, after: int, named: tuple[str, int], end: tuple[int, bytes]
) -> dict[str, Any]:
    (kind, message), (rule, _, name) = end, named[0].partition(" ")
    case = {
        "name": name,
        "rule": rule,
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "client": me,
        "after": after,
        "kind": kind,
        "message": message.hex(),
    }
    client = played_client(run, me, after)
    return agreeing(case, lambda: client.end(kind, message))


def client_refusals(
    complete: Run, ring: Run, scattered: Run
) -> Iterator[dict[str, Any]]:
    """Yield all of profile 1, round by round."""
    yield from rosters(complete, ring)
    yield from deliveries(complete, ring)
    yield from survivor_sets(complete, "bob")
    yield from cut_rings(scattered)
    yield from contradictions(complete)
