"""Writes the vectors that the package ships with the reference beside it.

Rule 1: every secret is a run of counting bytes or a stated formula, so that a reader
        sees what is what and no library's generator is needed to get it again.
Rule 2: what must fail carries the code that was expected by hand; the reference has
        to agree before anything is written.

`python generate.py` rewrites the files; `python generate.py --check` only compares,
and ends with status 1 if one of them is out of date.
"""

import argparse
import dataclasses
import hashlib
import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import reference as ref
from accounting_vectors import accounting
from edge_vectors import edge
from encoding_vectors import encoding
from enrolment_vectors import enrolment
from noise_vectors import noise
from receipt_vectors import receipts
from reference_keys import Channel, MaskKeys, MaskStream, agree, public_key
from reference_noise import NoiseRule, block_of, check_block
from reference_roster import (
    Advert,
    Roster,
    commitment_to,
    leaf,
    noise_commitment,
    proof_for,
    proven_top,
    top_of,
)
from reference_signature import sign
from refusal_vectors import refusals
from restart_vectors import beside_the_rounds
from session_vectors import ISSUER, SESSION_END, TRUST, counting, sessions

DIRECTORY = Path(__file__).parents[3] / "secagg" / "conformance" / "vectors"
SID = counting(0x40, 32)
CONTEXT = counting(0x60, 32)
SECRET = counting(0x80, 32)
NOISE = NoiseRule(
    Fraction(7, 4), 3, Fraction(1, 10), 1, Fraction(0), share_bits=4, ladder=0
).as_json()
NOISE_BLOCK = block_of(NOISE, dim=10, modulus=2**16, num_clients=10)
# One coordinate more tells who fits the clip.
MOVING_BLOCK = block_of(
    NOISE,
    dim=9,
    modulus=2**16,
    num_clients=10,
    clip_flag_amplitude=0.25,
    unit={
        "highest": "1024/1",
        "lowest": "1/4",
        "quantile": "1/2",
        "start": "4/1",
    },
)

# 2 and 2^62 are the ends; 2^16 and 2^32 fill their words; 2^17 and 2^33 are the first
# of the next word.  40000 rejects four words in ten, 10^6 + 3 and 2^33 - 9 almost none.
MODULI = [2, 2**8, 2**16, 2**17, 2**20, 2**32, 2**33, 2**62]
OTHER_MODULI = [40000, 10**6 + 3, 2**33 - 9]
EXACT_IN_JSON = 2**53


def numbers(values: list[int], modulus: int) -> list[int] | list[str]:
    return [str(v) for v in values] if modulus > EXACT_IN_JSON else values


def parameters(**changes: Any) -> ref.Parameters:
    base: dict[str, Any] = {
        "version": 1,
        "profile": 1,
        "suite": 1,
        "modulus": 2**16,
        "dim": 10,
        "min_clients": 3,
        "max_clients": 10,
        "threshold": 2,
        "degree": 0,
        "min_survivors": 3,
        "max_dropouts": 1,
        "max_losses": 5,
        "colluders": 1,
        "noise_layers": 0,
        "noise_block": b"",
        "deadlines": (60, 0, 61, 62, 0, 63),
    }
    return ref.Parameters(**(base | changes))


def offer(task_id: str = "task", **changes: Any) -> ref.Offer:
    payload_hash = changes.pop("payload_hash", b"")
    noise_terms = changes.pop("noise_terms", b"")
    rules = parameters(**changes)
    return ref.Offer(
        "sums-1",
        task_id,
        7,
        counting(0, 32),
        SESSION_END,
        payload_hash,
        rules,
        noise_terms,
    )


SIGNED = {
    "profile": ref.MALICIOUS,
    "threshold": 6,
    "min_clients": 6,
    "min_survivors": 6,
    "max_losses": 4,
    "deadlines": (60, 0, 61, 62, 63, 64),
}


def trust_fields(trust: ref.Trust | None) -> dict[str, Any] | None:
    if trust is None:
        return None
    return vars(trust) | {
        "enrolment_key": trust.enrolment_key.hex(),
        "revocation_hash": trust.revocation_hash.hex(),
    }


