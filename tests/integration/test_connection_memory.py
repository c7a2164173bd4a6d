"""What a connection costs the aggregator while it says nothing."""

import ctypes
import hashlib
from contextlib import AsyncExitStack

import pytest
from secagg_testing.manual_clock import ManualClock
from secagg_testing.scripted_service import ScriptedService

from secagg.client.grpc_connection import GrpcConnection
from secagg.server.call_guards import CallLimits
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.wire.calls import AdvertiseKeys, UploadChunk, UploadStatus

SESSION = bytes(32)
CLIENTS = 16
UPLOAD = bytes(40_000)
C = ctypes.CDLL(None)


class MallInfo(ctypes.Structure):
    """Figures of glibc's allocator, `struct mallinfo2`."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks")),
        ("hblkhd", ctypes.c_size_t),  # bytes that were mapped one by one
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks")),
        ("uordblks", ctypes.c_size_t),  # bytes in use of all others
        *((name, ctypes.c_size_t) for name in ("fordblks", "keepcost")),
    )


def bytes_in_use():
    C.mallinfo2.restype = MallInfo
    figures = C.mallinfo2()
    return figures.uordblks + figures.hblkhd


@pytest.mark.skipif(
    not hasattr(C, "mallinfo2"), reason="this C library does not say what is in use"
)
async def test_an_upload_leaves_no_large_buffers():
    """Neither its bytes nor the pieces into which they were read from the network.

    Without `_READ_BYTES` it is 60 KiB a connection, and 40 where the message stays
    until garbage is searched for; both sides of the connection are in the figure.
    """
    service = ScriptedService(script={UploadChunk: UploadStatus(1, complete=True)})
    chunk = UploadChunk(
        SESSION, 0, len(UPLOAD), hashlib.sha256(UPLOAD).digest(), data=UPLOAD
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            await GrpcServer.start(
                service,
                Address("127.0.0.1", 0),
                insecure_for_tests=True,
                limits=CallLimits(calls_per_second=1e6, burst=1_000_000),
                clock=ManualClock(),
            )
        )
        connections = [
            await stack.enter_async_context(
                GrpcConnection(server.address, insecure_for_tests=f"client-{number}")
            )
            for number in range(CLIENTS)
        ]

        async def call_as_each(request):
            for connection in connections:
                await connection.call(request)
            service.calls.clear()

        await call_as_each(AdvertiseKeys(SESSION, b"a"))
        before = bytes_in_use()
        await call_as_each(chunk)
        await call_as_each(AdvertiseKeys(SESSION, b"a"))
        left = (bytes_in_use() - before) / CLIENTS
    assert left < 16 << 10
