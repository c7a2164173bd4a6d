"""What must be refused, and with which code.

Rule 1: every case is a recorded session up to some point and then one message; the
        code was written down by hand and the reference has to agree.
Rule 2: where a message breaks two rules, the earlier check of PROTOCOL §5 names the
        code, and such a case is among them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import reference as ref
from reference_keys import Channel, agree, public_key
from reference_session import Client, Server
from session_vectors import Run, counting

P = 2**255 - 19
LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    (P - 1).to_bytes(32, "little"),
)
NOT_CANONICAL = (
    (P + 9).to_bytes(32, "little"),  # the base point once more
    (9 + 2**255).to_bytes(32, "little"),  # and with the top bit set
)
NO_SEED = b""


def agreeing(case: dict[str, Any], act: Callable[[], object]) -> dict[str, Any]:
    """Return the case, if the reference gives its code."""
    try:
        act()
    except ref.Refused as refused:
        if refused.code == case["code"]:
            return case
        raise AssertionError(case["name"], refused.code) from None
    raise AssertionError(case["name"], "accepted")


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


# --- Offers --------------------------------------------------------------------------


def offers(run: Run) -> Iterator[dict[str, Any]]:
    good = run.offer.encode()
    head = len(good) - len(run.offer.parameters.encode())
    later = good[:head] + ref.u16(2) + good[head + 2 :]
    raw = {
        "version 2": (later, ref.BAD_VERSION),
        "cut short": (good[:-1], ref.BAD_ENCODING),
        "one byte more": (good + b"\0", ref.BAD_ENCODING),
        "nothing at all": (b"", ref.BAD_ENCODING),
        "task id of 257 bytes": (
            ref.text("x" * 257) + good[4 + len(run.offer.task_id) :],
            ref.BAD_ENCODING,
        ),
        "task id is no UTF-8": (
            ref.blob(b"\xff") + good[4 + len(run.offer.task_id) :],
            ref.BAD_ENCODING,
        ),
    }
    task_id, rest = good[: 4 + len(run.offer.task_id)], good[head:]
    nonce = run.offer.server_nonce
    for size in (31, 33):
        hashed = task_id + ref.u64(1) + nonce + ref.blob(bytes(size)) + rest
        raw[f"payload hash of {size} bytes"] = (hashed, ref.BAD_ENCODING)
    numbered = task_id + ref.u64(2**63) + nonce + ref.blob(b"") + rest
    raw["session number beyond 2^63 - 1"] = (numbered, ref.BAD_CONFIG)
    raw["version 2, cut short right behind it"] = (later[: head + 2], ref.BAD_VERSION)
    unknown = good[: head + 4] + ref.u16(3)
    raw["unknown suite, cut short right behind it"] = (unknown, ref.BAD_CONFIG)
    unknown = good[: head + 2] + ref.u16(4) + ref.u16(1)
    raw["unknown profile, cut short behind the suite"] = (unknown, ref.BAD_CONFIG)
    other = good[: head + 2] + ref.u16(2) + ref.u16(1)
    raw["profile of another release, cut short"] = (other, ref.BAD_ENCODING)
    long = ref.Parameters(**(vars(run.offer.parameters) | {"noise_block": bytes(4097)}))
    raw["noise block too long"] = (good[:head] + long.encode(), ref.BAD_ENCODING)
    changes: dict[str, dict[str, Any]] = {
        "profile of another release": {"profile": 2},
        "unknown suite": {"suite": 3},
        "modulus 1": {"modulus": 1},
        "modulus beyond 2^62": {"modulus": 2**62 + 1},
        "no coordinates": {"dim": 0},
        "too many coordinates": {"dim": 2**30 + 1},
        "cohort of one": {"min_clients": 1},
        "smallest cohort above the largest": {"max_clients": 5},
        "cohort beyond 65535": {"max_clients": 65536},
        "threshold within the colluders' reach": {"threshold": 3, "colluders": 3},
        "threshold 1": {"threshold": 1, "colluders": 0},
        "fewer survivors than the threshold": {"min_survivors": 3},
        "more survivors than clients": {"min_survivors": 7},
        "survivors within the colluders' reach": {"colluders": 3},
        "more losses than clients": {"max_dropouts": 9},
        "odd degree": {"degree": 3, "threshold": 2, "min_survivors": 3},
        "degree below the threshold": {"degree": 2, "threshold": 4},
        "degree too large for the cohort": {"degree": 6},
        "deadline of no time": {"deadlines": (60, 0, 60, 60)},
        "deadline beyond a week": {"deadlines": (60, 60, 60, 604801)},
    }
    for name, change in changes.items():
        rules = ref.Parameters(**(vars(run.offer.parameters) | change))
        raw[name] = (good[:head] + rules.encode(), ref.BAD_CONFIG)
    for name, (data, code) in raw.items():
        case = {"name": name, "success": False, "code": code, "offer": data.hex()}
        yield agreeing(case, lambda data=data: ref.Offer.decode(data))


# --- What a client refuses -----------------------------------------------------------


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


class RosterForge:
    """Makes rosters out of a good one."""

    def __init__(self, run: Run) -> None:
        roster = bytes.fromhex(run.record["roster"])
        self.adverts, self.graph_seed = ref.decode_roster(roster)

    def stranger(self, name: str, place: int) -> ref.Advert:
        keys = (public_key(counting(start + place, 32)) for start in (7, 77))
        return ref.Advert(name, *keys, counting(place, 32))

    def altered(self, place: int, **changes: Any) -> ref.Advert:
        return ref.Advert(**(vars(self.adverts[place]) | changes))

    def replaced(self, place: int, **changes: Any) -> bytes:
        adverts = list(self.adverts)
        adverts[place] = self.altered(place, **changes)
        return self.roster(adverts)

    def roster(
        self, adverts: list[ref.Advert], graph_seed: bytes | None = None
    ) -> bytes:
        seed = self.graph_seed if graph_seed is None else graph_seed
        return ref.encode_roster([advert.encode() for advert in adverts], seed)


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
        "one bit of a ciphertext": flipped(good, 5),
        "one bit of the last tag": flipped(good, len(good) - 1),
        "two bundles swapped": good[size : 2 * size] + good[:size] + good[2 * size :],
        "one bundle missing": good[size:],
        "one bundle more": good + good[-size:],
        "one byte missing": good[:-1],
        "no bundles": b"",
        "bundles of another reader": run.bytes_of("dora", "delivered"),
    }
    for name, data in tampered.items():
        named = (name, ref.BAD_SHARE_CIPHERTEXT)
        yield client_case(run, me, 2, named, sharers, data)
    yield from confused(run, me, "Zoe")


def confused(run: Run, me: str, sender: str) -> Iterator[dict[str, Any]]:
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
    for name, body in bodies.items():
        sealed = channel.seal_plaintext(body)
        data = good[:start] + sealed + good[start + ref.BUNDLE_SIZE :]
        yield client_case(run, me, 2, (name, ref.SHARE_CONFUSION), sharers, data)
    last = len(good) - 1
    for name, code in (
        ("sender inside is another one", ref.SHARE_CONFUSION),
        ("share of the key not canonical", ref.BAD_SHARE_CIPHERTEXT),
    ):
        sealed = channel.seal_plaintext(bodies[name])
        data = good[:start] + sealed
        data = flipped(data + good[start + ref.BUNDLE_SIZE :], last)
        named = (f"{name}, and a later bundle is not authentic", code)
        yield client_case(run, me, 2, named, sharers, data)


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


# --- What a server refuses -----------------------------------------------------------


FIELDS = {0: "advert", 1: "bundles", 2: "upload", 4: "answer"}


def played_server(run: Run, round_number: int) -> Server:
    """A server that has closed every earlier round, and received nothing in this."""
    server = Server(run.offer)
    if round_number > 0:
        receive_all(run, server, 0)
        server.close_adverts(run.plan.graph_seed)
    if round_number > 1:
        receive_all(run, server, 1)
        server.close_sharing()
    if round_number > 2:
        receive_all(run, server, 2)
        server.close_uploads()
    return server


def receive_all(
    run: Run, server: Server, round_number: int, but: tuple[str, ...] = ()
) -> list[str]:
    """Hand over the recorded messages of a round, except those of some."""
    name = FIELDS[round_number]
    senders = []
    for row in run.record["clients"]:
        if row[name] is not None and row["identity"] not in but:
            server.receive(round_number, row["identity"], bytes.fromhex(row[name]))
            senders.append(row["identity"])
    return senders


def server_case(  # noqa: PLR0913 - what tells one case from another
    run: Run,
    sender: str,
    round_number: int,
    named: tuple[str, int],
    data: bytes,
    *,
    after: tuple[str, ...] = (),
) -> dict[str, Any]:
    case = {
        "name": named[0],
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "after": list(after),
        "sender": sender,
        "round": round_number,
        "message": data.hex(),
    }
    server = played_server(run, round_number)
    for earlier in after:
        known = run.bytes_of(earlier, FIELDS[round_number])
        server.receive(round_number, earlier, known)
    return agreeing(case, lambda: server.receive(round_number, sender, data))


def server_rounds(run: Run, ring: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    good = run.bytes_of(me, "advert")
    advert = ref.Advert.decode(good)

    def changed(**changes: Any) -> bytes:
        return ref.Advert(**(vars(advert) | changes)).encode()

    adverts: dict[str, tuple[bytes, int]] = {
        "advert cut short": (good[:-1], ref.BAD_ENCODING),
        "advert with one byte more": (good + b"\0", ref.BAD_ENCODING),
        "advert with a signature": (changed(signature=bytes(64)), ref.BAD_SIGNATURE),
        "one key for both": (
            changed(mask_key=advert.channel_key),
            ref.DUPLICATE_KEY,
        ),
        "low order": (changed(mask_key=LOW_ORDER[2]), ref.BAD_PUBLIC_KEY),
        "not canonical": (changed(channel_key=NOT_CANONICAL[0]), ref.BAD_PUBLIC_KEY),
        "top bit": (changed(channel_key=NOT_CANONICAL[1]), ref.BAD_PUBLIC_KEY),
    }
    for name, (data, code) in adverts.items():
        yield server_case(run, me, 0, (name, code), data)
    named = ("advert of another identity", ref.UNAUTHENTICATED)
    yield server_case(run, "eve", 0, named, good)
    copied = changed(identity="eve")
    named = ("keys of another client", ref.DUPLICATE_KEY)
    yield server_case(run, "eve", 0, named, copied, after=(me,))
    late = RosterForge(run).stranger("~", 0).encode()
    everybody = tuple(r["identity"] for r in run.record["clients"] if r["advert"])
    named = ("one client more than the roster takes", ref.ROSTER_TOO_LARGE)
    yield server_case(run, "~", 0, named, late, after=everybody)

    bundles = run.bytes_of(me, "bundles")
    for name, data in (
        ("one bundle missing", bundles[ref.BUNDLE_SIZE :]),
        ("one bundle more", bundles + bundles[: ref.BUNDLE_SIZE]),
        ("one byte missing", bundles[:-1]),
        ("no bundles", b""),
    ):
        yield server_case(run, me, 1, (name, ref.BAD_ENCODING), data)

    sender = next(r["identity"] for r in ring.record["clients"] if r["upload"])
    upload = ring.bytes_of(sender, "upload")
    modulus = ring.offer.parameters.modulus
    values = ref.unpack(upload, ring.offer.parameters.dim, modulus)
    bits = ref.residue_bits(modulus)
    for name, data in (
        ("upload one byte too short", upload[:-1]),
        ("upload one byte too long", upload + b"\0"),
        ("upload with a padding bit", upload[:-1] + bytes([upload[-1] | 0x80])),
        ("first coordinate is m", ref.pack([modulus, *values[1:]], bits)),
        ("last coordinate is m", ref.pack([*values[:-1], modulus], bits)),
    ):
        yield server_case(ring, sender, 2, (name, ref.BAD_VECTOR), data)

    answer = run.bytes_of(me, "answer")
    for name, data in (
        ("one share missing", answer[ref.SHARE_SIZE :]),
        ("one share more", answer + answer[: ref.SHARE_SIZE]),
        ("one byte missing", answer[:-1]),
        ("share not canonical", bytes(31) + b"\1\x80\0" + answer[ref.SHARE_SIZE :]),
    ):
        yield server_case(run, me, 4, (name, ref.BAD_ENCODING), data)


def server_contradictions(run: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    named = ("a second, different message", ref.EQUIVOCATION)
    for round_number, name in FIELDS.items():
        message = run.bytes_of(me, name)
        # In the middle of an advert is a key: it is compared before it is judged.
        other = flipped(message, len(message) // 2)
        yield server_case(run, me, round_number, named, other, after=(me,))
    named = ("a client outside the set of the round", ref.SESSION_OVER)
    for sender, round_number in (("carl", 1), ("zoe", 2), ("b.b", 4)):
        message = run.bytes_of(me, FIELDS[round_number])
        yield server_case(run, sender, round_number, named, message)


def closings(run: Run, corrected: Run) -> Iterator[dict[str, Any]]:
    """Sessions that the server has to abort when a round closes."""
    few = {
        1: ("too few shared", ref.U2_TOO_SMALL, 3),
        2: ("too few uploaded", ref.U3_TOO_SMALL, 2),
        4: ("too few answered", ref.TOO_FEW_ANSWERS, 1),
    }
    for round_number, (name, code, absent) in few.items():
        yield closing(run, round_number, (name, code), absent)
    yield closing(run, 2, ("too many lost", ref.TOO_MANY_DROPOUTS), 1)
    # Four of five answer and one of them lies: one share too few to tell which.
    named = ("wrong share that cannot be located", ref.RECONSTRUCTION_FAILED)
    yield closing(corrected, 4, named, 1)


def closing(
    run: Run, round_number: int, named: tuple[str, int], absent: int
) -> dict[str, Any]:
    server = played_server(run, round_number)
    field = FIELDS[round_number]
    close = {1: server.close_sharing, 2: server.close_uploads, 4: server.sum}
    present = [row["identity"] for row in run.record["clients"] if row[field]]
    senders = receive_all(run, server, round_number, tuple(present[-absent:]))
    case = {
        "name": named[0],
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "round": round_number,
        "senders": senders,
    }
    return agreeing(case, close[round_number])


def refusals(runs: list[Run]) -> dict[str, Any]:
    """Return the content of the file."""
    complete, ring, _, corrected = runs
    return {
        "offers": list(offers(complete)),
        "client": [
            *round_1(complete, ring),
            *round_2(complete, ring),
            *round_4(complete),
            *contradictions(complete),
        ],
        "server": [
            *server_rounds(complete, ring),
            *server_contradictions(complete),
        ],
        "closings": list(closings(complete, corrected)),
    }