def offers() -> list[dict[str, Any]]:
    ring = {"suite": 2, "min_clients": 6, "degree": 4, "graph_bits": 40}
    chosen = {
        "complete graph, no payload, exact sum": offer(),
        "ring, other suite, payload": offer(payload_hash=counting(0xC0, 32), **ring),
        "noise block, task id beyond ASCII": offer(
            "aufgäbe-€", noise_block=NOISE_BLOCK
        ),
        "ring whose colluders outnumber the threshold": offer(
            min_clients=100,
            max_clients=1000,
            threshold=30,
            degree=40,
            min_survivors=40,
            colluders=30,
            graph_bits=40,
        ),
        "noise whose unit is the session's": offer(
            noise_block=MOVING_BLOCK, noise_terms=b'{"unit":"2048/3"}'
        ),
        "largest modulus": offer(modulus=2**62, dim=2**30),
        "server that may lie, revocations": offer(trust=TRUST, **SIGNED),
        "server that may lie, no revocations": offer(
            trust=ref.Trust("ä" * 127, ISSUER.key), **SIGNED
        ),
    }
    result = []
    for name, made in chosen.items():
        rules = made.parameters
        fields = {
            "aggregator": made.aggregator,
            "task_id": made.task_id,
            "session_number": made.session_number,
            "server_nonce": made.server_nonce.hex(),
            "session_end": made.session_end,
            "payload_hash": made.payload_hash.hex(),
            "noise_terms": made.noise_terms.decode(),
            "parameters": vars(rules)
            | {
                "modulus": str(rules.modulus),
                "noise_block": rules.noise_block.decode(),
                "deadlines": list(rules.deadlines),
                "trust": trust_fields(rules.trust),
            },
        }
        if rules.noise_block:
            check_block(made)
        encoded = made.encode()
        if ref.Offer.decode(encoded) != made:
            raise AssertionError(name)
        result.append(
            {
                "name": name,
                "fields": fields,
                "offer": encoded.hex(),
                "cfg_hash": ref.configuration_hash(made).hex(),
                "sid": ref.session_id(made).hex(),
                "ctx0": ref.context_0(made).hex(),
            }
        )
    return result


def chains() -> list[dict[str, Any]]:
    """From ctx0 to ctx3, over tops and noise that are only bytes to the hash."""
    result = []
    top, graph_seed = counting(0xA0, 32), counting(0xE0, 32)
    share_holders, survivors = ref.bitmap({0, 2, 9}, 10), ref.bitmap({0, 9}, 10)
    for suite, seed, bound in ((1, b"", b""), (2, graph_seed, counting(0xB0, 32))):
        chain = [CONTEXT]
        chain.append(ref.context_1(suite, chain[-1], 10, top, seed))
        chain.append(
            ref.context_2(suite, chain[-1], share_holders, noise_context=bound)
        )
        chain.append(ref.context_3(suite, chain[-1], survivors))
        result.append(
            {
                "suite": suite,
                "tag": ref.tag("client", "share bundle", suite).hex(),
                "count": 10,
                "top": top.hex(),
                "graph_seed": seed.hex(),
                "edge_root": "",
                "u2": share_holders.hex(),
                "noise_context": bound.hex(),
                "u3": survivors.hex(),
                "contexts": [context.hex() for context in chain],
            }
        )
    return result


