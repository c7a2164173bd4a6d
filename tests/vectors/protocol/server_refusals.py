"""What a server refuses, and the sessions that it has to abort.

Rule 1: a refused message changes nothing: the recorded messages still go through.
"""

from collections.abc import Iterator
from typing import Any

import reference as ref
from forged_messages import LOW_ORDER, NOT_CANONICAL, RosterForge, agreeing, flipped
from reference_session import Server
from session_vectors import Run

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


def closings(run: Run, ring: Run, corrected: Run) -> Iterator[dict[str, Any]]:
    """Sessions that the server has to abort when a round closes."""
    few = {
        1: ("too few shared", ref.U2_TOO_SMALL, 3),
        2: ("too few uploaded", ref.U3_TOO_SMALL, 2),
        4: ("too few answered", ref.TOO_FEW_ANSWERS, 1),
    }
    for round_number, (name, code, absent) in few.items():
        yield closing(run, round_number, (name, code), absent)
    yield closing(run, 2, ("too many lost", ref.TOO_MANY_DROPOUTS), 1)
    order = ring.server_order()
    for round_number, name, code, places in (
        # Place 3 keeps the holder at place 5 only.
        (1, "a sharer without holders", ref.DISPUTED, (1, 2, 4)),
        (2, "a sharer whose holders are lost", ref.TOO_MANY_DROPOUTS, (1, 2, 4)),
        (2, "two gaps cut the ring", ref.TOO_MANY_DROPOUTS, (1, 2, 6, 7)),
    ):
        absent_names = tuple(order[place] for place in places)
        yield closing(ring, round_number, (name, code), absent_names)
    # Three of five answer, one of them lies, and three are needed: none can be spared.
    named = ("wrong share that cannot be done without", ref.RECONSTRUCTION_FAILED)
    yield closing(corrected, 4, named, 2)


def closing(
    run: Run,
    round_number: int,
    named: tuple[str, int],
    absent: int | tuple[str, ...],
) -> dict[str, Any]:
    """Close a round without some senders, or without so many of the last ones."""
    server = played_server(run, round_number)
    field = FIELDS[round_number]
    close = {1: server.close_sharing, 2: server.close_uploads, 4: server.sum}
    present = [row["identity"] for row in run.record["clients"] if row[field]]
    gone = tuple(present[-absent:]) if isinstance(absent, int) else absent
    senders = receive_all(run, server, round_number, gone)
    case = {
        "name": named[0],
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "round": round_number,
        "senders": senders,
    }
    return agreeing(case, close[round_number])


def server_refusals(complete: Run, ring: Run) -> Iterator[dict[str, Any]]:
    """Yield all refused messages, round by round."""
    yield from server_rounds(complete, ring)
    yield from server_contradictions(complete)
