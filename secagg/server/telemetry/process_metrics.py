"""What any aggregator's process knows of itself, as gauges."""

import shutil
from importlib import metadata
from pathlib import Path

from secagg.pki.expiry import expiries_of
from secagg.runtime import metrics
from secagg.server.http_edge.listener import HttpEdge
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.telemetry.prometheus import Reading
from secagg.transport.relay.relay import Relay
from secagg.transport.tls import TLSIdentity


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
