"""An aggregator at one glance: what commands print, the web page shows, a scrape reads.

Rule 1: what is said of tasks is made by `secagg.server.admin.views`; here is what the
        process knows of itself.
"""

import os
import shutil
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from secagg.pki.expiry import expiries_of
from secagg.runtime import metrics
from secagg.server.admin.operations import OperatorViews, ServedAggregator, View
from secagg.server.http_edge.listener import HttpEdge
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.telemetry.prometheus import Reading
from secagg.transport.relay.relay import Relay
from secagg.transport.tls import TLSIdentity


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


def process_readings(
    identity: TLSIdentity | None,
    transport: GrpcServer | None,
    state_dir: Path,
    *,
    is_ready: bool,
    edge: HttpEdge | None = None,
) -> list[Reading]:
    """Return the gauges of the process as they stand now.

    Args:
        identity: Its certificate; None without one.
        transport: What its clients are connected to; None before there is any.
        state_dir: Whose disk is watched.
        is_ready: Whether it can serve.
        edge: Its HTTP edge, if it has one.
    """
    found: list[Reading] = [
        (metrics.BUILD, 1.0, {"version": metadata.version("secagg")}),
        (metrics.IS_READY, float(is_ready), {}),
        (metrics.FREE_BYTES, float(free_bytes(state_dir)), {}),
    ]
    if identity is not None:
        for expiry in expiries_of(identity):
            which = {"which": "server" if expiry.which == "own" else "ca"}
            when = expiry.moment.timestamp()
            found.append((metrics.CERTIFICATE_EXPIRES, when, which))
    if edge is not None:
        when = edge.certificate.ends.timestamp()
        found.append((metrics.CERTIFICATE_EXPIRES, when, {"which": "edge"}))
        found += _of_connections(edge.relay, "edge")
    if transport is not None:
        found += _of_connections(transport.relay, "grpc")
    return found


def _of_connections(relay: Relay | None, entry: str) -> list[Reading]:
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
    """Return how much room the disk of a directory has."""
    return shutil.disk_usage(state_dir).free