def trees() -> list[dict[str, Any]]:
    """Over leaves that are only bytes: leaf i is 32 times the byte i."""
    result: list[dict[str, Any]] = []
    for count in range(1, 41):
        leaves = [bytes([place]) * 32 for place in range(count)]
        row: dict[str, Any] = {"suite": 1, "leaves": count}
        row["top"] = top_of(1, leaves).hex()
        shown = {0, 7 * count // 10, 8 * count // 10, count - 1}
        if count % 3 == 1:
            row["shown"] = sorted(shown)
            row["proof"] = [part.hex() for part in proof_for(1, leaves, shown)]
        result.append(row)
    return result


def bad_sets() -> list[dict[str, Any]]:
    rows = []
    for rule, size, data in (
        ("R3.3-1", 9, b"\x01\x02"),
        ("R3.3-1", 9, b"\x01\x80"),
        ("R3.3-1", 1, b"\xff"),
        ("R3.1-1", 8, b""),
        ("R3.1-1", 8, b"\x01\x00"),
        ("R3.1-1", 9, b"\x01"),
    ):
        row = {"rule": rule, "size": size, "bitmap": data.hex()}
        try:
            ref.members_of(data, size)
        except ref.Refused as refused:
            rows.append(row | {"success": False, "code": refused.code})
        else:
            raise AssertionError(row)
    return rows


def bad_proofs() -> list[dict[str, Any]]:
    """Proofs for leaf 3 of 11 that do not fit, or give another top."""
    leaves = [bytes([place]) * 32 for place in range(11)]
    top, good = top_of(1, leaves), proof_for(1, leaves, {3})
    result: list[dict[str, Any]] = []
    for name, count, proof, fits in (
        ("one hash more", 11, [*good, bytes(32)], False),
        ("one hash fewer", 11, good[:-1], False),
        ("no hashes", 11, [], False),
        ("hashes in reverse", 11, good[::-1], True),
        ("another hash", 11, [*good[:-1], bytes(32)], True),
        ("other leaves, so that fewer hashes are due", 4, good, False),
        ("another number of leaves, and the same top", 12, good, True),
    ):
        row = {"name": name, "leaves": count, "shown": [3]}
        row["proof"] = [part.hex() for part in proof]
        try:
            found = proven_top(1, count, {3: leaves[3]}, proof)
        except ref.Refused as refused:
            if fits or refused.code != ref.BAD_PROOF:
                raise AssertionError(name) from None
            row |= {"rule": "R4.1-1", "success": False, "code": refused.code}
        else:
            if not fits or (found == top) != (count == 12):
                raise AssertionError(name)
            row["top"] = found.hex()
        result.append(row)
    return result


def adverts() -> list[dict[str, Any]]:
    result = []
    for identity, layers, is_signed in (
        ("a", 0, False),
        ("Client-1_b.c", 0, True),
        ("x" * 255, 2, False),
        ("with-noise", 17, True),
    ):
        private = counting(1, 32), counting(0x21, 32)
        seed, own = counting(0x41, 32), counting(0x61, 32)
        noise = [counting(layer, 32) for layer in range(layers)]
        advert = Advert(
            identity,
            *map(public_key, private),
            commitment_to(1, SID, identity, seed),
            tuple(
                noise_commitment(1, SID, identity, layer, drawn)
                for layer, drawn in enumerate(noise)
            ),
        )
        if is_signed:
            credential = ISSUER.credential(identity, own)
            advert = dataclasses.replace(advert, credential=credential)
            signature = sign(own, advert.signed_bytes(1, CONTEXT))
            advert = dataclasses.replace(advert, signature=signature)
        result.append(
            {
                "suite": 1,
                "sid": SID.hex(),
                "ctx0": CONTEXT.hex(),
                "identity": identity,
                "channel_private_key": private[0].hex(),
                "mask_private_key": private[1].hex(),
                "self_mask_seed": seed.hex(),
                "noise_seeds": [drawn.hex() for drawn in noise],
                "identity_seed": own.hex() if is_signed else "",
                "credential": advert.credential.encode().hex()
                if advert.credential
                else "",
                "commitment": advert.commitment.hex(),
                "leaf_5": leaf(1, CONTEXT, 5, advert).hex(),
                "advert": advert.encode().hex(),
            }
        )
    return result


def rosters() -> list[dict[str, Any]]:
    result = []
    names = ["A", "B-", "B.", "Z", "a", "aa", "b"]
    for graph_seed in (b"", counting(0xE0, 32)):
        made = []
        for place, name in enumerate(ref.roster_order(names, graph_seed)):
            keys = (public_key(counting(9 * place + at, 32)) for at in (1, 101))
            made.append(Advert(name, *keys, counting(place, 32)))
        roster = Roster.whole(made, graph_seed)
        row: dict[str, Any] = {
            "suite": 1,
            "ctx0": CONTEXT.hex(),
            "adverts": [advert.encode().hex() for advert in made],
            "graph_seed": graph_seed.hex(),
            "roster": roster.encode().hex(),
            "top": roster.top(1, CONTEXT).hex(),
        }
        if graph_seed:
            row |= {"degree": 2, "neighbourhoods": parts_of(roster)}
        result.append(row)
    return result


def parts_of(roster: Roster) -> list[str]:
    around = ref.neighbours(2, roster.count)
    parts = []
    for reader, row in enumerate(around):
        part = roster.neighbourhood(1, CONTEXT, reader, row)
        if part.top(1, CONTEXT) != roster.top(1, CONTEXT):
            raise AssertionError(reader)
        parts.append(part.encode().hex())
    return parts


def rings() -> list[dict[str, Any]]:
    result = []
    for count, degree in ((6, 4), (17, 6), (60, 10)):
        graph_seed = counting(count, 32)
        order = ref.roster_order((f"client-{i}" for i in range(count)), graph_seed)
        around = ref.neighbours(degree, count)
        result.append(
            {
                "graph_seed": graph_seed.hex(),
                "degree": degree,
                "identities": order,
                "neighbours": [around[0], around[count // 2], around[-1]],
            }
        )
    return result


def encodings() -> dict[str, Any]:
    sets = [(1, {0}), (8, {0, 7}), (9, {8}), (10, set()), (17, set(range(17)))]
    return {
        "offers": offers(),
        "context_chains": chains(),
        "trees": trees(),
        "proofs": bad_proofs(),
        "sets": [
            {"size": n, "members": sorted(s), "bitmap": ref.bitmap(s, n).hex()}
            for n, s in sets
        ]
        + bad_sets(),
        "adverts": adverts(),
        "rosters": rosters(),
        "rings": rings(),
    }


def shares() -> list[dict[str, Any]]:
    # Limb 0 of both is chosen so that the share at 1 has the value 65536.
    rows = [[(4099 * (p + 1) + 257 * i) % ref.FIELD for i in range(16)] for p in (0, 1)]
    secret = counting(0, 32)
    rows[0][0] = (-1 - ref.limbs_of(secret)[0] - rows[1][0]) % ref.FIELD
    result = []
    for coefficients in (rows[:1], rows):
        points = [1, 2, 3, 1000, 65535]
        values = [ref.share_at(secret, coefficients, point) for point in points]
        result.append(
            {
                "secret": secret.hex(),
                "threshold": len(coefficients) + 1,
                "coefficients": coefficients,
                "points": points,
                "limbs": values,
                "shares": [ref.encode_share(value).hex() for value in values],
            }
        )
    return result


def share_encodings() -> list[dict[str, Any]]:
    every = [65536] * 16
    cases = [list(range(16)), [65535] * 16, every, [65536, *([0] * 14), 65536]]
    good = [
        {"limbs": limbs, "share": ref.encode_share(limbs).hex(), "success": True}
        for limbs in cases
    ]
    flagged = bytearray(34)
    flagged[1], flagged[33] = 1, 1  # limb 0 is 1, and flagged as 65536
    last = bytearray(34)
    last[30], last[32] = 1, 0x80  # the same for limb 15
    bad = [
        ("R7.2-1", bytes(flagged)),
        ("R7.2-1", bytes(last)),
        ("R3.1-1", bytes(33)),
        ("R3.1-1", bytes(35)),
    ]
    return good + [
        {
            "rule": rule,
            "share": data.hex(),
            "success": False,
            "code": ref.BAD_ENCODING,
        }
        for rule, data in bad
    ]


def bundles() -> list[dict[str, Any]]:
    result = []
    private, other = counting(1, 32), counting(0x21, 32)
    secret = agree(private, public_key(other))
    of_key = ref.encode_share(list(range(16)))
    of_seed = ref.encode_share([65536] * 16)
    for suite, *ends in ((1, 0, 1, 2), (1, 1, 0, 1), (2, 300, 65534, 7)):
        channel = Channel(suite, SID, CONTEXT, secret, *ends)
        sender, receiver, abscissa = ends
        result.append(
            {
                "suite": suite,
                "sid": SID.hex(),
                "ctx1": CONTEXT.hex(),
                "sender_private_key": private.hex(),
                "receiver_private_key": other.hex(),
                "agreed_secret": secret.hex(),
                "sender": sender,
                "receiver": receiver,
                "abscissa": abscissa,
                "key": channel.key().hex(),
                "associated_data": channel.associated_data().hex(),
                "share_of_key": of_key.hex(),
                "share_of_seed": of_seed.hex(),
                "bundle": channel.seal(of_key, of_seed).hex(),
            }
        )
    return result


def secrets() -> dict[str, Any]:
    return {
        "shares": shares(),
        "share_encodings": share_encodings(),
        "bundles": bundles(),
    }


def mask_keys() -> list[dict[str, Any]]:
    result = []
    for suite in ref.KEY_SIZES:
        keys = MaskKeys(suite, SID, CONTEXT)
        made = {
            "pair": ([3, 5], keys.pair(SECRET, 5, 3)),
            "self": ([3], keys.own(SECRET, 3)),
        }
        for role, (indices, (key, iv)) in made.items():
            result.append(
                {
                    "suite": suite,
                    "sid": SID.hex(),
                    "ctx2": CONTEXT.hex(),
                    "role": role,
                    "indices": indices,
                    "secret": SECRET.hex(),
                    "key": key.hex(),
                    "iv": iv.hex(),
                    "masks": [mask(key, iv, modulus) for modulus in masked(suite)],
                }
            )
    return result


def masked(suite: int) -> list[int]:
    return [*MODULI, *OTHER_MODULI] if suite == 1 else [2**20, 10**6 + 3]


def mask(key: bytes, iv: bytes, modulus: int) -> dict[str, Any]:
    coordinates = MaskStream(key, iv, modulus).coordinates(12)
    return {"modulus": str(modulus), "coordinates": numbers(coordinates, modulus)}


def seeks() -> list[dict[str, Any]]:
    key, iv = MaskKeys(1, SID, CONTEXT).own(SECRET, 3)
    result = []
    far = 10**8 + 1
    for modulus, dim, start in (
        (2**16, far + 5, far),
        (2**20, far + 5, far),
        (2**62, far + 5, far),
        (40000, 300, 290),
        (10**6 + 3, 300, 290),
    ):
        tail = MaskStream(key, iv, modulus).coordinates(dim, start)
        result.append(
            {
                "key": key.hex(),
                "iv": iv.hex(),
                "modulus": str(modulus),
                "dim": dim,
                "start": start,
                "coordinates": numbers(tail, modulus),
            }
        )
    long = MaskStream(key, iv, 40000).coordinates(20000)
    result.append(
        {
            "key": key.hex(),
            "iv": iv.hex(),
            "modulus": "40000",
            "dim": 20000,
            "start": 0,
            "sha256_of_u16_le": hashlib.sha256(
                b"".join(entry.to_bytes(2, "little") for entry in long)
            ).hexdigest(),
        }
    )
    return result


def entry(place: int, bits: int) -> int:
    return (place * 0x9E3779B97F4A7C15 % 2**64) >> (64 - bits)


def packings() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    shapes = [(1, 1), (7, 3), (16, 16), (40, 20), (65, 33), (150, 10), (70, 62)]
    for dim, bits in [*shapes, (2**17 + 50, 20), (2**17 + 2**16 + 3, 5)]:
        packed = ref.pack([entry(place, bits) for place in range(dim)], bits)
        row: dict[str, Any] = {"dim": dim, "bits": bits, "size": len(packed)}
        if dim > 2**16:
            row["sha256"] = hashlib.sha256(packed).hexdigest()
        else:
            row["packed"] = packed.hex()
        result.append(row)
    return result


def masks() -> dict[str, Any]:
    return {"keys": mask_keys(), "seeks": seeks(), "packing": packings()}


def as_text(content: dict[str, Any]) -> str:
    """Indented JSON with every list of numbers on one line."""
    loose = json.dumps({"protocol": "secagg/v1"} | content, indent=1, ensure_ascii=True)
    return (
        re.sub(
            r'\[\s+((?:"?\d+"?,\s+)*"?\d+"?)\s+\]',
            lambda found: "[" + re.sub(r"\s+", "", found.group(1)) + "]",
            loose,
        )
        + "\n"
    )


def files() -> dict[str, str]:
    """Every file of vectors, by name."""
    runs = sessions()
    for run in runs:
        if run.offer.parameters.noise_block:
            check_block(run.offer)
    return {
        "accounting.json": as_text(accounting()),
        "edge.json": as_text(edge()),
        "encoding.json": as_text(encoding()),
        "encodings.json": as_text(encodings()),
        "enrolment.json": as_text(enrolment()),
        "secrets.json": as_text(secrets()),
        "masks.json": as_text(masks()),
        "sessions.json": as_text({"sessions": [run.record for run in runs]}),
        "noise.json": as_text(noise()),
        "refusals.json": as_text(refusals(runs)),
        "receipts.json": as_text(receipts(runs)),
        "restarts.json": as_text(beside_the_rounds(runs)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    check = parser.parse_args().check
    stale = 0
    for name, content in files().items():
        path = DIRECTORY / name
        if check and (not path.exists() or path.read_text() != content):
            sys.stderr.write(f"{name} is out of date: run generate.py\n")
            stale = 1
        elif not check:
            path.write_text(content)
    return stale


if __name__ == "__main__":
    sys.exit(main())
