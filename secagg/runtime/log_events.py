"""Names of log events and metrics, and the rule that keeps secrets out of them.

Rule 1: every name that leaves the process is a constant in this file.
Rule 2: a log record carries identities, counts, rounds, codes and digests; never a key,
        seed, share, vector entry or free bytes of a peer.
Rule 3: one event is one line, made by `log_event` or `log_defect`: its name, then
        facts.  The writer of lines (`secagg.cli.output`) finds both on the record,
        unformatted.

This module configures no logging and knows no metrics backend.
"""

import logging
import re
from collections.abc import Mapping
from typing import Final

SERVER_LOGGER: Final = "secagg.server"
CLIENT_LOGGER: Final = "secagg.client"
TRANSPORT_LOGGER: Final = "secagg.transport"

SESSION_OPENED: Final = "session_opened"
SESSION_RESUMED: Final = "session_resumed"
SESSION_COMPLETED: Final = "session_completed"
CLOCK_BEHIND: Final = "clock_behind"
CLOCK_DIFFERS: Final = "clock_differs"
SESSION_ENDED_BY_REPLICA: Final = "session_ended_by_replica"
SESSION_ABORTED: Final = "session_aborted"
ROUND_CLOSED: Final = "round_closed"
CLIENT_DROPPED: Final = "client_dropped"
CLIENT_EXCLUDED: Final = "client_excluded"
RECEIPTS_PURGED: Final = "receipts_purged"
TASK_CHANGED: Final = "task_changed"
REVOCATION_LIST_UPDATED: Final = "revocation_list_updated"
REVOCATION_LIST_REJECTED: Final = "revocation_list_rejected"
TASK_SETTINGS_DIFFER: Final = "task_settings_differ"
ADMIN_REQUEST_REJECTED: Final = "admin_request_rejected"
ENGINE_LOST: Final = "engine_lost"
STORAGE_WRITE_FAILED: Final = "storage_write_failed"
SUM_RETRIED: Final = "sum_retried"
UPLOADS_LOST: Final = "uploads_lost"
STORE_RECONNECTED: Final = "store_reconnected"
OUTPUT_WRITE_FAILED: Final = "output_write_failed"
OUTPUT_WRITTEN: Final = "output_written"
SPOOL_MISMATCH: Final = "spool_mismatch"
MESSAGE_ACCEPTED: Final = "message_accepted"
MESSAGE_REFUSED: Final = "message_refused"
VIEW_DIFFERS: Final = "view_differs"
TABLES_DIFFER: Final = "tables_differ"
DUPLICATE_RECORD: Final = "duplicate_record"
REPORT_WRITE_FAILED: Final = "report_write_failed"
AGGREGATOR_UNREACHABLE: Final = "aggregator_unreachable"
SERVICE_BACKOFF: Final = "service_backoff"
BUDGET_LOW: Final = "budget_low"
DATA_CLAIMED: Final = "data_claimed"
ZEROS_GIVEN: Final = "zeros_given"
TRAINING_FAILED: Final = "training_failed"
INPUT_SHORTENED: Final = "input_shortened"
BUDGET_FORGOTTEN: Final = "budget_forgotten"
RENEWAL_COMPLETED: Final = "renewal_completed"
RENEWAL_FAILED: Final = "renewal_failed"

# Of the transport: calls, start and stop, and faults of certificates.
CALL_REFUSED: Final = "call_refused"
CALLS_REFUSED: Final = "calls_refused"
CALL_FAILED: Final = "call_failed"
EDGE_REQUEST_REFUSED: Final = "edge_request_refused"
EDGE_REQUESTS_REFUSED: Final = "edge_requests_refused"
EDGE_CLIENT_SEEN: Final = "edge_client_seen"
HANDSHAKE_REFUSED: Final = "handshake_refused"
HANDSHAKES_REFUSED: Final = "handshakes_refused"
FILE_DESCRIPTORS_EXHAUSTED: Final = "file_descriptors_exhausted"
TRANSPORT_STARTED: Final = "transport_started"
TRANSPORT_DRAINING: Final = "transport_draining"
TRANSPORT_STOPPED: Final = "transport_stopped"
KEY_FILE_PERMISSIONS: Final = "key_file_permissions"
CERTIFICATE_RENEWED: Final = "certificate_renewed"
CERTIFICATE_EXPIRES: Final = "certificate_expires"
CERTIFICATE_REFUSED: Final = "certificate_refused"
MONITORING_FAILED: Final = "monitoring_failed"
CRL_RELOADED: Final = "crl_reloaded"
CRL_REJECTED: Final = "crl_rejected"
CRL_EXPIRES: Final = "crl_expires"

# The characters of a fact that needs no quotation marks.
_PLAIN: Final = re.compile(r"[\w.:/@+-]+", re.ASCII)


def log_event(
    logger: logging.Logger, level: int, event: str, /, **facts: object
) -> None:
    """Log one event as one line.

    Args:
        logger: Of the party.
        level: Of `logging`.
        event: A constant of this file.
        facts: Texts and numbers, nothing secret.  A peer's text may hold line ends: it
            is quoted.
    """
    _write_event(logger, level, event, facts, with_traceback=False)


def log_defect(logger: logging.Logger, event: str, /, **facts: object) -> None:
    """Log an unexpected exception that is being handled, as an error.

    Args:
        logger: Of the party.
        event: A constant of this file.
        facts: As for `log_event`.
    """
    _write_event(logger, logging.ERROR, event, facts, with_traceback=True)


def _write_event(
    logger: logging.Logger,
    level: int,
    event: str,
    facts: Mapping[str, object],
    *,
    with_traceback: bool,
) -> None:
    """Log an event with its facts, as text and as attributes."""
    if logger.isEnabledFor(level):
        words = (f" {name}={_quoted(value)}" for name, value in facts.items())
        logger.log(
            level,
            "%s",
            event + "".join(words),
            exc_info=with_traceback,
            stacklevel=3,
            extra={"event": event, "facts": facts},
        )


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)
