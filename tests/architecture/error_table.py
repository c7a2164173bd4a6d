"""The table of `docs/transport.md`: every number, whose fault it is, and what follows.

It is made from what is in force: statuses and faults from `secagg.transport.status`,
reactions from `secagg.client.retry_policy` and the code that makes the calls.
"""

from typing import Final

from secagg.client.calls import RETRYABLE
from secagg.client.retry_policy import ErrorStage, NextAction, after_error
from secagg.client.session_driver import TOO_LATE
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.transport.status import status_code, usual_error
from secagg.wire.errors import TRAVELLING, fault_name, seen_by_peer

_WORDS: Final = {
    NextAction.NEXT_SESSION: "next session",
    NextAction.NEXT_ATTEMPT: "next session, counted",
    NextAction.SAME_SESSION: "same session again, counted",
    NextAction.FINAL: "ends",
}


def error_table() -> str:
    """Return the table: every number that travels."""
    lines = [
        "| number | name | gRPC status | fault | the client in a session |",
        "|---|---|---|---|---|",
    ]
    for code in sorted(TRAVELLING):
        error = usual_error(code)
        lines.append(
            f"| {code.value} | `{code.name}` | `{status_code(code).name}` "
            f"| `{fault_name(error)}` | {_reaction(seen_by_peer(error))} |"
        )
    return "\n".join(lines) + "\n"


def _reaction(error: SecAggError) -> str:
    match error:
        case ServiceError(code=ErrorCode.UPLOAD_CORRUPT):
            return "asks where its upload goes on"
        case ServiceError() if error.code in RETRYABLE:
            return "repeats the call"
        case RemoteProtocolError() if error.code in TOO_LATE:
            return "asks for the update"
        case RemoteProtocolError(code=ErrorCode.ROSTER_TOO_LARGE):
            # The session goes on without this client (`Conductor`).
            error = SessionAbortedError("", code=error.code)
    before, since = (
        after_error(error, r) for r in (ErrorStage.JOINED, ErrorStage.INPUT_LEFT)
    )
    if before is since:
        return _WORDS[before]
    return f"{_WORDS[before]}; counted if its input has left"
