"""What must be refused, and with which code: the content of `refusals.json`."""

from collections.abc import Iterator
from typing import Any

import reference as ref
from client_refusals import client_refusals
from forged_messages import agreeing
from server_refusals import closings, server_refusals
from session_vectors import Run


def offers(run: Run) -> Iterator[dict[str, Any]]:
    good = run.offer.encode()
    head = len(good) - len(run.offer.parameters.encode())
    later = good[:head] + ref.u16(2) + good[head + 2 :]
    raw = {
        "version 2": (later, ref.BAD_VERSION),
        "cut short": (good[:-1], ref.BAD_ENCODING),
        "one byte more": (good + b"\0", ref.BAD_ENCODING),
        "nothing at all": (b"", ref.BAD_ENCODING),
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
            raw[f"{name} {fault}"] = (names + tail, ref.BAD_ENCODING)
    task_id, rest = aggregator + task_id, good[head:]
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
    for name, size in (("empty", 0), ("of two bytes", 2), ("beyond 512 bytes", 513)):
        raw[f"tail {name}"] = (good[:-5] + ref.blob(bytes(size)), ref.BAD_ENCODING)
    ring = {"degree": 4, "threshold": 3, "min_survivors": 3, "graph_bits": 40}
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
        "odd degree": ring | {"degree": 3},
        "degree below the threshold": ring | {"degree": 2, "threshold": 4},
        "degree too large for the cohort": ring | {"degree": 6},
        "ring without bits": ring | {"graph_bits": 0},
        "ring of too many bits": ring | {"graph_bits": 129},
        "bits without a ring": {"graph_bits": 40},
        "ring that its colluders reach": ring | {"colluders": 3, "min_survivors": 5},
        "deadline of no time": {"deadlines": (60, 0, 60, 60)},
        "deadline beyond a week": {"deadlines": (60, 60, 60, 604801)},
    }
    for name, change in changes.items():
        rules = ref.Parameters(**(vars(run.offer.parameters) | change))
        raw[name] = (good[:head] + rules.encode(), ref.BAD_CONFIG)
    for name, (data, code) in raw.items():
        case = {"name": name, "success": False, "code": code, "offer": data.hex()}
        yield agreeing(case, lambda data=data: ref.Offer.decode(data))


def refusals(runs: list[Run]) -> dict[str, Any]:
    """Return the content of the file."""
    complete, ring, scattered, corrected = runs
    return {
        "offers": list(offers(complete)),
        "client": list(client_refusals(complete, ring)),
        "server": list(server_refusals(complete, ring)),
        "closings": list(closings(complete, scattered, corrected)),
    }
