"""What a client refuses: a recorded session up to some round, and then one message.

Rule 1: where a message breaks two rules, the earlier check of PROTOCOL §5 names the
        code, and such cases are among them.
"""

from collections.abc import Iterator
from typing import Any

import reference as ref
from forged_messages import LOW_ORDER, NOT_CANONICAL, RosterForge, agreeing, flipped
from reference_keys import Channel, agree, public_key
from reference_session import Client
from session_vectors import Run, counting

NO_SEED = b""


def played_client(run: Run, identity: str, last: int) -> Client:
    """A client that has taken the messages up to a round."""
    client = run.client(identity)
    if last >= 1:
        client.take(1, bytes.fromhex(run.record["roster"]))
    if last >= 2:
        delivered = run.bytes_of(identity, "delivered")
        client.take(2, bytes.fromhex(run.record["u2"]), delivered)
    if last >= 4:
        client.take(4, bytes.fromhex(run.record["u3"]))
    return client


BEFORE = {1: 0, 2: 1, 4: 2}  # the round whose message a client has taken before


def client_case(
    run: Run,
    identity: str,
    round_number: int,
    named: tuple[str, int],
    *data: bytes,
    after: int | None = None,
) -> dict[str, Any]:
    last = BEFORE[round_number] if after is None else after
    fields = {1: ["roster"], 2: ["u2", "delivered"], 4: ["u3"]}[round_number]
    case = {
        "name": named[0],
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "client": identity,
        "after": last,
        "round": round_number,
    } | {name: part.hex() for name, part in zip(fields, data, strict=True)}
    client = played_client(run, identity, last)
    return agreeing(case, lambda: client.take(round_number, *data))


