"""The status of an aggregator, for commands, the web page and scrapes.

Rule 1: `secagg.server.admin.views` makes what is shown of tasks; this module adds what
        the process knows of itself.
"""

import os
import shutil
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from secagg.pki.expiry import expiries_of
from secagg.runtime import metrics
from secagg.server.admin.operations import (
    OperatorViews,
    ServedAggregator,
    ServerControl,
    Sources,
    View,
)
from secagg.server.telemetry.measures import GaugeSample
from secagg.transport.relay import Relay


class StatusSnapshot:
    """Reads the status of an aggregator that runs.

    Args:
        server: The open server.
        state_dir: State directory of the server, whose disk is monitored.

    Attributes:
        state_dir: State directory of the server.
    """

    def __init__(self, server: ServedAggregator, state_dir: Path) -> None:
        self._server = server
        self.state_dir: Final = state_dir
        self._started = datetime.now(UTC)

    @property
    def views(self) -> OperatorViews:
        """The views of its tasks and sessions."""
        return self._server.views(self.state_dir)

    def sources(self, control: ServerControl | None = None) -> Sources:
        """Return the sources of answers.

        Args:
            control: The process; None where answers may change nothing.
        """
        return Sources(self.views, self.state_dir, self, control)

    async def status(self) -> View:
        """Return what `secagg status` shows."""
        identity = self._server.identity
        # Of its own chain and the authorities, the first to expire needs an operator.
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
                if self._server.transport is None  # the tasks are still planned
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

    async def readings(self, is_ready: bool) -> list[GaugeSample]:  # noqa: FBT001 - a page passes it on
        """Return the present gauges.

        Gauges that need an unavailable store are missing; the gauge of readiness is
        not.
        """
        return self._of_process(is_ready) + await self.views.readings()

    def _of_process(self, is_ready: bool) -> list[GaugeSample]:  # noqa: FBT001 - as above
        """Return what any aggregator's process knows of itself, as gauges."""
        server = self._server
        found: list[GaugeSample] = [
            (metrics.BUILD, 1.0, {"version": metadata.version("secagg")}),
            (metrics.IS_READY, float(is_ready), {}),
            (metrics.FREE_BYTES, float(free_bytes(self.state_dir)), {}),
        ]
        if server.identity is not None:
            for expiry in expiries_of(server.identity):
                which = {"which": "server" if expiry.which == "own" else "ca"}
                when = expiry.moment.timestamp()
                found.append((metrics.CERTIFICATE_EXPIRES, when, which))
        if server.edge is not None:
            when = server.edge.certificate.ends.timestamp()
            found.append((metrics.CERTIFICATE_EXPIRES, when, {"which": "edge"}))
            found += _of_connections(server.edge.relay, "edge")
        if server.transport is not None:
            found += _of_connections(server.transport.relay, "grpc")
        return found


def _of_connections(relay: Relay | None, entry: str) -> list[GaugeSample]:
    """Return the gauges of one relay's connections."""
    if relay is None:
        return []
    which = {"entry": entry}
    return [
        (metrics.CONNECTIONS, float(relay.connections), which),
        *(
            (metrics.CONNECTIONS_REFUSED, float(count), which | {"reason": str(reason)})
            for reason, count in relay.refused.items()
        ),
    ]


def free_bytes(state_dir: Path) -> int:
    """Return the free bytes of a directory's disk."""
    return shutil.disk_usage(state_dir).free
