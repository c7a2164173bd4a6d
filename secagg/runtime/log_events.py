"""Names of log events and metrics, and the rule that keeps secrets out of them.

Rule 1: every name that leaves the process is a constant in this file.
Rule 2: a log record carries identities, counts, rounds, codes and digests; never a
        key, seed, share, vector entry or free bytes of a peer.

Rule 3: one event is one line, made by `log_event` or `log_defect`: its name, then
        facts.  What writes lines (`secagg.cli.logs`) finds both on the record, as they
        were given.

It configures no logging and knows no metrics backend.
"""

import logging
import re
from collections.abc import Mapping
from typing import Final

__all__ = [
    "ADMIN_REFUSED",
    "AGGREGATOR_UNREACHABLE",
    "BOOK_IS_BACK",
    "BUDGET_FORGOTTEN",
    "BUDGET_SHORT",
    "CALLS_REFUSED",
    "CALL_FAILED",
    "CALL_REFUSED",
    "CERTIFICATE_EXPIRES",
    "CERTIFICATE_REFUSED",
    "CERTIFICATE_RENEWED",
    "CLIENT_DROPPED",
    "CLIENT_LEFT_OUT",
    "CLIENT_LOGGER",
    "CLOCK_BEHIND",
    "CLOCK_DIFFERS",
    "DATA_CLAIMED",
    "ENGINE_LOST",
    "FILES_EXHAUSTED",
    "FILES_REFUSED",
    "FILES_WRITTEN",
    "HANDSHAKES_REFUSED",
    "HANDSHAKE_REFUSED",
    "KEY_FILE_READABLE",
    "MESSAGE_ACCEPTED",
    "MESSAGE_REFUSED",
    "RECEIPTS_PURGED",
    "RECORD_REPEATED",
    "RENEWAL_FAILED",
    "RENEWAL_RAN",
    "REPORT_LOST",
    "REVOCATIONS_REFUSED",
    "REVOCATIONS_RENEWED",
    "REVOKED_REFUSED",
    "REVOKED_RELOADED",
    "ROUND_CLOSED",
    "SERVER_LOGGER",
    "SERVICE_WAITS",
    "SESSION_ABORTED",
    "SESSION_COMPLETED",
    "SESSION_ENDED_ELSEWHERE",
    "SESSION_OPENED",
    "SESSION_RESUMED",
    "SPOOL_FOREIGN",
    "STORAGE_REFUSED",
    "SUM_REPEATED",
    "TABLES_DIFFER",
    "TASK_CHANGED",
    "TASK_DIFFERS",
    "TRANSPORT_DRAINING",
    "TRANSPORT_LOGGER",
    "TRANSPORT_STARTED",
    "TRANSPORT_STOPPED",
    "UPLOADS_LOST",
    "VIEW_DIFFERS",
    "WATCH_FAILED",
    "ZEROS_GIVEN",
    "log_defect",
    "log_event",
]

SERVER_LOGGER: Final = "secagg.server"
CLIENT_LOGGER: Final = "secagg.client"
TRANSPORT_LOGGER: Final = "secagg.transport"

SESSION_OPENED: Final = "session_opened"
SESSION_RESUMED: Final = "session_resumed"
SESSION_COMPLETED: Final = "session_completed"
CLOCK_BEHIND: Final = "clock_behind"
CLOCK_DIFFERS: Final = "clock_differs"
SESSION_ENDED_ELSEWHERE: Final = "session_ended_elsewhere"
SESSION_ABORTED: Final = "session_aborted"
ROUND_CLOSED: Final = "round_closed"
CLIENT_DROPPED: Final = "client_dropped"
CLIENT_LEFT_OUT: Final = "client_left_out"
RECEIPTS_PURGED: Final = "receipts_purged"
TASK_CHANGED: Final = "task_changed"
REVOCATIONS_RENEWED: Final = "revocations_renewed"
REVOCATIONS_REFUSED: Final = "revocations_refused"
TASK_DIFFERS: Final = "task_differs"
ADMIN_REFUSED: Final = "admin_refused"
ENGINE_LOST: Final = "engine_lost"
STORAGE_REFUSED: Final = "storage_refused"
SUM_REPEATED: Final = "sum_repeated"
UPLOADS_LOST: Final = "uploads_lost"
BOOK_IS_BACK: Final = "book_is_back"
FILES_REFUSED: Final = "files_refused"
FILES_WRITTEN: Final = "files_written"
SPOOL_FOREIGN: Final = "spool_foreign"
MESSAGE_ACCEPTED: Final = "message_accepted"
MESSAGE_REFUSED: Final = "message_refused"
VIEW_DIFFERS: Final = "view_differs"
TABLES_DIFFER: Final = "tables_differ"
RECORD_REPEATED: Final = "record_repeated"
REPORT_LOST: Final = "report_lost"
AGGREGATOR_UNREACHABLE: Final = "aggregator_unreachable"
SERVICE_WAITS: Final = "service_waits"
BUDGET_SHORT: Final = "budget_short"
DATA_CLAIMED: Final = "data_claimed"
ZEROS_GIVEN: Final = "zeros_given"
BUDGET_FORGOTTEN: Final = "budget_forgotten"
RENEWAL_RAN: Final = "renewal_ran"
RENEWAL_FAILED: Final = "renewal_failed"

# Of the transport: calls, its life, and what it found in certificates.
CALL_REFUSED: Final = "call_refused"
CALLS_REFUSED: Final = "calls_refused"
CALL_FAILED: Final = "call_failed"
HANDSHAKE_REFUSED: Final = "handshake_refused"
HANDSHAKES_REFUSED: Final = "handshakes_refused"
FILES_EXHAUSTED: Final = "files_exhausted"
TRANSPORT_STARTED: Final = "transport_started"
TRANSPORT_DRAINING: Final = "transport_draining"
TRANSPORT_STOPPED: Final = "transport_stopped"
KEY_FILE_READABLE: Final = "key_file_readable"
CERTIFICATE_RENEWED: Final = "certificate_renewed"
CERTIFICATE_EXPIRES: Final = "certificate_expires"
CERTIFICATE_REFUSED: Final = "certificate_refused"
WATCH_FAILED: Final = "watch_failed"
REVOKED_RELOADED: Final = "revoked_reloaded"
REVOKED_REFUSED: Final = "revoked_refused"

# What a fact may hold and still be read without quotation marks.
_PLAIN: Final = re.compile(r"[\w.:/@+-]+", re.ASCII)


def log_event(
    logger: logging.Logger, level: int, event: str, /, **facts: object
) -> None:
    """Log one event as one line.

    Args:
        logger: Of the party.
        level: Of `logging`.
        event: A constant of this file.
        facts: What is known of it: texts, numbers, nothing secret.  What a peer chose
            may hold line ends: it is quoted.
    """
    _log(logger, level, event, facts, with_traceback=False)


def log_defect(logger: logging.Logger, event: str, /, **facts: object) -> None:
    """Log an exception that is being handled and was never meant to be, as an error.

    Args:
        logger: Of the party.
        event: A constant of this file.
        facts: As for `log_event`.
    """
    _log(logger, logging.ERROR, event, facts, with_traceback=True)


def _log(
    logger: logging.Logger,
    level: int,
    event: str,
    facts: Mapping[str, object],
    *,
    with_traceback: bool,
) -> None:
    if logger.isEnabledFor(level):
        words = (f" {name}={_shown(value)}" for name, value in facts.items())
        logger.log(
            level,
            "%s",
            event + "".join(words),
            exc_info=with_traceback,
            stacklevel=3,
            extra={"event": event, "facts": facts},
        )


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)
