"""Receipts, and what a verifier says of them: `receipts.json`.

Rule 1: what is altered gets its hash made again, so that the step shows that sees it.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import reference as ref
from forged_messages import RosterForge, flipped
from reference_noise import NoiseRule, canonical, certificate
from reference_receipt import (
    ABORTED,
    CLIENT,
    DISCARDED,
    NOTHING,
    PART,
    RELEASED,
    WHOLE,
    Flawed,
    Receipt,
    Verifier,
)
from reference_roster import decode_roster
from reference_session import Noise, View, quorum_of
from reference_signature import sign
from session_vectors import (
    FOREIGN_ISSUER,
    ISSUER,
    REVOCATIONS,
    TRUST,
    Plan,
    Run,
    counting,
    noise_block,
    parameters,
    play,
    real_tables,
)
from sparse_refusals import smaller_roster

REVOKED = frozenset(REVOCATIONS.serials)
EPSILON = 11.5  # what an accountant says of the blocks; they claim 60


def released(run: Run) -> Receipt:
    """The server's, of a session that gave a sum."""
    total = run.announced("packed_sum")
    return Receipt(
        run.offer.encode(),
        WHOLE,
        roster=run.announced("roster"),
        edge_root=bytes.fromhex(run.record["edge_root"] or ""),
        share_holders=run.announced("u2"),
        survivors=run.announced("u3"),
        quorum=bytes.fromhex(run.record["quorum"] or ""),
        outcome=RELEASED,
        sum_hash=hashlib.sha256(total).digest(),
        size=len(total),
    )


def in_part(run: Run) -> Receipt:
    """That of a client which read its neighbourhood only."""
    top = run.roster().top(run.offer.parameters.suite, ref.context_0(run.offer))
    return replace(
        released(run),
        form=PART,
        roster=b"",
        count=len(run.record["neighbours"]),
        top=top,
        graph_seed=run.plan.graph_seed,
    )


def evidence_of(run: Run, dealer: int) -> bytes:
    """That a client has signed what it dealt."""
    (row,) = [row for row in run.record["clients"] if row["index"] == dealer]
    bundles = bytes.fromhex(row["bundles"])
    return hashlib.sha256(bundles[:-64]).digest() + bundles[-64:]


def certified(run: Run, given: list[int] | None, **lies: int) -> Receipt:
    """A released sum with the certificate of its noise, or with another one."""
    receipt, noise = released(run), noise_in(run)
    view = {
        "count": int.from_bytes(receipt.share_holders, "big").bit_count(),
        "survivors": int.from_bytes(receipt.survivors, "big").bit_count(),
        "unseen": run.record["unseen"],
    }
    made = certificate(noise.rule, **(view | lies), given=given)
    return replace(receipt, certificate=made)


def noise_in(run: Run) -> Noise:
    if run.plan.noise is None:
        raise AssertionError(run.plan.name)
    return run.plan.noise


def aborted(receipt: Receipt, code: int, **changes: Any) -> Receipt:
    over = {"outcome": ABORTED, "sum_hash": bytes(32), "size": 0}
    return replace(receipt, code=code, **(over | changes))


def judged(
    name: str, receipt: Receipt, expected: str, noise: Noise | None = None
) -> dict[str, Any]:
    """A row, if the reference says what was expected by hand."""
    row = judged_bytes(name, receipt.encode(), expected, noise)
    if noise is None:
        return row
    known = {"tables": list(noise.tables), "sampler": sampler_of(noise)}
    return row | known | {"epsilon": EPSILON}


def sampler_of(noise: Noise | None) -> str:
    """The verifier's own hash for noise_sampler."""
    if noise is None:
        return ""
    return real_tables(noise.rule, noise.rule.min_survivors)[0]


