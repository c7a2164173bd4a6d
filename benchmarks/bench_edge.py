"""The server's CPU for one call at the HTTP edge, beside the same call over gRPC.

Both entries serve one service in this process. The client is a process of its own, so
that a figure is the CPU of the server alone.  Runs of both alternate.
"""

import asyncio
import hashlib
import importlib.util
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from measurement import emit
from secagg_testing.edge_deployment import AUTHORITY, EdgeDeployment
from secagg_testing.inline_store import inline_store
from secagg_testing.scripted_service import ScriptedService

from secagg.client.edge_connection import EdgeConnection
from secagg.client.grpc_connection import GrpcConnection
from secagg.protocol.enrolment import ClientIdentity
from secagg.runtime.clock import SystemClock
from secagg.server.call_guards import CallGuards, CallLimits
from secagg.server.http_edge.listener import HttpEdge
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.connection import AggregatorConnection
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    GetUploadStatus,
    Request,
    UploadChunk,
    UploadStatus,
)

_MIB = 1 << 20
_SESSION = bytes(32)
_UNLIMITED = CallLimits(calls_per_second=1e9, burst=1_000_000_000)
_DIGEST = hashlib.sha256(b"").digest()
_CALLS: dict[str, tuple[Request[object], int, float]] = {
    # The call, how many in a run, and the largest acceptable ratio.
    "GetUploadStatus": (GetUploadStatus(_SESSION), 300, 1.0),
    "UploadChunk": (
        UploadChunk(_SESSION, 0, _MIB, _DIGEST, bytes(_MIB)),
        60,
        1.25,
    ),
    "FetchChunk": (FetchChunk(_SESSION, Blob.PAYLOAD, 0), 60, 1.25),
}


def main(*, tiny: bool = False) -> None:
    """Measure a small call and chunks of 1 MiB each way."""
    if importlib.util.find_spec("uvicorn") is None:
        print("bench_edge: skipped, the extra edge is not installed", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_measure(Path(name), rounds=1 if tiny else 9, part=tiny))


async def _measure(directory: Path, *, rounds: int, part: bool) -> None:
    deployment = EdgeDeployment.create(directory, now=int(time.time()))
    server = deployment.tls.server("127.0.0.1")
    client = deployment.tls.client("client").files
    service = ScriptedService(
        {
            GetUploadStatus: UploadStatus(1),
            UploadChunk: UploadStatus(_MIB),
            FetchChunk: BlobChunk(bytes(_MIB), _MIB),
        }
    )
    clock = SystemClock()
    guards = CallGuards(_UNLIMITED, clock.now)
    admission = AdmissionLimits(relay="on")
    here = Address("127.0.0.1", 0)
    edge = await HttpEdge.start(
        service,
        deployment.options,
        guards=guards,
        admission=admission,
        store=inline_store(),
        clock=clock,
    )
    async with await GrpcServer.start(
        service, here, identity=server, admission=admission, guards=guards
    ) as grpc:
        grpc.stop_with(edge.stop)
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            *("client", str(directory), str(grpc.address), str(edge.address)),
            *map(str, (client.certificate, client.private_key)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        asked = cast("asyncio.StreamWriter", child.stdin)
        said = cast("asyncio.StreamReader", child.stdout)

        async def cost(entry: str, call: str, count: int) -> float:
            begin = time.process_time()
            asked.write(f"{entry} {call} {count}\n".encode())
            await said.readline()
            service.calls.clear()
            return (time.process_time() - begin) / count

        for call, (_, whole, _) in _CALLS.items():
            count = 5 if part else whole
            for entry in ("grpc", "edge"):
                await cost(entry, call, count)
            pairs = [
                (await cost("grpc", call, count), await cost("edge", call, count))
                for _ in range(rounds)
            ]
            ratio = statistics.median(edge / grpc for grpc, edge in pairs)
            emit(
                "edge/server_cpu",
                parameters={
                    "call": call,
                    "calls": count,
                    "rounds": rounds,
                    "most": _CALLS[call][2],
                    "median_of_paired_ratios": round(ratio, 3),
                },
                value=1e6 * min(edge for _, edge in pairs),
                unit="µs CPU of the server per call",
                baseline="the same call over gRPC with mutual TLS",
                ratio=min(g for g, _ in pairs) / min(e for _, e in pairs),
            )
        asked.close()
        await child.wait()


async def _client(
    directory: Path, grpc: str, edge: str, certificate: str, key: str
) -> None:
    """Make the calls that standard input requests."""
    tls = TLSIdentity.load(
        certificate=Path(certificate),
        private_key=Path(key),
        authority=directory / "ours.pem",
        role=Role.CLIENT,
    )
    async with (
        GrpcConnection(Address.parse(grpc), identity=tls) as over_grpc,
        EdgeConnection(
            AUTHORITY,
            identity=_identity(),
            aggregator="agg",
            authorities=directory / "ours.pem",
            address=Address.parse(edge),
        ) as over_edge,
    ):
        ways: dict[str, AggregatorConnection] = {"grpc": over_grpc, "edge": over_edge}
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            entry, call, count = words
            for _ in range(int(count)):
                await ways[entry].call(_CALLS[call][0])
            print("done", flush=True)


def _identity() -> ClientIdentity:
    from secagg_testing.edge_requests import EdgeIssuer  # noqa: PLC0415 - the child's

    return EdgeIssuer(now=int(time.time())).identity("client")


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        folder, *rest = sys.argv[2:]
        asyncio.run(_client(Path(folder), *rest))
    else:
        main()
