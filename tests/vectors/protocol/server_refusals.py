"""What a server refuses, and the sessions that it has to abort.

Rule 1: a refused message changes nothing: the recorded messages still go through.
Rule 2: each case names the rule that refuses it, in its name's first word here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import reference as ref
from forged_messages import LOW_ORDER, NOT_CANONICAL, RosterForge, agreeing, flipped
from reference_roster import Advert
from reference_session import (
    ADVERTISE,
    CHOOSE,
    CONSISTENCY,
    MASK,
    SHARE,
    UNMASK,
    Server,
)
from reference_signature import sign
from session_vectors import FOREIGN_ISSUER, ISSUER, SESSION_END, Run

FIELDS = {
    ADVERTISE: "advert",
    CHOOSE: "edges",
    SHARE: "bundles",
    MASK: "upload",
    CONSISTENCY: "signature",
    UNMASK: "answer",
}


def played_server(run: Run, round_number: int) -> Server:
    """A server that has closed every earlier round, and received nothing in this."""
    server = run.server()
    closing = {
        ADVERTISE: lambda: server.close_adverts(run.plan.graph_seed),
        CHOOSE: server.close_edges,
        SHARE: server.close_sharing,
        MASK: server.close_uploads,
        CONSISTENCY: server.close_signing,
    }
    for earlier in ref.ROUNDS[run.offer.parameters.profile]:
        if earlier < round_number:
            receive_all(run, server, earlier)
            closing[earlier]()
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
    of: int | None = None,
    view: bytes | None = None,
) -> dict[str, Any]:
    """Send a message while a round is open.

    One `of` another round, if that is said; an upload with another view likewise.
    """
    sent = round_number if of is None else of
    rule, _, name = named[0].partition(" ")
    case = {
        "name": name,
        "rule": rule,
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "after": list(after),
        "sender": sender,
        "open": round_number,
        "round": sent,
        "message": data.hex(),
        **({} if view is None else {"view": view.hex()}),
    }
    server = played_server(run, round_number)
    for earlier in after:
        known = run.bytes_of(earlier, FIELDS[round_number])
        server.receive(round_number, earlier, known)
    return agreeing(case, lambda: server.receive(sent, sender, data, view))


def server_rounds(run: Run, ring: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    good = run.bytes_of(me, "advert")
    advert = Advert.decode(good)

    def changed(**changes: Any) -> bytes:
        return replace(advert, **changes).encode()

    noisy = changed(noise_commitments=(bytes(32),) * 2)
    adverts: dict[str, tuple[bytes, int]] = {
        "R5.1-2 advert cut short": (good[:-1], ref.BAD_ENCODING),
        "R5.1-2 advert with one byte more": (good + b"\0", ref.BAD_ENCODING),
        "R5.1-2 noise commitments in a task without noise": (noisy, ref.BAD_ENCODING),
        "R5.1-5 advert with a signature": (
            changed(signature=bytes(64)),
            ref.BAD_SIGNATURE,
        ),
        "R5.1-5 advert with a credential": (
            changed(credential=ISSUER.credential(me, bytes(32))),
            ref.BAD_SIGNATURE,
        ),
        "R5.1-7 one key for both": (
            changed(mask_key=advert.channel_key),
            ref.DUPLICATE_KEY,
        ),
        "R5.1-6 low order": (changed(mask_key=LOW_ORDER[2]), ref.BAD_PUBLIC_KEY),
        "R5.1-6 not canonical": (
            changed(channel_key=NOT_CANONICAL[0]),
            ref.BAD_PUBLIC_KEY,
        ),
        "R5.1-6 top bit": (changed(channel_key=NOT_CANONICAL[1]), ref.BAD_PUBLIC_KEY),
    }
    for name, (data, code) in adverts.items():
        yield server_case(run, me, ADVERTISE, (name, code), data)
    named = ("R5.1-3 advert of another identity", ref.UNAUTHENTICATED)
    yield server_case(run, "eve", ADVERTISE, named, good)
    copied = changed(identity="eve")
    named = ("R5.1-7 keys of another client", ref.DUPLICATE_KEY)
    yield server_case(run, "eve", ADVERTISE, named, copied, after=(me,))
    late = RosterForge(run).stranger("~", 0).encode()
    all_clients = tuple(r["identity"] for r in run.record["clients"] if r["advert"])
    named = ("R5.1-4 one client more than the roster takes", ref.ROSTER_TOO_LARGE)
    yield server_case(run, "~", ADVERTISE, named, late, after=all_clients)

    bundles = run.bytes_of(me, "bundles")
    for name, data in (
        ("one bundle missing", bundles[ref.BUNDLE_SIZE :]),
        ("one bundle more", bundles + bundles[: ref.BUNDLE_SIZE]),
        ("one byte missing", bundles[:-1]),
        ("no bundles", b""),
    ):
        named = f"R5.2-11 {name}", ref.BAD_ENCODING
        yield server_case(run, me, SHARE, named, data)

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
        named = f"R5.3-8 {name}", ref.BAD_VECTOR
        yield server_case(ring, sender, MASK, named, data)

    shown = bytes.fromhex(ring.record["view"])
    other = bytes([shown[0] ^ 1]) + shown[1:]
    named = "R5.3-14 another view", ref.VIEW_DIFFERS
    yield server_case(ring, sender, MASK, named, upload, view=other)
    named = "R5.3-14 another view, before the vector is judged", ref.VIEW_DIFFERS
    yield server_case(ring, sender, MASK, named, upload[:-1], view=other)
    named = "R5-1 an upload again, with another view", ref.EQUIVOCATION
    yield server_case(ring, sender, MASK, named, upload, after=(sender,), view=other)

    answer = run.bytes_of(me, "answer")
    head, shares = answer[:1], answer[1:]
    broken = bytes(31) + b"\1\x80\0" + shares[ref.SHARE_SIZE :]
    for name, data in (
        ("one share missing", head + shares[ref.SHARE_SIZE :]),
        ("one share more", answer + shares[: ref.SHARE_SIZE]),
        ("one byte missing", answer[:-1]),
        ("share not canonical", head + broken),
        ("absences with a padding bit", b"\x80" + shares),
        ("absent share is not zero", b"\1" + shares),
    ):
        named = f"R5.5-11 {name}", ref.BAD_ENCODING
        yield server_case(run, me, UNMASK, named, data)


def signed_messages(run: Run) -> Iterator[dict[str, Any]]:
    """Profile 2, round by round."""
    me = "ben"
    seed, good = run.secrets[me].identity_seed, run.bytes_of(me, "advert")
    view = played_server(run, UNMASK).view
    advert = Advert.decode(good)

    def signed(**changes: Any) -> bytes:
        made = replace(advert, **changes)
        message = made.signed_bytes(view.suite, view.contexts[0])
        return replace(made, signature=sign(seed, message)).encode()

    def credited(**changes: Any) -> bytes:
        issuer = changes.pop("issuer", ISSUER)
        given = changes.pop("name", me)
        return signed(credential=issuer.credential(given, seed, **changes))

    for name, data in {
        "R5.1-5 no credential": signed(credential=None),
        "R5.1-5 no signature": replace(advert, signature=b"").encode(),
        "R2.1-3 credential that has ended": credited(not_after=SESSION_END - 1),
        "R2.1-3 credential that has not begun": credited(not_before=SESSION_END + 1),
        "R2.1-4 revoked credential": credited(serial=4),
        "R2.1-6 credential of another issuer": credited(issuer=FOREIGN_ISSUER),
        "R2.1-6 credential of another name": credited(name="eve"),
    }.items():
        yield server_case(run, me, ADVERTISE, (name, ref.BAD_CREDENTIAL), data)
    for name, data in {
        "one bit of the signature": flipped(good, len(good) - 1),
        "signature over another commitment": replace(
            advert, commitment=bytes(32)
        ).encode(),
    }.items():
        named = (f"R5.1-8 {name}", ref.BAD_SIGNATURE)
        yield server_case(run, me, ADVERTISE, named, data)
    index = run.row(me)["index"]
    other = next(key for key in run.secrets if key != me)
    own = run.secrets[other].credential
    named = ("R5.1-7 identity key of another", ref.DUPLICATE_KEY)
    data = replace(advert, credential=own).encode()
    yield server_case(run, me, ADVERTISE, named, data, after=(other,))

    bundles = run.bytes_of(me, "bundles")
    elsewhere = view.bundles_to_sign(index + 1, bundles[:-64])
    for name, data, code in (
        ("no signature", bundles[:-64], ref.BAD_ENCODING),
        ("one bit of the signature", flipped(bundles, len(bundles) - 1), 4),
        ("one bit of a bundle", flipped(bundles, 0), ref.BAD_SIGNATURE),
        ("signed for another index", bundles[:-64] + sign(seed, elsewhere), 4),
    ):
        yield server_case(run, me, SHARE, (f"R5.2-11 {name}", code), data)

    signature = run.bytes_of(me, "signature")
    others_set = ref.tag("client", "consistency", view.suite) + ref.blob(bytes(32))
    for name, data, code in (
        ("signature of 63 bytes", signature[:-1], ref.BAD_ENCODING),
        ("one bit of the signature", flipped(signature, 63), ref.BAD_SIGNATURE),
        ("another set is signed", sign(seed, others_set), ref.BAD_SIGNATURE),
        ("another's signature", run.bytes_of(other, "signature"), 4),
    ):
        yield server_case(run, me, CONSISTENCY, (f"R5.4-7 {name}", code), data)


def noise_seeds(run: Run) -> Iterator[dict[str, Any]]:
    """Answers with other seeds than the losses ask for."""
    answer = run.bytes_of("ann", "answer")
    for name, data in (
        ("one noise seed short", answer[:-32]),
        ("one noise seed more", answer + bytes(32)),
    ):
        named = (f"R5.5-11 {name}", ref.BAD_ENCODING)
        yield server_case(run, "ann", UNMASK, named, data)


def server_contradictions(run: Run, signed: Run) -> Iterator[dict[str, Any]]:
    me = "bob"
    named = ("R5-1 a second, different message", ref.EQUIVOCATION)
    for round_number in ref.ROUNDS[ref.CURIOUS]:
        message = run.bytes_of(me, FIELDS[round_number])
        # In the middle of an advert is a key: it is compared before it is checked.
        other = flipped(message, len(message) // 2)
        yield server_case(run, me, round_number, named, other, after=(me,))
    other = flipped(signed.bytes_of("ben", "signature"), 0)
    yield server_case(signed, "ben", CONSISTENCY, named, other, after=("ben",))
    late = ("R5-1 a message after its round", ref.DEADLINE)
    early = ("R5-1 a message before its round", ref.UNEXPECTED_MESSAGE)
    bundles = run.bytes_of(me, "bundles")
    yield server_case(run, "zoe", MASK, late, bundles, of=SHARE)
    yield server_case(run, me, SHARE, early, run.bytes_of(me, "upload"), of=MASK)
    answer = signed.bytes_of("ben", "answer")
    yield server_case(signed, "ben", CONSISTENCY, early, answer, of=UNMASK)
    named = ("R5-1 a client outside the set of the round", ref.SESSION_OVER)
    for sender, round_number in (("carl", SHARE), ("zoe", MASK), ("b.b", UNMASK)):
        message = run.bytes_of(me, FIELDS[round_number])
        yield server_case(run, sender, round_number, named, message)


def closings(
    run: Run, ring: Run, corrected: Run, signed: Run, layered: Run
) -> Iterator[dict[str, Any]]:
    """Sessions that the server has to abort when a round closes."""
    few = {
        SHARE: ("R5.2-12 too few shared", ref.U2_TOO_SMALL, 3),
        MASK: ("R5.3-12 too few uploaded", ref.U3_TOO_SMALL, 2),
        UNMASK: ("R5.5-12 too few answered", ref.TOO_FEW_ANSWERS, 1),
    }
    for round_number, (name, code, absent) in few.items():
        yield closing(run, round_number, (name, code), absent)
    named = ("R5.3-12 too many lost", ref.TOO_MANY_DROPOUTS)
    yield closing(run, MASK, named, 1)
    order = ring.server_order()
    for round_number, name, code, places in (
        # Place 3 keeps the holder at place 5 only.
        (SHARE, "R5.3-10 a sharer without holders", ref.DISPUTED, (1, 2, 4)),
        (
            MASK,
            "R5.3-12 a sharer whose holders are lost",
            ref.TOO_MANY_DROPOUTS,
            (1, 2, 4),
        ),
        (MASK, "R5.3-9 two gaps cut the ring", ref.TOO_MANY_DROPOUTS, (1, 2, 6, 7)),
    ):
        absent_names = tuple(order[place] for place in places)
        yield closing(ring, round_number, (name, code), absent_names)
    # Three of five answer, one of them lies, and three are needed: none can be spared.
    named = (
        "R7.3-2 wrong share that cannot be done without",
        ref.RECONSTRUCTION_FAILED,
    )
    yield closing(corrected, UNMASK, named, 2)
    named = ("R3.5-1 more lost than the noise bears", ref.TOO_MANY_DROPOUTS)
    yield closing(layered, MASK, named, 2)
    named = ("R5.4-7 too few signed", ref.NO_QUORUM)
    yield closing(signed, CONSISTENCY, named, 1)
    named = ("R5.5-12 too few answered", ref.TOO_FEW_ANSWERS)
    yield closing(signed, UNMASK, named, 1)


def closing(
    run: Run,
    round_number: int,
    named: tuple[str, int],
    absent: int | tuple[str, ...],
) -> dict[str, Any]:
    """Close a round without some senders, or without so many of the last ones."""
    server = played_server(run, round_number)
    field = FIELDS[round_number]
    close = {
        CHOOSE: server.close_edges,
        SHARE: server.close_sharing,
        MASK: server.close_uploads,
        CONSISTENCY: server.close_signing,
        UNMASK: server.sum,
    }
    present = [row["identity"] for row in run.record["clients"] if row[field]]
    gone = tuple(present[-absent:]) if isinstance(absent, int) else absent
    senders = receive_all(run, server, round_number, gone)
    rule, _, name = named[0].partition(" ")
    case = {
        "name": name,
        "rule": rule,
        "success": False,
        "code": named[1],
        "session": run.plan.name,
        "round": round_number,
        "senders": senders,
    }
    return agreeing(case, close[round_number])


def server_refusals(
    complete: Run, ring: Run, small: Run, layered: Run
) -> Iterator[dict[str, Any]]:
    """Yield all refused messages, round by round."""
    yield from noise_seeds(layered)
    yield from server_rounds(complete, ring)
    yield from signed_messages(small)
    yield from server_contradictions(complete, small)