def judged_bytes(
    name: str, data: bytes, expected: str, noise: Noise | None = None
) -> dict[str, Any]:
    row = {"name": name, "receipt": data.hex()}
    tables = () if noise is None else noise.tables
    verifier = Verifier(ISSUER.key, REVOKED, tables, sampler_of(noise), EPSILON)
    try:
        found = verifier.judge(data)
    except Flawed as flaw:
        if flaw.step != expected:
            raise AssertionError(name, flaw.step) from None
        return row | {"rule": "R5.8-1", "success": False, "step": flaw.step}
    if found != expected:
        raise AssertionError(name, found)
    return row | {"success": True, "says": found}


def good(
    plain: Run, ring: Run, signed: Run, sparse: Run, noised: tuple[Run, Run]
) -> list[dict[str, Any]]:
    whole, agreed = released(plain), released(signed)
    early = aborted(Receipt(whole.offer, NOTHING), ref.ROSTER_TOO_SMALL)
    shared = aborted(
        replace(whole, survivors=b""),
        ref.DISPUTED,
        disputes=((0, 3, 10, b""), (2, 3, 11, b"")),
    )
    evident = replace(
        agreed,
        disputes=(
            (0, 1, ref.RECONSTRUCTION_FAILED, evidence_of(signed, 0)),
            (0, 2, ref.BAD_SHARE_CIPHERTEXT, evidence_of(signed, 2)),
        ),
    )
    layered, both = noised
    unsigned = aborted(replace(agreed, quorum=b""), ref.NO_QUORUM)
    discarded = aborted(agreed, 49, outcome=DISCARDED)
    return [
        judged("released, the server is believed", whole, "stated"),
        judged("released, a neighbourhood", in_part(ring), "stated"),
        judged("released, signed by a quorum", agreed, "agreed"),
        judged("unmasked and not released", discarded, "agreed"),
        judged("no client signed", unsigned, "stated"),
        judged("disputes", shared, "no sum"),
        judged("too few came", early, "no sum"),
        judged("disputes that a dealer has signed", evident, "agreed"),
        judged("neighbours were drawn", released(sparse), "agreed"),
        judged("over once neighbours were drawn", drawn_in_vain(sparse), "no sum"),
        judged(
            "noise was taken back",
            certified(layered, [6, 5]),
            "agreed",
            noise_in(layered),
        ),
        judged(
            "noise where neighbours were drawn",
            certified(both, [7, 6]),
            "agreed",
            noise_in(both),
        ),
    ]


def drawn_in_vain(run: Run) -> Receipt:
    whole = replace(released(run), share_holders=b"", survivors=b"", quorum=b"")
    return aborted(whole, ref.U2_TOO_SMALL)


def bad_encodings(whole: Receipt) -> dict[str, bytes]:
    data = whole.encode()
    return {
        "nothing at all": b"",
        "cut short": data[:-1],
        "one byte more": data + b"\0",
        "another magic": flipped(data, 15),
        "another writer": replace(whole, writer=2).encode(),
        "another outcome": replace(whole, outcome=3).encode(),
        "another view": data.replace(whole.offer + bytes([WHOLE]), whole.offer + b"\3"),
    }


def lying(believed: Run, sparse: Run) -> list[dict[str, Any]]:
    """Certificates that say more than follows, and what covers no edges."""
    whole, drawn = certified(believed, [5, 4]), released(sparse)

    def with_words(**lies: Any) -> Receipt:
        said = json.loads(whole.certificate) | lies
        return replace(whole, certificate=canonical(said))

    forged = {
        "more noise than there is": with_words(noise_present="1000/1"),
        "less noise required": with_words(noise_required="1/1"),
        "nothing taken back": with_words(removed=[], given=[]),
        "taken back from more than there are": certified(believed, [6, 4]),
        "taken back from half a survivor": with_words(given=[5, 4.5]),
        "subtracted from unnamed clients": with_words(given=[5]),
        "fewer losses": replace(certified(believed, None, count=5), writer=CLIENT),
        "one who may miss": replace(certified(believed, None, unseen=1), writer=CLIENT),
        "of a server that has none": released(believed),
        "of a server that does not count": certified(believed, None),
        "of a client that counts": replace(whole, writer=CLIENT),
        "other words for the same": replace(
            whole, certificate=whole.certificate.replace(b",", b", ", 1)
        ),
        "no certificate": replace(whole, certificate=b"[]"),
    }
    rows = [
        judged(f"certificate: {name}", receipt, "certificate", noise_in(believed))
        for name, receipt in forged.items()
    ]
    for name, root in (("no edge root", b""), ("a short edge root", bytes(31))):
        rows.append(judged(name, replace(drawn, edge_root=root), "view"))
    early = drawn_in_vain(sparse)
    for name, receipt in (
        ("an edge root without a roster", replace(early, form=NOTHING, roster=b"")),
        ("a short edge root before U2", replace(early, edge_root=bytes(31))),
    ):
        rows.append(judged(name, receipt, "view"))
    other = replace(drawn, edge_root=bytes(32))
    rows.append(judged("another edge root", other, "quorum"))
    named = "signed by all, at a size at which the odds are too large"
    return [*rows, judged(named, unsafely_agreed(sparse), "view")]


