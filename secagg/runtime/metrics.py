"""The table of an aggregator's metrics, and the meters that receive them.

Rule 1: every metric that leaves the process is a row here, and the dashboards and alarm
        rules in `deploy/` name no other (tested).
Rule 2: a label is a task or one word of a short list, never a client, a session or free
        text.  Tasks beyond the first `TASKS_AT_MOST` are one, `other`, so that a scrape
        stays small however long the process runs.
Rule 3: measuring changes nothing: no call waits for it or fails by it.

This module knows no metrics backend: those are `secagg.server.telemetry.measures` and
`secagg.server.telemetry.open_telemetry`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final, Protocol

TASKS_AT_MOST: Final = 100
OTHER: Final = "other"


@unique
class Kind(StrEnum):
    """How the values of a metric are combined."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: As it is scraped.
        kind: How its values are combined.
        help: Its meaning, with its unit.
        labels: Names of its labels.
        buckets: Upper ends of a histogram's buckets, in its unit.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Meter(Protocol):
    """Receives measurements."""

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add a value to a histogram."""


class SilentMeter:
    """Discards measurements, for an aggregator without metrics."""

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Discard it."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Discard it."""


class Meters:
    """Passes measurements to several meters.

    Args:
        meters: The receivers.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = tuple(meters)

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter of each."""
        for meter in self._meters:
            meter.add(metric, amount, **labels)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add a value to a histogram of each."""
        for meter in self._meters:
            meter.observe(metric, value, **labels)


class BoundedTasks:
    """Records which tasks have a label of their own (rule 2)."""

    def __init__(self) -> None:
        self._tasks: set[str] = set()

    def bounded(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return labels in which a task has its own name, or `other`."""
        bounded = dict(labels)
        if "task" in bounded:
            if len(self._tasks) < TASKS_AT_MOST:
                self._tasks.add(bounded["task"])
            if bounded["task"] not in self._tasks:
                bounded["task"] = OTHER
        return bounded


# Rounds last between a moment and an hour, calls and commits far less.
_ROUND_SECONDS: Final = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
_CALL_SECONDS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


_RECORDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0)


def _counter(name: str, says: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, says, labels)


def _gauge(name: str, says: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, says, labels)


def _histogram(
    name: str, says: str, *labels: str, buckets: tuple[float, ...]
) -> Metric:
    return Metric(name, Kind.HISTOGRAM, says, labels, buckets)


SESSIONS: Final = _counter(
    "secagg_sessions_total",
    "Sessions that ended, by `released` or the code of their abort.",
    "task",
    "outcome",
)
CLIENTS_LOST: Final = _counter(
    "secagg_clients_lost_total",
    "Clients that sessions continued without, by the round in which they were lost.",
    "round",
    "reason",
)
ROUND_SECONDS: Final = _histogram(
    "secagg_round_seconds",
    "How long rounds were open, and whether all clients had answered.",
    "round",
    "closed_by",
    buckets=_ROUND_SECONDS,
)
SUM_SECONDS: Final = _histogram(
    "secagg_sum_seconds",
    "How long it took to remove the masks from a sum.",
    buckets=_ROUND_SECONDS,
)
CALLS: Final = _counter("secagg_calls_total", "Calls of clients.", "method")
CALL_SECONDS: Final = _histogram(
    "secagg_call_seconds",
    "How long it took to answer a call, refusals included; not how long a request "
    "for a session was held.",
    "method",
    buckets=_CALL_SECONDS,
)
REFUSALS: Final = _counter(
    "secagg_refusals_total", "Calls of clients that were refused, by code.", "code"
)
UPLOAD_BYTES: Final = _counter(
    "secagg_upload_bytes_total", "Bytes of masked inputs that clients sent.", "task"
)
DOWNLOAD_BYTES: Final = _counter(
    "secagg_download_bytes_total",
    "Bytes of payloads, sums and large updates that clients fetched.",
    "task",
)
STORE_COMMIT_SECONDS: Final = _histogram(
    "secagg_store_commit_seconds",
    "How long commits of sessions took until they were on the disk.",
    buckets=_CALL_SECONDS,
)
STORE_BATCH_RECORDS: Final = _histogram(
    "secagg_store_batch_records",
    "How many messages of a session shared one commit.",
    buckets=_RECORDS,
)
STORE_CONFLICTS: Final = _counter(
    "secagg_store_conflicts_total",
    "Changes that were too late, because another aggregator had written first.",
)
STORE_ERRORS: Final = _counter(
    "secagg_store_errors_total", "Changes that the store refused."
)
LEASES_LOST: Final = _counter(
    "secagg_leases_lost_total",
    "Sums whose lease passed to another aggregator during the computation.",
)
MASK_COORDINATES: Final = _counter(
    "secagg_mask_coordinates_total", "Entries of masks that were removed from sums."
)
ENGINE_JOBS: Final = _counter(
    "secagg_engine_jobs_total",
    "Parts of sums that the engine received, by `done` or `lost`.",
    "engine",
    "result",
)

