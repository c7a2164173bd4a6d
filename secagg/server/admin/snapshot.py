"""An aggregator at one glance: what commands print, the web page shows, a scrape reads.

Rule 1: what is said of tasks is made by `secagg.server.admin.views`; here is what the
        process knows of itself.
"""

import os
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from secagg.pki.expiry import expiries_of
from secagg.server.admin.control import OperatorViews, ServedAggregator, View
from secagg.server.telemetry.process_metrics import free_bytes, process_readings
from secagg.server.telemetry.prometheus import Reading


class StatusSnapshot:
    """Looks at an aggregator that runs.

    Args:
        server: Open.
        state_dir: Of the server, whose disk is watched.

    Attributes:
        state_dir: The same.
    """

    def __init__(self, server: ServedAggregator, state_dir: Path) -> None:
        self._server = server
        self.state_dir: Final = state_dir
        self._started = datetime.now(UTC)

    @property
    def views(self) -> OperatorViews:
        """What is told of its tasks and sessions."""
        return self._server.views(self.state_dir)

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
                else str(self._server.transport.address),
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
                "replicas": await self.views.replicas(),
            },
            "tasks": await self.views.tasks(),
        }

    async def readings(self, is_ready: bool) -> list[Reading]:  # noqa: FBT001 - a page hands it on
        """Return the gauges as they stand now.

        Those that need a store that refuses are missing; that nothing is ready is not.
        """
        found = process_readings(
            self._server.identity,
            self._server.transport,
            self.state_dir,
            is_ready=is_ready,
            edge=self._server.edge,
        )
        return found + await self.views.readings()
