"""An aggregator at one glance: what commands print, the web page shows, a scrape reads.

Rule 1: what is said of tasks is made by `secagg.server.admin.views`; here is what the
        process knows of itself.
"""

import os
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from secagg.config.schedule import Schedule
from secagg.errors import ServiceError
from secagg.pki.expiry import expiries_of
from secagg.runtime import metrics
from secagg.server.admin.views import View, budgets_view, state_of, tasks_view
from secagg.server.operated_server import OperatedServer
from secagg.server.task.history import TaskHistory
from secagg.server.task.stored import decode_settings
from secagg.server.telemetry.process_metrics import free_bytes, process_readings
from secagg.server.telemetry.prometheus import Reading
from secagg.storage.queries import ListReplicas, ListTasks
from secagg.storage.rows import TaskState

# A replica that was not seen for so long has left, and nobody need look at it.
_GONE_SECONDS: Final = 3600.0


class StatusSnapshot:
    """Looks at an aggregator that runs.

    Args:
        server: Open.
        state_dir: Of the server, whose disk is watched.

    Attributes:
        state_dir: The same.
    """

    def __init__(self, server: OperatedServer, state_dir: Path) -> None:
        self._server = server
        self.state_dir: Final = state_dir
        self._started = datetime.now(UTC)

    async def status(self) -> View:
        """Return what `secagg status` shows."""
        identity = self._server.identity
        # Of its own chain and the authorities, what ends first: somebody has to act.
        expires = (
            None
            if identity is None
            else min(each.moment for each in expiries_of(identity))
        )
        return {
            "server": {
                "is_running": True,
                "version": metadata.version("secagg"),
                "pid": os.getpid(),
                "address": None
                if self._server.transport is None  # still planning
                else str(self._server.address),
                "edge": None
                if self._server.edge is None
                else str(self._server.edge.address),
                "started": self._started.isoformat(timespec="seconds"),
                "is_draining": self._server.is_draining,
                "certificate_expires": None
                if expires is None
                else expires.isoformat(timespec="seconds"),
                "certificate_days": None
                if expires is None
                else (expires - datetime.now(UTC)).days,
                "refused_last_hour": self._server.refused(),
                "free_bytes": free_bytes(self.state_dir),
                "replicas": await self._replicas(),
            },
            "tasks": await tasks_view(
                self._server.storage.store,
                self._server.live,
                self._server.pending_writes.refused,
            ),
        }

    async def _replicas(self) -> list[View]:
        """Return who shares the book; nobody where it is not shared."""
        return [
            {
                "name": row.replica.name,
                "address": row.replica.address,
                "version": row.replica.version,
                "started": datetime.fromtimestamp(row.started, UTC).isoformat(
                    timespec="seconds"
                ),
                "silent_seconds": round(row.silent_seconds, 1),
            }
            for row in await self._server.storage.store.read(ListReplicas())
            if row.silent_seconds < _GONE_SECONDS
        ]

    async def readings(self, is_ready: bool) -> list[Reading]:  # noqa: FBT001 - a page hands it on
        """Return the gauges as they stand now.

        Those that need a book that refuses are missing: whoever scrapes hears the rest,
        that nothing is ready above all.
        """
        found = process_readings(
            self._server.identity,
            self._server.transport,
            self.state_dir,
            is_ready=is_ready,
            edge=self._server.edge,
        )
        with suppress(ServiceError):
            found += await self._of_tasks()
        return found + self._of_sessions()

    async def _of_tasks(self) -> list[Reading]:
        found: list[Reading] = []
        store = self._server.storage.store
        for row in await store.read(ListTasks()):
            task, settings = {"task": row.task.task_id}, decode_settings(row.task)
            runs = state_of(row, settings) == TaskState.RUNNING.value
            sums = TaskHistory.decode(row.tally.facts).sums
            missing = max(0, settings.task.steps - sums)
            schedule = Schedule.parse(settings.task.schedule, settings.task.window)
            slot = float(schedule.period or 1) if runs else 0.0
            found.append((metrics.TASK_SLOT, slot, task))
            unwritten = row.task.task_id in self._server.pending_writes.refused
            found.append((metrics.TASK_UNWRITTEN, float(unwritten), task))
            found.append((metrics.TASK_SUMS_LEFT, float(missing), task))
        for budget in await budgets_view(store, self.state_dir):
            task = {"task": str(budget["task"])}
            for metric, name in (
                (metrics.TASK_SESSIONS_LEFT, "left"),
                (metrics.TASK_SPARE_LEFT, "spare_left"),
            ):
                found.append((metric, float(str(budget[name])), task))
            for against in ("server", "model_reader"):
                epsilon = float(str(budget[f"epsilon_{against}"]))
                labels = {**task, "against": against}
                found.append((metrics.TASK_EPSILON, epsilon, labels))
        return found

    def _of_sessions(self) -> list[Reading]:
        found: list[Reading] = []
        open_sessions: dict[str, int] = {}
        for live in self._server.live():
            progress = live.progress
            task = {"task": progress.task_id}
            counted = open_sessions.get(progress.task_id, 0) + 1
            open_sessions[progress.task_id] = counted
            found.append((metrics.SESSIONS_OPEN, float(counted), task))
            found.append((metrics.ROUND_ANSWERED, float(progress.answered), task))
            found.append((metrics.ROUND_EXPECTED, float(progress.expected), task))
        return found