def noised() -> Run:
    """Profile 1 with noise in layers: nothing that a verifier sees is signed."""
    rule = NoiseRule(
        Fraction(15), 3, Fraction(1, 3), 0, Fraction(0), share_bits=4, ladder=2
    )
    rules = parameters(
        modulus=2**16,
        dim=3,
        min_clients=6,
        max_clients=6,
        threshold=3,
        min_survivors=3,
        max_dropouts=3,
        max_losses=3,
        colluders=0,
        noise_layers=3,
        noise_block=noise_block(rule, dim=3, modulus=2**16, clients=6),
    )
    names = ["ann", "ben", "cai", "dov", "edi", "flo"]
    tables = real_tables(rule, 6)
    lost = {"dov": "MaskedInputCollection"}
    return play(Plan("noised", rules, names, b"", lost, noise=Noise(rule, tables)))


def without_noise(run: Run, both: Run) -> Iterator[dict[str, Any]]:
    """Noise that no client would have added, or too little of it in the sum."""
    whole, noise = certified(run, [5, 4]), noise_in(run)
    rules, block = run.offer.parameters, run.offer.parameters.noise_block
    entries = json.loads(block)

    def offered(terms: bytes = b"", **changes: Any) -> Receipt:
        offer = replace(
            run.offer, parameters=replace(rules, **changes), noise_terms=terms
        )
        return replace(whole, offer=offer.encode())

    def ruled(**changes: Any) -> Receipt:
        other = entries | {"noise": entries["noise"] | changes}
        return offered(noise_block=canonical(other))

    early = aborted(Receipt(whole.offer, NOTHING), ref.ROSTER_TOO_SMALL)
    no_json = offered(noise_block=b"no noise, believe me")
    unsorted = offered(noise_block=b'{"version":2,' + block[1:-13] + b"}")
    few = ref.bitmap({0, 1, 2}, 6)
    unseen = ref.bitmap({0, 1, 2, 3, 5}, 8)
    over = replace(aborted(whole, ref.TOO_FEW_ANSWERS), certificate=b"")
    yield judged("the server is believed about noise", whole, "stated", noise)
    yield judged("too few came to add noise", early, "no sum", noise)
    for name, receipt in (
        ("what a client knows of noise", certified(run, None)),
        ("a client that certifies nothing", released(run)),
    ):
        yield judged(name, replace(receipt, writer=CLIENT), "stated", noise)
    for name, receipt in (
        ("R3.2-10 layers without a block", offered(noise_block=b"")),
        (
            "R3.2-10 terms without a block",
            offered(b'{"unit":"1/1"}', noise_block=b"", noise_layers=0),
        ),
    ):
        yield judged(name, receipt, "offer", noise)
    for name, receipt in (
        ("R3.5-4 keys in another order", unsorted),
        ("R3.5-4 a block that is not JSON", no_json),
        ("R3.5-4 before a roster", replace(early, offer=no_json.offer)),
        ("R3.2-10 layers without a ladder", ruled(ladder=0)),
        ("R3.2-10 a longer ladder", ruled(ladder=3)),
        ("R3.5-3 terms without a unit", offered(b'{"unit":"1/1"}')),
        ("R3.5-1 no other client adds noise", ruled(colluders=5)),
        ("R3.5-1 three are lost", replace(whole, survivors=few)),
        ("R3.5-1 three are lost without a sum", replace(over, survivors=few)),
    ):
        yield judged(name, receipt, "sets", noise)
    hidden = replace(released(both), survivors=unseen)
    yield judged("R5.9-13 one more may miss", hidden, "sets", noise_in(both))
    for name, claim in (
        ("another sampler", {"noise_sampler": counting(0x31, 32).hex()}),
        ("an epsilon below that of the noise", {"epsilon": 11.0}),
    ):
        claimed = offered(noise_block=canonical(entries | claim))
        yield judged(f"claim: {name}", claimed, "claim", noise)


