"""Names of log events and metrics, and the rule that keeps secrets out of them.

Rule 1: every name that leaves the process is a constant in this file.
Rule 2: a log record carries identities, counts, rounds, codes and digests; never a
        key, seed, share, vector entry or free bytes of a peer.

It configures no logging and knows no metrics backend.
"""

from typing import Final

__all__ = [
    "ADMIN_REFUSED",
    "AGGREGATOR_UNREACHABLE",
    "CALL_FAILED",
    "CALL_REFUSED",
    "CERTIFICATE_EXPIRES",
    "CERTIFICATE_REFUSED",
    "CERTIFICATE_RENEWED",
    "CLIENT_DROPPED",
    "CLIENT_LEFT_OUT",
    "CLIENT_LOGGER",
    "KEY_FILE_READABLE",
    "MESSAGE_ACCEPTED",
    "MESSAGE_REFUSED",
    "ROUND_CLOSED",
    "SERVER_LOGGER",
    "SESSION_ABORTED",
    "SESSION_COMPLETED",
    "SESSION_OPENED",
    "SESSION_RESUMED",
    "SPOOL_FOREIGN",
    "STORAGE_REFUSED",
    "TASK_CHANGED",
    "TASK_DIFFERS",
    "TRANSPORT_DRAINING",
    "TRANSPORT_LOGGER",
    "TRANSPORT_STARTED",
    "TRANSPORT_STOPPED",
]

SERVER_LOGGER: Final = "secagg.server"
CLIENT_LOGGER: Final = "secagg.client"
TRANSPORT_LOGGER: Final = "secagg.transport"

SESSION_OPENED: Final = "session_opened"
SESSION_RESUMED: Final = "session_resumed"
SESSION_COMPLETED: Final = "session_completed"
SESSION_ABORTED: Final = "session_aborted"
ROUND_CLOSED: Final = "round_closed"
CLIENT_DROPPED: Final = "client_dropped"
CLIENT_LEFT_OUT: Final = "client_left_out"
RECEIPTS_PURGED: Final = "receipts_purged"
TASK_CHANGED: Final = "task_changed"
TASK_DIFFERS: Final = "task_differs"
ADMIN_REFUSED: Final = "admin_refused"
STORAGE_REFUSED: Final = "storage_refused"
SPOOL_FOREIGN: Final = "spool_foreign"
MESSAGE_ACCEPTED: Final = "message_accepted"
MESSAGE_REFUSED: Final = "message_refused"
AGGREGATOR_UNREACHABLE: Final = "aggregator_unreachable"

# Of the transport: calls, its life, and what it found in certificates.
CALL_REFUSED: Final = "call_refused"
CALL_FAILED: Final = "call_failed"
TRANSPORT_STARTED: Final = "transport_started"
TRANSPORT_DRAINING: Final = "transport_draining"
TRANSPORT_STOPPED: Final = "transport_stopped"
KEY_FILE_READABLE: Final = "key_file_readable"
CERTIFICATE_RENEWED: Final = "certificate_renewed"
CERTIFICATE_EXPIRES: Final = "certificate_expires"
CERTIFICATE_REFUSED: Final = "certificate_refused"