# Read at each scrape.
IS_READY: Final = _gauge(
    "secagg_is_ready",
    "1 if the store accepts writes, the disk has free space and a task runs.",
)
SESSIONS_OPEN: Final = _gauge(
    "secagg_sessions_open", "Sessions that are not over.", "task"
)
ROUND_ANSWERED: Final = _gauge(
    "secagg_round_answered",
    "Clients that answered in the open round of the latest session.",
    "task",
)
ROUND_EXPECTED: Final = _gauge(
    "secagg_round_expected",
    "Clients that may answer in the open round of the latest session.",
    "task",
)
TASK_SLOT: Final = _gauge(
    "secagg_task_slot_seconds",
    "Length of a slot in the schedule of a running task, 1 for a task without a "
    "schedule; 0 while it does not run.",
    "task",
)
TASK_UNWRITTEN: Final = _gauge(
    "secagg_task_pending_writes",
    "1 while the disk refuses the files of a task's latest session, else 0.",
    "task",
)
TASK_SUMS_LEFT: Final = _gauge(
    "secagg_task_sums_left", "Sums that a task still wants.", "task"
)
TASK_SESSIONS_LEFT: Final = _gauge(
    "secagg_task_sessions_left",
    "Sessions that a task's budget still covers, with the spare ones.",
    "task",
)
TASK_SPARE_LEFT: Final = _gauge(
    "secagg_task_spare_sessions_left",
    "Sessions left beyond the sums that a task still wants.",
    "task",
)
TASK_EPSILON: Final = _gauge(
    "secagg_task_epsilon",
    "Epsilon of all sessions of a task together, against the adversary `server` or "
    "`model_reader`.",
    "task",
    "against",
)
PEER_ANSWERS: Final = _gauge(
    "secagg_peer_up",
    "1 if the other aggregator answered the last probe, else 0; of two aggregators "
    "the leader probes the `helper`.",
    "which",
)
CONNECTIONS: Final = _gauge(
    "secagg_connections_open",
    "Open connections of clients, by entry: `grpc` or `edge`.",
    "entry",
)
CONNECTIONS_REFUSED: Final = _gauge(
    "secagg_connections_refused",
    "Connections that were ended since the start of the process, by entry and reason.",
    "entry",
    "reason",
)
CERTIFICATE_EXPIRES: Final = _gauge(
    "secagg_certificate_expires_timestamp_seconds",
    "Expiry of the aggregator's certificate, of that of its HTTP edge, or of the "
    "last authority that it trusts, in Unix seconds.",
    "which",
)
FREE_BYTES: Final = _gauge(
    "secagg_free_bytes", "Free bytes of the disk that holds the state."
)
BUILD: Final = _gauge("secagg_build_info", "1; the version is a label.", "version")

METRICS: Final = (
    SESSIONS,
    CLIENTS_LOST,
    ROUND_SECONDS,
    SUM_SECONDS,
    CALLS,
    CALL_SECONDS,
    REFUSALS,
    UPLOAD_BYTES,
    DOWNLOAD_BYTES,
    STORE_COMMIT_SECONDS,
    STORE_BATCH_RECORDS,
    STORE_CONFLICTS,
    STORE_ERRORS,
    LEASES_LOST,
    MASK_COORDINATES,
    ENGINE_JOBS,
    IS_READY,
    SESSIONS_OPEN,
    ROUND_ANSWERED,
    ROUND_EXPECTED,
    TASK_SLOT,
    TASK_UNWRITTEN,
    TASK_SUMS_LEFT,
    TASK_SESSIONS_LEFT,
    TASK_SPARE_LEFT,
    TASK_EPSILON,
    PEER_ANSWERS,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    CERTIFICATE_EXPIRES,
    FREE_BYTES,
    BUILD,
)

# Of the process itself, under the names that every exporter gives them.
PROCESS_METRICS: Final = frozenset(
    {
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }
)