def unsafely_agreed(run: Run) -> Receipt:
    """All of it is signed, by clients that did not look at R5.9-2."""
    roster = decode_roster(smaller_roster(run), run.offer.parameters)
    view = View(run.offer, run.plan.known)
    top = roster.top(view.suite, view.contexts[0])
    view.set_roster(roster, top)
    view.edge_root = bytes(32)
    all_clients = ref.bitmap(set(range(roster.count)), roster.count)
    view.set_share_holders(all_clients)
    view.set_survivors(all_clients)
    signed = view.set_to_sign()
    signatures = {
        index: sign(run.secrets[advert.identity].identity_seed, signed)
        for index, advert in roster.adverts.items()
    }
    return replace(
        released(run),
        roster=smaller_roster(run),
        edge_root=view.edge_root,
        share_holders=all_clients,
        survivors=all_clients,
        quorum=quorum_of(signatures),
    )


def bad(plain: Run, ring: Run, signed: Run) -> list[dict[str, Any]]:
    whole, part, agreed = released(plain), in_part(ring), released(signed)
    data = whole.encode()
    rows = [
        judged_bytes(name, forged, "encoding")
        for name, forged in bad_encodings(whole).items()
    ]
    rows += [
        judged_bytes(
            "one bit of the sum's hash", flipped(data, len(data) - 60), "digest"
        ),
        judged_bytes(
            "one bit of the last hash", flipped(data, len(data) - 1), "digest"
        ),
    ]
    forge, signed_forge = RosterForge(plain), RosterForge(signed)
    advert = signed_forge.adverts[0]
    count = len(forge.adverts)
    foreign = replace(
        signed.offer.parameters, trust=replace(TRUST, enrolment_key=FOREIGN_ISSUER.key)
    )
    all_clients = ref.bitmap(set(range(count)), count)
    few = ref.bitmap({0, 1}, count)
    signatures = {
        row["index"]: bytes.fromhex(row["signature"])
        for row in signed.record["clients"]
    }
    one = {0: signatures[0]}
    two, proof = one | {1: signatures[1]}, evidence_of(signed, 0)
    swapped = {0: signatures[1], 1: signatures[0]}
    forged: dict[str, list[tuple[str, Receipt]]] = {
        "offer": [
            ("offer cut short", replace(whole, offer=whole.offer[:-1])),
            (
                "threshold 1",
                replace(
                    whole,
                    offer=replace(
                        plain.offer,
                        parameters=replace(plain.offer.parameters, threshold=1),
                    ).encode(),
                ),
            ),
        ],
        "view": [
            ("roster cut short", replace(whole, roster=whole.roster[:-1])),
            (
                "a neighbourhood for the roster",
                replace(whole, roster=ring.bytes_of("client-10", "neighbourhood")),
            ),
            (
                "too few clients",
                replace(whole, roster=forge.roster(forge.adverts[:-1])),
            ),
            (
                "one key twice",
                replace(
                    whole,
                    roster=forge.replaced(0, mask_key=forge.adverts[1].mask_key),
                ),
            ),
            (
                "an advert with a signature",
                replace(whole, roster=forge.replaced(0, signature=bytes(64))),
            ),
            ("edge root", replace(whole, edge_root=bytes(32))),
            (
                "a part of a complete graph",
                replace(
                    whole,
                    form=PART,
                    roster=b"",
                    count=5,
                    top=bytes(32),
                    graph_seed=bytes(32),
                ),
            ),
            ("n above the largest cohort", replace(part, count=13)),
            (
                "a part where clients sign",
                replace(
                    agreed, form=PART, count=3, top=bytes(32), graph_seed=bytes(32)
                ),
            ),
        ],
        "credentials": [
            (
                "another enrolment key",
                replace(
                    agreed, offer=replace(signed.offer, parameters=foreign).encode()
                ),
            ),
            (
                "another session number",
                replace(agreed, offer=replace(signed.offer, session_number=2).encode()),
            ),
            (
                "another advert",
                replace(agreed, roster=signed_forge.replaced(0, commitment=bytes(32))),
            ),
            (
                "a revoked credential",
                replace(
                    agreed,
                    roster=signed_forge.replaced(
                        0,
                        credential=ISSUER.credential(
                            advert.identity,
                            signed.secrets[advert.identity].identity_seed,
                            serial=4,
                        ),
                    ),
                ),
            ),
        ],
        "sets": [
            ("U2 without a view", replace(whole, form=NOTHING, roster=b"")),
            ("U3 without U2", replace(whole, share_holders=b"")),
            ("U3 beyond U2", replace(whole, share_holders=few, survivors=all_clients)),
            ("U3 below the floor", replace(whole, survivors=few)),
            ("a padding bit", replace(whole, survivors=bytes([all_clients[0] | 0x80]))),
        ],
        "quorum": [
            (
                "a quorum in a profile without signatures",
                replace(whole, quorum=quorum_of(one)),
            ),
            ("no quorum for a sum", replace(agreed, quorum=b"")),
            (
                "a quorum without U3",
                aborted(replace(agreed, survivors=b""), ref.NO_QUORUM),
            ),
            ("one signature short", replace(agreed, quorum=quorum_of(one))),
            ("signatures swapped", replace(agreed, quorum=quorum_of(swapped))),
            ("a roster proof short", replace(agreed, quorum=quorum_of(two))),
            (
                "a roster proof too many",
                replace(agreed, quorum=quorum_of(signatures, {0: proof})),
            ),
            (
                "a roster proof of another dealer",
                replace(agreed, quorum=quorum_of(two, {2: proof})),
            ),
            (
                "another U3",
                replace(agreed, survivors=ref.bitmap({0, 1}, 3)),
            ),
            (
                "another U2",
                replace(
                    agreed,
                    share_holders=ref.bitmap({0, 1}, 3),
                    survivors=ref.bitmap({0, 1}, 3),
                    quorum=quorum_of({i: signatures[i] for i in (0, 1)}),
                ),
            ),
        ],
        "outcome": [
            ("a sum with a code", replace(whole, code=ref.NO_QUORUM)),
            ("an abort without a code", aborted(whole, 0)),
            ("a sum without U3", replace(whole, survivors=b"")),
            ("a sum of another size", replace(whole, size=whole.size + 1)),
            ("an abort with a sum", aborted(whole, 22, sum_hash=whole.sum_hash)),
            ("an abort with a size", aborted(whole, 22, size=1)),
            (
                "a dispute twice",
                disputed(whole, (0, 1, 10, b""), (0, 1, 11, b"")),
            ),
            ("a dispute with oneself", disputed(whole, (1, 1, 10, b""))),
            ("a dispute with an unknown client", disputed(whole, (0, count, 10, b""))),
            (
                "evidence in a profile without signatures",
                disputed(whole, (0, 1, 10, bytes(96))),
            ),
            ("a dispute without evidence", disputed(agreed, (0, 1, 10, b""))),
            (
                "evidence against another dealer",
                disputed(agreed, (0, 1, 10, evidence_of(signed, 2))),
            ),
            (
                "evidence that the holder has signed",
                disputed(
                    agreed,
                    (0, 1, ref.RECONSTRUCTION_FAILED, evidence_of(signed, 1)),
                ),
            ),
            (
                "evidence of other bundles",
                disputed(agreed, (0, 1, 10, flipped(evidence_of(signed, 1), 0))),
            ),
        ],
        "certificate": [
            ("a certificate without layers", replace(whole, certificate=b"{}")),
        ],
    }
    rows += [
        judged(name, receipt, step)
        for step, receipts in forged.items()
        for name, receipt in receipts
    ]
    return rows


