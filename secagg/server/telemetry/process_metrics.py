"""What any aggregator's process knows of itself, as gauges."""

import shutil
from importlib import metadata
from pathlib import Path

from secagg.pki.expiry import expiries_of
from secagg.runtime import metrics
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.telemetry.prometheus import Reading
from secagg.transport.tls import TLSIdentity


def process_readings(
    identity: TLSIdentity | None,
    transport: GrpcServer | None,
    state_dir: Path,
    *,
    is_ready: bool,
) -> list[Reading]:
    """Return the gauges of the process as they stand now.

    Args:
        identity: Its certificate; None without one.
        transport: What its clients are connected to; None before there is any.
        state_dir: Whose disk is watched.
        is_ready: Whether it can serve.
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
    return found + _of_connections(transport)


def _of_connections(transport: GrpcServer | None) -> list[Reading]:
    if transport is None or transport.relay is None:
        return []
    relay = transport.relay
    return [
        (metrics.CONNECTIONS, float(relay.connections), {}),
        *(
            (metrics.CONNECTIONS_REFUSED, float(count), {"reason": str(reason)})
            for reason, count in relay.refused.items()
        ),
    ]


def free_bytes(state_dir: Path) -> int:
    """Return how much room the disk of a directory has."""
    return shutil.disk_usage(state_dir).free
