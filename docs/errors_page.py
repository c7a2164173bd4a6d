"""Write the reference of all errors from the tables that the code goes by.

    python docs/errors_page.py

writes docs/errors.md.  `tests/architecture/test_errors_page.py` demands that the page
is current.

Numbers, statuses, faults and reactions come from the code; what an error means to a
person, and the next step, stand here.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from secagg.cli.failures import exit_code_of
from secagg.client.calls import RETRYABLE
from secagg.client.retry_policy import ErrorStage, NextAction, after_error
from secagg.client.session_driver import TOO_LATE
from secagg.errors import (
    FINAL_CODES,
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.server.http_edge.app import _error_answer
from secagg.transport.status import status_code, usual_error
from secagg.wire.errors import TRAVELLING, as_seen_by_peer, fault_name

PAGE: Final = Path(__file__).with_name("errors.md")
_C: Final = ErrorCode

MEANINGS: Final[dict[ErrorCode, tuple[str, str]]] = {
    _C.BAD_VERSION: (
        "the other side speaks another protocol version",
        "upgrade the older side",
    ),
    _C.BAD_CONFIG: (
        "the server offers a session that cannot exist",
        "operator: correct the task",
    ),
    _C.POLICY_VIOLATION: (
        "the session crosses one of this client's limits",
        "read which; change the task, or `[policy]` on purpose",
    ),
    _C.BAD_SIGNATURE: (
        "a signature is wrong, or present where none belongs",
        "check which software the client runs",
    ),
    _C.BAD_PUBLIC_KEY: (
        "a public key is malformed or of low order",
        "the sender is broken or hostile: operator, find it in the log",
    ),
    _C.DUPLICATE_KEY: (
        "one public key occurs twice",
        "the sender is broken or hostile: operator, find it in the log",
    ),
    _C.SELF_MISSING: (
        "the roster lacks this client or shows other keys for it",
        "do not take part; report the server",
    ),
    _C.ROSTER_TOO_SMALL: (
        "the task, or the slot of its schedule, ended while it waited for clients",
        (
            "operator: a longer `task.window`, a later `task.ends`, or a lower "
            "`cohort.min_clients`"
        ),
    ),
    _C.ROSTER_TOO_LARGE: (
        "the cohort is full",
        "wait for the next session",
    ),
    _C.BAD_SHARE_CIPHERTEXT: (
        "a share bundle does not open",
        "sender or server changed it: compare the software of both",
    ),
    _C.SHARE_CONFUSION: (
        "a share bundle belongs to another client",
        "sender or server changed it: compare the software of both",
    ),
    _C.U2_TOO_SMALL: (
        "too few clients shared their keys",
        "longer `rounds.share_keys`, or more clients",
    ),
    _C.U3_INVALID: (
        "the server's list of survivors is impossible",
        "do not answer; report the server",
    ),
    _C.U3_TOO_SMALL: (
        "too few masked inputs arrived",
        "longer `rounds.masked_input`, or more clients",
    ),
    _C.TOO_MANY_DROPOUTS: (
        "more clients dropped out than tolerated",
        "raise `cohort.max_dropouts` if the threat model allows",
    ),
    _C.NO_QUORUM: (
        "too few signatures (profiles for a malicious server)",
        "more clients",
    ),
    _C.EQUIVOCATION: (
        (
            "a party sent two different messages for one round, or two receipts of one "
            "session contradict each other"
        ),
        "do not trust that party; keep both receipts",
    ),
    _C.REPLAYED_SESSION: (
        "the session was seen before",
        "the server was reset to an old state: ask its operator",
    ),
    _C.UNEXPECTED_MESSAGE: (
        "a message at the wrong time",
        "upgrade both sides; else report",
    ),
    _C.BAD_VECTOR: (
        "an upload has the wrong size or entries",
        "upgrade the client",
    ),
    _C.DEADLINE: (
        "a round's deadline has passed",
        "try the next session; longer `[rounds]`",
    ),
    _C.RECONSTRUCTION_FAILED: (
        "shares do not rebuild what was advertised",
        "too many clients lied or were faulty: read the session's receipt",
    ),
    _C.BAD_NOISE_REVEAL: (
        "noise that was to be removed does not match",
        "report it with the session's receipt",
    ),
    _C.PAYLOAD_MISMATCH: (
        "the payload, or an object that was fetched, is not the one that was stated",
        "do not take part; report the server",
    ),
    _C.INTERNAL: (
        "a fault of this software",
        "report it, with the lines above the error",
    ),
    _C.BAD_ENCODING: (
        "bytes that are not a message",
        "upgrade both sides; else report",
    ),
    _C.TOO_FEW_ANSWERS: (
        "too few clients answered the unmask request",
        "longer `rounds.unmasking`, or more clients",
    ),
    _C.BAD_CREDENTIAL: (
        (
            "a client's credential is missing, foreign, expired or revoked, or a "
            "revocation list does not fit"
        ),
        "renew or enrol the client; operator: publish the issuer's newest list",
    ),
    _C.BAD_PROOF: (
        "a proof does not lead to the root that all clients are bound to",
        "do not take part; report the server",
    ),
    _C.BAD_EDGES: (
        "a list of neighbours has the wrong form or names a client that it must not",
        "the sender is broken or hostile: operator, find it in the log",
    ),
    _C.DISPUTED: (
        "clients accuse each other, and too few share holders are left",
        "the next attempt runs without them; the receipt names the pairs",
    ),
    _C.VIEW_DIFFERS: (
        (
            "this client computes another noise, roster or U2 than the server, most "
            "likely with another release of secagg or dpnoise"
        ),
        (
            "install the release that the aggregator runs; nothing was charged if no "
            "input was bound"
        ),
    ),
    _C.BAD_CLOCK: (
        "the clock of this machine or of the aggregator is wrong",
        (
            "compare both clocks with the right time; the message has both. A service "
            "waits until they agree"
        ),
    ),
    _C.UNKNOWN_SESSION: (
        "no such task or session here",
        "check `client.task`; is this the right server?",
    ),
    _C.UNAUTHENTICATED: (
        (
            "the certificate names no client, or another one; at the HTTP edge the "
            "request is not signed by an enrolled client"
        ),
        "issue a certificate with `secagg pki`, or enrol the client",
    ),
    _C.NOT_INVITED: (
        (
            "the task's list lacks the client, or a dispute excluded it; at the HTTP "
            "edge also: web pages of this origin may not call"
        ),
        "operator: `task.invited`, the receipts, or `edge.origins`",
    ),
    _C.SESSION_OVER: (
        "the session ended without this client",
        "wait for the next one",
    ),
    _C.OVERLOADED: (
        "the server asks to come back later",
        "it does so by itself; else fewer clients",
    ),
    _C.STORAGE_FAILED: (
        "the disk is full, read-only or in use",
        "free space; one process per state directory",
    ),
    _C.SHUTTING_DOWN: (
        "the server drains",
        "try again after its restart",
    ),
    _C.UPLOAD_CORRUPT: (
        "an upload does not match its digest",
        "it is repeated by itself; else check the network",
    ),
    _C.UNREACHABLE: (
        "no connection, or one to another aggregator than that of the open session",
        (
            "the message says whether name service, refusal, time-out or network; and "
            "who answers"
        ),
    ),
    _C.CANCELLED: (
        "the operator ended it",
        "wait for the next session",
    ),
    _C.TASK_OVER: (
        (
            "the task has all its sums, has ended, or has all participations of this "
            "client; no sum holds the vector in `--input`"
        ),
        "ask for the next task; operator: a new `task.id`",
    ),
    _C.BAD_INPUT: (
        (
            "the vector does not fit the task. After joining a session with noise, "
            "zeros are sent instead and the exit is 0"
        ),
        "length, type, NaN: see the message",
    ),
    _C.LOCAL_MISUSE: (
        "the calling program broke a rule",
        "correct the call as the message says",
    ),
    _C.BAD_SETTINGS: (
        "a setting is missing, unknown or impossible, or two paths lead to one file",
        "the message names key and origin",
    ),
    _C.PORT_IN_USE: (
        "the address is taken",
        "stop the other process, or `--set server.listen=...`",
    ),
    _C.BAD_CERTIFICATE: (
        "a certificate or key of either side is missing, expired or wrong",
        "the message names the file or the peer",
    ),
    _C.MISSING_EXTRA: (
        "an optional library is not installed",
        "the message names the extra",
    ),
    _C.INFEASIBLE: (
        "no noise meets the budget",
        "larger epsilon or delta, or more clients",
    ),
    _C.STATE_DAMAGED: (
        "stored records do not fit together",
        "check this machine's disk, then move the state away",
    ),
    _C.RESTORED_STATE: (
        "an older or foreign state was put in place",
        (
            "restore the newest one; or start again: remove the state, then "
            "`secagg state forget DIR --config FILE`; or accept it on purpose, once, "
            "with `--restored`"
        ),
    ),
    _C.NOT_CONFORMING: (
        "a program under test fails cases of the conformance kit",
        (
            "read the sentence beside the first failed case; run it again with "
            "`--only CASE --transcript DIR`"
        ),
    ),
}
"""What an error means, and the next step, in words for a person."""

_HEAD: Final = """# Errors