def shown_otherwise(
    plain: Run, ring: Run, signed: Run, sparse: Run
) -> Iterator[dict[str, Any]]:
    """Receipts that pass, and that one session has only one of."""
    whole, agreed = released(plain), released(signed)
    count = len(RosterForge(plain).adverts)
    another = RosterForge(plain).replaced(0, commitment=bytes(32))
    fewer = ref.bitmap(set(range(count - 1)), count)
    left = aborted(replace(whole, survivors=b""), ref.DEADLINE)
    later = replace(plain.offer, session_number=2).encode()
    edges = replace(drawn_in_vain(sparse), edge_root=bytes(32))
    over = aborted(replace(agreed, quorum=b""), ref.NO_QUORUM)
    for name, receipt, says in (
        ("a client's", replace(whole, writer=CLIENT), "stated"),
        ("another sum", replace(whole, sum_hash=bytes([1] * 32)), "stated"),
        ("the whole ring", released(ring), "stated"),
        ("left before U3", left, "no sum"),
        ("another session", replace(whole, offer=later, survivors=fewer), "stated"),
        ("another roster", replace(whole, roster=another), "stated"),
        ("other edges", edges, "no sum"),
        ("U2 of fewer", replace(whole, share_holders=fewer, survivors=fewer), "stated"),
        ("U3 of fewer", replace(whole, survivors=fewer), "stated"),
        (
            "U3 of fewer, which no quorum signed",
            replace(over, survivors=ref.bitmap({0, 1}, 3)),
            "stated",
        ),
    ):
        yield judged(name, receipt, says)


