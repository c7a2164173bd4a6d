"""What must be refused, and with which code: the content of `refusals.json`."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import reference as ref
from client_refusals import client_refusals, complaints, endings
from forged_messages import agreeing
from server_refusals import closings, server_refusals
from session_vectors import FOREIGN_ISSUER, TRUST, Run
from signed_refusals import signed_refusals
from sparse_refusals import (
    sparse_client_refusals,
    sparse_closings,
    sparse_server_refusals,
)


def malformed_offers(run: Run) -> Iterator[tuple[str, bytes, int]]:
    good = run.offer.encode()
    head = len(good) - len(run.offer.parameters.encode())
    later = good[:head] + ref.u16(2) + good[head + 2 :]
    raw = {
        "R3.2-1 version 2": (later, ref.BAD_VERSION),
        "R3.1-1 cut short": (good[:-1], ref.BAD_ENCODING),
        "R3.1-1 one byte more": (good + b"\0", ref.BAD_ENCODING),
        "R3.1-1 nothing at all": (b"", ref.BAD_ENCODING),
    }
    aggregator, task_id = ref.text(run.offer.aggregator), ref.text(run.offer.task_id)
    tail = good[len(aggregator + task_id) :]
    for name, most in (("aggregator", 255), ("task id", 256)):
        for fault, field in {
            f"of {most + 1} bytes": ref.text("x" * (most + 1)),
            "of no bytes": ref.text(""),
            "is no UTF-8": ref.blob(b"\xff"),
            "holds U+0000": ref.text("a" + chr(0) + "b"),
        }.items():
            names = field + task_id if name == "aggregator" else aggregator + field
            rule = "R3.1-3" if "U+" in fault else "R3.1-1"
            raw[f"{rule} {name} {fault}"] = (names + tail, ref.BAD_ENCODING)
    for size in (31, 33):
        hashed = replace(run.offer, payload_hash=bytes(size)).encode()
        raw[f"R3.1-1 payload hash of {size} bytes"] = (hashed, ref.BAD_ENCODING)
    cut = later[: head + 2]
    raw["R3.2-1 version 2, cut short right behind it"] = (cut, ref.BAD_VERSION)
    unknown = good[: head + 4] + ref.u16(3)
    raw["R3.2-2 unknown suite, cut short behind it"] = (unknown, ref.BAD_CONFIG)
    unknown = good[: head + 2] + ref.u16(4) + ref.u16(1)
    named = "R3.2-2 unknown profile, cut short behind the suite"
    raw[named] = (unknown, ref.BAD_CONFIG)
    other = good[: head + 2] + ref.u16(3) + ref.u16(1)
    named = "R3.1-1 profile of another release, cut short"
    raw[named] = (other, ref.BAD_ENCODING)
    long = replace(run.offer.parameters, noise_block=bytes(4097)).encode()
    raw["R3.1-1 noise block too long"] = (good[:head] + long, ref.BAD_ENCODING)
    long = replace(run.offer, noise_terms=bytes(257)).encode()
    raw["R3.1-1 noise terms too long"] = (long, ref.BAD_ENCODING)
    for name, size in (("empty", 0), ("of two bytes", 2), ("beyond 512 bytes", 513)):
        long = good[:-5] + ref.blob(bytes(size))
        raw[f"R3.1-1 tail {name}"] = (long, ref.BAD_ENCODING)
    for name, (data, code) in raw.items():
        yield name, data, code


def malformed_trusts(run: Run) -> Iterator[tuple[str, bytes, int]]:
    """Profile 2, whose tail is more than a byte."""
    trust = TRUST.encode()
    good = run.offer.encode()[: -len(trust) - 4]
    for name, tail in {
        "tail one byte short": trust[:-1],
        "tail with one byte more": trust + b"\0",
        "tail of profile 1": b"\0",
        "empty tail": b"",
        "trust domain of no bytes": replace(TRUST, trust_domain="").encode(),
        "trust domain of 256 bytes": replace(TRUST, trust_domain="x" * 256).encode(),
    }.items():
        yield f"R3.1-1 {name}", good + ref.blob(tail), ref.BAD_ENCODING
    nul = replace(TRUST, trust_domain="a" + chr(0)).encode()
    name = "R3.1-3 trust domain holds U+0000"
    yield name, good + ref.blob(nul), ref.BAD_ENCODING


RING = {"degree": 4, "threshold": 3, "min_survivors": 3, "graph_bits": 40}

CURIOUS_CHANGES: dict[str, dict[str, Any]] = {
    "R3.2-2 unknown suite": {"suite": 3},
    "R3.2-3 modulus 1": {"modulus": 1},
    "R3.2-3 modulus beyond 2^62": {"modulus": 2**62 + 1},
    "R3.2-3 no coordinates": {"dim": 0},
    "R3.2-3 too many coordinates": {"dim": 2**30 + 1},
    "R3.2-3 cohort of one": {"min_clients": 1},
    "R3.2-3 smallest cohort above the largest": {"max_clients": 5, "max_losses": 1},
    "R3.2-3 cohort beyond 65535": {"max_clients": 65536},
    "R3.2-4 deadline of no time": {"deadlines": (60, 0, 0, 60, 0, 60)},
    "R3.2-4 deadline beyond a week": {"deadlines": (60, 0, 60, 60, 0, 604801)},
    "R3.2-4 deadline for choosing edges": {"deadlines": (60, 1, 60, 60, 0, 60)},
    "R3.2-4 deadline for signatures": {"deadlines": (60, 0, 60, 60, 1, 60)},
    "R3.2-5 threshold 1": {"threshold": 1, "colluders": 0},
    "R3.2-5 fewer survivors than the threshold": {"min_survivors": 3},
    "R3.2-5 more survivors than clients": {"min_survivors": 7},
    "R3.2-5 survivors within the colluders' reach": {"colluders": 3},
    "R3.2-5 more dropouts than losses": {"max_dropouts": 4},
    "R3.2-5 losses that leave fewer than the threshold": {"max_losses": 4},
    "R3.2-6 threshold within the colluders' reach": {
        "threshold": 3,
        "colluders": 3,
        "min_survivors": 5,
    },
    "R3.2-6 bits without a ring": {"graph_bits": 40},
    "R3.2-7 odd degree": RING | {"degree": 3},
    "R3.2-7 degree below the threshold": RING | {"degree": 2, "threshold": 4},
    "R3.2-7 degree too large for the cohort": RING | {"degree": 6},
    "R3.2-7 ring without bits": RING | {"graph_bits": 0},
    "R3.2-7 ring of too many bits": RING | {"graph_bits": 129},
    "R3.2-7 ring that its colluders reach": RING | {"colluders": 3, "min_survivors": 5},
    "R3.2-3 one noise layer": {"noise_layers": 1, "noise_block": b"{}"},
    "R3.2-3 18 noise layers": {"noise_layers": 18, "noise_block": b"{}"},
}

SIGNED_CHANGES: dict[str, dict[str, Any]] = {
    "R3.2-3 revocation hash without a number": {
        "trust": replace(TRUST, revocation_number=0)
    },
    "R3.2-4 no deadline for signatures": {"deadlines": (60, 0, 60, 60, 0, 60)},
    "R3.2-4 deadline for choosing edges": {"deadlines": (60, 1, 60, 60, 60, 60)},
    "R3.2-8 threshold of half": {"colluders": 2},
    "R3.2-8 ring": {"degree": 6},
}


SPARSE_CHANGES: dict[str, dict[str, Any]] = {
    "R3.2-9 drawn edges without bits": {"graph_bits": 0},
    "R3.2-9 drawn edges of too many bits": {"graph_bits": 129},
    "R3.2-9 degree below the threshold": {"degree": 2, "in_cap": 6, "threshold": 3},
    "R3.2-9 degree of the cohort": {"degree": 8, "in_cap": 24},
    "R3.2-9 fewer may draw one than each draws": {"in_cap": 3},
    "R3.2-9 more may draw one than three times as many": {"in_cap": 13},
    "R3.2-9 quorum of half": {"own_quorum": 5, "min_survivors": 5},
    "R3.2-9 quorum below the survivors": {"min_survivors": 7},
    "R3.2-9 quorum above the cohort": {"own_quorum": 9},
    "R3.2-9 corrupt holders reach the threshold": {"colluders": 2, "own_quorum": 7},
    "R3.2-9 edges that do not hold together": {"degree": 3, "in_cap": 9},
    "R3.2-4 no deadline for choosing edges": {"deadlines": (60, 0, 60, 60, 60, 60)},
}


def changed_offers(run: Run, changes: dict[str, dict[str, Any]]) -> Iterator[Any]:
    for name, change in changes.items():
        rules = replace(run.offer.parameters, **change)
        yield name, replace(run.offer, parameters=rules).encode(), ref.BAD_CONFIG


def offers(run: Run, signed: Run, sparse: Run) -> Iterator[dict[str, Any]]:
    numbered = replace(run.offer, session_number=2**63).encode()
    ending = replace(run.offer, session_end=2**63).encode()
    rows = [
        *malformed_offers(run),
        *malformed_trusts(signed),
        ("R3.2-3 session number beyond 2^63 - 1", numbered, ref.BAD_CONFIG),
        ("R3.2-3 session end beyond 2^63 - 1", ending, ref.BAD_CONFIG),
        *changed_offers(run, CURIOUS_CHANGES),
        *changed_offers(signed, SIGNED_CHANGES),
        *changed_offers(sparse, SPARSE_CHANGES),
    ]
    for full_name, data, code in rows:
        rule, _, name = full_name.partition(" ")
        case = {"name": name, "rule": rule, "success": False, "code": code}
        yield agreeing(
            case | {"offer": data.hex()}, lambda data=data: ref.Offer.decode(data)
        )


def payloads() -> Iterator[dict[str, Any]]:
    """A payload is what its hash in the offer says."""
    payload = b"model weights"
    hashed = hashlib.sha256(payload).digest()
    for name, data in (("as hashed", payload), ("one byte more", payload + b"\0")):
        fits = hashlib.sha256(data).digest() == hashed
        yield {
            "name": name,
            "success": fits,
            "code": 0 if fits else ref.PAYLOAD_MISMATCH,
            "payload_hash": hashed.hex(),
            "payload": data.hex(),
        }


def setups(plain: Run, signed: Run) -> Iterator[dict[str, Any]]:
    """What a client finds of an offer that is well-formed, before it makes a key."""
    trust = signed.offer.parameters.trust
    if trust is None:
        raise AssertionError(signed.plan.name)
    end, deadlines = plain.offer.session_end, plain.offer.parameters.deadlines
    longest = sum(deadlines) + deadlines[3] + 3600
    older = replace(trust, revocation_number=trust.revocation_number + 1)
    another = replace(trust, revocation_hash=bytes(32))
    knows: dict[str, Any] = {
        "now": end - longest,
        "aggregator": plain.offer.aggregator,
        "trust_domain": trust.trust_domain,
        "enrolment_key": trust.enrolment_key,
        "seen": None,
    }
    for full_name, run, changes, code in (
        ("R5.0-1 of the one that it talks to", plain, {}, 0),
        ("R5.0-1 of another", plain, {"aggregator": "sums-2"}, ref.UNAUTHENTICATED),
        (
            "R5.0-1 of another trust domain",
            signed,
            {"trust_domain": "example.net"},
            ref.UNAUTHENTICATED,
        ),
        ("R5.0-2 in its last second", plain, {"now": end - 1}, 0),
        ("R5.0-2 over", plain, {"now": end}, ref.BAD_CLOCK),
        ("R5.0-2 too far ahead", plain, {"now": end - longest - 1}, ref.BAD_CLOCK),
        ("R5.0-3 by the pinned key", signed, {}, 0),
        (
            "R5.0-3 by another key",
            signed,
            {"enrolment_key": FOREIGN_ISSUER.key},
            ref.POLICY_VIOLATION,
        ),
        ("R5.0-3 by the list that was seen", signed, {"seen": trust}, 0),
        ("R5.0-3 by an older list", signed, {"seen": older}, ref.POLICY_VIOLATION),
        (
            "R5.0-3 by another list of that number",
            signed,
            {"seen": another},
            ref.POLICY_VIOLATION,
        ),
    ):
        rule, _, name = full_name.partition(" ")
        known = knows | changes
        found = judged_at_setup(run.offer, known)
        if found != code:
            raise AssertionError(full_name, found)
        listed: ref.Trust | None = known["seen"]
        yield {
            "name": name,
            "rule": rule,
            "success": code == 0,
            "code": code,
            "session": run.plan.name,
            **known,
            "enrolment_key": known["enrolment_key"].hex(),
            "seen": None if listed is None else listed.encode().hex(),
        }


def judged_at_setup(offer: ref.Offer, knows: dict[str, Any]) -> int:
    """R5.0-1 to R5.0-3 but for numbers; 0 where all holds."""
    rules, trust = offer.parameters, offer.parameters.trust
    domain = knows["trust_domain"] if trust is None else trust.trust_domain
    proven = knows["aggregator"], knows["trust_domain"]
    if (offer.aggregator, domain) != proven:
        return ref.UNAUTHENTICATED
    left = offer.session_end - knows["now"]
    if not 0 < left <= sum(rules.deadlines) + rules.deadlines[3] + 3600:
        return ref.BAD_CLOCK
    if trust is None:
        return 0
    seen: ref.Trust = knows["seen"] or replace(trust, revocation_number=0)
    newer = trust.revocation_number > seen.revocation_number
    pinned = trust.enrolment_key == knows["enrolment_key"]
    return 0 if pinned and (newer or trust == seen) else ref.POLICY_VIOLATION


def refusals(runs: list[Run]) -> dict[str, Any]:
    """Return the content of the file."""
    complete, ring, scattered, corrected, signed, small, layered, sparse, noised = runs
    return {
        "offers": list(offers(complete, signed, sparse)),
        "payloads": list(payloads()),
        "setups": list(setups(complete, signed)),
        "client": [
            *client_refusals(complete, ring, scattered),
            *signed_refusals(ring, complete, signed, small, layered),
            *sparse_client_refusals(sparse, noised),
        ],
        "endings": list(endings(complete, signed)),
        "server": [
            *server_refusals(complete, ring, small, layered),
            *sparse_server_refusals(sparse),
        ],
        "complaints": list(complaints(complete)),
        "closings": [
            *closings(complete, scattered, corrected, signed, layered),
            *sparse_closings(sparse),
        ],
    }