You look up an error of `secagg`: its numbers, whose fault it is, and what to do next.
Made from the code's tables by `python docs/errors_page.py`.

Numbers are never reused: programs, dashboards and other languages may match on them.

* 1 to 39 are the abort codes of [the protocol](../protos/PROTOCOL.md).
* 40 to 59 concern the service.
* From 60 on they concern this host, and never travel.
"""
_FOR_PEOPLE: Final = """## What to do

*Exit* is the exit code of a command that ends with the error.
[Exit codes](commands.md#exit-codes) has the ends that are no errors.

*Again?* says whether the same command may succeed later by itself.
After `no` a person is needed: the units under `deploy/systemd` do not restart then.
`secagg client --service` ends after each `no`; after a used-up budget it ends with 0.
A client continues by itself where it is not at fault.
A session that failed at the server costs none of `client.attempts`.
"""
_FOR_PROGRAMS: Final = """## On the wire

A failed call carries a gRPC or HTTP status and a `secagg.v1.ErrorDetail`.
The detail decides, over both.
[Transport](transport.md#when-to-try-again) says where it stands.
*HTTP* is the status at the [HTTP edge](http-edge.md).

*Fault* is the field `fault` of the detail, without `FAULT_`:

| Fault | At fault |
|---|---|
| `CALLER` | the client that called, or the peer whose message it is |
| `TIMING` | no party: the message came after its round |
| `SESSION` | no party that was asked: the session ended for all without a sum |
| `SERVICE` | network, disk or load; the protocol is intact |
| `AGGREGATOR` | the aggregator's own software: its log says more |

The last column says what a client does after this answer in a session.
*Counted* means that it costs one of its `client.attempts`.
*Repeats the call* means: after `retry_after_ms` of the detail, else after a growing
wait, until the round's deadline.
"""
_EARLIER: Final = """
At the HTTP edge a request that is no call gets a status of its own:

{statuses}
"""
EDGE_REFUSALS: Final = {
    400: _C.BAD_ENCODING,
    403: _C.NOT_INVITED,
    404: _C.BAD_VERSION,
    411: _C.BAD_ENCODING,
    413: _C.BAD_ENCODING,
    415: _C.BAD_ENCODING,
}
"""Statuses of the HTTP edge that stand beside another number than the table says."""
_ON_THIS_HOST: Final = """## On this host

An aggregator that meets one of these itself answers `INTERNAL`.
Its own log has the rest.
A client that is told one of them by a peer reads `INTERNAL`.
After each of them a client ends.

| Number | Name | Fault |
|---|---|---|
"""
_WORDS: Final = {
    NextAction.NEXT_SESSION: "next session",
    NextAction.NEXT_ATTEMPT: "next session, counted",
    NextAction.SAME_SESSION: "same session again, counted",
    NextAction.FINAL: "ends",
}


def errors_page() -> str:
    """Return the page."""
    refusals = sorted({code.name for code in EDGE_REFUSALS.values()})
    statuses = "\n".join(
        f"* {', '.join(str(s) for s, c in EDGE_REFUSALS.items() if c.name == name)}: "
        f"`{name}`"
        for name in refusals
    )
    local = [
        f"| {code.value} | `{code.name}` | {_local_fault(code)} |\n"
        for code in sorted(set(ErrorCode) - TRAVELLING)
    ]
    return (
        "\n".join(
            (
                _HEAD,
                _FOR_PEOPLE,
                *_people(sorted(ErrorCode)),
                "",
                _FOR_PROGRAMS,
                *_programs(sorted(TRAVELLING)),
                _EARLIER.format(statuses=statuses),
                _ON_THIS_HOST + "".join(local),
            )
        ).rstrip("\n")
        + "\n"
    )


def _people(codes: Iterable[ErrorCode]) -> Iterator[str]:
    yield "| Exit | Number | Name | Again? | Meaning | Next step |"
    yield "|---|---|---|---|---|---|"
    for code in codes:
        again = "no" if code in FINAL_CODES else "yes"
        meaning, step = MEANINGS[code]
        yield (
            f"| {exit_code_of(code)} | {code.value} | `{code.name}` | {again} "
            f"| {meaning} | {step} |"
        )


def _programs(codes: Iterable[ErrorCode]) -> Iterator[str]:
    yield "| Number | Name | gRPC status | HTTP | Fault | The client in a session |"
    yield "|---|---|---|---|---|---|"
    for code in codes:
        error = usual_error(code)
        yield (
            f"| {code.value} | `{code.name}` | `{status_code(code).name}` "
            f"| {_error_answer(error)[0]} "
            f"| `{fault_name(error).removeprefix('FAULT_')}` "
            f"| {_reaction(as_seen_by_peer(error))} |"
        )


def _local_fault(code: ErrorCode) -> str:
    """Return whose fault an error of this host is, and check that it ends a client."""
    error = code.error("")
    if {after_error(error, stage) for stage in ErrorStage} != {NextAction.FINAL}:
        raise ValueError(f"a client continues after {code.name}: say so on the page")
    if isinstance(error, LocalProtocolError):
        return "the calling program"
    return "this host: its settings, files or libraries, or what it was told to do"


def _reaction(error: SecAggError) -> str:
    """Return what a client in a session does after an answer of the aggregator."""
    match error:
        case ServiceError(code=ErrorCode.UPLOAD_CORRUPT):
            return "asks where its upload continues"
        case ServiceError() if error.code in RETRYABLE:
            return "repeats the call"
        case RemoteProtocolError() if error.code in TOO_LATE:
            return "asks for the update"
        case RemoteProtocolError(code=ErrorCode.ROSTER_TOO_LARGE):
            # The session continues without this client (`SessionDriver`).
            error = SessionAbortedError("", code=error.code)
    before, since = (
        after_error(error, stage)
        for stage in (ErrorStage.JOINED, ErrorStage.INPUT_LEFT)
    )
    if before is since:
        return _WORDS[before]
    return f"{_WORDS[before]}; counted if its input has left"


if __name__ == "__main__":
    PAGE.write_text(errors_page(), encoding="utf-8")