def round_1(run: Run, ring: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    forge = RosterForge(run)
    good, adverts = bytes.fromhex(run.record["roster"]), forge.adverts
    mine = run.row(me)["index"]
    others = [i for i in range(len(adverts)) if i != mine]
    one, other = others[0], others[-1]
    others_mask = adverts[other].mask_key
    strangers = [forge.stranger(f"~{i}", i) for i in range(2)]
    encoding: dict[str, bytes] = {
        "roster cut short": good[:-1],
        "roster with one byte more": good + b"\0",
        "empty roster message": b"",
        "count beyond the bytes": b"\xff\xff\xff\xff" + good[4:],
        "two adverts swapped": forge.roster([adverts[1], adverts[0], *adverts[2:]]),
        "one advert twice": forge.roster([adverts[0], *adverts]),
        "graph seed of 31 bytes": forge.roster(adverts, bytes(31)),
        "empty identity": forge.replaced(0, identity=""),
        "signature of 63 bytes": forge.replaced(one, signature=bytes(63)),
        "identity of 256 bytes": forge.replaced(-1, identity="~" * 256),
    }
    for name, data in encoding.items():
        yield client_case(run, me, 1, (name, ref.BAD_ENCODING), data)
    small = forge.roster(adverts[: run.offer.parameters.min_clients - 1])
    yield client_case(run, me, 1, ("too few clients", ref.ROSTER_TOO_SMALL), small)
    large = forge.roster([*adverts, *strangers])
    yield client_case(run, me, 1, ("too many clients", ref.ROSTER_TOO_LARGE), large)
    absent: dict[str, bytes] = {
        "own advert left out": forge.roster([adverts[i] for i in others]),
        "own commitment changed": forge.replaced(mine, commitment=bytes(32)),
        "own advert with a signature": forge.replaced(mine, signature=bytes(64)),
        "own channel key changed": forge.replaced(
            mine, channel_key=strangers[0].channel_key
        ),
    }
    for name, data in absent.items():
        yield client_case(run, me, 1, (name, ref.SELF_MISSING), data)
    signed = forge.replaced(one, signature=bytes(64), mask_key=bytes(32))
    named = ("another's advert with a signature, before its key", ref.BAD_SIGNATURE)
    yield client_case(run, me, 1, named, signed)
    for key in (*LOW_ORDER, *NOT_CANONICAL):
        kind = "low order" if key in LOW_ORDER else "not canonical"
        for field in ("channel_key", "mask_key"):
            name = f"{field} of {kind} {key[:2].hex()}..{key[-1:].hex()}"
            data = forge.replaced(one, **{field: key})
            yield client_case(run, me, 1, (name, ref.BAD_PUBLIC_KEY), data)
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
        yield client_case(run, me, 1, (name, ref.DUPLICATE_KEY), data)
    seeded = ("graph seed for the complete graph", ref.POLICY_VIOLATION)
    yield client_case(run, me, 1, seeded, forge.roster(adverts, counting(0, 32)))
    unseeded = ("no graph seed for a ring", ref.POLICY_VIOLATION)
    ring_forge = RosterForge(ring)
    data = ring_forge.roster(ring_forge.adverts, NO_SEED)
    yield client_case(ring, "client-11", 1, unseeded, data)
    both = forge.altered(one, channel_key=bytes(32), mask_key=others_mask)
    data = forge.roster([both if i == one else a for i, a in enumerate(adverts)])
    named = ("bad key and duplicate key: the key comes first", ref.BAD_PUBLIC_KEY)
    yield client_case(run, me, 1, named, data)
    data = forge.roster([strangers[0]])
    named = ("too few clients and oneself missing: size first", ref.ROSTER_TOO_SMALL)
    yield client_case(run, me, 1, named, data)


def channel_to(run: Run, sender: str, receiver: str) -> Channel:
    """The channel of a sender that lies."""
    client = played_client(run, receiver, 1)
    secret = agree(
        run.secrets[sender].channel_private_key,
        public_key(run.secrets[receiver].channel_private_key),
    )
    ends = run.row(sender)["index"], run.row(receiver)["index"]
    view = client.view
    suite = run.offer.parameters.suite
    return Channel(suite, view.sid, view.contexts[1], secret, *ends)


def round_2(run: Run, ring: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    good, sharers = run.bytes_of(me, "delivered"), bytes.fromhex(run.record["u2"])
    count = len(run.record["neighbours"])
    members, mine = ref.members_of(sharers, count), run.row(me)["index"]
    size = ref.BUNDLE_SIZE
    sets: dict[str, tuple[bytes, int]] = {
        "u2 with a padding bit": (bytes([sharers[0] | 0x80]), ref.BAD_ENCODING),
        "u2 one byte too long": (sharers + b"\0", ref.BAD_ENCODING),
        "empty u2": (b"", ref.BAD_ENCODING),
        "u2 without the reader": (ref.bitmap(members - {mine}, count), 7),
        "u2 below the floor": (
            ref.bitmap({mine, *sorted(members - {mine})[:2]}, count),
            ref.U2_TOO_SMALL,
        ),
    }
    for name, (data, code) in sets.items():
        yield client_case(run, me, 2, (name, code), data, good)
    reader = next(row for row in ring.record["clients"] if row["upload"] is not None)
    around = ring.record["neighbours"][reader["index"]]
    far = set(range(len(ring.record["neighbours"]))) - set(around)
    thin = ref.bitmap({reader["index"], *far, *around[:2]}, len(far) + len(around))
    named = ("u2 large enough, with too few holders", ref.U2_TOO_SMALL)
    yield client_case(ring, reader["identity"], 2, named, thin, NO_SEED)

    tampered: dict[str, bytes] = {
        "one bundle missing": good[size:],
        "one bundle more": good + good[-size:],
        "one byte missing": good[:-1],
        "no bundles": b"",
        "bundles of another reader": run.bytes_of("dora", "delivered"),
        "three of five bundles garbage": bytes(3 * size) + good[3 * size :],
    }
    for name, data in tampered.items():
        named = (name, ref.BAD_SHARE_CIPHERTEXT)
        yield client_case(run, me, 2, named, sharers, data)


def complaints(run: Run) -> Iterator[dict[str, Any]]:
    """Deliveries that are taken, and what is said about them."""
    me = "bob"
    good = run.bytes_of(me, "delivered")
    size = ref.BUNDLE_SIZE
    tampered: dict[str, bytes] = {
        "nothing to complain about": good,
        "one bit of the last tag": flipped(good, len(good) - 1),
        "two bundles swapped": good[size : 2 * size] + good[:size] + good[2 * size :],
    } | confused(run, me, "Zoe")
    sharers, survivors = (bytes.fromhex(run.record[name]) for name in ("u2", "u3"))
    for name, data in tampered.items():
        client = played_client(run, me, 1)
        client.take(2, sharers, data)
        yield {
            "name": name,
            "success": True,
            "session": run.plan.name,
            "client": me,
            "u2": sharers.hex(),
            "delivered": data.hex(),
            "complaints": [said.hex() for said in client.complaints],
            "u3": survivors.hex(),
            "answer": client.take(4, survivors).hex(),
        }


def confused(run: Run, me: str, sender: str) -> dict[str, bytes]:
    """Bundles that are authentic, from a sender that did not keep to the format."""
    good, sharers = run.bytes_of(me, "delivered"), bytes.fromhex(run.record["u2"])
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
    senders = sorted(ref.members_of(sharers, len(run.record["neighbours"])) - {b})
    start = ref.BUNDLE_SIZE * senders.index(a)
    result = {}
    for name, body in bodies.items():
        sealed = channel.seal_plaintext(body)
        result[name] = good[:start] + sealed + good[start + ref.BUNDLE_SIZE :]
    other = result.pop("sender inside is another one")
    result["sender inside is another one, and one bit elsewhere"] = flipped(other, 0)
    return result


def round_4(run: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    survivors = bytes.fromhex(run.record["u3"])
    count = len(run.record["neighbours"])
    members, mine = ref.members_of(survivors, count), run.row(me)["index"]
    sharers = ref.members_of(bytes.fromhex(run.record["u2"]), count)
    outside = next(i for i in range(count) if i not in sharers)
    others = sorted(members - {mine})
    cases: dict[str, tuple[bytes, int]] = {
        "u3 with a padding bit": (bytes([survivors[0] | 0x80]), ref.BAD_ENCODING),
        "u3 one byte too long": (survivors + b"\0", ref.BAD_ENCODING),
        "empty u3": (b"", ref.BAD_ENCODING),
        "u3 with one who never shared": (
            ref.bitmap({*members, outside}, count),
            ref.U3_INVALID,
        ),
        "u3 without the reader": (ref.bitmap(members - {mine}, count), ref.U3_INVALID),
        "u3 below the floor": (
            ref.bitmap({mine, *others[:2]}, count),
            ref.U3_TOO_SMALL,
        ),
        "u3 with too many lost": (
            ref.bitmap({mine, *others[:3]}, count),
            ref.TOO_MANY_DROPOUTS,
        ),
        "nobody in u3: membership comes before size": (
            ref.bitmap(set(), count),
            ref.U3_INVALID,
        ),
    }
    for name, (data, code) in cases.items():
        yield client_case(run, me, 4, (name, code), data)


def contradictions(run: Run) -> Iterator[dict[str, Any]]:
    """Second messages, and messages out of their round."""
    me = "bob"
    forge = RosterForge(run)
    roster, good = bytes.fromhex(run.record["roster"]), run.bytes_of(me, "delivered")
    sharers, survivors = (bytes.fromhex(run.record[name]) for name in ("u2", "u3"))
    other = forge.replaced(0, commitment=bytes(32))
    named = ("a second, different message", ref.EQUIVOCATION)
    for after in (1, 2, 4):
        yield client_case(run, me, 1, named, other, after=after)
    for after in (2, 4):
        yield client_case(run, me, 2, named, survivors, good, after=after)
    yield client_case(run, me, 2, named, sharers, flipped(good, 0), after=2)
    yield client_case(run, me, 4, named, sharers, after=4)
    malformed = ("a second message that cannot be read", ref.EQUIVOCATION)
    yield client_case(run, me, 1, malformed, roster[:-1], after=1)
    yield client_case(run, me, 4, malformed, b"", after=4)
    early = ("a message before its round", ref.UNEXPECTED_MESSAGE)
    yield client_case(run, me, 2, early, sharers, good, after=0)
    yield client_case(run, me, 4, early, survivors, after=0)
    yield client_case(run, me, 4, early, survivors, after=1)


def client_refusals(complete: Run, ring: Run) -> Iterator[dict[str, Any]]:
    """Yield all of them, round by round."""
    yield from round_1(complete, ring)
    yield from round_2(complete, ring)
    yield from round_4(complete)
    yield from contradictions(complete)
