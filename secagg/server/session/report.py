"""What an operator reads about one session that is over: dated, whole, on one page.

A receipt (`secagg.server.session.receipt`) is what must be known of a session; a report
is what helps to see why it went as it did: when, who was lost where, and what to do
next.

Rule 1: every session that ends leaves one, those without a sum too.
Rule 2: a report holds names of clients: its file is for its owner alone.  It holds no
        key, share, entry or hash of an input.
Rule 3: no sum waits for a report.  A disk that refuses it is said in the log.
Rule 4: it is let go of when the session's receipt is.
"""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from secagg.distributed_dp import NoisyTask
from secagg.errors import ErrorCode
from secagg.protocol.messages import Aborted
from secagg.runtime import log_events as telemetry
from secagg.runtime.durable_files import replace_file
from secagg.server.session.progress import SessionProgress
from secagg.server.session.receipt import SessionReceipt
from secagg.server.task.folder import folder_of
from secagg.storage.change import Role
from secagg.storage.queries import ListSessions, ReadClock
from secagg.storage.rows import Retention
from secagg.storage.store import Store, StoreUnavailableError

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_FORMAT: Final = 1
_PRIVATE: Final = 0o600
# A report names every client of a session a few times; names have 256 bytes at most.
_MAX_BYTES: Final = 64 << 20
_DAY_SECONDS: Final = 86_400.0

_NEXT_STEPS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.ROSTER_TOO_SMALL: "Are the clients up, and do they know this task? "
    "`secagg doctor` with a client's settings looks at clock, name and certificate.",
    ErrorCode.U2_TOO_SMALL: "Give clients more time: rounds.share_keys.",
    ErrorCode.U3_TOO_SMALL: "Compare rounds.masked_input with the slowest link: "
    "upload_bytes of `secagg plan` divided by its rate.",
    ErrorCode.TOO_MANY_DROPOUTS: "Compare rounds.masked_input with the slowest link: "
    "upload_bytes of `secagg plan` divided by its rate.",
    ErrorCode.TOO_FEW_ANSWERS: "Give clients more time: rounds.unmasking; or lower "
    "cohort.threshold in a new task.",
    ErrorCode.NO_QUORUM: "Clients did not agree on who is in the sum: were they lost, "
    "or was somebody shown another list?",
    ErrorCode.RECONSTRUCTION_FAILED: "A client has lied; see who is named.",
    ErrorCode.DISPUTED: "Ask the operators of the clients that accuse each other; one "
    "of each two lies. The next session goes on without them.",
    ErrorCode.DEADLINE: "The session took longer than it was offered for; see the time "
    "that each round took.",
    ErrorCode.STORAGE_FAILED: "Look at the disk: `secagg doctor` with the server's "
    "settings.",
    ErrorCode.INTERNAL: "If its sum has ended its aggregators: does the system's log "
    "say that they were killed for want of memory? Else please report it with the "
    "server's log.",
    ErrorCode.CANCELLED: "Somebody has ended it; the reason says who or why.",
}
_OTHERWISE: Final = "See docs/operations.md."
_AFTER_RESTORE: Final = (
    "Nothing: a restore or a fail-over of the database has ended it, its inputs count "
    "as summed, and the next session follows."
)


def next_step_after(receipt: SessionReceipt) -> str:
    """Return what an operator does about a session; empty when it released its sum."""
    outcome = receipt.outcome
    if not isinstance(outcome, Aborted):
        return ""
    if receipt.was_restored:
        return _AFTER_RESTORE
    return _NEXT_STEPS.get(outcome.code, _OTHERWISE)


