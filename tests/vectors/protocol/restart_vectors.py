"""What is no message of a round: restarts, endings, and how errors travel.

The content of `restarts.json`.  An error travels as the protobuf message `ErrorDetail`
of `secagg/v1/errors.proto`; its bytes are written here field by field, in order.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import reference as ref
from client_refusals import opening, played_client
from forged_messages import flipped
from reference_session import UNMASK
from server_refusals import played_server, receive_all
from session_vectors import Run

CALLER, SERVICE, SESSION, AGGREGATOR, TIMING = 1, 2, 3, 4, 5
FIELDS = {1: "advert", 2: "edges", 3: "bundles", 4: "upload", 5: "signature"}
FIELDS |= {6: "answer"}


def restarts(run: Run, name: str) -> Iterator[dict[str, Any]]:
    """A client that has taken what opens a round, and has forgotten that it answered.

    It sends the same again, takes the same opening as a repeat, and leaves at another.
    """
    for round_number in ref.ROUNDS[run.offer.parameters.profile]:
        row: dict[str, Any] = {
            "session": run.plan.name,
            "client": name,
            "after": round_number,
            "sends": run.row(name)[FIELDS[round_number]],
        }
        if round_number > 1:
            again = opening(run, name, round_number)
            other = flipped(again, len(again) - 1)
            client = played_client(run, name, round_number)
            if client.take(round_number, again).hex() != row["sends"]:
                raise AssertionError(row)
            try:
                client.take(round_number, other)
            except ref.Refused as refused:
                row |= {"again": again.hex(), "other": other.hex()}
                row |= {"code": refused.code}
        yield row


def numbers() -> Iterator[dict[str, Any]]:
    """R5.0-2: a session number exceeds all that were taken part in."""
    for seen, offered in (
        ([], 1),
        ([1], 2),
        ([3], 9),
        ([1], 1),
        ([1, 7], 5),
        ([1, 7], 7),
        ([2**63 - 1], 2**63 - 1),
    ):
        fresh = all(offered > number for number in seen)
        code = 0 if fresh else ref.REPLAYED_SESSION
        yield {
            "rule": "R5.0-2",
            "seen": [str(number) for number in seen],
            "offered": str(offered),
            "success": fresh,
            "code": code,
        }


def endings() -> Iterator[dict[str, Any]]:
    """Messages that end a session, and how they are read."""

    def abort(fate: int, code: int, reason: bytes) -> bytes:
        return bytes([fate]) + ref.u16(code) + ref.blob(reason)

    for fate, code, read in (
        (0, ref.ROSTER_TOO_SMALL, ref.ROSTER_TOO_SMALL),
        (1, ref.SESSION_OVER, ref.SESSION_OVER),
        (2, ref.RECONSTRUCTION_FAILED, ref.RECONSTRUCTION_FAILED),
        (2, ref.INTERNAL, ref.INTERNAL),
        (0, 999, ref.INTERNAL),  # of a later release
        (0, 0, ref.INTERNAL),
    ):
        data = abort(fate, code, b"too few are left")
        yield {"kind": 9, "message": data.hex(), "fate": fate, "code": read}
    good = abort(0, ref.DEADLINE, b"")
    hashed, end = hashlib.sha256(b"sum").digest(), ref.u64(0)
    sums = b"\2" + hashed + ref.u64(100) + ref.u32(7) + end
    yield {"kind": 8, "message": sums.hex(), "fate": 2, "survivors": 7}
    for kind, data in (
        (9, good[:-1]),
        (9, good + b"\0"),
        (9, abort(3, ref.DEADLINE, b"")),
        (9, abort(0, ref.DEADLINE, b"x" * 1001)),
        (9, abort(0, ref.DEADLINE, b"\xff")),
        (8, sums[:-1]),
        (8, b"\0" + sums[1:]),
        (8, sums + b"\0"),
    ):
        row = {"kind": kind, "message": data.hex(), "success": False}
        yield row | {"code": ref.BAD_ENCODING}


def reveals(run: Run, name: str) -> Iterator[dict[str, Any]]:
    """R5.5-11: a seed that does not fit is reported and not subtracted."""
    server = played_server(run, UNMASK)
    good = run.bytes_of(name, "answer")
    answer = flipped(good, len(good) - 1)
    receive_all(run, server, UNMASK, (name,))
    server.receive(UNMASK, name, answer)
    total = server.sum()
    if [str(entry) for entry in total] != run.record["sum"]:
        raise AssertionError(run.plan.name)
    layers = server.view.layers_taken_back(server.view.survivors)
    rest = [layer for layer in layers if layer != layers[-1]]
    yield {
        "session": run.plan.name,
        "sender": name,
        "message": answer.hex(),
        "reported": ref.BAD_NOISE_REVEAL,
        "layer": layers[-1],
        "still_given": rest,
    }


# --- §10: errors ---------------------------------------------------------------------


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | str | None) -> bytes:
    """One field; nothing for what is absent."""
    if isinstance(value, str):
        data = value.encode()
        return varint(number << 3 | 2) + varint(len(data)) + data if data else b""
    return b"" if value is None else varint(number << 3) + varint(value)


def detail(row: dict[str, Any]) -> bytes:
    names = ("code", "fault", "message", "next_step", "retry_after_ms", "sender")
    names += ("alive", "needed", "next_offset")
    return b"".join(field(n, row.get(name)) for n, name in enumerate(names, start=1))


def errors() -> Iterator[dict[str, Any]]:
    """Error details, and how they are read."""
    rows: list[dict[str, Any]] = [
        {"code": ref.BAD_ENCODING, "fault": CALLER, "sender": "ann"},
        {"code": ref.DEADLINE, "fault": TIMING, "message": "too late"},
        {"code": ref.INTERNAL, "fault": AGGREGATOR, "message": "a defect"},
        {"code": 44, "fault": SERVICE, "retry_after_ms": 1500, "next_step": "wait"},
        {"code": 47, "fault": SERVICE, "next_offset": 2**32},
        {"code": 47, "fault": SERVICE, "next_offset": 0},
        {"code": ref.U3_TOO_SMALL, "fault": SESSION, "alive": 3, "needed": 5},
        {"code": ref.NO_QUORUM, "fault": SESSION, "message": "no client signed"},
    ]
    for row in rows:
        yield row | {"detail": detail(row).hex(), "read_as": row["code"]}
    later = {"code": 999, "fault": 9, "message": "of a later release"}
    known = {"read_as": ref.INTERNAL, "read_fault": SERVICE}
    yield later | {"detail": detail(later).hex()} | known
    extended = detail(rows[0]) + field(100, "a field of a later release")
    yield rows[0] | {"detail": extended.hex(), "read_as": rows[0]["code"]}
    for data in (b"\xff", bytes(4097), detail(rows[0])[:-1]):
        yield {"detail": data.hex(), "success": False}


def beside_the_rounds(runs: list[Run]) -> dict[str, Any]:
    """Return the content of the file."""
    by_name = {run.plan.name: run for run in runs}
    who = {"complete": "bob", "signed": "dora", "sparse": "f-5", "layered": "ann"}
    return {
        "restarts": [
            row
            for name, client in who.items()
            for row in restarts(by_name[name], client)
        ],
        "numbers": list(numbers()),
        "endings": list(endings()),
        "noise_reveals": list(reveals(by_name["layered"], "ann")),
        "errors": list(errors()),
    }