def comparisons(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pairs of receipts that pass, and in what they contradict each other."""
    found = {row["name"]: bytes.fromhex(row["receipt"]) for row in rows}
    believed = "released, the server is believed"
    for one, other, expected in (
        (believed, "a client's", ""),
        ("released, a neighbourhood", "the whole ring", ""),
        (believed, "left before U3", ""),
        (believed, "another session", ""),
        (believed, "another roster", "ctx1"),
        ("over once neighbours were drawn", "other edges", "edge root"),
        (believed, "U2 of fewer", "U2"),
        ("a client's", "U3 of fewer", "U3"),
        ("a client's", "another sum", "sum"),
        ("another sum", "left before U3", ""),
        (
            "released, signed by a quorum",
            "U3 of fewer, which no quorum signed",
            "U3",
        ),
    ):
        differs = Verifier(ISSUER.key, REVOKED).difference(found[one], found[other])
        if differs != expected:
            raise AssertionError(one, other, differs)
        row: dict[str, Any] = {"name": f"{one}; {other}", "pair": [one, other]}
        if differs:
            flaw = {"rule": "R5.8-3", "code": ref.EQUIVOCATION, "differs": differs}
            yield row | {"success": False} | flaw
        else:
            yield row | {"success": True}


def disputed(receipt: Receipt, *rows: tuple[int, int, int, bytes]) -> Receipt:
    return aborted(receipt, ref.DISPUTED, disputes=rows)


def receipts(runs: list[Run]) -> dict[str, Any]:
    """Return the content of the file."""
    ring, plain, signed = runs[1], runs[3], runs[5]
    layered, sparse, both = runs[6:]
    believed = noised()
    rows = [
        *good(plain, ring, signed, sparse, (layered, both)),
        *shown_otherwise(plain, ring, signed, sparse),
        *bad(plain, ring, signed),
        *lying(believed, sparse),
        *without_noise(believed, both),
    ]
    return {
        "enrolment_key": ISSUER.key.hex(),
        "revocations": REVOCATIONS.encode().hex(),
        "receipts": rows,
        "comparisons": list(comparisons(rows)),
    }