def report_of(
    receipt: SessionReceipt,
    progress: SessionProgress,
    *,
    opened: float,
    ended: float,
) -> dict[str, object]:
    """Return the report of a session, in values that JSON can hold.

    Args:
        receipt: Of the session.
        progress: Where it stood at its end.
        opened: When it was opened, in Unix seconds.
        ended: When it was over.
    """
    descriptor, outcome = receipt.descriptor, receipt.outcome
    parameters = descriptor.parameters
    budget = None
    if parameters.noise_block:
        planned = NoisyTask.from_parameters(parameters).budget
        budget = {
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "participations": planned.participations,
            "charges": planned.charges,
            "sessions_left": receipt.sessions_left,
        }
    failed: dict[str, object] = {}
    if isinstance(outcome, Aborted):
        failed = {
            "code": int(outcome.code),
            "reason": outcome.reason,
            "next_step": next_step_after(receipt),
        }
    warning: dict[str, object] = {}
    if receipt.warning:
        warning["warning"] = receipt.warning
    return {
        "format": _FORMAT,
        "aggregator": descriptor.aggregator,
        "version": metadata.version("secagg"),
        "task": descriptor.task_id,
        "session_number": descriptor.session_number,
        "session_id": descriptor.session_id.hex(),
        "outcome": receipt.outcome_name,
        **failed,
        "opened": _date(opened),
        "ended": _date(ended),
        "seconds": round(ended - opened, 3),
        "seconds_of_rounds": dict(receipt.seconds),
        "counts": {
            "joined": receipt.advertised,
            "shared_keys": receipt.shared,
            "uploaded": receipt.uploaded,
            "signed": receipt.signed,
            "unmasked": receipt.revealed,
            "in_the_sum": 0 if failed else len(receipt.survivors),
        },
        "lost": [
            {"client": client, "round": title, "reason": reason}
            for client, title, reason in receipt.lost
        ],
        "unconfirmed": list(receipt.unconfirmed),
        **warning,
        "left_out": list(progress.left_out),
        "disputes": [
            {"accuser": accuser, "accused": accused, "code": ErrorCode(code).name}
            for accuser, accused, code in receipt.disputes
        ],
        "failed_dealer": receipt.failed_dealer,
        "upload_bytes": progress.upload_bytes,
        "budget": budget,
    }


class SessionReports:
    """The reports of an aggregator: `<directory>/<task>/<number>.json`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def note(
        self, store: Store, receipt: SessionReceipt, progress: SessionProgress
    ) -> None:
        """Write the report of a session that is over, and not yet ended in the book.

        Args:
            book: Knows when the session was opened.
            receipt: Of the session.
            progress: Where it stands.

        Raises:
            StoreUnavailableError: It has to be asked again.
        """
        try:
            ended = await store.read(ReadClock())
            task_id, number = progress.task_id, progress.session_number
            running = await store.read(ListSessions(role=Role.SERVER, task=task_id))
            opened = min((r.born for r in running if r.number == number), default=ended)
            report = report_of(receipt, progress, opened=opened, ended=ended)
            await asyncio.to_thread(self._write, task_id, number, report)
        except StoreUnavailableError:
            raise  # the session cannot end without it either
        except Exception as error:  # noqa: BLE001 - no sum waits for a report
            telemetry.log_event(
                _LOG,
                logging.ERROR,
                telemetry.REPORT_WRITE_FAILED,
                task=progress.task_id,
                number=progress.session_number,
                reason=error,
            )

    def read(self, task_id: str, number: int) -> dict[str, object] | None:
        """Return a report, or None if there is none that can be read."""
        try:
            with self._path(task_id, number).open("rb") as stream:
                report = json.loads(stream.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return report if isinstance(report, dict) else None

    def purge(self, policy: Retention, *, now: float) -> int:
        """Remove reports that are older, or more, than somebody wants to keep.

        Args:
            policy: What stays, as for receipts.
            now: In Unix seconds.

        Returns:
            How many are gone.
        """
        oldest = now - policy.keep_receipts_days * _DAY_SECONDS
        by_task: defaultdict[Path, list[tuple[float, Path]]] = defaultdict(list)
        for path in self._files():
            by_task[path.parent].append((path.stat().st_mtime, path))
        gone = 0
        for files in by_task.values():
            files.sort(reverse=True)
            for place, (written, path) in enumerate(files):
                if place >= policy.keep_receipts or written < oldest:
                    path.unlink(missing_ok=True)
                    gone += 1
        return gone

    def _files(self) -> Iterator[Path]:
        if self._directory.is_dir():
            yield from self._directory.glob("*/[0-9]*.json")

    def _write(self, task_id: str, number: int, report: Mapping[str, object]) -> None:
        path = self._path(task_id, number)
        for folder in (self._directory, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        data = json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n"
        replace_file(path, data, mode=_PRIVATE)

    def _path(self, task_id: str, number: int) -> Path:
        return self._directory / folder_of(task_id) / f"{number}.json"


def reports_in(state_dir: Path) -> SessionReports:
    """Return the reports that lie in the state of an aggregator."""
    return SessionReports(state_dir / "reports")


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
