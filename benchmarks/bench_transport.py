"""Calls over mutual TLS on loopback, beside a bare gRPC handler on the same link.

Client and server share the process, so that a figure is the CPU time of both ends.
"""

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
from measurement import emit
from secagg_testing.scripted_service import ScriptedService

from secagg.client.grpc_connection import GrpcConnection
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.server.call_guards import CallLimits
from secagg.server.rpc.certificates import server_credentials
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import ReloadingIdentity, TLSIdentity
from secagg.wire.calls import AdvertiseKeys, UploadChunk, UploadStatus

_BARE = "/bare.Service/Echo"
_MIB = 1 << 20
_UNLIMITED = CallLimits(calls_per_second=1e9, burst=1_000_000_000)

Call = Callable[[], Awaitable[object]]


def main(*, tiny: bool = False) -> None:
    """Measure a small call and the upload of one chunk."""
    asyncio.run(_measure_all(20 if tiny else 400))


async def _measure_all(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        server, client = _identities(Path(name))
        service = ScriptedService(script={UploadChunk: UploadStatus(_MIB)})
        bare_server, bare_call = await _bare(server, client)
        async with (
            await GrpcServer.start(
                service, Address("127.0.0.1", 0), identity=server, limits=_UNLIMITED
            ) as running,
            GrpcConnection(running.address, identity=client) as connection,
        ):
            session_id, digest = bytes(32), hashlib.sha256(b"").digest()
            advert, data = bytes(200), bytes(_MIB)

            def advertise() -> Awaitable[object]:
                return connection.call(AdvertiseKeys(session_id, advert))

            def upload() -> Awaitable[object]:
                return connection.call(UploadChunk(session_id, 0, _MIB, digest, data))

            for call, payload, size in (
                (advertise, advert, len(advert)),
                (upload, data, _MIB),
            ):
                await _compare(call, partial(bare_call, payload), size, count, service)
        await bare_server.stop(0)


async def _compare(
    ours: Call, bare: Call, size: int, count: int, service: ScriptedService
) -> None:
    seconds = await _seconds_per_call(ours, count)
    service.calls.clear()
    emit(
        "transport/unary_call",
        parameters={"request_bytes": size, "calls": count},
        value=1e6 * seconds,
        unit="µs CPU per call, both ends",
        baseline="bare grpc.aio handler, same TLS, no checks",
        ratio=await _seconds_per_call(bare, count) / seconds,
    )


async def _seconds_per_call(call: Call, count: int) -> float:
    """Return the least CPU time of a call over three runs, after a warm-up."""
    await call()
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        for _ in range(count):
            await call()
        best = min(best, (time.process_time() - begin) / count)
    return best


async def _bare(
    server: TLSIdentity, client: TLSIdentity
) -> tuple[grpc.aio.Server, Callable[[bytes], Awaitable[bytes]]]:
    """Start a handler that does nothing, and return how to call it."""

    async def echo(_request: bytes, _context: object) -> bytes:
        return b""

    bare = grpc.aio.server()
    service, method = _BARE.strip("/").split("/")
    bare.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                service, {method: grpc.unary_unary_rpc_method_handler(echo)}
            ),
        )
    )
    port = bare.add_secure_port(
        "127.0.0.1:0", server_credentials(ReloadingIdentity(server))
    )
    await bare.start()
    channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", client.channel_credentials())
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_BARE)
    return bare, call


def _identities(directory: Path) -> tuple[TLSIdentity, TLSIdentity]:
    authority = CertificateAuthority.create()
    authority.issued().write(directory, "ca")
    authority.issue_server("server", ["127.0.0.1"]).write(directory, "server")
    authority.issue_client("client").write(directory, "client")
    server, client = (
        TLSIdentity.load(
            certificate=directory / f"{role}.pem",
            private_key=directory / f"{role}.key",
            authority=directory / "ca.pem",
            role=role,
        )
        for role in (Role.SERVER, Role.CLIENT)
    )
    return server, client


if __name__ == "__main__":
    main()
